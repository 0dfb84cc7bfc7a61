// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! A completion queue here serves one queue pair. It runs in one of three
//! contexts, as the ones of `ib_alloc_cq()` do, but keeps arming, polling and
//! dispatch in our own hands: work is distinguished by the `wr_id` rather than by
//! a function pointer in each request, and a driver can poll and decide by
//! itself when to be interrupted.
//!
//! ```text
//!            start()                 event                   empty, armed
//!  Created ─────────► Armed ──────────────────► Polling ───────────────► Armed
//!                       │                          │ budget used, or completions
//!                       │ stop()                   │ slipped in while arming
//!                       ▼                          └──► Polling (again, later)
//!                    Stopped
//! ```

use super::{
    pd::{
        DomainUse,
        ProtectionDomain, //
    },
    qp::Paired,
    wr::WorkId, //
};
use crate::{
    bindings,
    report::stats::Counter,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        CompletionsSince,
        Event,
        WorkQueue, //
    },
};
use core::{
    cell::UnsafeCell,
    ffi::c_int,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    error::from_err_ptr,
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    types::Opaque, //
};

mod arming;
mod callbacks;
mod completion;
mod direct;
mod handler;

pub use self::{
    completion::{
        Completion,
        Success, //
    },
    handler::{
        CqNotify,
        Handler,
        GUARD_MS, //
    },
};

/// Where completions are handled.
#[derive(Clone)]
pub enum CqContext {
    /// In softirq context, soon after the interrupt.
    SoftIrq,
    /// On a workqueue made by [`WorkQueue::for_completions`]: handlers may sleep.
    Process(Arc<WorkQueue>),
    /// In process context, by the poller: the device never reports an event. See
    /// [`CompletionQueue::poll_now`].
    Direct,
}

/// Completions taken from the device at a time.
const BATCH: usize = 16;
/// Completions handled before others get their turn.
const BUDGET_SOFTIRQ: c_int = 256;
/// See [`BUDGET_SOFTIRQ`].
const BUDGET_PROCESS: c_int = 4096;

/// A completion queue whose completions go to an `H`.
///
/// # Invariants
///
/// - `raw` is valid and its context is the object itself, until [`Self::sever`] makes it null. Only
///   the poller and the creator of a queue pair read it.
/// - `handler` is written only while `running` is false and neither `poll` nor
///   `work` can run, and with `direct` held: by the one call of `start` that sets `started`, and
///   by the one of `stop` that takes `stopping`.
#[pin_data(PinnedDrop)]
pub struct CompletionQueue<H: Handler> {
    raw: UnsafeCell<*mut bindings::ib_cq>,
    pd: DomainUse,
    context: CqContext,
    /// Set by the first [`Self::start`], for good.
    started: Atomic<bool>,
    running: Atomic<bool>,
    /// When the one call of [`Self::begin_stop`] that cleared `running` had disabled the pollers;
    /// [`Self::stop`] takes it.
    #[pin]
    stopping: SpinLock<Option<CompletionsSince>>,
    /// It has a queue pair, or had one that was drained: the drain events below are of one.
    paired: Paired,
    handler: UnsafeCell<Option<Arc<H>>>,
    #[pin]
    poll: Opaque<bindings::irq_poll>,
    /// Schedules `poll` from an interrupt, see [`Self::schedule`].
    #[pin]
    interrupt: Opaque<bindings::irq_work>,
    #[pin]
    work: Opaque<bindings::work_struct>,
    /// Held by the poller in [`CqContext::Direct`].
    #[pin]
    direct: SpinLock<()>,
    /// Where a batch is put. Only the one poller uses it.
    batch: UnsafeCell<[bindings::ib_wc; BATCH]>,
    events: Counter,
    /// Completions that were the device's driver's own. Only the poller counts.
    handed_over: Atomic<u64>,
    /// The queue is armed for any completion, regardless of the handler.
    notify_all: Atomic<bool>,
    /// Polls the queue if no event comes: see [`CqNotify::SolicitedOrTimer`] and [`Self::watch`].
    #[pin]
    guard: Opaque<bindings::timer_list>,
    guards: Counter,
    /// The guard starts again each time: see [`Self::watch`].
    watched: Atomic<bool>,
    #[pin]
    pub(super) sends_drained: Event,
    #[pin]
    pub(super) receives_drained: Event,
}

// SAFETY: All mutable fields are guarded as the invariants say; `batch` is used by the single
// poller that irq_poll, the workqueue and `direct` guarantee.
unsafe impl<H: Handler> Send for CompletionQueue<H> {}
// SAFETY: As above.
unsafe impl<H: Handler> Sync for CompletionQueue<H> {}

