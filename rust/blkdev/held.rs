// SPDX-License-Identifier: GPL-2.0

//! Holds a started request: it cannot be ended while a device may reach its memory.

use super::{
    request::RequestRef,
    requests::Slot, //
};
use core::ptr::NonNull;

/// A device may reach the memory of a request: until this is dropped, the request cannot be ended
/// or requeued. An attempt to end it is a bug: the request then never ends, and a message is
/// logged. This is better than memory that changes under its next owner.
///
/// # Invariants
///
/// `slot` is that of a started request, so its table exists: the disk waits for the request.
pub(crate) struct HeldRequest {
    slot: NonNull<Slot>,
}

// SAFETY: This type accesses only the counter `held` of the slot, which is atomic.
unsafe impl Send for HeldRequest {}

impl HeldRequest {
    /// Holds a started request: no code may end it until this is dropped. Any context.
    #[inline]
    pub(crate) fn hold(request: RequestRef<'_>) -> Self {
        // INVARIANT: Viewed requests are started, and stay so while they are held.
        let held = Self {
            slot: request.slot(),
        };
        held.slot().hold();
        held
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: By the type's invariant.
        unsafe { self.slot.as_ref() }
    }
}

impl Drop for HeldRequest {
    #[inline]
    fn drop(&mut self) {
        self.slot().release_hold();
    }
}
