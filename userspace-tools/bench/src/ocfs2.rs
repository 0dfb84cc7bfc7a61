// SPDX-License-Identifier: GPL-2.0

//! `ocfs2`: file I/O on OCFS2 by one client and by all: iozone's patterns, a web farm, and MPI-Tile-IO's pattern.
//!
//! fio makes all loads. The clients become a cluster of OCFS2 for the time of the experiment.

use std::net::IpAddr;
use std::process::ExitCode;

use hcablk::error::{Error, Kind, Result};
use serde::Serialize;
use serde_json::json;

use crate::cli::Ocfs2Args;
use crate::fio::{self, Job, Load, Until};
use crate::lab::{Export, Lab};
use crate::local_remote::{check_names, each_path, nothing, p2p, show_left_out, LeftOut};
use crate::node::Node;
use crate::page::{bytes, Axis, Curve, Page};
use crate::report::{self, Report};
use crate::rivals;
use crate::stop::Stop;
use crate::worker::{failure, unload, WorkerStep};

const PATHS: [(&str, &str); 5] = [
    (
        "direct",
        "hcablk, mode direct: the target neither caches nor reads ahead",
    ),
    ("cached", "hcablk through the target's page cache"),
    ("p2p", "hcablk, mode p2p: peer-to-peer DMA"),
    ("nvme-rdma", "Linux's NVMe over RDMA"),
    ("nbd", "NBD over TCP, a copy in user space"),
];

/// The name of the cluster.
const CLUSTER: &str = "hcablkbench";
const CONFIGURATION: &str = "/etc/ocfs2/cluster.conf";
const FOLDER: &str = "/run/hcablk-bench-ocfs2";
/// MPI-Tile-IO: the display has this many tiles in each direction, of elements of this many bytes.
const TILES: u64 = 4;
const ELEMENT: u64 = 32;

/// How the clients read and write files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caching {
    /// Without the client's page cache.
    Direct,
    /// Through it, with this read-ahead.
    ReadAhead(u64),
}

impl Caching {
    fn name(self) -> String {
        match self {
            Self::Direct => "direct I/O".to_owned(),
            Self::ReadAhead(kib) => format!("cached, read-ahead {kib} KiB"),
        }
    }
}

/// The result of a load.
#[derive(Serialize)]
struct Row {
    way: &'static str,
    /// `read`, `re-read`, `write`, `web` or `tile`.
    pattern: &'static str,
    nodes: usize,
    caching: String,
    /// `small` or `large`; `web` and `tile` for these patterns.
    file: &'static str,
    /// Bytes of a request.
    size: u64,
    /// The sum over all nodes.
    bytes_per_second: f64,
    /// The sum over all nodes: for `web`, files per second.
    requests_per_second: f64,
    /// The time until the last node has finished.
    seconds: f64,
}

