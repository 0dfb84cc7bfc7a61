// SPDX-License-Identifier: GPL-2.0

//! Answers that wait for their doorbell.
//!
//! ```text
//!            a request finds others under way              round_done()
//!  (at once) ────────────────────────────────► Gathering ───────────────► (at once)
//! ```
//!
//! A round of the completion handler may find many requests, and a drive that
//! is fast answers them at once, before the call returns that begins them. Such
//! answers are gathered and posted together when the round is over, or when
//! there is no room for more. All others are posted at once: those that come from an
//! interrupt or another thread while the round lasts, too, for a drive may
//! make the handler wait.
//!
//! Of answers that are posted together only the last is reported: sends
//! complete in order. Their `Io`s are a list from the last to the first, reclaimed together.
//! Not on iWARP, where each is reported (`Queue::all_reported`).
//!
//! Answers to [eager](super::eager) writes go by one message for many: they
//! are put together until the round is over or the message is full. Their `Io`s
//! are such a list, too, and the message is in the last one's buffer.
//!
//! An answer that waits is in the table of work under way, as one that was
//! posted: it is reclaimed by its completion, or when posting failed. It waits
//! only while a round lasts, and every round comes to its end.
//!
//! `waiting` is a lock of its own, taken when answers are gathered only; no
//! other lock is taken inside.

use super::{
    kind,
    Io,
    Queue, //
};
use hcablk_core::{
    proto::grant::Answers,
    rdma::{
        backlog::Backlog,
        wr::{
            Chain,
            Rdma,
            Send,
            WorkId, //
        },
    },
    sync::{
        new_irq_lock,
        unordered::{
            UnorderedU64,
            UnorderedUsize, //
        },
        IrqGuard,
        IrqLock, //
    },
    system::this_thread,
};
use kernel::prelude::*;

/// Work requests that wait at most.
const ROOM: usize = 32;
/// Entries of one of them at most.
const ENTRIES: usize = 4;
/// Requests under way from which answers are gathered.
const FROM: usize = 4;

/// See the module.
#[pin_data]
pub(super) struct ResponseBatcher {
    /// The thread of the completion handler while it gathers, else 0. Changed by
    /// the handler only.
    gathering: UnorderedUsize,
    /// Not yet counted: see [`Queue::round_over`].
    doorbells: UnorderedU64,
    work_requests: UnorderedU64,
    #[pin]
    waiting: IrqLock<ResponseBatch>,
}

/// Responses and work requests that wait for the next doorbell.
pub(super) struct ResponseBatch {
    pub(super) backlog: Backlog<ENTRIES>,
    /// Answers to eager writes, of which no message was made yet.
    pub(super) answers: Answers,
    /// The last of these.
    pub(super) first: Option<u32>,
    /// The message of these is to be solicited, as one of their writes is.
    pub(super) solicited: bool,
    /// Of the work request that waits last, if it is the end of an answer that can leave
    /// its report to the next.
    pub(super) last: Option<u32>,
}

impl ResponseBatcher {
    /// Allocates one without responses. May sleep.
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        let waiting = ResponseBatch {
            backlog: Backlog::new(ROOM)?,
            answers: Answers::new(),
            first: None,
            solicited: false,
            last: None,
        };
        Ok(pin_init!(Self {
            gathering: UnorderedUsize::new(0),
            doorbells: UnorderedU64::new(0),
            work_requests: UnorderedU64::new(0),
            waiting <- new_irq_lock!(waiting, "hcablk_responses"),
        }))
    }

    /// Begins to gather answers if enough requests are under way when one was received.
    /// Completion handler.
    #[inline]
    pub(super) fn gather_from(&self, under_way: usize) {
        if under_way >= FROM && self.gathering.get() == 0 {
            self.gathering.set(this_thread());
        }
    }

    /// Returns whether the caller is the completion handler, and gathers answers.
    #[inline]
    pub(super) fn gathers(&self) -> bool {
        let gathering = self.gathering.get();
        gathering != 0 && gathering == this_thread()
    }

    pub(super) fn waiting(&self) -> IrqGuard<'_, ResponseBatch> {
        self.waiting.lock()
    }

    /// Counts a doorbell for `work_requests` work requests. Any context.
    #[inline]
    pub(super) fn rang(&self, work_requests: u64) {
        self.doorbells.add(1);
        self.work_requests.add(work_requests);
    }
}

impl Queue {
    /// Posts an answer, or lets it wait; `io` comes back by its index. Any
    /// context.
    #[inline(never)]
    pub(super) fn post_answer(
        &self,
        io: KBox<Io>,
        writes: &mut [Option<Rdma<'_>>],
        send: Option<&mut Send<'_>>,
    ) {
        if self.batcher.gathers() {
            return self.gather(io, writes, send);
        }
        self.post(io, &chain(writes, send));
    }

    /// Lets an answer wait for the end of the round. Completion handler, which [gathers](ResponseBatcher::gathers).
    #[inline(always)]
    pub(super) fn gather(
        &self,
        mut io: KBox<Io>,
        writes: &mut [Option<Rdma<'_>>],
        mut send: Option<&mut Send<'_>>,
    ) {
        let index = io.index;
        let mut waiting = self.batcher.waiting.lock();
        let last = waiting.last.filter(|_| !self.all_reported);
        io.next = last;
        if let Err(io) = self.inflight.park(index, io) {
            drop(waiting);
            self.broken("a request is there that is to be answered");
            return self.give_up(io);
        }
        waiting.last = Some(index);
        let backlog = &mut waiting.backlog;
        let before = backlog.len();
        if let (Some(last), Some(place)) = (last, before.checked_sub(1)) {
            // An error is reported all the same, but reclaims nothing: the list's end does.
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

    /// Posts what waits and `chain`, the answer of the `Io` number `index`, for which there is no room.
    #[inline(never)]
    fn ring_with(&self, mut waiting: IrqGuard<'_, ResponseBatch>, chain: &Chain<'_>, index: u32) {
        let posted = self.ring(&mut waiting, chain);
        drop(waiting);
        if posted.is_err() {
            self.not_posted(Some(index));
        }
    }

    /// Ends the handler's round: reclaims the answers whose send has completed, posts what waits,
    /// and adds to the counters what was counted elsewhere. Completion handler.
    #[inline]
    pub(super) fn round_over(&self) {
        self.reclaim_completed();
        self.handle_wake();
        if self.batcher.gathering.get() != 0 {
            self.end_gathering();
        }
        let c = &self.counters;
        c.doorbells.add(self.batcher.doorbells.take());
        c.work_requests.add(self.batcher.work_requests.take());
    }

    /// Posts the answers that were gathered in this round.
    #[inline(never)]
    fn end_gathering(&self) {
        self.batcher.gathering.set(0);
        let mut waiting = self.batcher.waiting.lock();
        let mut failed = self.flush_answers(&mut waiting);
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

    /// Gives up the answers that waited, since they were not posted, or only a part of them. The
    /// session ends, and completions of these find no `Io`.
    #[cold]
    pub(super) fn not_posted(&self, mut first: Option<u32>) {
        self.unposted("an answer", first);
        while let Some(index) = first {
            let mut next = Some(index);
            while let Some(io) = next.and_then(|index| self.inflight.take(index)) {
                next = io.next;
                self.give_up(io);
            }
            first = self.batcher.waiting().backlog.pop().map(|id| id.index);
        }
    }
}

/// Chains the work requests of an answer, in order.
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
