// SPDX-License-Identifier: GPL-2.0

//! Computes the sizes of a queue from the request of its initiator and the limits of the device.

use super::{
    chunks::{
        chunk_buffers,
        Chunk, //
    },
    cost::{
        self,
        Counts,
        Sizes, //
    },
    queue::Queue,
    request::TargetRequest,
    split::{
        Split,
        CHUNKS_USUAL, //
    },
};
use crate::memory::{
    layout::BUFFER_BYTES,
    pool::MOST, //
};
use core::mem::size_of;
use hcablk_core::{
    memory::eager_ring::EagerRing,
    proto::{
        eager_ring::open_writes,
        message::BUFFER_LEN,
        TRANSFER_USUAL, //
    },
    rdma::{
        device::Attributes,
        qp::Capacity,
        sink::Sink, //
    },
};
use kernel::page::PAGE_SIZE;

/// Maximum number of RDMA work requests for the data of a request, for devices that accept few
/// entries in each.
pub(super) const PARTS_MAX: usize = 8;
/// Work requests of an RDMA READ into a sink: register, read, invalidate.
const SINK_REQUESTS: usize = 3;

/// Maximum number of chunks of a queue.
const CHUNKS_LIMIT: usize = 1024;

/// Maximum size of a request's inline data in bytes: one page.
const INLINE: u32 = PAGE_SIZE as u32;

/// Minimum size of a queue pair's eager ring in bytes. See [`EAGER_RING_MAX`].
const EAGER_RING_MIN: usize = 256 << 10;
/// Maximum size of a queue pair's eager ring in bytes, if the target can post RDMA READs.
const EAGER_RING_MAX: usize = 2 << 20;

/// The options that decide the sizes of a queue, together with the device: how the data of writes
/// arrives, and whether buffers are shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueOptions {
    /// RDMA READs, if any, need sinks.
    pub(crate) sinks: bool,
    /// The initiator may write.
    pub(crate) writes: bool,
    /// An eager ring may be granted: the drive tolerates that the memory changes while it is
    /// written.
    pub(crate) grants: bool,
    /// No RDMA READ is posted.
    pub(crate) no_read: bool,
    /// Transfer buffers beyond what the largest request needs are shared with other sessions.
    pub(crate) shares: bool,
}

/// Sizes of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueShape {
    /// Receive buffers.
    pub(crate) credits: u16,
    /// Bytes of the largest request.
    pub(crate) largest: u32,
    pub(super) requests: u32,
    /// The queue shares transfer buffers with others.
    pub(super) shares: bool,
    /// Transfer buffers of the queue's own.
    pub(super) buffers: usize,
    /// Bytes of transfer buffers that the queue may have, its own and shared.
    bytes: usize,
    pub(super) write_sges: usize,
    pub(super) read_sges: usize,
    /// Maximum size of a request's inline data in bytes.
    pub(super) inline: u32,
    /// RDMA READs put the data of writes into registered memory.
    pub(super) sinks: bool,
    /// How large requests are split.
    pub(super) split: Split,
    /// Chunks, each with a send queue slot of its own.
    pub(super) chunks: u16,
    /// Bytes of the eager ring.
    pub(super) eager_ring: usize,
    /// No RDMA READ is posted.
    pub(super) no_read: bool,
    /// The send queue slots of each request.
    slots: u32,
}

/// The work requests with which data moves on a device.
struct Parts {
    /// RDMA READs go into sinks.
    sinks: bool,
    /// RDMA READs go directly into transfer buffers.
    plain_reads: bool,
    /// Scatter-gather entries of an RDMA WRITE.
    write_sges: usize,
    /// Scatter-gather entries of an RDMA READ.
    read_sges: usize,
    /// RDMA WRITEs of the largest request.
    writes: usize,
    /// RDMA READs of the largest request.
    reads: usize,
}

