// SPDX-License-Identifier: GPL-2.0

//! `local-remote`: bandwidth and latency by request size and depth, of hcablk in its modes, compared with nvme-rdma,
//! NBD over TCP and the drive itself.

use std::process::ExitCode;

use hcablk::error::{Error, Kind, Result};
use serde::Serialize;
use serde_json::json;

use crate::cli::LocalRemoteArgs;
use crate::fio::{Job, Measured, Until};
use crate::lab::{Counters, Export, Lab};
use crate::page::{bytes, Axis, Curve, Page};
use crate::report::{self, Report};
use crate::rivals;
use crate::stop::Stop;

/// The data paths to the drive that are measured, with their descriptions.
pub(crate) const DATA_PATHS: [(&str, &str); 7] = [
    ("local", "the drive itself, on the target"),
    ("direct", "hcablk, mode direct, large requests in chunks"),
    ("whole", "hcablk, mode direct, each request as a whole"),
    ("cached", "hcablk through the target's page cache"),
    ("p2p", "hcablk, mode p2p: peer-to-peer DMA"),
    ("nvme-rdma", "Linux's NVMe over RDMA"),
    ("nbd", "NBD over TCP, a copy in user space"),
];

/// One measured point.
#[derive(Serialize)]
struct Point {
    way: &'static str,
    direction: &'static str,
    size: u64,
    depth: u32,
    #[serde(flatten)]
    measured: Measured,
    /// The counters of hcablk for it, on the client and on the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<(Counters, Counters)>,
}

/// A measurement that was left out, and the reason.
#[derive(Serialize)]
pub(crate) struct LeftOut {
    /// The data path.
    pub(crate) way: &'static str,
    /// The reason.
    pub(crate) why: String,
}

/// Runs the experiment.
pub(crate) fn run(args: &LocalRemoteArgs, stop: &Stop) -> Result<ExitCode> {
    check_names(&DATA_PATHS, &args.only)?;
    report::with_lab(
        &args.common,
        "local-remote",
        !args.read_only,
        stop,
        |lab, report| {
            measure(args, lab, report)?;
            Ok(ExitCode::SUCCESS)
        },
    )
}

fn measure(args: &LocalRemoteArgs, lab: &mut Lab, report: &Report) -> Result<()> {
    let mut points = Vec::new();
    let left_out = each_path(
        lab,
        &DATA_PATHS,
        &args.only,
        args.common.json,
        set_up,
        |lab, way, disk| measure_way(args, lab, way, disk, &mut points),
    )?;
    if points.is_empty() {
        return Err(nothing(&left_out));
    }
    let mut result = report::head(lab, "local-remote");
    result["points"] = json!(points);
    result["left_out"] = json!(left_out);
    report.write_json("result.json", &result)?;
    report.write("index.html", &page(lab, args, &points, &left_out)?)?;
    if args.common.json {
        println!("{result}");
    }
    Ok(())
}

