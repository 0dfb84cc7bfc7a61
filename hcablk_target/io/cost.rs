// SPDX-License-Identifier: GPL-2.0

//! Computes how many bytes of kernel memory a queue pair needs besides its data.
//! [`memory`](crate::memory) charges that before it allocates any of it. Uses nothing but `core`:
//! its tests run on the host.
//!
//! The result is never less than the bytes allocated. Sizes of this module's own objects are exact,
//! rounded up to what the allocator returns: a power of two. Sizes of the objects of the kernel and
//! the RDMA drivers are the constants here, which are at least what mlx4, mlx5, rxe and siw
//! allocate; the number of places of a ring, and the bytes of each place, are powers of two.

/// Bytes of a page.
const PAGE: u64 = 4096;
/// A `struct bio`, a `struct kiocb` with its iterator, and a `struct work_struct`, with lock
/// debugging.
const REQUEST_OBJECTS: u64 = 256 + 256 + 128;
/// A `struct bio` and a `struct work_struct`.
const CHUNK_OBJECTS: u64 = 256 + 128;
/// Places for a request in the tables and lists of its queue pair.
const REQUEST_PLACES: u64 = 256;
/// Places for a chunk in those tables, and its trace event.
const CHUNK_PLACES: u64 = 32 + 128;
/// The description of a mapped page or buffer, in a list that may have doubled.
const BUFFER: u64 = 128;
/// A `struct bio_vec`.
const SEGMENT: u64 = 16;
/// A `struct scatterlist`.
const SCATTER: u64 = 32;
/// A memory region, without its pages.
const REGION: u64 = 1024;
/// A page of a memory region: the entries of the driver and the device, on siw and rxe up to 24
/// bytes.
const REGION_PAGE: u64 = 32;
/// A write that may be open in the eager ring, in two tables.
const OPEN_WRITE: u64 = 32;
/// A receive buffer in the list of waiting ones, and the entries with which it is posted.
const RECEIVED: u64 = 128;
/// A place of a send queue without its entries: the headers of a work request that registers
/// memory, and the driver's own record.
const SEND: u64 = 256;
/// A place of a receive queue without its entries.
const RECEIVE: u64 = 64;
/// A scatter-gather entry of a send or receive queue.
const ENTRY: u64 = 16;
/// A place of a completion queue.
const COMPLETION: u64 = 128;
/// The queue pair and completion queue of the driver, the connection manager's identifier and
/// resolved addresses, and the list of work requests not posted yet.
const FIXED: u64 = 32 << 10;

/// The numbers of objects of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Receive buffers.
    pub(super) credits: u64,
    /// Requests, in any state.
    pub(super) requests: u64,
    pub(super) chunks: u64,
    /// Work requests in the send queue, and scatter-gather entries of each.
    pub(super) sends: u64,
    pub(super) send_entries: u64,
    pub(super) receive_entries: u64,
    pub(super) completions: u64,
    /// Whether each receive buffer has a page for inline data.
    pub(super) inline: bool,
    /// The most pieces of memory of a request, and of a chunk.
    pub(super) pieces: u64,
    pub(super) chunk_pieces: u64,
    /// Pages of a request's memory region; 0: requests have no region.
    pub(super) sink_pages: u64,
    /// The queue pair's own transfer buffers, and the shared ones that it may retain.
    pub(super) buffers: u64,
    pub(super) kept: u64,
    /// Buffers and pages of the eager ring.
    pub(super) ring_buffers: u64,
    pub(super) ring_pages: u64,
    /// The most writes that may be open in the eager ring.
    pub(super) open_writes: u64,
}

/// Sizes in bytes of this module's objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) queue: u64,
    pub(super) request: u64,
    pub(super) chunk: u64,
    /// The buffer of one message.
    pub(super) message: u64,
}

/// Returns the size of the allocation for `bytes` bytes.
fn slab(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        _ => bytes.next_power_of_two().max(8),
    }
}

/// Returns the bytes of a ring with places for `count` work requests and for draining.
fn ring(count: u64, place: u64) -> u64 {
    (count + 2).next_power_of_two() * place.next_power_of_two()
}

/// Returns the bytes of the pages for `count` messages.
fn messages(count: u64, message: u64) -> u64 {
    (count * message).div_ceil(PAGE) * (PAGE + BUFFER)
}

fn region(pages: u64) -> u64 {
    match pages {
        0 => 0,
        _ => REGION + slab(pages * REGION_PAGE),
    }
}

