// SPDX-License-Identifier: GPL-2.0

//! Coming home: from an answer that has left to an idle `Io`.
//!
//! ```text
//!            answer completed               a request comes, or the round is over
//!  Posted ────────────────────► Returned ──────────────────────────────────────► Idle
//! ```
//!
//! A round of the completion handler finds answers that have left and requests
//! that came. The first wait, by number, for one of the others, which takes the
//! lock in any case, or for the round's end: so a request in the regular course
//! takes the lock once for both. They stay in the table of work under way
//! meanwhile. All of this is the completion handler's.

use super::{
    Queue,
    Work, //
};
use crate::io::Io;
use hcablk_core::broken::keep;
use kernel::{
    alloc::kvec::PushError,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// Answers that wait at most.
const ROOM: usize = 16;

/// See the module. Changed by the completion handler only.
pub(super) struct Returned {
    count: Atomic<usize>,
    /// The `Io` that each was posted as, which may be the first of a list.
    first: [Atomic<u32>; ROOM],
}

impl Returned {
    pub(super) fn new() -> Self {
        Self {
            count: Atomic::new(0),
            first: [const { Atomic::new(0) }; ROOM],
        }
    }

    /// Adds one; `false`: there is no room.
    #[inline]
    fn push(&self, first: u32) -> bool {
        let count = self.count.load(Relaxed);
        let Some(place) = self.first.get(count) else {
            return false;
        };
        place.store(first, Relaxed);
        self.count.store(count + 1, Relaxed);
        true
    }
}

impl Queue {
    /// An answer, or a message of several, has left, or was flushed.
    #[inline]
    pub(super) fn answer_left(&self, first: u32, ok: bool) {
        self.counters.reports.bump();
        if !ok {
            self.bring_list_home(first);
        } else if !self.returned.push(first) {
            self.all_home();
            if !self.returned.push(first) {
                self.broken("answers that have left have no place");
                self.bring_list_home(first);
            }
        }
    }

    /// As [`Self::bring_home`], all that are posted as `first`.
    #[cold]
    fn bring_list_home(&self, first: u32) {
        let mut next = Some(first);
        while let Some(io) = next.and_then(|index| self.inflight.take(index)) {
            next = io.next;
            self.bring_home(io);
        }
    }

    /// One whose answer has left, counted.
    #[inline]
    pub(super) fn take_returned(&self) -> Option<KBox<Io>> {
        loop {
            let last = self.returned.count.load(Relaxed).checked_sub(1)?;
            let place = self.returned.first.get(last)?;
            let io = self.inflight.take(place.load(Relaxed));
            match io.as_ref().and_then(|io| io.next) {
                Some(next) => place.store(next, Relaxed),
                None => self.returned.count.store(last, Relaxed),
            }
            // Nobody is there if the queue gave up waiting for the HCA.
            if let Some(io) = io {
                // Answers to granted writes share a message.
                self.answered(&io, io.next.is_none() || !Self::is_granted(&io));
                return Some(self.without_lines(io));
            }
        }
    }

    /// Brings all home whose answers have left.
    #[inline]
    pub(super) fn all_home(&self) {
        if self.returned.count.load(Relaxed) != 0 {
            self.bring_all_home();
        }
    }

    fn bring_all_home(&self) {
        loop {
            let mut group = [const { None }; ROOM];
            for place in &mut group {
                *place = self.take_returned();
                if place.is_none() {
                    break;
                }
            }
            if group[0].is_none() {
                return;
            }
            let mut work = self.work.lock();
            for io in group.iter_mut().filter_map(Option::take) {
                self.put(&mut work, io);
            }
            self.begin_waiting(work);
        }
    }

    /// Makes an `Io` idle again and begins what waited for it or its buffers.
    /// Process context: the drive may let us wait.
    pub(super) fn bring_home(&self, io: KBox<Io>) {
        let io = self.without_lines(io);
        let mut work = self.work.lock();
        self.put(&mut work, io);
        self.begin_waiting(work);
    }

    /// It needs its lines no longer.
    #[inline]
    pub(super) fn without_lines(&self, mut io: KBox<Io>) -> KBox<Io> {
        self.leave_lines(&mut io);
        io
    }

    /// Makes an `Io` idle again.
    pub(super) fn put(&self, work: &mut Work, mut io: KBox<Io>) {
        if io.is_exposed() {
            // Its fetch failed, and its invalidation was never carried out.
            work.close();
        }
        if core::mem::take(&mut io.flush_error) != 0 {
            work.owed -= 1;
        }
        io.return_buffers(&mut work.free);
        io.share.give(&mut work.grains);
        self.keep_idle(work, io);
        self.check_home(work);
    }

    /// Puts an `Io` to the idle ones, where there is room for all that were made. If there is none, it is
    /// left where [`Queue::close`] finds it.
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

    /// A request has no place in which to wait: it is not carried out, and the session ends.
    #[cold]
    pub(super) fn cannot_wait(&self, work: &mut Work, io: KBox<Io>) {
        work.close();
        self.put(work, io);
        self.broken("a request has no place in which to wait");
    }
}
