// SPDX-License-Identifier: GPL-2.0

//! Defers work on an object to a context that may sleep, without an allocation.
//!
//! # Ownership
//!
//! The object (a [`Deferred`]) embeds a [`WorkSlot`]. [`defer`] takes the object in its box. The
//! workqueue owns it until it calls [`Deferred::run`] with the box. Before that, a [`DeferredBox`]
//! (for objects of any type) or a [`DeferredList`] (for many) may own it.
//!
//! # Memory
//!
//! Work runs as the loop driver's does: allocations in it start no I/O, since it may itself be the
//! I/O of a task that waits for memory, and it is not slowed down for pages that others have made
//! dirty (`PF_MEMALLOC_NOIO`, `PF_LOCAL_THROTTLE`).
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::{
    bindings,
    sync::embedded::HasSlot,
    sync::WorkQueue, //
};
use core::{
    ffi::c_void,
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};
use kernel::{
    prelude::*,
    types::Opaque, //
};

/// An object whose work can be deferred.
pub trait Deferred: HasSlot<WorkSlot<Self>> + Sized + Send + 'static {
    /// Does the work. Process context; it may defer the object again, but must not drop `self`,
    /// whose [`WorkSlot`] would wait for this call.
    fn run(self: KBox<Self>);
}

struct Inner {
    work: bindings::work_struct,
    /// The object in its box, while it is queued or in a list.
    owner: *mut c_void,
    /// Drops `owner`, which must be the box of an object of the slot's type.
    drop_owner: unsafe fn(*mut c_void),
    /// The next slot of the [`DeferredList`] that contains this one, or null.
    next: *mut Inner,
}

/// A reusable place for the work item of an object on a workqueue.
///
/// Dropping it waits for work that is still returning from [`Deferred::run`]. It must not be
/// dropped by that work, which would wait for itself.
///
/// # Invariants
///
/// The work is initialised to run a `T`, and `drop_owner` to drop one. The work is queued only
/// between [`defer`] and `run` of its owner, and `owner` is that box then. While a [`DeferredBox`]
/// has the owner the work is not queued, and `owner` is that box, too.
pub struct WorkSlot<T: Deferred> {
    inner: KBox<Opaque<Inner>>,
    _owner: PhantomData<fn(T)>,
}

// SAFETY: While a thread can reach it, it is plain memory, or work that is returning from `run`.
unsafe impl<T: Deferred> Send for WorkSlot<T> {}

// SAFETY: Shared references give access to nothing.
unsafe impl<T: Deferred> Sync for WorkSlot<T> {}

impl<T: Deferred> WorkSlot<T> {
    /// Allocates a slot. May sleep.
    pub fn new() -> Result<Self> {
        let inner = KBox::new(Opaque::<Inner>::uninit(), GFP_KERNEL)?;
        let raw = inner.get();
        // SAFETY: Room for the structure, which stays where it is until the box is dropped.
        unsafe {
            (&raw mut (*raw).owner).write(null_mut());
            (&raw mut (*raw).drop_owner).write(drop_owner::<T>);
            (&raw mut (*raw).next).write(null_mut());
            bindings::hcablk_c_init_deferred(&raw mut (*raw).work, Some(run::<T>));
        }
        // INVARIANT: Initialised, and not queued.
        Ok(Self {
            inner,
            _owner: PhantomData,
        })
    }
}

impl<T: Deferred> Drop for WorkSlot<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is initialised. Its owner is being
        // dropped, so it is not queued, but `run` may still be returning.
        unsafe { bindings::cancel_work_sync(&raw mut (*self.inner.get()).work) };
    }
}

/// Queues a call of `owner.run()` on `queue`. Any context.
///
/// C: `queue_work()`.
#[inline]
pub fn defer<T: Deferred>(owner: KBox<T>, queue: &WorkQueue) {
    DeferredBox::new(owner).defer(queue);
}

/// An object in its box that is about to be deferred, regardless of its type.
///
/// # Invariants
///
/// It is the slot of an object whose box is the slot's `owner`. This has that box, and the slot is
/// not queued.
pub struct DeferredBox(NonNull<Inner>);

// SAFETY: It is a box of a `Deferred`, which may be sent.
unsafe impl Send for DeferredBox {}

impl DeferredBox {
    /// Creates a deferred box from `owner`. Any context.
    #[inline]
    pub fn new<T: Deferred>(mut owner: KBox<T>) -> Self {
        let inner = owner.slot_mut().inner.get();
        // SAFETY: The slot is not queued, since its owner is here. It stays until the owner is
        // dropped, which this has from here on.
        unsafe { (*inner).owner = KBox::into_raw(owner).cast() };
        // SAFETY: It is within a box, thus not null.
        let inner = unsafe { NonNull::new_unchecked(inner) };
        // INVARIANT: It is the slot of the box that this now has.
        Self(inner)
    }