/// Runs the experiment.
pub(crate) fn run(args: &Ocfs2Args, stop: &Stop) -> Result<ExitCode> {
    check_names(&PATHS, &args.only)?;
    fits(args, args.common.span << 20)?;
    report::with_lab(&args.common, "ocfs2", true, stop, |lab, report| {
        lab.join(&args.further)?;
        measure(args, lab, report)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the bytes of all files.
fn needed(args: &Ocfs2Args) -> u64 {
    ((args.small_mib + args.large_mib) << 20)
        + args.web_files * (args.web_file_kib << 10)
        + frame(args)
}

/// Fails unless the files fit into the used part of the drive, with a fifth of it for the file system, and each client's
/// part of the small file has a request of the largest size.
fn fits(args: &Ocfs2Args, span: u64) -> Result<()> {
    let clients = 1 + args.further.clients.len() + args.further.client_through.len();
    let least = args.sizes.iter().max().unwrap_or(&0) * clients as u64;
    for (option, mib) in [("small", args.small_mib), ("large", args.large_mib)] {
        if mib << 20 < least {
            let message = format!("--{option}-mib {mib} is too small for {clients} clients and the largest of --sizes");
            let advice = format!("It must be at least {}.", least.div_ceil(1 << 20));
            return Err(Error::new(Kind::Usage, message).advise(advice));
        }
    }
    let needed = needed(args);
    if needed <= span / 5 * 4 {
        return Ok(());
    }
    let message = format!(
        "the files need {} MiB, and the file system has {}",
        needed.div_ceil(1 << 20),
        span >> 20
    );
    let advice = format!(
        "Use more of the drive: --span {}",
        (needed / 4 * 5).div_ceil(1 << 20) + 1
    );
    Err(Error::new(Kind::Usage, message).advise(advice))
}

fn frame(args: &Ocfs2Args) -> u64 {
    TILES * TILES * args.tile * args.tile * ELEMENT
}

fn measure(args: &Ocfs2Args, lab: &mut Lab, report: &Report) -> Result<()> {
    fits(args, lab.span)?;
    cluster(args, lab)?;
    let mut rows = Vec::new();
    let left_out = each_path(
        lab,
        &PATHS,
        &args.only,
        args.common.json,
        set_up,
        |lab, way, disks| measure_way(args, lab, way, disks, &mut rows),
    )?;
    if rows.is_empty() {
        return Err(nothing(&left_out));
    }
    let mut result = report::head(lab, "ocfs2");
    result["nodes"] = json!(lab.client_count());
    result["rows"] = json!(rows);
    result["left_out"] = json!(left_out);
    report.write_json("result.json", &result)?;
    report.write("index.html", &page(lab, args, &rows, &left_out)?)?;
    if args.common.json {
        println!("{result}");
    }
    Ok(())
}

// ---- the cluster

/// Makes a cluster of all clients.
fn cluster(args: &Ocfs2Args, lab: &mut Lab) -> Result<()> {
    let count = lab.client_count();
    if !args.node_addresses.is_empty() && args.node_addresses.len() != count {
        let given = args.node_addresses.len();
        let message = format!("--node-addresses has {given} addresses for {count} clients");
        return Err(Error::new(Kind::Usage, message));
    }
    let mut members = Vec::new();
    for index in 0..count {
        let target = lab.address;
        let address = match args.node_addresses.get(index) {
            Some(address) => *address,
            None => own_address(lab.client_mut(index), target)?,
        };
        members.push((lab.client_name(index), address));
    }
    let text = configuration(&members);
    for (index, (name, _)) in members.iter().enumerate() {
        lab.stop.check()?;
        let node = lab.client_mut(index);
        unused(node, name)?;
        become_member(node, &text)?;
    }
    Ok(())
}

/// Returns the address of a client in the network of the target.
fn own_address(node: &mut Node, target: IpAddr) -> Result<IpAddr> {
    let argv = ["ip", "route", "get", &target.to_string()].map(str::to_owned);
    let output = node.run(&argv, 30)?;
    source(&output.stdout).ok_or_else(|| {
        let message = format!("a client has no route with a source address to {target}");
        Error::new(Kind::Setup, message)
            .advise("Name the addresses of the clients: --node-addresses")
    })
}

/// Returns the source address in the output of `ip route get`.
fn source(text: &str) -> Option<IpAddr> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == "src")?;
    words.next()?.parse().ok()
}

/// Returns the file that describes the cluster.
fn configuration(members: &[(String, IpAddr)]) -> String {
    let mut text = format!(
        "cluster:\n\theartbeat_mode = local\n\tnode_count = {}\n\tname = {CLUSTER}\n",
        members.len()
    );
    for (number, (name, address)) in members.iter().enumerate() {
        let node = format!(
            "\nnode:\n\tnumber = {number}\n\tcluster = {CLUSTER}\n\tip_port = 7777\n\tip_address = {address}\n\tname = {name}\n"
        );
        text.push_str(&node);
    }
    text
}

/// Fails unless a machine has OCFS2's programs, and does not use OCFS2.
fn unused(node: &mut Node, name: &str) -> Result<()> {
    let refused = |why: &str| Err(Error::new(Kind::Setup, format!("the client {name}: {why}")));
    for program in ["mkfs.ocfs2", "mount.ocfs2", "o2cb"] {
        let argv = ["sh", "-c", &format!("command -v {program}")].map(str::to_owned);
        if node.run(&argv, 30)?.status != 0 {
            return refused(&format!("it has no {program} (package ocfs2-tools)"));
        }
    }
    let argv = [
        "sh",
        "-c",
        &format!("[ -e {CONFIGURATION} ] || [ -d /sys/fs/ocfs2 ] || grep -q ' /dlm ' /proc/mounts"),
    ]
    .map(str::to_owned);
    if node.run(&argv, 30)?.status == 0 {
        return refused("it already uses OCFS2, and this experiment would change its cluster");
    }
    Ok(())
}

fn become_member(node: &mut Node, configuration: &str) -> Result<()> {
    for folder in ["/etc/ocfs2", "/dlm"] {
        let argv = ["test", "-d", folder].map(str::to_owned);
        if node.run(&argv, 30)?.status != 0 {
            let path = folder.to_owned();
            let undo = vec![WorkerStep::Rmdir { path: path.clone() }];
            node.change(WorkerStep::Mkdir { path }, undo)?;
        }
    }
    let path = CONFIGURATION.to_owned();
    let undo = vec![WorkerStep::Unlink { path: path.clone() }];
    let text = configuration.to_owned();
    node.change(WorkerStep::Write { path, text }, undo)?;
    for module in ["ocfs2_stack_o2cb", "ocfs2_dlmfs", "ocfs2"] {
        node.change(WorkerStep::run(&["modprobe", module]), vec![unload(module)])?;
    }
    let path = "/sys/fs/ocfs2/cluster_stack".to_owned();
    let text = "o2cb".to_owned();
    node.change(WorkerStep::Write { path, text }, Vec::new())?;
    let unregister = format!(
        "[ ! -d /sys/kernel/config/cluster/{CLUSTER} ] || o2cb unregister-cluster {CLUSTER}"
    );
    let steps: [(&[&str], &str); 2] = [
        (
            &["mount", "-t", "ocfs2_dlmfs", "none", "/dlm"],
            "! grep -q ' /dlm ' /proc/mounts || umount /dlm",
        ),
        (&["o2cb", "register-cluster", CLUSTER], &unregister),
    ];
    for (words, undo) in steps {
        let undo = vec![WorkerStep::run(&["sh", "-c", undo])];
        node.change(WorkerStep::run(words), undo)?;
    }
    Ok(())
}

/// Sets up a data path on all clients, makes a file system, and mounts it everywhere; returns the disks.
fn set_up(lab: &mut Lab, way: &'static str) -> Result<Vec<String>> {
    // At the end, so that the drive has no signature for the next experiment.
    let wipe = format!("of={}", lab.path);
    let wipe = [
        "dd",
        "if=/dev/zero",
        &wipe,
        "bs=1M",
        "count=1",
        "conv=fsync",
    ];
    lab.target
        .change(WorkerStep::run(&["true"]), vec![WorkerStep::run(&wipe)])?;
    let clients = 0..lab.client_count();
    let disks: Vec<String> = match way {
        "nvme-rdma" => {
            rivals::serve_nvme(lab)?;
            clients
                .map(|index| rivals::attach_nvme(lab, index))
                .collect::<Result<_>>()?
        }
        "nbd" => {
            rivals::serve_nbd(lab)?;
            clients
                .map(|index| rivals::attach_nbd(lab, index))
                .collect::<Result<_>>()?
        }
        "p2p" => {
            p2p(lab)?;
            lab.connect_all(&[])?
        }
        mode => {
            lab.export(&Export::new(mode))?;
            lab.connect_all(&[])?
        }
    };
    let first = disks.first().map_or("", String::as_str);
    let (slots, blocks) = (disks.len().to_string(), (lab.span / 4096).to_string());
    let argv = [
        "mkfs.ocfs2",
        "-q",
        "-x",
        "-N",
        &slots,
        "-b",
        "4096",
        "--cluster-stack=o2cb",
        &format!("--cluster-name={CLUSTER}"),
        first,
        &blocks,
    ]
    .map(str::to_owned);
    let made = lab.client.run(&argv, 300)?;
    if made.status != 0 {
        return Err(failure("mkfs.ocfs2", &made));
    }
    for (index, disk) in disks.iter().enumerate() {
        let node = lab.client_mut(index);
        let path = FOLDER.to_owned();
        let undo = vec![WorkerStep::Rmdir { path: path.clone() }];
        node.change(WorkerStep::Mkdir { path }, undo)?;
        let undo = format!("! grep -q ' {FOLDER} ' /proc/mounts || umount {FOLDER}");
        let undo = vec![WorkerStep::run(&["sh", "-c", &undo])];
        node.change(WorkerStep::run(&["mount.ocfs2", disk, FOLDER]), undo)?;
    }
    Ok(disks)
}

// ---- loads

/// Returns a job on a file, one request at a time, without fio's own invalidation of the page cache.
fn job(file: &str, pattern: &str, size: u64, span: (u64, u64), caching: Caching) -> Job {
    let mut more = vec!["--invalidate=0".to_owned()];
    if caching != Caching::Direct {
        more.push("--direct=0".to_owned());
    }
    Job {
        engine: "psync".to_owned(),
        span,
        more,
        ..Job::new(
            &format!("{FOLDER}/{file}"),
            pattern,
            size,
            1,
            Until::Bytes(span.1),
            span.1,
        )
    }
}

/// Returns a job that moves all of a file in order, as iozone does.
fn whole(file: &str, pattern: &str, size: u64, length: u64, caching: Caching) -> Job {
    let mut job = job(file, pattern, size, (0, length), caching);
    if pattern == "write" {
        job.more.push("--end_fsync=1".to_owned());
    }
    job
}

/// Returns the job that reads a tile: a row of it, then the next row, which follows after the rows of other tiles.
fn tile_job(tile: u64, edge: u64) -> Job {
    let row = edge * ELEMENT;
    let begin = tile / TILES * edge * TILES * row + tile % TILES * row;
    let frame = TILES * TILES * edge * row;
    let pattern = format!("read:{}", (TILES - 1) * row);
    Job {
        until: Until::Bytes(edge * row),
        ..job(
            "tile",
            &pattern,
            row,
            (begin, frame - begin),
            Caching::ReadAhead(0),
        )
    }
}

/// Returns the jobs of a node: the tiles are dealt to the nodes in turn.
fn tile_jobs(node: usize, nodes: usize, edge: u64) -> Vec<Job> {
    let tiles = (0..TILES * TILES).skip(node).step_by(nodes);
    tiles.map(|tile| tile_job(tile, edge)).collect()
}

/// Returns options for many files of one size in one folder.
fn web_options(files: u64, file: u64) -> Vec<String> {
    vec![
        format!("--directory={FOLDER}"),
        "--filename_format=web.$filenum".to_owned(),
        format!("--nrfiles={files}"),
        format!("--filesize={file}"),
        "--file_service_type=random:1".to_owned(),
        // The loads measure the clients' page caches, too.
        "--invalidate=0".to_owned(),
        "--direct=0".to_owned(),
    ]
}

fn web_job(args: &Ocfs2Args, pattern: &str, until: Until) -> Job {
    let file = args.web_file_kib << 10;
    let total = args.web_files * file;
    Job {
        engine: "psync".to_owned(),
        more: web_options(args.web_files, file),
        // The names of the files come from the options.
        ..Job::new("", pattern, file, 1, until, total)
    }
}

/// Drops the page cache of all clients, so that each load begins alike.
fn drop_caches(lab: &mut Lab) -> Result<()> {
    for index in 0..lab.client_count() {
        let argv = ["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"].map(str::to_owned);
        let output = lab.client_mut(index).run(&argv, 120)?;
        if output.status != 0 {
            return Err(failure("dropping the page cache", &output));
        }
    }
    Ok(())
}

fn read_ahead(lab: &mut Lab, disks: &[String], kib: u64) -> Result<()> {
    for (index, disk) in disks.iter().enumerate() {
        let name = disk.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/queue/read_ahead_kb");
        let text = kib.to_string();
        // The disk is removed at the end: the former value is not restored.
        lab.client_mut(index)
            .change(WorkerStep::Write { path, text }, Vec::new())?;
    }
    Ok(())
}

/// Runs loads on a data path, and adds their results to the rows.
struct Measured<'a> {
    lab: &'a mut Lab,
    is_quiet: bool,
    way: &'static str,
    rows: &'a mut Vec<Row>,
}

