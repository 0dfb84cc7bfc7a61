// SPDX-License-Identifier: GPL-2.0

//! The state under a queue's send lock: the accounts of credits and of send queue slots, and the
//! work requests that wait for their doorbell.
//!
//! Under the send lock, a work request is posted at once or waits behind others for a doorbell.
//!
//! # The message batch
//!
//! Requests of one plug without inline data share a SEND.
//!
//! ```text
//!           push()                     push()                   full, or ring()
//!  Empty ──────────► Open, 1 request ──────────► Open, several ────────────────► Empty
//! ```
//!
//! Each request is in the message buffer of its tag, as if it were alone. The SEND gathers these
//! buffers, and the first request names the number of requests that follow it. The batch is flushed
//! when it is full or when the doorbell is rung, whichever comes first: its SEND is built and added
//! to the backlog. The REG_MRs of its requests wait in the backlog in front of it.
//!
//! A buffer may be reused after its request's response: by then the target has received the whole
//! message.
//!
//! Only the SEND's send queue slots are accounted for: the slots of the REG_MRs are freed with it,
//! and each request has reserved one SEND slot, of which all but one are released. While the batch
//! is open, each accounted work request outside of the batch is signaled, so that its completion
//! does not cover a work request behind it.
//!
//! # Sequence numbers
//!
//! Some requests must not end before a work request of the initiator has completed: the SEND or
//! RDMA WRITE with the data of a write, or the LOCAL_INV of a key that the target's response left
//! valid. These work requests have sequence numbers ([`WrSeq`]).
//!
//! Work requests complete in the order of posting, which is the order of their numbers, so one
//! completion covers all work requests before it. Those that wait for their doorbell together share
//! the completion of the last one, which takes over the send queue slots of the others and is
//! signaled when they are posted. A completion does not name a request: the handler stores the last
//! completed number ([`Queue::is_completed`]), and each response compares with it. A request whose
//! response comes earlier awaits its send's completion in a list, which starts at
//! [`CompletedSends::awaiting`] and is linked by [`Awaited::next`]; each such completion ends the
//! requests in the list that it covers.
//!
//! Invalidations wait in the backlog until the end of the round of completions that handled the
//! responses, or until something else is posted.