/// Sets up each of these data paths that is wanted, measures it, and takes it down. Returns those that are not possible
/// here; a measurement that fails is a failure.
pub(crate) fn each_path<P>(
    lab: &mut Lab,
    paths: &[(&'static str, &'static str)],
    only: &[String],
    is_quiet: bool,
    mut set_up: impl FnMut(&mut Lab, &'static str) -> Result<P>,
    mut measure: impl FnMut(&mut Lab, &'static str, &P) -> Result<()>,
) -> Result<Vec<LeftOut>> {
    let mut left_out = Vec::new();
    for &(way, what) in paths {
        if !only.is_empty() && !only.iter().any(|name| name == way) {
            continue;
        }
        if !is_quiet {
            println!("{way}: {what}");
        }
        let marks = lab.marks()?;
        match set_up(lab, way) {
            Ok(place) => measure(lab, way, &place)?,
            Err(error) if error.kind != Kind::Interrupted => {
                if !is_quiet {
                    println!("  left out: {}", error.message);
                }
                left_out.push(LeftOut {
                    way,
                    why: error.message,
                });
            }
            Err(error) => return Err(error),
        }
        lab.unexport()?;
        lab.back_to(&marks)?;
    }
    Ok(left_out)
}

/// Returns the failure of an experiment that left out everything.
pub(crate) fn nothing(left_out: &[LeftOut]) -> Error {
    let why: Vec<String> = left_out
        .iter()
        .map(|one| format!("{}: {}", one.way, one.why))
        .collect();
    Error::new(
        Kind::Failed,
        format!("nothing could be measured ({})", why.join("; ")),
    )
}

/// Fails if one of the wanted names is not a data path.
pub(crate) fn check_names(paths: &[(&'static str, &'static str)], only: &[String]) -> Result<()> {
    let unknown = only
        .iter()
        .find(|name| !paths.iter().any(|(way, _)| way == name));
    let Some(unknown) = unknown else {
        return Ok(());
    };
    let names: Vec<&str> = paths.iter().map(|(way, _)| *way).collect();
    Err(Error::new(
        Kind::Usage,
        format!(
            "there is no data path {unknown}; there are {}",
            names.join(", ")
        ),
    ))
}

/// Adds the data paths that were left out to a page, with the reasons.
pub(crate) fn show_left_out(page: &mut Page, left_out: &[LeftOut]) {
    if left_out.is_empty() {
        return;
    }
    page.heading("Left out");
    let rows: Vec<Vec<String>> = left_out
        .iter()
        .map(|one| vec![one.way.to_owned(), one.why.clone()])
        .collect();
    page.table(&["way", "why"], &rows);
}

/// Sets up a data path, and returns the disk; the disk of `local` is on the target.
pub(crate) fn set_up(lab: &mut Lab, way: &'static str) -> Result<String> {
    let export = match way {
        "local" => return local(lab),
        "nvme-rdma" => return rivals::nvme_rdma(lab),
        "nbd" => return rivals::nbd(lab),
        "whole" => Export {
            chunk_kib: 0,
            ..Export::new("direct")
        },
        mode => Export::new(mode),
    };
    if way == "p2p" {
        return p2p(lab);
    }
    lab.export(&export)?;
    lab.connect(&[])
}

/// Returns the drive itself, for loads on the target.
pub(crate) fn local(lab: &Lab) -> Result<String> {
    if lab.target_facts.fio.is_none() {
        return Err(Error::new(
            Kind::Setup,
            "fio is not installed on the target",
        ));
    }
    Ok(lab.path.clone())
}

/// Sets up mode p2p; fails if the data would move through RAM nevertheless.
pub(crate) fn p2p(lab: &mut Lab) -> Result<String> {
    lab.export(&Export::new("p2p"))?;
    let disk = lab.connect(&[])?;
    let how = peers(lab)?;
    if how.is_empty() {
        let why = "no PCI device lends memory that the drive and the RDMA device reach (`hcablk check` on the target says more)";
        return Err(Error::new(Kind::Setup, why));
    }
    Ok(disk)
}

/// Returns how the queue pairs of the volume reach peer memory: `direct` or `bounce` for each.
pub(crate) fn peers(lab: &mut Lab) -> Result<Vec<String>> {
    let path = format!(
        "/sys/kernel/config/hcablk_target/volumes/{}/peers",
        crate::lab::NAME
    );
    let text: String = lab.target.ask(crate::worker::Ask::Read { path })?;
    Ok(text
        .lines()
        .filter_map(|line| line.split(' ').nth(5).map(str::to_owned))
        .collect())
}

/// Returns whether a data path is one of hcablk, which has counters.
pub(crate) fn is_ours(way: &str) -> bool {
    !matches!(way, "local" | "nvme-rdma" | "nbd")
}

fn measure_way(
    args: &LocalRemoteArgs,
    lab: &mut Lab,
    way: &'static str,
    disk: &str,
    points: &mut Vec<Point>,
) -> Result<()> {
    for (direction, pattern) in [("read", "randread"), ("write", "randwrite")] {
        if args.read_only && direction == "write" {
            continue;
        }
        for &size in &args.sizes {
            for &depth in &args.depths {
                let before = if is_ours(way) {
                    Some(lab.counters()?)
                } else {
                    None
                };
                let job = Job::new(
                    disk,
                    pattern,
                    size,
                    depth,
                    Until::Seconds(args.seconds),
                    lab.span,
                );
                let node = if way == "local" {
                    &mut lab.target
                } else {
                    &mut lab.client
                };
                let load = job.run(node)?;
                let measured = if direction == "read" {
                    load.read
                } else {
                    load.write
                };
                let counted = match before {
                    Some((client, target)) => {
                        let after = lab.counters()?;
                        Some((grown(&client, &after.0), grown(&target, &after.1)))
                    }
                    None => None,
                };
                if !args.common.json {
                    println!(
                        "  {direction:5} {:>8} depth {depth:<3} {:>9.1} MB/s {:>10.1} µs",
                        bytes(size),
                        measured.bytes_per_second / 1e6,
                        measured.mean_ns / 1e3
                    );
                }
                points.push(Point {
                    way,
                    direction,
                    size,
                    depth,
                    measured,
                    counted,
                });
            }
        }
    }
    Ok(())
}

/// Returns the growth of the counters, without those that did not grow.
pub(crate) fn grown(before: &Counters, after: &Counters) -> Counters {
    let grown = after
        .iter()
        .map(|(name, value)| (name.clone(), value - before.get(name).unwrap_or(&0)));
    grown.filter(|(_, value)| *value != 0).collect()
}

#[expect(clippy::cast_precision_loss, reason = "sizes and counts of a plot")]
fn page(
    lab: &Lab,
    args: &LocalRemoteArgs,
    points: &[Point],
    left_out: &[LeftOut],
) -> Result<String> {
    let mut page = Page::new("hcablk: local and remote", &report::times(lab));
    page.table(&report::MACHINES, &report::machines(lab));
    page.paragraph(&format!(
        "Each point: fio, random requests of one size, without the page cache of the machine that issues them, for {} s; \
         {} MiB of the drive {}.",
        args.seconds,
        lab.span >> 20,
        lab.path
    ));
    page.table(
        &["way", "what it is"],
        &DATA_PATHS.map(|(way, what)| vec![way.to_owned(), what.to_owned()]),
    );
    show_left_out(&mut page, left_out);
    for direction in ["read", "write"] {
        for &depth in &args.depths {
            let curves = |y: &dyn Fn(&Measured) -> f64| -> Vec<Curve> {
                let of = |way: &str| -> Vec<(f64, f64)> {
                    points
                        .iter()
                        .filter(|point| {
                            point.way == way && point.direction == direction && point.depth == depth
                        })
                        .map(|point| (point.size as f64, y(&point.measured)))
                        .collect()
                };
                let curves = DATA_PATHS.iter().map(|(way, _)| Curve {
                    name: (*way).to_owned(),
                    points: of(way),
                });
                curves.filter(|curve| !curve.points.is_empty()).collect()
            };
            let bandwidth = curves(&|measured| measured.bytes_per_second / 1e6);
            if bandwidth.is_empty() {
                continue;
            }
            page.heading(&format!("{direction}s, {depth} at a time"));
            page.plot(
                &format!("bandwidth of {direction}s"),
                Axis::Size,
                "MB/s",
                &bandwidth,
            )?;
            page.plot(
                &format!("latency of {direction}s, mean"),
                Axis::Size,
                "µs",
                &curves(&|measured| measured.mean_ns / 1e3),
            )?;
        }
    }
    page.heading("Counters of hcablk, for each request");
    page.paragraph("Counts are real on an emulator, too. RAM: bytes that crossed the target's memory for each byte served.");
    let rows: Vec<Vec<String>> = points.iter().filter_map(counted_row).collect();
    page.table(
        &[
            "way",
            "direction",
            "size",
            "depth",
            "work requests",
            "doorbells",
            "interrupts",
            "registrations",
            "chunks",
            "RAM",
        ],
        &rows,
    );
    Ok(page.finish())
}

#[expect(clippy::cast_precision_loss, reason = "ratios of counts")]
fn counted_row(point: &Point) -> Option<Vec<String>> {
    let (client, target) = point.counted.as_ref()?;
    let of = |counters: &Counters, name: &str| counters.get(name).copied().unwrap_or(0) as f64;
    let requests = (of(target, "reads") + of(target, "writes")).max(1.0);
    let both = |name: &str| format!("{:.2}", (of(client, name) + of(target, name)) / requests);
    Some(vec![
        point.way.to_owned(),
        point.direction.to_owned(),
        bytes(point.size),
        point.depth.to_string(),
        both("work_requests"),
        both("doorbells"),
        both("events"),
        both("registrations"),
        format!("{:.2}", of(target, "chunks") / requests),
        format!("{:.2}", ram_ratio(target)),
    ])
}

/// Returns how often each served byte crossed the target's memory.
#[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
pub(crate) fn ram_ratio(target: &Counters) -> f64 {
    let of = |name: &str| target.get(name).copied().unwrap_or(0) as f64;
    of("ram_bytes") / (of("read_bytes") + of("written_bytes")).max(1.0)
}
