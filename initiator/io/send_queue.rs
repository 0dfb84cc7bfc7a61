// SPDX-License-Identifier: GPL-2.0

//! What a queue's send lock guards: the accounts of credits and of send queue slots, and what
//! waits for its doorbell.
//!
//! Work requests are posted at once, or behind others that wait for a doorbell, under the send
//! lock.
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
//! buffers, and the first request says how many more there are. The batch is flushed, that is,
//! its SEND is made and added to the backlog, when it is full or when the doorbell is rung,
//! whichever comes first. The REG_MRs of its requests wait in the backlog in front of it.
//!
//! A buffer may be used again when its request was answered: the target has received the whole
//! message then.
//!
//! Only the SEND's send queue slots are accounted for: those of the REG_MRs are freed with it,
//! and each request has reserved one slot, of which all but one are released. While the batch is
//! open every other work request that is accounted for is signaled, so that no completion covers
//! one behind it.
//!
//! # Sequence numbers
//!
//! The initiator's own work requests have sequence numbers ([`WrSeq`]) where a request may not end
//! before one has completed: the SEND or RDMA WRITE that takes the data of a write, and the
//! LOCAL_INV of a key that the target's answer leaves valid.
//!
//! The numbers are in the order of posting, which is the order of completing. So one completion
//! covers all work requests before it: those that wait for their doorbell together have one
//! completion, the last one's, which takes over the send queue slots of the others, and is signaled
//! when they are posted. A completion does not name a request: the handler stores the last
//! completed number ([`Queue::is_completed`]), with which the answer compares. A request that is
//! answered earlier awaits its send's completion in a list, from [`CompletedSends::awaiting`] on
//! through what each awaits ([`Awaited::next`]); each such completion ends the requests in the list
//! that it covers.
//!
//! Invalidations wait for their doorbell in the backlog until the end of the round of completions
//! in which the answers came, or until something else is posted.

