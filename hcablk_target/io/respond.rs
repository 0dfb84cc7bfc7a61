// SPDX-License-Identifier: GPL-2.0

//! Sends the response to a request, after the data that the request asked for.
//!
//! # Responses that wait for their doorbell
//!
//! ```text
//!            a request finds others under way              round_done()
//!  (at once) ────────────────────────────────► Gathering ───────────────► (at once)
//! ```
//!
//! A round of the completion handler may find many requests, and a fast drive completes them before
//! the call that begins them returns. The responses to such requests are gathered and posted
//! together when the round is over, or when there is no more room. All other responses are posted
//! at once, including those from an interrupt or another thread during the round, since a drive may
//! block the handler.
//!
//! When responses are posted together, only the last is signaled: SENDs complete in order. Their
//! `TargetRequest`s are a list from the last to the first, reclaimed together. On iWARP each is
//! signaled (`Queue::all_reported`).
//!
//! Many responses to [eager](super::eager) writes share one message: they are gathered until the
//! round is over or the message is full. Their `TargetRequest`s form such a list, too, and the
//! message is in the buffer of the last one.
//!
//! The `TargetRequest` of a response that waits is in the table of work under way, like a posted
//! one: it is reclaimed on its completion, or when posting fails. It waits only until the end of
//! the round, and every round ends.
//!
//! `waiting` has its own lock, taken only while responses are gathered; no other lock is taken
//! inside.