/// Creates the lock of a polled queue. Not generic: its lockdep class, and so its name, must be one
/// for all modules, and each module with a generic function gets a copy of its own.
#[inline(never)]
fn direct_lock() -> impl PinInit<SpinLock<()>> {
    new_spinlock!((), "hcablk_direct")
}

/// Creates the lock of [`CompletionQueue::begin_stop`]. Not generic, as [`direct_lock`].
#[inline(never)]
fn stopping_lock() -> impl PinInit<SpinLock<Option<CompletionsSince>>> {
    new_spinlock!(None, "hcablk_cq_stopping")
}

impl<H: Handler> CompletionQueue<H> {
    /// Makes a queue with room for exactly `entries` completions: a queue that
    /// overflows loses some. `vector` chooses the interrupt. May sleep.
    pub fn new(
        pd: &Arc<ProtectionDomain>,
        entries: u32,
        vector: u32,
        context: CqContext,
    ) -> Result<Arc<Self>> {
        let used = pd.begin_use()?;
        let cq = Arc::pin_init(
            pin_init!(Self {
                raw: UnsafeCell::new(ptr::null_mut()),
                pd: used,
                context,
                started: Atomic::new(false),
                running: Atomic::new(false),
                stopping <- stopping_lock(),
                paired: Paired::new(),
                handler: UnsafeCell::new(None),
                poll <- Opaque::ffi_init(|slot: *mut bindings::irq_poll| {
                    // SAFETY: `slot` is writable memory that stays pinned.
                    unsafe {
                        slot.write(bindings::zeroed());
                        bindings::irq_poll_init(slot, BUDGET_SOFTIRQ, Some(Self::on_poll));
                    }
                }),
                interrupt <- Opaque::ffi_init(|slot: *mut bindings::irq_work| {
                    // SAFETY: `slot` is writable memory that stays pinned.
                    unsafe { bindings::hcablk_c_init_irq_work(slot, Some(Self::on_interrupt)) };
                }),
                work <- Opaque::ffi_init(|slot: *mut bindings::work_struct| {
                    // SAFETY: `slot` is writable memory that stays pinned.
                    unsafe { bindings::hcablk_c_init_work(slot, Some(Self::on_work)) };
                }),
                direct <- direct_lock(),
                batch: UnsafeCell::new([const { bindings::zeroed() }; BATCH]),
                events: Counter::new(),
                handed_over: Atomic::new(0),
                // Soft-iWARP takes no message for one that asks for being
                // reported (siw_rqe_complete() forgets the flag).
                notify_all: Atomic::new(pd.is_iwarp()),
                guard <- Opaque::ffi_init(|slot: *mut bindings::timer_list| {
                    // SAFETY: `slot` is writable memory that stays pinned.
                    unsafe { bindings::hcablk_c_timer_setup(slot, Some(Self::on_guard)) };
                }),
                guards: Counter::new(),
                watched: Atomic::new(false),
                sends_drained <- Event::new(),
                receives_drained <- Event::new(),
            }),
            GFP_KERNEL,
        )?;
        let raw = cq.create(entries, vector)?;
        // SAFETY: Nobody else has the object yet: the device does not report
        // before the queue is armed.
        unsafe { *cq.raw.get() = raw };
        Ok(cq)
    }

    /// Has the device make its queue, which reports to this object once it is armed.
    fn create(&self, entries: u32, vector: u32) -> Result<*mut bindings::ib_cq> {
        let vectors = self.pd.attributes().completion_vectors;
        // SAFETY: The device is alive through `pd`; the context lives until
        // the drop destroys the queue.
        from_err_ptr(unsafe {
            bindings::hcablk_c_ib_create_cq(
                self.pd.device(),
                Some(Self::on_event),
                None,
                ptr::from_ref(self).cast_mut().cast(),
                entries,
                vector.checked_rem(vectors).unwrap_or(0) as c_int,
            )
        })
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        // SAFETY: Written before `new` returned, and by `sever`, which does not run while the
        // poller or the creator of a queue pair, the only callers, read it.
        unsafe { *self.raw.get() }
    }

    /// Returns how many completion events (interrupts) this queue had.
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// Returns how many completions were handed over to the device's driver.
    pub(super) fn handed_over(&self) -> u64 {
        self.handed_over.load(Acquire)
    }

    /// Returns how often the timer of [`CqNotify::SolicitedOrTimer`] has expired.
    pub fn guards(&self) -> u64 {
        self.guards.get()
    }

