// SPDX-License-Identifier: GPL-2.0

//! Memory regions for fast registration.
//!
//! # Registrations that wait for their doorbell
//!
//! Each region counts its registrations that wait for their doorbell. The region is not destroyed
//! while there is one.

use super::{
    pd::{
        DomainUse,
        ProtectionDomain, //
    },
    wr::{
        Invalidate,
        Key,
        Register, //
    },
};
use crate::{
    bindings,
    rdma::faults, //
};
use core::{
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

/// The access that a region allows: what its request needs and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The peer reads: the memory is written to the volume.
    RemoteRead,
    /// The peer writes: the memory is read from the volume.
    RemoteWrite,
    /// This side's RDMA READ puts data there; the peer has no access.
    LocalWrite,
}

impl Rights {
    fn access(self) -> u32 {
        match self {
            Self::RemoteRead => bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
            Self::LocalWrite => bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE,
            // A remote write is a local write of the device as well.
            Self::RemoteWrite => {
                bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            }
        }
    }
}

/// Address and key by which a peer reaches a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The first byte's address within the region.
    pub address: u64,
    /// The region's key (rkey).
    pub key: u32,
}

/// Whether the peer can reach a region.
///
/// ```text
///          map()             register()                 invalidated()
///  Invalid ──────► Mapped ───────────────► Registered ─────────────────► Invalid
///     ▲               │ unmap()                │ invalidate()               ▲
///     └───────────────┘                        ▼                            │
///                                         Invalidating ─────────────────────┘
/// ```
///
/// The peer may have access from the moment `register()`'s work request is posted until the
/// invalidation is known to be done: because the peer's message says so, because our own work
/// request completed, or because the region was revoked. If a device refuses to destroy the region,
/// the peer has access for ever, and the memory is never freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionState {
    Invalid,
    Mapped,
    Registered,
    Invalidating,
}

/// A memory region that work requests make valid and invalid.
///
/// # Invariants
///
/// `raw` is valid while `severed` is not set.
pub struct MemoryRegion {
    raw: NonNull<bindings::ib_mr>,
    state: RegionState,
    waiting: Arc<PendingRegistrations>,
    /// The region was returned to the device.
    severed: Atomic<bool>,
    pd: DomainUse,
}

// SAFETY: Verbs may be called from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: Shared references only read, and [sever](MemoryRegion::sever) the region, which does not
// run concurrently with another call.
unsafe impl Sync for MemoryRegion {}

/// The bytes of a region's page: the smallest size that every device supports. The segments of the
/// block layer are multiples of it.
pub const REGION_PAGE: u32 = 4096;