use super::{
    cache::leave_cache,
    limits::PARTS_MAX,
    queue::{
        kind,
        Queue, //
    },
    request::TargetRequest, //
};
use crate::memory::layout::{
    BUFFERS_MAX,
    BUFFERS_USUAL, //
};
use hcablk_core::{
    proto::{
        eager_ring::EagerResponses,
        message::{
            IoResponse,
            Op,
            Remote,
            ResponseKind,
            Status, //
        },
    },
    rdma::{
        backlog::Backlog,
        wr::{
            Chain,
            Rdma,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_irq_lock,
        IrqGuard,
        IrqLock, //
    },
    system::this_thread, //
};
use kernel::prelude::*;

impl Queue {
    /// Sends the response to a request, after the data that it asked for. Any context.
    pub(super) fn respond(&self, mut request: KBox<TargetRequest>, status: Status) {
        request.status = status;
        request.marks.leave_drive();
        if request.flush_error != 0 {
            self.expect_report();
        }
        leave_cache(&mut request, status == Status::Ok);
        trace::target::answered(|| request.about());
        // The credit that the response grants must exist before the response is sent.
        if request
            .receive
            .is_some_and(|buffer| self.post_receive(buffer).is_err())
        {
            self.unposted("a receive buffer", Some(request.index));
            // As after a failed read: a processor may have written the data.
            request.sync_for_hca();
            return self.give_up(request);
        }
        if Self::is_eager(&request) {
            return self.respond_eager(request);
        }

        if let Some((data, remote)) = self.immediate_read(&request) {
            return self.send_immediate(request, data, remote);
        }
        if request.sends_one_piece() {
            return self.send_one_piece(request);
        }
        if request.is_large() {
            return self.send_large(request);
        }
        self.send_usual(request);
    }

    /// Requests an event at the completion of the next response, which reports a flush error.
    /// Flushes on other queue pairs end with this error, too, until the completion is found.
    #[cold]
    fn expect_report(&self) {
        let mut work = self.work.lock();
        work.owed += 1;
        self.update_notify(&work);
        drop(work);
        self.pair.cq().kick();
    }

    /// Returns the data and the destination of a read whose response is one RDMA WRITE of one
    /// buffer, with an immediate value: most small reads.
    #[inline]
    fn immediate_read(&self, request: &TargetRequest) -> Option<(Sge, Remote)> {
        let (Ok(Op::Read(extent, remote)), Status::Ok) = (request.op, request.status) else {
            return None;
        };
        let buffer = request.only_buffer()?;
        if request.chunks.moves() || !self.uses_write_with_immediate(request, remote) {
            return None;
        }
        let length = extent.length as usize;
        buffer.sync_for_device(0, length);
        let data = buffer.slice_for(&self.pd, 0, length)?;
        Some((Sge::new(data), remote))
    }

    /// Sends the response to a read as the RDMA WRITE of its `data`, with an immediate value.
    #[inline]
    fn send_immediate(&self, mut request: KBox<TargetRequest>, data: Sge, remote: Remote) {
        request.moved = request.length() as u64;
        let data = [data];
        let mut write = Rdma::write(&data, remote.address, remote.key);
        write.immediate(request.tag.to_immediate(), !request.quiet);
        write.signal(WorkId::new(kind::RESPONSE, request.index));
        if self.batcher.gathers() {
            return self.gather(request, &mut [Some(write)], None);
        }
        let mut chain = Chain::new();
        chain.push(&mut write);
        self.post_here(request, &chain);
    }

    // Out of line, as `send_usual`.
    #[inline(never)]
    fn send_one_piece(&self, request: KBox<TargetRequest>) {
        self.send_with_data::<1, 1>(request);
    }

    // Out of line, to keep its tables out of the stack frame of every response.
    #[inline(never)]
    fn send_usual(&self, request: KBox<TargetRequest>) {
        self.send_with_data::<BUFFERS_USUAL, PARTS_MAX>(request);
    }

    #[cold]
    #[inline(never)]
    fn send_large(&self, request: KBox<TargetRequest>) {
        self.send_with_data::<BUFFERS_MAX, PARTS_MAX>(request);
    }

    /// Sends a response, after data in up to `BUFFERS` pieces of memory with up to `PARTS` RDMA
    /// WRITEs.
    #[inline(always)]
    fn send_with_data<const BUFFERS: usize, const PARTS: usize>(
        &self,
        mut request: KBox<TargetRequest>,
    ) {
        let index = request.index;
        let mut sges = [Sge::EMPTY; BUFFERS];
        let (count, data) = self.data_to_write(&mut request, &mut sges);
        let per_part = self.shape.write_sges;
        let unit = request.unit();
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
        if data.is_some_and(|remote| self.uses_write_with_immediate(&request, remote)) {
            for write in writes.iter_mut().flatten() {
                write.immediate(request.tag.to_immediate(), !request.quiet);
                write.signal(WorkId::new(kind::RESPONSE, index));
            }
            return self.post_response(request, &mut writes, None);
        }
        for write in writes.iter_mut().flatten() {
            let part = WorkId::new(kind::PART, index);
            if self.all_reported {
                write.signal(part);
            } else {
                write.name(part);
            }
        }
        self.send_response(request, &mut writes);
    }

    /// Fills `sges` with the data that the response writes to the initiator's memory, and returns
    /// the number of entries and the destination.
    #[inline(always)]
    fn data_to_write(
        &self,
        request: &mut TargetRequest,
        sges: &mut [Sge],
    ) -> (usize, Option<Remote>) {
        let (Ok(Op::Read(_, remote)), Status::Ok) = (request.op, request.status) else {
            return (0, None);
        };
        request.moved = request.length() as u64;
        if request.chunks.moves() {
            return (0, None);
        }
        request.sync_for_hca();
        (self.sges(request, sges), Some(remote))
    }

    /// Sends the response to a request, after `writes`.
    #[inline(always)]
    fn send_response(&self, request: KBox<TargetRequest>, writes: &mut [Option<Rdma<'_>>]) {
        let response = IoResponse {
            credits: 1,
            tag: request.tag,
            status: request.status,
        };
        let Ok(message) = self
            .outgoing
            .write(request.index as usize, &response.encode())
        else {
            self.broken("a request has no buffer for its response");
            return self.give_up(request);
        };
        let message = [Sge::new(message)];
        let mut send = Send::new(&message);
        if let Some(key) = key_to_invalidate(&request) {
            send = send.invalidating(key);
        }
        if !request.quiet {
            send.solicited();
        }
        send.signal(WorkId::new(kind::RESPONSE, request.index));
        self.post_response(request, writes, Some(&mut send));
    }

    /// Returns whether the response to a read is a write-with-immediate instead of a message: not
    /// on iWARP, and only if its data fits into one RDMA WRITE, whose length the initiator sees.
    #[inline]
    pub(super) fn uses_write_with_immediate(
        &self,
        request: &TargetRequest,
        remote: Remote,
    ) -> bool {
        remote.response == ResponseKind::Immediate && request.length() <= self.immediate_bytes
    }

    /// Fills `sges` with the scatter-gather entries of `request`'s data, and returns their number.
    #[inline]
    pub(super) fn sges(&self, request: &TargetRequest, sges: &mut [Sge]) -> usize {
        if let Some(count) = request.line_sges(sges) {
            return count;
        }
        let mut count = 0;
        let pd = &self.pd;
        for (piece, sge) in request.pieces().zip(sges.iter_mut()) {
            let length = piece.length;
            let ram = || Some(Sge::new(piece.buffer.slice_for(pd, 0, length)?));
            let peer = request
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

    /// Posts work requests, and parks `request` under its index until their completion.
    pub(super) fn post(&self, request: KBox<TargetRequest>, chain: &Chain<'_>) {
        self.post_here(request, chain);
    }

    /// Posts work requests as [`Self::post`] does, but is inlined into the caller.
    #[inline(always)]
    pub(super) fn post_here(&self, request: KBox<TargetRequest>, chain: &Chain<'_>) {
        let index = request.index;
        if let Err(request) = self.inflight.park(index, request) {
            return self.is_taken(request);
        }
        self.batcher.rang(chain.len().into());
        if self.pair.post(chain).is_err() {
            self.post_failed(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn is_taken(&self, request: KBox<TargetRequest>) {
        self.broken("in-flight slot of a request already occupied");
        self.give_up(request);
    }

    /// Gives up a request whose work requests were not posted, or only partly.
    #[cold]
    #[inline(never)]
    fn post_failed(&self, index: u32) {
        self.unposted("an RDMA READ or WRITE, or a response", Some(index));
        if let Some(request) = self.inflight.take(index) {
            self.give_up(request);
        }
    }
}

/// Returns the key that the response to `request` must invalidate.
pub(super) fn key_to_invalidate(request: &TargetRequest) -> Option<u32> {
    match request.op {
        Ok(Op::Read(_, remote) | Op::Write { remote, .. })
            if remote.response == ResponseKind::Invalidating =>
        {
            Some(remote.key)
        }
        _ => None,
    }
}

/// Maximum number of work requests that wait for a doorbell.
const ROOM: usize = 32;
/// Maximum number of scatter-gather entries of each.
const ENTRIES: usize = 4;
/// The least number of requests under way at which responses are gathered.
const FROM: usize = 4;

/// Gathers the responses of a round: see the module.
#[pin_data]
pub(super) struct ResponseBatcher {
    /// The thread of the completion handler while it gathers, else 0. Changed only by the handler.
    gathering: Atomic<usize>,
    /// Doorbells not yet counted: see [`Queue::round_over`].
    doorbells: Atomic<u64>,
    work_requests: Atomic<u64>,
    #[pin]
    waiting: IrqLock<ResponseBatch>,
}

/// Responses and work requests that wait for the next doorbell.
pub(super) struct ResponseBatch {
    pub(super) backlog: Backlog<ENTRIES>,
    /// Responses to eager writes that have no message yet.
    pub(super) eager_responses: EagerResponses,
    /// The index of the head of the list of `TargetRequest`s of these responses: the last one.
    pub(super) head: Option<u32>,
    /// The message of these responses must be solicited, because at least one of the responses must
    /// be.
    pub(super) solicited: bool,
    /// The index of the last waiting work request, if it ends a response that may be left
    /// unsignaled.
    pub(super) last: Option<u32>,
}

impl ResponseBatcher {
    /// Creates a batcher without responses. May sleep.
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        let waiting = ResponseBatch {
            backlog: Backlog::new(ROOM)?,
            eager_responses: EagerResponses::new(),
            head: None,
            solicited: false,
            last: None,
        };
        Ok(pin_init!(Self {
            gathering: Atomic::new(0),
            doorbells: Atomic::new(0),
            work_requests: Atomic::new(0),
            waiting <- new_irq_lock!(waiting, "hcablk_responses"),
        }))
    }

    /// Begins to gather responses if enough requests are under way when one was received.
    /// Completion handler.
    #[inline]
    pub(super) fn gather_from(&self, under_way: usize) {
        if under_way >= FROM && self.gathering.load(Relaxed) == 0 {
            self.gathering.store(this_thread(), Relaxed);
        }
    }

    /// Returns whether the caller is the completion handler, and gathers responses.
    #[inline]
    pub(super) fn gathers(&self) -> bool {
        let gathering = self.gathering.load(Relaxed);
        gathering != 0 && gathering == this_thread()
    }

    pub(super) fn waiting(&self) -> IrqGuard<'_, ResponseBatch> {
        self.waiting.lock()
    }

    /// Counts a doorbell for `work_requests` work requests. Any context.
    #[inline]
    pub(super) fn rang(&self, work_requests: u64) {
        self.doorbells.fetch_add(1, Relaxed);
        self.work_requests.fetch_add(work_requests, Relaxed);
    }
}

impl Queue {
    /// Posts a response, or adds it to those that wait; parks `request` under its index. Any
    /// context.
    #[inline(never)]
    pub(super) fn post_response(
        &self,
        request: KBox<TargetRequest>,
        writes: &mut [Option<Rdma<'_>>],
        send: Option<&mut Send<'_>>,
    ) {
        if self.batcher.gathers() {
            return self.gather(request, writes, send);
        }
        self.post(request, &chain(writes, send));
    }

    /// Adds a response to those that wait for the end of the round. Completion handler, which
    /// [gathers](ResponseBatcher::gathers).
    #[inline(always)]
    pub(super) fn gather(
        &self,
        mut request: KBox<TargetRequest>,
        writes: &mut [Option<Rdma<'_>>],
        mut send: Option<&mut Send<'_>>,
    ) {
        let index = request.index;
        let mut waiting = self.batcher.waiting.lock();
        let last = waiting.last.filter(|_| !self.all_reported);
        request.next = last;
        if let Err(request) = self.inflight.park(index, request) {
            drop(waiting);
            self.broken("in-flight slot of a response already occupied");
            return self.give_up(request);
        }
        waiting.last = Some(index);
        let backlog = &mut waiting.backlog;
        let before = backlog.len();
        if let (Some(last), Some(place)) = (last, before.checked_sub(1)) {
            // An error of the renamed work request is still reported, but reclaims no request: the
            // completion of the last one in the list does.
            backlog.rename_silent(place, WorkId::new(kind::PART, last));
        }
        let all = writes.iter_mut().flatten().all(|wr| backlog.push(wr))
            && send.as_mut().is_none_or(|wr| backlog.push(*wr));
        if all {
            return;
        }
        backlog.truncate(before);
        self.ring_with(waiting, &chain(writes, send), index);
    }

    /// Posts all waiting work requests and `chain`, the response of `TargetRequest` number `index`,
    /// for which there is no room.
    #[inline(never)]
    fn ring_with(&self, mut waiting: IrqGuard<'_, ResponseBatch>, chain: &Chain<'_>, index: u32) {
        let posted = self.ring(&mut waiting, chain);
        drop(waiting);
        if posted.is_err() {
            self.not_posted(Some(index));
        }
    }

    /// Ends the handler's round: reclaims responses whose SEND has completed, posts waiting ones,
    /// and adds the sums counted in other contexts to the counters. Completion handler.
    #[inline]
    pub(super) fn round_over(&self) {
        self.reclaim_completed();
        self.handle_wake();
        if self.batcher.gathering.load(Relaxed) != 0 {
            self.end_gathering();
        }
        let c = &self.counters;
        c.doorbells.add(take(&self.batcher.doorbells));
        c.work_requests.add(take(&self.batcher.work_requests));
    }

    /// Posts the responses that were gathered in this round.
    #[inline(never)]
    fn end_gathering(&self) {
        self.batcher.gathering.store(0, Relaxed);
        let mut waiting = self.batcher.waiting.lock();
        let mut failed = self.flush_responses(&mut waiting);
        let posted = self.ring(&mut waiting, &Chain::new());
        if posted.is_err() && failed.is_none() {
            failed = waiting.backlog.pop().map(|id| id.index);
        }
        drop(waiting);
        if failed.is_some() || posted.is_err() {
            self.not_posted(failed);
        }
    }

    pub(super) fn ring(&self, waiting: &mut ResponseBatch, chain: &Chain<'_>) -> Result {
        let requests = waiting.backlog.len() as u64 + u64::from(chain.len());
        if requests != 0 {
            self.batcher.rang(requests);
        }
        waiting.last = None;
        waiting.backlog.post(&self.pair, chain)
    }

    /// Gives up the waiting responses, since they were not posted, or only partly. The session
    /// ends, and completions of these responses find no `TargetRequest`.
    #[cold]
    pub(super) fn not_posted(&self, mut first: Option<u32>) {
        self.unposted("a response", first);
        while let Some(index) = first {
            let mut next = Some(index);
            while let Some(request) = next.and_then(|index| self.inflight.take(index)) {
                next = request.next;
                self.give_up(request);
            }
            first = self.batcher.waiting().backlog.pop().map(|id| id.index);
        }
    }
}

/// Takes the amount added to a sum since the last call. Executes no locked instruction if the sum
/// is zero.
#[inline]
fn take(sum: &Atomic<u64>) -> u64 {
    match sum.load(Relaxed) {
        0 => 0,
        _ => sum.xchg(0, Relaxed),
    }
}

/// Chains the work requests of a response, in order.
#[inline]
fn chain<'a>(writes: &'a mut [Option<Rdma<'_>>], send: Option<&'a mut Send<'_>>) -> Chain<'a> {
    let mut chain = Chain::new();
    for write in writes.iter_mut().flatten() {
        chain.push(write);
    }
    if let Some(send) = send {
        chain.push(send);
    }
    chain
}
