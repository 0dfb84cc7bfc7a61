// SPDX-License-Identifier: GPL-2.0

//! Defers work on an object to a context that may sleep, without an allocation.
//!
//! # Ownership
//!
//! The object (a [`Deferred`]) embeds a [`WorkSlot`]. [`defer`] takes the object
//! in its box; from then on the workqueue has it, until it comes back, in its
//! box, through [`Deferred::run`]. Before that it may wait in a [`DeferredList`], which owns it
//! then.
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
    ptr::null_mut, //
};
use kernel::{
    prelude::*,
    types::Opaque, //
};

/// An object that work can be done on.
pub trait Deferred: HasSlot<WorkSlot<Self>> + Sized + Send + 'static {
    /// Does the work. Process context; it may defer the object again.
    fn run(self: KBox<Self>);
}

struct Inner {
    work: bindings::work_struct,
    /// The object in its box, while it is queued or in a list.
    owner: *mut c_void,
    /// The next one of the list that it is in.
    next: *mut Inner,
}

/// A reusable place for the work item of an object on a workqueue.
///
/// Dropping it waits for the end of work that is still returning from
/// [`Deferred::run`]: not from within the work itself.
///
/// # Invariants
///
/// The work is initialised to run a `T`; it is queued only between [`defer`] and
/// `run` of its owner, and `owner` is that box then. Between [`DeferredList::push`] and
/// [`DeferredList::pop`] it is in that list, not queued, and `owner` is that box, too.
pub struct WorkSlot<T: Deferred> {
    inner: KBox<Opaque<Inner>>,
    _owner: PhantomData<fn(T)>,
}

// SAFETY: While it can be reached it is plain memory, or work that ends.
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
        // dropped, so it is not queued, but may be on its last lines.
        unsafe { bindings::cancel_work_sync(&raw mut (*self.inner.get()).work) };
    }
}

/// Queues a call of `owner.run()` on `queue`. Any context.
///
/// C: `queue_work()`.
pub fn defer<T: Deferred>(mut owner: KBox<T>, queue: &WorkQueue) {
    let inner = owner.slot_mut().inner.get();
    // SAFETY: By the slot's invariants it is initialised and not queued, since its owner is here;
    // running it returns the owner.
    unsafe {
        (*inner).owner = KBox::into_raw(owner).cast();
        bindings::hcablk_c_queue_work(queue.as_raw(), &raw mut (*inner).work);
    }
}

/// Objects that wait to be deferred, in the order in which they came. It allocates nothing: each is
/// linked by its slot.
///
/// # Invariants
///
/// `first` leads by `next` to all slots of the list, of which `last` is the last one; both are null
/// if it is empty. The list has the owners of all of them.
pub struct DeferredList<T: Deferred> {
    first: *mut Inner,
    last: *mut Inner,
    _owners: PhantomData<KBox<T>>,
}

// SAFETY: It has its objects, which may be sent.
unsafe impl<T: Deferred> Send for DeferredList<T> {}

impl<T: Deferred> DeferredList<T> {
    /// Makes an empty list.
    pub const fn new() -> Self {
        // INVARIANT: Empty.
        Self {
            first: null_mut(),
            last: null_mut(),
            _owners: PhantomData,
        }
    }

    /// Appends an object. Any context.
    pub fn push(&mut self, mut owner: KBox<T>) {
        let inner = owner.slot_mut().inner.get();
        // SAFETY: The slot is not queued and in no list, since its owner is here. It stays until
        // the owner is dropped, which the list has from here on; and by the type invariant `last`
        // is a slot of the list, or null.
        unsafe {
            (*inner).owner = KBox::into_raw(owner).cast();
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
    pub fn pop(&mut self) -> Option<KBox<T>> {
        if self.first.is_null() {
            return None;
        }
        // SAFETY: By the type invariant it is a slot of the list, which has its owner: that is the
        // box that `push` left there.
        let (owner, next) = unsafe {
            let inner = &*self.first;
            (KBox::from_raw(inner.owner.cast::<T>()), inner.next)
        };
        // INVARIANT: The list begins behind it; if nothing is there it is empty.
        self.first = next;
        if next.is_null() {
            self.last = null_mut();
        }
        Some(owner)
    }
}

impl<T: Deferred> Default for DeferredList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Deferred> Drop for DeferredList<T> {
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
    // SAFETY: Flags of this thread, which are set back below.
    let flags = unsafe { bindings::hcablk_c_memalloc_flags_save(flags) };
    let result = f();
    // SAFETY: As above.
    unsafe { bindings::hcablk_c_memalloc_flags_restore(flags) };
    result
}
