// SPDX-License-Identifier: GPL-2.0

//! Synchronisation that the `kernel` crate does not have: a spinlock for data
//! that interrupts touch, an event that can be waited for with a limit, a
//! workqueue of our own and a periodic task that can be stopped.

pub mod atomic;
pub mod defer;
pub mod embedded;

use self::defer::without_io;
use crate::{
    bindings,
    ffi, //
};
use core::{
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::{
        lock::{
            Backend,
            Guard,
            Lock, //
        },
        Arc, //
    },
    types::Opaque,
    workqueue::Queue,
};

/// A spinlock held with interrupts off: for data shared with completion
/// handlers, which run in softirq or hard interrupt context.
pub type IrqLock<T> = Lock<T, IrqBackend>;
/// The guard of an [`IrqLock`].
pub type IrqGuard<'a, T> = Guard<'a, T, IrqBackend>;

/// `spin_lock_irqsave()`.
pub struct IrqBackend;

// SAFETY: The kernel's spinlock gives mutual exclusion; `relock` is the default one.
unsafe impl Backend for IrqBackend {
    type State = bindings::spinlock_t;
    type GuardState = crate::ffi::c_ulong;

    unsafe fn init(
        ptr: *mut Self::State,
        name: *const crate::ffi::c_char,
        key: *mut bindings::lock_class_key,
    ) {
        // SAFETY: The caller's guarantees are what the function asks for.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller guarantees that `ptr` is an initialised lock; without RT it begins
        // with, and is no more than, a `raw_spinlock_t`.
        #[cfg(not(CONFIG_PREEMPT_RT))]
        unsafe {
            bindings::_raw_spin_lock_irqsave(ptr.cast())
        }
        // SAFETY: As above.
        #[cfg(CONFIG_PREEMPT_RT)]
        unsafe {
            bindings::hcablk_c_spin_lock_irqsave(ptr)
        }
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, flags: &Self::GuardState) {
        // SAFETY: The caller holds the lock, and `flags` came with it; see `lock`.
        #[cfg(not(CONFIG_PREEMPT_RT))]
        unsafe {
            bindings::_raw_spin_unlock_irqrestore(ptr.cast(), *flags)
        }
        // SAFETY: As above.
        #[cfg(CONFIG_PREEMPT_RT)]
        unsafe {
            bindings::hcablk_c_spin_unlock_irqrestore(ptr, *flags)
        }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: The caller guarantees that `ptr` is an initialised lock.
        unsafe { bindings::hcablk_c_spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
    }

    #[inline]
    unsafe fn assert_is_held(_ptr: *mut Self::State) {
        // Without lockdep the function is empty: save the call.
        #[cfg(CONFIG_LOCKDEP)]
        // SAFETY: The caller guarantees that `ptr` is an initialised lock.
        unsafe {
            bindings::spin_assert_is_held(_ptr)
        }
    }
}

/// Makes an initialiser for an [`IrqLock`] with a lock class of its own. Its name
/// begins with `hcablk_`: that is how `/proc/lock_stat` tells ours from others.
#[macro_export]
macro_rules! new_irq_lock {
    ($inner:expr, $name:literal $(,)?) => {
        $crate::sync::IrqLock::new(
            $inner,
            ::kernel::optional_name!($name),
            ::kernel::static_lock_class!(),
        )
    };
}
pub use new_irq_lock;

/// An event that happens once, or once in each round, and can be waited for.
///
/// Wraps `struct completion`.
#[pin_data]
pub struct Event {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A completion may be used from any context and thread.
unsafe impl Send for Event {}
// SAFETY: As above.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event that has not happened.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is writable memory that stays pinned.
                unsafe { bindings::hcablk_c_init_completion(slot) };
            }),
        })
    }

    /// Makes the event happen, and wakes everyone who waits. Any context.
    pub fn set(&self) {
        // SAFETY: `inner` is an initialised completion.
        unsafe { bindings::complete_all(self.inner.get()) };
    }

    /// Resets the event: it has not happened. A thread that has not yet returned from its wait may
    /// continue to wait. Any context.
    pub fn reset(&self) {
        // SAFETY: `inner` is an initialised completion.
        unsafe { bindings::hcablk_c_reinit_completion(self.inner.get()) };
    }

    /// Returns whether the event has happened. Any context.
    pub fn is_set(&self) -> bool {
        // SAFETY: `inner` is an initialised completion.
        unsafe { bindings::completion_done(self.inner.get()) }
    }

    /// Sleeps until it happens, `ETIMEDOUT` after `ms` milliseconds. With 0 it does not sleep: the
    /// C function would, until the next tick.
    pub fn wait_ms(&self, ms: u32) -> Result {
        if ms == 0 {
            return self.is_set().then_some(()).ok_or(ETIMEDOUT);
        }
        // SAFETY: `inner` is an initialised completion; the conversion has no requirements.
        let left = unsafe {
            bindings::wait_for_completion_timeout(
                self.inner.get(),
                bindings::hcablk_c_msecs_to_jiffies(ms),
            )
        };
        if left == 0 {
            Err(ETIMEDOUT)
        } else {
            Ok(())
        }
    }

    /// Sleeps as [`Self::wait_ms`] does, or until the thread has a signal: `EINTR`.
    pub fn wait_interruptible_ms(&self, ms: u32) -> Result {
        // SAFETY: `inner` is an initialised completion; the conversion has no requirements.
        let left = unsafe {
            bindings::wait_for_completion_interruptible_timeout(
                self.inner.get(),
                bindings::hcablk_c_msecs_to_jiffies(ms),
            )
        };
        match left {
            0 => Err(ETIMEDOUT),
            ..0 => Err(EINTR),
            _ => Ok(()),
        }
    }
}

