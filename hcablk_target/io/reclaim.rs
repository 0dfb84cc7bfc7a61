// SPDX-License-Identifier: GPL-2.0

//! Reclaims requests: from the completion of a response's SEND to an idle `TargetRequest`.
//!
//! ```text
//!            send completed                a request comes, or the round is over
//!  Posted ──────────────────► Completed ──────────────────────────────────────► Idle
//! ```
//!
//! A round of the completion handler finds responses whose SEND has completed and newly received
//! requests. The numbers of the responses are stored until the next request, which takes the lock
//! in any case, or until the end of the round. So a usual request takes the lock once for both.
//! Their `TargetRequest`s stay in the table of work under way meanwhile. Only the completion
//! handler does this.
//!
//! # Requests that are given up
//!
//! If posting failed, or the HCA does not report posted work, a `TargetRequest` becomes idle though
//! its data may still be moved. None of its memory may be reused before the queue pair is
//! destroyed: a provider of peer memory waits for this when its driver is unbound, and cache lines
//! stay unchanged. So the `TargetRequest` leaves references to the memory here, under
//! `Queue::work`. They are dropped with the queue, in process context: after the queue pair, and
//! before the [`PeerLease`](hcablk_core::p2p::PeerLease)s, which wait for them. Its transfer
//! buffers stay in the queue's [`Pool`](crate::memory::pool::Pool) until then.

