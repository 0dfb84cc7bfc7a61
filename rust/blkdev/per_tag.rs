// SPDX-License-Identifier: GPL-2.0

//! What a driver keeps for each tag of a hardware queue: more than the
//! request's own data, since requests outnumber tags when there is an I/O
//! scheduler, and made by the driver when it likes.

use super::{
    requests::Slot,
    Operations,
    Request,
    RequestRef,
    Requests, //
};
use core::cell::UnsafeCell;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// One `V` for each tag of a hardware queue, within reach of whoever owns the
/// request that has the tag.
///
/// # Invariants
///
/// `first` is the slot of the hardware queue's first tag, in the table of `requests`; there are as many
/// `values` as it has tags.
pub struct PerTag<T: Operations, V> {
    _requests: Arc<Requests<T>>,
    first: *const Slot,
    values: KVec<UnsafeCell<V>>,
}

// SAFETY: A value is reached only through the request that owns its tag, and
// that has one owner at a time.
unsafe impl<T: Operations, V: Send> Send for PerTag<T, V> {}
// SAFETY: As above.
unsafe impl<T: Operations, V: Send> Sync for PerTag<T, V> {}

impl<T: Operations, V> PerTag<T, V> {
    /// Makes the values of a hardware queue's tags. May sleep.
    pub fn new(
        requests: &Arc<Requests<T>>,
        hw_queue: u32,
        mut make: impl FnMut(u32) -> Result<V>,
    ) -> Result<Self> {
        let first = requests.slot(hw_queue, 0).ok_or(EINVAL)?;
        let mut values = KVec::with_capacity(requests.depth() as usize, GFP_KERNEL)?;
        for tag in 0..requests.depth() {
            values.push(UnsafeCell::new(make(tag)?), GFP_KERNEL)?;
        }
        // INVARIANT: The table does not move, and stays as long as there is a reference to it.
        Ok(Self {
            first,
            _requests: requests.clone(),
            values,
        })
    }

    /// Returns the value of the request's tag, and a view of the request; `None` when the request
    /// is another hardware queue's. Any context.
    #[inline]
    pub fn of<'a>(&'a self, request: &'a mut Request<T>) -> Option<(RequestRef<'a>, &'a mut V)> {
        // A slot of another hardware queue, or table, is before the first or beyond the last.
        let slot = core::ptr::from_ref(request.slot());
        let place = slot.addr().wrapping_sub(self.first.addr()) / size_of::<Slot>();
        let value = self.values.get(place)?;
        // SAFETY: The request is the owner of this very slot, `request` is
        // borrowed exclusively for as long as the value, and each slot has one
        // value here.
        Some((request.view(), unsafe { &mut *value.get() }))
    }
}