/// A workqueue of one module. Dropping it waits for the work queued on it, so queued work must not
/// drop the last reference. If there are several references to a queue, the module keeps one in a
/// [`Drained`].
pub struct WorkQueue(NonNull<bindings::workqueue_struct>);

// SAFETY: Workqueues may be used from any thread.
unsafe impl Send for WorkQueue {}
// SAFETY: As above.
unsafe impl Sync for WorkQueue {}

impl WorkQueue {
    /// Makes an unbound queue whose work runs in parallel, also when memory is short.
    pub fn new(name: &CStr) -> Result<Self> {
        Self::with(name, bindings::wq_flags_WQ_UNBOUND, 0)
    }

    /// Creates a workqueue as [`Self::new`] does, which runs at most `most` items (at least 1) at
    /// the same time: on each NUMA node its part of `most`, by its number of processors. Other
    /// items wait.
    pub fn bounded(name: &CStr, most: u16) -> Result<Self> {
        Self::with(name, bindings::wq_flags_WQ_UNBOUND, most.into())
    }

    /// Makes a queue whose work runs soon, on the processor that queued it,
    /// also when memory is short: for completions, as the core's own
    /// `ib_comp_wq`, which modules cannot reach.
    pub fn for_completions(name: &CStr) -> Result<Self> {
        Self::with(
            name,
            bindings::wq_flags_WQ_PERCPU | bindings::wq_flags_WQ_HIGHPRI,
            0,
        )
    }

    /// Allocates a workqueue; `most` of 0 is the kernel's own bound of items that run at once.
    /// Sleeps.
    fn with(name: &CStr, flags: bindings::wq_flags, most: ffi::c_int) -> Result<Self> {
        let flags = flags | bindings::wq_flags_WQ_MEM_RECLAIM;
        // SAFETY: `name` is a C string, which is copied.
        let wq = unsafe { bindings::hcablk_c_alloc_workqueue(name.as_char_ptr(), flags, most) };
        Ok(Self(NonNull::new(wq).ok_or(ENOMEM)?))
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.0.as_ptr()
    }

    /// Waits until nothing is queued, including work that queued work queues. May sleep.
    pub fn drain(&self) {
        // SAFETY: The queue is alive as long as `self`.
        unsafe { bindings::drain_workqueue(self.0.as_ptr()) };
    }
}

impl Deref for WorkQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        // SAFETY: The queue is alive as long as `self`.
        unsafe { Queue::from_raw(self.0.as_ptr()) }
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        // SAFETY: The queue is ours; destroying it drains it first.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

/// A module's reference to its workqueue. Dropping it waits until all work is
/// done, with everything that the work referred to: no code of the module runs
/// on the queue after that, and this reference is the last one.
///
/// When it is dropped, only work that is already queued may queue more.
pub struct Drained(pub Arc<WorkQueue>);

impl Drop for Drained {
    fn drop(&mut self) {
        self.0.drain();
    }
}

/// Waits until every interrupt handler, and every completion of a bio or of I/O to a file,
/// that runs now has finished, with all that it referred to. The latter may run in threads
/// that are preempted: they are RCU read-side critical sections.
///
/// C: `synchronize_rcu_expedited()`, which waits for these and for everything that runs with
/// preemption off.
pub fn synchronize_completions() {
    // SAFETY: The caller may sleep; there are no other requirements.
    unsafe { bindings::synchronize_rcu_expedited() };
}