impl Measured<'_> {
    fn add(
        &mut self,
        pattern: &'static str,
        caching: Caching,
        file: &'static str,
        size: u64,
        jobs: &[Vec<Job>],
    ) -> Result<()> {
        let loads: Vec<Load> = self.lab.run_together(jobs)?.into_iter().flatten().collect();
        let (rate, requests, seconds) = total(&loads);
        if !self.is_quiet {
            println!(
                "  {pattern:7} {file:5} {:>8} {} nodes, {}: {:.1} MB/s",
                bytes(size),
                jobs.len(),
                caching.name(),
                rate / 1e6
            );
        }
        self.rows.push(Row {
            way: self.way,
            pattern,
            nodes: jobs.len(),
            caching: caching.name(),
            file,
            size,
            bytes_per_second: rate,
            requests_per_second: requests,
            seconds,
        });
        Ok(())
    }
}

/// Returns the sum of the loads' rates in bytes and in requests, and the time of the longest.
#[expect(clippy::cast_precision_loss, reason = "rates")]
fn total(loads: &[Load]) -> (f64, f64, f64) {
    let mut total = (0.0, 0.0, 0.0_f64);
    for load in loads {
        for one in [&load.read, &load.write] {
            if one.bytes == 0 || one.bytes_per_second <= 0.0 {
                continue;
            }
            let seconds = one.bytes as f64 / one.bytes_per_second;
            total.0 += one.bytes_per_second;
            total.1 += one.requests as f64 / seconds;
            total.2 = total.2.max(seconds);
        }
    }
    total
}

