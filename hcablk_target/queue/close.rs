// SPDX-License-Identifier: GPL-2.0

//! The end of a queue: from when on nothing new begins until nothing refers to it.

use super::Queue;
use core::ops::Deref;
use hcablk_core::sync::atomic::Release;
use hcablk_core::{
    report::trace::State,
    sync::synchronize_completions,
    system, //
};
use kernel::prelude::*;

/// How long the drive and the HCA may take to finish what was begun, in milliseconds. After that
/// what the HCA has is taken from it; the drive is waited for.
const IDLE_MS: u32 = 30_000;

/// How often it is looked whether the completion handler has ended, in milliseconds.
const HANDLER_LOOK_MS: u32 = 1000;

impl Queue {
    /// Begins to take the queue pair down: nothing new is begun, what is posted
    /// is flushed. May sleep.
    pub(crate) fn shut(&self) {
        {
            let mut work = self.work.lock();
            work.close();
            // Those that wait become idle; their initiator gets no answer.
            while let Some(mut io) = work.waiting.pop() {
                io.return_buffers(&mut work.free);
                self.keep_idle(&mut work, io);
            }
            self.check_all_idle(&work);
            self.update_notify(&work);
        }
        self.pair.id().disconnect();
        // If it cannot be failed `drain()` says so.
        let _ = self.pair.fail();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps
    /// until the drive has finished what it has begun.
    pub(crate) fn close(&self) {
        self.shut();
        Self::close_all(|| core::iter::once(self));
    }

    /// Closes queues as [`Self::close`] does one; all were [shut](Self::shut). A step takes the
    /// time for one of them if the HCA does not flush.
    pub(crate) fn close_all<Q, I>(queues: impl Fn() -> I)
    where
        Q: Deref<Target = Self>,
        I: Iterator<Item = Q>,
    {
        let shut = system::now_ns();
        for queue in queues() {
            let gone = system::now_ns().saturating_sub(shut) / 1_000_000;
            let left = IDLE_MS.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX));
            // It may take longer, see `finish()`.
            let _ = queue.all_idle.wait_ms(left);
        }
        for queue in queues() {
            queue.pair.begin_drain();
        }
        for queue in queues() {
            queue.finish();
        }
    }

    /// Ends what [`Self::close_all`] has begun.
    fn finish(&self) {
        if self.all_idle.wait_ms(0).is_err() {
            self.wait_for_handler();
            // Either the drive is slow or the HCA does not flush. What the
            // queue pair has is not coming back then; all that the HCA reaches
            // stays until the pair is destroyed ([`kept`](super::kept)).
            self.pair.drain();
            self.give_up_all();
            while self.all_idle.wait_ms(IDLE_MS).is_err() {
                self.report_waiting();
                // What the drive has finished since was posted to a queue pair that does not flush.
                self.give_up_all();
            }
        }
        // The drive's completions that made the last ones idle may still hold
        // references, and must not be the last to.
        synchronize_completions();
        self.pair.drain();
        self.pair.cq().stop();
        if let Some(handle) = &self.handle {
            handle.detach();
        }
        self.pair.id().detach();
        let ios = core::mem::take(&mut self.work.lock().idle);
        drop(ios);
        // See `keep_idle()`.
        for index in 0..self.shape.ios {
            drop(self.inflight.take(index));
        }
        self.chunked.clear();
        self.comes_to(State::Ended);
    }

    /// Waits while the completion handler is busy, which waits for the drive if that takes no more requests: what
    /// the queue pair has done meanwhile, nobody has reported, which is no fault of the HCA's. Sleeps
    /// as long as the drive takes.
    fn wait_for_handler(&self) {
        self.pair.cq().kick();
        for look in 1u64.. {
            if self.is_settled() {
                return;
            }
            if self.all_idle.wait_ms(HANDLER_LOOK_MS).is_ok() {
                // It has nothing to wait for any more.
                return self.pair.cq().settle();
            }
            if look % u64::from(IDLE_MS / HANDLER_LOOK_MS) == 0 {
                self.report_waiting();
            }
        }
    }

    #[cold]
    fn report_waiting(&self) {
        pr_warn!(
            "{}: session {:016x}: still waiting for the drive to finish requests of a closed queue pair\n",
            self.owner.volume(),
            self.session.0
        );
    }

    /// Gives up what the queue pair has. Its completion handler does so no more.
    fn give_up_all(&self) {
        for index in 0..self.shape.ios {
            if let Some(io) = self.inflight.take(index) {
                self.give_up(io);
            }
        }
        self.chunked.give_up();
    }

    /// Closes the queue as [`Self::close`] does, while the session goes on: failures here do not
    /// end it any more.
    pub(crate) fn close_alone(&self) {
        self.leaving.store(true, Release);
        self.pair.id().detach();
        self.close();
        // Completions are over: the counter has no other writer.
        self.counters.replaced_queues.bump();
    }
}
