// SPDX-License-Identifier: GPL-2.0

//! `database`: the I/O of a transaction database (TPC-C's pattern), with optimizations switched off one by one, by
//! different kinds of clients.
//!
//! Data: random reads and writes of one size, 70 % of them reads. Log: sequential writes with FUA, one at a time, to a
//! part of the disk of their own.

use std::process::ExitCode;

use hcablk::error::{Error, Kind, Result};
use serde::Serialize;
use serde_json::json;

use crate::cli::DatabaseArgs;
use crate::fio::{self, Job, Load, Until};
use crate::lab::{Counters, Export, Lab, NAME};
use crate::local_remote::{grown, local, LeftOut};
use crate::page::{Layer, Page};
use crate::report::{self, Report};
use crate::rivals;
use crate::stop::Stop;

/// The client of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// The drive itself, on the target.
    Local,
    /// The kernel module, as V3's kDSA.
    Kernel,
    /// The kernel module, with polled queues.
    Polled,
    /// The library in fio, without a block device, as V3's cDSA: polls, or sleeps until an event.
    Library {
        events: bool,
    },
    /// A disk of the kernel's ublk driver, served by a program.
    Ublk,
    NvmeRdma,
    Nbd,
}

/// A client with its settings.
struct Variant {
    name: &'static str,
    what: &'static str,
    client: Client,
    options: &'static [&'static str],
}

const REGISTERED: &[&str] = &[
    "--small-read",
    "0",
    "--small-write",
    "0",
    "--eager-write",
    "0",
];

/// The first is the one that the others are compared with.
const VARIANTS: [Variant; 14] = [
    Variant {
        name: "full",
        what: "hcablk's kernel module with its defaults",
        client: Client::Kernel,
        options: &[],
    },
    Variant {
        name: "registration",
        what: "registers memory for every request, instead of copying small ones",
        client: Client::Kernel,
        options: REGISTERED,
    },
    Variant {
        name: "invalidation",
        what: "registers memory for every request, and invalidates it by a work request of its own",
        client: Client::Kernel,
        options: &[
            "--small-read",
            "0",
            "--small-write",
            "0",
            "--eager-write",
            "0",
            "--no-remote-invalidate",
        ],
    },
    Variant {
        name: "interrupts",
        what: "does not batch interrupts",
        client: Client::Kernel,
        options: &["--batch-upper", "0"],
    },
    Variant {
        name: "messages",
        what: "sends a message for every request",
        client: Client::Kernel,
        options: &["--message-requests", "1"],
    },
    Variant {
        name: "locks",
        what: "has one queue pair for all processors, which share its locks",
        client: Client::Kernel,
        options: &["--queues", "1"],
    },
    Variant {
        name: "none",
        what: "has none of these optimizations",
        client: Client::Kernel,
        options: &[
            "--small-read",
            "0",
            "--small-write",
            "0",
            "--eager-write",
            "0",
            "--no-remote-invalidate",
            "--batch-upper",
            "0",
            "--message-requests",
            "1",
            "--queues",
            "1",
        ],
    },
    Variant {
        name: "polling",
        what: "polls for completions, in place of interrupts (io_uring with IOPOLL)",
        client: Client::Polled,
        options: &[],
    },
    Variant {
        name: "library",
        what: "hcablk's library in the program, which polls",
        client: Client::Library { events: false },
        options: &[],
    },
    Variant {
        name: "library-events",
        what: "hcablk's library in the program, which sleeps until an event",
        client: Client::Library { events: true },
        options: &[],
    },
    Variant {
        name: "ublk",
        what: "a disk of the kernel's ublk driver, served by hcablk-ublk",
        client: Client::Ublk,
        options: &[],
    },
    Variant {
        name: "local",
        what: "the drive itself, on the target",
        client: Client::Local,
        options: &[],
    },
    Variant {
        name: "nvme-rdma",
        what: "Linux's NVMe over RDMA",
        client: Client::NvmeRdma,
        options: &[],
    },
    Variant {
        name: "nbd",
        what: "NBD over TCP, a copy in user space",
        client: Client::Nbd,
        options: &[],
    },
];

/// The requests for data that are issued together.
const BATCH: u32 = 8;

/// A rate of a variant.
type Rate = fn(&Row) -> f64;

