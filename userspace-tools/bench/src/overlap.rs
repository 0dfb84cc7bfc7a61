// SPDX-License-Identifier: GPL-2.0

//! `overlap`: the parts of a request's latency, and when each part of its data leaves the drive and the wire.
//!
//! The events come from `hcablk trace`, which records them on both machines and puts them on one clock.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use hcablk::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cli::OverlapArgs;
use crate::fio::{Job, Until};
use crate::lab::Lab;
use crate::local_remote::{
    check_names, each_path, is_ours, nothing, set_up, show_left_out, LeftOut, DATA_PATHS,
};
use crate::page::{bytes, Axis, Curve, Layer, Page};
use crate::report::{self, Report};
use crate::stop::Stop;
use crate::worker::{Ask, WorkerStep};

/// The recordings, on each machine.
const CLIENT_FILE: &str = "/run/hcablk-bench-client.trace";
const TARGET_FILE: &str = "/run/hcablk-bench-target.trace";
/// The event that a recording enables last.
const LAST_EVENT: &str = "hcablk_target/hcablk_target_chunk_completed";

/// A part of a request's latency. Each moment of a request belongs to exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    /// From the block layer until the request is posted.
    Issue,
    /// Until the target has it.
    Request,
    /// Until the target passes it to the drive, or begins to fetch its data.
    Target,
    /// Only the drive works.
    Drive,
    /// Drive and wire work at the same time.
    Both,
    /// Only the wire moves data.
    Wire,
    /// The data waits in the target's memory.
    Memory,
    /// After the last work of drive and wire, until the request ends at the client.
    Response,
}

const PARTS: [(Part, &str); 8] = [
    (Part::Issue, "issue"),
    (Part::Request, "request under way"),
    (Part::Target, "target begins"),
    (Part::Drive, "drive alone"),
    (Part::Both, "drive and wire"),
    (Part::Wire, "wire alone"),
    (Part::Memory, "data waits"),
    (Part::Response, "response, end"),
];

/// The times of a request's events in nanoseconds, as `hcablk trace show` prints them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Times {
    #[serde(rename = "queued_ns")]
    queued: Option<i64>,
    #[serde(rename = "sent_ns")]
    sent: Option<i64>,
    #[serde(rename = "received_ns")]
    received: Option<i64>,
    #[serde(rename = "completed_ns")]
    completed: Option<i64>,
}

/// A part of a request's data.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Chunk {
    offset: u64,
    bytes: u64,
    drive_start_ns: Option<i64>,
    drive_end_ns: Option<i64>,
    wire_start_ns: Option<i64>,
    completed_ns: Option<i64>,
}

/// A recorded request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Recorded {
    op: String,
    bytes: u64,
    status: i32,
    times: Times,
    chunks: Vec<Chunk>,
    drive_ns: i64,
    wire_ns: i64,
    both_ns: i64,
}

/// The beginning and the end of a span of time.
type Span = (i64, i64);

fn is_in(at: i64, spans: &[Span]) -> bool {
    spans
        .iter()
        .any(|(begin, end)| (*begin..*end).contains(&at))
}

/// Divides the time of a request into its parts. `None`: the recording lacks one of its events at the client.
fn parts(request: &Recorded) -> Option<BTreeMap<Part, i64>> {
    let times = &request.times;
    let (begin, sent) = (times.queued?, times.sent?);
    let (received, end) = (times.received?, times.completed?);
    let spans = |of: fn(&Chunk) -> Option<Span>| -> Vec<Span> {
        request.chunks.iter().filter_map(of).collect()
    };
    let drive = spans(|chunk| Some((chunk.drive_start_ns?, chunk.drive_end_ns?)));
    let wire = spans(|chunk| Some((chunk.wire_start_ns?, chunk.completed_ns?)));
    let work = || drive.iter().chain(&wire);
    let first = work().map(|span| span.0).min().unwrap_or(received);
    let last = work().map(|span| span.1).max().unwrap_or(received);
    let mut bounds = vec![begin, sent, received, end];
    bounds.extend(work().flat_map(|(begin, end)| [*begin, *end]));
    bounds.retain(|bound| (begin..=end).contains(bound));
    bounds.sort_unstable();
    let mut parts = BTreeMap::new();
    for (at, next) in bounds.iter().zip(bounds.iter().skip(1)) {
        let part = match (is_in(*at, &drive), is_in(*at, &wire)) {
            (true, true) => Part::Both,
            (true, false) => Part::Drive,
            (false, true) => Part::Wire,
            _ if *at < sent => Part::Issue,
            _ if *at < received => Part::Request,
            _ if *at < first => Part::Target,
            _ if *at < last => Part::Memory,
            _ => Part::Response,
        };
        *parts.entry(part).or_default() += next - at;
    }
    Some(parts)
}

