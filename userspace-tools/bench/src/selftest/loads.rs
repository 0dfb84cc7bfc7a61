// SPDX-License-Identifier: GPL-2.0

//! Shapes of memory, concurrent requests, batches, polling, and interrupts.

use std::fs;
use std::time::{Duration, Instant};

use hcablk::error::{Error, Kind, Result};
use serde_json::json;

use super::ways::{connect, on_processor, requests};
use super::{Check, Context, Outcome};
use crate::fio::{Job, Until};
use crate::lab::{Counters, Export};
use crate::local_remote::grown;
use crate::pattern;
use crate::rivals;
use crate::worker::Ask;

const REGISTERED: &[&str] = &[
    "--small-read",
    "0",
    "--eager-write",
    "0",
    "--small-write",
    "0",
];

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "shapes",
            what: "requests of every shape of memory, over the data paths that the defaults choose",
            run: |context| shapes(context, &Export::new("direct"), &[]),
        },
        Check {
            name: "shapes-registered",
            what: "the same, all in registered memory",
            run: |context| shapes(context, &Export::new("direct"), REGISTERED),
        },
        Check {
            name: "shapes-page-cache",
            what: "the same, through the target's page cache",
            run: |context| shapes(context, &Export::new("cached"), &[]),
        },
        Check {
            name: "load",
            what: "reads and writes of 512 bytes to 1 MiB, 32 at a time, verified",
            run: |context| load(context, &Export::new("direct"), &[], 1),
        },
        Check {
            name: "load-registered",
            what: "the same, all in registered memory",
            run: |context| load(context, &Export::new("direct"), REGISTERED, 1),
        },
        Check {
            name: "message-batches",
            what: "requests that are issued together share messages and doorbells",
            run: message_batches,
        },
        Check {
            name: "interrupt-batching",
            what: "64 requests at a time: most responses raise no interrupt",
            run: interrupt_batching,
        },
        Check {
            name: "polled",
            what: "reads on polled queues, by io_uring",
            run: polled,
        },
        Check {
            name: "completion-vectors",
            what: "each processor's queue completes requests, with an interrupt line of its own",
            run: completion_vectors,
        },
    ]
}

pub(super) fn last_checks() -> Vec<Check> {
    vec![
        Check {
            name: "nvme-rdma",
            what: "Linux's NVMe over RDMA on the same devices and drive, verified",
            run: nvme_rdma,
        },
        Check {
            name: "soak",
            what: "reads and writes, verified, for the time of --minutes",
            run: soak,
        },
    ]
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(Kind::Failed, why)
}

/// Writes and verifies requests of all shapes, within the used part of the drive.
fn shapes(context: &mut Context<'_>, export: &Export, options: &[&str]) -> Result<Outcome> {
    let disk = connect(context.lab, export, options)?;
    let block = crate::drive::block_size(&disk);
    let block_size = usize::try_from(block).unwrap_or(4096);
    let seed = context.args.seed;
    let shapes = pattern::shapes(block_size, 24, seed);
    let file = pattern::open(&disk, true)?;
    // One after the other, each at an offset within a page.
    let mut offset = block;
    let mut bytes = 0;
    for shape in &shapes {
        context.lab.stop.check()?;
        if offset + shape.bytes() > context.lab.span {
            offset = block;
        }
        pattern::write(&file, shape, seed, offset)?;
        pattern::verify(&file, shape, seed, offset)?;
        let path = context.lab.path.clone();
        let first = offset - offset % 4096;
        let length = (offset + shape.bytes()).next_multiple_of(4096) - first;
        // The remaining parts of its first and last page are written, too, so that the content of the drive's pages is
        // known.
        fill_around(&file, seed, offset, shape.bytes(), first, length, block)?;
        let found: u32 = context.lab.target.ask(Ask::Digest {
            path,
            offset: first,
            length,
        })?;
        if found != pattern::digest(seed, first, length) {
            return Err(failed(format!(
                "{}: WRONG DATA: the drive does not hold what was written at {offset}",
                shape.name
            )));
        }
        bytes += shape.bytes();
        offset = (offset + shape.bytes()).next_multiple_of(4096) + block;
    }
    Ok(Outcome::Pass(format!(
        "{} shapes, {bytes} bytes verified at both ends",
        shapes.len()
    )))
}

