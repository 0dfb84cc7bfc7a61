// SPDX-License-Identifier: GPL-2.0

//! The functions that the kernel calls: at an event, and to handle completions.

use super::{
    CompletionQueue,
    Handler,
    BUDGET_PROCESS, //
};
use crate::bindings;
use crate::sync::atomic::Relaxed;
use core::ffi::c_int;
use kernel::types::Opaque;

impl<H: Handler> CompletionQueue<H> {
    /// # Safety
    ///
    /// Called by the device with a context that [`Self::new`] set.
    pub(super) unsafe extern "C" fn on_event(
        _: *mut bindings::ib_cq,
        context: *mut crate::ffi::c_void,
    ) {
        // SAFETY: The object outlives its completion queue.
        let this = unsafe { &*context.cast::<Self>() };
        // A counter for one writer suffices: events of one queue do not overlap.
        this.events.bump();
        this.schedule();
    }

    /// # Safety
    ///
    /// Called by the `interrupt` of a live object, which `stop` waits for.
    pub(super) unsafe extern "C" fn on_interrupt(interrupt: *mut bindings::irq_work) {
        let interrupt: *mut Opaque<bindings::irq_work> = interrupt.cast();
        // SAFETY: `interrupt` is the field of an object that outlives it.
        let this = unsafe { &*kernel::container_of!(interrupt, Self, interrupt) };
        // SAFETY: `poll` is initialised and stays pinned; once the queue is
        // stopped this does nothing.
        unsafe { bindings::irq_poll_sched(this.poll.get()) };
    }

    /// # Safety
    ///
    /// Called by the timer `guard` of a live object, which `stop` shuts down.
    pub(super) unsafe extern "C" fn on_guard(timer: *mut bindings::timer_list) {
        let timer: *mut Opaque<bindings::timer_list> = timer.cast();
        // SAFETY: `timer` is the field of an object that outlives it.
        let this = unsafe { &*kernel::container_of!(timer, Self, guard) };
        // A counter for one writer suffices: a timer runs on one processor at a time.
        this.guards.bump();
        this.schedule();
        if this.watched.load(Relaxed) {
            this.guard();
        }
    }

    /// # Safety
    ///
    /// Called by irq_poll with the `poll` of a live object.
    pub(super) unsafe extern "C" fn on_poll(poll: *mut bindings::irq_poll, budget: c_int) -> c_int {
        let poll: *mut Opaque<bindings::irq_poll> = poll.cast();
        // SAFETY: `poll` is the field of an object that outlives it.
        let this = unsafe { &*kernel::container_of!(poll, Self, poll) };
        // SAFETY: irq_poll runs a queue on one processor at a time.
        let done = unsafe { this.poll(budget) };
        if done < budget {
            // SAFETY: `poll` is scheduled, this is its handler.
            unsafe { bindings::irq_poll_complete(this.poll.get()) };
            // SAFETY: This is the poller.
            if unsafe { this.rest() } {
                this.schedule();
            }
        }
        done
    }

    /// # Safety
    ///
    /// Called by the workqueue with the `work` of a live object.
    pub(super) unsafe extern "C" fn on_work(work: *mut bindings::work_struct) {
        let work: *mut Opaque<bindings::work_struct> = work.cast();
        // SAFETY: `work` is the field of an object that outlives it.
        let this = unsafe { &*kernel::container_of!(work, Self, work) };
        // SAFETY: A work item runs on one processor at a time.
        let done = unsafe { this.poll(BUDGET_PROCESS) };
        // SAFETY: This is the poller.
        if done >= BUDGET_PROCESS || unsafe { this.rest() } {
            this.schedule();
        }
    }
}
