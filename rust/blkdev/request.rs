// SPDX-License-Identifier: GPL-2.0

//! A started request, owned.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use super::{
    per_tag::Slot,
    Operations,
    Status, //
};
use crate::{
    bindings,
    broken,
    memory::pages::ContiguousPages,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    }, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::error::{
    code::EINVAL,
    Result, //
};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Make everything that was completed before durable. No data.
    Flush,
    /// The range's content is no longer needed. No data.
    Discard,
    /// The range shall read as zeroes. No data.
    WriteZeroes,
    /// Something the disk's limits do not announce.
    Other,
}

/// The part of the data behind every `struct request` that is the same for all drivers.
///
/// # Invariants
///
/// `place` is null, or the request is started and has that place: it exists.
pub(super) struct Common {
    /// The owner changes it; [`TimedOut`] compares it.
    place: Atomic<*mut Slot>,
    /// Devices that may reach the request's memory: see [`HeldRequest`](super::HeldRequest).
    held: Atomic<u32>,
    /// See [`Request::set_order`].
    pub(super) order: u32,
    /// The number of the place.
    tag: u16,
}

impl Common {
    fn new() -> Self {
        // INVARIANT: It has no place.
        Self {
            place: Atomic::new(null_mut()),
            held: Atomic::new(0),
            order: 0,
            tag: 0,
        }
    }

    /// Returns the location of this part of a request.
    #[inline]
    pub(super) fn of_request(request: *mut bindings::request) -> *mut Self {
        // The part of any driver follows the request.
        request.wrapping_add(1).cast()
    }
}

/// The driver's data behind every `struct request` of ours.
#[repr(C)]
pub(super) struct Pdu<T: Operations> {
    common: Common,
    driver: T::Pdu,
}

impl<T: Operations> Pdu<T> {
    /// Creates the data of a request without a place.
    pub(super) fn new(driver: T::Pdu) -> Self {
        Self {
            common: Common::new(),
            driver,
        }
    }

    /// blk-mq aligns requests to cache lines, but the memory behind
    /// the `struct request` only like that structure.
    pub(super) const ALIGNED: () = assert!(align_of::<Self>() <= align_of::<bindings::request>());

    /// Returns the driver's part of a request. C: `blk_mq_rq_to_pdu()`.
    #[inline]
    pub(super) fn of_request(request: *mut bindings::request) -> *mut Self {
        let () = Self::ALIGNED;
        request.wrapping_add(1).cast()
    }
}

/// Exclusive owner of a started request.
///
/// It gets a place of a queue pair by [`PerTag::claim`](super::PerTag::claim). A request that is
/// dropped without being ended ends with [`Status::IoErr`] and a warning: that is a bug, but it
/// does not hang the queue.
///
/// All functions may be called from any context.
///
/// # Invariants
///
/// - The pointer is to a started request of a tag set of `T`, so its `Pdu<T>`
///   is initialized.
/// - This is the only owner. If it is not that of a [`TaggedRequest`](super::TaggedRequest), the
///   request has no place.
pub struct Request<T: Operations> {
    request: NonNull<bindings::request>,
    _operations: PhantomData<T::Pdu>,
}

// SAFETY: The owner may be any context, one at a time; `T::Pdu` is `Send`.
unsafe impl<T: Operations> Send for Request<T> {}

