// SPDX-License-Identifier: GPL-2.0

//! How large a queue is: what was asked for and what the device allows.

use super::{
    cost::{
        self,
        Counts,
        Sizes, //
    },
    grain::{
        grain_chunks,
        Grain, //
    },
    grains::GRAINS_USUAL,
    pool::MOST,
    Cut,
    Queue, //
};
use crate::io::Io;
use core::mem::size_of;
use hcablk_core::{
    granted::Granted,
    proto::{
        grant::open_writes,
        message::BUFFER_LEN,
        TRANSFER_MAX,
        TRANSFER_USUAL, //
    },
    rdma::{
        device::Attributes,
        qp::{
            Capacity,
            QueuePair, //
        },
        sink::Sink, //
    },
};
use kernel::page::PAGE_SIZE;

/// log2 of the pages of a transfer buffer.
pub(super) const CHUNK_ORDER: u32 = 3;
/// Bytes of a transfer buffer.
pub(crate) const CHUNK_BYTES: usize = PAGE_SIZE << CHUNK_ORDER;
/// Transfer buffers of the largest request.
pub(crate) const CHUNKS_MAX: usize = (TRANSFER_MAX as usize).div_ceil(CHUNK_BYTES);
/// Transfer buffers of the largest request, unless an initiator asks for more.
pub(super) const CHUNKS_USUAL: usize = (TRANSFER_USUAL as usize).div_ceil(CHUNK_BYTES);
/// RDMA work requests that a request may be split into, for devices that take
/// few entries in each.
pub(super) const PARTS_MAX: usize = 8;
/// Work requests of a fetch into a sink: register, read, invalidate.
const SINK_REQUESTS: usize = 3;

/// Grains of a queue at most.
const GRAINS_LIMIT: usize = 1024;

/// Bytes of data that a request may bring with it, a page.
const INLINE: u32 = PAGE_SIZE as u32;

/// Granted memory of a queue pair: at least, and at most when data can be fetched.
const GRANTED_MIN: usize = 256 << 10;
/// See [`GRANTED_MIN`].
const GRANTED_MAX: usize = 2 << 20;

/// How the data of writes comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// It may be fetched, by way of sinks if so.
    pub(crate) sinks: bool,
    /// There are any.
    pub(crate) writes: bool,
    /// Memory may be granted: it can change while it is written.
    pub(crate) grants: bool,
    /// Nothing is fetched.
    pub(crate) no_read: bool,
    /// Transfer buffers beyond what the largest request needs are shared with other sessions.
    pub(crate) shares: bool,
}

/// Sizes of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Receive buffers.
    pub(crate) credits: u16,
    /// Bytes of the largest request.
    pub(crate) largest: u32,
    pub(super) ios: u32,
    /// It shares transfer buffers with others.
    pub(super) shares: bool,
    /// Transfer buffers of its own.
    pub(super) buffers: usize,
    /// Bytes that it may have, its own and shared.
    bytes: usize,
    pub(super) write_entries: usize,
    pub(super) read_entries: usize,
    /// Bytes of data that a request may bring with it.
    pub(super) inline: u32,
    /// The data of writes is fetched into registered memory.
    pub(super) sinks: bool,
    /// How large requests are cut.
    pub(super) cut: Cut,
    /// Grains, each with a send queue slot of its own.
    pub(super) grains: u16,
    /// Bytes of granted memory.
    pub(super) granted: usize,
    /// Nothing is fetched.
    pub(super) no_read: bool,
    /// Send queue slots of a request.
    slots: u32,
}

