// SPDX-License-Identifier: GPL-2.0

//! What is counted of a request when the completion of its answer's send is found.

use super::{
    respond::key_to_invalidate,
    Io,
    Queue, //
};
use crate::storage::visit::count_cache;
use hcablk_core::{
    proto::message::{
        Op,
        Status, //
    },
    report::trace, //
};

impl Queue {
    /// Counts a request whose answer's send has completed, and its message if `counts`.
    pub(super) fn answered(&self, io: &Io, counts: bool) {
        trace::target::completed(|| io.about());
        let c = &self.counters;
        let ok = io.status == Status::Ok;
        match io.op {
            Ok(Op::Read(_, remote)) if ok && self.uses_write_with_immediate(io, remote) => {
                c.immediates.bump()
            }
            _ => c.sends.add(counts.into()),
        }
        self.count_operation(io);
        if io.marks.is_measured() {
            self.count_times(io);
        }
        c.rdma_bytes.add(io.moved);
        if ok {
            self.count_way(io);
        } else {
            self.count_failure(io);
        }
        if key_to_invalidate(io).is_some() {
            c.remote_invalidations.bump();
        }
    }

    /// Counts how long a request that is measured took.
    #[inline(never)]
    fn count_times(&self, io: &Io) {
        // What asks for nothing is no request of the disk's.
        if !matches!(io.op, Ok(Op::Nop)) {
            let fetched = matches!(io.op, Ok(Op::Write { .. }));
            io.marks.end(fetched, &self.times);
        }
    }

    /// Counts a request that failed, and that its initiator was told so.
    #[cold]
    #[inline(never)]
    fn count_failure(&self, io: &Io) {
        self.counters.errors.bump();
        if io.flush_error != 0 {
            // TCP may still lose what iWARP has sent.
            let arrived = !self.all_reported;
            self.write_errors
                .flush_error_sent(io.flush_error, self.teller, arrived);
        }
    }

    /// Counts what was asked for, and how many bytes were moved.
    #[inline]
    fn count_operation(&self, io: &Io) {
        let c = &self.counters;
        let (length, ok) = (io.length() as u64, io.status == Status::Ok);
        match io.op {
            Ok(Op::Read(..)) => {
                c.reads.bump();
                c.read_bytes.add(if ok { length } else { 0 });
            }
            Ok(
                Op::Write { fua, .. } | Op::WriteInline { fua, .. } | Op::WriteEager { fua, .. },
            ) => {
                c.writes.bump();
                match io.op {
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

    /// Counts by what way the data of a request went that was done well.
    #[inline]
    fn count_way(&self, io: &Io) {
        if self.went_straight(io) {
            // The HCA has moved all of it.
            return self.counters.ram_bytes.add(io.length() as u64);
        }
        self.count_detours(io);
    }

    /// Returns whether the data of a request went between the wire and the drive by RAM, whole, and met
    /// neither the page cache nor a cache of the volume's.
    #[inline]
    fn went_straight(&self, io: &Io) -> bool {
        self.is_straight && !io.met_pages && !io.chunks.moves()
    }

    /// Counts as [`Self::count_way`] does, whatever way the data went.
    #[inline(never)]
    fn count_detours(&self, io: &Io) {
        let c = &self.counters;
        let length = io.length() as u64;
        let bounced = if io.bounces() || (io.peer_hit && !io.is_in_lines()) {
            length
        } else {
            0
        };
        c.copied_bytes.add(length - io.moved.min(length) + bounced);
        let cached = io.cached || (io.met_pages && !matches!(io.op, Ok(Op::Read(..))));
        let through_cache = if cached { length } else { 0 };
        c.cache_bytes.add(through_cache);
        let by_ram = if io.wire_in_ram() { length } else { 0 };
        c.ram_bytes.add(by_ram + through_cache);
        if self.backing.wants_peers() {
            let served = io.peer_hit;
            let by_peer = io.peer.is_some() || io.is_in_lines();
            c.p2p_bytes.add(if by_peer && !served { length } else { 0 });
            c.p2p_bounce_bytes.add(bounced);
            c.p2p_fallbacks
                .add((!by_peer && !served && length != 0).into());
        }
        let (chunks, early) = io.chunks.moved();
        c.chunks.add(chunks);
        c.early_chunks.add(early);
        count_cache(self, io, c);
        c.met_pages.add((io.met_pages && length != 0).into());
    }
}
