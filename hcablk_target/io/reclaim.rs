// SPDX-License-Identifier: GPL-2.0

//! Reclaiming: from the completion of an answer's send to an idle `Request`.
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
//!
//! # Requests that are given up
//!
//! Posting failed, or the HCA does not report what was posted: then a `Request` becomes idle though
//! its data may still be moved. Nothing of that may go to others before the queue pair is
//! destroyed: a provider of peer memory waits for it when its driver is unbound, and lines of a
//! cache stay as they are. So the `Request` leaves these here, under `Queue::work`, and they go
//! when the queue does, in process context: after the pair, before the
//! [`PeerLease`](hcablk_core::p2p::PeerLease)s, which wait for them. Transfer buffers stay in the
//! queue's [`Pool`](crate::memory::pool::Pool) as long.

use super::{
    cache::leave_lines,
    queue::{
        Queue,
        Work, //
    },
    queue_volume::QueueVolume,
    request::{
        Group,
        Request, //
    },
};
use hcablk_core::{
    logic::mq::lines::Visit,
    p2p::PeerMemory,
    report::broken::keep,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};
use kernel::{
    alloc::kvec::PushError,
    prelude::*,
    sync::Arc, //
};

/// The most answers that wait to be reclaimed.
const ROOM: usize = 16;

/// The answers whose send has completed and which are still to be reclaimed. Changed by the
/// completion handler only.
pub(super) struct CompletedSends {
    count: Atomic<usize>,
    /// The `Request` that each was posted as, which may be the first of a list.
    first: [Atomic<u32>; ROOM],
}

impl CompletedSends {
    pub(super) fn new() -> Self {
        Self {
            count: Atomic::new(0),
            first: [const { Atomic::new(0) }; ROOM],
        }
    }

    /// Adds the list that begins with the `Request` number `first`. Returns `false` if there is no
    /// room.
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

    /// Reclaims all `Request`s that were posted as `first`, as [`Self::reclaim`] does one.
    #[cold]
    fn reclaim_list(&self, first: u32) {
        let mut next = Some(first);
        while let Some(request) = next.and_then(|index| self.inflight.take(index)) {
            next = request.next;
            self.reclaim(request);
        }
    }

    /// Takes a `Request` whose answer's send has completed, counted, for the caller to release.
    #[inline]
    pub(super) fn take_completed(&self) -> Option<KBox<Request>> {
        loop {
            let last = self.completed_sends.count.load(Relaxed).checked_sub(1)?;
            let place = self.completed_sends.first.get(last)?;
            let request = self.inflight.take(place.load(Relaxed));
            match request.as_ref().and_then(|request| request.next) {
                Some(next) => place.store(next, Relaxed),
                None => self.completed_sends.count.store(last, Relaxed),
            }
            // Nobody is there if the queue gave up waiting for the HCA.
            if let Some(request) = request {
                // Answers to eager writes share a message.
                self.answered(
                    &request,
                    request.next.is_none() || !Self::is_eager(&request),
                );
                return Some(Self::without_lines(request));
            }
        }
    }

    /// Reclaims all `Request`s whose answer's send has completed.
    #[inline]
    pub(super) fn reclaim_completed(&self) {
        if self.completed_sends.count.load(Relaxed) != 0 {
            self.reclaim_groups();
        }
    }

    /// Does the work of [`Self::reclaim_completed`], out of line.
    fn reclaim_groups(&self) {
        loop {
            let mut group = Group::<ROOM>::new();
            while let Some(request) = self.take_completed() {
                // There is room: the group is not full.
                let _ = group.push(request);
                if group.is_full() {
                    break;
                }
            }
            if group.is_empty() {
                return;
            }
            let more = group.is_full();
            let mut work = self.work.lock();
            group.take_each(|request| self.release(&mut work, request));
            self.begin_waiting(work);
            if !more {
                return;
            }
        }
    }

    /// Makes a `Request` idle again and starts what waits for it or its buffers. Process context:
    /// may sleep in the drive.
    pub(super) fn reclaim(&self, request: KBox<Request>) {
        let request = Self::without_lines(request);
        let mut work = self.work.lock();
        self.release(&mut work, request);
        self.begin_waiting(work);
    }

