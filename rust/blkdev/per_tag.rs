// SPDX-License-Identifier: GPL-2.0

//! A driver's data for each tag of a hardware queue. A request's own data cannot hold it: with an
//! I/O scheduler there are more requests than tags, and the driver decides when its data is
//! created.

use super::{
    requests::Slot,
    Operations,
    Request,
    RequestRef,
    Requests, //
};
use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// One `V` for each tag of a hardware queue, accessible to the owner of the request that has the
/// tag.
///
/// # Invariants
///
/// `first` points to the slots of the hardware queue's tags, in the table of `_requests`; there are
/// as many `values` as it has tags.
pub struct PerTag<T: Operations, V> {
    _requests: Arc<Requests<T>>,
    first: NonNull<Slot>,
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
        let slots = requests.slots_of(hw_queue).ok_or(EINVAL)?;
        let mut values = KVec::with_capacity(requests.depth() as usize, GFP_KERNEL)?;
        for tag in 0..requests.depth() {
            values.push(UnsafeCell::new(make(tag)?), GFP_KERNEL)?;
        }
        // INVARIANT: The table does not move, and lives until its last reference is dropped.
        Ok(Self {
            first: NonNull::from(slots).cast(),
            _requests: requests.clone(),
            values,
        })
    }

    /// Returns the value of the request's tag, and a view of the request; `None` when the request
    /// belongs to another hardware queue. Any context.
    #[inline]
    pub fn with_value<'a>(
        &'a self,
        request: &'a mut Request<T>,
    ) -> Option<(RequestRef<'a>, &'a mut V)> {
        let value = self.value(request)?;
        // SAFETY: The request is the owner of this very slot, `request` is
        // borrowed exclusively for as long as the value, and each slot has one
        // value here.
        Some((request.view(), unsafe { &mut *value.get() }))
    }

    /// Joins the request with the value of its tag; returns the request as the error when it
    /// belongs to another hardware queue. Any context.
    #[inline]
    pub fn join(&self, request: Request<T>) -> Result<TaggedRequest<'_, T, V>, Request<T>> {
        match self.value(&request) {
            // INVARIANT: It is the value of this request's slot.
            Some(value) => Ok(TaggedRequest { request, value }),
            None => Err(request),
        }
    }

    /// Takes the request with this tag and generation that is parked on `path`, as
    /// [`Requests::take`] does. Any context.
    #[inline]
    pub fn take(&self, path: u8, tag: u16, generation: u16) -> Option<TaggedRequest<'_, T, V>> {
        let (slot, value) = self.slot_and_value(tag)?;
        let request = slot.take(path, generation)?;
        // SAFETY: We have moved the slot from Parked to Owned, so `request` is a started request
        // and no other owner exists.
        let request = unsafe { Request::from_owned(request) };
        // INVARIANT: It is the value of this request's slot.
        Some(TaggedRequest { request, value })
    }

    /// Takes the request with this tag that is parked on `path`, of any generation, as
    /// [`Requests::take_any`] does. Any context.
    #[inline]
    pub fn take_any(&self, path: u8, tag: u16) -> Option<TaggedRequest<'_, T, V>> {
        let (slot, value) = self.slot_and_value(tag)?;
        let request = slot.take_any(path)?;
        // SAFETY: As in `take`.
        let request = unsafe { Request::from_owned(request) };
        // INVARIANT: It is the value of this request's slot.
        Some(TaggedRequest { request, value })
    }

    /// Returns the value of the request's tag.
    #[inline]
    fn value(&self, request: &Request<T>) -> Option<&UnsafeCell<V>> {
        // A slot of another hardware queue, or table, is before the first or beyond the last.
        let slot = core::ptr::from_ref(request.slot());
        let place = slot.addr().wrapping_sub(self.first.as_ptr().addr()) / size_of::<Slot>();
        self.values.get(place)
    }

    /// Returns the slot of a tag, and its value.
    #[inline]
    fn slot_and_value(&self, tag: u16) -> Option<(&Slot, &UnsafeCell<V>)> {
        let value = self.values.get(usize::from(tag))?;
        // SAFETY: By the type's invariant there is a slot for each value, in a table that stays as
        // long as `self`.
        let slot = unsafe { self.first.add(usize::from(tag)).as_ref() };
        Some((slot, value))
    }
}

/// A started request, owned, with the value of its tag.
///
/// # Invariants
///
/// `value` is that of the slot which `request` owns.
pub struct TaggedRequest<'a, T: Operations, V> {
    request: Request<T>,
    value: &'a UnsafeCell<V>,
}

impl<T: Operations, V> TaggedRequest<'_, T, V> {
    /// Returns a view of the request, and the value.
    #[inline]
    pub fn split(&mut self) -> (RequestRef<'_>, &mut V) {
        // SAFETY: By the type's invariant the value is the request's, which is borrowed exclusively
        // for as long as the value.
        (self.request.view(), unsafe { &mut *self.value.get() })
    }

    /// Parks the request, for [`PerTag::take`], as [`Request::park`].
    #[inline]
    pub fn park(self) {
        self.request.park();
    }

    /// Returns the request alone.
    #[inline]
    pub fn into_request(self) -> Request<T> {
        self.request
    }
}
