// SPDX-License-Identifier: GPL-2.0

//! `trace`: the arguments of its commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{value_parser, Args, Subcommand};

use crate::trace::{Show, Until, DRIFT_PPM};

/// A command about traces.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Record the events of each request and each chunk, through tracefs
    ///
    /// Other users of tracefs are not disturbed. The command needs root, and ends at its limit or when it is
    /// interrupted. A recording has 400000 events at most, about ten for each request and four for each chunk.
    #[command(after_help = "\
Examples:
  hcablk trace record --seconds 5 -o client.trace
  hcablk trace record --requests 100 -o target.trace")]
    Record(RecordArgs),

    /// Merge the recordings of a target and its clients, and show them on one clock
    ///
    /// The clocks of the machines are aligned with the requests that both sides have recorded: none is received before
    /// it is sent. The possible error of this alignment is shown. DRIVE, WIRE and BOTH are the times for which the
    /// target's drive, its network, and both at once were busy with a request.
    #[command(after_help = "\
Examples:
  hcablk trace show target.trace client.trace
  hcablk trace show target.trace client.trace --request 3
  hcablk trace show target.trace client.trace --svg largest.svg --perfetto all.json")]
    Show(ShowTraceArgs),
}

/// Arguments of `trace record`.
#[derive(Args, Clone, Debug)]
pub struct RecordArgs {
    /// End after N seconds
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=86_400))]
    pub seconds: Option<u32>,

    /// End when N requests have ended on this machine
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..), conflicts_with = "seconds")]
    pub requests: Option<u64>,

    /// Write the recording to this file
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
}

impl RecordArgs {
    /// Returns the limits at which the recording ends.
    pub fn until(&self) -> Until {
        Until {
            time: self
                .seconds
                .map(|seconds| Duration::from_secs(seconds.into())),
            requests: self.requests,
        }
    }
}

/// Arguments of `trace show`.
#[derive(Args, Clone, Debug)]
pub struct ShowTraceArgs {
    /// The recordings: one of a target, and those of its clients
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Only this request, with all its events
    #[arg(long, value_name = "N")]
    pub request: Option<usize>,

    /// Draw the request of --request, or the largest one, as a picture in SVG to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Write all requests in the trace event format, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,

    /// The largest difference between the rates of two clocks, in millionths
    #[arg(long, value_name = "PPM", default_value_t = DRIFT_PPM, value_parser = value_parser!(u32).range(0..=100_000))]
    pub drift: u32,
}

impl ShowTraceArgs {
    /// Returns the requested view.
    pub fn wanted(&self) -> Show<'_> {
        Show {
            files: &self.files,
            request: self.request,
            svg: self.svg.as_deref(),
            perfetto: self.perfetto.as_deref(),
            drift: self.drift,
        }
    }
}