use super::{
    cache::leave_lines,
    queue::{
        Queue,
        Work, //
    },
    queue_volume::QueueVolume,
    request::{
        Group,
        TargetRequest, //
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

/// The most responses that wait to be reclaimed.
const ROOM: usize = 16;

/// The responses whose SEND has completed and which are not reclaimed yet. Changed only by the
/// completion handler.
pub(super) struct CompletedSends {
    count: Atomic<usize>,
    /// The number of the `TargetRequest` in the work id of each, which may be the first of a list.
    first: [Atomic<u32>; ROOM],
}

impl CompletedSends {
    pub(super) fn new() -> Self {
        Self {
            count: Atomic::new(0),
            first: [const { Atomic::new(0) }; ROOM],
        }
    }

    /// Adds the list that begins with `TargetRequest` number `first`. Returns `false` if there is
    /// no room.
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
    /// Handles the completion of the SEND of a response, or of a message of several responses, that
    /// was posted as `first`. `ok`: it was not flushed.
    #[inline]
    pub(super) fn response_completed(&self, first: u32, ok: bool) {
        self.counters.reports.bump();
        if !ok {
            self.reclaim_list(first);
        } else if !self.completed_sends.push(first) {
            self.reclaim_completed();
            if !self.completed_sends.push(first) {
                self.broken("completed responses have no place");
                self.reclaim_list(first);
            }
        }
    }

    /// Reclaims all `TargetRequest`s that were posted as `first`.
    #[cold]
    fn reclaim_list(&self, first: u32) {
        let mut next = Some(first);
        while let Some(request) = next.and_then(|index| self.inflight.take(index)) {
            next = request.next;
            self.reclaim(request);
        }
    }

    /// Takes and counts a `TargetRequest` whose response's SEND has completed, for the caller to
    /// release.
    #[inline]
    pub(super) fn take_completed(&self) -> Option<KBox<TargetRequest>> {
        loop {
            let last = self.completed_sends.count.load(Relaxed).checked_sub(1)?;
            let place = self.completed_sends.first.get(last)?;
            let request = self.inflight.take(place.load(Relaxed));
            match request.as_ref().and_then(|request| request.next) {
                Some(next) => place.store(next, Relaxed),
                None => self.completed_sends.count.store(last, Relaxed),
            }
            // The queue has given the request up if it stopped waiting for the HCA.
            if let Some(request) = request {
                // Responses to eager writes share a message.
                self.count_response(
                    &request,
                    request.next.is_none() || !Self::is_eager(&request),
                );
                return Some(Self::without_lines(request));
            }
        }
    }

    /// Reclaims all `TargetRequest`s whose response's SEND has completed.
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
                // The group is not full, so it has room.
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

    /// Makes a `TargetRequest` idle again, and starts requests that wait for it or its buffers.
    /// Process context: may sleep in the drive.
    pub(super) fn reclaim(&self, request: KBox<TargetRequest>) {
        let request = Self::without_lines(request);
        let mut work = self.work.lock();
        self.release(&mut work, request);
        self.begin_waiting(work);
    }

    /// Unpins the cache lines of `request`.
    #[inline]
    pub(super) fn without_lines(mut request: KBox<TargetRequest>) -> KBox<TargetRequest> {
        leave_lines(&mut request);
        request
    }

    /// Releases the resources of a `TargetRequest`, and makes it idle again.
    #[inline]
    pub(super) fn release(&self, work: &mut Work, mut request: KBox<TargetRequest>) {
        if request.sink.is_some() {
            Self::check_exposed(work, &request);
        }
        if request.flush_error != 0 {
            request.flush_error = 0;
            work.owed -= 1;
        }
        request.return_buffers(&mut work.free);
        request.chunks.return_to(&mut work.chunks);
        self.keep_idle(work, request);
        self.check_all_idle(work);
    }

    /// Withholds all transfer buffers from other queue pairs if the peer may still write to those
    /// of `request`: its RDMA READ failed, and the invalidation was never carried out.
    #[inline(never)]
    fn check_exposed(work: &mut Work, request: &TargetRequest) {
        if request.is_exposed() {
            work.close();
        }
    }

    /// Puts a `TargetRequest` into the list of idle ones, which has room for all. On a broken
    /// invariant the `TargetRequest` stays where [`Queue::close`] finds it.
    #[inline]
    pub(super) fn keep_idle(&self, work: &mut Work, mut request: KBox<TargetRequest>) {
        work.leave_volume(&mut request);
        if let Err(PushError(request)) = work.idle.push_within_capacity(request) {
            self.keep_stray(work, request);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep_stray(&self, work: &mut Work, request: KBox<TargetRequest>) {
        work.close();
        if let Err(request) = self.inflight.park(request.index, request) {
            keep(request, "two requests have the same number");
        }
        self.broken("more requests are idle than were allocated");
    }

    /// Releases a request for which there is no place in the list of waiting ones, and ends the
    /// session.
    #[cold]
    pub(super) fn cannot_wait(&self, work: &mut Work, request: KBox<TargetRequest>) {
        work.close();
        self.release(work, request);
        self.broken("a request has no place in which to wait");
    }
}

/// The memory of one request that was given up.
struct KeptRequest {
    _memory: [Option<Arc<PeerMemory>>; 2],
    /// The request's visit in the volume's cache, if the memory is that of the cache's lines.
    visit: Visit,
    volume: Arc<QueueVolume>,
}

/// The memory of all requests that were given up: see the module.
pub(super) struct KeptMemory {
    /// Has room for every `TargetRequest`, each of which is given up at most once.
    requests: KVec<KeptRequest>,
}

impl KeptMemory {
    /// Allocates room for `requests` requests. May sleep.
    pub(super) fn new(requests: usize) -> Result<Self> {
        Ok(Self {
            requests: KVec::with_capacity(requests, GFP_KERNEL)?,
        })
    }

    /// Keeps the references to `request`'s peer memory and lines that the HCA reaches. Any context.
    fn keep(&mut self, request: &mut TargetRequest) {
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
        let kept = KeptRequest {
            _memory: [peer, lines],
            visit,
            volume: request.volume.clone(),
        };
        if let Err(full) = self.requests.push_within_capacity(kept) {
            // Leak the memory, rather than free it too early.
            pr_err!("BUG: a request was given up twice\n");
            core::mem::forget(full);
        }
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        for kept in self
            .requests
            .iter_mut()
            .filter(|kept| !kept.visit.is_outside())
        {
            if let Some(cache) = kept.volume.backing().cache() {
                cache.leave(&mut kept.visit, false);
            }
        }
    }
}

impl Queue {
    /// Makes a `TargetRequest` idle again after an error that ends the session, and stops new
    /// requests from beginning: see the module. Any context.
    pub(super) fn give_up(&self, mut request: KBox<TargetRequest>) {
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
