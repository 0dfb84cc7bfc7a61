// SPDX-License-Identifier: GPL-2.0

//! The end of a queue, in the order in which the session calls for it:
//! nothing more is accepted, the queue pair is taken down, what was not
//! answered is ended.
//!
//! When only a request was not answered in time, the session does that with its queue alone,
//! issues those requests again on another queue pair that it connects in place of this one, and
//! goes on (`session/replace.rs`).

use super::{
    Driver,
    Phase,
    Queue, //
};
use crate::failure::Failure;
use hcablk_core::{
    blkdev::{
        Request,
        Status, //
    },
    broken::keep,
    trace::{
        self,
        State, //
    },
};
use kernel::sync::atomic::{
    Acquire,
    Full,
    Release, //
};

impl Queue {
    /// No request is accepted from here on, not even if the queue has yet to
    /// go live; those being issued may still be.
    pub(crate) fn stop(&self) {
        // The lock makes a probe that saw the queue live come before.
        let mut send = self.send.lock();
        send.stopped = true;
        self.live.store(false, Release);
        drop(send);
        self.comes_to(State::Ending);
    }

    /// A request was not answered in time. `false`: that was known, or no request is
    /// accepted any more. Any context.
    pub(crate) fn give_up_on(&self) -> bool {
        let send = self.send.lock();
        let news = !send.stopped && !self.late.xchg(true, Full);
        drop(send);
        news
    }

    /// Whether another queue pair shall come in place of this one.
    pub(crate) fn is_late(&self) -> bool {
        self.late.load(Acquire)
    }

    /// None will: requests are refused from here on. Whether that is news.
    pub(crate) fn is_not_replaced(&self) -> bool {
        self.late.xchg(false, Full)
    }

    /// What becomes of requests that are not accepted: they wait for the other queue pair, or fail.
    #[cold]
    pub(super) fn refusal(&self) -> Status {
        if self.is_late() {
            Status::DevResource
        } else {
            Status::Transport
        }
    }

    /// Ends the session because of `failure`, unless this queue pair is given up anyway. Any
    /// context.
    #[cold]
    pub(super) fn fail(&self, failure: Failure) {
        if !self.is_late() {
            self.session.fail(failure);
        }
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.pair.id().disconnect();
        self.pair.drain();
        // The pair takes nothing any more; a region is destroyed only when its registration
        // does not wait.
        self.send.lock().backlog.truncate(0);
        self.pair.cq().stop();
        self.pair.id().detach();
        self.comes_to(State::Ended);
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
        trace::initiator::completed(|| self.about(&request).ended(status.to_errno()));
        request.end(status);
    }

    /// As [`Self::abandon`], but it is issued again.
    pub(crate) fn requeue(&self, request: Request<Driver>) {
        let Some(request) = self.taken_back(request) else {
            return;
        };
        self.done.retries.bump();
        trace::initiator::completed(|| self.about(&request).ended(Status::DevResource.to_errno()));
        request.requeue();
    }

    /// No device reaches the request's memory from here on; `None`: the device would not let
    /// go of it, so that the request is never ended. That its memory stays as it is matters more
    /// than that its disk goes away.
    fn taken_back(&self, mut request: Request<Driver>) -> Option<Request<Driver>> {
        if let Some((_, data)) = self.tags.of(&mut request) {
            data.phase = Phase::Idle;
            data.list.revoke();
            // What was sent from the memory itself has no region that could be revoked.
            if self.pair.is_stuck() || data.list.release().is_err() {
                const WHY: &str =
                    "a request is never ended, since a device may still reach its memory";
                keep(request, WHY);
                // Its timer would have queue pairs replaced that work.
                self.session.fail(Failure::Broken(WHY));
                return None;
            }
        }
        Some(request)
    }
}
