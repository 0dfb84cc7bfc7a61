// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! A completion queue here serves one queue pair. It runs in one of two
//! contexts, as the ones of `ib_alloc_cq()` do, but keeps arming, polling and
//! dispatch in our own hands: work is told apart by the `wr_id` rather than by
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
    pd::ProtectionDomain,
    wr::WorkId, //
};
use crate::{
    bindings,
    sync::{
        synchronize_interrupts,
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
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
    types::Opaque,
};

/// A completed work request.
#[repr(transparent)]
pub struct Completion(bindings::ib_wc);

impl Completion {
    /// The work id it was posted with.
    #[inline]
    pub fn work(&self) -> WorkId {
        // SAFETY: The queue's users post nothing but `wr_id`s.
        WorkId::from_raw(unsafe { *self.0.__bindgen_anon_1.wr_id })
    }

    /// Whether the work was done. When it was not, only [`Self::work`] means anything.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.0.status == bindings::ib_wc_status_IB_WC_SUCCESS
    }

    /// The work was not tried because the queue pair is going down.
    pub fn is_flushed(&self) -> bool {
        self.0.status == bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR
    }

    /// The status in words.
    pub fn status(&self) -> &'static CStr {
        // SAFETY: The function returns a constant string for every status.
        unsafe { CStr::from_char_ptr(bindings::ib_wc_status_msg(self.0.status)) }
    }

    /// Bytes received.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// The immediate data with which the peer has ended an RDMA WRITE.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        let flags = self.0.wc_flags as u32;
        if flags & bindings::ib_wc_flags_IB_WC_WITH_IMM == 0
            || self.0.opcode != bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM
        {
            return None;
        }
        // SAFETY: The flag says that this part of the union is valid.
        Some(u32::from_be(unsafe { *self.0.ex.imm_data }))
    }

    /// The key that the peer invalidated with this message.
    #[inline]
    pub fn invalidated(&self) -> Option<u32> {
        let flags = self.0.wc_flags as u32;
        if flags & bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE == 0 {
            return None;
        }
        // SAFETY: The flag says that this part of the union is valid.
        Some(unsafe { *self.0.ex.invalidate_rkey })
    }
}

/// Who is told of completions.
pub trait Handler: Send + Sync + 'static {
    /// One completion, in the queue's [`Context`]; calls for one queue never overlap.
    fn complete(&self, completion: &Completion);

    /// All completions of a round were reported.
    #[inline]
    fn round_done(&self) {}

    /// Until the next round only messages that ask for it need to be reported
    /// at once. Other completions, errors too, wait for that, for
    /// [`CompletionQueue::kick`], or until the queue pair is failed, which ends
    /// all patience. Asked after each round.
    #[inline]
    fn is_patient(&self) -> bool {
        false
    }
}

