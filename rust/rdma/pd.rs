// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! # The end of a domain before its last reference
//!
//! A drive that hangs keeps requests, and by them everything that refers to a session. The device
//! need not wait for that: what was made in a domain can be *severed*, which gives the device's
//! part of it back while the object stays, good for nothing.
//!
//! ```text
//!        sever() of each: queue pair with its completion queue, regions, buffers
//!  used ─────────────────────────────────────────────────────────────────────────► unused
//!                                                                                    │ sever()
//!                                                     severed ◄──────────────────────┘
//! ```
//!
//! Everything that needs the device has a [`DomainUse`], and gives it back when it is severed or
//! dropped, whichever comes first. [`ProtectionDomain::sever`] fails while there is one; after it
//! none can be made. So nothing here depends on who calls it when: a domain that is used is not
//! severed, and what is made in one that is severed fails.
//!
//! All of it in process context. No lock is held while the device is called, but the handler mutex
//! of an identifier that is destroyed, which the connection manager takes.

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

/// What ties queue pairs and memory regions together: a remote key works only
/// on queue pairs of the protection domain that it was made in. Each session
/// has one of its own, so that a peer's keys end with its session.
///
/// # Invariants
///
/// `raw` and its device are valid while `users` is not [`SEVERED`], and `id` has the identifier,
/// which is bound to that device, so long.
#[pin_data(PinnedDrop)]
pub struct ProtectionDomain {
    raw: NonNull<bindings::ib_pd>,
    /// Of `raw`, which does not change; to be compared at any time.
    device: *mut bindings::ib_device,
    lkey: u32,
    attributes: Attributes,
    is_software: bool,
    is_iwarp: bool,
    reaches_peers: bool,
    #[pin]
    id: Mutex<Option<Arc<Id>>>,
    /// Each [`DomainUse`], or [`SEVERED`].
    users: Atomic<i32>,
    lost: Atomic<bool>,
}

/// No user is left, and none comes.
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
                Attributes::of(device),
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

    /// Uses the domain and its device until that is given back. Fails with `ENODEV` if it was
    /// severed. Any context.
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

    /// Gives the domain back to the device, and the identifier that keeps that, before the last
    /// reference goes. Fails with `EBUSY` while something uses it; does nothing the second time.
    /// Sleeps; not from a handler of the identifier.
    pub fn sever(&self) -> Result {
        match self.users.cmpxchg(0, SEVERED, Full) {
            // SAFETY: It was valid, nobody uses it, and nobody will: this is the one call that
            // comes here.
            Ok(_) => unsafe { bindings::hcablk_c_ib_dealloc_pd(self.raw.as_ptr()) },
            Err(SEVERED) => return Ok(()),
            Err(_) => return Err(EBUSY),
        }
        let id = self.id.lock().take();
        drop(id);
        Ok(())
    }

    /// Returns the domain for the device. To be called by who has a [`DomainUse`].
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.raw.as_ptr()
    }

    /// Returns the device, which only who has a [`DomainUse`] may call.
    #[inline]
    pub(crate) fn device(&self) -> *mut bindings::ib_device {
        self.device
    }

    /// Returns the device's attributes.
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Returns whether the device is a program (soft-RoCE, soft-iWARP), which does no DMA.
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

    /// Returns whether `other` is on the same device, and neither was severed.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.device == other.device && !self.is_severed() && !other.is_severed()
    }

    /// Returns whether `id` is on this domain's device. `false` if the domain was severed: there
    /// may be another device in the same place of memory by now.
    pub fn same_device(&self, id: &Id) -> bool {
        !self.is_severed() && id.device().is_some_and(|d| d.as_ptr() == self.device)
    }

    /// Returns whether [`Self::sever`] has given it back.
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

    /// Returns the connection identifier that keeps the device; `None` if it was severed.
    pub fn id(&self) -> Option<Arc<Id>> {
        self.id.lock().clone()
    }
}

#[pinned_drop]
impl PinnedDrop for ProtectionDomain {
    fn drop(self: Pin<&mut Self>) {
        // Everything made in the domain holds a reference to it, so nothing is left. A use that was
        // forgotten, with a region that the device keeps, has a reference, too.
        let _ = self.sever();
    }
}

/// That something uses a protection domain, and its device. Given back once: by [`Self::end`] or
/// when it is dropped.
pub(crate) struct DomainUse {
    pd: Arc<ProtectionDomain>,
    ended: Atomic<bool>,
}

impl DomainUse {
    /// Ends the use: nothing of the device is touched for it any more. Any context.
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