/// The results for one data path, direction and size, one request at a time.
#[derive(Serialize)]
struct Row {
    way: &'static str,
    direction: &'static str,
    size: u64,
    /// The mean latency by fio, without a recording.
    mean_ns: f64,
    /// The mean time of each part over the recorded requests; empty for others than hcablk.
    parts_ns: BTreeMap<Part, f64>,
    /// The number of requests in `parts_ns`.
    recorded: usize,
    /// The time in which drive and wire both worked, divided by the shorter of their times; the mean.
    overlapped: Option<f64>,
    /// One of the recorded requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    example: Option<Recorded>,
}

/// Runs the experiment.
pub(crate) fn run(args: &OverlapArgs, stop: &Stop) -> Result<ExitCode> {
    check_names(&DATA_PATHS, &args.only)?;
    report::with_lab(
        &args.common,
        "overlap",
        !args.read_only,
        stop,
        |lab, report| {
            measure(args, lab, report)?;
            Ok(ExitCode::SUCCESS)
        },
    )
}

fn measure(args: &OverlapArgs, lab: &mut Lab, report: &Report) -> Result<()> {
    let mut rows = Vec::new();
    let left_out = each_path(
        lab,
        &DATA_PATHS,
        &args.only,
        args.common.json,
        set_up,
        |lab, way, disk| measure_way(args, lab, report, way, disk, &mut rows),
    )?;
    if rows.is_empty() {
        return Err(nothing(&left_out));
    }
    let mut result = report::head(lab, "overlap");
    result["rows"] = json!(rows);
    result["left_out"] = json!(left_out);
    report.write_json("result.json", &result)?;
    report.write("index.html", &page(lab, args, &rows, &left_out)?)?;
    if args.common.json {
        println!("{result}");
    }
    Ok(())
}

