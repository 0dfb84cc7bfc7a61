// SPDX-License-Identifier: GPL-2.0

//! How a disk's requests are dispatched: runs its hardware queues, and replaces their data. The
//! requests that the driver has started are in its own tables ([`PerTag`](super::PerTag)).

use super::{
    operations::place_of,
    Operations, //
};
use crate::bindings;
use crate::sync::{
    atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
    synchronize_completions, //
};
use core::{
    ffi::c_void,
    marker::PhantomData,
    ptr::null_mut, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        rcu,
        Arc,
        Mutex, //
    }, //
};

/// Data of hardware queues that [`Dispatch::exchange`] has replaced. Functions of [`Operations`]
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

/// Dispatch to the hardware queues of one tag set.
///
/// This is created before the [`TagSet`](super::TagSet) and does not own it, so that the hardware
/// queues' data may own it. Its functions may be called from any context unless they say
/// otherwise.
///
/// # Invariants
///
/// `queue` is null or points to a request queue that stays valid until an RCU grace period has
/// passed after it was set to null.
#[pin_data]
pub struct Dispatch<T: Operations> {
    hw_queues: u32,
    depth: u32,
    /// Whether a tag set uses this.
    claimed: Atomic<bool>,
    queue: Atomic<*mut bindings::request_queue>,
    #[pin]
    exited: Mutex<Exited<T>>,
    _operations: PhantomData<fn() -> T>,
}

/// Data of hardware queues that blk-mq has given up while the disk is removed. Functions of
/// [`Operations`] that started before may still use it.
struct Exited<T: Operations> {
    /// The disk is being removed: [`Dispatch::drop_exited`] will drop the data.
    keeps: bool,
    /// Has room for all hardware queues.
    queues: KVec<Arc<T::HwQueue>>,
}

// SAFETY: The raw pointer is only followed under RCU, to functions of the block
// layer that any context may call at the same time.
unsafe impl<T: Operations> Send for Dispatch<T> {}

// SAFETY: As above.
unsafe impl<T: Operations> Sync for Dispatch<T> {}

impl<T: Operations> Dispatch<T> {
    /// Describes `hw_queues` hardware queues of `depth` tags each.
    ///
    /// May sleep. Errors: `EINVAL` (a size is 0 or larger than blk-mq's
    /// bound), `ENOMEM`.
    pub fn new(hw_queues: u32, depth: u32) -> Result<Arc<Self>> {
        if hw_queues == 0 || depth == 0 || depth > bindings::BLK_MQ_MAX_DEPTH {
            return Err(EINVAL);
        }
        let exited = Exited {
            keeps: false,
            queues: KVec::with_capacity(hw_queues as usize, GFP_KERNEL)?,
        };
        Arc::pin_init(
            // INVARIANT: There is no queue yet.
            pin_init!(Self {
                hw_queues,
                depth,
                claimed: Atomic::new(false),
                queue: Atomic::new(null_mut()),
                exited <- new_mutex!(exited),
                _operations: PhantomData,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number of hardware queues of the tag set at most.
    pub fn hw_queues(&self) -> u32 {
        self.hw_queues
    }

    /// Returns how many tags a hardware queue has.
    pub fn depth(&self) -> u32 {
        self.depth
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

    /// Marks this as used by a tag set. Fails with `EBUSY` if a tag set uses it already.
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
    /// `queue` is a set up queue of the tag set that uses this, and stays
    /// valid until [`clear_queue`](Self::clear_queue) has returned.
    pub(super) unsafe fn set_queue(&self, queue: *mut bindings::request_queue) -> Result {
        // INVARIANT: By the safety requirement, and because `clear_queue` waits.
        self.queue
            .cmpxchg(null_mut(), queue, Full)
            .map_err(|_| EBUSY)
            .map(|_| ())
    }

    /// Begins the removal of the disk: until [`Self::drop_exited`], [`Self::keep_exited`] keeps the
    /// data of hardware queues. May sleep.
    pub(super) fn begin_removal(&self) {
        self.exited.lock().keeps = true;
    }

    /// Keeps the data of a hardware queue that blk-mq has given up, and whose place is null
    /// already. Returns whether the data is kept: only if the disk is being removed. May sleep.
    pub(super) fn keep_exited(&self, data: &Arc<T::HwQueue>) -> bool {
        let mut exited = self.exited.lock();
        exited.keeps && exited.queues.push_within_capacity(data.clone()).is_ok()
    }

    /// Waits for the last users of the data that [`Self::keep_exited`] has kept, in one RCU grace
    /// period for all hardware queues, and drops the data. Sleeps.
    pub(super) fn drop_exited(&self) {
        let mut exited = self.exited.lock();
        exited.keeps = false;
        let queues = core::mem::take(&mut exited.queues);
        drop(exited);
        if !queues.is_empty() {
            synchronize_completions();
        }
        drop(queues);
    }

    /// Withdraws the queue and waits for its last user. Sleeps.
    pub(super) fn clear_queue(&self) {
        self.queue.store(null_mut(), Release);
        self.synchronize();
    }
}
