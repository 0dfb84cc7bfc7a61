// SPDX-License-Identifier: GPL-2.0

//! One request for a terminal of 80 columns: its events with their times, and a line for each
//! chunk.

use std::fmt::Write as _;

use super::list::{duration, size};
use super::merge::MergedRequest;

/// The width of a chunk's bar, in characters.
const BAR: usize = 44;

/// Formats a request. Writing to a string cannot fail.
pub fn of_request(request: &MergedRequest) -> String {
    let (begin, end) = request.span();
    let mut text = format!(
        "request {}: {} of {} at sector {}, by {}, {}\n\n",
        request.number,
        request.op,
        size(request.bytes),
        request.sector,
        request.way,
        if request.is_chunked {
            format!("in {} chunks", request.chunks.len())
        } else {
            "whole".to_owned()
        }
    );
    let client = request.client.as_deref().unwrap_or("client");
    let times = &request.times;
    let mut steps = vec![
        (times.queued_ns, client, "queued"),
        (times.sent_ns, client, "sent"),
        (times.received_ns, "target", "received"),
        (times.drive_start_ns, "target", "drive starts"),
        (times.drive_end_ns, "target", "drive finishes"),
        (times.target_answered_ns, "target", "responds"),
        (times.answered_ns, client, "response arrives"),
        (
            times.target_completed_ns,
            "target",
            "the response's send has completed",
        ),
        (times.completed_ns, client, "completed"),
    ];
    steps.retain(|(at, ..)| at.is_some());
    steps.sort_by_key(|(at, ..)| *at);
    for (at, side, what) in steps {
        let at = duration(at.unwrap_or(begin) - begin);
        let _ = writeln!(text, "{at:>11}  {side:<8}  {what}");
    }
    if let Some(off) = request.uncertainty_ns {
        let _ = writeln!(
            text,
            "\nThe times of {client} and those of the target may be off by {} from each other.",
            duration(off)
        );
    }
    if request.chunks.is_empty() {
        return text;
    }
    let _ = writeln!(
        text,
        "\n{:>9} {:>8} {:<8} {BAR_HEADING}",
        "OFFSET",
        "SIZE",
        "MEMORY",
        BAR_HEADING = format_args!("0{:>width$}", duration(end - begin), width = BAR - 1)
    );
    for chunk in &request.chunks {
        let mut bar = vec![' '; BAR];
        for (span, mark) in [
            (chunk.waits(), '.'),
            (chunk.drive(), 'D'),
            (chunk.wire(), 'w'),
        ] {
            if let Some((from, to)) = span.filter(|(from, to)| mark != '.' || from < to) {
                let place = |at: i64| cell(at - begin, end - begin);
                bar[place(from)..=place(to)].fill(mark);
            }
        }
        let bar: String = bar.into_iter().collect();
        let line = format!(
            "{:>9} {:>8} {:<8} {}",
            size(chunk.offset),
            size(chunk.bytes),
            chunk.memory.name(),
            bar
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(
        text,
        "\nD drive ({})   . waits   w wire ({})   both at once: {}",
        duration(request.drive_ns),
        duration(request.wire_ns),
        duration(request.both_ns)
    );
    text
}

/// Returns the position of a time in a bar.
fn cell(at: i64, all: i64) -> usize {
    let last = BAR - 1;
    let scaled = i128::from(at) * i128::try_from(last).unwrap_or(0) / i128::from(all.max(1));
    usize::try_from(scaled).unwrap_or(0).min(last)
}
