// SPDX-License-Identifier: GPL-2.0

//! `scale`: one volume used by more and more clients, and one client with more and more volumes.

use std::collections::BTreeMap;
use std::process::ExitCode;

use hcablk::error::{Kind, Result};
use serde::Serialize;
use serde_json::json;

use crate::cli::ScaleArgs;
use crate::fio::{self, Job, Load, Until};
use crate::lab::{Counters, Export, Lab};
use crate::local_remote::{check_names, each_path, grown, is_ours, local, show_left_out, LeftOut};
use crate::node::Node;
use crate::page::{Axis, Curve, Page};
use crate::report::{self, Report};
use crate::rivals;
use crate::stop::Stop;

const PATHS: [(&str, &str); 5] = [
    ("local", "the drive itself, on the target, by as many jobs"),
    ("direct", "hcablk, mode direct"),
    ("cached", "hcablk through the target's page cache"),
    ("nvme-rdma", "Linux's NVMe over RDMA"),
    ("nbd", "NBD over TCP, a copy in user space"),
];

/// The results for a number of clients.
#[derive(Serialize)]
struct ClientsRow {
    way: &'static str,
    clients: usize,
    #[serde(flatten)]
    sum: Sum,
    /// The counters of the first client and of the target; empty for others than hcablk.
    counted: (Counters, Counters),
}

/// The results for a number of volumes.
#[derive(Serialize)]
struct VolumesRow {
    volumes: usize,
    #[serde(flatten)]
    sum: Sum,
    /// The sums of the counters of all disks.
    counted: Counters,
    /// RDMA objects by kind; `null` without the program rdma.
    client_resources: Option<BTreeMap<String, u64>>,
    target_resources: Option<BTreeMap<String, u64>>,
}

/// Several loads together.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sum {
    requests: u64,
    requests_per_second: f64,
    bytes_per_second: f64,
    /// The mean latency over all requests.
    mean_ns: f64,
    /// The rate of the slowest load divided by that of the fastest.
    fairness: f64,
}

#[expect(clippy::cast_precision_loss, reason = "rates and means")]
fn sum(loads: &[Load], size: u64) -> Sum {
    let rates = || loads.iter().map(|load| load.read.bytes_per_second);
    let requests: u64 = loads.iter().map(|load| load.read.requests).sum();
    let waited: f64 = loads
        .iter()
        .map(|load| load.read.mean_ns * load.read.requests as f64)
        .sum();
    let bytes_per_second: f64 = rates().sum();
    let (least, most) = rates().fold((f64::MAX, 0.0_f64), |(least, most), rate| {
        (least.min(rate), most.max(rate))
    });
    Sum {
        requests,
        requests_per_second: bytes_per_second / size as f64,
        bytes_per_second,
        mean_ns: waited / requests.max(1) as f64,
        fairness: if most > 0.0 { least / most } else { 0.0 },
    }
}

