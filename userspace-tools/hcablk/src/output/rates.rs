// SPDX-License-Identifier: GPL-2.0

//! Rates as lines that stand below each other from one look to the next.

use std::fmt::Write as _;

use super::numbers::{bytes, count};
use crate::stats::Rates;
use crate::times::Duration;

/// What is in each column, how wide it is at least, and whether it is flushed right: 79 characters in all.
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

/// Formats a line, of which the first two columns are wider if these are.
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

/// Formats one look.
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
