// SPDX-License-Identifier: GPL-2.0

//! Every data path between a disk and its drive. Some requests use each of them; their data is verified at both ends,
//! and counters of both sides prove that no other path was used.

use std::fs::File;
use std::thread;
use std::time::Duration;

use hcablk::error::{Error, Kind, Result};
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;

use super::{Check, Context, Outcome};
use crate::drive;
use crate::lab::{Counters, Export, Lab};
use crate::local_remote::{grown, peers};
use crate::page::bytes;
use crate::pattern::{self, Shape};
use crate::worker::Ask;

/// The side that counts.
#[derive(Clone, Copy)]
enum Side {
    Client,
    Target,
}
use Side::{Client, Target};

/// The required growth of a counter.
#[derive(Clone, Copy)]
enum Wants {
    /// One for each request.
    Each,
    /// One or more for each request.
    EachOrMore,
    /// The number of bytes of all requests.
    Bytes,
    /// No growth.
    None,
}
use Wants::{Bytes, Each, EachOrMore};

/// A data path, and the counters that show it.
struct DataPathTest {
    export: Export,
    options: &'static [&'static str],
    write: bool,
    bytes: u64,
    wants: &'static [(Side, &'static str, Wants)],
}

/// No request is small, eager or inline.
const REGISTERED: &[&str] = &[
    "--small-read",
    "0",
    "--eager-write",
    "0",
    "--small-write",
    "0",
];
const LOCAL: &[&str] = &[
    "--small-read",
    "0",
    "--eager-write",
    "0",
    "--small-write",
    "0",
    "--no-remote-invalidate",
];

