// SPDX-License-Identifier: GPL-2.0

//! The ownership of started requests: the table of slots, one per hardware queue and tag.
//!
//! # Ownership
//!
//! blk-mq hands a request to the driver in `queue_rq` and gets it back through
//! `blk_mq_end_request()` or `blk_mq_requeue_request()`; in between the tag of the hardware queue
//! is in use by this request alone (a flush that borrows the tag of the write it precedes is in
//! flight only while that write is not). So everything about a started request that must be decided
//! atomically is stored by (hardware queue, tag) in memory of our own: a lookup with a tag that
//! came over the wire never follows a pointer of blk-mq's that may be stale (`blk_mq_tag_to_rq()`
//! gives no such promise).
//!
//! A slot is in one of three states and has a generation:
//!
//! - *Idle*: blk-mq has the request, or there is none.
//! - *Owned*: exactly one [`Request`] exists for the slot; its holder is the owner.
//! - *Parked*: the request has no owner; the first taker becomes it.
//!
//! | from | to | through |
//! |---|---|---|
//! | Idle | Owned | `queue_rq`: the generation is incremented |
//! | Owned | Parked | [`Request::park`] |
//! | Parked | Owned | [`Requests::take`], [`PerTag::take`](super::PerTag::take) and their relatives: one taker wins, the others get `None` |
//! | Owned | Idle | [`Request::end`], [`Request::requeue`], rejection from `queue_rq`, drop |
//!
//! The generation goes over the wire with the tag, so that a response to an earlier use of the tag
//! does not take the present request.
//!
//! A driver may have several paths to its device. A parked request is on one of them, and only a
//! caller that names this path can take it: neither a response on another path nor the end of
//! another path takes it.

use super::{
    operations::place_of,
    Operations,
    Request, //
};
use crate::bindings;
use crate::sync::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed,
    Release, //
};
use core::{
    cell::UnsafeCell,
    ffi::c_void,
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        rcu,
        Arc, //
    }, //
};

const IDLE: u32 = 0;
const OWNED: u32 = 1;
const PARKED: u32 = 2;
const STATE_MASK: u32 = 0xff;
const PATH_SHIFT: u32 = 8;
const PATH_MASK: u32 = 0xff << PATH_SHIFT;
const GENERATION_SHIFT: u32 = 16;

/// The state of one (hardware queue, tag).
///
/// # Invariants
///
/// - The lowest byte of `word` is `IDLE`, `OWNED` or `PARKED`, the next byte is the path over which
///   the request was sent last, the upper half is the generation.
/// - While it is `OWNED`, only the owner touches `request`; while it is
///   `PARKED`, `request` points to a started request of this slot.
pub(super) struct Slot {
    word: Atomic<u32>,
    /// Devices that may reach the request's memory: see [`HeldRequest`](super::HeldRequest).
    held: Atomic<u32>,
    request: UnsafeCell<*mut bindings::request>,
}

// SAFETY: `request` is touched by the slot's owner only, and ownership changes
// hands through `word` with release and acquire.
unsafe impl Send for Slot {}