impl<T: Operations> Request<T> {
    /// Wraps a raw request.
    ///
    /// # Safety
    ///
    /// `request` is started, and no other owner exists; it has no place, or the caller owns that.
    #[inline]
    pub(super) unsafe fn from_owned(request: NonNull<bindings::request>) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            request,
            _operations: PhantomData,
        }
    }

    /// Returns the C structure.
    #[inline]
    pub(super) fn as_raw(&self) -> NonNull<bindings::request> {
        self.request
    }

    /// Gives the request the place `slot`, whose number is `tag`. The caller owns the place, and
    /// keeps the request in a [`TaggedRequest`](super::TaggedRequest).
    #[inline]
    pub(super) fn set_place(&mut self, slot: &Slot, tag: u16) {
        let common = Common::of_request(self.request.as_ptr());
        // SAFETY: By the type invariant it is initialized and ours alone. INVARIANT: The place
        // exists while the request has it.
        unsafe {
            (*common)
                .place
                .store(core::ptr::from_ref(slot).cast_mut(), Relaxed);
            (*common).tag = tag;
        }
    }

    /// Records that the request has no place.
    #[inline]
    pub(super) fn clear_place(&mut self) {
        let common = Common::of_request(self.request.as_ptr());
        // SAFETY: By the type invariant it is initialized.
        unsafe { (*common).place.store(null_mut(), Relaxed) };
    }

    #[inline]
    fn is_held(&self) -> bool {
        // SAFETY: By the type invariant it is initialized.
        unsafe {
            (*Common::of_request(self.request.as_ptr()))
                .held
                .load(Acquire)
                != 0
        }
    }

    /// Gives up the ownership, and returns the pointer. `None`: the request is
    /// [`HeldRequest`](super::HeldRequest), and remains unended for ever.
    #[inline]
    pub(super) fn finish(self) -> Option<NonNull<bindings::request>> {
        let this = ManuallyDrop::new(self);
        if this.is_held() {
            kept();
            return None;
        }
        Some(this.request)
    }

    /// Returns the request, which is owned from here on by the caller, for [`Self::from_owned`].
    #[inline]
    pub(super) fn into_raw(self) -> NonNull<bindings::request> {
        ManuallyDrop::new(self).request
    }

    /// Sets the order of issue among requests that the block layer made at the same time: a growing
    /// number, with wrap. For [`ByAge`](super::ByAge).
    #[inline]
    pub fn set_order(&mut self, order: u32) {
        // SAFETY: By the type invariant it is initialized and ours alone.
        unsafe { (*Common::of_request(self.request.as_ptr())).order = order };
    }

    /// Returns a view of what the request wants.
    #[inline]
    pub fn view(&self) -> RequestRef<'_> {
        RequestRef {
            request: self.request,
            _owner: PhantomData,
        }
    }

    /// Returns a view and the driver's data at once.
    #[inline]
    pub fn split(&mut self) -> (RequestRef<'_>, &mut T::Pdu) {
        let pdu = Pdu::<T>::of_request(self.request.as_ptr());
        let view = RequestRef {
            request: self.request,
            _owner: PhantomData,
        };
        // SAFETY: By the type invariant it is initialized and ours alone; the
        // view does not reach it.
        (view, unsafe { &mut (*pdu).driver })
    }

    /// Returns the driver's data.
    #[inline]
    pub fn pdu(&mut self) -> &mut T::Pdu {
        self.split().1
    }

    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> Op {
        self.view().op()
    }

    /// Returns whether a write must be done whole or not at all, as [`RequestRef::atomic`].
    #[inline]
    pub fn atomic(&self) -> bool {
        self.view().atomic()
    }

    /// Returns whether a write has stronger guarantees than others, as [`RequestRef::promises`].
    #[inline]
    pub fn promises(&self) -> bool {
        self.view().promises()
    }

    /// Returns whether a write must be durable when it ends, as [`RequestRef::fua`].
    #[inline]
    pub fn fua(&self) -> bool {
        self.view().fua()
    }

    /// Returns the first sector, of 512 bytes, as [`RequestRef::sector`].
    #[inline]
    pub fn sector(&self) -> u64 {
        self.view().sector()
    }

    /// Returns the length in bytes, as [`RequestRef::bytes`].
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.view().bytes()
    }

    /// Returns the number of physical segments, as [`RequestRef::segments`].
    #[inline]
    pub fn segments(&self) -> u16 {
        self.view().segments()
    }

    /// Returns blk-mq's tag, which is unique among the started requests of its hardware queue.
    #[inline]
    pub(super) fn block_tag(&self) -> u16 {
        // SAFETY: By the type invariant. A started request has a tag below
        // `BLK_MQ_MAX_DEPTH`.
        unsafe { (*self.request.as_ptr()).tag as u16 }
    }

    /// Returns the index of the hardware queue, as [`RequestRef::hw_queue`].
    #[inline]
    pub fn hw_queue(&self) -> u32 {
        self.view().hw_queue()
    }

    /// Ends the request; not while a device may reach its memory
    /// ([`HeldRequest`](super::HeldRequest)).
    ///
    /// C: `blk_mq_end_request()`.
    #[inline]
    pub fn end(self, status: Status) {
        let Some(request) = self.finish() else {
            return;
        };
        // SAFETY: The request is started and we were its owner; all of it is
        // ended.
        unsafe { bindings::blk_mq_end_request(request.as_ptr(), status.to_raw()) };
    }

    /// Returns the request to the block layer, to be issued again: after earlier requeued requests,
    /// and before those that were never issued ([`ByAge`](super::ByAge)). Its timeout covers the
    /// time from its first issue, except the time in the block layer; each issue gets at least a
    /// quarter of it. When it has expired ([`Operations::timeout`]) it starts again. Otherwise as
    /// [`Self::end`].
    ///
    /// C: `blk_mq_requeue_request()`.
    #[inline]
    pub fn requeue(self) {
        let Some(request) = self.finish() else {
            return;
        };
        // SAFETY: The request is started and we were its owner.
        unsafe { bindings::hcablk_c_requeue(request.as_ptr()) };
    }

    /// Returns the request to the block layer as the result of `queue_rq`, which must return a
    /// matching status; `false`: the request is kept, see [`Self::end`].
    #[inline]
    pub(super) fn reject(self) -> bool {
        self.finish().is_some()
    }
}

