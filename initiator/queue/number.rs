// SPDX-License-Identifier: GPL-2.0

//! Which of our own work requests have completed, where a request may not end before one has: the
//! SEND or RDMA WRITE that takes the data of a write, and the invalidation of a key that
//! the target's answer leaves valid.
//!
//! They are *numbered*, in the order in which they are posted, in which they also
//! complete. So one that has completed speaks for all before it: those that wait for
//! their doorbell together have one completion, the last one's, for who puts one behind another
//! silences that and takes over its slots. And no completion need know of a request: the
//! handler keeps the last number ([`Queue::is_out`]), and the answer compares. A request that
//! is answered earlier lingers, in a list from [`Queue::lingerers`] on, through the data of its
//! tag; each numbered completion ends those of whom that is true.
//!
//! Invalidations wait for their doorbell in the backlog until the round of completions
//! in which the answers came is over, or somebody posts something else.

use super::{
    complete::Round,
    kind,
    Driver,
    Phase,
    Queue,
    SendState,
    TagData, //
};
use hcablk_core::{
    blkdev::Request,
    rdma::{
        backlog::CanWait,
        cq::Success,
        wr::{
            Chain,
            WorkId, //
        },
    },
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};

/// A numbered work request that waits in the backlog.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    /// Requests before it there.
    place: usize,
    /// Slots of the send queue that are free when it has completed.
    frees: u16,
}

/// What a work request is known by.
#[derive(Clone, Copy)]
pub(super) struct Numbered {
    pub(super) number: u32,
    /// Its id, with which it must be signaled.
    pub(super) id: WorkId,
}

/// Nobody lingers.
pub(super) const NOBODY: u32 = u32::MAX;

impl SendState {
    /// The number of the next work request, which ends `used` reserved slots.
    #[inline]
    pub(super) fn number(&mut self, used: u32) -> Numbered {
        let mut frees = self.space.post_signaled(used);
        if let Some(waiting) = self.waiting.take() {
            self.backlog.silence(waiting.place);
            frees += waiting.frees;
        }
        self.numbers = self.numbers.wrapping_add(1);
        Numbered {
            number: self.numbers,
            id: WorkId::new(kind::NUMBERED, self.numbers).freeing(frees),
        }
    }
}

impl Queue {
    /// Posts `wr`, which is signaled as `numbered`, or lets it wait for its doorbell.
    #[inline]
    pub(super) fn hand_over(
        &self,
        send: &mut SendState,
        wr: &mut impl CanWait,
        numbered: Numbered,
        wait: bool,
    ) -> Result {
        wr.signal(numbered.id);
        let place = send.backlog.len();
        if wait && send.backlog.push(wr) {
            let frees = numbered.id.slots;
            send.waiting = Some(Waiting { place, frees });
            return Ok(());
        }
        let mut chain = Chain::new();
        chain.push(wr);
        self.ring(send, &chain)
    }

    /// Takes the key of a request that was answered away before its memory is anybody
    /// else's: at the end of the round at the latest. A slot was reserved.
    pub(super) fn invalidate(
        &self,
        send: &mut SendState,
        round: &mut Round,
        data: &mut TagData,
    ) -> Result {
        let mut wr = data.list.invalidate()?;
        let numbered = send.number(1);
        data.slots = 0;
        data.number = numbered.number;
        self.done.local_invalidations.bump();
        round.invalidates = true;
        self.hand_over(send, &mut wr, numbered, true)
    }

    /// The end of a round that has left invalidations.
    pub(super) fn post_invalidations(&self) {
        let mut send = self.send.lock();
        let posted = self.ring(&mut send, &Chain::new());
        drop(send);
        self.check(posted);
    }

    /// Whether the work request of this number has completed. For the completion handler.
    #[inline]
    pub(super) fn is_out(&self, number: u32) -> bool {
        self.out.load(Relaxed).wrapping_sub(number) as i32 >= 0
    }

    /// The request `tag` was answered, and its number is still to come.
    #[inline]
    pub(super) fn linger(&self, send: &mut SendState, tag: u16, data: &mut TagData) {
        data.next = self.lingerers.load(Relaxed);
        self.lingerers.store(tag.into(), Relaxed);
        send.batching.linger();
        self.heed(send);
    }

    /// The work request of this number has completed, and all before it.
    #[inline]
    pub(super) fn numbered(&self, round: &mut Round, number: u32, proof: Success) {
        self.out.store(number, Relaxed);
        if self.lingerers.load(Relaxed) != NOBODY {
            self.end_lingerers(round, proof);
        }
    }

    fn end_lingerers(&self, round: &mut Round, proof: Success) {
        let mut next = self.lingerers.load(Relaxed);
        self.lingerers.store(NOBODY, Relaxed);
        while let Ok(tag) = u16::try_from(next) {
            let Some(mut request) = self.requests.take_any(self.index.into(), tag) else {
                return;
            };
            let Some((_, data)) = self.tags.of(&mut request) else {
                return;
            };
            next = data.next;
            if !self.is_out(data.number) {
                data.next = self.lingerers.load(Relaxed);
                self.lingerers.store(tag.into(), Relaxed);
                request.park();
                continue;
            }
            self.end_lingerer(round, request, proof);
        }
    }

    fn end_lingerer(&self, round: &mut Round, mut request: Request<Driver>, proof: Success) {
        let Some((_, data)) = self.tags.of(&mut request) else {
            return;
        };
        let status = match data.phase {
            Phase::Invalidating(status) => {
                // What was not invalidated is not released either.
                let _ = data.list.invalidated(proof);
                status
            }
            Phase::Answered(status) => status,
            // Not reached: only those linger.
            Phase::Idle | Phase::Sent => return request.park(),
        };
        self.lingered();
        self.finish(round, request, status);
    }
}
