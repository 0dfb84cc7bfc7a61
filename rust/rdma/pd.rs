// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! # The end of a domain before its last reference
//!
//! A drive that hangs keeps requests, and these keep all objects of a session. The removal of the
//! device must not wait for them: an object that was made in a domain can be *severed*. This
//! returns the device's part of it to the device, while the object stays but cannot be used any
//! more.
//!
//! ```text
//!        sever() of each: queue pair with its completion queue, regions, buffers
//!  used ─────────────────────────────────────────────────────────────────────────► unused
//!                                                                                    │ sever()
//!                                                     severed ◄──────────────────────┘
//! ```
//!
//! Every object that needs the device has a [`DomainUse`], which ends when the object is severed or
//! dropped. [`ProtectionDomain::sever`] fails while there is a use, and no use begins after it. So
//! the order of calls does not matter: a domain in use is not severed, and no object can be made in
//! a severed one.
//!
//! All of this is done in process context. The device is called under no lock but those of the
//! callers and [`QueuePair`](super::qp::QueuePair)'s.

use super::{
    cm::Id,
    device::Attributes, //
};
use crate::{
    bindings,
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    }, //
};
use core::{
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    error::from_err_ptr,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Ties queue pairs and memory regions together: a remote key works only on queue pairs of the
/// protection domain that it was made in. Each session has one of its own, so that a peer's keys
/// end with its session.
///
/// # Invariants
///
/// While `users` is not [`SEVERED`], `raw` and its device are valid, and `id` has the identifier,
/// which is bound to that device.
#[pin_data(PinnedDrop)]
pub struct ProtectionDomain {
    raw: NonNull<bindings::ib_pd>,
    /// The device of `raw`. May dangle once the domain is severed, and is only compared then.
    device: *mut bindings::ib_device,
    lkey: u32,
    attributes: Attributes,
    is_software: bool,
    is_iwarp: bool,
    reaches_peers: bool,
    #[pin]
    id: Mutex<Option<Arc<Id>>>,
    /// The number of [`DomainUse`]s, or [`SEVERED`].
    users: Atomic<i32>,
    lost: Atomic<bool>,
}

/// The domain has no user, and never gets one again.
const SEVERED: i32 = i32::MIN;

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
        // SAFETY: Made just now; the key never changes.
        let lkey = unsafe { (*raw.as_ptr()).local_dma_lkey };
        // SAFETY: `id` keeps the device.
        let (attributes, is_software, reaches_peers) = unsafe {
            let device = device.as_ptr();
            (
                Attributes::from_device(device),
                bindings::hcablk_c_ib_is_virtual(device),
                bindings::hcablk_c_ib_peers(device),
            )
        };
        // INVARIANT: `raw` was just made, on the device of `id`.
        let made = Arc::pin_init(
            pin_init!(Self {
                raw,
                device: device.as_ptr(),
                lkey,
                attributes,
                is_software,
                is_iwarp: id.is_iwarp(),
                reaches_peers,
                id <- new_mutex!(Some(id.clone())),
                users: Atomic::new(0),
                lost: Atomic::new(false),
            }),
            GFP_KERNEL,
        );
        if made.is_err() {
            // SAFETY: Made above, and nobody has it.
            unsafe { bindings::hcablk_c_ib_dealloc_pd(raw.as_ptr()) };
        }
        made
    }

    /// Begins a use of the domain and its device. Fails with `ENODEV` if the domain was severed.
    /// Any context.
    pub(crate) fn begin_use(self: &Arc<Self>) -> Result<DomainUse> {
        let mut users = self.users.load(Relaxed);
        loop {
            if users == SEVERED {
                return Err(ENODEV);
            }
            match self.users.cmpxchg(users, users + 1, Full) {
                Ok(_) => break,
                Err(now) => users = now,
            }
        }
        Ok(DomainUse {
            pd: self.clone(),
            ended: Atomic::new(false),
        })
    }

    /// Returns the domain to the device, and drops the reference to the identifier that keeps the
    /// device. The object stays. Fails with `EBUSY` while the domain is used; does nothing the
    /// second time. Sleeps; not from a handler of the identifier.
    pub fn sever(&self) -> Result {
        match self.users.cmpxchg(0, SEVERED, Full) {
            // SAFETY: The domain was valid. It is not used now or later, and only one call makes
            // this exchange.
            Ok(_) => unsafe { bindings::hcablk_c_ib_dealloc_pd(self.raw.as_ptr()) },
            Err(SEVERED) => return Ok(()),
            Err(_) => return Err(EBUSY),
        }
        let id = self.id.lock().take();
        drop(id);
        Ok(())
    }

    /// Returns the domain for the device. The caller has a [`DomainUse`].
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.raw.as_ptr()
    }

    /// Returns the device. It may be called only during a [`DomainUse`].
    #[inline]
    pub(crate) fn device(&self) -> *mut bindings::ib_device {
        self.device
    }

    /// Returns the device's attributes.
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Returns whether the device is implemented in software (soft-RoCE, soft-iWARP), and does no
    /// DMA.
    pub fn is_software(&self) -> bool {
        self.is_software
    }

    /// Returns whether the transport is iWARP.
    pub fn is_iwarp(&self) -> bool {
        self.is_iwarp
    }

    /// Returns whether the device does DMA to memory of other PCI devices.
    pub(crate) fn reaches_peers(&self) -> bool {
        self.reaches_peers
    }

    /// Returns whether `other` is on the same device, and neither domain was severed.
    pub fn is_on_same_device(&self, other: &Self) -> bool {
        self.device == other.device && !self.is_severed() && !other.is_severed()
    }

    /// Returns whether `id` is on this domain's device. Returns `false` if the domain was severed:
    /// another device may be at the same address by now.
    pub fn same_device(&self, id: &Id) -> bool {
        !self.is_severed() && id.device().is_some_and(|d| d.as_ptr() == self.device)
    }

    /// Returns whether [`Self::sever`] has returned the domain to the device.
    pub fn is_severed(&self) -> bool {
        self.users.load(Acquire) == SEVERED
    }

    /// Returns the key for local access to any memory that is mapped for the device.
    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
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

    /// Returns the connection identifier that keeps the device; `None` if the domain was severed.
    pub fn id(&self) -> Option<Arc<Id>> {
        self.id.lock().clone()
    }
}

#[pinned_drop]
impl PinnedDrop for ProtectionDomain {
    fn drop(self: Pin<&mut Self>) {
        // Every use holds a reference to the domain, so none is left; a leaked use holds one for
        // ever.
        let _ = self.sever();
    }
}

/// The use of a protection domain and its device, until [`Self::end`], or until it is dropped.
pub(crate) struct DomainUse {
    pd: Arc<ProtectionDomain>,
    ended: Atomic<bool>,
}

impl DomainUse {
    /// Ends the use: its owner does not touch the device any more. Any context.
    pub(crate) fn end(&self) {
        if !self.ended.xchg(true, Relaxed) {
            self.pd.users.fetch_sub(1, Release);
        }
    }

    /// Returns the domain.
    pub(crate) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }
}

impl Deref for DomainUse {
    type Target = ProtectionDomain;

    fn deref(&self) -> &ProtectionDomain {
        &self.pd
    }
}

impl Drop for DomainUse {
    fn drop(&mut self) {
        self.end();
    }
}
