// SPDX-License-Identifier: GPL-2.0

//! Completion queues that never interrupt: [`CqContext::Direct`].
//!
//! They are never armed. Completions are found by polling, in process context, under a lock by one
//! poller at a time:
//!
//! - a task that waits for completions calls [`CompletionQueue::poll_now`] as often as it likes;
//!   the call returns at once if another task is polling;
//! - a caller that must see all completions calls [`CompletionQueue::settle`]: this must happen now
//!   and then, since waiting tasks may give up;
//! - [`QueuePair::drain`](crate::rdma::qp::QueuePair::drain) polls, too.

use super::{
    CompletionQueue,
    CqContext,
    Handler,
    BUDGET_SOFTIRQ, //
};
use crate::sync::Event;
use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// Milliseconds between two polls while waiting for the end of a drain.
const LOOK_MS: u32 = 2;

impl<H: Handler> CompletionQueue<H> {
    #[inline]
    pub(in crate::rdma) fn is_direct(&self) -> bool {
        matches!(self.context, CqContext::Direct)
    }

    /// Reports completions, and returns their number; 0 as well when another task is polling at
    /// this moment, when the queue was stopped, and in another context than [`CqContext::Direct`].
    /// Process context, without locks that the handler takes; neither this nor the handler sleeps.
    #[inline]
    pub fn poll_now(&self) -> u32 {
        if !self.is_direct() {
            return 0;
        }
        let Some(_guard) = self.direct.try_lock() else {
            return 0;
        };
        // SAFETY: The lock is held.
        unsafe { self.poll(BUDGET_SOFTIRQ) as u32 }
    }

    /// Reports all completions from before the call, waiting for a concurrent poller.
    pub(super) fn poll_all(&self) {
        loop {
            let guard = self.direct.lock();
            // SAFETY: The lock is held.
            let done = unsafe { self.poll(BUDGET_SOFTIRQ) };
            drop(guard);
            if done < BUDGET_SOFTIRQ {
                return;
            }
        }
    }

    /// Sleeps until the handling of a completion sets `event`; meanwhile polls a queue in
    /// [`CqContext::Direct`]. Fails with `ETIMEDOUT` after about `ms` milliseconds.
    pub(in crate::rdma) fn wait_for(&self, event: &Event, ms: u32) -> Result {
        if !self.is_direct() {
            return event.wait_ms(ms);
        }
        let start: Instant<Monotonic> = Instant::now();
        loop {
            self.poll_all();
            if event.wait_ms(LOOK_MS).is_ok() {
                return Ok(());
            }
            if start.elapsed().as_millis() >= i64::from(ms) {
                return Err(ETIMEDOUT);
            }
        }
    }
}
