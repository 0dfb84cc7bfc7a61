// SPDX-License-Identifier: GPL-2.0

//! The visit of a request in its volume's [cache](crate::drive::cache): before the drive, after the
//! drive, and when the response's SEND has completed.
//!
//! # Lines in peer memory
//!
//! The data of a read may be in lines of the cache instead of transfer buffers, if the lines are
//! peer memory.
//!
//! ```text
//!           hit                                                     HCA does DMA to PCI devices
//!  read ──┬─────────────────────────────► in lines ──┬─ RDMA WRITE from the lines ──────► left
//!         └─ miss: the drive's DMA to lines ──┘      └─ copied to RAM (a bounce) ───────► left
//! ```
//!
//! # Why nothing is copied between peer memory
//!
//! A processor reads peer memory over the bus, a few bytes for each round trip, and waits for each.
//! So a line is never filled by a copy from a transfer buffer in peer memory. The drive's DMA
//! writes to the line directly, with the same bio that puts the rest of the data into transfer
//! buffers, and a hit is sent from the line. A processor copies only data that is already in RAM:
//! that of writes, and of reads that passed through RAM, is copied *into* lines, at the speed of
//! the bus, since no one waits for a store. A write whose data is only in peer memory drops the
//! lines that it changes: the next read fills them by DMA.
//!
//! # When a read is not in lines
//!
//! A drive accepts memory of only one kind in one bio. If part of a read belongs in lines and the
//! rest would be in RAM (no peer memory was free), all of it is read into RAM, and copied to the
//! lines. A read from more pieces of lines than one RDMA WRITE can gather is copied to RAM first,
//! as if the HCA could not reach the lines.
//!
//! # Lifetime
//!
//! `TargetRequest::lines` is a reference to the lines' memory, held while the request is in the
//! cache and until it is idle; unbinding the memory's provider waits for it. If the HCA sends from
//! the lines, the request's visit pins them until the response's SEND has completed: reclaiming
//! unpins them. That completion may be noticed as late as the next keep-alive (see the queue's CQ
//! notification); a line that is overwritten meanwhile cannot be used until then.