    /// Queues a call of the object's [`Deferred::run`] on `queue`. Any context.
    ///
    /// C: `queue_work()`.
    #[inline]
    pub fn defer(self, queue: &WorkQueue) {
        let inner = ManuallyDrop::new(self).0.as_ptr();
        // SAFETY: By the type invariant the slot is initialised and not queued, and `owner` is the
        // box that running it returns.
        unsafe { bindings::hcablk_c_queue_work(queue.as_raw(), &raw mut (*inner).work) };
    }
}

impl Drop for DeferredBox {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `owner` is the box of an object of the slot's type, which
        // nothing else has.
        unsafe {
            let inner = self.0.as_ptr();
            let (drop_owner, owner) = ((*inner).drop_owner, (*inner).owner);
            drop_owner(owner);
        }
    }
}

/// # Safety
///
/// `owner` is the box of a `T`, and the caller has it.
unsafe fn drop_owner<T>(owner: *mut c_void) {
    // SAFETY: By the safety requirement.
    drop(unsafe { KBox::from_raw(owner.cast::<T>()) });
}

/// Objects that wait to be deferred, in the order in which they came. It allocates nothing: each is
/// linked by its slot.
///
/// # Invariants
///
/// `first` leads through `next` to all slots of the list, of which `last` is the last one; both are
/// null if it is empty. Each slot is that of a [`DeferredBox`] that the list has.
pub struct DeferredList {
    first: *mut Inner,
    last: *mut Inner,
}

// SAFETY: It has its objects, which may be sent.
unsafe impl Send for DeferredList {}

impl DeferredList {
    /// Makes an empty list.
    pub const fn new() -> Self {
        // INVARIANT: Empty.
        Self {
            first: null_mut(),
            last: null_mut(),
        }
    }

    /// Appends an object. Any context.
    pub fn push(&mut self, owner: DeferredBox) {
        let inner = ManuallyDrop::new(owner).0.as_ptr();
        // SAFETY: The slot stays until the owner is dropped, which the list has from here on; and
        // by the type invariant `last` is a slot of the list, or null.
        unsafe {
            (*inner).next = null_mut();
            match self.last.is_null() {
                true => self.first = inner,
                false => (*self.last).next = inner,
            }
        }
        // INVARIANT: It is the last one, and has no next.
        self.last = inner;
    }

    /// Takes the first object out. Any context.
    pub fn pop(&mut self) -> Option<DeferredBox> {
        let first = NonNull::new(self.first)?;
        // SAFETY: By the type invariant it is a slot of the list.
        let next = unsafe { (*first.as_ptr()).next };
        // INVARIANT: The list now begins with the next slot, and is empty if there is none.
        self.first = next;
        if next.is_null() {
            self.last = null_mut();
        }
        // INVARIANT: By the list's invariant it was that of a `DeferredBox`, which the list no
        // longer has.
        Some(DeferredBox(first))
    }
}

impl Default for DeferredList {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for DeferredList {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// # Safety
///
/// Called by the workqueue with the work of a slot that [`defer`] of the same
/// type queued.
unsafe extern "C" fn run<T: Deferred>(work: *mut bindings::work_struct) {
    // SAFETY: By the safety requirement the work is in an `Inner`, and `owner`
    // the box that `defer` left there.
    let owner = unsafe {
        let inner = kernel::container_of!(work, Inner, work);
        KBox::from_raw((*inner).owner.cast::<T>())
    };
    without_io(|| owner.run());
}

/// Calls `f` as the module's section "Memory" describes. Process context.
pub fn without_io<R>(f: impl FnOnce() -> R) -> R {
    with_flags(bindings::PF_MEMALLOC_NOIO | bindings::PF_LOCAL_THROTTLE, f)
}

/// Calls `f`, which brings back the disk for which memory reclaim may wait. As [`without_io`]; in
/// addition, allocations in it do not wait for memory at all, but use the kernel's reserve
/// (`PF_MEMALLOC`), or fail. Otherwise they would wait for ever when all reclaimable memory has to
/// be written to this disk. Process context.
pub fn for_reclaim<R>(f: impl FnOnce() -> R) -> R {
    let flags = bindings::PF_MEMALLOC | bindings::PF_MEMALLOC_NOIO | bindings::PF_LOCAL_THROTTLE;
    with_flags(flags, f)
}

/// C: `memalloc_flags_save()`.
fn with_flags<R>(flags: u32, f: impl FnOnce() -> R) -> R {
    // SAFETY: Flags of this thread, which are restored below.
    let flags = unsafe { bindings::hcablk_c_memalloc_flags_save(flags) };
    let result = f();
    // SAFETY: As above.
    unsafe { bindings::hcablk_c_memalloc_flags_restore(flags) };
    result
}