/// Returns the bytes that a queue pair of these counts and sizes is charged.
pub(super) fn bytes(counts: &Counts, sizes: &Sizes) -> u64 {
    let segments = 2 * slab(counts.pieces * SEGMENT);
    let sink = match counts.sink_pages {
        0 => 0,
        pages => region(pages) + slab(counts.pieces * SCATTER) + slab(BUFFER),
    };
    let shared = slab(counts.pieces * 8);
    let request = slab(sizes.request) + REQUEST_OBJECTS + segments + shared + sink + REQUEST_PLACES;
    let chunk =
        slab(sizes.chunk) + CHUNK_OBJECTS + slab(counts.chunk_pieces * SEGMENT) + CHUNK_PLACES;
    let inline = if counts.inline { PAGE + BUFFER } else { 0 };
    let received = messages(counts.credits, sizes.message) + counts.credits * (inline + RECEIVED);
    let data = (counts.buffers + counts.ring_buffers) * BUFFER
        + slab(counts.ring_buffers * SCATTER)
        + region(counts.ring_pages)
        + slab(counts.kept * 8) * 2
        + counts.open_writes * OPEN_WRITE;
    let rings = ring(counts.sends, SEND + counts.send_entries * ENTRY)
        + ring(counts.credits, RECEIVE + counts.receive_entries * ENTRY)
        + ring(counts.completions, COMPLETION);
    FIXED
        + slab(sizes.queue)
        + counts.requests * request
        + messages(counts.requests, sizes.message)
        + counts.chunks * chunk
        + received
        + data
        + rings
}

/// Returns the bytes that a queue pair without data is charged: an object of `object` bytes, and
/// `receives` and `sends` messages of `message` bytes each.
pub(crate) fn bytes_of_messages(receives: u64, sends: u64, object: u64, message: u64) -> u64 {
    FIXED
        + slab(object)
        + messages(receives, message)
        + messages(sends, message)
        + ring(sends, SEND + ENTRY)
        + ring(receives, RECEIVE + ENTRY)
        + ring(sends + receives + 2, COMPLETION)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        queue: 4000,
        request: 1100,
        chunk: 400,
        message: 64,
    };

    /// Returns the counts of a queue pair on soft-RoCE, or with sinks on soft-iWARP.
    fn counts(credits: u64, sinks: bool) -> Counts {
        let requests = 2 * credits;
        let sends = requests * if sinks { 3 } else { 2 } + 34;
        Counts {
            credits,
            requests,
            chunks: 32,
            sends,
            send_entries: if sinks { 6 } else { 32 },
            receive_entries: 2,
            completions: sends + credits + 2,
            inline: true,
            pieces: 33,
            chunk_pieces: 9,
            sink_pages: if sinks { 256 } else { 0 },
            buffers: 32,
            kept: 640,
            ring_buffers: 64,
            ring_pages: 512,
            open_writes: 256,
        }
    }

    #[test]
    fn the_pages_for_small_writes_are_in_it() {
        for credits in [1, 7, 128, 1024] {
            for sinks in [false, true] {
                let with = counts(credits, sinks);
                let without = Counts {
                    inline: false,
                    ..with
                };
                let pages = bytes(&with, &SIZES) - bytes(&without, &SIZES);
                assert!(pages >= credits * PAGE);
            }
        }
    }

    #[test]
    fn rings_are_rounded_as_drivers_round_them() {
        // rxe: 34 + 512 places, each with 32 entries of 16 bytes after its header.
        assert_eq!(ring(546, SEND + 32 * ENTRY), 1024 * 1024);
        assert_eq!(ring(126, COMPLETION), 128 * 128, "draining needs places");
        assert_eq!(ring(127, COMPLETION), 256 * 128);
    }

    #[test]
    fn a_queue_pair_without_data_has_its_messages() {
        let few = bytes_of_messages(8, 32, 1000, 64);
        assert!(few >= FIXED + 1024 + 2 * PAGE);
        assert!(bytes_of_messages(8, 100, 1000, 64) > few);
        assert!(few < bytes(&counts(1, false), &SIZES));
    }

    #[test]
    fn more_of_anything_is_not_less() {
        let base = counts(128, true);
        let of = |change: fn(&mut Counts)| {
            let mut counts = base;
            change(&mut counts);
            bytes(&counts, &SIZES)
        };
        for more in [
            of(|c| c.credits += 1),
            of(|c| c.requests += 1),
            of(|c| c.chunks += 1),
            of(|c| c.sends *= 2),
            of(|c| c.send_entries *= 4),
            of(|c| c.completions *= 2),
            of(|c| c.pieces *= 2),
            of(|c| c.sink_pages *= 2),
            of(|c| c.buffers += 1),
            of(|c| c.ring_buffers += 1),
            of(|c| c.open_writes += 1),
        ] {
            assert!(more > bytes(&base, &SIZES));
        }
    }

    #[test]
    fn costs_match_the_documentation() {
        // docs/reference/configfs.md: about 3 MiB for a depth of 128, up to 25 for one of 1024.
        let mib = |credits| bytes(&counts(credits, false), &SIZES) as f64 / f64::from(1 << 20);
        assert!((2.5..4.5).contains(&mib(128)), "{}", mib(128));
        assert!((20.0..26.0).contains(&mib(1024)), "{}", mib(1024));
    }
}