impl<T: Operations> Drop for Request<T> {
    fn drop(&mut self) {
        lost();
        if self.is_held() {
            return kept();
        }
        // SAFETY: The request is started and we are its owner, for the last
        // time.
        unsafe { bindings::blk_mq_end_request(self.request.as_ptr(), Status::IoErr.to_raw()) };
    }
}

/// Counts a device that may reach the memory of a request.
///
/// # Safety
///
/// The request is started.
#[inline]
pub(super) unsafe fn hold(request: NonNull<bindings::request>) {
    // SAFETY: By the safety requirement the driver part is initialized.
    unsafe {
        (*Common::of_request(request.as_ptr()))
            .held
            .fetch_add(1, Relaxed)
    };
}

/// Stops counting a device.
///
/// # Safety
///
/// As [`hold`], which the caller has called.
#[inline]
pub(super) unsafe fn release_hold(request: NonNull<bindings::request>) {
    // SAFETY: By the safety requirement.
    unsafe {
        (*Common::of_request(request.as_ptr()))
            .held
            .fetch_sub(1, Release)
    };
}

/// A started request whose timeout has expired. Another context may take it, and even end it, at
/// any time.
///
/// # Invariants
///
/// The pointer is to a request of ours that is not freed during `'a`.
pub struct TimedOut<'a> {
    request: NonNull<bindings::request>,
    _alive: PhantomData<&'a ()>,
}

impl TimedOut<'_> {
    /// Wraps a request in blk-mq's timeout callback.
    ///
    /// # Safety
    ///
    /// blk-mq holds a reference on the request for as long as the result is used.
    pub(super) unsafe fn new(request: NonNull<bindings::request>) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            request,
            _alive: PhantomData,
        }
    }

    /// Returns whether the request has ended, or was returned to the block layer. C:
    /// `blk_mq_request_started()`.
    pub fn is_over(&self) -> bool {
        // SAFETY: By the type invariant.
        let state = unsafe { core::ptr::read_volatile(&raw const (*self.request.as_ptr()).state) };
        state == bindings::mq_rq_state_MQ_RQ_IDLE
    }

    /// Returns the place of the request, which may be gone; null if it has none.
    pub(super) fn place(&self) -> *const Slot {
        // SAFETY: By the type invariant; the field is atomic.
        unsafe {
            (*Common::of_request(self.request.as_ptr()))
                .place
                .load(Relaxed)
                .cast_const()
        }
    }
}

/// Says once that a request was dropped.
#[cold]
#[inline(never)]
fn lost() {
    broken!("a request was dropped by its owner: it was ended with an error");
}

