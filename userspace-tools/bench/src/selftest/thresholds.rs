// SPDX-License-Identifier: GPL-2.0

//! Finds the best settings of this hardware: `small_read`, `eager_write` and the size of chunks,
//! from latencies with and without each.

use std::fs::File;
use std::time::Instant;

use hcablk::error::{Error, Kind, Result};
use serde_json::{json, Map, Value};

use super::ways::{connect, on_processor};
use super::{Check, Context, Outcome};
use crate::lab::Export;
use crate::page::{bytes, Axis, Curve, Page};
use crate::pattern::{self, Arena};
use crate::report;

/// The number of measurements of each size, in turns; the least mean counts, since disturbances only add time.
const ROUNDS: u32 = 3;
const SMALL: [u64; 5] = [4096, 8192, 16384, 32768, 65536];
const EAGER: [u64; 7] = [4096, 8192, 16384, 32768, 65536, 131_072, 262_144];
const CHUNKS: [u32; 5] = [0, 64, 128, 256, 512];
const LARGE: u64 = 1 << 20;

pub(super) fn checks() -> Vec<Check> {
    vec![Check {
        name: "thresholds",
        what: "measures small_read, eager_write and the chunk's size, and proposes them",
        run: measure,
    }]
}

/// Returns the least of several mean latencies, in nanoseconds.
fn latency(file: &File, write: bool, size: u64, count: u32) -> Result<f64> {
    let length = usize::try_from(size).unwrap_or(0);
    let mut arena = Arena::new(&[(0, length)]);
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for number in 0..u64::from(count) {
            let offset = number * size % (16 << 20);
            let done = if write {
                arena.write(file, offset)
            } else {
                arena.read(file, offset)
            };
            done.map_err(|error| {
                Error::new(
                    Kind::Failed,
                    format!("a request of {} fails: {error}", bytes(size)),
                )
            })?;
        }
        best = best.min(begun.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    }
    Ok(best)
}

/// Measures requests of some sizes with these options.
fn curve(
    context: &mut Context<'_>,
    export: &Export,
    options: &[&str],
    write: bool,
    sizes: &[u64],
) -> Result<Vec<f64>> {
    let disk = connect(context.lab, export, options)?;
    let file = pattern::open(&disk, true)?;
    let count = u32::try_from(context.args.requests).unwrap_or(32);
    let stop = context.lab.stop.clone();
    on_processor(0, || {
        sizes
            .iter()
            .map(|&size| {
                stop.check()?;
                latency(&file, write, size, count)
            })
            .collect()
    })
}

/// Returns the largest size up to which the first data path is never slower than the second, or 0.
fn threshold(sizes: &[u64], one: &[f64], other: &[f64]) -> u64 {
    let better = sizes
        .iter()
        .zip(one)
        .zip(other)
        .take_while(|((_, one), other)| one <= other);
    better.last().map_or(0, |((size, _), _)| *size)
}

fn measure(context: &mut Context<'_>) -> Result<Outcome> {
    let direct = Export::new("direct");
    let small = curve(context, &direct, &["--small-read", "65536"], false, &SMALL)?;
    let registered = curve(context, &direct, &["--small-read", "0"], false, &SMALL)?;
    let eager = curve(context, &direct, &["--eager-write", "262144"], true, &EAGER)?;
    let fetched = curve(
        context,
        &direct,
        &["--eager-write", "0", "--small-write", "0"],
        true,
        &EAGER,
    )?;
    let mut chunks = Vec::new();
    for chunk_kib in CHUNKS {
        let export = Export {
            chunk_kib,
            ..Export::new("direct")
        };
        chunks.push(
            curve(context, &export, &[], false, &[LARGE])?
                .first()
                .copied()
                .unwrap_or(f64::MAX),
        );
    }
    let small_read = threshold(&SMALL, &small, &registered);
    let eager_write = threshold(&EAGER, &eager, &fetched);
    let chunk = CHUNKS
        .iter()
        .zip(&chunks)
        .min_by(|one, other| one.1.total_cmp(other.1))
        .map_or(128, |(chunk, _)| *chunk);
    context.figures.insert(
        "thresholds".to_owned(),
        json!({
            "small_read": { "sizes": SMALL, "small_ns": small, "registered_ns": registered, "proposed": small_read },
            "eager_write": { "sizes": EAGER, "eager_ns": eager, "fetched_ns": fetched, "proposed": eager_write },
            "chunk_kib": { "chunks": CHUNKS, "read_of_1_mib_ns": chunks, "proposed": chunk },
        }),
    );
    let text = |size: u64| {
        if size == 0 {
            "0 B".to_owned()
        } else {
            bytes(size)
        }
    };
    let (small_read, eager_write, chunk) = (
        text(small_read),
        text(eager_write),
        text(u64::from(chunk) << 10),
    );
    context.proposal = Some(proposal(context, &small_read, &eager_write, &chunk));
    Ok(Outcome::Pass(format!(
        "proposed: small_read {small_read}, eager_write {eager_write}, chunk {chunk}"
    )))
}