fn fill_around(
    file: &fs::File,
    seed: u64,
    offset: u64,
    bytes: u64,
    first: u64,
    length: u64,
    block: u64,
) -> Result<()> {
    let mut at = first;
    while at < first + length {
        if at < offset || at >= offset + bytes {
            let shape = pattern::Shape {
                name: "a block next to a shape".to_owned(),
                segments: vec![(0, usize::try_from(block).unwrap_or(4096))],
            };
            pattern::write(file, &shape, seed, at)?;
        }
        at += block;
    }
    Ok(())
}

/// Makes a job that writes, and reads and verifies its data.
pub(super) fn verifying(disk: &str, block: u64, span: u64, until: Until) -> Job {
    let mut job = Job::new(disk, "randrw", 1 << 20, 32, until, span);
    job.sizes = (block, 1 << 20);
    job.block = block;
    job.more = ["--verify=crc32c", "--verify_fatal=1"]
        .map(str::to_owned)
        .to_vec();
    job
}

fn load(
    context: &mut Context<'_>,
    export: &Export,
    options: &[&str],
    passes: u64,
) -> Result<Outcome> {
    let disk = connect(context.lab, export, options)?;
    let block = crate::drive::block_size(&disk);
    let span = (context.args.load << 20).min(context.lab.span);
    let before = context.lab.counters()?;
    let load =
        verifying(&disk, block, span, Until::Bytes(span * passes)).run(&mut context.lab.client)?;
    let after = context.lab.counters()?;
    no_errors(&grown(&before.0, &after.0), &grown(&before.1, &after.1))?;
    Ok(Outcome::Pass(format!(
        "{} reads and {} writes, {} bytes, no error",
        load.read.requests,
        load.write.requests,
        load.read.bytes + load.write.bytes
    )))
}

fn no_errors(client: &Counters, target: &Counters) -> Result<()> {
    for (side, counters) in [("client", client), ("target", target)] {
        for name in ["errors", "protocol_errors", "replaced_queues", "retries"] {
            if let Some(count) = counters.get(name) {
                return Err(failed(format!("the {side} counts {name} {count}")));
            }
        }
    }
    Ok(())
}

fn value_of(counters: &Counters, name: &str) -> i64 {
    counters.get(name).copied().unwrap_or(0)
}

/// Small reads at this depth, issued in batches.
fn batches(
    context: &mut Context<'_>,
    depth: u32,
    options: &[&str],
) -> Result<(Counters, Counters)> {
    let disk = connect(context.lab, &Export::new("direct"), options)?;
    let span = (64 << 20).min(context.lab.span);
    let mut job = Job::new(
        &disk,
        "randread",
        4096,
        depth,
        Until::Bytes(context.args.requests * 4096 * 64),
        span,
    );
    job.more = vec![
        "--iodepth_batch=16".to_owned(),
        "--iodepth_batch_complete_min=16".to_owned(),
        "--norandommap=1".to_owned(),
        // All of them use one queue.
        "--cpus_allowed=0".to_owned(),
    ];
    let before = context.lab.counters()?;
    job.run(&mut context.lab.client)?;
    let after = context.lab.counters()?;
    let grown = (grown(&before.0, &after.0), grown(&before.1, &after.1));
    no_errors(&grown.0, &grown.1)?;
    Ok(grown)
}