/// Says that a request is never ended.
#[cold]
#[inline(never)]
fn kept() {
    broken!("a request is never ended, since a device may still reach its memory");
}

/// A request that `queue_rq` rejects, with the status.
pub struct Rejected<T: Operations> {
    pub(super) request: Request<T>,
    pub(super) status: Status,
}

impl<T: Operations> Rejected<T> {
    /// Rejects the request that `queue_rq` was given. [`Status::Resource`] and
    /// [`Status::DevResource`] make the block layer try again, all others end the request. If
    /// `request` is a different one, it is ended as if it had been dropped, and the given one
    /// counts as accepted.
    #[inline]
    pub fn new(request: Request<T>, status: Status) -> Self {
        Self { request, status }
    }

    /// Returns why.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns whether the request must fail when the path to the device is lost, as
    /// [`RequestRef::fails_fast`].
    pub fn fails_fast(&self) -> bool {
        self.request.view().fails_fast()
    }

    /// Returns the request, which is accepted then.
    pub fn into_request(self) -> Request<T> {
        self.request
    }

    /// Returns the same for another reason.
    pub fn with_status(self, status: Status) -> Self {
        Self { status, ..self }
    }
}

/// A view of an owned request.
///
/// # Invariants
///
/// The pointer is to a started request that has an owner for `'a`.
#[derive(Clone, Copy)]
pub struct RequestRef<'a> {
    request: NonNull<bindings::request>,
    _owner: PhantomData<&'a ()>,
}

