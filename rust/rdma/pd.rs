// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use super::{
    cm::Id,
    device::Attributes, //
};
use crate::bindings;
use crate::sync::atomic::{
    Atomic,
    Relaxed, //
};
use core::ptr::NonNull;
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::Arc, //
};

/// Ties queue pairs and memory regions together: a remote key works only on queue pairs of the
/// protection domain that it was made in. Each session has one of its own, so that a peer's keys
/// end with its session.
///
/// # Invariants
///
/// `raw` is valid as long as the object; `id` is bound to its device.
pub struct ProtectionDomain {
    raw: NonNull<bindings::ib_pd>,
    id: Arc<Id>,
    lost: Atomic<bool>,
}

// SAFETY: Verbs may be called from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: As above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Makes a protection domain on the device that `id` is bound to
    /// (`ENODEV` when it is bound to none yet). May sleep.
    pub fn new(id: &Arc<Id>) -> Result<Arc<Self>> {
        let device = id.device().ok_or(ENODEV)?;
        // SAFETY: `id` keeps the device.
        let raw = from_err_ptr(unsafe { bindings::hcablk_c_ib_alloc_pd(device.as_ptr()) })?;
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        let id = id.clone();
        // INVARIANT: `raw` was just made, on the device of `id`.
        // When there is no memory the value is dropped, and the domain with it.
        let lost = Atomic::new(false);
        Ok(Arc::new(Self { raw, id, lost }, GFP_KERNEL)?)
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.raw.as_ptr()
    }

    pub(crate) fn device(&self) -> *mut bindings::ib_device {
        // SAFETY: `raw` is valid by the type's invariant.
        unsafe { (*self.raw.as_ptr()).device }
    }

    /// Returns the device's attributes.
    pub fn attributes(&self) -> Attributes {
        // SAFETY: The device is alive as long as `id`.
        unsafe { Attributes::from_device(self.device()) }
    }

    /// Returns whether the device is a program (soft-RoCE, soft-iWARP), which does no DMA.
    pub fn is_software(&self) -> bool {
        // SAFETY: The device is alive as long as `id`.
        unsafe { bindings::hcablk_c_ib_is_virtual(self.device()) }
    }

    /// Returns whether `id` is on this domain's device.
    pub fn same_device(&self, id: &Id) -> bool {
        id.device().is_some_and(|d| d.as_ptr() == self.device())
    }

    /// Returns the key for local access to any memory that is mapped for the device.
    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: `raw` is valid by the type's invariant; the key never changes.
        unsafe { (*self.raw.as_ptr()).local_dma_lkey }
    }

    /// Records that a key of the domain could not be made invalid.
    pub(super) fn lose(&self) {
        self.lost.store(true, Relaxed);
    }

    /// Returns whether the device has refused to invalidate a key of the domain that a peer may
    /// have. Then no memory that any key reached may ever be used for something else. A
    /// [`DmaBuffer`](super::buffer::DmaBuffer) sees to that by itself when it is dropped.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// Returns the connection identifier that keeps the device.
    pub fn id(&self) -> &Arc<Id> {
        &self.id
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: Everything made in the domain holds a reference to it, so nothing is left.
        unsafe { bindings::hcablk_c_ib_dealloc_pd(self.raw.as_ptr()) };
    }
}
