// SPDX-License-Identifier: GPL-2.0

//! The rates of disks and volumes in an interval: as JSON, and as lines whose columns align from one interval to the
//! next.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::numbers::{bytes, count};
use crate::times::{Class, Duration, StateTimes};

/// Operations per second, rounded to whole numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PerSecond {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes, discards and writes of zeroes.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that ended with an error.
    pub errors: u64,
}

/// The durations of the measured requests in one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct StateRates {
    /// The state.
    pub state: String,
    /// The number of requests that were in the state.
    pub count: u64,
    /// The sum of the durations, in nanoseconds.
    pub total_ns: u64,
    /// The classes that are not empty, in ascending order.
    pub classes: Vec<Class>,
}

/// The rates of one disk or volume in an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Rates {
    /// The name of the disk or volume.
    pub name: String,
    /// The state of a disk; of a volume `enabled` or `disabled`.
    pub state: String,
    /// The disk's requests in flight; a volume has no such count.
    pub in_flight: Option<u64>,
    /// Operations per second.
    pub per_second: PerSecond,
    /// Mean latency of a request in nanoseconds; `null` unless times are measured.
    pub mean_ns: Option<u64>,
    /// The durations by state, if they are measured.
    pub states: Vec<StateRates>,
    /// The growth of each counter.
    pub grown: BTreeMap<String, u64>,
}

impl From<&StateRates> for StateTimes {
    fn from(rates: &StateRates) -> Self {
        Self {
            state: rates.state.clone(),
            count: rates.count,
            total_ns: rates.total_ns,
            classes: rates.classes.clone(),
        }
    }
}

/// The heading of each column, its smallest width, and whether it is aligned right: 79 characters in all.
const COLUMNS: [(&str, usize, bool); 10] = [
    ("NAME", 10, false),
    ("STATE", 8, false),
    ("FLIGHT", 6, true),
    ("READ/s", 6, true),
    ("WRITE/s", 7, true),
    ("OTHER/s", 7, true),
    ("READ-B", 6, true),
    ("WRITE-B", 7, true),
    ("MEAN", 8, true),
    ("ERR/s", 5, true),
];

/// Formats a line; its first two columns widen with their content.
fn line<'a>(cells: impl IntoIterator<Item = &'a str>, wider: [usize; 2]) -> String {
    let mut line = String::new();
    for (column, (cell, (_, width, is_right))) in cells.into_iter().zip(COLUMNS).enumerate() {
        let width = width.max(wider.get(column).copied().unwrap_or(0));
        // Writing to a string cannot fail.
        let _ = if is_right {
            write!(line, "{cell:>width$} ")
        } else {
            write!(line, "{cell:<width$} ")
        };
    }
    format!("{}\n", line.trim_end())
}

/// Formats the rates of one interval.
pub(super) fn lines(all: &[Rates], heading: bool) -> String {
    let longest = |text: fn(&Rates) -> &str| {
        let lengths = all.iter().map(|rates| text(rates).chars().count());
        lengths.max().unwrap_or(0)
    };
    let wider = [longest(|rates| &rates.name), longest(|rates| &rates.state)];
    let mut text = String::new();
    if heading {
        text.push_str(&line(COLUMNS.map(|(name, ..)| name), wider));
    }
    for rates in all {
        let rate = &rates.per_second;
        let cells = [
            rates.name.clone(),
            rates.state.clone(),
            rates.in_flight.map_or_else(|| "-".to_owned(), count),
            count(rate.reads),
            count(rate.writes),
            count(rate.others),
            bytes(rate.read_bytes),
            bytes(rate.written_bytes),
            rates
                .mean_ns
                .map_or_else(|| "-".to_owned(), |mean| Duration(mean).to_string()),
            count(rate.errors),
        ];
        text.push_str(&line(cells.iter().map(String::as_str), wider));
    }
    text
}
