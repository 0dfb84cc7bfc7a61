// SPDX-License-Identifier: GPL-2.0

//! The operations that a driver implements, and the table of C functions that calls them.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use super::{
    request::Pdu,
    tag_set::TagSetContext,
    Dispatch,
    Rejected,
    Request,
    Status,
    TimedOut, //
};
use crate::bindings;
use crate::sync::{
    atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
    synchronize_completions, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{
        addr_of_mut,
        null_mut,
        NonNull, //
    },
};
use kernel::{
    error::from_result,
    prelude::*,
    sync::{
        rcu,
        Arc, //
    },
};

/// The result of [`Operations::timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// The request is still under way: call again after the timeout.
    ResetTimer,
    /// The request has been ended, or will be without further calls.
    Done,
}

/// A driver of disks.
pub trait Operations: Sized + Send + Sync + 'static {
    /// Shared by everything on one tag set.
    type Data: Send + Sync + 'static;
    /// Data of one hardware queue.
    type HwQueue: Send + Sync + 'static;
    /// Data of one request, alive as long as the `struct request`. Alignment
    /// at most 8.
    ///
    /// With an I/O scheduler there are more requests than tags, and each hardware queue has one
    /// request for flushes that borrows tags: data that must exist once per tag belongs into the
    /// hardware queue's data.
    type Pdu: Send + 'static;

    /// Returns the data of hardware queue `index`. Called for each hardware queue when a disk is
    /// added. May sleep, and must not start I/O.
    fn hw_queue(
        data: &Self::Data,
        index: u32,
        dispatch: &Arc<Dispatch<Self>>,
    ) -> Result<Arc<Self::HwQueue>>;

    /// Creates the data of a request of hardware queue `hw_queue`. May sleep; allocations must be
    /// `GFP_NOIO`, as a change of the I/O scheduler calls this too.
    fn init_request(data: &Self::Data, hw_queue: u32) -> Result<Self::Pdu>;

    /// Issues a request. `last` is false if more follow at once.
    ///
    /// Runs under RCU, in process or softirq context: must not sleep. The
    /// request is started already.
    fn queue_rq(
        queue: &Self::HwQueue,
        request: Request<Self>,
        last: bool,
    ) -> Result<(), Rejected<Self>>;

    /// Issues held-back requests, since fewer requests came than were announced (`last` was false).
    /// Context as `queue_rq`.
    fn commit_rqs(_queue: &Self::HwQueue) {}

    /// Ends completed requests on a hardware queue for polled I/O, and returns how many (other work
    /// may count, too). Tasks that wait for such a request call it repeatedly, several at the same
    /// time. Process context, must not sleep.
    fn poll(_queue: &Self::HwQueue) -> u32 {
        0
    }

    /// Handles the timeout of a request, as [`Request::requeue`] defines it. Runs in a worker and
    /// may sleep.
    fn timeout(queue: &Self::HwQueue, request: TimedOut<'_>) -> Timeout;
}

/// The C functions for a driver.
pub(super) struct Vtable<T: Operations>(PhantomData<T>);

/// Returns the location of a hardware queue's data, which [`Dispatch::exchange`] may change at any
/// time.
///
/// # Safety
///
/// `hctx` is set up, and stays so for `'a`.
#[inline]
pub(super) unsafe fn place_of<'a>(hctx: *mut bindings::blk_mq_hw_ctx) -> &'a Atomic<*mut c_void> {
    // SAFETY: By the safety requirement; once it is set up, only atomic accesses are made.
    unsafe { Atomic::from_ptr(addr_of_mut!((*hctx).driver_data)) }
}

impl<T: Operations> Vtable<T> {
    /// Returns the data of a hardware queue.
    ///
    /// # Safety
    ///
    /// `hctx` is one of `T`'s and set up, and stays so for `'a`, all of which is in one RCU
    /// section.
    #[inline]
    unsafe fn queue_of<'a>(hctx: *mut bindings::blk_mq_hw_ctx) -> &'a T::HwQueue {
        // The data was written before the pointer was stored, and is read through it.
        // SAFETY: By the safety requirement `init_hctx` left an `Arc` there; replacing it keeps the
        // old one for an RCU grace period.
        unsafe { &*place_of(hctx).load(Relaxed).cast::<T::HwQueue>() }
    }

    /// Returns the data of a hardware queue, if it is still set up: for a function that is called
    /// without a request, which would keep it set up.
    ///
    /// # Safety
    ///
    /// `hctx` is one of `T`'s, all of `'a` is in one RCU section, and `exit_hctx` was not called
    /// before that.
    #[inline]
    unsafe fn queue_if_any<'a>(hctx: *mut bindings::blk_mq_hw_ctx) -> Option<&'a T::HwQueue> {
        // SAFETY: As in `queue_of`; `exit_hctx` leaves null, and drops the old value after a grace
        // period.
        unsafe { place_of(hctx).load(Relaxed).cast::<T::HwQueue>().as_ref() }
    }