impl Parts {
    /// Computes the work requests for requests of up to `largest` bytes, in `pieces` transfer
    /// buffers, on a device with these `attributes`. The error names the capability that the device
    /// lacks.
    fn fit(
        attributes: Attributes,
        largest: u32,
        pieces: usize,
        options: QueueOptions,
    ) -> Result<Self, &'static str> {
        let sges = |max: u32| (max as usize).clamp(1, pieces);
        let write_sges = sges(attributes.max_send_sge);
        let read_sges = sges(attributes.max_sge_rd.min(attributes.max_send_sge));
        let parts = Self {
            sinks: options.sinks && !options.no_read,
            plain_reads: !options.sinks && !options.no_read,
            write_sges,
            read_sges,
            writes: pieces.div_ceil(write_sges),
            reads: pieces.div_ceil(read_sges),
        };
        if parts.writes > PARTS_MAX || parts.plain_reads && parts.reads > PARTS_MAX {
            return Err("the RDMA device supports too few scatter-gather entries");
        }
        if parts.sinks && !attributes.fast_registration {
            return Err("the RDMA device cannot register memory by work requests");
        }
        if parts.sinks && attributes.max_fast_reg_pages < Sink::pages(largest) {
            return Err("the RDMA device's memory regions are too small");
        }
        Ok(parts)
    }

    /// Returns the send queue slots of a request. Its RDMA READs have completed before the response
    /// is posted; its RDMA WRITEs are posted together with the response.
    fn slots(&self) -> u32 {
        let rdma_read = match (self.sinks, self.plain_reads) {
            (true, _) => SINK_REQUESTS,
            (_, true) => self.reads,
            _ => 0,
        };
        rdma_read.max(self.writes + 1) as u32
    }

    /// Returns the scatter-gather entries of a chunk, which is one work request: an RDMA WRITE, or
    /// an RDMA READ into transfer buffers.
    fn chunk_sges(&self) -> usize {
        if self.plain_reads {
            self.write_sges.min(self.read_sges)
        } else {
            self.write_sges
        }
    }
}

impl QueueShape {
    /// Returns the size in bytes of the largest request of a session whose initiator asks for
    /// `asked`, with `bytes` for the transfer buffers and the eager ring of each of its queues. The
    /// result is less than [`TRANSFER_USUAL`] only if the device cannot move that with
    /// [`PARTS_MAX`] work requests, or register it for its own RDMA READ.
    pub(crate) fn largest(
        attributes: Attributes,
        bytes: usize,
        options: QueueOptions,
        asked: u32,
    ) -> u32 {
        let sges = if options.sinks || options.no_read {
            attributes.max_send_sge
        } else {
            attributes.max_send_sge.min(attributes.max_sge_rd)
        };
        let mut movable = (sges.max(1) as usize).saturating_mul(PARTS_MAX * BUFFER_BYTES);
        if options.sinks && !options.no_read {
            // With at least one page: a device without any is refused later, by `Parts::fit()`.
            let pages = (attributes.max_fast_reg_pages as usize).max(1);
            movable = movable.min(pages * PAGE_SIZE);
        }
        let movable = u32::try_from(movable).unwrap_or(u32::MAX);
        let usual = TRANSFER_USUAL.min(movable);
        if asked <= usual || options.no_read {
            return usual;
        }
        let eager_ring = ring_bytes(attributes, bytes, options).unwrap_or(0);
        let room = u32::try_from(bytes.saturating_sub(eager_ring)).unwrap_or(u32::MAX);
        let most = movable.min(room);
        asked.min(most - most % PAGE_SIZE as u32).max(usual)
    }

