// SPDX-License-Identifier: GPL-2.0

//! Sequence numbers of the initiator's own work requests ([`WrSeq`]), where a request may not end
//! before one has completed: the SEND or RDMA WRITE that takes the data of a write, and the
//! LOCAL_INV of a key that the target's answer leaves valid.
//!
//! The numbers are in the order of posting, which is the order of completing. So one completion
//! covers all work requests before it: those that wait for their doorbell together have one
//! completion, the last one's, which takes over the send queue slots of the others, and is signaled
//! when they are posted. A completion does not name a request: the handler stores the last
//! completed number ([`Queue::is_completed`]), with which the answer compares. A request that is
//! answered earlier awaits its send's completion in a list, from [`Queue::awaiting_send`] on
//! through what each awaits ([`Awaited::next`]); each such completion ends the requests in the list
//! that it covers.
//!
//! Invalidations wait for their doorbell in the backlog until the end of the round of completions
//! in which the answers came, or until something else is posted.

use super::{
    complete::Round,
    kind,
    request_state::Awaited,
    Phase,
    Queue,
    SendState, //
};
use hcablk_core::sync::atomic::Relaxed;
use hcablk_core::{
    blkdev::Status,
    rdma::{
        cq::Success,
        wr::{
            CanWait,
            Chain,
            WorkId, //
        },
    },
    sglist::SegmentList,
};
use kernel::prelude::*;

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
pub(super) const NO_TAG: u32 = u32::MAX;

impl SendState {
    /// Allocates the sequence number of the next work request, whose completion frees `used`
    /// reserved slots. Under the lock, in the order of posting.
    #[inline]
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
        self.completed_seq.load(Relaxed).wrapping_sub(seq) as i32 >= 0
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
        let next = self.awaiting_send.load(Relaxed);
        self.awaiting_send.store(tag.into(), Relaxed);
        send.batching.await_send();
        self.update_notify(send);
        Awaited { status, seq, next }
    }

    /// Handles the completion of the work request `seq`, and so of all before it.
    #[inline]
    pub(super) fn send_completed(&self, round: &mut Round, seq: u32, proof: Success) {
        self.completed_seq.store(seq, Relaxed);
        if self.awaiting_send.load(Relaxed) != NO_TAG {
            self.end_awaiting(round, proof);
        }
    }

    /// Ends the requests whose send has completed, out of those that await it.
    fn end_awaiting(&self, round: &mut Round, proof: Success) {
        let mut next = self.awaiting_send.load(Relaxed);
        self.awaiting_send.store(NO_TAG, Relaxed);
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
                awaited.next = self.awaiting_send.load(Relaxed);
                self.awaiting_send.store(tag.into(), Relaxed);
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