fn measure_way(
    args: &Ocfs2Args,
    lab: &mut Lab,
    way: &'static str,
    disks: &[String],
    rows: &mut Vec<Row>,
) -> Result<()> {
    let files = [
        ("small", args.small_mib << 20),
        ("large", args.large_mib << 20),
    ];
    for (file, length) in files {
        fio::run(
            &[whole(file, "write", 1 << 20, length, Caching::Direct)],
            &mut lab.client,
        )?;
    }
    let row = args.tile * ELEMENT;
    let size = frame(args).min(1 << 20);
    let tiles = whole("tile", "write", size, frame(args), Caching::Direct);
    fio::run(&[tiles], &mut lab.client)?;
    let web = web_job(
        args,
        "write",
        Until::Bytes(args.web_files * (args.web_file_kib << 10)),
    );
    fio::run(&[web], &mut lab.client)?;
    let mut measured = Measured {
        lab,
        is_quiet: args.common.json,
        way,
        rows,
    };
    let mut cachings = vec![Caching::Direct];
    cachings.extend(args.read_ahead.iter().map(|kib| Caching::ReadAhead(*kib)));
    let mut counts = vec![1, disks.len()];
    counts.dedup();
    for nodes in counts {
        for &caching in &cachings {
            if let Caching::ReadAhead(kib) = caching {
                read_ahead(measured.lab, disks, kib)?;
            }
            for (file, length) in files {
                for &size in &args.sizes {
                    drop_caches(measured.lab)?;
                    let read = whole(file, "read", size, length, caching);
                    let jobs = vec![vec![read]; nodes];
                    measured.add("read", caching, file, size, &jobs)?;
                    if caching != Caching::Direct {
                        measured.add("re-read", caching, file, size, &jobs)?;
                    }
                }
            }
        }
        let caching = *cachings.last().unwrap_or(&Caching::Direct);
        for &size in &args.sizes {
            drop_caches(measured.lab)?;
            // Each node writes a file of its own: all together would write the same bytes.
            let length = files[0].1 / nodes as u64 / size * size;
            let write = |node: usize| {
                let mut job = whole("small", "write", size, length, Caching::Direct);
                job.span.0 = node as u64 * length;
                vec![job]
            };
            let jobs: Vec<Vec<Job>> = (0..nodes).map(write).collect();
            measured.add("write", Caching::Direct, "small", size, &jobs)?;
        }
        drop_caches(measured.lab)?;
        let until = Until::Seconds(args.seconds);
        let jobs = vec![vec![web_job(args, "randread", until)]; nodes];
        measured.add("web", caching, "web", args.web_file_kib << 10, &jobs)?;
        drop_caches(measured.lab)?;
        let jobs: Vec<Vec<Job>> = (0..nodes)
            .map(|node| tile_jobs(node, nodes, args.tile))
            .collect();
        measured.add("tile", caching, "tile", row, &jobs)?;
    }
    Ok(())
}