impl Shape {
    /// Bytes of the largest request of a session whose initiator would like to ask for
    /// `asked`, with `bytes` for the transfer buffers and granted memory of each of its
    /// queues: never less than the usual.
    pub(crate) fn largest(attributes: Attributes, bytes: usize, ways: Ways, asked: u32) -> u32 {
        if asked <= TRANSFER_USUAL || ways.no_read {
            return TRANSFER_USUAL;
        }
        let granted = granted(attributes, bytes, ways).unwrap_or(0);
        let (entries, registered) = if ways.sinks {
            let pages = attributes.max_fast_reg_pages as usize;
            (attributes.max_send_sge, pages * PAGE_SIZE)
        } else {
            let both = attributes.max_send_sge.min(attributes.max_sge_rd);
            (both, usize::MAX)
        };
        let most = bytes
            .saturating_sub(granted)
            .min((entries as usize).saturating_mul(PARTS_MAX * CHUNK_BYTES))
            .min(registered);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        asked
            .min(most - most % PAGE_SIZE as u32)
            .max(TRANSFER_USUAL)
    }

    /// What a device allows of `credits` requests in flight of up to `largest` bytes, as
    /// [`Self::largest`] has said, with `bytes` for transfer buffers and granted
    /// memory; what is lacking when that is not enough for one.
    pub(crate) fn new(
        attributes: Attributes,
        credits: u16,
        bytes: usize,
        largest: u32,
        ways: Ways,
        cut: Cut,
    ) -> Result<Self, &'static str> {
        let sinks = ways.sinks && !ways.no_read;
        let granted = granted(attributes, bytes, ways)?;
        let chunks = (largest as usize).div_ceil(CHUNK_BYTES);
        let entries = |max: u32| (max as usize).clamp(1, chunks);
        let write_entries = entries(attributes.max_send_sge);
        let read_entries = entries(attributes.max_sge_rd.min(attributes.max_send_sge));
        let write_parts = chunks.div_ceil(write_entries);
        let read_parts = chunks.div_ceil(read_entries);
        let plain_reads = !sinks && !ways.no_read;
        if write_parts > PARTS_MAX || plain_reads && read_parts > PARTS_MAX {
            return Err("the RDMA device takes too few scatter-gather entries");
        }
        if sinks && !attributes.fast_registration {
            return Err("the RDMA device cannot register memory by work requests");
        }
        if sinks && attributes.max_fast_reg_pages < Sink::pages(largest) {
            return Err("the RDMA device's memory regions are too small");
        }
        // Data is fetched, and that has completed before the answer is posted;
        // or it is written, together with the answer.
        let fetch = match (sinks, plain_reads) {
            (true, _) => SINK_REQUESTS,
            (_, true) => read_parts,
            _ => 0,
        };
        let slots = fetch.max(write_parts + 1) as u32;
        let most = (bytes.saturating_sub(granted) / CHUNK_BYTES).max(chunks);
        let buffers = if ways.shares { chunks } else { most };
        // A grain is one work request, written, or fetched if that is by grains.
        let least_entries = if plain_reads {
            write_entries.min(read_entries)
        } else {
            write_entries
        };
        let cut = cut.within(least_entries.saturating_sub(1) * CHUNK_BYTES);
        let grains = cut.most(most * CHUNK_BYTES).min(GRAINS_LIMIT);
        let mut shape = Self {
            credits,
            largest,
            ios: u32::from(credits) * 2,
            shares: ways.shares,
            buffers,
            bytes,
            write_entries,
            read_entries,
            // A receive has one piece for the request and one for its data.
            inline: if attributes.max_recv_sge < 2 {
                0
            } else {
                INLINE
            },
            sinks,
            cut,
            grains: grains as u16,
            granted,
            no_read: ways.no_read,
            slots,
        };
        while shape.sends() + 1 > attributes.max_qp_wr || shape.completions() > attributes.max_cqe {
            if usize::from(shape.grains) > GRAINS_USUAL {
                shape.grains /= 2;
                continue;
            }
            if shape.credits == 1 {
                return Err("the RDMA device takes too few work requests");
            }
            shape.credits /= 2;
            shape.ios = u32::from(shape.credits) * 2;
        }
        Ok(shape)
    }

    /// Pieces of memory that one RDMA WRITE takes.
    pub(crate) fn write_entries(self) -> usize {
        self.write_entries
    }

    /// Bytes of transfer buffers and granted memory that it has for itself.
    fn data(self) -> u64 {
        (self.buffers * CHUNK_BYTES + self.granted) as u64
    }

    /// Bytes of the kernel's memory that it takes beside these: never less than what is
    /// allocated.
    pub(crate) fn overhead(self) -> u64 {
        let sinks = if self.sinks {
            Sink::pages(self.largest)
        } else {
            0
        };
        let counts = Counts {
            credits: self.credits.into(),
            ios: self.ios.into(),
            grains: self.grains.into(),
            sends: self.sends().into(),
            send_entries: self.write_entries.max(self.read_entries) as u64,
            receive_entries: 2,
            completions: self.completions().into(),
            inline: self.inline != 0,
            pieces: self.pieces() as u64,
            grain_pieces: grain_chunks(self.cut.grain()) as u64,
            sink_pages: sinks.into(),
            buffers: self.buffers as u64,
            // Its lists have room for what all queues of the session wish.
            kept: if self.shares { MOST as u64 } else { 0 },
            granted: (self.granted / CHUNK_BYTES) as u64,
            granted_pages: (self.granted / PAGE_SIZE) as u64,
            open_writes: open_writes(self.credits) as u64,
        };
        let sizes = Sizes {
            queue: size_of::<Queue>() as u64,
            io: size_of::<Io>() as u64,
            grain: size_of::<Grain>() as u64,
            message: BUFFER_LEN as u64,
        };
        cost::bytes(&counts, &sizes)
    }

    /// Bytes of all that it has for itself.
    pub(crate) fn least(self) -> u64 {
        self.data() + self.overhead()
    }

    /// Bytes that it may borrow beside that.
    pub(crate) fn wish(self) -> u64 {
        (self.bytes as u64).saturating_sub(self.data())
    }

    /// Transfer buffers of the largest request.
    pub(crate) fn buffers_of_one(self) -> usize {
        (self.largest as usize).div_ceil(CHUNK_BYTES)
    }

    /// Pieces of memory of the largest request, wherever they are.
    pub(crate) fn pieces(self) -> usize {
        let largest = self.largest as usize;
        let granted = Granted::pieces(largest.min(self.granted));
        granted.max(largest.div_ceil(CHUNK_BYTES))
    }

    /// Each request's work, each grain's, a probe, and the registration of granted memory.
    pub(super) fn sends(self) -> u32 {
        self.ios * self.slots + u32::from(self.grains) + 2
    }

    pub(super) fn completions(self) -> u32 {
        QueuePair::<Queue>::completions(self.capacity())
    }

    pub(super) fn capacity(self) -> Capacity {
        Capacity {
            sends: self.sends(),
            receives: self.credits.into(),
            send_entries: self.write_entries.max(self.read_entries) as u32,
            receive_entries: if self.inline == 0 { 1 } else { 2 },
        }
    }
}

/// Bytes of granted memory, of `bytes` for all buffers. A quarter; all that the largest
/// write needs when nothing is fetched, if that leaves as much for reads.
fn granted(attributes: Attributes, bytes: usize, ways: Ways) -> Result<usize, &'static str> {
    let lacking = if !ways.grants {
        Some("without RDMA READ its drive must bear data that changes, and cache_mib be 0")
    } else if !attributes.fast_registration {
        Some("the RDMA device cannot register memory by work requests")
    } else {
        None
    };
    if !ways.writes {
        return Ok(0);
    }
    if let Some(lacking) = lacking {
        return if ways.no_read { Err(lacking) } else { Ok(0) };
    }
    let largest = TRANSFER_USUAL as usize;
    if !ways.no_read {
        let quarter = (bytes / 4).clamp(GRANTED_MIN, GRANTED_MAX);
        return Ok(Granted::fit(attributes, quarter));
    }
    if bytes < 2 * largest {
        return Err("without RDMA READ buffer_mib must be 2 for each of its queues");
    }
    if Granted::fit(attributes, largest) < largest {
        return Err("the RDMA device's memory regions are too small to do without RDMA READ");
    }
    Ok(Granted::fit(attributes, bytes / 2))
}