fn message_batches(context: &mut Context<'_>) -> Result<Outcome> {
    let (client, _) = batches(context, 32, &["--message-requests", "8"])?;
    let (reads, joined, doorbells) = (
        value_of(&client, "reads"),
        value_of(&client, "joined"),
        value_of(&client, "doorbells"),
    );
    if joined == 0 {
        return Err(failed(format!("of {reads} reads none shared a message")));
    }
    if doorbells >= reads {
        return Err(failed(format!("{reads} reads took {doorbells} doorbells")));
    }
    Ok(Outcome::Pass(format!(
        "{reads} reads: {joined} in a shared message, {doorbells} doorbells"
    )))
}

fn interrupt_batching(context: &mut Context<'_>) -> Result<Outcome> {
    if context
        .lab
        .client_facts
        .devices
        .iter()
        .any(|device| device.kind.contains("RNIC"))
    {
        return Ok(Outcome::NotPossible(
            "on iWARP every completion makes an event".to_owned(),
        ));
    }
    let (client, _) = batches(context, 64, &["--batch-upper", "32", "--batch-lower", "16"])?;
    let (reads, quiet, events) = (
        value_of(&client, "reads"),
        value_of(&client, "quiet"),
        value_of(&client, "events"),
    );
    let (found, guards) = (value_of(&client, "reaps"), value_of(&client, "guards"));
    if quiet == 0 {
        let why = format!(
            "32 of {reads} reads were never outstanding together: the drive is too fast for 64 at a time"
        );
        return Ok(Outcome::NotPossible(why));
    }
    if quiet * 2 > reads && events * 2 > reads {
        return Err(failed(format!(
            "{reads} reads made {events} interrupts, although {quiet} responses must not make any"
        )));
    }
    Ok(Outcome::Pass(format!(
        "{reads} reads: {quiet} quiet, {events} interrupts, {found} reaps, {guards} guards"
    )))
}

fn polled(context: &mut Context<'_>) -> Result<Outcome> {
    let disk = connect(context.lab, &Export::new("direct"), &["--poll-queues", "1"])?;
    let mut job = Job::new(
        &disk,
        "randread",
        4096,
        4,
        Until::Bytes(context.args.requests * 4096 * 4),
        32 << 20,
    );
    "io_uring".clone_into(&mut job.engine);
    job.more = vec!["--hipri=1".to_owned(), "--norandommap=1".to_owned()];
    let before = context.lab.counters()?.0;
    if let Err(error) = job.run(&mut context.lab.client) {
        // A kernel that does not allow io_uring refuses the ring, before any request is issued.
        if error.message.contains("io_uring_queue_init")
            || error.message.contains("engine io_uring")
        {
            return Ok(Outcome::NotPossible(format!(
                "io_uring cannot be used here: {}",
                error.message
            )));
        }
        return Err(error);
    }
    let client = grown(&before, &context.lab.counters()?.0);
    let (reads, polled) = (value_of(&client, "reads"), value_of(&client, "polled"));
    if polled == 0 {
        return Err(failed(format!("of {reads} reads none was polled")));
    }
    Ok(Outcome::Pass(format!(
        "{reads} reads: {polled} messages polled, {} interrupts",
        value_of(&client, "events")
    )))
}

/// Returns the count of each of these interrupt lines, over all processors.
fn interrupts(lines: &[u32]) -> Vec<u64> {
    let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let sum = |line: &u32| {
        let key = format!("{line}:");
        let found = text
            .lines()
            .find_map(|text| text.trim_start().strip_prefix(&key));
        let numbers = found
            .unwrap_or_default()
            .split_whitespace()
            .map_while(|word| word.parse::<u64>().ok());
        numbers.sum()
    };
    lines.iter().map(sum).collect()
}