    /// Starts reporting to `handler`; once in the life of a queue. A second call is refused with a
    /// message in the log, and the first handler stays. Must not run concurrently with
    /// [`Self::stop`], which it may undo.
    pub fn start(&self, handler: Arc<H>) {
        if self.started.xchg(true, Full) {
            return pr_warn!("hcablk: BUG: a completion queue was started twice\n");
        }
        {
            let _guard = self.direct.lock();
            // SAFETY: This is the only call that comes here. The queue was never armed, and the
            // lock is held, so nothing reads `handler`.
            unsafe { *self.handler.get() = Some(handler) };
        }
        self.running.store(true, Release);
        if !self.is_direct() && self.arm(false) {
            self.schedule();
        }
    }

    /// Schedules the poller, so that everything that has completed is handled, and calls
    /// [`Handler::cq_notify`] again. Any context. Does nothing in [`CqContext::Direct`], as
    /// everything here that may be called in any context.
    pub fn kick(&self) {
        self.schedule();
    }

    /// Arms the queue for any completion from now on, regardless of the handler, and schedules the
    /// handling of all completions. Any context.
    pub fn notify_all(&self) {
        self.notify_all.store(true, Release);
        self.schedule();
    }

    /// Schedules the poller as [`Self::kick`] does, and when called in process context runs it
    /// before it returns, unless it runs elsewhere. Handlers in [`CqContext::SoftIrq`] only.
    /// Process or softirq context, with interrupts on, and without locks that the handler takes.
    #[inline]
    pub fn reap(&self) {
        // SAFETY: Enabled again below; what is raised in between runs then.
        unsafe { bindings::hcablk_c_local_bh_disable() };
        self.schedule();
        // SAFETY: Disabled above, interrupts are on.
        unsafe { bindings::hcablk_c_local_bh_enable() };
    }

    /// Returns whether the completion queue has a queue pair, to be set and cleared with it.
    pub(super) fn paired(&self) -> &Paired {
        &self.paired
    }

    /// Returns whether no completion is being handled. A caller that must not wait for handlers
    /// that sleep calls [`Self::kick`] and then polls this. Only covers completions that are
    /// handled in process context. Any context.
    pub fn is_settled(&self) -> bool {
        match self.context {
            // SAFETY: `work` was initialised.
            CqContext::Process(_) => unsafe { bindings::work_busy(self.work.get()) == 0 },
            CqContext::SoftIrq | CqContext::Direct => true,
        }
    }

    /// Schedules the handling of all completions, as [`Self::kick`] does, and waits until they were
    /// handled. Waits only for those that are handled in process context. May sleep; not from a
    /// handler.
    pub fn settle(&self) {
        match self.context {
            CqContext::SoftIrq => self.schedule(),
            CqContext::Process(_) => {
                self.schedule();
                // SAFETY: `work` was initialised.
                unsafe { bindings::flush_work(self.work.get()) };
            }
            CqContext::Direct => self.poll_all(),
        }
    }

    /// Stops reporting, except by a poller that runs now. [`Self::stop`] must follow: a caller that
    /// stops several queues begins with all of them, so that they wait for one grace period
    /// together. Waits for a handler in process context that runs, so never from a handler. May
    /// sleep.
    pub fn begin_stop(&self) {
        if !self.running.xchg(false, Full) {
            return;
        }
        // SAFETY: Both were initialised when the object was made; afterwards neither runs again,
        // nor is queued by an event that is just being handled: both are disabled. This is the only
        // call that comes here, by the exchange of `running`, which only the first `start` has set.
        unsafe {
            bindings::irq_poll_disable(self.poll.get());
            bindings::disable_work_sync(self.work.get());
        }
        *self.stopping.lock() = Some(CompletionsSince::now());
    }

    /// Stops reporting and lets go of the handler. Waits for a handler that
    /// runs, so never from a handler. May sleep. Does nothing if another call has begun.
    pub fn stop(&self) {
        self.begin_stop();
        let Some(since) = self.stopping.lock().take() else {
            return;
        };
        if let CqContext::SoftIrq = self.context {
            // A poller that has just declared itself done may still be arming.
            since.synchronize();
        }
        // SAFETY: Both were initialised; from here on the timer cannot be
        // started, and nobody schedules any more.
        unsafe {
            bindings::timer_shutdown_sync(self.guard.get());
            bindings::irq_work_sync(self.interrupt.get());
        }
        let guard = self.direct.lock();
        // SAFETY: No poller is left that could read it.
        let handler = unsafe { (*self.handler.get()).take() };
        drop(guard);
        drop(handler);
    }

