// SPDX-License-Identifier: GPL-2.0

//! The parser. Its help is the manual.

#![expect(clippy::doc_markdown, reason = "help texts are read in terminals")]

use std::path::PathBuf;

use clap::{value_parser, Args, Parser, Subcommand, ValueEnum};

use hcablk_core::logic::mq::lines::LINE_SHIFT;

/// Simulate the cache of an hcablk target with a stream of requests
///
/// A target can cache data of a volume in its memory (`hcablk target export --cache-mib`). It sees
/// only the misses of its clients' own caches: the data worth caching is not the most recently
/// used, as an LRU cache assumes, but the most frequently used. The target uses the Multi-Queue
/// algorithm (MQ); this command runs the very code of the kernel module on a trace and compares it
/// with LRU and ARC, and with the best possible algorithm (OPT, which knows the future).
///
/// The unit is the line, 4 KiB. Reads of more than 17 lines bypass the cache. Writes add nothing to
/// it: they change the lines that it has.
#[derive(Debug, Parser)]
#[command(name = "hcablk-cachesim", version, max_term_width = 100, after_long_help = HELP)]
pub(crate) struct Cli {
    /// The command to run
    #[command(subcommand)]
    pub(crate) command: Command,
}

const HELP: &str = "\
Examples:
  hcablk-cachesim run                          a second-level stream, some cache sizes
  hcablk-cachesim run --workload loop --cache-mib 8,16
  hcablk-cachesim run --trace trace.csv --cache-mib 256 --json
  hcablk-cachesim generate --seed 7 --requests 1000 --format fio --file /dev/hcablk0 > log
  fio --name=replay --ioengine=psync --direct=1 --read_iolog=log

Traces, a request a line, the fields separated by commas or white space:
  OP OFFSET LENGTH                             OP is r, w, read or write; bytes
  FILE OP OFFSET LENGTH                        fio's iolog; its other lines are ignored
  TIME,HOST,DISK,OP,OFFSET,LENGTH,LATENCY      as MSR Cambridge's
Lines that begin with # are ignored.

To record one on a client: `blktrace -d /dev/hcablk0 -a issue -o - | blkparse -i - -f '%d %S %n\\n'`
gives sectors of 512 bytes; multiply by 512.";

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a trace, or a stream made from a seed, through caches, and show the hit rates
    Run(RunArgs),
    /// Write a stream made from a seed as a trace
    Generate(GenerateArgs),
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The trace: a file, or - for standard input [default: a stream made from a seed]
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// The sizes of the cache
    #[command(flatten)]
    pub(crate) cache: CacheArgs,

    /// Print JSON: one object with "version": 1
    #[arg(long)]
    pub(crate) json: bool,

    /// The stream
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
}

/// The sizes of caches.
#[derive(Args, Debug)]
pub(crate) struct CacheArgs {
    /// MiB of the cache, as in `hcablk target export --cache-mib`; with several sizes, one column
    /// for each
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_value = "8,16,32,64",
        value_parser = value_parser!(u32).range(1..=65536))]
    pub(crate) cache_mib: Vec<u32>,
}

impl CacheArgs {
    /// Returns the number of lines of each cache.
    pub(crate) fn slots(&self) -> Vec<u32> {
        let lines = |mib: &u32| mib << (20 - LINE_SHIFT);
        self.cache_mib.iter().map(lines).collect()
    }
}

/// Arguments of `generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// The format of the trace
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    pub(crate) format: Format,

    /// The file for fio
    #[arg(long, value_name = "PATH", default_value = "/dev/hcablk0")]
    pub(crate) file: String,

    /// The stream
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
}

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// OP,OFFSET,LENGTH
    Csv,
    /// For fio --read_iolog
    Fio,
}

/// A kind of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// The misses of a client's LRU cache for skewed accesses (Zipf)
    SecondLevel,
    /// The same, and sometimes a long sequential scan of lines that are never read again
    Scan,
    /// All lines in order, repeatedly
    Loop,
}

/// The kind of stream.
#[derive(Args, Debug)]
pub(crate) struct WorkloadArgs {
    /// The kind of the stream
    #[arg(long, value_enum, default_value_t = Workload::SecondLevel)]
    pub(crate) workload: Workload,

    /// The seed of the random numbers: the same seed gives the same stream
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Number of requests, of one line each
    #[arg(long, value_name = "COUNT", default_value_t = 200_000,
        value_parser = value_parser!(u32).range(1..=100_000_000))]
    pub(crate) requests: u32,

    /// Number of different lines
    #[arg(long, value_name = "COUNT", default_value_t = 65_536,
        value_parser = value_parser!(u32).range(1..=16_777_216))]
    pub(crate) lines: u32,

    /// Lines in the client's cache
    #[arg(long, value_name = "COUNT", default_value_t = 4_096)]
    pub(crate) client: u32,

    /// The skew of accesses: the exponent of Zipf's law
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.9)]
    pub(crate) skew: f64,

    /// Percentage of requests that are writes
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=100))]
    pub(crate) writes: u32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }
}