/// A moment since which [`synchronize_completions`] may be needed.
#[derive(Clone, Copy)]
pub struct CompletionsSince(crate::ffi::c_ulong);

impl CompletionsSince {
    /// Returns this moment. Any context.
    ///
    /// C: `get_state_synchronize_rcu()`
    pub fn now() -> Self {
        // SAFETY: There are no requirements.
        Self(unsafe { bindings::get_state_synchronize_rcu() })
    }

    /// Waits as [`synchronize_completions`] does, for what ran at this moment. Returns at once if
    /// an RCU grace period has elapsed since: several of these, one after the other, wait once.
    ///
    /// C: `cond_synchronize_rcu_expedited()`
    pub fn synchronize(self) {
        // SAFETY: The caller may sleep; the value is one of `get_state_synchronize_rcu()`.
        unsafe { bindings::cond_synchronize_rcu_expedited(self.0) };
    }
}

/// The work of a [`Periodic`] task.
pub trait Tick: Send + Sync + 'static {
    /// Runs a round. Process context; may sleep. Runs [without I/O](without_io).
    fn tick(&self);
}

/// A task that runs at a fixed interval until it is stopped.
///
/// It holds a reference to the object that it works for; an object that owns its [`Running`] must
/// take it out again to end the cycle.
#[pin_data(PinnedDrop)]
pub struct Periodic<T: Tick> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    period: crate::ffi::c_ulong,
    /// Where it runs; `None`: on the system's workqueue.
    queue: Option<Arc<WorkQueue>>,
    of: Arc<T>,
}

// SAFETY: Only the work is ever written, and only by the workqueue.
unsafe impl<T: Tick> Send for Periodic<T> {}
// SAFETY: As above.
unsafe impl<T: Tick> Sync for Periodic<T> {}

/// A running [`Periodic`]: dropping it stops the task. Process context only,
/// and not from within the task.
pub struct Running<T: Tick>(#[expect(dead_code)] Pin<KBox<Periodic<T>>>);

impl<T: Tick> Periodic<T> {
    /// Starts to run `of.tick()` every `ms` milliseconds, late when memory is short.
    pub fn start(of: Arc<T>, ms: u32) -> Result<Running<T>> {
        Self::begin(of, ms, None)
    }

    /// Starts to run it as [`Self::start`] does, on `queue`, also when memory is short.
    pub fn start_on(queue: &Arc<WorkQueue>, of: Arc<T>, ms: u32) -> Result<Running<T>> {
        Self::begin(of, ms, Some(queue.clone()))
    }

    fn begin(of: Arc<T>, ms: u32, queue: Option<Arc<WorkQueue>>) -> Result<Running<T>> {
        // SAFETY: The conversion has no requirements.
        let period = unsafe { bindings::hcablk_c_msecs_to_jiffies(ms) };
        let this = KBox::pin_init(
            pin_init!(Self {
                work <- Opaque::ffi_init(|slot: *mut bindings::delayed_work| {
                    // SAFETY: `slot` is writable memory that stays pinned.
                    unsafe { bindings::hcablk_c_init_delayed_work(slot, Some(Self::run)) };
                }),
                period,
                queue,
                of,
            }),
            GFP_KERNEL,
        )?;
        this.queue();
        Ok(Running(this))
    }

    /// Queues the next round.
    fn queue(&self) {
        let queue = self
            .queue
            .as_ref()
            .map_or(core::ptr::null_mut(), |queue| queue.as_raw());
        // SAFETY: The work is initialised and stays pinned until the drop cancels it, before which
        // the queue stays; without one it is the system's.
        unsafe { bindings::hcablk_c_queue_delayed_work(queue, self.work.get(), self.period) };
    }

    /// # Safety
    ///
    /// Called by the workqueue with the `work` of a live `Periodic`.
    unsafe extern "C" fn run(work: *mut bindings::work_struct) {
        // SAFETY: `work` is the first part of the `delayed_work` in a `Periodic`.
        let this = unsafe {
            let delayed = kernel::container_of!(work, bindings::delayed_work, work);
            let opaque: *mut Opaque<bindings::delayed_work> = delayed.cast();
            &*kernel::container_of!(opaque, Self, work)
        };
        without_io(|| this.of.tick());
        // `cancel_delayed_work_sync()` also cancels work that queues itself.
        this.queue();
    }
}

#[pinned_drop]
impl<T: Tick> PinnedDrop for Periodic<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The work is initialised; after this it neither runs nor is queued.
        unsafe { bindings::cancel_delayed_work_sync(self.work.get()) };
    }
}
