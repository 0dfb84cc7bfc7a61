// SPDX-License-Identifier: GPL-2.0

//! The arguments of the commands that show current activity: `stats`, `top`, `events`, `metrics`, `check` and `report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{value_parser, Args, ValueEnum};

use crate::error::{Error, Kind, Result};
use crate::events::Wanted;
use crate::names::VolumeName;
use crate::stats::Every;

/// The longest interval, in seconds.
const LONGEST: f64 = 86_400.0;

/// Arguments of `stats` and `target stats`.
#[derive(Args, Clone, Debug)]
pub struct StatsArgs {
    /// Only the disk or volume with this name; for a disk also /dev/hcablkN
    pub name: Option<String>,

    /// Show rates over intervals of this many seconds, 0.1 to 86400; the first line follows after one interval
    pub interval: Option<String>,

    /// End after this many intervals [default: continue until interrupted]
    pub count: Option<String>,

    /// Only the disk or volume with this name, if the name is a number
    #[arg(long = "name", value_name = "NAME", conflicts_with = "count")]
    pub named: Option<String>,
}

/// The output that `stats` shall print.
#[derive(Clone, Debug, PartialEq)]
pub struct StatsWanted<'a> {
    /// Only the disk or volume with this name.
    pub only: Option<&'a str>,
    /// Rates, with interval and count; else the totals so far.
    pub every: Option<Every>,
}

impl StatsArgs {
    /// Returns the requested output. A number is an interval, not a name.
    pub fn wanted(&self) -> Result<StatsWanted<'_>> {
        let mut words: Vec<&str> = [&self.name, &self.interval, &self.count]
            .into_iter()
            .filter_map(|word| word.as_deref())
            .collect();
        let only = match (&self.named, words.first()) {
            (Some(name), _) => Some(name.as_str()),
            (None, Some(first)) if first.parse::<f64>().is_err() => Some(words.remove(0)),
            (None, _) => None,
        };
        let every = match words[..] {
            [] => None,
            [interval] => Some(every(interval, None)?),
            [interval, count] => Some(every(interval, Some(count))?),
            _ => return Err(misused(format!("unexpected argument {}", words[2]))),
        };
        Ok(StatsWanted { only, every })
    }

    /// Returns the requested output, with a volume's name.
    pub fn of_volume(&self) -> Result<(Option<VolumeName>, Option<Every>)> {
        let wanted = self.wanted()?;
        let parse = |name: &str| name.parse::<VolumeName>().map_err(misused);
        Ok((wanted.only.map(parse).transpose()?, wanted.every))
    }
}

fn every(interval: &str, count: Option<&str>) -> Result<Every> {
    let seconds = interval.parse().ok();
    let seconds = seconds.filter(|seconds| (0.1..=LONGEST).contains(seconds));
    let Some(seconds) = seconds else {
        return Err(misused(format!(
            "the interval {interval:?} is not a number of seconds from 0.1 to {LONGEST}"
        )));
    };
    let count = count.map(|text| match text.parse::<u32>() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(misused(format!(
            "the count {text:?} is not a number of at least 1"
        ))),
    });
    Ok(Every {
        interval: Duration::from_secs_f64(seconds),
        count: count.transpose()?,
    })
}

fn misused(why: impl std::fmt::Display) -> Error {
    Error::new(Kind::Usage, why.to_string()).advise(
        "The order is name, seconds, number of intervals: hcablk stats data 1 10\n\
         A name that is a number: hcablk stats --name 7",
    )
}

/// Arguments of `top`.
#[derive(Args, Clone, Copy, Debug)]
pub struct TopArgs {
    /// Seconds between two updates
    #[arg(value_name = "INTERVAL", default_value_t = 1, value_parser = value_parser!(u32).range(1..=3600))]
    pub interval: u32,
}

impl TopArgs {
    /// Returns the time between two updates.
    pub fn interval(self) -> Duration {
        Duration::from_secs(self.interval.into())
    }
}

/// The source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EventSource {
    /// Uevents of disks: a disk appears, disappears, or changes its size; lasting states of disks and paths
    Uevents,
    /// Tracepoints: sessions of both sides and, with --all, queue pairs and brief states; needs root
    Tracepoints,
}

/// Arguments of `events`.
#[derive(Args, Clone, Copy, Debug)]
pub struct EventsArgs {
    /// Only events of this source [default: both; without tracefs: uevents, with a note on standard error]
    #[arg(long, value_name = "SOURCE")]
    pub only: Option<EventSource>,

    /// Also report each queue pair, and brief states (a path that connects or waits)
    #[arg(long)]
    pub all: bool,

    /// End after this many events, not counting the initial states
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    pub count: Option<u32>,
}

impl EventsArgs {
    /// Returns which events to report.
    pub fn wanted(self) -> Wanted {
        Wanted {
            uevents: self.only != Some(EventSource::Tracepoints),
            tracepoints: self.only != Some(EventSource::Uevents),
            all: self.all,
            count: self.count,
        }
    }
}

/// Arguments of `metrics`.
#[derive(Args, Clone, Debug)]
pub struct MetricsArgs {
    /// Write to this file atomically, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// The archive to write, which must not exist yet [default: hcablk-report-HOST-TIME.tar.gz in the current
    /// directory]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `check`.
#[derive(Args, Clone, Copy, Debug)]
pub struct DoctorArgs {
    /// Fail also if there are only warnings
    #[arg(long)]
    pub strict: bool,

    /// Leave out checks that passed
    #[arg(long)]
    pub quiet: bool,
}
