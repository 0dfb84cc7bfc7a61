// SPDX-License-Identifier: GPL-2.0

//! Runs a trace through the caches, and collects the results.

use std::fmt;

use serde::Serialize;

use crate::policy::{Arc, Lru, Opt, Policy};
use crate::trace::Request;
use hcablk_core::logic::mq::lines::{Lines, Visit, LINE_SHIFT, SPAN};
use hcablk_core::logic::mq::Memory;

/// Allocates the cache's tables on the heap.
struct Heap;

impl Memory for Heap {
    type Of<T> = Vec<T>;
    type Error = std::convert::Infallible;

    fn make<T: Copy>(value: T, count: usize) -> Result<Vec<T>, Self::Error> {
        Ok(vec![value; count])
    }
}

/// The size of a drive that never changes.
const SIZE: u64 = u64::MAX;

/// The results of a cache, counted in lines, not in requests.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) policy: &'static str,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Lines that were replaced; only for the Multi-Queue algorithm.
    pub(crate) evictions: Option<u64>,
    pub(crate) hit_rate: f64,
}

impl Outcome {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn new(policy: &'static str, hits: u64, misses: u64, evictions: Option<u64>) -> Self {
        let all = hits + misses;
        Self {
            policy,
            hits,
            misses,
            evictions,
            hit_rate: if all == 0 {
                0.0
            } else {
                hits as f64 / all as f64
            },
        }
    }
}

/// A cache of one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cache {
    pub(crate) lines: u32,
    pub(crate) mib: u32,
    pub(crate) policies: Vec<Outcome>,
}

/// The totals of the trace, and the results of all caches.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) requests: usize,
    /// Lines read, except those of reads that bypass the cache.
    pub(crate) accesses: usize,
    /// The number of different lines.
    pub(crate) distinct: usize,
    pub(crate) caches: Vec<Cache>,
}

/// Returns the lines that a read looks up in the cache.
fn lines_of(request: &Request) -> std::ops::Range<u64> {
    let first = request.offset >> LINE_SHIFT;
    let end = ((request.offset + u64::from(request.length) - 1) >> LINE_SHIFT) + 1;
    if request.write || end - first > SPAN as u64 {
        return 0..0;
    }
    first..end
}

/// Runs the target's own code on the requests.
pub(crate) fn multi_queue(requests: &[Request], slots: u32) -> Outcome {
    let Ok(mut lines) = Lines::<Heap>::new(slots);
    let (mut hits, mut misses, mut evictions) = (0, 0, 0);
    for request in requests {
        let (offset, length) = (request.offset, request.length);
        let mut visit = if request.write {
            let mut visit = Visit::write(offset, length);
            while !lines.enter(&mut visit, SIZE) {}
            visit
        } else {
            lines.read(offset, length, SIZE)
        };
        hits += u64::from(visit.hits);
        misses += u64::from(visit.misses);
        evictions += u64::from(visit.evictions);
        while !lines.leave(&mut visit, true) {}
    }
    Outcome::new("mq", hits, misses, Some(evictions))
}

fn other(name: &'static str, policy: &mut dyn Policy, accesses: &[u64]) -> Outcome {
    let hits = accesses.iter().filter(|line| policy.access(**line)).count();
    Outcome::new(name, hits as u64, (accesses.len() - hits) as u64, None)
}

/// Runs the trace through caches of these sizes.
pub(crate) fn report(requests: &[Request], sizes: &[u32]) -> Report {
    let accesses: Vec<u64> = requests.iter().flat_map(lines_of).collect();
    let mut distinct = accesses.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let caches = sizes.iter().map(|&slots| {
        let room = slots as usize;
        Cache {
            lines: slots,
            mib: slots >> (20 - LINE_SHIFT),
            policies: vec![
                multi_queue(requests, slots),
                other("lru", &mut Lru::new(room), &accesses),
                other("arc", &mut Arc::new(room), &accesses),
                other("opt", &mut Opt::new(room, &accesses), &accesses),
            ],
        }
    });
    Report {
        version: 1,
        requests: requests.len(),
        accesses: accesses.len(),
        distinct: distinct.len(),
        caches: caches.collect(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} requests, {} lines read, {} different ones\n",
            self.requests, self.accesses, self.distinct
        )?;
        write!(f, "hits, %  ")?;
        for cache in &self.caches {
            write!(f, "{:>8} MiB", cache.mib)?;
        }
        writeln!(f)?;
        for (i, name) in ["MQ", "LRU", "ARC", "OPT"].iter().enumerate() {
            write!(f, "{name:<9}")?;
            for cache in &self.caches {
                write!(f, "{:>12.1}", cache.policies[i].hit_rate * 100.0)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::workload::generate;

    fn run(options: &str) -> Report {
        let words = format!("hcablk-cachesim run {options}");
        let cli = Cli::try_parse_from(words.split_whitespace()).unwrap();
        let Command::Run(args) = cli.command else {
            panic!();
        };
        report(&generate(&args.workload), &args.cache.slots())
    }

    fn hits(cache: &Cache, policy: &str) -> u64 {
        cache
            .policies
            .iter()
            .find(|o| o.policy == policy)
            .unwrap()
            .hits
    }

    const ALL: [&str; 5] = [
        "--requests 20000",
        "--requests 20000 --workload scan",
        "--requests 20000 --workload loop --lines 5000",
        "--requests 20000 --skew 0.5 --seed 9",
        "--requests 20000 --writes 30 --cache-mib 1,2,8",
    ];

    #[test]
    fn no_policy_beats_the_optimal_one() {
        for options in ALL {
            for cache in run(options).caches {
                let opt = hits(&cache, "opt");
                for policy in ["mq", "lru", "arc"] {
                    assert!(
                        hits(&cache, policy) <= opt,
                        "{options}: {policy} {}",
                        cache.mib
                    );
                }
            }
        }
    }

    #[test]
    fn every_line_read_is_a_hit_or_a_miss() {
        for options in ALL {
            let report = run(options);
            for outcome in report.caches.iter().flat_map(|cache| &cache.policies) {
                assert_eq!(outcome.hits + outcome.misses, report.accesses as u64);
            }
        }
    }

    #[test]
    fn mq_beats_lru_behind_another_cache() {
        for seed in 1..4 {
            for workload in ["second-level", "scan"] {
                let options = format!(
                    "--seed {seed} --requests 30000 --lines 8192 --client 512 --cache-mib 1,2,4 \
                     --workload {workload}"
                );
                for cache in run(&options).caches {
                    let (mq, lru) = (hits(&cache, "mq"), hits(&cache, "lru"));
                    assert!(
                        mq > lru + lru / 20,
                        "{options}: {} MiB: {mq}, {lru}",
                        cache.mib
                    );
                }
            }
        }
    }

    #[test]
    fn the_same_seed_is_the_same_stream() {
        let text = |options| serde_json::to_string(&run(options)).unwrap();
        assert_eq!(
            text("--requests 5000 --seed 3"),
            text("--requests 5000 --seed 3")
        );
        assert_ne!(
            text("--requests 5000 --seed 3"),
            text("--requests 5000 --seed 4")
        );
    }

    #[test]
    fn an_empty_trace_is_no_harm() {
        let report = report(&[], &[256]);
        assert_eq!((report.accesses, report.distinct), (0, 0));
        assert!(report.to_string().contains("0.0"));
    }
}
