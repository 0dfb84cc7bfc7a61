// SPDX-License-Identifier: GPL-2.0

//! Recordings and requests as rows of tables.

use super::merge::{memory_of, Machine, MergedRequest};
use crate::times::Duration;

/// Formats a duration that is not negative.
pub(super) fn duration(ns: i64) -> String {
    Duration(u64::try_from(ns).unwrap_or(0)).to_string()
}

fn signed(ns: i64) -> String {
    let sign = if ns < 0 { '-' } else { '+' };
    format!("{sign}{}", Duration(ns.unsigned_abs()))
}

/// Formats a number of bytes in the largest unit, up to MiB, of which it is a multiple.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes != 0 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes != 0 && bytes % 1024 == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Makes the rows of both tables; the first of each is its heading.
pub fn table_rows(machines: &[Machine], requests: &[MergedRequest]) -> [Vec<Vec<String>>; 2] {
    let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
    let mut first = vec![row(&["MACHINE", "EVENTS", "LOST", "REQUESTS", "CLOCK"])];
    for machine in machines {
        let clock = match (machine.ahead_ns, machine.uncertainty_ns) {
            (Some(ahead), Some(off)) => {
                format!("{} from the target's, +-{}", signed(ahead), duration(off))
            }
            (Some(_), None) => "no request in common".to_owned(),
            (None, _) => "the target's".to_owned(),
        };
        first.push(vec![
            machine.host.clone(),
            machine.events.to_string(),
            machine.lost.to_string(),
            machine.matched.to_string(),
            clock,
        ]);
    }
    let mut second = vec![row(&[
        "REQUEST", "CLIENT", "OP", "SECTOR", "SIZE", "WAY", "CHUNKS", "MEMORY", "TIME", "DRIVE",
        "WIRE", "BOTH",
    ])];
    for request in requests {
        let (begin, end) = request.span();
        second.push(vec![
            request.number.to_string(),
            request.client.clone().unwrap_or_else(|| "-".to_owned()),
            request.op.clone(),
            request.sector.to_string(),
            size(request.bytes),
            request.way.clone(),
            if request.is_chunked {
                request.chunks.len().to_string()
            } else {
                "whole".to_owned()
            },
            memory_of(request).name().to_owned(),
            duration(end - begin),
            duration(request.drive_ns),
            duration(request.wire_ns),
            duration(request.both_ns),
        ]);
    }
    [first, second]
}