    /// Computes the sizes of a queue for `credits` requests in flight of up to `largest` bytes, as
    /// [`Self::largest`] returns it, with `bytes` for transfer buffers and the eager ring, reduced
    /// to the limits of the device. The error names the missing resource if the limits do not
    /// suffice for one request.
    pub(crate) fn new(
        attributes: Attributes,
        credits: u16,
        bytes: usize,
        largest: u32,
        options: QueueOptions,
        split: Split,
    ) -> Result<Self, &'static str> {
        let eager_ring = ring_bytes(attributes, bytes, options)?;
        let pieces = (largest as usize).div_ceil(BUFFER_BYTES);
        let parts = Parts::fit(attributes, largest, pieces, options)?;
        let most = (bytes.saturating_sub(eager_ring) / BUFFER_BYTES).max(pieces);
        let split = split.within(parts.chunk_sges().saturating_sub(1) * BUFFER_BYTES);
        let chunks = split.most(most * BUFFER_BYTES).min(CHUNKS_LIMIT);
        let mut shape = Self {
            credits,
            largest,
            requests: u32::from(credits) * 2,
            shares: options.shares,
            buffers: if options.shares { pieces } else { most },
            bytes,
            write_sges: parts.write_sges,
            read_sges: parts.read_sges,
            // A receive has one piece for the request and one for its data.
            inline: if attributes.max_recv_sge < 2 {
                0
            } else {
                INLINE
            },
            sinks: parts.sinks,
            split,
            chunks: chunks as u16,
            eager_ring,
            no_read: options.no_read,
            slots: parts.slots(),
        };
        shape.reduce_to(attributes)?;
        Ok(shape)
    }

    /// Halves chunks, then credits, until the device's queues have room for the work requests and
    /// their completions. Fails if there is not enough room for one request.
    fn reduce_to(&mut self, attributes: Attributes) -> Result<(), &'static str> {
        while self.sends() + 1 > attributes.max_qp_wr || self.completions() > attributes.max_cqe {
            if usize::from(self.chunks) > CHUNKS_USUAL {
                self.chunks /= 2;
                continue;
            }
            if self.credits == 1 {
                return Err("the RDMA device supports too few work requests");
            }
            self.credits /= 2;
            self.requests = u32::from(self.credits) * 2;
        }
        Ok(())
    }

    /// Returns the bytes of the queue's own transfer buffers and its eager ring.
    fn data(self) -> u64 {
        (self.buffers * BUFFER_BYTES + self.eager_ring) as u64
    }

    /// Returns the bytes of kernel memory that the queue needs besides its transfer buffers and
    /// eager ring: never less than the bytes allocated.
    pub(crate) fn overhead(self) -> u64 {
        let sinks = if self.sinks {
            Sink::pages(self.largest)
        } else {
            0
        };
        let counts = Counts {
            credits: self.credits.into(),
            requests: self.requests.into(),
            chunks: self.chunks.into(),
            sends: self.sends().into(),
            send_entries: self.write_sges.max(self.read_sges) as u64,
            receive_entries: 2,
            completions: self.completions().into(),
            inline: self.inline != 0,
            pieces: self.pieces() as u64,
            chunk_pieces: chunk_buffers(self.split.chunk()) as u64,
            sink_pages: sinks.into(),
            buffers: self.buffers as u64,
            // The lists of shared buffers have room for the buffers that all queues of the session
            // may borrow.
            kept: if self.shares { MOST as u64 } else { 0 },
            ring_buffers: (self.eager_ring / BUFFER_BYTES) as u64,
            ring_pages: (self.eager_ring / PAGE_SIZE) as u64,
            open_writes: open_writes(self.credits) as u64,
        };
        let sizes = Sizes {
            queue: size_of::<Queue>() as u64,
            request: size_of::<TargetRequest>() as u64,
            chunk: size_of::<Chunk>() as u64,
            message: BUFFER_LEN as u64,
        };
        cost::bytes(&counts, &sizes)
    }

    /// Returns all the bytes that the queue has for itself.
    pub(crate) fn reserved(self) -> u64 {
        self.data() + self.overhead()
    }

    /// Returns the bytes of shared buffers that the queue may borrow.
    pub(crate) fn wish(self) -> u64 {
        (self.bytes as u64).saturating_sub(self.data())
    }

    /// Returns the transfer buffers of the largest request.
    pub(crate) fn buffers_of_one(self) -> usize {
        (self.largest as usize).div_ceil(BUFFER_BYTES)
    }

    /// Returns the maximum number of pieces of memory of one request, in any kind of buffer.
    pub(crate) fn pieces(self) -> usize {
        let largest = self.largest as usize;
        let eager_ring = EagerRing::pieces(largest.min(self.eager_ring));
        eager_ring.max(largest.div_ceil(BUFFER_BYTES))
    }

    /// Returns the send queue slots: those of each request, of each chunk, of a keep-alive, and of
    /// the registration of the eager ring.
    pub(super) fn sends(self) -> u32 {
        self.requests * self.slots + u32::from(self.chunks) + 2
    }

    pub(super) fn completions(self) -> u32 {
        self.capacity().completions()
    }

    pub(super) fn capacity(self) -> Capacity {
        Capacity {
            sends: self.sends(),
            receives: self.credits.into(),
            send_entries: self.write_sges.max(self.read_sges) as u32,
            receive_entries: if self.inline == 0 { 1 } else { 2 },
        }
    }
}

/// Returns the bytes of the eager ring, out of `bytes` for all buffers. Usually a quarter. Without
/// RDMA READ half, and at least the size of the largest write.
fn ring_bytes(
    attributes: Attributes,
    bytes: usize,
    options: QueueOptions,
) -> Result<usize, &'static str> {
    let lacking = if !options.grants {
        Some("without RDMA READ its drive must accept data that changes meanwhile, and cache_mib must be 0")
    } else if !attributes.fast_registration {
        Some("the RDMA device cannot register memory by work requests")
    } else {
        None
    };
    if !options.writes {
        return Ok(0);
    }
    if let Some(lacking) = lacking {
        return if options.no_read { Err(lacking) } else { Ok(0) };
    }
    let largest = TRANSFER_USUAL as usize;
    if !options.no_read {
        let quarter = (bytes / 4).clamp(EAGER_RING_MIN, EAGER_RING_MAX);
        return Ok(EagerRing::fit(attributes, quarter));
    }
    if bytes < 2 * largest {
        return Err("without RDMA READ buffer_mib must be at least 2 for each of its queues");
    }
    if EagerRing::fit(attributes, largest) < largest {
        return Err("the RDMA device's memory regions are too small to do without RDMA READ");
    }
    Ok(EagerRing::fit(attributes, bytes / 2))
}