use super::{
    complete::Round,
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
    transfers::Issued, //
};
use crate::{
    batching::Batching,
    failure::Failure,
    shape::{
        Shape,
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

/// Work requests that wait for their doorbell at most; blk-mq issues no more requests at once.
const PLUG: usize = 64;

/// What `Queue::send` guards.
pub(super) struct SendState {
    pub(super) space: SendSpace,
    pub(super) credits: Credits,
    /// A request was turned away for want of credits or slots.
    pub(super) starved: bool,
    /// See [`Queue::stop`].
    pub(super) stopped: bool,
    pub(super) nop: Nop,
    /// Those that were not answered in time, while the queue is marked for that
    /// ([`Queue::mark_timed_out`]).
    pub(super) late: Late,
    pub(super) batching: Batching,
    pub(super) eager_state: EagerState,
    /// Which slots of the eager ring are taken, and by which tags.
    pub(super) ring: Ring<KVec<Taken>>,
    /// What waits for the last of a plug, or for whatever else is posted.
    pub(super) backlog: Backlog<{ INLINE_SEGMENTS + 1 }>,
    /// The last work request with a sequence number in it, `None` if there is none.
    pub(super) waiting: Option<BackloggedWr>,
    /// Requests that the next message carries.
    pub(super) batch: MessageBatch,
    /// The last sequence number that was allocated.
    pub(super) last_seq: u32,
    /// How many requests were issued, with wrap.
    pub(super) issued: u32,
}

impl SendState {
    /// Makes the state of a queue that was granted nothing and has sent nothing. May sleep.
    pub(super) fn new(shape: Shape) -> Result<Self> {
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

    /// Takes a credit and `slots`, or neither and remembers that somebody waits.
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

    /// Gives back what [`Self::reserve`] took.
    #[cold]
    pub(super) fn unreserve(&mut self, slots: u32) {
        self.space.release(slots);
        if self.credits.grant(1).is_err() {
            // All are there, so none is lost.
            broken!("a credit is given back that was not taken");
        }
        // There is one now, so something can be asked.
        let _ = self.credits.answered();
    }
}

impl Queue {
    /// Posts the `message` of a request in a SEND, with its REG_MR in front, or adds them to what
    /// waits.
    // What is known of `register` where it is called leaves less to do.
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

    /// Posts `chain`, which is not empty, as [`Self::ring`] does: for requests that are issued,
    /// before which most often nothing waits.
    #[inline(always)]
    pub(super) fn ring_now(&self, send: &mut SendState, chain: Chain<'_>) -> Result {
        if send.batch.is_empty() && send.backlog.is_empty() {
            self.count_doorbell(chain.len().into());
            return self.pair.post(&chain);
        }
        self.ring(send, &chain.moved())
    }

    /// Posts what waits for its doorbell, and then `chain`. Everything that this
    /// queue pair is given goes this way, unless nothing waits, for the account of slots is in the
    /// order of posting.
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

    /// Counts a doorbell for so many work requests.
    #[inline(always)]
    fn count_doorbell(&self, requests: u64) {
        self.sent.doorbells.bump();
        self.sent.work_requests.add(requests);
    }

    /// Fails the session if posting failed. The requests are ended when the queue pair is gone,
    /// since some of the work may have been posted.
    #[inline]
    pub(super) fn check(&self, posted: Result) {
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
    }

    /// Rings the doorbell for requests that others were to follow, but did not (`commit_rqs`).
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

/// The requests for which no SEND was made yet.
pub(super) struct MessageBatch {
    sges: [Sge; BATCH_MAX],
    count: usize,
    /// The most requests of one message.
    most: usize,
    /// Tag of the first.
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

    /// Sets the most requests of one message, at least 1.
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
    /// follows at once, so the doorbell is rung.
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

    /// Makes the SEND of the message batch, and adds it to the backlog.
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

    /// Makes the SEND of a message, named by its first request's tag; `used`: the send queue slots
    /// of itself and of the REG_MRs in front of it.
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
    /// Requests before it there.
    place: usize,
    /// Slots of the send queue that are free when it has completed.
    frees: u16,
}

/// The sequence number of a work request.
#[derive(Clone, Copy)]
pub(super) struct WrSeq {
    /// Modulo 2^32.
    pub(super) seq: u32,
    /// Slots of the send queue that are free when it has completed.
    frees: u16,
}

impl WrSeq {
    /// Returns the work id with which it must be signaled.
    #[inline(always)]
    fn id(self) -> WorkId {
        WorkId::new(kind::SEQ, self.seq).freeing(self.frees)
    }
}

/// The end of the list of requests that await a send's completion.
const NO_TAG: u32 = u32::MAX;

/// What has completed of a queue's own work requests, and which requests await that. Changed by
/// the completion handler only, but for `awaited`.
pub(super) struct CompletedSends {
    /// Slots of the send queue that completions have freed so far, modulo 2^32.
    freed: Atomic<u32>,
    /// The sequence number of the last work request that has completed.
    seq: Atomic<u32>,
    /// The first tag whose request awaits its send's completion, or [`NO_TAG`].
    awaiting: Atomic<u32>,
    /// Requests whose awaited send has completed, but for which `batching` still arms. Counted by
    /// the completion handler, and taken by it or by who arms after it, on another processor.
    awaited: Atomic<u32>,
}

impl CompletedSends {
    /// Makes it for a queue that has sent nothing.
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

    /// Puts a tag in front of the list of those whose request awaits a completion. Returns the one
    /// that was the first. Completion handler.
    #[inline(always)]
    fn put_awaiting(&self, tag: u16) -> u32 {
        let next = self.awaiting.load(Relaxed);
        self.awaiting.store(tag.into(), Relaxed);
        next
    }

    /// Takes the list of these tags. Completion handler.
    fn take_awaiting(&self) -> u32 {
        let first = self.awaiting.load(Relaxed);
        self.awaiting.store(NO_TAG, Relaxed);
        first
    }

    /// Counts a request whose awaited send has completed. Completion handler.
    #[inline(always)]
    pub(super) fn count_awaited(&self) {
        // Who arms at the end of a round may take the count while another processor has begun the
        // next round.
        self.awaited.fetch_add(1, Relaxed);
    }

    /// Returns whether such requests were counted.
    #[inline(always)]
    pub(super) fn has_awaited(&self) -> bool {
        self.awaited.load(Relaxed) != 0
    }

    /// Takes their count.
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

    /// Lets the work request `wr_seq` wait, which is signaled when it is posted, unless another one
    /// with a sequence number comes behind it. There is room for it.
    #[inline(always)]
    fn let_wait(&mut self, wr_seq: WrSeq, mut wr: impl CanWait) -> Result {
        let place = self.backlog.len();
        wr.name(wr_seq.id());
        self.backlog.push(&mut wr).then_some(()).ok_or(EIO)?;
        let frees = wr_seq.frees;
        self.waiting = Some(BackloggedWr { place, frees });
        Ok(())
    }

    /// Asks for the completion of the last work request with a sequence number that waits, which is
    /// about to be posted.
    #[inline(always)]
    pub(super) fn signal_waiting(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            self.backlog.signal(waiting.place);
        }
    }

    /// Forgets what waits for its doorbell.
    #[cold]
    pub(super) fn forget_waiting(&mut self) {
        self.backlog.truncate(0);
        self.waiting = None;
    }
}

impl Queue {
    /// Posts the work request that is made by `make`, signaled as `wr_seq`, or adds it to the
    /// backlog if `wait`.
    // `make` is called for either case by itself, so that what waits is made where it waits.
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

    /// Queues the LOCAL_INV `wr_seq` of an answered request's key, which is posted at the end of
    /// the round at the latest. A send queue slot was reserved.
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

    /// Posts the invalidations that a round has queued.
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

    /// Adds the request `tag`, which was answered and ends with `status`, to those that await the
    /// completion of a work request, `seq`. Returns what becomes part of its phase. Completion
    /// handler.
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

    /// Handles the completion of the work request `seq`, and so of all before it.
    #[inline]
    pub(super) fn send_completed(&self, round: &mut Round, seq: u32, proof: Success) {
        self.completed_sends.seq.store(seq, Relaxed);
        if self.completed_sends.awaiting.load(Relaxed) != NO_TAG {
            self.end_awaiting(round, proof);
        }
    }

    /// Ends the requests whose send has completed, out of those that await it.
    fn end_awaiting(&self, round: &mut Round, proof: Success) {
        let mut next = self.completed_sends.take_awaiting();
        while let Ok(tag) = u16::try_from(next) {
            let Some(mut request) = self.tags.take_any(self.path, tag) else {
                return;
            };
            let (_, data) = request.split();
            let awaited = match &mut data.phase {
                Phase::Invalidating(awaited) | Phase::Answered(awaited) => awaited,
                // Not reached: only those are in the list.
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
                // What was not invalidated is not released either.
                let _ = data.list.invalidated(proof);
            }
            self.send_awaited();
            self.finish(round, request, status);
        }
    }
}
