// SPDX-License-Identifier: GPL-2.0

//! Transfer: between initiator, buffers and drive, and the answer.
//!
//! # Data that comes with the request
//!
//! Each receive buffer has two pieces, one for the request and a page for the data of an inline
//! write, from which the drive takes it. Both are posted again before the answer, when the drive is
//! done with them.
//!
//! # RDMA READ into registered memory
//!
//! On iWARP, or with the module's parameter `force_mr=1` on any device, data is fetched into a
//! [`Sink`](hcablk_core::rdma::sink::Sink), of which every `Io` of such a queue has one from the
//! start: REG_MR, RDMA READ and a fenced LOCAL_INV are one chain, only the last is signaled, and
//! the buffers are looked at after it. If the READ fails, the region may stay valid: the pool of
//! buffers is closed then, and gives nothing back before the regions are gone. It checks that by
//! itself: a buffer that is still exposed stays, the session ends, and a line with `BUG:` reports it.
//! A sink has a lock, held while its chain is posted, so that the region stays as long as a work
//! request points to it.

use super::{
    kind,
    shape::PARTS_MAX,
    Queue,
    Received, //
};
use crate::{
    memory::layout::{
        BUFFERS_MAX,
        BUFFERS_USUAL,
        BUFFER_BYTES, //
    },
    request::Io,
    session::end_reason::{
        Fault,
        Subject, //
    }, //
};
use hcablk_core::{
    proto::message::{
        Answer,
        Op,
        Remote,
        Response,
        Status, //
    },
    rdma::{
        cq::{
            Completion,
            CqNotify,
            Handler,
            Success, //
        },
        sink::Sink,
        wr::{
            Chain,
            Rdma,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace, //
    sync::{
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
};

impl Queue {
    /// Starts an admitted request.
    pub(super) fn start(&self, mut io: KBox<Io>) {
        io.marks.begin();
        if io.status != Status::Ok {
            let status = io.status;
            return self.answer(io, status);
        }
        match io.op {
            Ok(Op::Read(..) | Op::Flush | Op::Discard(_) | Op::WriteZeroes { .. }) => {
                self.begin(io);
            }
            Ok(Op::Write { remote, .. }) => self.start_rdma_read(io, remote),
            Ok(Op::WriteInline { .. }) => self.store_inline(io),
            Ok(Op::WriteEager { .. }) => self.store_eager(io),
            Ok(Op::Size) => self.answer_size(io),
            Err(status) => self.answer(io, status),
        }
    }

    /// Answers with the volume's size in sectors; `IoError` if the drive is gone, `Unsupported` if
    /// it is larger than an answer can say.
    fn answer_size(&self, mut io: KBox<Io>) {
        let sectors = self.capacity() >> 9;
        let status = match sectors {
            0 => Status::IoError,
            _ if sectors >> 48 != 0 => Status::Unsupported,
            _ => Status::Ok,
        };
        if status == Status::Ok {
            io.sectors = sectors;
        }
        self.answer(io, status);
    }

    /// Starts the drive's write of inline data.
    fn store_inline(&self, mut io: KBox<Io>) {
        io.moved = io.length() as u64;
        if let Some(data) = io.receive.and_then(|buffer| self.inline_data(buffer)) {
            data.sync_for_cpu(0, io.length());
        }
        self.begin(io);
    }

    /// Starts the RDMA READ of a write's data, by chunks if it has any.
    fn start_rdma_read(&self, mut io: KBox<Io>, remote: Remote) {
        if io.chunks.is_some() {
            io.look_for_rewrites();
            if !io.is_cached() {
                return self.fetch_chunks(io);
            }
        }
        self.fetch(io, remote);
    }

    /// Reads the data of a write out of the initiator's memory.
    fn fetch(&self, mut io: KBox<Io>, remote: Remote) {
        io.moved = io.length() as u64;
        self.fetching
            .store(self.fetching.load(Relaxed) + 1, Relaxed);
        if let Some(sink) = io.sink.clone() {
            return self.fetch_into(&sink, io, remote);
        }
        if io.is_large() {
            return self.fetch_large(io, remote);
        }
        self.fetch_parts::<BUFFERS_USUAL>(io, remote);
    }

    #[cold]
    #[inline(never)]
    fn fetch_large(&self, io: KBox<Io>, remote: Remote) {
        self.fetch_parts::<BUFFERS_MAX>(io, remote);
    }

    /// Reads data of up to `BUFFERS` transfer buffers.
    #[inline(always)]
    fn fetch_parts<const BUFFERS: usize>(&self, io: KBox<Io>, remote: Remote) {
        let index = io.index;
        let mut sges = [Sge::EMPTY; BUFFERS];
        let count = self.sges(&io, &mut sges);
        let per_part = self.shape.read_sges;
        let unit = io.unit();
        let mut parts = sges
            .get(..count)
            .unwrap_or(&[])
            .chunks(per_part)
            .enumerate()
            .map(|(i, part)| {
                let address = remote.address + (i * per_part * unit) as u64;
                Rdma::read(part, address, remote.key)
            });
        let mut reads: [Option<Rdma<'_>>; PARTS_MAX] = core::array::from_fn(|_| parts.next());
        let last = count.div_ceil(per_part);
        self.counters.rdma_reads.add(last as u64);
        let mut chain = Chain::new();
        for (i, read) in reads.iter_mut().flatten().enumerate() {
            if i + 1 == last {
                read.signal(WorkId::new(kind::FETCH, index));
            } else {
                read.name(WorkId::new(kind::PART, index));
            }
            chain.push(read);
        }
        self.post(io, &chain);
    }

    /// Makes the sink of an `Io`, on a device that needs one. May sleep.
    pub(crate) fn make_sink(&self) -> Result<Option<Arc<IrqLock<Sink>>>> {
        if !self.shape.sinks {
            return Ok(None);
        }
        let largest = self.shape.largest;
        let pieces = (largest as usize).div_ceil(BUFFER_BYTES);
        let sink = Sink::new(self.session.pd(), pieces, largest)?;
        Ok(Some(Arc::pin_init(
            new_irq_lock!(sink, "hcablk_sink"),
            GFP_KERNEL,
        )?))
    }

    /// Posts the RDMA READ as [`Self::fetch`] does, into memory that is registered for just that.
    /// The buffers are looked at only after the invalidation.
    fn fetch_into(&self, sink: &IrqLock<Sink>, io: KBox<Io>, remote: Remote) {
        let index = io.index;
        let pieces = io.pieces().map(|piece| (piece.buffer, piece.length));
        let mut sink = sink.lock();
        let mapped = sink.map(pieces, index).and_then(|()| sink.register());
        let Ok(mut grant) = mapped else {
            let tag = io.tag;
            self.fail(Fault::Unregistered(Subject {
                tag,
                key: remote.key,
            }));
            return self.give_up(io);
        };
        let sges = [grant.sge];
        let mut read = Rdma::read(&sges, remote.address, remote.key);
        grant.register.name(WorkId::new(kind::SINK, index));
        read.name(WorkId::new(kind::PART, index));
        grant.invalidate.signal(WorkId::new(kind::FETCH, index));
        let mut chain = Chain::new();
        chain.push(&mut grant.register);
        chain.push(&mut read);
        chain.push(&mut grant.invalidate);
        self.counters.registrations.bump();
        self.counters.rdma_reads.bump();
        self.post(io, &chain);
    }

    /// Starts the drive's write after the RDMA READ.
    fn fetched(&self, io: KBox<Io>, proof: Success) {
        if let Some(sink) = &io.sink {
            let buffers = io.pieces().map(|piece| piece.buffer);
            sink.lock().completed(proof, buffers);
        }
        if io.wire_in_ram() {
            for piece in io.pieces() {
                piece.buffer.sync_for_cpu(0, piece.length);
            }
        }
        self.begin(io);
    }

    /// Answers a request, after the data that it asked for. Any context.
    pub(crate) fn answer(&self, mut io: KBox<Io>, status: Status) {
        io.status = status;
        io.marks.leave_drive();
        if io.flush_error != 0 {
            self.expect_report();
        }
        self.leave_cache(&mut io, status == Status::Ok);
        trace::target::answered(|| io.about());
        // The credit that the answer grants must be there before the answer.
        if io
            .receive
            .is_some_and(|buffer| self.post_receive(buffer).is_err())
        {
            self.unposted("a receive buffer", Some(io.index));
            return self.give_up(io);
        }
        if Self::is_eager(&io) {
            return self.answer_eager(io);
        }

        if io.sends_one_piece() {
            return self.send_answer::<1, 1>(io);
        }
        if io.is_large() {
            return self.send_large(io);
        }
        self.send_usual(io);
    }

    /// Asks for an event at the completion of the next answer, which is a failed flush's: since
    /// flushes on other queue pairs end with that error until then.
    #[cold]
    fn expect_report(&self) {
        let mut work = self.work.lock();
        work.owed += 1;
        self.update_notify(&work);
        drop(work);
        self.pair.cq().kick();
    }

    // Out of line: its tables would be in the frame of every answer.
    #[inline(never)]
    fn send_usual(&self, io: KBox<Io>) {
        self.send_answer::<BUFFERS_USUAL, PARTS_MAX>(io);
    }

    #[cold]
    #[inline(never)]
    fn send_large(&self, io: KBox<Io>) {
        self.send_answer::<BUFFERS_MAX, PARTS_MAX>(io);
    }

    /// Sends an answer, with data of up to `BUFFERS` pieces of memory by up to `PARTS` RDMA WRITEs.
    #[inline(always)]
    fn send_answer<const BUFFERS: usize, const PARTS: usize>(&self, mut io: KBox<Io>) {
        let (index, status) = (io.index, io.status);
        let mut sges = [Sge::EMPTY; BUFFERS];
        let mut count = 0;
        let mut data = None;
        if let (Ok(Op::Read(_, remote)), Status::Ok) = (io.op, status) {
            io.moved = io.length() as u64;
            if !io.chunks.moves() {
                if io.wire_in_ram() {
                    for piece in io.pieces() {
                        piece.buffer.sync_for_device(0, piece.length);
                    }
                }
                count = self.sges(&io, &mut sges);
                data = Some(remote);
            }
        }
        let per_part = self.shape.write_sges;
        let unit = io.unit();
        let mut parts = sges
            .get(..count)
            .unwrap_or(&[])
            .chunks(per_part)
            .zip(0..)
            .filter_map(|(part, i): (_, u64)| {
                let remote = data?;
                let address = remote.address + i * (per_part * unit) as u64;
                Some(Rdma::write(part, address, remote.key))
            });
        let mut writes: [Option<Rdma<'_>>; PARTS] = core::array::from_fn(|_| parts.next());
        let answered = WorkId::new(kind::ANSWER, index);
        if data.is_some_and(|remote| self.uses_write_with_immediate(&io, remote)) {
            for write in writes.iter_mut().flatten() {
                write.immediate(io.tag.to_immediate(), !io.quiet);
                write.signal(answered);
            }
            return self.post_answer(io, &mut writes, None);
        }
        for write in writes.iter_mut().flatten() {
            let part = WorkId::new(kind::PART, index);
            if self.all_reported {
                write.signal(part);
            } else {
                write.name(part);
            }
        }
        let response = Response {
            credits: 1,
            tag: io.tag,
            status,
            sectors: io.sectors,
        };
        let Ok(message) = self.outgoing.write(index as usize, &response.encode()) else {
            self.broken("a request has no buffer for its answer");
            return self.give_up(io);
        };
        let message = [Sge::new(message)];
        let mut send = Send::new(&message);
        if let Some(key) = key_to_invalidate(&io) {
            send = send.invalidating(key);
        }
        if !io.quiet {
            send.solicited();
        }
        send.signal(answered);
        self.post_answer(io, &mut writes, Some(&mut send));
    }

    /// Returns whether a read is answered by a write-with-immediate instead of a message: if its
    /// data is one RDMA WRITE, whose length the initiator sees, and not on iWARP.
    #[inline]
    fn uses_write_with_immediate(&self, io: &Io, remote: Remote) -> bool {
        remote.answer == Answer::Immediate
            && self.immediates
            && io.length() <= self.shape.write_sges * BUFFER_BYTES
    }

    /// Fills `sges` with the scatter-gather entries of `io`'s data, and returns how many these are.
    #[inline]
    fn sges(&self, io: &Io, sges: &mut [Sge]) -> usize {
        if let Some(count) = io.line_sges(sges) {
            return count;
        }
        let mut count = 0;
        let pd = self.session.pd();
        for (piece, sge) in io.pieces().zip(sges.iter_mut()) {
            let length = piece.length;
            let ram = || Some(Sge::new(piece.buffer.slice_for(pd, 0, length)?));
            let peer = io
                .peer
                .as_ref()
                .and_then(|p| p.sge(piece.number, 0, length));
            if let Some(found) = peer.or_else(ram) {
                *sge = found;
                count += 1;
            }
        }
        count
    }

    /// Posts work after which `io` comes back by its index.
    pub(super) fn post(&self, io: KBox<Io>, chain: &Chain<'_>) {
        let index = io.index;
        if let Err(io) = self.inflight.park(index, io) {
            self.broken("a request is there that is to be under way");
            return self.give_up(io);
        }
        self.outbox.rang(chain.len().into());
        if self.pair.post(chain).is_err() {
            // Some of it may have been posted.
            self.unposted("RDMA or an answer", Some(index));
            if let Some(io) = self.inflight.take(index) {
                self.give_up(io);
            }
        }
    }

    /// Counts a request whose answer's send has completed, and its message if `counts`.
    pub(super) fn answered(&self, io: &Io, counts: bool) {
        trace::target::completed(|| io.about());
        let c = &self.counters;
        let length = io.length() as u64;
        let ok = io.status == Status::Ok;
        match io.op {
            Ok(Op::Read(_, remote)) if ok && self.uses_write_with_immediate(io, remote) => {
                c.immediates.bump()
            }
            _ => c.sends.add(counts.into()),
        }
        match io.op {
            Ok(Op::Read(..)) => {
                c.reads.bump();
                c.read_bytes.add(if ok { length } else { 0 });
            }
            Ok(
                Op::Write { fua, .. } | Op::WriteInline { fua, .. } | Op::WriteEager { fua, .. },
            ) => {
                c.writes.bump();
                c.eager_writes.add(Self::is_eager(io).into());
                c.inline_writes
                    .add(matches!(io.op, Ok(Op::WriteInline { .. })).into());
                c.fua_writes.add(fua.into());
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
            Ok(Op::Size) | Err(_) => {}
        }
        // A question for the size is no request of the disk's.
        if !matches!(io.op, Ok(Op::Size)) {
            let fetched = matches!(io.op, Ok(Op::Write { .. }));
            io.marks.end(fetched, &self.times);
        }
        c.rdma_bytes.add(io.moved);
        if ok {
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
            self.count_cache(io);
            c.met_pages.add((io.met_pages && length != 0).into());
        } else {
            c.errors.bump();
            if io.flush_error != 0 {
                self.session.write_errors().flush_error_sent(io.flush_error);
            }
        }
        if key_to_invalidate(io).is_some() {
            c.remote_invalidations.bump();
        }
    }
}

/// Returns the key that `io`'s answer is to invalidate.
fn key_to_invalidate(io: &Io) -> Option<u32> {
    match io.op {
        Ok(Op::Read(_, remote) | Op::Write { remote, .. })
            if remote.answer == Answer::Invalidating =>
        {
            Some(remote.key)
        }
        _ => None,
    }
}

impl Handler for Queue {
    type Round = ();

    fn complete(&self, (): &mut (), completion: &Completion) {
        let work = completion.work();
        let ok = completion.is_ok();
        self.moved.store(true, Relaxed);
        if !ok {
            self.work_failed(completion);
        } else if self.needs_rx && work.kind != kind::KEEP_ALIVE {
            self.rx_seen.store(true, Relaxed);
        }
        match work.kind {
            kind::RECEIVE if ok => self.receive(Received {
                buffer: work.index,
                length: completion.byte_len(),
                immediate: completion.immediate(),
                admitted: 0,
            }),
            kind::ANSWER => self.answer_completed(work.index, ok),
            kind::FETCH => {
                self.fetching
                    .store(self.fetching.load(Relaxed) - 1, Relaxed);
                match (self.inflight.take(work.index), completion.success()) {
                    (Some(io), Some(proof)) => self.fetched(io, proof),
                    (Some(io), None) => self.reclaim(io),
                    (None, _) => {}
                }
            }
            kind::CHUNK => self.chunk_fetched(work.index),
            kind::KEEP_ALIVE => self.keep_alive_completed(),
            _ => {}
        }
    }

    fn round_done(&self, (): ()) {
        self.round_over();
    }

    fn cq_notify(&self) -> CqNotify {
        if self.fetching.load(Relaxed) != 0 || self.notify_all.load(Relaxed) || self.is_pressed() {
            CqNotify::Any
        } else {
            CqNotify::SolicitedOnly
        }
    }
}
