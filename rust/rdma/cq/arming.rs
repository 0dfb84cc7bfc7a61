// SPDX-License-Identifier: GPL-2.0

//! Arming: the request for the event that begins the next round.

use super::{
    CompletionQueue,
    CqContext,
    CqNotify,
    Handler,
    GUARD_MS, //
};
use crate::bindings;
use crate::sync::atomic::{
    Acquire,
    Full,
    Relaxed, //
};
impl<H: Handler> CompletionQueue<H> {
    /// Starts the timer that polls the queue after [`GUARD_MS`] and a tick, whether there is an
    /// event or not. For a caller that turns [`CqNotify::SolicitedOnly`] into
    /// [`CqNotify::SolicitedOrTimer`] while the queue is armed already. Handlers in
    /// [`CqContext::SoftIrq`] only. Any context.
    ///
    /// Does nothing before [`Self::start`], and after [`Self::stop`], which waits for the timer
    /// and shuts it down: no timer outlives the queue.
    #[inline]
    pub fn guard(&self) {
        if !self.running.load(Acquire) {
            return;
        }
        // SAFETY: The timer was initialised; all it does is schedule. The queue was started, so
        // `stop` will shut the timer down, or has: then this does nothing.
        unsafe { bindings::hcablk_c_timer_start(self.guard.get(), GUARD_MS) };
    }

    /// Runs `wait`, which waits for a completion, and meanwhile polls the queue every [`GUARD_MS`]
    /// and a tick. For a device that may raise its event when the poller, in softirq context, has
    /// looked for the last time but has not ended yet: irq_poll loses such an event, and an armed
    /// device does not report that it has a completion. May sleep. Calls for one queue do not
    /// overlap.
    pub(in crate::rdma) fn watch<T>(&self, wait: impl FnOnce() -> T) -> T {
        // With a barrier: if the timer is pending already, it sees the flag when it expires.
        self.watched.xchg(true, Full);
        self.guard();
        let waited = wait();
        self.watched.store(false, Relaxed);
        waited
    }

    /// Asks for an event at the next completion, or the next solicited one. Returns whether
    /// there may be completions already that will not cause one.
    #[inline]
    pub(super) fn arm(&self, solicited_only: bool) -> bool {
        let which = if solicited_only && !self.notify_all.load(Acquire) {
            bindings::ib_cq_notify_flags_IB_CQ_SOLICITED
        } else {
            bindings::ib_cq_notify_flags_IB_CQ_NEXT_COMP
        };
        let flags = which | bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
        let cq = self.as_raw();
        // SAFETY: The queue and its device are valid; every device has this operation.
        let missed = unsafe {
            (*(*cq).device)
                .ops
                .req_notify_cq
                .map_or(0, |notify| notify(cq, flags))
        };
        missed > 0
    }

    /// Ends a round: requests the event that begins the next. Returns whether the next must begin
    /// now.
    ///
    /// # Safety
    ///
    /// Called by a poller, which runs between `start` and `stop` only.
    #[inline]
    pub(super) unsafe fn rest(&self) -> bool {
        // SAFETY: By the safety requirement.
        let handler = unsafe { &*self.handler.get() };
        let notify = handler.as_ref().map_or(CqNotify::Any, |h| h.cq_notify());
        let missed = self.arm(notify != CqNotify::Any);
        if notify == CqNotify::Any || !matches!(self.context, CqContext::SoftIrq) {
            return missed;
        }
        if notify == CqNotify::SolicitedOrTimer {
            self.guard();
        }
        // Another poller may have run meanwhile and have armed before us, for any
        // completion.
        missed
            || handler
                .as_ref()
                .is_some_and(|h| h.cq_notify() == CqNotify::Any)
    }
}
