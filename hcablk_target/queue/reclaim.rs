// SPDX-License-Identifier: GPL-2.0

//! Reclaiming: from the completion of an answer's send to an idle `Io`.
//!
//! ```text
//!            send completed                a request comes, or the round is over
//!  Posted ──────────────────► Completed ──────────────────────────────────────► Idle
//! ```
//!
//! A round of the completion handler finds answers whose send has completed and requests that
//! came. The answers wait, by number, for the next request, which takes the lock in any case, or
//! for the end of the round: so a request in the regular course takes the lock once for both.
//! They stay in the table of work under way meanwhile. Only the completion handler does this.

use super::{
    Io,
    Queue,
    Work, //
};
use crate::storage::visit::leave_lines;
use hcablk_core::{
    report::broken::keep,
    sync::unordered::{
        UnorderedU32,
        UnorderedUsize, //
    }, //
};
use kernel::{
    alloc::kvec::PushError,
    prelude::*, //
};

/// The most answers that wait to be reclaimed.
const ROOM: usize = 16;

/// The answers whose send has completed and which are still to be reclaimed. Changed by the
/// completion handler only.
pub(super) struct CompletedSends {
    count: UnorderedUsize,
    /// The `Io` that each was posted as, which may be the first of a list.
    first: [UnorderedU32; ROOM],
}

impl CompletedSends {
    pub(super) fn new() -> Self {
        Self {
            count: UnorderedUsize::new(0),
            first: [const { UnorderedU32::new(0) }; ROOM],
        }
    }

    /// Adds the list that begins with the `Io` number `first`. Returns `false` if there is no room.
    #[inline]
    fn push(&self, first: u32) -> bool {
        let count = self.count.get();
        let Some(place) = self.first.get(count) else {
            return false;
        };
        place.set(first);
        self.count.set(count + 1);
        true
    }
}

impl Queue {
    /// Handles the completion of an answer's send, or of a message of several answers, that was
    /// posted as `first`; `ok`: it was not flushed.
    #[inline]
    pub(super) fn answer_completed(&self, first: u32, ok: bool) {
        self.counters.reports.bump();
        if !ok {
            self.reclaim_list(first);
        } else if !self.completed_sends.push(first) {
            self.reclaim_completed();
            if !self.completed_sends.push(first) {
                self.broken("completed answers have no place");
                self.reclaim_list(first);
            }
        }
    }

    /// Reclaims all `Io`s that were posted as `first`, as [`Self::reclaim`] does one.
    #[cold]
    fn reclaim_list(&self, first: u32) {
        let mut next = Some(first);
        while let Some(io) = next.and_then(|index| self.inflight.take(index)) {
            next = io.next;
            self.reclaim(io);
        }
    }

    /// Takes an `Io` whose answer's send has completed, counted, for the caller to release.
    #[inline]
    pub(super) fn take_completed(&self) -> Option<KBox<Io>> {
        loop {
            let last = self.completed_sends.count.get().checked_sub(1)?;
            let place = self.completed_sends.first.get(last)?;
            let io = self.inflight.take(place.get());
            match io.as_ref().and_then(|io| io.next) {
                Some(next) => place.set(next),
                None => self.completed_sends.count.set(last),
            }
            // Nobody is there if the queue gave up waiting for the HCA.
            if let Some(io) = io {
                // Answers to eager writes share a message.
                self.answered(&io, io.next.is_none() || !Self::is_eager(&io));
                return Some(self.without_lines(io));
            }
        }
    }

    /// Reclaims all `Io`s whose answer's send has completed.
    #[inline]
    pub(super) fn reclaim_completed(&self) {
        if self.completed_sends.count.get() != 0 {
            self.reclaim_groups();
        }
    }

    /// Does the work of [`Self::reclaim_completed`], out of line.
    fn reclaim_groups(&self) {
        loop {
            let mut group = [const { None }; ROOM];
            for place in &mut group {
                *place = self.take_completed();
                if place.is_none() {
                    break;
                }
            }
            if group[0].is_none() {
                return;
            }
            let mut work = self.work.lock();
            for io in group.iter_mut().filter_map(Option::take) {
                self.release(&mut work, io);
            }
            self.begin_waiting(work);
        }
    }

    /// Makes an `Io` idle again and starts what waits for it or its buffers. Process context: may
    /// sleep in the drive.
    pub(super) fn reclaim(&self, io: KBox<Io>) {
        let io = self.without_lines(io);
        let mut work = self.work.lock();
        self.release(&mut work, io);
        self.begin_waiting(work);
    }

    /// Unpins the cache lines of `io`.
    #[inline]
    pub(super) fn without_lines(&self, mut io: KBox<Io>) -> KBox<Io> {
        leave_lines(self, &mut io);
        io
    }

    /// Releases what an `Io` has, and makes it idle again.
    #[inline]
    pub(super) fn release(&self, work: &mut Work, mut io: KBox<Io>) {
        if io.sink.is_some() {
            Self::check_exposed(work, &io);
        }
        if io.flush_error != 0 {
            io.flush_error = 0;
            work.owed -= 1;
        }
        io.return_buffers(&mut work.free);
        io.chunks.give(&mut work.chunks);
        self.keep_idle(work, io);
        self.check_all_idle(work);
    }

    /// Keeps the transfer buffers from others if a peer may still write to those of `io`: its RDMA READ failed, and its
    /// invalidation was never carried out.
    #[inline(never)]
    fn check_exposed(work: &mut Work, io: &Io) {
        if io.is_exposed() {
            work.close();
        }
    }

    /// Puts an `Io` into the list of idle ones, which has room for all that were made. If it has
    /// none, the `Io` stays where [`Queue::close`] finds it.
    #[inline]
    pub(super) fn keep_idle(&self, work: &mut Work, io: KBox<Io>) {
        if let Err(PushError(io)) = work.idle.push_within_capacity(io) {
            self.keep_stray(work, io);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_stray(&self, work: &mut Work, io: KBox<Io>) {
        work.close();
        if let Err(io) = self.inflight.park(io.index, io) {
            keep(io, "there are two Ios of one number");
        }
        self.broken("more Ios are idle than there are");
    }

    /// Releases a request that has no place in which to wait, and ends the session.
    #[cold]
    pub(super) fn cannot_wait(&self, work: &mut Work, io: KBox<Io>) {
        work.close();
        self.release(work, io);
        self.broken("a request has no place in which to wait");
    }
}
