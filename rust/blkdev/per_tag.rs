// SPDX-License-Identifier: GPL-2.0

//! What a driver keeps for each tag of a hardware queue: more than the
//! request's own data, since requests outnumber tags when there is an I/O
//! scheduler, and made by the driver when it likes.

use super::{
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
pub struct PerTag<T: Operations, V> {
    requests: Arc<Requests<T>>,
    hw_queue: u32,
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
        let mut values = KVec::with_capacity(requests.depth() as usize, GFP_KERNEL)?;
        for tag in 0..requests.depth() {
            values.push(UnsafeCell::new(make(tag)?), GFP_KERNEL)?;
        }
        Ok(Self {
            requests: requests.clone(),
            hw_queue,
            values,
        })
    }

    /// Returns the value of the request's tag, and a view of the request; `None` when the request
    /// is another hardware queue's. Any context.
    #[inline]
    pub fn of<'a>(&'a self, request: &'a mut Request<T>) -> Option<(RequestRef<'a>, &'a mut V)> {
        let tag = request.tag();
        let slot = self.requests.slot(self.hw_queue, tag.into())?;
        if !core::ptr::eq(slot, request.slot()) {
            return None;
        }
        let value = self.values.get(usize::from(tag))?;
        // SAFETY: The request is the owner of this very slot, `request` is
        // borrowed exclusively for as long as the value, and each slot has one
        // value here.
        Some((request.view(), unsafe { &mut *value.get() }))
    }
}