fn proposal(context: &Context<'_>, small_read: &str, eager_write: &str, chunk: &str) -> String {
    let lab = &*context.lab;
    let (is_real, sentence) = report::times(lab);
    let warning = if is_real {
        ""
    } else {
        "# DO NOT USE THESE VALUES.\n"
    };
    format!(
        "# Measured by `hcablk bench selftest`, one request at a time. {sentence}\n{warning}\
         \n# For /etc/hcablk on the client {}: the keys of each [disk.NAME] of this target.\n\
         [disk.scratch]\naddress = \"{}\"\nsmall_read = \"{small_read}\"\neager_write = \"{eager_write}\"\n\
         \n# For /etc/hcablk on the target {}: the key of each [export.NAME].\n\
         [export.scratch]\ndevice = \"{}\"\nchunk = \"{chunk}\"\n",
        lab.client_facts.name, lab.address, lab.target_facts.name, lab.path
    )
}

/// Adds the plots of the measurements, if there are any.
pub(super) fn plots(page: &mut Page, figures: &Map<String, Value>) -> Result<()> {
    let Some(thresholds) = figures.get("thresholds") else {
        return Ok(());
    };
    page.heading("Thresholds");
    for (name, title, curves) in [
        (
            "small_read",
            "reads, one at a time",
            [
                ("small_ns", "by a small read"),
                ("registered_ns", "registered"),
            ],
        ),
        (
            "eager_write",
            "writes, one at a time",
            [("eager_ns", "eager"), ("fetched_ns", "fetched")],
        ),
    ] {
        let numbers = |name: &str, member: &str| -> Vec<f64> {
            let list = thresholds[name][member]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            list.iter().filter_map(Value::as_f64).collect()
        };
        let sizes = numbers(name, "sizes");
        let curves = curves.map(|(member, text)| Curve {
            name: text.to_owned(),
            points: sizes
                .iter()
                .copied()
                .zip(numbers(name, member).into_iter().map(|ns| ns / 1e3))
                .collect(),
        });
        page.plot(&format!("{title}: {name}"), Axis::Size, "µs", &curves)?;
    }
    let chunks = thresholds["chunk_kib"]["chunks"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let times = thresholds["chunk_kib"]["read_of_1_mib_ns"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let rows: Vec<Vec<String>> = chunks
        .iter()
        .zip(times)
        .map(|(chunk, ns)| {
            let chunk = chunk.as_u64().map_or(String::new(), |kib| {
                if kib == 0 {
                    "whole".to_owned()
                } else {
                    bytes(kib << 10)
                }
            });
            vec![chunk, format!("{:.1}", ns.as_f64().unwrap_or(0.0) / 1e3)]
        })
        .collect();
    page.table(&["chunk", "a read of 1 MiB, µs"], &rows);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::threshold;

    #[test]
    fn the_threshold_is_where_the_way_stops_being_better() {
        let sizes = [4, 8, 16];
        assert_eq!(threshold(&sizes, &[1.0, 2.0, 9.0], &[2.0, 2.0, 5.0]), 8);
        assert_eq!(threshold(&sizes, &[3.0, 1.0, 1.0], &[2.0, 2.0, 5.0]), 0);
        assert_eq!(threshold(&sizes, &[1.0, 1.0, 1.0], &[2.0, 2.0, 5.0]), 16);
    }
}