// SAFETY: As above.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Self {
        // INVARIANT: Idle, generation 0.
        Self {
            word: Atomic::new(IDLE),
            held: Atomic::new(0),
            request: UnsafeCell::new(null_mut()),
        }
    }

    /// Changes Idle to Owned. The caller is `queue_rq`, that is blk-mq just gave it the request
    /// with this tag.
    #[inline]
    pub(super) fn start(&self) {
        let generation = (self.word.load(Relaxed) >> GENERATION_SHIFT).wrapping_add(1);
        self.word
            .store((generation << GENERATION_SHIFT) | OWNED, Relaxed);
    }

    /// Changes Owned to Idle. The caller is the owner, about to give the request back.
    #[inline]
    pub(super) fn finish(&self) {
        let generation = self.word.load(Relaxed) & !STATE_MASK;
        // The owner's changes to its data are ordered before the next use of the tag by blk-mq's
        // own barriers.
        self.word.store(generation | IDLE, Relaxed);
    }

    /// Counts a further [`HeldRequest`](super::HeldRequest). The caller is the owner, or has a
    /// `HeldRequest` of its own.
    #[inline]
    pub(super) fn hold(&self) {
        self.held.fetch_add(1, Relaxed);
    }

    /// Stops counting a [`HeldRequest`](super::HeldRequest), which the caller has.
    #[inline]
    pub(super) fn release_hold(&self) {
        self.held.fetch_sub(1, Release);
    }

    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Acquire) != 0
    }

    /// Changes Owned to Parked. The caller is the owner of `request`.
    #[inline]
    pub(super) fn park(&self, request: NonNull<bindings::request>) {
        self.park_on(request, (self.word.load(Relaxed) >> PATH_SHIFT) as u8);
    }

    /// Changes Owned to Parked on `path`. The caller is the owner of `request`.
    #[inline]
    pub(super) fn park_on(&self, request: NonNull<bindings::request>, path: u8) {
        let generation = self.word.load(Relaxed) & !(STATE_MASK | PATH_MASK);
        // SAFETY: The state is Owned and the caller is the owner: nobody else
        // touches this cell.
        unsafe { *self.request.get() = request.as_ptr() };
        let place = generation | u32::from(path) << PATH_SHIFT;
        self.word.store(place | PARKED, Release);
    }

    /// Changes Parked on this path and with this generation to Owned.
    #[inline]
    pub(super) fn take(&self, path: u8, generation: u16) -> Option<NonNull<bindings::request>> {
        let place = (u32::from(generation) << GENERATION_SHIFT) | (u32::from(path) << PATH_SHIFT);
        self.word
            .cmpxchg(place | PARKED, place | OWNED, Acquire)
            .ok()?;
        // SAFETY: This caller has just changed the state from Parked to Owned, so it alone may read
        // the cell.
        NonNull::new(unsafe { *self.request.get() })
    }

    /// Changes Parked on this path, of any generation, to Owned.
    #[inline]
    pub(super) fn take_any(&self, path: u8) -> Option<NonNull<bindings::request>> {
        let parked = (u32::from(path) << PATH_SHIFT) | PARKED;
        let mut word = self.word.load(Relaxed);
        while word & (PATH_MASK | STATE_MASK) == parked {
            let generation = word >> GENERATION_SHIFT;
            if let Some(request) = self.take(path, generation as u16) {
                return Some(request);
            }
            word = self.word.load(Relaxed);
        }
        None
    }

    #[inline]
    pub(super) fn generation(&self) -> u16 {
        (self.word.load(Relaxed) >> GENERATION_SHIFT) as u16
    }
}

/// Data of hardware queues that [`Requests::exchange`] has replaced. Functions of [`Operations`]
/// that started before may still use it: it is dropped after an RCU grace period, one for all.
/// Dropping it sleeps.
pub struct ReplacedHwQueues<T: Operations>(KVec<Arc<T::HwQueue>>);

impl<T: Operations> ReplacedHwQueues<T> {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(KVec::new())
    }

    /// Waits until no function of [`Operations`] uses any of the old data (except `timeout`, which
    /// has a reference of its own), and returns the old data. Sleeps if there is any.
    pub fn wait(&mut self) -> KVec<Arc<T::HwQueue>> {
        if !self.0.is_empty() {
            // Every reader has read its pointer to the old data in an RCU section.
            // SAFETY: The caller may sleep.
            unsafe { bindings::synchronize_rcu() };
        }
        core::mem::take(&mut self.0)
    }
}

impl<T: Operations> Default for ReplacedHwQueues<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Operations> Drop for ReplacedHwQueues<T> {
    fn drop(&mut self) {
        drop(self.wait());
    }
}

/// The started requests of one tag set, by hardware queue and tag.
///
/// The table is created before the [`TagSet`](super::TagSet) and does not own it, so that the
/// hardware queues' data may own the table. Its functions may be called from any context unless
/// they say otherwise.
///
/// # Invariants
///
/// - `slots` has `hw_queues * depth` elements.
/// - `queue` is null or points to a request queue that stays valid until an RCU
///   grace period has passed after it was set to null.
pub struct Requests<T: Operations> {
    slots: KVVec<Slot>,
    hw_queues: u32,
    depth: u32,
    /// Whether a tag set uses the table.
    claimed: Atomic<bool>,
    queue: Atomic<*mut bindings::request_queue>,
    _operations: PhantomData<fn() -> T>,
}

// SAFETY: The raw pointer is only followed under RCU, to functions of the block
// layer that any context may call at the same time; requests are `Send`.
unsafe impl<T: Operations> Send for Requests<T> {}

// SAFETY: As above.
unsafe impl<T: Operations> Sync for Requests<T> {}