#[allow(clippy::too_many_lines, reason = "a list, one check after the other")]
pub(super) fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "small-read",
            what: "reads of 4 KiB by RDMA WRITE with an immediate value, without registration",
            run: |context| {
                let wants = &[
                    (Client, "immediates", Each),
                    (Client, "copied_bytes", Bytes),
                    (Client, "registrations", Wants::None),
                ];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options: &["--small-read", "8192"],
                        write: false,
                        bytes: 4096,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "registered-read",
            what: "reads of 16 KiB into registered memory, whose keys the target invalidates",
            run: |context| {
                let wants = &[
                    (Client, "registrations", Each),
                    (Client, "immediates", Wants::None),
                    (Client, "copied_bytes", Wants::None),
                ];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options: REGISTERED,
                        write: false,
                        bytes: 16384,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "local-invalidation",
            what: "reads of 16 KiB into registered memory, whose keys the client invalidates",
            run: |context| {
                let wants = &[
                    (Client, "registrations", Each),
                    (Client, "local_invalidations", Each),
                    (Client, "remote_invalidations", Wants::None),
                ];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options: LOCAL,
                        write: false,
                        bytes: 16384,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "inline-write",
            what: "writes of 4 KiB in the message of the request",
            run: |context| {
                let wants = &[
                    (Client, "inline_writes", Each),
                    (Target, "inline_writes", Each),
                    (Client, "registrations", Wants::None),
                ];
                let options = &["--eager-write", "0", "--small-write", "4096"];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options,
                        write: true,
                        bytes: 4096,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "eager-write",
            what: "writes of 16 KiB by RDMA WRITE into the target's eager ring",
            run: |context| {
                let wants = &[
                    (Client, "eager_writes", Each),
                    (Target, "eager_writes", Each),
                    (Client, "registrations", Wants::None),
                    (Target, "rdma_reads", Wants::None),
                ];
                let options = &["--eager-write", "32768"];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options,
                        write: true,
                        bytes: 16384,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "fetched-write",
            what: "writes of 64 KiB that the target fetches by RDMA READ from registered memory",
            run: |context| {
                let wants = &[
                    (Client, "registrations", Each),
                    (Target, "rdma_reads", EachOrMore),
                    (Target, "eager_writes", Wants::None),
                ];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options: REGISTERED,
                        write: true,
                        bytes: 65536,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "chunked-read",
            what: "reads of 1 MiB in chunks of 128 KiB",
            run: |context| {
                let wants = &[
                    (Target, "chunks", EachOrMore),
                    (Target, "unchunked", Wants::None),
                    (Client, "registrations", Each),
                ];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options: &[],
                        write: false,
                        bytes: 1 << 20,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "chunked-write",
            what: "writes of 1 MiB in chunks of 128 KiB",
            run: |context| {
                let wants = &[
                    (Target, "chunks", EachOrMore),
                    (Target, "rdma_reads", EachOrMore),
                    (Target, "unchunked", Wants::None),
                ];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("direct"),
                        options: REGISTERED,
                        write: true,
                        bytes: 1 << 20,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "whole-read",
            what: "reads of 1 MiB, each as a whole",
            run: |context| {
                let export = Export {
                    chunk_kib: 0,
                    ..Export::new("direct")
                };
                let wants = &[
                    (Target, "chunks", Wants::None),
                    (Client, "registrations", Each),
                    (Target, "ram_bytes", Bytes),
                ];
                way(
                    context,
                    &DataPathTest {
                        export,
                        options: &[],
                        write: false,
                        bytes: 1 << 20,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "whole-write",
            what: "writes of 1 MiB, each as a whole",
            run: |context| {
                let export = Export {
                    chunk_kib: 0,
                    ..Export::new("direct")
                };
                let wants = &[
                    (Target, "chunks", Wants::None),
                    (Target, "rdma_reads", EachOrMore),
                    (Target, "ram_bytes", Bytes),
                ];
                way(
                    context,
                    &DataPathTest {
                        export,
                        options: REGISTERED,
                        write: true,
                        bytes: 1 << 20,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "page-cache-read",
            what: "reads of 64 KiB through the target's page cache",
            run: |context| {
                let wants = &[(Target, "cache_bytes", Bytes)];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("cached"),
                        options: &[],
                        write: false,
                        bytes: 65536,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "page-cache-write",
            what: "writes of 64 KiB through the target's page cache",
            run: |context| {
                let wants = &[(Target, "cache_bytes", Bytes)];
                way(
                    context,
                    &DataPathTest {
                        export: Export::new("cached"),
                        options: &[],
                        write: true,
                        bytes: 65536,
                        wants,
                    },
                )
            },
        },
        Check {
            name: "write-through",
            what: "writes of 64 KiB that are on stable media when they are answered",
            run: |context| {
                let export = Export {
                    write_cache: "through",
                    ..Export::new("direct")
                };
                way(
                    context,
                    &DataPathTest {
                        export,
                        options: &[],
                        write: true,
                        bytes: 65536,
                        wants: &[(Target, "rdma_bytes", Bytes)],
                    },
                )
            },
        },
        Check {
            name: "target-cache",
            what:
                "reads of 16 KiB out of the volume's cache in the target's memory, the second time",
            run: target_cache,
        },
        Check {
            name: "p2p-read",
            what: "reads of 64 KiB by peer-to-peer DMA: no byte crosses the target's memory",
            run: |context| p2p(context, false),
        },
        Check {
            name: "p2p-write",
            what: "writes of 64 KiB by peer-to-peer DMA: no byte crosses the target's memory",
            run: |context| p2p(context, true),
        },
    ]
}

/// Runs a function on one processor, and so on one queue.
pub(super) fn on_processor<T: Send>(
    processor: usize,
    run: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let pinned = move || {
        let mut set = CpuSet::new();
        // If the processor may not be used, the kernel chooses one.
        let _ = set
            .set(processor)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
        run()
    };
    thread::scope(|scope| scope.spawn(pinned).join())
        .unwrap_or_else(|_| Err(Error::new(Kind::Failed, "a thread has panicked")))
}

/// Connects, and exchanges a message on every queue: the target grants eager rings with its first response.
pub(super) fn connect(lab: &mut Lab, export: &Export, options: &[&str]) -> Result<String> {
    lab.export(export)?;
    let disk = lab.connect(options)?;
    // udev inspects new disks.
    let settle = ["sh", "-c", "! command -v udevadm || udevadm settle -t 30"].map(str::to_owned);
    lab.client.run(&settle, 60)?;
    let block = usize::try_from(drive::block_size(&disk)).unwrap_or(4096);
    let shape = Shape {
        name: "the first read".to_owned(),
        segments: vec![(0, block)],
    };
    for processor in 0..lab.client_facts.processors {
        on_processor(processor, || {
            let mut arena = pattern::Arena::new(&shape.segments);
            let file = pattern::open(&disk, false)?;
            arena
                .read(&file, 0)
                .map_err(|error| Error::new(Kind::Failed, format!("the first read fails: {error}")))
        })?;
    }
    Ok(disk)
}

/// Writes or verifies some requests of one size, one after the other.
pub(super) fn requests(file: &File, write: bool, size: u64, count: u64, seed: u64) -> Result<()> {
    let length = usize::try_from(size).unwrap_or(0);
    let direction = if write { "writes" } else { "reads" };
    let shape = Shape {
        name: format!("{direction} of {}", bytes(size)),
        segments: vec![(0, length)],
    };
    for number in 0..count {
        if write {
            pattern::write(file, &shape, seed, number * size)?;
        } else {
            pattern::verify(file, &shape, seed, number * size)?;
        }
    }
    Ok(())
}

/// The growth of the counters on both sides.
struct Grown {
    client: Counters,
    target: Counters,
}

impl Grown {
    fn value(&self, side: Side, name: &str) -> i64 {
        let counters = match side {
            Client => &self.client,
            Target => &self.target,
        };
        counters.get(name).copied().unwrap_or(0)
    }
}

/// Returns the growth of the counters, once the target has also counted this many requests.
fn settled(lab: &mut Lab, before: &(Counters, Counters), write: bool, count: u64) -> Result<Grown> {
    let name = if write { "writes" } else { "reads" };
    let wanted = i64::try_from(count).unwrap_or(i64::MAX);
    let mut counted = Grown {
        client: Counters::new(),
        target: Counters::new(),
    };
    lab.wait(
        Duration::from_secs(20),
        &format!("both sides to count {count} {name}"),
        |lab| {
            let after = lab.counters()?;
            counted = Grown {
                client: grown(&before.0, &after.0),
                target: grown(&before.1, &after.1),
            };
            Ok(counted.value(Client, name) >= wanted && counted.value(Target, name) >= wanted)
        },
    )?;
    Ok(counted)
}

/// Returns the number of requests of this size to run: as many as requested, unless fewer fit.
fn count_of(context: &Context<'_>, size: u64) -> u64 {
    // A few large requests are as good as many small ones.
    let most = (context.lab.span / size).min((64 << 20) / size).max(1);
    context.args.requests.min(most)
}

/// Fails unless the drive on the target has the written data.
fn drive_holds(lab: &mut Lab, seed: u64, length: u64) -> Result<()> {
    let path = lab.path.clone();
    let found: u32 = lab.target.ask(Ask::Digest {
        path,
        offset: 0,
        length,
    })?;
    if found == pattern::digest(seed, 0, length) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Failed,
        "WRONG DATA: the drive does not hold what the client wrote and reads",
    ))
}

/// Runs requests that must use a data path, verifies them at both ends, and returns the growth of the counters.
fn carry(
    lab: &mut Lab,
    disk: &str,
    write: bool,
    size: u64,
    count: u64,
    seed: u64,
) -> Result<Grown> {
    // The file stays open: udev would inspect the disk after it was closed.
    let file = pattern::open(disk, true)?;
    if !write {
        on_processor(0, || requests(&file, true, size, count, seed))?;
    }
    let before = lab.counters()?;
    on_processor(0, || requests(&file, write, size, count, seed))?;
    let counted = settled(lab, &before, write, count)?;
    if write {
        on_processor(0, || requests(&file, false, size, count, seed))?;
    }
    drive_holds(lab, seed, size * count)?;
    Ok(counted)
}

fn way(context: &mut Context<'_>, way: &DataPathTest) -> Result<Outcome> {
    if iwarp(context.lab) && way.options != REGISTERED && way.options != LOCAL {
        let reason = "the device is iWARP's, which has no RDMA WRITE with an immediate value and no eager ring";
        return Ok(Outcome::NotPossible(reason.to_owned()));
    }
    let count = count_of(context, way.bytes);
    let seed = context
        .args
        .seed
        .wrapping_add(way.bytes)
        .wrapping_add(u64::from(way.write));
    let disk = connect(context.lab, &way.export, way.options)?;
    let counted = carry(context.lab, &disk, way.write, way.bytes, count, seed)?;
    judge(&counted, way.write, way.bytes, way.wants).map(Outcome::Pass)
}

fn iwarp(lab: &Lab) -> bool {
    lab.client_facts
        .devices
        .iter()
        .any(|device| device.kind.contains("RNIC"))
}

/// Compares the counters with the required growth; fails if they differ.
fn judge(counted: &Grown, write: bool, size: u64, wants: &[(Side, &str, Wants)]) -> Result<String> {
    let (requests, moved, direction) = if write {
        ("writes", "written_bytes", "writes")
    } else {
        ("reads", "read_bytes", "reads")
    };
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for &(side, name, wanted) in wants {
        let value = counted.value(side, name);
        let (each, all) = (counted.value(side, requests), counted.value(side, moved));
        let (is_so, due) = match wanted {
            Each => (value == each, format!("{each}")),
            EachOrMore => (value >= each, format!("{each} or more")),
            Bytes => (value == all, format!("{all}")),
            Wants::None => (value == 0, "0".to_owned()),
        };
        seen.push(format!("{name} {value}"));
        if !is_so {
            let whose = if matches!(side, Client) {
                "client"
            } else {
                "target"
            };
            wrong.push(format!("the {whose} counts {name} {value}, not {due}"));
        }
    }
    // A key that is not invalidated would leave the client's memory accessible.
    let (registered, closed) = (
        counted.value(Client, "registrations"),
        counted.value(Client, "remote_invalidations")
            + counted.value(Client, "local_invalidations"),
    );
    if registered != closed {
        wrong.push(format!(
            "of {registered} registrations {closed} were invalidated"
        ));
    }
    for (side, name) in [
        (Client, "errors"),
        (Target, "errors"),
        (Client, "protocol_errors"),
        (Target, "protocol_errors"),
    ] {
        if counted.value(side, name) != 0 {
            wrong.push(format!("{name} {}", counted.value(side, name)));
        }
    }
    let what = format!(
        "{} {direction} of {}",
        counted.value(Client, requests),
        bytes(size)
    );
    if wrong.is_empty() {
        return Ok(format!("{what} verified: {}", seen.join(", ")));
    }
    Err(Error::new(
        Kind::Failed,
        format!("{what}: {}", wrong.join("; ")),
    ))
}

fn target_cache(context: &mut Context<'_>) -> Result<Outcome> {
    const SIZE: u64 = 16384;
    let count = count_of(context, SIZE);
    let seed = context.args.seed ^ 0xcac4e;
    let export = Export {
        cache_mib: 16,
        ..Export::new("direct")
    };
    let disk = connect(context.lab, &export, REGISTERED)?;
    let first = carry(context.lab, &disk, false, SIZE, count, seed)?;
    let before = context.lab.counters()?;
    let file = pattern::open(&disk, false)?;
    on_processor(0, || requests(&file, false, SIZE, count, seed))?;
    let again = settled(context.lab, &before, false, count)?;
    let (hits, bytes) = (
        again.value(Target, "cache_hits"),
        again.value(Target, "bytes_from_cache"),
    );
    if hits == 0 || bytes == 0 {
        return Err(Error::new(
            Kind::Failed,
            "no line was found in the cache the second time",
        ));
    }
    let misses = first.value(Target, "cache_misses");
    Ok(Outcome::Pass(format!("{count} reads verified twice: first {misses} misses, then {hits} hits, {bytes} bytes without the drive")))
}

fn p2p(context: &mut Context<'_>, write: bool) -> Result<Outcome> {
    const SIZE: u64 = 65536;
    let count = count_of(context, SIZE);
    let disk = connect(context.lab, &Export::new("p2p"), REGISTERED)?;
    let ways = peers(context.lab)?;
    let Some(how) = ways.first().cloned() else {
        let why = "no PCI device lends memory that the drive and the RDMA device reach: `hcablk check` on the target";
        return Ok(Outcome::NotPossible(why.to_owned()));
    };
    let counted = carry(
        context.lab,
        &disk,
        write,
        SIZE,
        count,
        context.args.seed ^ 0x92f2,
    )?;
    let wants: &[_] = if how == "direct" {
        &[
            (Target, "p2p_bytes", Bytes),
            (Target, "p2p_fallbacks", Wants::None),
            (Target, "ram_bytes", Wants::None),
        ]
    } else {
        &[
            (Target, "p2p_bytes", Bytes),
            (Target, "p2p_fallbacks", Wants::None),
            (Target, "p2p_bounce_bytes", Bytes),
        ]
    };
    let seen = judge(&counted, write, SIZE, wants)?;
    if how == "direct" {
        return Ok(Outcome::Pass(format!(
            "{seen}; the RDMA device reaches the peer memory"
        )));
    }
    Ok(Outcome::NotPossible(format!(
        "the drive reaches the peer memory, the RDMA device does not: a processor copies ({seen})"
    )))
}