use super::{
    queue::Queue,
    queue_volume::QueueVolume,
    request::TargetRequest, //
};
use crate::{
    drive::cache::{
        place_of,
        Cache,
        CopyDirection, //
    },
    memory::layout::BUFFER_BYTES,
    stats::Counters, //
};
use core::cmp::min;
use hcablk_core::{
    blkdev::{
        BioOp,
        BioOwner, //
    },
    logic::mq::lines::{
        Visit,
        LINE,
        LINE_SHIFT, //
    },
    memory::pages::PageRange,
    p2p::{
        PeerLease,
        PeerMemory, //
    },
    proto::message::{
        Extent,
        Op, //
    },
    rdma::wr::Sge, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Begins the visit of a request before it is submitted to the drive. Returns `true` if the drive
/// is not needed: the data is in the request's buffers, or stays in lines. Process context.
#[inline(always)]
pub(crate) fn enter_cache(
    queue: &Queue,
    request: &mut TargetRequest,
    op: BioOp,
    extent: Extent,
) -> bool {
    request.volume.backing().cache().is_some() && enter(queue, request, op, extent)
}

#[inline(never)]
fn enter(queue: &Queue, request: &mut TargetRequest, op: BioOp, extent: Extent) -> bool {
    let volume = request.volume.clone();
    let Some(cache) = volume.backing().cache() else {
        return false;
    };
    request.visit = Visit::NONE;
    request.lined = 0;
    request.peer_hit = false;
    // A request with a reference to lost memory is older than the loss: it may see data that a
    // write which bypassed the cache has replaced since.
    let leased = match cache.lease().map(PeerLease::memory) {
        Some(None) => {
            report_lost(&volume, cache);
            return false;
        }
        Some(leased) => leased,
        None => None,
    };
    let (offset, length, size) = (extent.offset, extent.length, volume.capacity());
    if op == BioOp::Read {
        // Another user of the drive on this host has cached pages.
        if volume.backing().file().has_pages(offset, length as usize) {
            let mut visit = Visit::empty(offset, length);
            cache.enter(&mut visit, size);
            cache.leave(&mut visit, false);
            return false;
        }
        request.visit = cache.read(offset, length, size);
        let hit = request.visit.is_hit();
        match leased {
            Some(leased) => {
                if hit || request.visit.is_owner() {
                    direct_to_lines(queue, request, leased);
                }
            }
            None if hit => {
                request.lined = cache.copy(
                    &request.visit,
                    offset,
                    request.pages(),
                    CopyDirection::FromLines,
                    None,
                );
            }
            None => {}
        }
        return hit;
    }
    request.visit = match op {
        BioOp::Write { .. } => Visit::write(offset, length),
        _ => Visit::empty(offset, length),
    };
    cache.enter(&mut request.visit, size);
    false
}

/// Directs the data of a read, or the part that the cache keeps, into the lines of its visit, if
/// possible. Process context.
fn direct_to_lines(queue: &Queue, request: &mut TargetRequest, leased: Arc<PeerMemory>) {
    let (mut pieces, mut all) = (0, true);
    for part in request.parts() {
        pieces += 1;
        all &= part.is_in_line();
    }
    let view = match request.volume.view() {
        Some(view) if pieces <= queue.shape.write_sges => view.memory(),
        _ => None,
    };
    let lines = view.unwrap_or(leased);
    if request.visit.is_hit() {
        // A hit: the drive is not involved.
        request.peer = None;
        request.peer_hit = true;
        if !lines.is_mapped() {
            request.lined = request.load_lines(&lines);
            return;
        }
    }
    let is_alike = |peer: &Arc<PeerMemory>| {
        peer.is_on_same_device(&lines) && peer.is_mapped() == lines.is_mapped()
    };
    if all || request.peer.as_ref().is_some_and(is_alike) {
        request.lines = Some(lines);
    }
}

/// Ends the visit of a request before its response. `ok`: its data equals the data on the drive.
/// Any context.
#[inline]
pub(crate) fn leave_cache(request: &mut TargetRequest, ok: bool) {
    if !request.visit.is_outside() {
        leave(request, ok);
    }
}

fn leave(request: &mut TargetRequest, ok: bool) {
    let volume = &request.volume;
    let (Some(cache), Some(extent)) = (volume.backing().cache(), request.extent()) else {
        return;
    };
    let mut keep = ok;
    if ok && request.is_in_lines() {
        if !request.wire_in_ram() {
            // The response is sent from the lines.
            return cache.keep_pinned(&mut request.visit);
        }
    } else if ok && request.visit.is_owner() {
        let leased = cache.lease().map(PeerLease::memory);
        match leased {
            // The data is only in peer memory, or the lines no longer exist.
            Some(_) if !request.wire_in_ram() => keep = false,
            Some(None) => keep = false,
            leased => {
                let leased = leased.flatten();
                let (from, pages) = (extent.offset, request.ram_pages());
                request.lined = cache.copy(
                    &request.visit,
                    from,
                    pages,
                    CopyDirection::ToLines,
                    leased.as_deref(),
                );
            }
        }
    }
    cache.leave(&mut request.visit, keep);
}

/// Unpins the lines of a request whose response's SEND has completed, or never will. Any context.
#[inline]
pub(crate) fn leave_lines(request: &mut TargetRequest) {
    if !request.visit.is_outside() {
        unpin(request);
    }
}

#[inline(never)]
fn unpin(request: &mut TargetRequest) {
    if let Some(cache) = request.volume.backing().cache() {
        cache.leave(&mut request.visit, false);
    }
}

#[cold]
fn report_lost(volume: &QueueVolume, cache: &Cache) {
    if cache.finds_lost() {
        pr_warn!(
            "{}: the memory of its cache is gone; the volume works without a cache until it is enabled again\n",
            volume.name()
        );
    }
}

/// Counts in `c` the cache hits, misses and copies of a successful request. Completion handler.
pub(crate) fn count_cache(request: &TargetRequest, c: &Counters) {
    let Some(cache) = request.volume.backing().cache() else {
        return;
    };
    let peer = cache.lease().is_some();
    match request.op {
        Ok(Op::Read(..)) => {
            let Visit {
                hits,
                misses,
                evictions,
                ..
            } = request.visit;
            c.cache_hits.add(hits.into());
            c.cache_misses.add(misses.into());
            c.cache_evictions.add(evictions.into());
            let hit = hits != 0 && misses == 0;
            let served = if hit { request.length() as u64 } else { 0 };
            c.bytes_from_cache.add(served);
            c.cache_peer_bytes.add(if peer { served } else { 0 });
            let without = request.volume.backing().wants_peers()
                && cache.lease().is_none_or(|lease| lease.memory().is_none());
            c.cache_fallbacks.add(without.into());
        }
        Ok(Op::Write { .. } | Op::WriteInline { .. } | Op::WriteEager { .. }) => {}
        _ => return,
    }
    c.cache_copied_bytes.add(request.lined);
    // Peer memory is not RAM of this host.
    c.ram_bytes.add(if peer { 0 } else { request.lined });
}

/// A part of a request's data within one cache line and one transfer buffer.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// The slot of the cache line, if the request may use the line, and the first byte there.
    line: Option<(u32, usize)>,
    /// The transfer buffer, and the first byte there.
    buffer: (u16, usize),
    length: usize,
}