/// The results of a variant.
#[derive(Serialize)]
struct Row {
    variant: &'static str,
    data: Load,
    log: Load,
    /// Requests for data per second.
    data_per_second: f64,
    /// Writes of the log per second.
    log_per_second: f64,
    /// The counters on the client and the target, for others than the rivals; a client in user space has none.
    counted: (Counters, Counters),
    /// The same for each request, data and log.
    each: Each,
}

/// Counts for each request: those of the client, but the last. `None`: they are not counted.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Each {
    interrupts: Option<f64>,
    registrations: Option<f64>,
    messages: Option<f64>,
    doorbells: Option<f64>,
    work_requests: Option<f64>,
    copied_bytes: Option<f64>,
    target_work_requests: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "ratios of counts")]
fn each((client, target): &(Counters, Counters), requests: u64) -> Each {
    let of = |counters: &Counters, name: &str| {
        let value = counters.get(name).copied().unwrap_or(0) as f64;
        (!counters.is_empty()).then_some(value / requests.max(1) as f64)
    };
    Each {
        interrupts: of(client, "events"),
        registrations: of(client, "registrations"),
        messages: of(client, "sends"),
        doorbells: of(client, "doorbells"),
        work_requests: of(client, "work_requests"),
        copied_bytes: of(client, "copied_bytes"),
        target_work_requests: of(target, "work_requests"),
    }
}