/// Where completions are handled.
#[derive(Clone)]
pub enum Context {
    /// In softirq context, soon after the interrupt.
    SoftIrq,
    /// On a workqueue made by [`WorkQueue::for_completions`]: handlers may sleep.
    Process(Arc<WorkQueue>),
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
/// - `raw` is valid and its context is the object itself.
/// - `handler` is written only while `running` is false and neither `poll` nor
///   `work` can run.
#[pin_data(PinnedDrop)]
pub struct CompletionQueue<H: Handler> {
    raw: UnsafeCell<*mut bindings::ib_cq>,
    pd: Arc<ProtectionDomain>,
    context: Context,
    running: Atomic<bool>,
    handler: UnsafeCell<Option<Arc<H>>>,
    #[pin]
    poll: Opaque<bindings::irq_poll>,
    #[pin]
    work: Opaque<bindings::work_struct>,
    /// Where a batch is put. Only the one poller uses it.
    batch: UnsafeCell<[bindings::ib_wc; BATCH]>,
    events: Atomic<u64>,
    /// Every completion is reported at once, whatever the handler says.
    hurried: Atomic<bool>,
    #[pin]
    pub(super) sends_drained: Event,
    #[pin]
    pub(super) receives_drained: Event,
}

// SAFETY: What is not immutable is guarded as the invariants say; `batch` is
// used by the single poller that irq_poll and the workqueue guarantee.
unsafe impl<H: Handler> Send for CompletionQueue<H> {}
// SAFETY: As above.
unsafe impl<H: Handler> Sync for CompletionQueue<H> {}

impl<H: Handler> CompletionQueue<H> {
    /// Makes a queue with room for exactly `entries` completions: a queue that
    /// overflows loses some. `vector` chooses the interrupt. May sleep.
    pub fn new(
        pd: &Arc<ProtectionDomain>,
        entries: u32,
        vector: u32,
        context: Context,
    ) -> Result<Arc<Self>> {
        let cq = Arc::pin_init(
            pin_init!(Self {
                raw: UnsafeCell::new(ptr::null_mut()),
                pd: pd.clone(),
                context,
                running: Atomic::new(false),
                handler: UnsafeCell::new(None),
                poll <- Opaque::ffi_init(|slot: *mut bindings::irq_poll| {
                    // SAFETY: `slot` is writable memory that stays pinned.
                    unsafe {
                        slot.write(bindings::zeroed());
                        bindings::irq_poll_init(slot, BUDGET_SOFTIRQ, Some(Self::on_poll));
                    }
                }),
                work <- Opaque::ffi_init(|slot: *mut bindings::work_struct| {
                    // SAFETY: `slot` is writable memory that stays pinned.
                    unsafe { bindings::hcablk_c_init_work(slot, Some(Self::on_work)) };
                }),
                batch: UnsafeCell::new([const { bindings::zeroed() }; BATCH]),
                events: Atomic::new(0),
                hurried: Atomic::new(false),
                sends_drained <- Event::new(),
                receives_drained <- Event::new(),
            }),
            GFP_KERNEL,
        )?;
        let this: *const Self = &*cq;
        // SAFETY: The device is alive through `pd`; the context lives until
        // the drop destroys the queue.
        let raw = from_err_ptr(unsafe {
            bindings::hcablk_c_ib_create_cq(
                pd.device(),
                Some(Self::on_event),
                None,
                this.cast_mut().cast(),
                entries,
                vector
                    .checked_rem(pd.attributes().completion_vectors)
                    .unwrap_or(0) as c_int,
            )
        })?;
        // SAFETY: Nobody else has the object yet: the device does not report
        // before the queue is armed.
        unsafe { *cq.raw.get() = raw };
        Ok(cq)
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_cq {
        // SAFETY: Written once, before `new` returned.
        unsafe { *self.raw.get() }
    }

    /// Completion events (interrupts) that this queue had.
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Begins to report to `handler`; once in the life of a queue.
    pub fn start(&self, handler: Arc<H>) {
        // SAFETY: The queue was never armed, so nothing reads `handler`.
        unsafe { *self.handler.get() = Some(handler) };
        self.running.store(true, Release);
        if self.arm(false) {
            self.schedule();
        }
    }

    /// Has everything reported that has completed, and asks [`Handler::is_patient`]
    /// again. Any context.
    pub fn kick(&self) {
        self.schedule();
    }

    /// From now on no completion waits, however patient the handler is; what
    /// waited is reported. Any context.
    pub(super) fn hurry(&self) {
        self.hurried.store(true, Release);
        self.schedule();
    }

    /// As [`Self::kick`], and waits until that is done: afterwards the handler
    /// knows of all that had completed. For queues handled in process context;
    /// others are never patient. May sleep; not from a handler.
    pub fn settle(&self) {
        self.schedule();
        if let Context::Process(_) = self.context {
            // SAFETY: `work` was initialised.
            unsafe { bindings::flush_work(self.work.get()) };
        }
    }

    /// Stops reporting and lets go of the handler. Waits for a handler that
    /// runs, so never from a handler. May sleep.
    pub fn stop(&self) {
        if !self.running.xchg(false, kernel::sync::atomic::Full) {
            return;
        }
        // SAFETY: Both were initialised; afterwards neither runs again, nor is
        // queued by an event that is just being handled: both are disabled.
        unsafe {
            bindings::irq_poll_disable(self.poll.get());
            bindings::disable_work_sync(self.work.get());
        }
        if let Context::SoftIrq = self.context {
            // A poller that has just declared itself done may still be arming.
            synchronize_interrupts();
        }
        // SAFETY: No poller is left that could read it.
        drop(unsafe { (*self.handler.get()).take() });
    }

    /// Asks for an event at the next completion, or the next solicited one;
    /// `true`: there may be completions already that will not cause one.
    #[inline]
    fn arm(&self, patient: bool) -> bool {
        let which = if patient && !self.hurried.load(Acquire) {
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

    /// Any context, also with the device's lock held: polls nothing itself.
    fn schedule(&self) {
        if !self.running.load(Acquire) {
            return;
        }
        match &self.context {
            // SAFETY: `poll` is initialised and stays pinned.
            Context::SoftIrq => unsafe { bindings::irq_poll_sched(self.poll.get()) },
            // SAFETY: `work` is initialised and stays pinned, the queue is alive.
            Context::Process(queue) => unsafe {
                bindings::hcablk_c_queue_work(queue.as_raw(), self.work.get());
            },
        }
    }

    /// Reports up to `budget` completions and returns how many there were.
    ///
    /// # Safety
    ///
    /// The caller is the queue's only poller.
    #[inline]
    unsafe fn poll(&self, budget: c_int) -> c_int {
        let cq = self.as_raw();
        // SAFETY: A poller only runs between `start` and `stop`.
        let Some(handler) = (unsafe { &*self.handler.get() }) else {
            return 0;
        };
        // SAFETY: The queue and its device are valid.
        let Some(poll_cq) = (unsafe { (*(*cq).device).ops.poll_cq }) else {
            return 0;
        };
        // SAFETY: The caller is the only poller.
        let batch = unsafe { &mut *self.batch.get() };
        let mut done = 0;
        while done < budget {
            let want = (budget - done).min(BATCH as c_int);
            // SAFETY: `batch` has room for `want` completions.
            let got = unsafe { poll_cq(cq, want, batch.as_mut_ptr()) };
            let got = usize::try_from(got).unwrap_or(0);
            for wc in batch.iter().take(got) {
                // SAFETY: `Completion` is a transparent wrapper.
                let completion: &Completion = unsafe { &*ptr::from_ref(wc).cast() };
                match completion.work() {
                    WorkId::SENDS_DRAINED => self.sends_drained.set(),
                    WorkId::RECEIVES_DRAINED => self.receives_drained.set(),
                    _ => handler.complete(completion),
                }
            }
            done += got as c_int;
            if got < want as usize {
                break;
            }
        }
        handler.round_done();
        done
    }

    /// # Safety
    ///
    /// Called by the device with a context that [`Self::new`] set.
    unsafe extern "C" fn on_event(_: *mut bindings::ib_cq, context: *mut crate::ffi::c_void) {
        // SAFETY: The object outlives its completion queue.
        let this = unsafe { &*context.cast::<Self>() };
        // Only a statistic: events of one queue do not overlap.
        this.events.store(this.events.load(Relaxed) + 1, Relaxed);
        this.schedule();
    }

    /// # Safety
    ///
    /// Called by irq_poll with the `poll` of a live object.
    unsafe extern "C" fn on_poll(poll: *mut bindings::irq_poll, budget: c_int) -> c_int {
        let poll: *mut Opaque<bindings::irq_poll> = poll.cast();
        // SAFETY: `poll` is the field of an object that outlives it.
        let this = unsafe { &*kernel::container_of!(poll, Self, poll) };
        // SAFETY: irq_poll runs a queue on one processor at a time.
        let done = unsafe { this.poll(budget) };
        if done < budget {
            // SAFETY: `poll` is scheduled, this is its handler.
            unsafe { bindings::irq_poll_complete(this.poll.get()) };
            // SAFETY: A poll runs between `start` and `stop` only.
            let handler = unsafe { &*this.handler.get() };
            let patient = handler.as_ref().is_some_and(|h| h.is_patient());
            if this.arm(patient) {
                this.schedule();
            }
        }
        done
    }

    /// # Safety
    ///
    /// Called by the workqueue with the `work` of a live object.
    unsafe extern "C" fn on_work(work: *mut bindings::work_struct) {
        let work: *mut Opaque<bindings::work_struct> = work.cast();
        // SAFETY: `work` is the field of an object that outlives it.
        let this = unsafe { &*kernel::container_of!(work, Self, work) };
        // SAFETY: A work item runs on one processor at a time.
        let done = unsafe { this.poll(BUDGET_PROCESS) };
        // SAFETY: The work runs between `start` and `stop` only.
        let handler = unsafe { &*this.handler.get() };
        let patient = handler.as_ref().is_some_and(|h| h.is_patient());
        if done >= BUDGET_PROCESS || this.arm(patient) {
            this.schedule();
        }
    }

    /// The domain that the queue belongs to.
    pub fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for CompletionQueue<H> {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
        if let Some(cq) = NonNull::new(self.as_raw()) {
            // SAFETY: A queue pair holds a reference to its completion queue, so
            // none is left, and the device reports nothing any more.
            unsafe { bindings::hcablk_c_ib_destroy_cq(cq.as_ptr()) };
        }
    }
}