impl Part {
    /// Returns whether the request may use the cache line of this part.
    pub(crate) fn is_in_line(self) -> bool {
        self.line.is_some()
    }
}

impl TargetRequest {
    /// Iterates over the data in order, split at the borders of lines and of transfer buffers.
    pub(crate) fn parts(&self) -> Parts<'_> {
        Parts {
            request: self,
            at: 0,
            length: self.length(),
            offset: self.extent().map_or(0, |extent| extent.offset),
        }
    }

    /// Returns whether the data is in lines of peer memory, or will be.
    #[inline]
    pub(crate) fn is_in_lines(&self) -> bool {
        self.lines.is_some()
    }

    /// Iterates over the data as the drive gets it, if the data is in lines; otherwise yields
    /// nothing.
    pub(crate) fn line_pages(&self) -> LinePages<'_> {
        LinePages(self.lines.as_deref().map(|lines| (lines, self.parts())))
    }

    /// Fills `sges` with the entries of data in lines that the HCA reaches. Returns how many
    /// entries there are, or `None` if the HCA uses transfer buffers.
    #[inline]
    pub(crate) fn line_sges(&self, sges: &mut [Sge]) -> Option<usize> {
        let lines = self.lines.as_ref().filter(|lines| lines.is_mapped())?;
        let mut count = 0;
        for (part, sge) in self.parts().zip(sges) {
            *sge = match part.line {
                Some((slot, within)) => {
                    let (piece, offset) = place_of(slot, within);
                    lines.sge(piece, offset, part.length)?
                }
                None => {
                    let (buffer, skip) = part.buffer;
                    self.peer.as_ref()?.sge(buffer, skip, part.length)?
                }
            };
            count += 1;
        }
        Some(count)
    }

    /// Copies the data to the RAM of the transfer buffers, from `lines` where it is in lines, else
    /// from peer memory. Returns the number of bytes copied.
    pub(crate) fn load_lines(&self, lines: &PeerMemory) -> u64 {
        let mut copied = 0;
        for part in self.parts() {
            let (buffer, skip) = part.buffer;
            let Some(ram) = self.queue.buffer(buffer) else {
                continue;
            };
            let ram = ram.pages().range(skip, part.length);
            copied += match (part.line, &self.peer) {
                (Some((slot, within)), _) => {
                    let (piece, offset) = place_of(slot, within);
                    lines.load(piece, offset, ram)
                }
                (None, Some(peer)) => peer.load(buffer, skip, ram),
                (None, None) => 0,
            };
        }
        copied as u64
    }
}

/// The iterator of [`TargetRequest::parts`]. It is a named type because types of nested iterators
/// make symbols too long for the kernel.
pub(crate) struct Parts<'a> {
    request: &'a TargetRequest,
    /// Bytes already returned, out of `length`.
    at: usize,
    length: usize,
    /// The offset of the data on the volume.
    offset: u64,
}

impl Iterator for Parts<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let from = self.at % BUFFER_BYTES;
        let place = self.offset + self.at as u64;
        let within = place as usize & (LINE - 1);
        let left = self.length.checked_sub(self.at).filter(|left| *left != 0)?;
        let length = min(LINE - within, min(BUFFER_BYTES - from, left));
        let slot = self.request.visit.slot(place >> LINE_SHIFT);
        let part = Part {
            line: slot.map(|slot| (slot, within)),
            buffer: (self.request.own_buffer(self.at / BUFFER_BYTES)?, from),
            length,
        };
        self.at += length;
        Some(part)
    }
}

/// The iterator of [`TargetRequest::line_pages`].
pub(crate) struct LinePages<'a>(Option<(&'a PeerMemory, Parts<'a>)>);

impl<'a> Iterator for LinePages<'a> {
    type Item = PageRange<'a>;

    fn next(&mut self) -> Option<PageRange<'a>> {
        let (lines, parts) = self.0.as_mut()?;
        let part = parts.next()?;
        match part.line {
            Some((slot, within)) => {
                let (piece, offset) = place_of(slot, within);
                lines.range(piece, offset, part.length)
            }
            None => {
                let (buffer, from) = part.buffer;
                parts
                    .request
                    .peer
                    .as_ref()?
                    .range(buffer, from, part.length)
            }
        }
    }
}
