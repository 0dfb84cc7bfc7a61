// SPDX-License-Identifier: GPL-2.0

//! Holds a started request: it cannot be ended while a device may reach its memory.

use super::request::{
    hold,
    release_hold,
    RequestRef, //
};
use crate::bindings;
use core::ptr::NonNull;

/// A device may reach the memory of a request: until this is dropped, the request cannot be ended
/// or requeued. An attempt to end it is a bug: the request then never ends, and a message is
/// logged. This is better than memory that changes under its next owner.
///
/// # Invariants
///
/// The request is started, and stays so: nothing ends it.
pub(crate) struct HeldRequest {
    request: NonNull<bindings::request>,
}

// SAFETY: This type accesses only the counter of the request, which is atomic.
unsafe impl Send for HeldRequest {}

impl HeldRequest {
    /// Holds a started request: no code may end it until this is dropped. Any context.
    #[inline]
    pub(crate) fn hold(request: RequestRef<'_>) -> Self {
        let request = request.as_non_null();
        // SAFETY: Viewed requests are started.
        unsafe { hold(request) };
        // INVARIANT: It stays started while it is held.
        Self { request }
    }
}

impl Drop for HeldRequest {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type's invariant; `Self::hold` has counted.
        unsafe { release_hold(self.request) };
    }
}
