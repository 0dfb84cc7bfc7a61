// SPDX-License-Identifier: GPL-2.0

//! When the parts of a request's data were at the drive, in memory and on the wire.
//!
//! A chunk is at the *drive* from its submission until the drive has finished. It is on the *wire* until its RDMA READ
//! or WRITE completes, from the posting, or from the completion of the ones that the same request posted before,
//! whichever is later. Between drive and wire it waits in *memory*. A request that moves whole is one chunk: the data
//! of a read is on the wire with the response, that of a registered write from the receipt of the request until the
//! drive starts.

use serde::Serialize;

use super::parse::Memory;
use super::sides::Served;

/// A part of a request's data; times are in nanoseconds since the first event of all, and null where they are not
/// known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(rename = "TraceChunk")
)]
pub struct Chunk {
    /// Bytes from the beginning of the request's data.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The memory in which the target held the data.
    pub memory: Memory,
    /// The result at the drive: 0, or a negative errno.
    pub status: i32,
    /// The target submitted the chunk to the drive.
    pub drive_start_ns: Option<i64>,
    /// The drive finished.
    pub drive_end_ns: Option<i64>,
    /// The target posted the RDMA READ or WRITE to the HCA.
    pub posted_ns: Option<i64>,
    /// The RDMA READ or WRITE was posted, and those posted before have completed.
    pub wire_start_ns: Option<i64>,
    /// The RDMA READ or WRITE completed.
    pub completed_ns: Option<i64>,
}

/// The beginning and the end of a span of time.
pub(super) type Span = (i64, i64);

impl Chunk {
    /// Returns all times of the chunk.
    pub(super) fn times_mut(&mut self) -> [&mut Option<i64>; 5] {
        [
            &mut self.drive_start_ns,
            &mut self.drive_end_ns,
            &mut self.posted_ns,
            &mut self.wire_start_ns,
            &mut self.completed_ns,
        ]
    }

    /// Returns the time of the chunk at the drive.
    pub(super) fn drive(&self) -> Option<Span> {
        Some((self.drive_start_ns?, self.drive_end_ns?))
    }

    /// Returns the time of the chunk on the wire.
    pub(super) fn wire(&self) -> Option<Span> {
        Some((self.wire_start_ns?, self.completed_ns?))
    }

    /// Returns the time for which the chunk waited in memory.
    pub(super) fn waits(&self) -> Option<Span> {
        let (drive, wire) = (self.drive()?, self.wire()?);
        let (from, to) = if drive.0 <= wire.0 {
            (drive.1, wire.0)
        } else {
            (wire.1, drive.0)
        };
        Some((from, to.max(from)))
    }
}

/// Makes the chunks of a request; none if the request moves no data.
pub(super) fn of_request(served: &Served) -> Vec<Chunk> {
    let mut chunks: Vec<_> = if served.chunks.is_empty() {
        whole(served).into_iter().collect()
    } else {
        let parts = served.chunks.iter();
        parts
            .map(|(offset, part)| Chunk {
                offset: *offset,
                bytes: part.bytes,
                memory: part.memory,
                status: part.status,
                drive_start_ns: part.drive_start,
                drive_end_ns: part.drive_end,
                posted_ns: part.posted,
                wire_start_ns: part.posted,
                completed_ns: part.completed,
            })
            .collect()
    };
    // Work requests of a send queue are carried out in order.
    let mut order: Vec<_> = (0..chunks.len())
        .filter(|index| chunks[*index].posted_ns.is_some())
        .collect();
    order.sort_by_key(|index| (chunks[*index].posted_ns, chunks[*index].completed_ns));
    let mut before = None;
    for index in order {
        let chunk = &mut chunks[index];
        let end = chunk.completed_ns;
        // Completions may be found late, and several at once.
        let start = chunk.posted_ns.max(before);
        chunk.wire_start_ns = end.map_or(start, |end| start.map(|start| start.min(end)));
        before = before.max(end);
    }
    chunks
}

fn whole(served: &Served) -> Option<Chunk> {
    if served.bytes == 0 || !matches!(served.op.as_str(), "read" | "write") {
        return None;
    }
    let (posted, completed) = match (served.op.as_str(), served.way.as_str()) {
        ("read", _) => (served.answered, served.completed),
        ("write", "key") => (Some(served.received), served.drive_start),
        _ => (None, None),
    };
    Some(Chunk {
        offset: 0,
        bytes: served.bytes,
        memory: served.memory,
        status: 0,
        drive_start_ns: served.drive_start,
        drive_end_ns: served.drive_end,
        posted_ns: posted,
        wire_start_ns: posted,
        completed_ns: completed,
    })
}

/// Returns for how long the drive, the wire, and both were busy with chunks.
pub(super) fn busy(chunks: &[Chunk]) -> (i64, i64, i64) {
    let drive = union(chunks.iter().filter_map(Chunk::drive).collect());
    let wire = union(chunks.iter().filter_map(Chunk::wire).collect());
    let mut both = 0;
    for one in &drive {
        for other in &wire {
            both += (one.1.min(other.1) - one.0.max(other.0)).max(0);
        }
    }
    let sum = |spans: &[Span]| spans.iter().map(|(from, to)| to - from).sum();
    (sum(&drive), sum(&wire), both)
}

/// Merges spans that overlap or touch.
fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut all: Vec<Span> = Vec::new();
    for span in spans {
        match all.last_mut() {
            Some(last) if last.1 >= span.0 => last.1 = last.1.max(span.1),
            _ => all.push(span),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(drive: Span, posted: i64, completed: i64) -> Chunk {
        Chunk {
            offset: 0,
            bytes: 4096,
            memory: Memory::Ram,
            status: 0,
            drive_start_ns: Some(drive.0),
            drive_end_ns: Some(drive.1),
            posted_ns: Some(posted),
            wire_start_ns: Some(posted),
            completed_ns: Some(completed),
        }
    }

    #[test]
    fn how_long_both_are_busy() {
        let chunks = [
            chunk((0, 10), 10, 25),
            chunk((0, 20), 25, 40),
            chunk((0, 30), 40, 55),
        ];
        assert_eq!(busy(&chunks), (30, 45, 20));
        assert_eq!(chunks[1].waits(), Some((20, 25)));
        assert_eq!(busy(&[]), (0, 0, 0));
    }

    #[test]
    fn a_write_waits_for_the_drive() {
        let write = chunk((30, 50), 0, 20);
        assert_eq!(write.waits(), Some((20, 30)));
    }
}