    /// Takes a reference to the data of a hardware queue, for a function that sleeps.
    ///
    /// # Safety
    ///
    /// `hctx` is one of `T`'s and set up.
    unsafe fn keep_queue(hctx: *mut bindings::blk_mq_hw_ctx) -> Arc<T::HwQueue> {
        let _guard = rcu::read_lock();
        // SAFETY: As in `queue_of`: the count of this `Arc` does not become 0 in this section. The
        // reference in the place is left there.
        let queue = ManuallyDrop::new(unsafe {
            Arc::from_raw(
                place_of(hctx)
                    .load(Relaxed)
                    .cast::<T::HwQueue>()
                    .cast_const(),
            )
        });
        Arc::clone(&queue)
    }

    /// # Safety
    ///
    /// Called by blk-mq: `hctx` is set up, `bd.rq` is a request of this tag set
    /// that now belongs to the driver and has a tag.
    unsafe extern "C" fn queue_rq(
        hctx: *mut bindings::blk_mq_hw_ctx,
        bd: *const bindings::blk_mq_queue_data,
    ) -> bindings::blk_status_t {
        // SAFETY: By the safety requirement all of these are valid; the hardware queue's data was
        // set when it was made. blk-mq dispatches in an RCU section.
        let (request, last, queue) = unsafe { ((*bd).rq, (*bd).last, Self::queue_of(hctx)) };
        let Some(request) = NonNull::new(request) else {
            // blk-mq never does this.
            return Status::IoErr.to_raw();
        };

        // SAFETY: The request was just given to us.
        unsafe { bindings::blk_mq_start_request(request.as_ptr()) };
        // SAFETY: It is started, `init_request` made the driver part, nobody else has it. The last
        // owner has cleared its place.
        let request = unsafe { Request::from_owned(request) };
        let given = request.view().as_raw();

        match T::queue_rq(queue, request, last) {
            Ok(()) => Status::Ok.to_raw(),
            Err(Rejected { request, .. }) if request.view().as_raw() != given => {
                // The driver returned a different request: dropping it logs a message and ends it.
                // The request that it was given has an owner somewhere.
                drop(request);
                Status::Ok.to_raw()
            }
            Err(Rejected { request, status }) => {
                if status == Status::Ok {
                    request.end(status);
                } else if !request.reject() {
                    // The block layer sees the request as issued.
                    return Status::Ok.to_raw();
                }
                status.to_raw()
            }
        }
    }

    /// # Safety
    ///
    /// Called by blk-mq: `hctx` is set up.
    unsafe extern "C" fn commit_rqs(hctx: *mut bindings::blk_mq_hw_ctx) {
        // The issuer of requests may arrive here after they have ended, while the disk is removed.
        // SAFETY: `init_hctx` set it; blk-mq dispatches in an RCU section, which began before that
        // request ended.
        if let Some(queue) = unsafe { Self::queue_if_any(hctx) } {
            T::commit_rqs(queue);
        }
    }

    /// # Safety
    ///
    /// Called by blk-mq: `hctx` is set up.
    unsafe extern "C" fn poll(
        hctx: *mut bindings::blk_mq_hw_ctx,
        _batch: *mut bindings::io_comp_batch,
    ) -> c_int {
        let guard = rcu::read_lock();
        // SAFETY: `init_hctx` set it, and this is an RCU section.
        let found = unsafe { Self::queue_if_any(hctx) }.map_or(0, T::poll);
        drop(guard);
        c_int::try_from(found).unwrap_or(c_int::MAX)
    }

    /// Maps the CPUs to hardware queues: the last queues are for polled I/O, all others for other
    /// I/O.
    ///
    /// # Safety
    ///
    /// Called by blk-mq: `set` is a tag set of `T`.
    unsafe extern "C" fn map_queues(set: *mut bindings::blk_mq_tag_set) {
        // SAFETY: By the safety requirement; `driver_data` is a `TagSetContext<T>`.
        let set = unsafe { &mut *set };
        // SAFETY: As above.
        let polled = unsafe { (*set.driver_data.cast::<TagSetContext<T>>()).poll_queues };
        let others = set.nr_hw_queues - polled;
        let [default, _, poll] = &mut set.map;
        default.nr_queues = others;
        // SAFETY: The map has a place for each processor, as blk-mq made it.
        unsafe { bindings::blk_mq_map_queues(default) };
        if polled != 0 {
            poll.nr_queues = polled;
            poll.queue_offset = others;
            // SAFETY: As above: there are maps for all types.
            unsafe { bindings::blk_mq_map_queues(poll) };
            // Reads go where writes go.
            set.map[bindings::hctx_type_HCTX_TYPE_READ as usize].nr_queues = 0;
        }
    }