    /// Unpins the cache lines of `request`.
    #[inline]
    pub(super) fn without_lines(mut request: KBox<Request>) -> KBox<Request> {
        leave_lines(&mut request);
        request
    }

    /// Releases what a `Request` has, and makes it idle again.
    #[inline]
    pub(super) fn release(&self, work: &mut Work, mut request: KBox<Request>) {
        if request.sink.is_some() {
            Self::check_exposed(work, &request);
        }
        if request.flush_error != 0 {
            request.flush_error = 0;
            work.owed -= 1;
        }
        request.return_buffers(&mut work.free);
        request.chunks.give(&mut work.chunks);
        self.keep_idle(work, request);
        self.check_all_idle(work);
    }

    /// Keeps the transfer buffers from others if a peer may still write to those of `request`: its
    /// RDMA READ failed, and its invalidation was never carried out.
    #[inline(never)]
    fn check_exposed(work: &mut Work, request: &Request) {
        if request.is_exposed() {
            work.close();
        }
    }

    /// Puts a `Request` into the list of idle ones, which has room for all that were made. If it
    /// has none, the `Request` stays where [`Queue::close`] finds it.
    #[inline]
    pub(super) fn keep_idle(&self, work: &mut Work, mut request: KBox<Request>) {
        work.leave_volume(&mut request);
        if let Err(PushError(request)) = work.idle.push_within_capacity(request) {
            self.keep_stray(work, request);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_stray(&self, work: &mut Work, request: KBox<Request>) {
        work.close();
        if let Err(request) = self.inflight.park(request.index, request) {
            keep(request, "there are two Requests of one number");
        }
        self.broken("more Requests are idle than there are");
    }

    /// Releases a request that has no place in which to wait, and ends the session.
    #[cold]
    pub(super) fn cannot_wait(&self, work: &mut Work, request: KBox<Request>) {
        work.close();
        self.release(work, request);
        self.broken("a request has no place in which to wait");
    }
}

/// What one request had.
struct Held {
    _memory: [Option<Arc<PeerMemory>>; 2],
    /// Its part in the volume's cache, if the memory is the cache's lines.
    visit: Visit,
    volume: Arc<QueueVolume>,
}

/// See the module.
pub(super) struct Kept {
    /// There is room for every `Request`, each of which is given up once.
    held: KVec<Held>,
}

impl Kept {
    /// Allocates room for `requests` requests. May sleep.
    pub(super) fn new(requests: usize) -> Result<Self> {
        Ok(Self {
            held: KVec::with_capacity(requests, GFP_KERNEL)?,
        })
    }

    /// Keeps what the HCA reaches of `request`'s peer memory and lines. Any context.
    fn keep(&mut self, request: &mut Request) {
        let reached = |memory: &mut Arc<PeerMemory>| memory.is_mapped();
        let peer = request.peer.take_if(reached);
        let lines = request.lines.take_if(reached);
        if peer.is_none() && lines.is_none() {
            return;
        }
        let visit = match lines {
            Some(_) => core::mem::replace(&mut request.visit, Visit::NONE),
            None => Visit::NONE,
        };
        let held = Held {
            _memory: [peer, lines],
            visit,
            volume: request.volume.clone(),
        };
        if let Err(full) = self.held.push_within_capacity(held) {
            // It is never given back then: rather that than too early.
            pr_err!("BUG: a request was given up twice\n");
            core::mem::forget(full);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for held in self.held.iter_mut().filter(|held| !held.visit.is_outside()) {
            if let Some(cache) = held.volume.backing().cache() {
                cache.leave(&mut held.visit, false);
            }
        }
    }
}

impl Queue {
    /// Makes a `Request` idle again after an error that ends the session, and lets
    /// nothing new begin: see the module. Any context.
    pub(super) fn give_up(&self, mut request: KBox<Request>) {
        let mut work = self.work.lock();
        work.close();
        work.kept.keep(&mut request);
        drop(work);
        let request = Self::without_lines(request);
        let mut work = self.work.lock();
        self.release(&mut work, request);
        self.update_notify(&work);
    }
}