impl MemoryRegion {
    /// Makes a region of up to `pages` pages. May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, pages: u32) -> Result<Self> {
        let waiting = Arc::new(PendingRegistrations::none(), GFP_KERNEL)?;
        let pd = pd.begin_use()?;
        // SAFETY: `pd` is alive.
        let raw = from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })?;
        // INVARIANT: Made just now.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            state: RegionState::Invalid,
            waiting,
            severed: Atomic::new(false),
            pd,
        })
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.raw.as_ptr()
    }

    /// Makes the REG_MR that makes `key` valid with `rights`.
    #[inline]
    fn registration(&self, key: Key, rights: Rights) -> Register<'_> {
        // SAFETY: The region was not severed, and owns the counter. It stays valid during the
        // borrow, or until it is severed; by then no queue pair has the work request any more.
        unsafe { Register::new(self.as_raw(), &self.waiting, key, rights.access()) }
    }

    /// Maps `count` mapped entries of `sg` into the region. The region's address consists of
    /// `cookie` and the offset within the first page, so the peer learns no address of this
    /// machine's memory.
    ///
    /// # Safety
    ///
    /// `sg` has `count` entries that are mapped for the region's device.
    pub(crate) unsafe fn map(
        &mut self,
        sg: *mut bindings::scatterlist,
        count: u32,
        cookie: u32,
    ) -> Result {
        // Pages of a valid region must never change under the peer.
        if self.state != RegionState::Invalid {
            return Err(EBUSY);
        }
        if faults::map() {
            return Err(ENOMEM);
        }
        let mr = self.as_raw();
        // SAFETY: The region is valid and the caller vouches for the list.
        let mapped =
            unsafe { bindings::ib_map_mr_sg(mr, sg, count as i32, ptr::null_mut(), REGION_PAGE) };
        if mapped < 0 {
            return Err(Error::from_errno(mapped));
        }
        if mapped as u32 != count {
            return Err(EINVAL);
        }
        // SAFETY: The region is ours and not valid, so the device does not look at it.
        unsafe {
            let in_page = (*mr).iova & u64::from(REGION_PAGE - 1);
            (*mr).iova = u64::from(cookie) << 32 | in_page;
            // A new key for each use: the peer cannot reach the memory with an earlier one.
            let key = bindings::hcablk_c_ib_inc_rkey((*mr).rkey);
            bindings::hcablk_c_ib_update_fast_reg_key(mr, key as u8);
        }
        self.state = RegionState::Mapped;
        Ok(())
    }

    /// Returns the REG_MR that makes the region valid with `rights`, and its address and key for
    /// the peer. Post the work request before the peer gets the key.
    #[inline]
    pub fn register(&mut self, rights: Rights) -> Result<(Register<'_>, RemoteAddress)> {
        if self.state != RegionState::Mapped {
            return Err(EINVAL);
        }
        self.state = RegionState::Registered;
        let remote = RemoteAddress {
            // SAFETY: The region is valid.
            address: unsafe { (*self.as_raw()).iova },
            key: self.key().0,
        };
        Ok((self.registration(self.key(), rights), remote))
    }

    /// Returns the work requests that make the region valid and invalid again, and its first byte's
    /// address and key, for use by work that is posted between the two.
    #[inline]
    pub(super) fn register_once(
        &mut self,
        rights: Rights,
    ) -> Result<(Register<'_>, Invalidate, u64, Key)> {
        if self.state != RegionState::Mapped {
            return Err(EINVAL);
        }
        self.state = RegionState::Invalidating;
        // SAFETY: The region is valid.
        let (address, key) = unsafe { ((*self.as_raw()).iova, Key((*self.as_raw()).lkey)) };
        let register = self.registration(key, rights);
        Ok((register, Invalidate::new(key), address, key))
    }

    /// Declares that the work request of [`Self::kept`] registers the region for its whole life.
    /// Returns the address, which may be sent to the peer after that work request was posted.
    pub(crate) fn keep(&mut self, rights: Rights) -> Result<RemoteAddress> {
        Ok(self.register(rights)?.1)
    }

    /// Returns the work request for [`Self::keep`].
    /// Fails with `ENODEV` if the region was severed.
    pub(crate) fn kept(&self, rights: Rights) -> Result<Register<'_>> {
        if self.severed.load(Acquire) {
            return Err(ENODEV);
        }
        Ok(self.registration(self.key(), rights))
    }

    /// Returns the LOCAL_INV that makes the region invalid.
    #[inline]
    pub fn invalidate(&mut self) -> Invalidate {
        self.state = RegionState::Invalidating;
        Invalidate::new(self.key())
    }

    #[inline]
    fn key(&self) -> Key {
        if self.severed.load(Acquire) {
            return Key(0);
        }
        // SAFETY: The region is valid, by the type's invariant.
        Key(unsafe { (*self.as_raw()).rkey })
    }

    /// Returns whether [`Self::invalidate`] was called, and its work request has not completed.
    #[inline]
    pub(crate) fn is_invalidating(&self) -> bool {
        self.state == RegionState::Invalidating
    }

    /// Returns whether the peer may have access.
    #[inline]
    pub fn is_registered(&self) -> bool {
        matches!(
            self.state,
            RegionState::Registered | RegionState::Invalidating
        )
    }

    /// Records that the peer's message has invalidated `rkey`. Returns `false` if that is not this
    /// region's key.
    #[inline]
    pub fn invalidated_by_peer(&mut self, rkey: u32) -> bool {
        let ours = self.state == RegionState::Registered && self.key().0 == rkey;
        if ours {
            self.state = RegionState::Invalid;
        }
        ours
    }

    /// Records that the work request of [`Self::invalidate`] has completed, or that the region was
    /// never registered.
    #[inline]
    pub(crate) fn invalidated(&mut self) {
        self.state = RegionState::Invalid;
    }
}