/// Runs the experiment.
pub(crate) fn run(args: &DatabaseArgs, stop: &Stop) -> Result<ExitCode> {
    let unknown = args
        .only
        .iter()
        .find(|name| !VARIANTS.iter().any(|variant| variant.name == *name));
    if let Some(unknown) = unknown {
        let names = VARIANTS.map(|variant| variant.name).join(", ");
        let message = format!("there is no variant {unknown}; there are {names}");
        return Err(Error::new(Kind::Usage, message));
    }
    report::with_lab(&args.common, "database", true, stop, |lab, report| {
        measure(args, lab, report)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn measure(args: &DatabaseArgs, lab: &mut Lab, report: &Report) -> Result<()> {
    let mut rows = Vec::new();
    let mut left_out = Vec::new();
    for variant in &VARIANTS {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == variant.name) {
            continue;
        }
        if !args.common.json {
            println!("{}: {}", variant.name, variant.what);
        }
        let notes = (lab.client.noted()?, lab.target.noted()?);
        match set_up(lab, variant) {
            Ok(place) => rows.push(measure_variant(args, lab, variant, &place)?),
            Err(error) if error.kind != Kind::Interrupted => {
                if !args.common.json {
                    println!("  left out: {}", error.message);
                }
                left_out.push(LeftOut {
                    way: variant.name,
                    why: error.message,
                });
            }
            Err(error) => return Err(error),
        }
        lab.unexport()?;
        lab.client.undo(notes.0)?;
        lab.target.undo(notes.1)?;
    }
    if rows.is_empty() {
        return Err(crate::local_remote::nothing(&left_out));
    }
    let mut result = report::head(lab, "database");
    result["rows"] = json!(rows);
    result["left_out"] = json!(left_out);
    report.write_json("result.json", &result)?;
    report.write("index.html", &page(lab, args, &rows, &left_out)?)?;
    if args.common.json {
        println!("{result}");
    }
    Ok(())
}

/// The place of a load: a disk, and options of fio for it.
struct Place {
    disk: String,
    engine: String,
    options: Vec<String>,
}

fn on_disk(disk: String) -> Place {
    Place {
        disk,
        engine: "libaio".to_owned(),
        options: Vec::new(),
    }
}

fn set_up(lab: &mut Lab, variant: &Variant) -> Result<Place> {
    let export = Export::new("direct");
    match variant.client {
        Client::Local => local(lab).map(on_disk),
        Client::NvmeRdma => rivals::nvme_rdma(lab).map(on_disk),
        Client::Nbd => rivals::nbd(lab).map(on_disk),
        Client::Kernel => {
            lab.export(&export)?;
            lab.connect(variant.options).map(on_disk)
        }
        Client::Polled => {
            lab.export(&export)?;
            let queues = lab.client_facts.processors.min(126).to_string();
            let disk = lab.connect(&["--poll-queues", &queues])?;
            Ok(Place {
                engine: "io_uring".to_owned(),
                options: vec!["--hipri=1".to_owned()],
                ..on_disk(disk)
            })
        }
        Client::Ublk => {
            lab.export(&export)?;
            lab.connect(&["--user"]).map(on_disk)
        }
        Client::Library { events } => {
            let engine = engine(lab)?;
            lab.export(&export)?;
            Ok(Place {
                disk: NAME.to_owned(),
                engine: format!("external:{engine}"),
                // Threads, so that data and log share a session.
                options: vec![
                    format!("--address={}", lab.address),
                    format!("--volume={NAME}"),
                    format!("--port={}", lab.port()),
                    format!("--events={}", u8::from(events)),
                    "--thread=1".to_owned(),
                ],
            })
        }
    }
}

/// Returns the path of fio's engine with the library.
fn engine(lab: &mut Lab) -> Result<String> {
    let argv = ["sh", "-c", "ls /usr/lib/*/fio/libhcablk-fio.so"].map(str::to_owned);
    let found = lab.client.run(&argv, 30)?;
    let path = found.stdout.lines().next().unwrap_or_default();
    if path.is_empty() {
        let why = "the client has no libhcablk-fio.so (package hcablk-fio)";
        return Err(Error::new(Kind::Setup, why));
    }
    Ok(path.to_owned())
}

/// Returns the jobs for data and log: the log has the last eighth of the disk.
fn jobs(args: &DatabaseArgs, place: &Place, span: u64) -> [Job; 2] {
    let log = (span / 8).next_multiple_of(1 << 20);
    let until = Until::Seconds(args.seconds);
    let job = |pattern, size, depth| Job {
        engine: place.engine.clone(),
        ..Job::new(&place.disk, pattern, size, depth, until, span)
    };
    // A database issues several requests together.
    let batch = format!("--iodepth_batch={}", args.depth.min(BATCH));
    let completed = format!("--iodepth_batch_complete_min={}", args.depth.min(BATCH));
    let with = |more: &[&str]| {
        let more = more.iter().map(|&option| option.to_owned());
        place.options.iter().cloned().chain(more).collect()
    };
    [
        Job {
            span: (0, span - log),
            more: with(&["--rwmixread=70", &batch, &completed]),
            ..job("randrw", args.size, args.depth)
        },
        Job {
            span: (span - log, log),
            more: with(&["--sync=dsync"]),
            ..job("write", args.log_size, 1)
        },
    ]
}

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn per_second(load: &Load, size: u64) -> f64 {
    (load.read.bytes_per_second + load.write.bytes_per_second) / size as f64
}

fn measure_variant(
    args: &DatabaseArgs,
    lab: &mut Lab,
    variant: &Variant,
    place: &Place,
) -> Result<Row> {
    let is_module = matches!(variant.client, Client::Kernel | Client::Polled);
    let is_ours = !matches!(
        variant.client,
        Client::Local | Client::NvmeRdma | Client::Nbd
    );
    let count = |lab: &mut Lab| -> Result<(Counters, Counters)> {
        if is_module {
            lab.counters()
        } else if is_ours {
            Ok((Counters::new(), lab.target_counters()?))
        } else {
            Ok((Counters::new(), Counters::new()))
        }
    };
    let before = count(lab)?;
    let jobs = jobs(args, place, lab.span);
    let node = if variant.client == Client::Local {
        &mut lab.target
    } else {
        &mut lab.client
    };
    let loads = fio::run(&jobs, node)?;
    let after = count(lab)?;
    let [data, log] = loads.as_slice() else {
        let message = format!("fio reported {} jobs of 2", loads.len());
        return Err(Error::new(Kind::Failed, message));
    };
    let counted = (grown(&before.0, &after.0), grown(&before.1, &after.1));
    let requests = data.read.requests + data.write.requests + log.write.requests;
    let row = Row {
        variant: variant.name,
        data: *data,
        log: *log,
        data_per_second: per_second(data, args.size),
        log_per_second: per_second(log, args.log_size),
        each: each(&counted, requests),
        counted,
    };
    if !args.common.json {
        println!(
            "  {:.0} data requests/s, {:.0} log writes/s of {:.1} µs",
            row.data_per_second,
            row.log_per_second,
            log.write.mean_ns / 1e3
        );
    }
    Ok(row)
}

fn page(lab: &Lab, args: &DatabaseArgs, rows: &[Row], left_out: &[LeftOut]) -> Result<String> {
    let mut page = Page::new(
        "hcablk: the I/O of a transaction database",
        &report::times(lab),
    );
    page.table(&report::MACHINES, &report::machines(lab));
    page.paragraph(&format!(
        "Data: random requests of {} B, 70 % of them reads, {} at a time, of which {BATCH} are issued together. Log: sequential writes of {} B with FUA, one at a \
         time, as fast as they complete, which a database would not do: it writes its log when transactions commit. Both run \
         together for {} s. No database runs: the rates are of requests, not of transactions.",
        args.size, args.depth, args.log_size, args.seconds
    ));
    page.table(
        &["variant", "what it is"],
        &VARIANTS
            .each_ref()
            .map(|variant| vec![variant.name.to_owned(), variant.what.to_owned()]),
    );
    crate::local_remote::show_left_out(&mut page, left_out);
    let names: Vec<String> = rows.iter().map(|row| row.variant.to_owned()).collect();
    let rates: [(&str, Rate); 2] = [
        ("requests for data", |row| row.data_per_second),
        ("writes of the log", |row| row.log_per_second),
    ];
    for (title, of) in rates {
        let layer = Layer {
            name: title.to_owned(),
            heights: rows.iter().map(of).collect(),
        };
        page.bars(title, "1/s", &names, &[layer])?;
    }
    show_rates(&mut page, rows);
    show_counts(&mut page, rows);
    Ok(page.finish())
}

fn show_rates(page: &mut Page, rows: &[Row]) {
    let full = rows.iter().find(|row| row.variant == "full");
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.variant.to_owned(),
                format!("{:.0}", row.data_per_second),
                full.map_or("-".to_owned(), |full| {
                    format!(
                        "{:.2}",
                        row.data_per_second / full.data_per_second.max(1e-9)
                    )
                }),
                format!("{:.1}", row.data.read.mean_ns / 1e3),
                format!("{:.1}", row.data.read.p99_ns / 1e3),
                format!("{:.1}", row.data.write.mean_ns / 1e3),
                format!("{:.0}", row.log_per_second),
                format!("{:.1}", row.log.write.mean_ns / 1e3),
            ]
        })
        .collect();
    page.heading("Rates and latencies");
    page.table(
        &[
            "variant",
            "data requests/s",
            "of full",
            "reads, mean µs",
            "reads, 99 % µs",
            "writes, mean µs",
            "log writes/s",
            "log, mean µs",
        ],
        &table,
    );
}