use super::{
    complete::Round,
    data_paths::Issued, //
    eager::EagerState,
    life::{
        Late,
        Nop, //
    },
    queue::{
        kind,
        Awaited,
        Phase,
        Queue, //
    },
};
use crate::{
    batching::Batching,
    failure::Failure,
    shape::{
        QueueShape,
        BATCH_MAX,
        INLINE_SEGMENTS, //
    },
};
use hcablk_core::{
    blkdev::Status,
    broken,
    proto::{
        credits::Credits,
        eager_ring::{
            open_writes,
            Ring,
            Taken, //
        },
        message::{
            MORE_OFFSET,
            REQUEST_LEN, //
        },
    },
    rdma::{
        backlog::Backlog,
        cq::Success,
        space::SendSpace,
        wr::{
            CanWait,
            Chain,
            Register,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    sglist::SegmentList,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};
use kernel::prelude::*;

/// Maximum number of work requests that wait for a doorbell: blk-mq issues at most this many
/// requests at once.
const PLUG: usize = 64;

/// The state that `Queue::send` guards.
pub(super) struct SendState {
    pub(super) space: SendSpace,
    pub(super) credits: Credits,
    /// A request was refused for lack of credits or slots.
    pub(super) starved: bool,
    /// See [`Queue::stop`].
    pub(super) stopped: bool,
    pub(super) nop: Nop,
    /// The requests that timed out, while the queue is marked for that ([`Queue::mark_timed_out`]).
    pub(super) late: Late,
    pub(super) batching: Batching,
    pub(super) eager_state: EagerState,
    /// The taken slots of the eager ring, with their tags.
    pub(super) ring: Ring<KVec<Taken>>,
    /// Work requests that are posted with the last request of a plug, or with any other work.
    pub(super) backlog: Backlog<{ INLINE_SEGMENTS + 1 }>,
    /// The last work request in the backlog with a sequence number, `None` if there is none.
    pub(super) waiting: Option<BackloggedWr>,
    /// Requests that the next message carries.
    pub(super) batch: MessageBatch,
    /// The last allocated sequence number.
    pub(super) last_seq: u32,
    /// The number of issued requests, with wrap.
    pub(super) issued: u32,
}

impl SendState {
    /// Creates the state of a queue without credits that has sent nothing. May sleep.
    pub(super) fn new(shape: QueueShape) -> Result<Self> {
        let mut taken = KVec::new();
        taken.resize(open_writes(shape.depth), Taken::default(), GFP_KERNEL)?;
        Ok(Self {
            space: SendSpace::new(shape.send_slots(), shape.signal_period()),
            credits: Credits::new(0),
            starved: false,
            stopped: false,
            nop: Nop::Nothing,
            late: Late::new(usize::from(shape.depth) + 1)?,
            batching: Batching::new(0, 0),
            eager_state: EagerState::Never,
            ring: Ring::new(0, 0, taken),
            backlog: Backlog::new(usize::from(shape.depth).min(PLUG))?,
            waiting: None,
            batch: MessageBatch::new(),
            last_seq: 0,
            issued: 0,
        })
    }

    /// Takes a credit and `slots`; if either is short, takes neither and sets `starved`.
    #[inline]
    pub(super) fn reserve(&mut self, slots: u32, freed: impl FnOnce() -> u32) -> bool {
        if self.space.reserve(slots, freed) {
            if self.credits.take() {
                return true;
            }
            self.space.release(slots);
        }
        self.starved = true;
        false
    }

    /// Returns the credit and the slots that [`Self::reserve`] took.
    #[cold]
    pub(super) fn unreserve(&mut self, slots: u32) {
        self.space.release(slots);
        if self.credits.grant(1).is_err() {
            // The account was full, so no credit is lost.
            broken!("a credit was returned that was not taken");
        }
        // One credit is free again, so a request can be sent.
        let _ = self.credits.responded();
    }
}

impl Queue {
    /// Posts the `message` of a request in a SEND, with its REG_MR in front, or adds both to the
    /// backlog.
    // `inline(always)`: callers pass a constant `register`, so its test folds away.
    #[inline(always)]
    pub(super) fn post_message(
        &self,
        send: &mut SendState,
        issued: Issued,
        message: Sge,
        register: Option<&mut Register<'_>>,
    ) -> Result {
        let (tag, last) = (issued.tag.index, issued.last);
        if !last || !send.batch.is_empty() {
            return self.push(send, tag, message, register, last);
        }
        let used = 1 + u32::from(register.is_some());
        let sges = [message];
        let mut wr = self.message(&mut send.space, &sges, tag, used);
        let mut chain = Chain::new();
        if let Some(register) = register {
            chain.push(register);
        }
        chain.push(&mut wr);
        self.ring_now(send, chain)
    }

    /// Posts `chain`, which is not empty, as [`Self::ring`] does: for issued requests, before which
    /// the backlog is empty most of the time.
    #[inline(always)]
    pub(super) fn ring_now(&self, send: &mut SendState, chain: Chain<'_>) -> Result {
        if send.batch.is_empty() && send.backlog.is_empty() {
            self.count_doorbell(chain.len().into());
            return self.pair.post(&chain);
        }
        self.ring(send, &chain.moved())
    }

    /// Posts the backlog and then `chain`. All work for the queue pair goes through here unless the
    /// backlog is empty, since the account of slots relies on the order of posting.
    #[inline(never)]
    pub(super) fn ring(&self, send: &mut SendState, chain: &Chain<'_>) -> Result {
        if !send.batch.is_empty() {
            if let Err(e) = self.flush(send) {
                send.forget_waiting();
                return Err(e);
            }
        }
        self.post(send, chain)
    }

    /// Posts the backlog and then `chain`, as [`Self::ring`] does, without flushing the message
    /// batch.
    #[inline]
    pub(super) fn post(&self, send: &mut SendState, chain: &Chain<'_>) -> Result {
        let requests = send.backlog.len() as u64 + u64::from(chain.len());
        if requests != 0 {
            self.count_doorbell(requests);
        }
        send.signal_waiting();
        let posted = send.backlog.post(&self.pair, chain);
        if posted.is_err() {
            send.forget_waiting();
        }
        posted
    }

    /// Counts a doorbell for this many work requests.
    #[inline(always)]
    fn count_doorbell(&self, requests: u64) {
        self.sent.doorbells.bump();
        self.sent.work_requests.add(requests);
    }

    /// Fails the session if posting failed. The requests end after the queue pair is gone, since
    /// some of the work may have been posted.
    #[inline]
    pub(super) fn check(&self, posted: Result) {
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
    }

    /// Rings the doorbell for requests after which others were expected, when the block layer
    /// issues no more of their plug (`commit_rqs`).
    pub(super) fn commit(&self) {
        let mut send = self.send.lock();
        let posted = self.ring(&mut send, &Chain::new());
        let reap = send.batching.shall_reap();
        drop(send);
        self.check(posted);
        if reap {
            self.reap();
        }
    }
}

/// The requests of the next SEND, which is not built yet.
pub(super) struct MessageBatch {
    sges: [Sge; BATCH_MAX],
    count: usize,
    /// Maximum number of requests in one message.
    most: usize,
    /// Tag of the first request.
    first: u16,
    /// REG_MRs of these requests, in the backlog.
    registrations: u32,
}

impl MessageBatch {
    pub(super) const fn new() -> Self {
        Self {
            sges: [Sge::EMPTY; BATCH_MAX],
            count: 0,
            most: 1,
            first: 0,
            registrations: 0,
        }
    }

    /// Sets the maximum number of requests in one message, at least 1.
    pub(super) fn set_limit(&mut self, most: usize) {
        self.most = most.clamp(1, BATCH_MAX);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Queue {
    /// Pushes a request to the message batch, and its REG_MR to the backlog; `last`: no other
    /// request follows at once, so the doorbell is rung.
    #[inline(never)]
    pub(super) fn push(
        &self,
        send: &mut SendState,
        tag: u16,
        request: Sge,
        register: Option<&mut Register<'_>>,
        last: bool,
    ) -> Result {
        if let Some(wr) = register {
            if send.backlog.is_full() {
                self.ring(send, &Chain::new())?;
            }
            send.backlog.push(wr).then_some(()).ok_or(EIO)?;
            send.batch.registrations += 1;
        }
        let batch = &mut send.batch;
        if batch.count == 0 {
            batch.first = tag;
        }
        if let Some(sge) = batch.sges.get_mut(batch.count) {
            *sge = request;
            batch.count += 1;
        }
        if last {
            self.ring(send, &Chain::new())
        } else if batch.count >= batch.most {
            self.flush(send)
        } else {
            Ok(())
        }
    }

    /// Builds the SEND of the message batch, and adds it to the backlog.
    pub(super) fn flush(&self, send: &mut SendState) -> Result {
        let count = core::mem::take(&mut send.batch.count);
        let used = 1 + core::mem::take(&mut send.batch.registrations);
        if send.backlog.is_full() {
            self.post(send, &Chain::new())?;
        }
        let SendState {
            space,
            backlog,
            batch,
            ..
        } = send;
        let more = count.saturating_sub(1);
        if more != 0 {
            self.outgoing
                .set(batch.first.into(), REQUEST_LEN, MORE_OFFSET, more as u8)?;
            space.release(more as u32);
            self.sent.joined.add(more as u64);
        }
        let sges = batch.sges.get(..count).unwrap_or(&[]);
        let mut wr = self.message(space, sges, batch.first, used);
        backlog.push(&mut wr).then_some(()).ok_or(EIO)
    }

    /// Builds the SEND of a message, named by its first request's tag; `used`: its send queue
    /// slots, with those of the REG_MRs in front of it.
    #[inline(always)]
    pub(super) fn message<'a>(
        &self,
        space: &mut SendSpace,
        sges: &'a [Sge],
        first: u16,
        used: u32,
    ) -> Send<'a> {
        self.sent.sends.bump();
        let mut wr = Send::new(sges);
        wr.solicited();
        let id = WorkId::new(kind::SEND, first.into());
        match space.post(used) {
            Some(freed) => wr.signal(id.freeing(freed)),
            None => wr.name(id),
        }
        wr
    }
}

/// A work request with a sequence number that waits in the backlog.
#[derive(Clone, Copy)]
pub(super) struct BackloggedWr {
    /// Number of requests before it in the backlog.
    place: usize,
    /// Send queue slots that its completion frees.
    frees: u16,
}

/// The sequence number of a work request.
#[derive(Clone, Copy)]
pub(super) struct WrSeq {
    /// The number, modulo 2^32.
    pub(super) seq: u32,
    /// Send queue slots that its completion frees.
    frees: u16,
}

impl WrSeq {
    /// Returns the work id with which the work request must be signaled.
    #[inline(always)]
    fn id(self) -> WorkId {
        WorkId::new(kind::SEQ, self.seq).freeing(self.frees)
    }
}

/// Ends the list of requests that await a send's completion.
const NO_TAG: u32 = u32::MAX;

/// The completions of a queue's own work requests, and the requests that await one. Only the
/// completion handler changes these, except for `awaited`.
pub(super) struct CompletedSends {
    /// Send queue slots that completions have freed so far, modulo 2^32.
    freed: Atomic<u32>,
    /// The sequence number of the last work request that has completed.
    seq: Atomic<u32>,
    /// The first tag whose request awaits its send's completion, or [`NO_TAG`].
    awaiting: Atomic<u32>,
    /// Requests whose awaited send has completed while `batching` still arms the completion queue
    /// for it. The completion handler counts them; it, or an arming that runs later on another
    /// processor, takes the count.
    awaited: Atomic<u32>,
}

impl CompletedSends {
    /// Creates the state of a queue that has sent nothing.
    pub(super) const fn new() -> Self {
        Self {
            freed: Atomic::new(0),
            seq: Atomic::new(0),
            awaiting: Atomic::new(NO_TAG),
            awaited: Atomic::new(0),
        }
    }

    /// Returns how many send queue slots completions have freed so far, modulo 2^32.
    #[inline(always)]
    pub(super) fn freed(&self) -> u32 {
        self.freed.load(Relaxed)
    }

    /// Adds slots that a completion has freed. Completion handler.
    #[inline(always)]
    pub(super) fn free(&self, slots: u16) {
        self.freed
            .store(self.freed().wrapping_add(slots.into()), Relaxed);
    }

    /// Returns whether the work request `seq` has completed. Completion handler.
    #[inline(always)]
    pub(super) fn has(&self, seq: u32) -> bool {
        self.seq.load(Relaxed).wrapping_sub(seq) as i32 >= 0
    }

    /// Puts a tag in front of the list of requests that await a completion. Returns the former
    /// first tag. Completion handler.
    #[inline(always)]
    fn put_awaiting(&self, tag: u16) -> u32 {
        let next = self.awaiting.load(Relaxed);
        self.awaiting.store(tag.into(), Relaxed);
        next
    }

    /// Takes the list of tags whose requests await a completion. Completion handler.
    fn take_awaiting(&self) -> u32 {
        let first = self.awaiting.load(Relaxed);
        self.awaiting.store(NO_TAG, Relaxed);
        first
    }

    /// Counts a request whose awaited send has completed. Completion handler.
    #[inline(always)]
    pub(super) fn count_awaited(&self) {
        // Arming at the end of a round may take the count while another processor has begun the
        // next round.
        self.awaited.fetch_add(1, Relaxed);
    }

    /// Returns whether [`Self::count_awaited`] has counted requests that were not taken.
    #[inline(always)]
    pub(super) fn has_awaited(&self) -> bool {
        self.awaited.load(Relaxed) != 0
    }

    /// Takes the count of requests whose awaited send has completed.
    #[inline(always)]
    pub(super) fn take_awaited(&self) -> u32 {
        self.awaited.xchg(0, Relaxed)
    }
}

impl SendState {
    /// Allocates the sequence number of the next work request, whose completion frees `used`
    /// reserved slots. Under the lock, in the order of posting.
    #[inline(always)]
    pub(super) fn next_seq(&mut self, used: u32) -> WrSeq {
        let mut frees = self.space.post_signaled(used);
        if let Some(waiting) = self.waiting.take() {
            frees += waiting.frees;
        }
        self.last_seq = self.last_seq.wrapping_add(1);
        WrSeq {
            seq: self.last_seq,
            frees,
        }
    }

    /// Adds the work request `wr_seq` to the backlog. It is signaled when it is posted, unless a
    /// later one with a sequence number joins the backlog. The backlog has room for it.
    #[inline(always)]
    fn let_wait(&mut self, wr_seq: WrSeq, mut wr: impl CanWait) -> Result {
        let place = self.backlog.len();
        wr.name(wr_seq.id());
        self.backlog.push(&mut wr).then_some(()).ok_or(EIO)?;
        let frees = wr_seq.frees;
        self.waiting = Some(BackloggedWr { place, frees });
        Ok(())
    }

    /// Signals the last work request with a sequence number in the backlog, which is about to be
    /// posted.
    #[inline(always)]
    pub(super) fn signal_waiting(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            self.backlog.signal(waiting.place);
        }
    }

    /// Drops the backlog.
    #[cold]
    pub(super) fn forget_waiting(&mut self) {
        self.backlog.truncate(0);
        self.waiting = None;
    }
}

impl Queue {
    /// Posts the work request that `make` builds, signaled as `wr_seq`, or adds it to the backlog
    /// if `wait`.
    // `make` is called separately in each case, so that it builds a waiting work request in place.
    #[inline(always)]
    pub(super) fn post_or_queue<W: CanWait>(
        &self,
        send: &mut SendState,
        wr_seq: WrSeq,
        wait: bool,
        make: impl FnOnce() -> W,
    ) -> Result {
        if wait && !send.backlog.is_full() {
            return send.let_wait(wr_seq, make());
        }
        let mut wr = make();
        wr.signal(wr_seq.id());
        let mut chain = Chain::new();
        chain.push(&mut wr);
        self.ring_now(send, chain)
    }

    /// Queues the LOCAL_INV `wr_seq` for the key of a request with a response; it is posted at the
    /// end of the round at the latest. The caller has reserved a send queue slot.
    pub(super) fn invalidate(
        &self,
        send: &mut SendState,
        round: &mut Round,
        list: &mut SegmentList,
        wr_seq: WrSeq,
    ) -> Result {
        let wr = list.invalidate()?;
        self.done.local_invalidations.bump();
        round.invalidates = true;
        self.post_or_queue(send, wr_seq, true, || wr)
    }

    /// Posts the invalidations that the round has queued.
    pub(super) fn post_invalidations(&self) {
        let mut send = self.send.lock();
        let posted = self.ring(&mut send, &Chain::new());
        drop(send);
        self.check(posted);
    }

    /// Returns whether the work request `seq` has completed. Completion handler.
    #[inline]
    pub(super) fn is_completed(&self, seq: u32) -> bool {
        self.completed_sends.has(seq)
    }

    /// Adds the request `tag`, which has its response and ends with `status`, to the requests that
    /// await the completion of work request `seq`. Returns the link for the request's phase.
    /// Completion handler.
    #[inline]
    pub(super) fn await_send(
        &self,
        send: &mut SendState,
        tag: u16,
        status: Status,
        seq: u32,
    ) -> Awaited {
        let next = self.completed_sends.put_awaiting(tag);
        send.batching.await_send();
        self.update_notify(send);
        Awaited { status, seq, next }
    }

    /// Handles the completion of the work request `seq`, which covers all work requests before it.
    #[inline]
    pub(super) fn send_completed(&self, round: &mut Round, seq: u32, proof: Success) {
        self.completed_sends.seq.store(seq, Relaxed);
        if self.completed_sends.awaiting.load(Relaxed) != NO_TAG {
            self.end_awaiting(round, proof);
        }
    }

    /// Ends the listed requests whose awaited send has completed.
    fn end_awaiting(&self, round: &mut Round, proof: Success) {
        let mut next = self.completed_sends.take_awaiting();
        while let Ok(tag) = u16::try_from(next) {
            let Some(mut request) = self.tags.take_any(tag) else {
                return;
            };
            let (_, data) = request.split();
            let awaited = match &mut data.phase {
                Phase::Invalidating(awaited) | Phase::Responded(awaited) => awaited,
                // Not reached: the list has only requests that await a completion.
                Phase::Idle | Phase::Sent { .. } | Phase::Kept => return request.park(),
            };
            next = awaited.next;
            if !self.is_completed(awaited.seq) {
                awaited.next = self.completed_sends.put_awaiting(tag);
                request.park();
                continue;
            }
            let status = awaited.status;
            if matches!(data.phase, Phase::Invalidating(_)) {
                // A key that was not invalidated is not released either.
                let _ = data.list.invalidated(proof);
            }
            self.send_awaited();
            self.finish(round, request, status);
        }
    }
}