impl<T: Operations> Requests<T> {
    /// Creates a table for `hw_queues` hardware queues of `depth` tags each.
    ///
    /// May sleep. Errors: `EINVAL` (a size is 0 or larger than blk-mq's
    /// bound), `ENOMEM`.
    pub fn new(hw_queues: u32, depth: u32) -> Result<Arc<Self>> {
        if hw_queues == 0 || depth == 0 || depth > bindings::BLK_MQ_MAX_DEPTH {
            return Err(EINVAL);
        }
        let count = (hw_queues as usize)
            .checked_mul(depth as usize)
            .ok_or(EINVAL)?;
        let mut slots = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            slots.push(Slot::new(), GFP_KERNEL)?;
        }
        // INVARIANT: `count` elements were pushed; there is no queue yet.
        Ok(Arc::new(
            Self {
                slots,
                hw_queues,
                depth,
                claimed: Atomic::new(false),
                queue: Atomic::new(null_mut()),
                _operations: PhantomData,
            },
            GFP_KERNEL,
        )?)
    }

    /// Returns the number of hardware queues that the table has room for.
    pub fn hw_queues(&self) -> u32 {
        self.hw_queues
    }

    /// Returns how many tags a hardware queue has.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the slots of a hardware queue's tags.
    pub(super) fn slots_of(&self, hw_queue: u32) -> Option<&[Slot]> {
        let begin = (hw_queue as usize).checked_mul(self.depth as usize)?;
        let end = begin.checked_add(self.depth as usize)?;
        self.slots.get(begin..end)
    }

    #[inline]
    pub(super) fn slot(&self, hw_queue: u32, tag: u32) -> Option<&Slot> {
        if hw_queue >= self.hw_queues || tag >= self.depth {
            return None;
        }
        self.slots
            .get(hw_queue as usize * self.depth as usize + tag as usize)
    }

    /// Takes the request with this tag and generation that is parked on `path`.
    ///
    /// `None` if it is not parked there: never started, already taken, already
    /// ended, on another path, or of another generation. Tag and generation may come from a peer
    /// that is not trusted.
    #[inline]
    pub fn take(&self, hw_queue: u32, path: u8, tag: u16, generation: u16) -> Option<Request<T>> {
        let request = self.slot(hw_queue, tag.into())?.take(path, generation)?;
        // SAFETY: We have changed the slot from Parked to Owned, so `request` is a started request
        // without another owner.
        Some(unsafe { Request::from_owned(request) })
    }

    /// Takes the request with this tag that is parked on `path`, of any generation: for a driver
    /// that knows that the tag's request failed.
    #[inline]
    pub fn take_any(&self, hw_queue: u32, path: u8, tag: u16) -> Option<Request<T>> {
        let request = self.slot(hw_queue, tag.into())?.take_any(path)?;
        // SAFETY: As in `take`.
        Some(unsafe { Request::from_owned(request) })
    }

    /// Returns whether no request with this tag is started, at some moment during the
    /// call.
    pub fn is_idle(&self, hw_queue: u32, tag: u16) -> bool {
        self.slot(hw_queue, tag.into())
            .is_none_or(|slot| slot.word.load(Acquire) & STATE_MASK == IDLE)
    }

    /// Returns on which path the request with this tag is parked, at some moment during the call.
    pub fn path_of(&self, hw_queue: u32, tag: u16) -> Option<u8> {
        let word = self.slot(hw_queue, tag.into())?.word.load(Acquire);
        (word & STATE_MASK == PARKED).then_some((word >> PATH_SHIFT) as u8)
    }

    /// Takes every request of one hardware queue that is parked on `path` and gives it to `f`.
    ///
    /// For teardown: set a flag that makes `queue_rq` reject requests, call
    /// [`synchronize`](Self::synchronize), stop the completions, and then call this function.
    pub fn for_each_parked_of(&self, hw_queue: u32, path: u8, mut f: impl FnMut(Request<T>)) {
        for tag in 0..self.depth {
            if let Some(request) = self.take_any(hw_queue, path, tag as u16) {
                f(request);
            }
        }
    }

    /// Takes every request that is parked on `path` and gives it to `f`.
    pub fn for_each_parked(&self, path: u8, mut f: impl FnMut(Request<T>)) {
        for hw_queue in 0..self.hw_queues {
            self.for_each_parked_of(hw_queue, path, &mut f);
        }
    }

    /// Waits until every `queue_rq` and `commit_rqs` that runs now has returned; all later ones see
    /// the caller's earlier writes.
    ///
    /// Sleeps. C: `synchronize_rcu()`, as `blk_mq_wait_quiesce_done()` does for
    /// queues that do not block: dispatch happens under RCU.
    pub fn synchronize(&self) {
        // SAFETY: May be called wherever sleeping is allowed.
        unsafe { bindings::synchronize_rcu() };
    }

    /// Runs a hardware queue again, from a worker: requests that `queue_rq` rejected with
    /// [`DevResource`](super::Status::DevResource) are tried once more. Does nothing while there is
    /// no disk.
    ///
    /// C: `blk_mq_run_hw_queue()`.
    pub fn run_hw_queue(&self, hw_queue: u32) {
        let guard = rcu::read_lock();
        if let Some(hctx) = self.hctx(hw_queue, &guard) {
            // SAFETY: A hardware queue exists until its request queue is freed. The call is
            // asynchronous, so it is allowed in any context.
            unsafe { bindings::blk_mq_run_hw_queue(hctx, true) };
        }
    }

    /// Returns a hardware queue, valid in the RCU section, if there is a disk.
    fn hctx(&self, hw_queue: u32, _guard: &rcu::Guard) -> Option<*mut bindings::blk_mq_hw_ctx> {
        let queue = self.queue.load(Acquire);
        if queue.is_null() {
            return None;
        }
        // SAFETY: By the type invariant `queue` stays valid while we are in the RCU section. Its
        // table of hardware queues is set before it gets here and does not change, because we never
        // change the number of hardware queues.
        unsafe {
            (hw_queue < (*queue).nr_hw_queues)
                .then(|| *(*queue).queue_hw_ctx.add(hw_queue as usize))
        }
    }

    /// Replaces a hardware queue's data by `new`, and adds the old data to `replaced`.
    ///
    /// May sleep. Errors: `ENODEV` (there is no disk, or it is being removed) and `ENOMEM`, then
    /// nothing has changed.
    pub fn exchange(
        &self,
        hw_queue: u32,
        new: Arc<T::HwQueue>,
        replaced: &mut ReplacedHwQueues<T>,
    ) -> Result {
        replaced.0.reserve(1, GFP_KERNEL)?;
        let new = Arc::into_raw(new);
        let result = self.put(hw_queue, new.cast_mut().cast());
        if result.is_err() {
            // The last reference must not be dropped in an RCU section.
            // SAFETY: The pointer is from `into_raw` above, and no other code has it.
            drop(unsafe { Arc::from_raw(new) });
        }
        Ok(replaced.0.push(result?, GFP_KERNEL)?)
    }

    /// Replaces the data by `new`, from `Arc::into_raw()`, and returns the old data; on an error
    /// `new` is still the caller's.
    fn put(&self, hw_queue: u32, new: *mut c_void) -> Result<Arc<T::HwQueue>> {
        let guard = rcu::read_lock();
        let hctx = self.hctx(hw_queue, &guard).ok_or(ENODEV)?;
        // SAFETY: It is valid in the RCU section.
        let place = unsafe { place_of(hctx) };
        let mut old = place.load(Relaxed);
        loop {
            if old.is_null() {
                // `exit_hctx` has run: blk-mq calls nothing any more.
                return Err(ENODEV);
            }
            match place.cmpxchg(old, new, Full) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        // SAFETY: `init_hctx` or this function left an `Arc` there, and the function that replaces
        // it owns the old one. This function has just replaced it, so `exit_hctx` gets the new one.
        Ok(unsafe { Arc::from_raw(old.cast::<T::HwQueue>().cast_const()) })
    }

    /// Runs all hardware queues again, from workers.
    ///
    /// C: `blk_mq_run_hw_queues()`.
    pub fn run_hw_queues(&self) {
        for hw_queue in 0..self.hw_queues {
            self.run_hw_queue(hw_queue);
        }
    }

    /// Marks the table as used by a tag set. Fails with `EBUSY` if a tag set uses it already.
    pub(super) fn claim(&self) -> Result {
        self.claimed
            .cmpxchg(false, true, Full)
            .map_err(|_| EBUSY)
            .map(|_| ())
    }

    /// Publishes the queue of the disk. Fails with `EBUSY` if there is one already.
    ///
    /// # Safety
    ///
    /// `queue` is a set up queue of the tag set that uses this table, and stays
    /// valid until [`clear_queue`](Self::clear_queue) has returned.
    pub(super) unsafe fn set_queue(&self, queue: *mut bindings::request_queue) -> Result {
        // INVARIANT: By the safety requirement, and because `clear_queue` waits.
        self.queue
            .cmpxchg(null_mut(), queue, Full)
            .map_err(|_| EBUSY)
            .map(|_| ())
    }

    /// Withdraws the queue and waits for its last user. Sleeps.
    pub(super) fn clear_queue(&self) {
        self.queue.store(null_mut(), Release);
        self.synchronize();
    }
}