fn show_counts(page: &mut Page, rows: &[Row]) {
    page.heading("Counts for each request, of data and log");
    page.paragraph(
        "Counts are real on an emulator, too. All are the client's, but the last column. A client in user space has no \
         counters.",
    );
    let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let each = &row.each;
            let mut cells = vec![row.variant.to_owned()];
            cells.extend(
                [
                    each.interrupts,
                    each.registrations,
                    each.messages,
                    each.doorbells,
                    each.work_requests,
                    each.copied_bytes,
                    each.target_work_requests,
                ]
                .map(cell),
            );
            cells
        })
        .collect();
    page.table(
        &[
            "variant",
            "interrupts",
            "registrations",
            "messages",
            "doorbells",
            "work requests",
            "copied bytes",
            "work requests at the target",
        ],
        &table,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn arguments() -> DatabaseArgs {
        let cli = crate::cli::Cli::parse_from(["hcablk-bench", "database", "--seconds", "1"]);
        match cli.command {
            crate::cli::Command::Database(args) => args,
            _ => unreachable!(),
        }
    }

    #[test]
    fn data_and_log_share_the_disk_and_do_not_overlap() {
        let span = 64 << 20;
        let [data, log] = jobs(&arguments(), &on_disk("/dev/x".to_owned()), span);
        assert_eq!(data.span.0 + data.span.1, log.span.0);
        assert_eq!(log.span.0 + log.span.1, span);
        assert!(log.more.contains(&"--sync=dsync".to_owned()));
        assert!(data.more.contains(&"--rwmixread=70".to_owned()));
    }

    #[test]
    fn counts_are_for_each_request_and_missing_without_counters() {
        let client = Counters::from([("events".to_owned(), 5), ("registrations".to_owned(), 20)]);
        let found = each(&(client, Counters::new()), 10);
        assert_eq!(found.interrupts, Some(0.5));
        assert_eq!(found.registrations, Some(2.0));
        assert_eq!(found.messages, Some(0.0));
        assert_eq!(found.target_work_requests, None);
    }

    #[test]
    fn each_variant_has_a_name_of_its_own_and_the_first_is_full() {
        let mut names = VARIANTS.each_ref().map(|variant| variant.name);
        assert_eq!(names[0], "full");
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
