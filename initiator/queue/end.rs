// SPDX-License-Identifier: GPL-2.0

//! The end of a queue, in the order in which the session calls for it:
//! nothing more is accepted, the queue pair is taken down, what was not
//! answered is ended.
//!
//! When only a request was not answered in time, the session does that with its queue alone,
//! issues those requests again on another queue pair that it connects in place of this one, and
//! goes on (`session/replace.rs`).

use super::{
    keep_alive::Nop,
    Driver,
    Phase,
    Queue, //
};
use crate::failure::Failure;
use hcablk_core::sync::atomic::{
    Acquire,
    Full,
    Relaxed,
    Release, //
};
use hcablk_core::{
    blkdev::{
        ByAge,
        Request,
        Status, //
    },
    report::broken::keep,
    report::trace::{
        self,
        State, //
    },
};
impl Queue {
    /// Stops accepting requests, also if the queue has yet to go live; those that are being issued
    /// may still be posted.
    pub(crate) fn stop(&self) {
        // The lock makes a keep-alive that saw the queue live come before.
        let mut send = self.send.lock();
        let news = !core::mem::replace(&mut send.stopped, true);
        self.live.store(false, Release);
        drop(send);
        // Who ends a session does this before and after a queue pair that is being replaced is
        // waited for.
        if news {
            self.comes_to(State::Ending);
        }
    }

    /// Marks the queue as one whose request with this tag was not answered in time: it accepts none
    /// from here on. Returns `false` if it was marked before, or is stopped. Any context.
    pub(crate) fn mark_timed_out(&self, tag: u16) -> bool {
        let mut send = self.send.lock();
        if send.stopped {
            return false;
        }
        send.late.insert(tag);
        let news = !self.timed_out.xchg(true, Full);
        // Behind the mark: see `refusal()`.
        self.live.store(false, Release);
        drop(send);
        news
    }

    /// Takes the mark away if all was answered by now that was not in time, so that the queue
    /// accepts requests again; returns whether it does. Those that were refused meanwhile wait for
    /// a run of the hardware queue, after a grace period.
    pub(crate) fn has_caught_up(&self) -> bool {
        let mut send = self.send.lock();
        let asks_nothing = send.nop != Nop::Nothing;
        if send.stopped || self.is_behind(&send.late, asks_nothing) {
            return false;
        }
        self.live.store(true, Release);
        // Behind that: see `refusal()`.
        self.timed_out.xchg(false, Full);
        // Behind that: see `fail()`.
        if self.is_unfit.load(Relaxed) {
            self.timed_out.store(true, Relaxed);
            self.live.store(false, Release);
            return false;
        }
        send.late.clear();
        true
    }

    /// Returns whether a request was not answered in time, so that another queue pair shall
    /// replace this one.
    pub(crate) fn is_timed_out(&self) -> bool {
        self.timed_out.load(Acquire)
    }

    /// Clears the mark, since no queue pair will replace this one: requests are refused from
    /// here on. Returns whether it was set.
    pub(crate) fn is_not_replaced(&self) -> bool {
        self.timed_out.xchg(false, Full)
    }

    /// Returns the status of requests that are not accepted: they wait for another queue pair or
    /// another session, or fail.
    #[cold]
    pub(super) fn refusal(&self) -> Status {
        // In this order: a queue that has caught up is live before it loses its mark.
        if self.is_timed_out() || self.is_live() || self.owner.requests_wait() {
            Status::DevResource
        } else {
            Status::Transport
        }
    }

    /// Ends the session because of `failure`, unless another queue pair comes in place of this one:
    /// then it does, whatever is answered still. Any context.
    #[cold]
    pub(super) fn fail(&self, failure: Failure) {
        if self.is_timed_out() {
            self.is_unfit.xchg(true, Full);
            // If the queue has lost its mark by now, nobody may have seen that.
            if self.is_timed_out() {
                return;
            }
        }
        self.end_session(failure);
    }

    /// Fails the queue pair, so that it begins to drain. For who closes several; nothing new may be
    /// issued. Sleeps.
    pub(crate) fn begin_close(&self) {
        self.pair.id().disconnect();
        self.pair.begin_drain();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.begin_close();
        self.pair.drain();
        // The pair takes nothing any more; a region is destroyed only when its registration
        // does not wait.
        self.send.lock().forget_waiting();
        self.pair.cq().stop();
        self.comes_to(State::Ended);
        self.pair.id().detach();
    }

    /// Counts that another queue pair came in place of this one, which is closed.
    pub(crate) fn was_replaced(&self) {
        // Completions are over: the counter has no other writer.
        self.done.replaced_queues.bump();
    }

    /// Ends a request that the target will not answer any more. The completion
    /// queue must have been stopped. Process context, sleeps.
    pub(crate) fn abandon(&self, request: Request<Driver>) {
        let Some(request) = self.taken_back(request) else {
            return;
        };
        self.done.errors.bump();
        let status = Status::Transport;
        trace::initiator::completed(|| self.about(request.view()).ended(status.to_errno()));
        request.end(status);
    }

    /// Ends the request as [`Self::abandon`] does, but puts it among those that are to be issued
    /// `again`.
    pub(crate) fn requeue(&self, request: Request<Driver>, again: &mut ByAge<Driver>) {
        let Some(request) = self.taken_back(request) else {
            return;
        };
        self.done.retries.bump();
        trace::initiator::completed(|| {
            self.about(request.view())
                .ended(Status::DevResource.to_errno())
        });
        again.push(request);
    }

    /// Ends the device's access to the request's memory, and leaves the request where it is, for
    /// who ends it later without this queue. As [`Self::abandon`].
    pub(crate) fn release(&self, request: Request<Driver>) {
        if let Some(request) = self.taken_back(request) {
            request.park();
        }
    }

    /// Ends the device's access to the request's memory. Returns `None` if the device refuses, so
    /// that the request is never ended. That its memory stays as it is matters more than that its
    /// disk goes away.
    fn taken_back(&self, mut request: Request<Driver>) -> Option<Request<Driver>> {
        if let Some((_, data)) = self.tags.of(&mut request) {
            data.phase = Phase::Idle;
            data.list.revoke();
            // What was sent from the memory itself has no region that could be revoked.
            if self.pair.is_stuck() || data.list.release().is_err() {
                const WHY: &str =
                    "a request is never ended, since a device may still reach its memory";
                keep(request, WHY);
                // No other session, either: the timer would find that one's queue pairs.
                self.owner.no_other_session();
                // Its timer would have queue pairs replaced that work.
                self.end_session(Failure::Broken(WHY));
                return None;
            }
        }
        Some(request)
    }
}
