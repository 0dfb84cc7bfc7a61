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
//! An answer that waits is in the table of work under way, as one that was
//! posted: it comes home by its completion, or when posting failed. It waits
//! only while a round lasts, and every round comes to its end.
//!
//! `waiting` is a lock of its own, taken when answers are gathered only; no
//! other lock is taken inside.

use super::Queue;
use crate::io::Io;
use hcablk_core::{
    rdma::{
        backlog::Backlog,
        wr::{
            Chain,
            Rdma,
            Send, //
        },
    },
    sync::{
        new_irq_lock,
        IrqLock, //
    },
    system::this_thread,
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// Work requests that wait at most.
const ROOM: usize = 32;
/// Entries of one of them at most.
const ENTRIES: usize = 4;
/// Requests under way from which answers are gathered.
const FROM: usize = 4;

/// See the module.
#[pin_data]
pub(super) struct Outbox {
    /// The thread of the completion handler while it gathers, else 0. Changed by
    /// the handler only.
    gathering: Atomic<usize>,
    /// Not yet counted: see [`Queue::round_over`].
    doorbells: Atomic<u64>,
    work_requests: Atomic<u64>,
    #[pin]
    waiting: IrqLock<Backlog<ENTRIES>>,
}

impl Outbox {
    /// May sleep.
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        let backlog = Backlog::new(ROOM)?;
        Ok(pin_init!(Self {
            gathering: Atomic::new(0),
            doorbells: Atomic::new(0),
            work_requests: Atomic::new(0),
            waiting <- new_irq_lock!(backlog),
        }))
    }

    /// A request was received while so many are under way. Completion handler.
    #[inline]
    pub(super) fn heed(&self, under_way: usize) {
        if under_way >= FROM && self.gathering.load(Relaxed) == 0 {
            self.gathering.store(this_thread(), Relaxed);
        }
    }

    /// A doorbell was rung for so many work requests. Any context.
    #[inline]
    pub(super) fn rang(&self, work_requests: u64) {
        self.doorbells.fetch_add(1, Relaxed);
        self.work_requests.fetch_add(work_requests, Relaxed);
    }
}

impl Queue {
    /// Posts an answer, or lets it wait; `io` comes back by its index. Any
    /// context.
    #[inline]
    pub(super) fn post_answer(
        &self,
        io: KBox<Io>,
        writes: &mut [Option<Rdma<'_>>],
        send: Option<&mut Send<'_>>,
    ) {
        let gathering = self.outbox.gathering.load(Relaxed);
        if gathering != 0 && gathering == this_thread() {
            return self.gather(io, writes, send);
        }
        self.post(io, &chain(writes, send));
    }

    fn gather(
        &self,
        io: KBox<Io>,
        writes: &mut [Option<Rdma<'_>>],
        mut send: Option<&mut Send<'_>>,
    ) {
        let index = io.index;
        if let Err(io) = self.inflight.park(index, io) {
            self.session.end();
            return self.give_up(io);
        }
        let mut waiting = self.outbox.waiting.lock();
        let before = waiting.len();
        let all = writes.iter_mut().flatten().all(|wr| waiting.push(wr))
            && send.as_mut().is_none_or(|wr| waiting.push(*wr));
        if all {
            return;
        }
        waiting.truncate(before);
        let posted = self.ring(&mut waiting, &chain(writes, send));
        drop(waiting);
        if posted.is_err() {
            self.not_posted(Some(index));
        }
    }

    /// The handler's round is over: what waits is posted, what was counted
    /// elsewhere is added to the counters. Completion handler.
    #[inline]
    pub(super) fn round_over(&self) {
        let outbox = &self.outbox;
        if outbox.gathering.load(Relaxed) != 0 {
            outbox.gathering.store(0, Relaxed);
            let mut waiting = outbox.waiting.lock();
            let posted = self.ring(&mut waiting, &Chain::new());
            drop(waiting);
            if posted.is_err() {
                let first = outbox.waiting.lock().pop();
                self.not_posted(first.map(|id| id.index));
            }
        }
        let c = &self.counters;
        c.doorbells.add(taken(&outbox.doorbells));
        c.work_requests.add(taken(&outbox.work_requests));
    }

    fn ring(&self, waiting: &mut Backlog<ENTRIES>, chain: &Chain<'_>) -> Result {
        let requests = waiting.len() as u64 + u64::from(chain.len());
        if requests != 0 {
            self.outbox.rang(requests);
        }
        waiting.post(&self.pair, chain)
    }

    /// What waited was not posted, or only a part of it: the queue pair is good
    /// for nothing, and what comes back from it finds nobody.
    #[cold]
    fn not_posted(&self, mut next: Option<u32>) {
        self.session.end();
        while let Some(index) = next {
            if let Some(io) = self.inflight.take(index) {
                self.give_up(io);
            }
            next = None;
            if let Some(id) = self.outbox.waiting.lock().pop() {
                next = Some(id.index);
            }
        }
    }
}

/// What an answer consists of, in order.
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

/// What a number has come to, which begins at 0 again.
#[inline]
fn taken(number: &Atomic<u64>) -> u64 {
    match number.load(Relaxed) {
        0 => 0,
        _ => number.xchg(0, Relaxed),
    }
}