/// Runs the experiment.
pub(crate) fn run(args: &ScaleArgs, stop: &Stop) -> Result<ExitCode> {
    check_names(&PATHS, &args.only)?;
    report::with_lab(&args.common, "scale", true, stop, |lab, report| {
        lab.join(&args.further)?;
        measure(args, lab, report)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn measure(args: &ScaleArgs, lab: &mut Lab, report: &Report) -> Result<()> {
    let mut by_clients = Vec::new();
    let left_out = each_path(
        lab,
        &PATHS,
        &args.only,
        args.common.json,
        set_up,
        |lab, way, disks| measure_clients(args, lab, way, disks, &mut by_clients),
    )?;
    let mut by_volumes = Vec::new();
    let mut too_many = Vec::new();
    let mut counts = args.volumes.clone();
    counts.sort_unstable();
    for volumes in counts.into_iter().map(usize::from) {
        let marks = lab.marks()?;
        let done = measure_volumes(args, lab, volumes);
        lab.back_to(&marks)?;
        match done {
            Ok(row) => by_volumes.push(row),
            Err(error) if error.kind == Kind::Interrupted => return Err(error),
            Err(error) => {
                if !args.common.json {
                    println!("{volumes} volumes: left out: {}", error.message);
                }
                too_many.push((volumes, error.message));
                break;
            }
        }
    }
    if by_clients.is_empty() && by_volumes.is_empty() {
        return Err(crate::local_remote::nothing(&left_out));
    }
    let mut result = report::head(lab, "scale");
    result["clients"] = json!(by_clients);
    result["left_out"] = json!(left_out);
    result["volumes"] = json!(by_volumes);
    result["volumes_left_out"] = json!(too_many
        .iter()
        .map(|(volumes, why)| json!({ "volumes": volumes, "why": why }))
        .collect::<Vec<_>>());
    report.write_json("result.json", &result)?;
    let page = page(lab, args, &by_clients, &left_out, &by_volumes, &too_many)?;
    report.write("index.html", &page)?;
    if args.common.json {
        println!("{result}");
    }
    Ok(())
}

/// Sets up a data path on all clients, and returns the disk of each.
fn set_up(lab: &mut Lab, way: &'static str) -> Result<Vec<String>> {
    let clients = 0..lab.client_count();
    match way {
        "local" => {
            let drive = local(lab)?;
            Ok(clients.map(|_| drive.clone()).collect())
        }
        "nvme-rdma" => {
            rivals::serve_nvme(lab)?;
            clients
                .map(|index| rivals::attach_nvme(lab, index))
                .collect()
        }
        "nbd" => {
            rivals::serve_nbd(lab)?;
            clients
                .map(|index| rivals::attach_nbd(lab, index))
                .collect()
        }
        mode => {
            lab.export(&Export::new(mode))?;
            lab.connect_all(&[])
        }
    }
}

/// Returns a job for each of the first clients, in parts of the disk of their own.
fn jobs(args: &ScaleArgs, disks: &[String], count: usize, span: u64) -> Vec<Job> {
    let part = span / (disks.len() as u64) / (1 << 20) * (1 << 20);
    let clients = disks.iter().take(count).zip(0..);
    clients
        .map(|(disk, number)| Job {
            span: (number * part, part),
            ..Job::new(
                disk,
                "randread",
                args.size,
                args.depth,
                Until::Seconds(args.seconds),
                span,
            )
        })
        .collect()
}

fn measure_clients(
    args: &ScaleArgs,
    lab: &mut Lab,
    way: &'static str,
    disks: &[String],
    rows: &mut Vec<ClientsRow>,
) -> Result<()> {
    for clients in 1..=disks.len() {
        let jobs = jobs(args, disks, clients, lab.span);
        let count = |lab: &mut Lab| {
            if is_ours(way) {
                lab.counters()
            } else {
                Ok((Counters::new(), Counters::new()))
            }
        };
        let before = count(lab)?;
        let loads = if way == "local" {
            fio::run(&jobs, &mut lab.target)?
        } else {
            let jobs: Vec<Vec<Job>> = jobs.into_iter().map(|job| vec![job]).collect();
            lab.run_together(&jobs)?.into_iter().flatten().collect()
        };
        let after = count(lab)?;
        let sum = sum(&loads, args.size);
        if !args.common.json {
            println!(
                "  {clients} clients {:>9.0} requests/s {:>10.1} µs",
                sum.requests_per_second,
                sum.mean_ns / 1e3
            );
        }
        rows.push(ClientsRow {
            way,
            clients,
            sum,
            counted: (grown(&before.0, &after.0), grown(&before.1, &after.1)),
        });
    }
    Ok(())
}

fn measure_volumes(args: &ScaleArgs, lab: &mut Lab, volumes: usize) -> Result<VolumesRow> {
    let disks = lab.export_and_connect(volumes, &Export::new("direct"))?;
    let job = Job {
        more: vec!["--file_service_type=random".to_owned()],
        ..Job::new(
            &disks.join(":"),
            "randread",
            args.size,
            args.depth,
            Until::Seconds(args.seconds),
            lab.span,
        )
    };
    let client_resources = resources(&mut lab.client)?;
    let target_resources = resources(&mut lab.target)?;
    let before = lab.all_counters()?;
    let load = job.run(&mut lab.client)?;
    let counted = grown(&before, &lab.all_counters()?);
    let sum = sum(&[load], args.size);
    if !args.common.json {
        println!(
            "{volumes} volumes {:>9.0} requests/s {:>10.1} µs",
            sum.requests_per_second,
            sum.mean_ns / 1e3
        );
    }
    Ok(VolumesRow {
        volumes,
        sum,
        counted,
        client_resources,
        target_resources,
    })
}

/// Counts the RDMA objects of a machine; `None` without the program.
fn resources(node: &mut Node) -> Result<Option<BTreeMap<String, u64>>> {
    let argv = ["sh", "-c", "rdma resource show"].map(str::to_owned);
    let output = node.run(&argv, 30)?;
    Ok((output.status == 0).then(|| parse_resources(&output.stdout)))
}

/// Sums the objects of all devices in lines such as `0: rxe0: pd 2 cq 4 qp 5`.
fn parse_resources(text: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            if let [kind, count] = pair {
                if let Ok(count) = count.parse::<u64>() {
                    *sums.entry((*kind).to_owned()).or_default() += count;
                }
            }
        }
    }
    sums
}

#[expect(clippy::cast_precision_loss, reason = "counts of a plot")]
fn page(
    lab: &Lab,
    args: &ScaleArgs,
    by_clients: &[ClientsRow],
    left_out: &[LeftOut],
    by_volumes: &[VolumesRow],
    too_many: &[(usize, String)],
) -> Result<String> {
    let mut page = Page::new("hcablk: more clients, more volumes", &report::times(lab));
    page.table(&report::MACHINES, &report::machines(lab));
    page.paragraph(&format!(
        "Random reads of {} B for {} s. Clients: {} at a time for each client, all on one volume, each in a part of its own. \
         Volumes: {} at a time in all, from one client, over all volumes at random; all volumes are of the same drive. The \
         loads of several clients begin and end within a second of each other.",
        args.size, args.seconds, args.depth, args.depth
    ));
    show_left_out(&mut page, left_out);
    let curves = |of: fn(&Sum) -> f64| -> Vec<Curve> {
        let curves = PATHS.iter().map(|(way, _)| Curve {
            name: (*way).to_owned(),
            points: by_clients
                .iter()
                .filter(|row| row.way == *way)
                .map(|row| (row.clients as f64, of(&row.sum)))
                .collect(),
        });
        curves.filter(|curve| !curve.points.is_empty()).collect()
    };
    if !by_clients.is_empty() {
        page.heading("Clients of one volume");
        let axis = Axis::Linear("clients");
        let rates = curves(|sum| sum.requests_per_second);
        page.plot("requests of all clients", axis, "1/s", &rates)?;
        let latencies = curves(|sum| sum.mean_ns / 1e3);
        page.plot("latency, mean", axis, "µs", &latencies)?;
        let rows: Vec<Vec<String>> = by_clients.iter().map(clients_row).collect();
        let head = [
            "way",
            "clients",
            "requests/s",
            "mean, µs",
            "slowest of fastest",
            "interrupts of the first client for each of its reads",
            "work requests of the target for each read",
        ];
        page.table(&head, &rows);
    }
    if !by_volumes.is_empty() {
        page.heading("Volumes of one client");
        let points = |of: fn(&Sum) -> f64| {
            let points = by_volumes
                .iter()
                .map(|row| (row.volumes as f64, of(&row.sum)));
            vec![Curve {
                name: "direct".to_owned(),
                points: points.collect(),
            }]
        };
        let axis = Axis::Doubling("volumes");
        let rates = points(|sum| sum.requests_per_second);
        page.plot("requests of all volumes", axis, "1/s", &rates)?;
        let latencies = points(|sum| sum.mean_ns / 1e3);
        page.plot("latency over all volumes, mean", axis, "µs", &latencies)?;
        let rows: Vec<Vec<String>> = by_volumes.iter().map(volumes_row).collect();
        let head = [
            "volumes",
            "requests/s",
            "mean, µs",
            "interrupts for each read",
            "queue pairs, client",
            "memory regions, client",
            "queue pairs, target",
            "memory regions, target",
        ];
        page.table(&head, &rows);
    }
    if !too_many.is_empty() {
        let rows: Vec<Vec<String>> = too_many
            .iter()
            .map(|(volumes, why)| vec![volumes.to_string(), why.clone()])
            .collect();
        page.table(&["volumes, left out", "why"], &rows);
    }
    Ok(page.finish())
}

#[expect(clippy::cast_precision_loss, reason = "ratios of counts")]
fn each(counters: &Counters, name: &str) -> String {
    let of = |name: &str| counters.get(name).copied().unwrap_or(0) as f64;
    if counters.is_empty() {
        return "-".to_owned();
    }
    format!("{:.3}", of(name) / of("reads").max(1.0))
}

fn clients_row(row: &ClientsRow) -> Vec<String> {
    vec![
        row.way.to_owned(),
        row.clients.to_string(),
        format!("{:.0}", row.sum.requests_per_second),
        format!("{:.1}", row.sum.mean_ns / 1e3),
        format!("{:.2}", row.sum.fairness),
        each(&row.counted.0, "events"),
        each(&row.counted.1, "work_requests"),
    ]
}

fn volumes_row(row: &VolumesRow) -> Vec<String> {
    let count = |resources: Option<&BTreeMap<String, u64>>, kind: &str| {
        let count = resources.and_then(|all| all.get(kind));
        count.map_or("-".to_owned(), u64::to_string)
    };
    vec![
        row.volumes.to_string(),
        format!("{:.0}", row.sum.requests_per_second),
        format!("{:.1}", row.sum.mean_ns / 1e3),
        each(&row.counted, "events"),
        count(row.client_resources.as_ref(), "qp"),
        count(row.client_resources.as_ref(), "mr"),
        count(row.target_resources.as_ref(), "qp"),
        count(row.target_resources.as_ref(), "mr"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;
    use clap::Parser as _;

    fn load(requests: u64, rate: f64, mean_ns: f64) -> Load {
        Load {
            read: Measured {
                requests,
                bytes_per_second: rate,
                mean_ns,
                ..Measured::default()
            },
            ..Load::default()
        }
    }

    #[test]
    fn loads_are_summed_and_the_mean_is_over_all_requests() {
        let found = sum(&[load(30, 4096.0, 10.0), load(10, 8192.0, 50.0)], 4096);
        assert_eq!(found.requests, 40);
        assert!((found.requests_per_second - 3.0).abs() < 1e-9);
        assert!((found.mean_ns - 20.0).abs() < 1e-9);
        assert!((found.fairness - 0.5).abs() < 1e-9);
    }

    #[test]
    fn objects_of_all_devices_are_summed() {
        let text = "0: mlx5_0: pd 3 cq 5 qp 4 cm_id 0 mr 0\n1: rxe0: pd 1 cq 2 qp 2 mr 7\n";
        let found = parse_resources(text);
        assert_eq!(found.get("qp"), Some(&6));
        assert_eq!(found.get("mr"), Some(&7));
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn clients_use_parts_of_their_own() {
        let cli = crate::cli::Cli::parse_from(["hcablk-bench", "scale", "--seconds", "1"]);
        let crate::cli::Command::Scale(args) = cli.command else {
            unreachable!()
        };
        let disks = ["/dev/a", "/dev/b", "/dev/c"].map(str::to_owned);
        let jobs = jobs(&args, &disks, 2, 64 << 20);
        assert_eq!(jobs.len(), 2);
        assert_eq!(jobs[0].span, (0, 21 << 20));
        assert_eq!(jobs[1].span, (21 << 20, 21 << 20));
    }
}