impl MemoryRegion {
    /// Destroys the region, and with it all access to the memory through its key. Sleeps.
    ///
    /// On an error the device has refused, and the region is returned: while it
    /// [`is_registered`](Self::is_registered), the peer may have access as before, and the owner of
    /// the memory must not free it. Dropping the region tries again, for the last time. Also fails
    /// while a registration of the region waits in a [`Backlog`](super::backlog::Backlog), since it
    /// may be posted afterwards.
    pub fn revoke(self) -> Result<(), Self> {
        let mut this = ManuallyDrop::new(self);
        if this.severed.load(Acquire) {
            drop(ManuallyDrop::into_inner(this));
            return Ok(());
        }
        if this.deregister().is_err() {
            return Err(ManuallyDrop::into_inner(this));
        }
        // SAFETY: These are the remaining fields of the region; none is used after this.
        unsafe {
            ptr::drop_in_place(&mut this.waiting);
            ptr::drop_in_place(&mut this.pd);
        }
        Ok(())
    }

    /// Ends all access to the memory by the region's key, as [`Self::revoke`] does. The object
    /// stays, but cannot be used any more. On an error the device has refused, and this may be
    /// called again. Does nothing after a success. No queue pair has work that uses the region, and
    /// no other call for it runs. Sleeps.
    pub(super) fn sever(&self) -> Result {
        if self.severed.load(Acquire) {
            return Ok(());
        }
        self.deregister()?;
        self.severed.store(true, Release);
        self.pd.end();
        Ok(())
    }

    /// Deregisters the region; after a success `raw` is not valid any more. Sleeps.
    fn deregister(&self) -> Result {
        let result = if self.waiting.any() {
            Err(EBUSY)
        } else {
            // SAFETY: The region is ours. If it is still valid, it stops being so here.
            to_result(unsafe { bindings::hcablk_c_ib_dereg_mr(self.as_raw()) })
        };
        if let Err(e) = result {
            pr_warn!(
                "hcablk: cannot deregister a memory region (error {})\n",
                e.to_errno()
            );
        }
        result
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.severed.load(Acquire) {
            return;
        }
        if self.deregister().is_err() {
            if self.is_registered() {
                pr_err!("BUG: a peer may reach memory for ever: this memory is never used again\n");
                self.pd.lose();
            }
            // The device keeps the region, so its domain must stay.
            if let Ok(for_ever) = self.pd.domain().begin_use() {
                core::mem::forget(for_ever);
            }
        }
    }
}

/// Counts the registrations of a region that wait for their doorbell.
pub struct PendingRegistrations(Atomic<u32>);

impl PendingRegistrations {
    pub(super) fn none() -> Self {
        Self(Atomic::new(0))
    }

    /// Returns whether a registration waits.
    pub(super) fn any(&self) -> bool {
        self.0.load(Acquire) != 0
    }
}

/// A waiting registration, which is counted until this object is dropped.
pub(super) struct Counted(Arc<PendingRegistrations>);

impl Counted {
    pub(super) fn new(waiting: &Arc<PendingRegistrations>) -> Self {
        waiting.0.fetch_add(1, Relaxed);
        Self(waiting.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Release);
    }
}