impl RequestRef<'_> {
    /// Returns the C structure, valid for `'a`.
    #[inline]
    pub(super) fn as_non_null(&self) -> NonNull<bindings::request> {
        self.request
    }

    /// Returns the C structure, valid for `'a`.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::request {
        self.request.as_ptr()
    }

    #[inline]
    fn flags(&self) -> bindings::blk_opf_t {
        // SAFETY: By the type invariant the request is alive and does not
        // change.
        unsafe { (*self.request.as_ptr()).cmd_flags }
    }

    /// Returns the operation. C: `req_op()`.
    #[inline]
    pub fn op(&self) -> Op {
        match self.flags() & bindings::REQ_OP_MASK {
            bindings::req_op_REQ_OP_READ => Op::Read,
            bindings::req_op_REQ_OP_WRITE => Op::Write,
            bindings::req_op_REQ_OP_FLUSH => Op::Flush,
            bindings::req_op_REQ_OP_DISCARD => Op::Discard,
            bindings::req_op_REQ_OP_WRITE_ZEROES => Op::WriteZeroes,
            _ => Op::Other,
        }
    }

    /// Returns whether a write must be durable when it ends (`REQ_FUA`).
    #[inline]
    pub fn fua(&self) -> bool {
        self.flags() & bindings::REQ_FUA != 0
    }

    /// Returns whether the request asks to fail when the path to the device is lost
    /// (`REQ_FAILFAST_TRANSPORT`). Other requests wait for another path. Each read-ahead has the
    /// flag, too (`blk_mq_bio_to_request()`), but waits: a failure would only leave errors in the
    /// log.
    #[inline]
    pub fn fails_fast(&self) -> bool {
        let flags = self.flags();
        flags & bindings::REQ_FAILFAST_TRANSPORT != 0 && flags & bindings::REQ_RAHEAD == 0
    }

    /// Returns whether a write must be done whole or not at all (`REQ_ATOMIC`).
    #[inline]
    pub fn atomic(&self) -> bool {
        self.flags() & bindings::REQ_ATOMIC != 0
    }

    /// Returns whether a write has stronger guarantees than others: [`Self::fua`] or
    /// [`Self::atomic`].
    #[inline]
    pub fn promises(&self) -> bool {
        self.flags() & (bindings::REQ_FUA | bindings::REQ_ATOMIC) != 0
    }

    /// Returns whether blocks must stay allocated when zeroes are written
    /// (`REQ_NOUNMAP`).
    #[inline]
    pub fn no_unmap(&self) -> bool {
        self.flags() & bindings::REQ_NOUNMAP != 0
    }

    /// Returns the first sector of 512 bytes, relative to the whole disk; it is meaningless for a
    /// flush. C: `blk_rq_pos()`.
    #[inline]
    pub fn sector(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { (*self.request.as_ptr()).__sector }
    }

    /// Returns the length in bytes; 0 for a flush. C: `blk_rq_bytes()`.
    #[inline]
    pub fn bytes(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { (*self.request.as_ptr()).__data_len }
    }

    /// Returns the number of physical segments of the data, at most the disk's limit. C:
    /// `blk_rq_nr_phys_segments()`.
    #[inline]
    pub fn segments(&self) -> u16 {
        // SAFETY: By the type invariant.
        unsafe { (*self.request.as_ptr()).nr_phys_segments }
    }

    /// Returns the number of the request's place, which is its tag on the wire. A request without a
    /// place has the number of its last one.
    #[inline]
    pub fn tag(&self) -> u16 {
        // SAFETY: By the type invariant the driver part is initialized.
        unsafe { (*Common::of_request(self.request.as_ptr())).tag }
    }

    /// Returns the generation of the request's place, 0 without a place.
    pub fn generation(&self) -> u16 {
        // SAFETY: As above; by its invariant the place exists, as long as the request is owned.
        let slot = unsafe {
            (*Common::of_request(self.request.as_ptr()))
                .place
                .load(Relaxed)
                .as_ref()
        };
        slot.map_or(0, Slot::generation)
    }

    /// Returns when the block layer made the request, in nanoseconds of the clock of
    /// [`now_ns`](crate::system::now_ns); 0 for queues that keep no statistics.
    #[inline]
    pub fn made_ns(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { (*self.request.as_ptr()).start_time_ns }
    }

    /// Returns the index of the hardware queue.
    #[inline]
    pub fn hw_queue(&self) -> u32 {
        // SAFETY: By the type invariant; a started request has a hardware
        // queue.
        unsafe { (*(*self.request.as_ptr()).mq_hctx).queue_num }
    }

    /// Copies `from` into a read's memory, from its beginning. No more than the
    /// request's length is copied.
    pub fn copy_to_data(&self, from: &[u8]) {
        // SAFETY: A slice is readable.
        unsafe { self.copy_from_raw(from.as_ptr(), from.len()) };
    }

    /// Copies to the request's data, as [`Self::copy_to_data`], from memory that a device may be
    /// writing to.
    #[inline]
    pub(crate) fn copy_pages_to_data(&self, from: &ContiguousPages, length: usize) {
        // SAFETY: The memory has as many bytes.
        unsafe { self.copy_from_raw(from.as_mut_ptr(), length.min(from.len())) };
    }

    /// # Safety
    ///
    /// `length` bytes at `from` are readable.
    #[inline]
    unsafe fn copy_from_raw(&self, from: *const u8, length: usize) {
        if self.op() != Op::Read {
            return;
        }
        // SAFETY: By the type invariant; the data's pages are there as long as
        // the request is started, and the helper stops at the data's end.
        unsafe { bindings::hcablk_c_rq_copy_to(self.as_raw(), from.cast(), length) };
    }

    /// Copies all data of a write to the beginning of `to`. Fails with `EINVAL`, and copies
    /// nothing, if the request is not a write, or is longer than `to`.
    #[inline]
    pub(crate) fn copy_data_to_pages(&self, to: &ContiguousPages) -> Result {
        let bytes = self.bytes() as usize;
        if self.op() != Op::Write || bytes > to.len() {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant; the data's pages are there as long as the request is
        // started, and `to` has as many bytes.
        unsafe {
            bindings::hcablk_c_rq_copy_from(self.as_raw(), to.as_mut_ptr().cast(), bytes);
        }
        Ok(())
    }

    /// Copies the request's data, from its beginning, into `to`: for small
    /// writes. No more than the request's length is copied.
    pub fn copy_from_data(&self, to: &mut [u8]) {
        if self.op() != Op::Write {
            return;
        }
        // SAFETY: As above.
        unsafe {
            bindings::hcablk_c_rq_copy_from(self.as_raw(), to.as_mut_ptr().cast(), to.len());
        }
    }
}
