// SPDX-License-Identifier: GPL-2.0

//! Requests that return to the block layer together, the oldest first.
//!
//! # Order
//!
//! A request is older than another if the block layer created it earlier. The requests of a plug
//! share one time, and requests have none while the disk's `iostats` are off: of these, the one
//! that was issued earlier is older ([`Request::set_order`]).
//!
//! `blk_mq_requeue_work()` puts each request before all waiting ones, so that the last comes first,
//! unless it has `RQF_DONTPREP`: then it is dispatched after earlier requeued requests, before all
//! requests in software queues or in a scheduler, and without merging. So requests are requeued
//! with that flag. Requests that were refused while no path was live (`BLK_STS_DEV_RESOURCE`) have
//! never been issued; they may be dispatched earlier.
//!
//! # Memory
//!
//! Nothing is allocated: the requests are linked through `rq_next`, which belongs to their owner
//! until they return to the block layer, and sorted by merging, in O(n log n) steps.

use super::{
    request::Common,
    Operations,
    Request,
    Status, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    mem::replace,
    ptr::{
        null_mut,
        NonNull, //
    },
};

/// The number of lists, of 2^0, 2^1, … requests: together they hold more than there can be.
const LISTS: usize = 32;

/// Requests that will be requeued together; see the module. All functions may be called from any
/// context. Dropping it requeues the requests.
///
/// # Invariants
///
/// Each list is null, or the first of a chain of requests that this object owns, linked by
/// `rq_next`, the oldest first; the link of the last is null.
pub struct ByAge<T: Operations> {
    lists: [*mut bindings::request; LISTS],
    _owned: PhantomData<Request<T>>,
}

// SAFETY: The requests are owned, and a `Request` is `Send`.
unsafe impl<T: Operations> Send for ByAge<T> {}

/// Returns the age of a request: a smaller value is older.
///
/// # Safety
///
/// `request` is a started request of ours, and the caller's.
unsafe fn age_of(request: *mut bindings::request) -> (u64, u32) {
    // SAFETY: By the safety requirement; the driver part of a started request is initialized.
    unsafe {
        (
            bindings::hcablk_c_made_ns(request),
            (*Common::of_request(request)).order,
        )
    }
}

/// Returns whether a request of the age `a` is not younger than one of the age `b`. The order of
/// issue wraps.
fn is_not_younger(a: (u64, u32), b: (u64, u32)) -> bool {
    a.0 < b.0 || (a.0 == b.0 && b.1.wrapping_sub(a.1) as i32 >= 0)
}

/// Returns the location of a request's link to the next one.
///
/// # Safety
///
/// `request` is a request that the caller owns.
unsafe fn next_of(request: *mut bindings::request) -> *mut *mut bindings::request {
    // SAFETY: By the safety requirement; no reference is made.
    unsafe { &raw mut (*request).__bindgen_anon_1.rq_next }
}

impl<T: Operations> ByAge<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        // INVARIANT: All are null.
        Self {
            lists: [null_mut(); LISTS],
            _owned: PhantomData,
        }
    }

    /// Adds a request.
    pub fn push(&mut self, request: Request<T>) {
        let mut carried = request.into_raw().as_ptr();
        // SAFETY: It was given to us just now.
        unsafe { next_of(carried).write(null_mut()) };
        for list in &mut self.lists {
            if list.is_null() {
                // INVARIANT: A list of ours, sorted.
                *list = carried;
                return;
            }
            // SAFETY: Both are lists of ours, by the type invariant; neither is used after that.
            carried = unsafe { Self::merge(take_list(list), carried) };
        }
        // There are never 2^32 requests. The merged list is kept.
        if let Some(last) = self.lists.last_mut() {
            *last = carried;
        }
    }

    /// Merges two lists; of requests with the same age, those of `a` come first.
    ///
    /// # Safety
    ///
    /// Both are as the type invariant says, and given up by the caller.
    unsafe fn merge(
        mut a: *mut bindings::request,
        mut b: *mut bindings::request,
    ) -> *mut bindings::request {
        let mut first: *mut bindings::request = null_mut();
        let mut place = &raw mut first;
        while !a.is_null() && !b.is_null() {
            // SAFETY: By the safety requirement each is a request of ours, `place` is `first` or
            // the link of one.
            unsafe {
                let from = match is_not_younger(age_of(a), age_of(b)) {
                    true => &mut a,
                    false => &mut b,
                };
                place.write(*from);
                place = next_of(*from);
                *from = place.read();
            }
        }
        // SAFETY: As above.
        unsafe { place.write(if a.is_null() { b } else { a }) };
        first
    }

    /// Returns all requests to the block layer as [`Request::requeue`] does, the oldest first.
    pub fn requeue(&mut self) {
        let mut all = null_mut();
        for list in &mut self.lists {
            // SAFETY: Both are lists of ours; those of later lists were taken before.
            all = unsafe { Self::merge(take_list(list), all) };
        }
        while let Some(request) = NonNull::new(all) {
            // SAFETY: By the type invariant.
            all = unsafe { next_of(request.as_ptr()).read() };
            // SAFETY: It is started, has no place, and is in no list any more.
            unsafe { Request::<T>::from_owned(request) }.requeue();
        }
    }

    /// Ends all requests.
    pub fn end(&mut self, status: Status) {
        for list in &mut self.lists {
            let mut rest = take_list(list);
            while let Some(request) = NonNull::new(rest) {
                // SAFETY: By the type invariant.
                rest = unsafe { next_of(request.as_ptr()).read() };
                // SAFETY: As in `requeue`.
                unsafe { Request::<T>::from_owned(request) }.end(status);
            }
        }
    }
}

/// Returns a list and leaves null.
fn take_list(list: &mut *mut bindings::request) -> *mut bindings::request {
    replace(list, null_mut())
}

impl<T: Operations> Default for ByAge<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Operations> Drop for ByAge<T> {
    fn drop(&mut self) {
        self.requeue();
    }
}
