// SPDX-License-Identifier: GPL-2.0

//! The end of a queue, in the order in which the session's teardown calls for it:
//! nothing more is accepted, the queue pair is taken down, what was not
//! answered is ended.

use super::{
    Driver,
    Phase,
    Queue, //
};
use hcablk_core::{
    blkdev::{
        Request,
        Status, //
    },
    trace::{
        self,
        State, //
    },
};
use kernel::sync::atomic::Release;

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

    /// Takes the queue pair down and cuts the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.pair.id().disconnect();
        self.pair.drain();
        self.pair.cq().stop();
        self.pair.id().detach();
        self.comes_to(State::Ended);
    }

    /// Ends a request that the target will not answer any more. The completion
    /// queue must have been stopped. Process context, sleeps.
    pub(crate) fn abandon(&self, mut request: Request<Driver>) {
        if let Some((_, data)) = self.tags.of(&mut request) {
            data.phase = Phase::Idle;
            data.list.revoke();
            let _ = data.list.release();
        }
        // Completions are over: the counter has no other writer.
        self.done.errors.bump();
        let status = Status::Transport;
        trace::initiator::completed(|| self.about(&request).ended(status.to_errno()));
        request.end(status);
    }
}