    /// Schedules the poller. Any context, also with the device's lock held, since it polls nothing
    /// itself.
    ///
    /// A device that is software reports from a task. There a softirq would
    /// wake its thread up, which most often finds that the softirq has run at
    /// the end of somebody's section without softirqs; the task would be
    /// switched away from for nothing. So it is raised from an interrupt.
    fn schedule(&self) {
        if !self.running.load(Acquire) {
            return;
        }
        match &self.context {
            // SAFETY: Both are initialised and stay pinned; `interrupt` does
            // nothing but to schedule `poll`.
            CqContext::SoftIrq => unsafe {
                bindings::hcablk_c_irq_poll_sched(self.poll.get(), self.interrupt.get());
            },
            // SAFETY: `work` is initialised and stays pinned, the queue is alive.
            CqContext::Process(queue) => unsafe {
                bindings::hcablk_c_queue_work(queue.as_raw(), self.work.get());
            },
            CqContext::Direct => {}
        }
    }

    /// Reports up to `budget` completions and returns how many there were.
    ///
    /// # Safety
    ///
    /// The caller is the queue's only poller, between `start` and `stop`, or
    /// holds `direct`.
    #[inline]
    unsafe fn poll(&self, budget: c_int) -> c_int {
        let cq = self.as_raw();
        // SAFETY: By the safety requirement nobody writes it.
        let Some(handler) = (unsafe { &*self.handler.get() }) else {
            return 0;
        };
        // SAFETY: The queue and its device are valid.
        let Some(poll_cq) = (unsafe { (*(*cq).device).ops.poll_cq }) else {
            return 0;
        };
        // SAFETY: The caller is the only poller.
        let batch = unsafe { &mut *self.batch.get() };
        let mut left = budget;
        let mut round = H::Round::default();
        while left > 0 {
            let want = left.min(BATCH as c_int);
            // SAFETY: `batch` has room for `want` completions.
            let got = unsafe { poll_cq(cq, want, batch.as_mut_ptr()) }.clamp(0, want);
            for wc in batch.iter().take(got as usize) {
                // SAFETY: `Completion` is a transparent wrapper.
                let completion: &Completion = unsafe { &*ptr::from_ref(wc).cast() };
                if completion.work().is_drain() {
                    self.drained(completion);
                } else {
                    handler.complete(&mut round, completion);
                }
            }
            left -= got;
            if got < want {
                break;
            }
        }
        handler.round_done(&mut round);
        budget - left
    }

    /// Handles the completion of a work request that was posted to drain a queue, by us or by the
    /// device's driver. The poller.
    #[cold]
    fn drained(&self, completion: &Completion) {
        match completion.work() {
            WorkId::SENDS_DRAINED => self.sends_drained.set(),
            WorkId::RECEIVES_DRAINED => self.receives_drained.set(),
            _ => {
                // Stored before the wake-up: the waiter may look at once.
                self.handed_over
                    .store(self.handed_over.load(Relaxed) + 1, Release);
                completion.hand_over(self.as_raw());
            }
        }
    }

    /// Returns the protection domain that the queue belongs to.
    pub fn pd(&self) -> &Arc<ProtectionDomain> {
        self.pd.domain()
    }

    /// Stops the queue as [`Self::stop`] does, and returns it to the device. The object stays, but
    /// [`Self::kick`] and the like do nothing. Does nothing the second time.
    ///
    /// # Safety
    ///
    /// The queue has no queue pair, none is being made, and no other call of this runs.
    pub(super) unsafe fn sever(&self) {
        self.stop();
        let guard = self.direct.lock();
        // SAFETY: The queue is stopped, so no poller reads it: one in `CqContext::Direct` would
        // hold the lock. By the safety requirement nothing else reads it.
        let raw = unsafe { ptr::replace(self.raw.get(), ptr::null_mut()) };
        drop(guard);
        if let Some(cq) = NonNull::new(raw) {
            // SAFETY: No queue pair is left, so the device reports nothing any more. `stop` has
            // waited for the poller, the timer and the interrupt, which cannot be started again,
            // except by a caller that was starting them when `stop` began.
            unsafe {
                bindings::hcablk_c_ib_destroy_cq(cq.as_ptr());
                // An event that came then; on PREEMPT_RT it is handled by a thread.
                bindings::irq_work_sync(self.interrupt.get());
            }
        }
        self.pd.end();
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for CompletionQueue<H> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: A queue pair holds a reference to its completion queue, so none is left. There is
        // no reference with which anything else could be called.
        unsafe { self.sever() };
    }
}