// ---- the page

#[expect(clippy::cast_precision_loss, reason = "sizes of a plot")]
fn page(lab: &Lab, args: &Ocfs2Args, rows: &[Row], left_out: &[LeftOut]) -> Result<String> {
    let mut page = Page::new("hcablk: files on OCFS2", &report::times(lab));
    page.table(&report::MACHINES, &report::machines(lab));
    page.paragraph(&format!(
        "{} clients have the file system mounted. read: all of a file in order, after the page caches of all clients were \
         dropped; re-read: once more; write: a part of the small file by each client, without its page cache, with a sync at \
         the end. The small file has {} MiB, the large one {}. web: each client reads whole files of {} KiB, chosen at random \
         from {}, for {} s. tile: {TILES} × {TILES} tiles of {} × {} elements of {ELEMENT} bytes, each read by one process, row \
         by row.",
        lab.client_count(),
        args.small_mib,
        args.large_mib,
        args.web_file_kib,
        args.web_files,
        args.seconds,
        args.tile,
        args.tile
    ));
    show_left_out(&mut page, left_out);
    let mut plots: Vec<(&str, usize, &str, &str)> = Vec::new();
    for row in rows {
        let plot = (row.pattern, row.nodes, row.caching.as_str(), row.file);
        if matches!(row.pattern, "read" | "re-read" | "write") && !plots.contains(&plot) {
            plots.push(plot);
        }
    }
    for (pattern, nodes, caching, file) in plots {
        let of = |way: &str| -> Vec<(f64, f64)> {
            let rows = rows.iter().filter(|row| {
                (row.way, row.pattern, row.nodes) == (way, pattern, nodes)
                    && row.caching == caching
                    && row.file == file
            });
            rows.map(|row| (row.size as f64, row.bytes_per_second / 1e6))
                .collect()
        };
        let curves = PATHS.iter().map(|(way, _)| Curve {
            name: (*way).to_owned(),
            points: of(way),
        });
        let curves: Vec<Curve> = curves.filter(|curve| !curve.points.is_empty()).collect();
        let title = format!("{pattern}, {file} file, {nodes} nodes, {caching}");
        page.plot(&title, Axis::Size, "MB/s of all nodes", &curves)?;
    }
    page.heading("Web farm, and tiles");
    let table: Vec<Vec<String>> = rows
        .iter()
        .filter(|row| matches!(row.pattern, "web" | "tile"))
        .map(|row| {
            vec![
                row.way.to_owned(),
                row.pattern.to_owned(),
                row.nodes.to_string(),
                row.caching.clone(),
                format!("{:.1}", row.requests_per_second),
                format!("{:.1}", row.bytes_per_second / 1e6),
                format!("{:.2}", row.seconds),
            ]
        })
        .collect();
    page.table(
        &[
            "way",
            "pattern",
            "nodes",
            "caching",
            "files or rows/s",
            "MB/s",
            "seconds",
        ],
        &table,
    );
    Ok(page.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured as FioMeasured;
    use clap::Parser as _;

    fn arguments(words: &[&str]) -> Ocfs2Args {
        let words = ["hcablk-bench", "ocfs2"].iter().chain(words);
        match crate::cli::Cli::parse_from(words).command {
            crate::cli::Command::Ocfs2(args) => args,
            _ => unreachable!(),
        }
    }

    #[test]
    fn tiles_cover_each_byte_of_the_frame_once() {
        let edge = 8;
        let row = edge * ELEMENT;
        let mut rows = Vec::new();
        for node in 0..3 {
            for job in tile_jobs(node, 3, edge) {
                let hole: u64 = job.pattern.strip_prefix("read:").unwrap().parse().unwrap();
                assert_eq!(job.sizes, (row, row));
                let Until::Bytes(bytes) = job.until else {
                    unreachable!()
                };
                let last = job.span.0 + (bytes / row - 1) * (row + hole) + row;
                assert!(last <= job.span.0 + job.span.1);
                rows.extend((0..bytes / row).map(|number| job.span.0 + number * (row + hole)));
            }
        }
        rows.sort_unstable();
        let expected: Vec<u64> = (0..TILES * TILES * edge)
            .map(|number| number * row)
            .collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_the_span_that_they_need() {
        let args = arguments(&["--large-mib", "4096"]);
        let error = fits(&args, 1 << 30).unwrap_err();
        let advice = error.advice.unwrap_or_default();
        let span: u64 = advice.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(fits(&args, span << 20).is_ok(), "{advice}");
        assert!(fits(&arguments(&[]), 1 << 30).is_ok());
        let small = ["--small-mib", "7", "--clients", "two"];
        assert!(fits(&arguments(&small), 1 << 30).is_err());
    }

    #[test]
    fn the_cluster_has_all_nodes() {
        let members = [
            ("one".to_owned(), "10.0.0.2".parse().unwrap()),
            ("two".to_owned(), "10.0.0.3".parse().unwrap()),
        ];
        let text = configuration(&members);
        assert!(text.contains("node_count = 2"));
        assert_eq!(text.matches("node:").count(), 2);
        assert!(text.contains("number = 1\n\tcluster = hcablkbench\n\tip_port = 7777\n\tip_address = 10.0.0.3\n\tname = two\n"));
    }

    #[test]
    fn the_source_address_is_found() {
        let text = "10.77.0.1 dev eth0 src 10.77.0.2 uid 0\n    cache\n";
        assert_eq!(source(text), "10.77.0.2".parse().ok());
        assert_eq!(source("RTNETLINK answers: Network is unreachable"), None);
    }

    #[test]
    fn rates_are_summed_and_the_longest_time_counts() {
        let load = |bytes, rate| Load {
            read: FioMeasured {
                bytes,
                requests: 10,
                bytes_per_second: rate,
                ..FioMeasured::default()
            },
            ..Load::default()
        };
        let (rate, requests, seconds) = total(&[load(1000, 100.0), load(1000, 500.0)]);
        assert!((rate - 600.0).abs() < 1e-9);
        assert!((requests - 6.0).abs() < 1e-9);
        assert!((seconds - 10.0).abs() < 1e-9);
    }
}