fn completion_vectors(context: &mut Context<'_>) -> Result<Outcome> {
    let options = ["--batch-upper", "0", "--small-read", "0"];
    let disk = connect(context.lab, &Export::new("direct"), &options)?;
    let processors = context.lab.client_facts.processors;
    let lines: Vec<u32> = context
        .lab
        .client_facts
        .devices
        .iter()
        .flat_map(|device| device.interrupts.clone())
        .collect();
    let seed = context.args.seed ^ 0x7ec7;
    let file = pattern::open(&disk, true)?;
    requests(&file, true, 16384, 8, seed)?;
    let mut moved = vec![false; lines.len()];
    let mut slowest = Duration::ZERO;
    for processor in 0..processors {
        let before = (context.lab.counters()?.0, interrupts(&lines));
        let begun = Instant::now();
        on_processor(processor, || requests(&file, false, 16384, 8, seed))?;
        slowest = slowest.max(begun.elapsed() / 8);
        let client = grown(&before.0, &context.lab.counters()?.0);
        if value_of(&client, "events") == 0 {
            return Err(failed(format!(
                "processor {processor}: {} reads made no event",
                value_of(&client, "reads")
            )));
        }
        for ((moved, before), after) in moved.iter_mut().zip(&before.1).zip(interrupts(&lines)) {
            *moved |= after > *before;
        }
    }
    let moved = moved.iter().filter(|moved| **moved).count();
    context.figures.insert(
        "completion-vectors".to_owned(),
        json!({ "lines": lines.len(), "used": moved }),
    );
    let answered = format!(
        "the queues of {processors} processors answer with events, the slowest in {} µs",
        slowest.as_micros()
    );
    if lines.is_empty() {
        return Ok(Outcome::Pass(format!(
            "{answered}; the RDMA device has no interrupt lines of its own"
        )));
    }
    if moved == 0 {
        return Err(failed(format!(
            "{answered}, but none of the {} interrupt lines of the RDMA devices was used",
            lines.len()
        )));
    }
    Ok(Outcome::Pass(format!(
        "{answered}; {moved} of {} interrupt lines were used",
        lines.len()
    )))
}

fn nvme_rdma(context: &mut Context<'_>) -> Result<Outcome> {
    let lab = &mut *context.lab;
    lab.unexport()?;
    let notes = (lab.client.noted()?, lab.target.noted()?);
    let done = rivals::nvme_rdma(lab)
        .map_err(|error| (true, error))
        .and_then(|disk| {
            let span = (context.args.load << 20).min(lab.span);
            let block = crate::drive::block_size(&disk);
            verifying(&disk, block, span, Until::Bytes(span))
                .run(&mut lab.client)
                .map_err(|error| (false, error))
        });
    lab.client.undo(notes.0)?;
    lab.target.undo(notes.1)?;
    match done {
        Ok(load) => Ok(Outcome::Pass(format!(
            "{} reads and {} writes verified",
            load.read.requests, load.write.requests
        ))),
        Err((_, error)) if error.kind == Kind::Interrupted => Err(error),
        Err((true, error)) => Ok(Outcome::NotPossible(error.message)),
        Err((false, error)) => Err(failed(format!(
            "{}; a failure that occurs here as well is not a fault of hcablk",
            error.message
        ))),
    }
}

fn soak(context: &mut Context<'_>) -> Result<Outcome> {
    let minutes = context.args.minutes;
    if minutes == 0 {
        return Ok(Outcome::NotPossible(
            "it was not asked for: --minutes 60 is an hour".to_owned(),
        ));
    }
    let begun = Instant::now();
    let mut passes = 0;
    let mut bytes = 0;
    let disk = connect(context.lab, &Export::new("direct"), &[])?;
    let block = crate::drive::block_size(&disk);
    let span = (context.args.load << 20).min(context.lab.span);
    let before = context.lab.counters()?;
    while begun.elapsed() < Duration::from_secs(60 * minutes) {
        let load =
            verifying(&disk, block, span, Until::Bytes(span)).run(&mut context.lab.client)?;
        passes += 1;
        bytes += load.read.bytes + load.write.bytes;
    }
    let after = context.lab.counters()?;
    no_errors(&grown(&before.0, &after.0), &grown(&before.1, &after.1))?;
    Ok(Outcome::Pass(format!("{minutes} min, {passes} passes, {bytes} bytes verified, no error and no queue pair replaced")))
}
