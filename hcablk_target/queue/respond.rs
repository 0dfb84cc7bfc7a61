// SPDX-License-Identifier: GPL-2.0

//! The answer to a request, with the data that it asked for.

use super::{
    kind,
    shape::PARTS_MAX,
    Io,
    Queue, //
};
use crate::{
    memory::layout::{
        BUFFERS_MAX,
        BUFFERS_USUAL, //
    },
    storage::visit::leave_cache, //
};
use hcablk_core::{
    proto::message::{
        Answer,
        Op,
        Remote,
        Response,
        Status, //
    },
    rdma::wr::{
        Chain,
        Rdma,
        Send,
        Sge,
        WorkId,
        WorkRequest, //
    },
    report::trace, //
};
use kernel::prelude::*;

impl Queue {
    /// Answers a request, after the data that it asked for. Any context.
    pub(super) fn answer(&self, mut io: KBox<Io>, status: Status) {
        io.status = status;
        io.marks.leave_drive();
        if io.flush_error != 0 {
            self.expect_report();
        }
        leave_cache(self, &mut io, status == Status::Ok);
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

        if let Some((data, remote)) = self.immediate_read(&io) {
            return self.send_immediate(io, data, remote);
        }
        if io.sends_one_piece() {
            return self.send_one_piece(io);
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

    /// Returns the data of a read that is answered by one RDMA WRITE of one buffer, with an immediate
    /// value, and where it goes: most small ones.
    #[inline]
    fn immediate_read(&self, io: &Io) -> Option<(Sge, Remote)> {
        let (Ok(Op::Read(extent, remote)), Status::Ok) = (io.op, io.status) else {
            return None;
        };
        let buffer = io.only_buffer()?;
        if io.chunks.moves() || !self.uses_write_with_immediate(io, remote) {
            return None;
        }
        let length = extent.length as usize;
        buffer.sync_for_device(0, length);
        let data = buffer.slice_for(&self.pd, 0, length)?;
        Some((Sge::new(data), remote))
    }

    /// Answers a read by the RDMA WRITE of its `data`.
    #[inline]
    fn send_immediate(&self, mut io: KBox<Io>, data: Sge, remote: Remote) {
        io.moved = io.length() as u64;
        let data = [data];
        let mut write = Rdma::write(&data, remote.address, remote.key);
        write.immediate(io.tag.to_immediate(), !io.quiet);
        write.signal(WorkId::new(kind::ANSWER, io.index));
        if self.batcher.gathers() {
            return self.gather(io, &mut [Some(write)], None);
        }
        let mut chain = Chain::new();
        chain.push(&mut write);
        self.post_here(io, &chain);
    }

    // Out of line, as below.
    #[inline(never)]
    fn send_one_piece(&self, io: KBox<Io>) {
        self.send_answer::<1, 1>(io);
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
        let index = io.index;
        let mut sges = [Sge::EMPTY; BUFFERS];
        let (count, data) = self.data_to_write(&mut io, &mut sges);
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
        if data.is_some_and(|remote| self.uses_write_with_immediate(&io, remote)) {
            for write in writes.iter_mut().flatten() {
                write.immediate(io.tag.to_immediate(), !io.quiet);
                write.signal(WorkId::new(kind::ANSWER, index));
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
        self.send_response(io, &mut writes);
    }

    /// Fills `sges` with the data that an answer writes into the initiator's memory, and returns
    /// how many entries these are, and where it goes.
    #[inline(always)]
    fn data_to_write(&self, io: &mut Io, sges: &mut [Sge]) -> (usize, Option<Remote>) {
        let (Ok(Op::Read(_, remote)), Status::Ok) = (io.op, io.status) else {
            return (0, None);
        };
        io.moved = io.length() as u64;
        if io.chunks.moves() {
            return (0, None);
        }
        if io.wire_in_ram() {
            for piece in io.pieces() {
                piece.buffer.sync_for_device(0, piece.length);
            }
        }
        (self.sges(io, sges), Some(remote))
    }

    /// Sends the response to a request, behind `writes`.
    #[inline(always)]
    fn send_response(&self, io: KBox<Io>, writes: &mut [Option<Rdma<'_>>]) {
        let response = Response {
            credits: 1,
            tag: io.tag,
            status: io.status,
        };
        let Ok(message) = self.outgoing.write(io.index as usize, &response.encode()) else {
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
        send.signal(WorkId::new(kind::ANSWER, io.index));
        self.post_answer(io, writes, Some(&mut send));
    }

    /// Returns whether a read is answered by a write-with-immediate instead of a message: if its
    /// data is one RDMA WRITE, whose length the initiator sees, and not on iWARP.
    #[inline]
    pub(super) fn uses_write_with_immediate(&self, io: &Io, remote: Remote) -> bool {
        remote.answer == Answer::Immediate && io.length() <= self.immediate_bytes
    }

    /// Fills `sges` with the scatter-gather entries of `io`'s data, and returns how many these are.
    #[inline]
    pub(super) fn sges(&self, io: &Io, sges: &mut [Sge]) -> usize {
        if let Some(count) = io.line_sges(sges) {
            return count;
        }
        let mut count = 0;
        let pd = &self.pd;
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
        self.post_here(io, chain);
    }

    /// Does what [`Self::post`] does, in the frame of the caller.
    #[inline(always)]
    pub(super) fn post_here(&self, io: KBox<Io>, chain: &Chain<'_>) {
        let index = io.index;
        if let Err(io) = self.inflight.park(index, io) {
            return self.is_taken(io);
        }
        self.batcher.rang(chain.len().into());
        if self.pair.post(chain).is_err() {
            self.post_failed(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn is_taken(&self, io: KBox<Io>) {
        self.broken("a request is there that is to be under way");
        self.give_up(io);
    }

    /// Gives a request up whose work was not posted, or only a part of it.
    #[cold]
    #[inline(never)]
    fn post_failed(&self, index: u32) {
        self.unposted("RDMA or an answer", Some(index));
        if let Some(io) = self.inflight.take(index) {
            self.give_up(io);
        }
    }
}

/// Returns the key that `io`'s answer is to invalidate.
pub(super) fn key_to_invalidate(io: &Io) -> Option<u32> {
    match io.op {
        Ok(Op::Read(_, remote) | Op::Write { remote, .. })
            if remote.answer == Answer::Invalidating =>
        {
            Some(remote.key)
        }
        _ => None,
    }
}