    /// # Safety
    ///
    /// Called by blk-mq, which holds a reference on the started request.
    unsafe extern "C" fn timeout(request: *mut bindings::request) -> bindings::blk_eh_timer_return {
        // SAFETY: By the safety requirement; `init_hctx` set the data.
        let queue = unsafe {
            bindings::hcablk_c_time_anew(request);
            Self::keep_queue((*request).mq_hctx)
        };
        let Some(request) = NonNull::new(request) else {
            return bindings::blk_eh_timer_return_BLK_EH_RESET_TIMER;
        };
        // SAFETY: By the safety requirement.
        let request = unsafe { TimedOut::new(request) };
        match T::timeout(&queue, request) {
            Timeout::ResetTimer => bindings::blk_eh_timer_return_BLK_EH_RESET_TIMER,
            Timeout::Done => bindings::blk_eh_timer_return_BLK_EH_DONE,
        }
    }

    /// # Safety
    ///
    /// Called by blk-mq: `data` is the tag set's `driver_data`.
    unsafe extern "C" fn init_hctx(
        hctx: *mut bindings::blk_mq_hw_ctx,
        data: *mut c_void,
        index: c_uint,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The tag set's `driver_data` is a `TagSetContext<T>`.
            let context = unsafe { &*data.cast::<TagSetContext<T>>() };
            let queue = T::hw_queue(&context.data, index, &context.dispatch)?;
            // SAFETY: `hctx` is being set up, nobody else uses it.
            unsafe { (*hctx).driver_data = Arc::into_raw(queue).cast_mut().cast() };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by blk-mq after a successful `init_hctx`, when nothing uses the
    /// hardware queue any more.
    unsafe extern "C" fn exit_hctx(hctx: *mut bindings::blk_mq_hw_ctx, _index: c_uint) {
        // `Dispatch::exchange` may still be called: it finds nothing to exchange.
        // SAFETY: By the safety requirement the hardware queue is valid.
        let queue = unsafe { place_of(hctx) }.xchg(null_mut(), Full);
        if queue.is_null() {
            return;
        }
        // SAFETY: `init_hctx` or `exchange` left an `Arc` there, taken out just now by this
        // function alone.
        let queue = unsafe { Arc::from_raw(queue.cast::<T::HwQueue>().cast_const()) };
        // SAFETY: By the safety requirement the hardware queue and its request queue are valid.
        let set = unsafe { (*(*hctx).queue).tag_set };
        // SAFETY: The tag set's `driver_data` is a `TagSetContext<T>`.
        let context = unsafe { &*(*set).driver_data.cast::<TagSetContext<T>>() };
        // A submitter whose request has ended may still be on its way to `commit_rqs`. At the
        // removal of a disk, one grace period covers all its hardware queues.
        if !context.dispatch.keep_exited(&queue) {
            synchronize_completions();
        }
        drop(queue);
    }

    /// # Safety
    ///
    /// Called by blk-mq: `set` is a tag set of `T`, `request` is new and has
    /// `cmd_size` bytes behind it.
    unsafe extern "C" fn init_request(
        set: *mut bindings::blk_mq_tag_set,
        request: *mut bindings::request,
        hw_queue: c_uint,
        _node: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The tag set's `driver_data` is a `TagSetContext<T>`.
            let context = unsafe { &*(*set).driver_data.cast::<TagSetContext<T>>() };
            let driver = T::init_request(&context.data, hw_queue)?;
            // SAFETY: `cmd_size` is the size of `Pdu<T>`, the alignment was
            // asserted, and the memory is nobody's yet.
            unsafe { Pdu::<T>::of_request(request).write(Pdu::new(driver)) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Called by blk-mq after a successful `init_request`, when the request is
    /// not in use any more.
    unsafe extern "C" fn exit_request(
        _set: *mut bindings::blk_mq_tag_set,
        request: *mut bindings::request,
        _hw_queue: c_uint,
    ) {
        // SAFETY: `init_request` made it and nobody uses it now.
        unsafe { Pdu::<T>::of_request(request).drop_in_place() };
    }

    const OPS: bindings::blk_mq_ops = bindings::blk_mq_ops {
        queue_rq: Some(Self::queue_rq),
        commit_rqs: Some(Self::commit_rqs),
        timeout: Some(Self::timeout),
        poll: Some(Self::poll),
        map_queues: Some(Self::map_queues),
        init_hctx: Some(Self::init_hctx),
        exit_hctx: Some(Self::exit_hctx),
        init_request: Some(Self::init_request),
        exit_request: Some(Self::exit_request),
        ..pin_init::zeroed()
    };

    /// Returns the table of functions.
    pub(super) const fn build() -> &'static bindings::blk_mq_ops {
        &Self::OPS
    }
}
