// SPDX-License-Identifier: GPL-2.0

//! Counts a request when the completion of its response's SEND is found.

use super::{
    cache::count_cache,
    queue::Queue,
    request::TargetRequest,
    respond::key_to_invalidate, //
};
use crate::stats::Counters;
use hcablk_core::{
    proto::message::{
        Op,
        Status, //
    },
    report::trace, //
};

impl Queue {
    /// Counts a request whose response's SEND has completed, and its message if `counts`.
    pub(super) fn count_response(&self, request: &TargetRequest, counts: bool) {
        trace::target::completed(|| request.about());
        let c = request.volume.counters();
        let ok = request.status == Status::Ok;
        match request.op {
            Ok(Op::Read(_, remote)) if ok && self.uses_write_with_immediate(request, remote) => {
                c.immediates.bump()
            }
            _ => self.counters.sends.add(counts.into()),
        }
        Self::count_operation(request, c);
        if request.marks.is_measured() {
            self.count_times(request);
        }
        c.rdma_bytes.add(request.moved);
        if ok {
            Self::count_data_path(request, c);
        } else {
            self.count_failure(request);
        }
        if key_to_invalidate(request).is_some() {
            c.remote_invalidations.bump();
        }
    }

    /// Adds the measured durations of a request to the queue's.
    #[inline(never)]
    fn count_times(&self, request: &TargetRequest) {
        // A nop is not a request of the disk.
        if !matches!(request.op, Ok(Op::Nop)) {
            let by_rdma_read = matches!(request.op, Ok(Op::Write { .. }));
            request.marks.end(by_rdma_read, &self.times);
        }
    }

    /// Counts a failed request, and records that its initiator was sent its flush error.
    #[cold]
    #[inline(never)]
    fn count_failure(&self, request: &TargetRequest) {
        request.volume.counters().errors.bump();
        if request.flush_error != 0 {
            // On iWARP TCP may still lose data whose SEND has completed.
            let arrived = !self.all_reported;
            let volume = &request.volume;
            volume.write_errors().flush_error_sent(
                request.flush_error,
                volume.session_number(),
                arrived,
            );
        }
    }

    /// Counts the operation of a request, and the bytes that it moved.
    #[inline]
    fn count_operation(request: &TargetRequest, c: &Counters) {
        let (length, ok) = (request.length() as u64, request.status == Status::Ok);
        match request.op {
            Ok(Op::Read(..)) => {
                c.reads.bump();
                c.read_bytes.add(if ok { length } else { 0 });
            }
            Ok(
                Op::Write { fua, .. } | Op::WriteInline { fua, .. } | Op::WriteEager { fua, .. },
            ) => {
                c.writes.bump();
                match request.op {
                    Ok(Op::WriteEager { .. }) => c.eager_writes.bump(),
                    Ok(Op::WriteInline { .. }) => c.inline_writes.bump(),
                    _ => {}
                }
                if fua {
                    c.fua_writes.bump();
                }
                c.written_bytes.add(if ok { length } else { 0 });
            }
            Ok(Op::Flush) => c.flushes.bump(),
            Ok(Op::Discard(extent)) => {
                c.discards.bump();
                c.discarded_bytes
                    .add(if ok { extent.length.into() } else { 0 });
            }
            Ok(Op::WriteZeroes { extent, .. }) => {
                c.zeroes.bump();
                c.zeroed_bytes
                    .add(if ok { extent.length.into() } else { 0 });
            }
            Ok(Op::Nop) | Err(_) => {}
        }
    }

    /// Counts the path that the data of a successful request took.
    #[inline]
    fn count_data_path(request: &TargetRequest, c: &Counters) {
        if Self::went_straight(request) {
            // The HCA has moved all of the data.
            return c.ram_bytes.add(request.length() as u64);
        }
        Self::count_detours(request, c);
    }

    /// Returns whether the data of a request moved between the wire and the drive through RAM, as a
    /// whole, and bypassed both the page cache and the volume's cache.
    #[inline]
    fn went_straight(request: &TargetRequest) -> bool {
        request.volume.is_straight() && !request.met_pages && !request.chunks.moves()
    }

    /// Counts the path of the data as [`Self::count_data_path`] does, for any path.
    #[inline(never)]
    fn count_detours(request: &TargetRequest, c: &Counters) {
        let length = request.length() as u64;
        let bounced = if request.bounces() || (request.peer_hit && !request.is_in_lines()) {
            length
        } else {
            0
        };
        c.copied_bytes
            .add(length - request.moved.min(length) + bounced);
        let cached =
            request.cached || (request.met_pages && !matches!(request.op, Ok(Op::Read(..))));
        let through_cache = if cached { length } else { 0 };
        c.cache_bytes.add(through_cache);
        let by_ram = if request.wire_in_ram() { length } else { 0 };
        c.ram_bytes.add(by_ram + through_cache);
        if request.volume.backing().wants_peers() {
            let served = request.peer_hit;
            let by_peer = request.peer.is_some() || request.is_in_lines();
            c.p2p_bytes.add(if by_peer && !served { length } else { 0 });
            c.p2p_bounce_bytes.add(bounced);
            c.p2p_fallbacks
                .add((!by_peer && !served && length != 0).into());
        }
        let (chunks, early) = request.chunks.moved();
        c.chunks.add(chunks);
        c.early_chunks.add(early);
        count_cache(request, c);
        c.met_pages.add((request.met_pages && length != 0).into());
    }
}
