// SPDX-License-Identifier: GPL-2.0

//! A table in which owners leave objects while the hardware works on them. The number that the
//! hardware reports is the object's index.

use crate::sync::atomic::{
    Atomic,
    Full,
    Relaxed, //
};
use core::ptr;
use kernel::prelude::*;

/// Places for objects in flight.
///
/// # Invariants
///
/// Every place is null or holds a pointer made by `KBox::into_raw`, which
/// belongs to the table.
pub struct SlotTable<T> {
    places: KVec<Atomic<*mut T>>,
}

// SAFETY: The table owns its objects.
unsafe impl<T: Send> Send for SlotTable<T> {}
// SAFETY: A shared table gives no references to its objects; `take` exchanges the pointer
// atomically, so one caller gets an object.
unsafe impl<T: Send> Sync for SlotTable<T> {}

impl<T> SlotTable<T> {
    /// Makes a table of `count` empty places. May sleep.
    pub fn new(count: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            places.push(Atomic::new(ptr::null_mut()), GFP_KERNEL)?;
        }
        Ok(Self { places })
    }

    /// Parks an object. Returns it if there is no such place, or the place is occupied. Any
    /// context.
    #[inline]
    pub fn park(&self, index: u32, object: KBox<T>) -> Result<(), KBox<T>> {
        let Some(place) = self.places.get(index as usize) else {
            return Err(object);
        };
        let object = KBox::into_raw(object);
        match place.cmpxchg(ptr::null_mut(), object, Full) {
            Ok(_) => Ok(()),
            // SAFETY: `into_raw` made it just above, and the table did not store it.
            Err(_) => Err(unsafe { KBox::from_raw(object) }),
        }
    }

    /// Takes an object out. If several callers try, one of them gets it. Any context.
    #[inline]
    pub fn take(&self, index: u32) -> Option<KBox<T>> {
        let object = self.places.get(index as usize)?.xchg(ptr::null_mut(), Full);
        if object.is_null() {
            return None;
        }
        // SAFETY: By the type's invariant; nobody else has the pointer now.
        Some(unsafe { KBox::from_raw(object) })
    }

    /// Returns whether each place was empty at some moment during the call. Any context.
    pub fn is_empty(&self) -> bool {
        self.places
            .iter()
            .all(|place| place.load(Relaxed).is_null())
    }
}

impl<T> Drop for SlotTable<T> {
    fn drop(&mut self) {
        for index in 0..self.places.len() {
            drop(self.take(index as u32));
        }
    }
}