fn measure_way(
    args: &OverlapArgs,
    lab: &mut Lab,
    report: &Report,
    way: &'static str,
    disk: &str,
    rows: &mut Vec<Row>,
) -> Result<()> {
    for (direction, pattern) in [("read", "randread"), ("write", "randwrite")] {
        if args.read_only && direction == "write" {
            continue;
        }
        for &size in &args.sizes {
            let job = |until| Job::new(disk, pattern, size, 1, until, lab.span);
            let (timed, counted) = (
                job(Until::Seconds(args.seconds)),
                job(Until::Bytes(size * u64::from(args.requests))),
            );
            let node = if way == "local" {
                &mut lab.target
            } else {
                &mut lab.client
            };
            let load = timed.run(node)?;
            let mean_ns = load.read.mean_ns.max(load.write.mean_ns);
            let recorded = if is_ours(way) {
                let name = format!("{way}-{direction}-{size}");
                record(args, lab, report, &counted, &name)?
            } else {
                Vec::new()
            };
            let row = row(way, direction, size, mean_ns, recorded);
            if is_ours(way) && row.recorded == 0 {
                let message = format!("{way}: no {direction} of {} was recorded", bytes(size));
                return Err(Error::new(Kind::Failed, message));
            }
            if !args.common.json {
                let overlapped = row.overlapped.map_or(String::new(), |share| {
                    format!(", {:.0} % overlap", 100.0 * share)
                });
                println!(
                    "  {direction:5} {:>8} {:>10.1} µs{overlapped}",
                    bytes(size),
                    mean_ns / 1e3
                );
            }
            rows.push(row);
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "means of times")]
fn row(
    way: &'static str,
    direction: &'static str,
    size: u64,
    mean_ns: f64,
    recorded: Vec<Recorded>,
) -> Row {
    let wanted = |request: &Recorded| {
        request.op == direction && request.bytes == size && request.status == 0
    };
    let of_size: Vec<Recorded> = recorded.into_iter().filter(wanted).collect();
    let all: Vec<BTreeMap<Part, i64>> = of_size.iter().filter_map(parts).collect();
    let mut parts_ns = BTreeMap::new();
    for (part, ns) in all.iter().flatten() {
        *parts_ns.entry(*part).or_default() += *ns as f64 / all.len() as f64;
    }
    let shares: Vec<f64> = of_size
        .iter()
        .filter(|request| request.drive_ns.min(request.wire_ns) > 0)
        .map(|request| request.both_ns as f64 / request.drive_ns.min(request.wire_ns) as f64)
        .collect();
    let overlapped = (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64);
    Row {
        way,
        direction,
        size,
        mean_ns,
        parts_ns,
        recorded: all.len(),
        overlapped,
        // Not the first one, which may be slower than the others.
        example: of_size.get(of_size.len() / 2).cloned(),
    }
}

/// Records some requests on both machines, keeps the recordings in the report, and returns all requests.
fn record(
    args: &OverlapArgs,
    lab: &mut Lab,
    report: &Report,
    job: &Job,
    name: &str,
) -> Result<Vec<Recorded>> {
    let notes = (lab.client.noted()?, lab.target.noted()?);
    let done = recorded(args, lab, report, job, name);
    // The recordings end before another begins, also after an error.
    let client = lab.client.undo(notes.0);
    let target = lab.target.undo(notes.1);
    let done = done?;
    client.and(target)?;
    Ok(done)
}

fn recorded(
    args: &OverlapArgs,
    lab: &mut Lab,
    report: &Report,
    job: &Job,
    name: &str,
) -> Result<Vec<Recorded>> {
    begin(lab, args.requests)?;
    // The target may find a completion only with the next request: further requests end its recording.
    lab.wait(Duration::from_secs(120), "the recordings to end", |lab| {
        job.run(&mut lab.client)?;
        Ok(exists(&mut lab.target, TARGET_FILE)? && exists(&mut lab.client, CLIENT_FILE)?)
    })?;
    let mut words = vec!["trace", "show"];
    let mut files = Vec::new();
    for (node, file, part) in [
        (&mut lab.target, TARGET_FILE, "target"),
        (&mut lab.client, CLIENT_FILE, "client"),
    ] {
        let path = file.to_owned();
        let text: String = node.ask(Ask::Read { path })?;
        let kept = format!("{name}-{part}.trace");
        report.write(&kept, &text)?;
        files.push(report.folder().join(kept).to_string_lossy().into_owned());
    }
    if lab.together {
        // One recording of the machine has both sides.
        files.truncate(1);
    }
    words.extend(files.iter().map(String::as_str));
    let shown = lab.client.hcablk(&words, Vec::new())?;
    serde_json::from_value(shown["requests"].clone()).map_err(|error| {
        let message = format!("cannot understand the output of hcablk trace show: {error}");
        Error::new(Kind::Failed, message)
    })
}

/// Begins a recording of this many requests on both machines, and returns when both are under way.
fn begin(lab: &mut Lab, requests: u32) -> Result<()> {
    let count = requests.to_string();
    let enabled =
        format!("grep -q 1 /sys/kernel/tracing/instances/hcablk-*/events/{LAST_EVENT}/enable");
    for is_client in [false, true] {
        let file = if is_client { CLIENT_FILE } else { TARGET_FILE };
        let unlink = WorkerStep::Unlink {
            path: file.to_owned(),
        };
        let node = if is_client {
            &mut lab.client
        } else {
            &mut lab.target
        };
        // A file that a killed run has left would end the wait too early.
        node.change(unlink.clone(), vec![unlink])?;
        let words = [
            "hcablk",
            "trace",
            "record",
            "--requests",
            &count,
            "-o",
            file,
        ];
        let argv = words.map(str::to_owned).to_vec();
        node.change(WorkerStep::Start { argv }, vec![WorkerStep::EndStarted])?;
        lab.wait(Duration::from_secs(60), "a recording to begin", |lab| {
            let node = if is_client {
                &mut lab.client
            } else {
                &mut lab.target
            };
            let argv = ["sh", "-c", &enabled].map(str::to_owned);
            Ok(node.run(&argv, 30)?.status == 0)
        })?;
    }
    Ok(())
}

fn exists(node: &mut crate::node::Node, path: &str) -> Result<bool> {
    let argv = ["test", "-e", path].map(str::to_owned);
    Ok(node.run(&argv, 30)?.status == 0)
}

#[expect(clippy::cast_precision_loss, reason = "offsets and times of a plot")]
fn trace(example: &Recorded) -> Vec<Curve> {
    let begin = example.times.queued.unwrap_or(0);
    let curve = |name: &str, at: fn(&Chunk) -> Option<i64>| {
        let mut points: Vec<(f64, f64)> = example
            .chunks
            .iter()
            .filter_map(|chunk| {
                let end = (chunk.offset + chunk.bytes) as f64 / 1024.0;
                Some(((at(chunk)? - begin) as f64 / 1e3, end))
            })
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Curve {
            name: name.to_owned(),
            points,
        }
    };
    let curves = [
        curve("left the drive", |chunk| chunk.drive_end_ns),
        curve("left the wire", |chunk| chunk.completed_ns),
    ];
    let curves = curves.into_iter();
    curves.filter(|curve| !curve.points.is_empty()).collect()
}

fn page(lab: &Lab, args: &OverlapArgs, rows: &[Row], left_out: &[LeftOut]) -> Result<String> {
    let mut page = Page::new(
        "hcablk: the parts of a request's latency",
        &report::times(lab),
    );
    page.table(&report::MACHINES, &report::machines(lab));
    page.paragraph(&format!(
        "Random requests, one at a time. Latencies are means of fio over {} s. Then at least {} requests were recorded with \
         hcablk trace on both machines, which makes them a little slower; the parts are means of these. The recordings are in \
         this folder: hcablk trace show reads them.",
        args.seconds, args.requests
    ));
    page.table(
        &["way", "what it is"],
        &DATA_PATHS.map(|(way, what)| vec![way.to_owned(), what.to_owned()]),
    );
    show_left_out(&mut page, left_out);
    for direction in ["read", "write"] {
        for (way, _) in DATA_PATHS {
            let here: Vec<&Row> = rows
                .iter()
                .filter(|row| row.way == way && row.direction == direction && row.recorded > 0)
                .collect();
            if here.is_empty() {
                continue;
            }
            page.heading(&format!("{way}: {direction}s"));
            let names: Vec<String> = here.iter().map(|row| bytes(row.size)).collect();
            let layers: Vec<Layer> = PARTS
                .iter()
                .map(|(part, name)| Layer {
                    name: (*name).to_owned(),
                    heights: here
                        .iter()
                        .map(|row| row.parts_ns.get(part).copied().unwrap_or(0.0) / 1e3)
                        .collect(),
                })
                .collect();
            let title = format!("the parts of a {direction}'s latency");
            page.bars(&title, "µs", &names, &layers)?;
            let largest = here.iter().max_by_key(|row| row.size);
            if let Some((size, example)) =
                largest.and_then(|row| Some((row.size, row.example.as_ref()?)))
            {
                let curves = trace(example);
                if !curves.is_empty() {
                    let title =
                        format!("how far the data of one {direction} of {} is", bytes(size));
                    page.plot(&title, Axis::Linear("µs since its start"), "KiB", &curves)?;
                }
            }
        }
    }
    page.heading("All latencies");
    let table: Vec<Vec<String>> = rows.iter().map(table_row).collect();
    page.table(
        &[
            "way",
            "direction",
            "size",
            "mean, µs",
            "recorded",
            "drive and wire overlap",
            "of the recorded time the wire alone",
        ],
        &table,
    );
    Ok(page.finish())
}

fn table_row(row: &Row) -> Vec<String> {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let total: f64 = row.parts_ns.values().sum();
    let wire = row.parts_ns.get(&Part::Wire).copied().unwrap_or(0.0);
    vec![
        row.way.to_owned(),
        row.direction.to_owned(),
        bytes(row.size),
        format!("{:.1}", row.mean_ns / 1e3),
        row.recorded.to_string(),
        row.overlapped.map_or("-".to_owned(), percent),
        if total > 0.0 {
            percent(wire / total)
        } else {
            "-".to_owned()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(offset: u64, drive: Span, wire: Span) -> Chunk {
        Chunk {
            offset,
            bytes: 4096,
            drive_start_ns: Some(drive.0),
            drive_end_ns: Some(drive.1),
            wire_start_ns: Some(wire.0),
            completed_ns: Some(wire.1),
        }
    }

    fn request(chunks: Vec<Chunk>) -> Recorded {
        Recorded {
            op: "read".to_owned(),
            bytes: 8192,
            times: Times {
                queued: Some(0),
                sent: Some(10),
                received: Some(30),
                completed: Some(500),
            },
            chunks,
            drive_ns: 200,
            wire_ns: 200,
            both_ns: 100,
            ..Recorded::default()
        }
    }

    #[test]
    fn each_moment_of_a_request_belongs_to_one_part() {
        let chunks = vec![
            chunk(0, (50, 150), (150, 250)),
            chunk(4096, (150, 250), (260, 360)),
        ];
        let found = parts(&request(chunks)).unwrap();
        let expected = [
            (Part::Issue, 10),
            (Part::Request, 20),
            (Part::Target, 20),
            (Part::Drive, 100),
            (Part::Both, 100),
            (Part::Wire, 100),
            (Part::Memory, 10),
            (Part::Response, 140),
        ];
        assert_eq!(found, BTreeMap::from(expected));
        assert_eq!(found.values().sum::<i64>(), 500);
    }

    #[test]
    fn a_wire_that_ends_after_the_request_does_not_make_it_longer() {
        let found = parts(&request(vec![chunk(0, (40, 100), (100, 900))])).unwrap();
        assert_eq!(found.values().sum::<i64>(), 500);
        assert_eq!(found.get(&Part::Wire), Some(&400));
        assert_eq!(found.get(&Part::Response), None);
    }

    #[test]
    fn a_request_without_the_client_s_events_has_no_parts() {
        let mut request = request(Vec::new());
        assert!(parts(&request).is_some());
        request.times.queued = None;
        assert!(parts(&request).is_none());
    }

    #[test]
    fn other_and_failed_requests_are_not_counted() {
        let good = request(vec![chunk(0, (50, 150), (100, 200))]);
        let mut failed = good.clone();
        failed.status = -5;
        let mut other = good.clone();
        other.bytes = 4096;
        let row = row("direct", "read", 8192, 1.0, vec![failed, other, good]);
        assert_eq!(row.recorded, 1);
        assert_eq!(row.overlapped, Some(0.5));
    }

    #[test]
    fn the_output_of_trace_show_is_understood() {
        let text = r#"[{"number": 1, "client": "c1", "session": "0", "queue": 1, "op": "read", "way": "key", "sector": 0,
            "bytes": 4096, "status": 0, "is_chunked": false, "times": {"queued_ns": 0, "sent_ns": 1, "received_ns": 2,
            "drive_start_ns": 3, "drive_end_ns": 4, "target_answered_ns": 5, "target_completed_ns": 6, "answered_ns": 7,
            "completed_ns": 8}, "uncertainty_ns": 1, "chunks": [{"offset": 0, "bytes": 4096, "memory": "ram", "status": 0,
            "drive_start_ns": 3, "drive_end_ns": 4, "posted_ns": 5, "wire_start_ns": 5, "completed_ns": 6}],
            "drive_ns": 1, "wire_ns": 1, "both_ns": 0}]"#;
        let requests: Vec<Recorded> = serde_json::from_str(text).unwrap();
        let found = parts(&requests[0]).unwrap();
        assert_eq!(found.values().sum::<i64>(), 8);
        assert_eq!(trace(&requests[0]).len(), 2);
    }
}
