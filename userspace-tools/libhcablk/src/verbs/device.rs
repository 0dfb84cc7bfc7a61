// SPDX-License-Identifier: GPL-2.0

//! A device's protection domain, and the device's capabilities.

use super::{by_value, cm::Id, made, sys};
use nix::errno::Errno;
use std::{mem::MaybeUninit, ptr::NonNull, sync::Arc};

/// The vendor's number of soft-RoCE (`RXE_VENDOR_ID`).
const SOFT_ROCE: u32 = 0xff_ffff;

/// The capabilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Whether the transport is that of InfiniBand or RoCE, not iWARP's or any other.
    pub(crate) is_ib: bool,
    /// Whether there are memory windows of type 2, which work requests bind.
    pub(crate) has_windows: bool,
    /// Whether the device is soft-RoCE, which [reports](super::queue) invalidations with a flag of
    /// its own.
    pub(crate) is_soft_roce: bool,
    /// The largest number of work requests of a queue.
    pub(crate) max_qp_wr: u32,
    /// The largest number of entries of a completion queue.
    pub(crate) max_cqe: u32,
    /// The largest number of pieces that a work request gathers.
    pub(crate) max_sge: u32,
    /// The largest number of windows.
    pub(crate) max_mw: u32,
    /// The largest number of concurrent RDMA READs of a peer.
    pub(crate) max_qp_rd_atom: u8,
}

/// A protection domain: a queue pair reaches only the regions and windows of its own domain.
pub(crate) struct ProtectionDomain {
    raw: NonNull<sys::ibv_pd>,
    /// The number of the domain among those of its volume.
    place: usize,
    /// Keeps the device open.
    id: Id,
    attributes: Attributes,
}

// SAFETY: Verbs may be called by any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: As above; only the device of the identifier is used, which does not change.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates the protection domain `place` of a volume on the device that `id` was resolved to. Fails with
    /// `ENODEV` if `id` has no device.
    fn new(id: Id, place: usize) -> Result<Arc<Self>, Errno> {
        let context = id.context().ok_or(Errno::ENODEV)?;
        let attributes = attributes(context)?;
        // SAFETY: The result stores `id`, which keeps the context open.
        let raw = made(unsafe { sys::ibv_alloc_pd(context.as_ptr()) })?;
        Ok(Arc::new(Self {
            raw,
            place,
            id,
            attributes,
        }))
    }

    /// Returns the number of the domain among those of its volume.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// Returns the capabilities of the device.
    pub(crate) fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Returns whether `id` was resolved to this device.
    pub(crate) fn is_of(&self, id: &Id) -> bool {
        id.context() == self.id.context()
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: The domain exists, and its context does not change.
        unsafe { (*self.raw.as_ptr()).context }
    }
}

/// The protection domains of a volume: one for each RDMA device of its paths. Memory of requests is registered in all
/// of them, so that requests can move to another device.
#[derive(Default)]
pub(crate) struct Domains(Vec<Arc<ProtectionDomain>>);

impl Domains {
    /// Adds a domain on the device that `id` was resolved to, unless there is one, and returns it.
    pub(crate) fn add(&mut self, id: Id) -> Result<Arc<ProtectionDomain>, Errno> {
        if let Some(domain) = self.of(&id) {
            return Ok(domain.clone());
        }
        let domain = ProtectionDomain::new(id, self.0.len())?;
        self.0.push(domain.clone());
        Ok(domain)
    }

    /// Removes the domain that was added last: its device cannot be used.
    pub(crate) fn remove_last(&mut self) {
        self.0.pop();
    }

    /// Returns the domain on the device that `id` was resolved to.
    pub(crate) fn of(&self, id: &Id) -> Option<&Arc<ProtectionDomain>> {
        self.0.iter().find(|domain| domain.is_of(id))
    }

    /// Returns the domains in the order of their numbers.
    pub(crate) fn all(&self) -> &[Arc<ProtectionDomain>] {
        &self.0
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: Nothing refers to the domain any more. If a region could not be deregistered, the
        // device refuses this, and the domain stays.
        unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

fn attributes(context: NonNull<sys::ibv_context>) -> Result<Attributes, Errno> {
    let mut attr = MaybeUninit::<sys::ibv_device_attr>::zeroed();
    // SAFETY: The context is open, and there is room for the attributes.
    by_value(unsafe { sys::ibv_query_device(context.as_ptr(), attr.as_mut_ptr()) })?;
    // SAFETY: All zeroes are valid, and the call has filled it.
    let attr = unsafe { attr.assume_init() };
    // SAFETY: An open context has a device.
    let transport = unsafe { (*(*context.as_ptr()).device).transport_type };
    let windows = sys::IBV_DEVICE_MEM_WINDOW_TYPE_2A | sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    let count = |number| u32::try_from(number).unwrap_or(0);
    Ok(Attributes {
        is_ib: transport == sys::IBV_TRANSPORT_IB,
        is_soft_roce: attr.vendor_id == SOFT_ROCE,
        has_windows: attr.device_cap_flags & windows != 0,
        max_qp_wr: count(attr.max_qp_wr),
        max_cqe: count(attr.max_cqe),
        max_sge: count(attr.max_sge),
        max_mw: count(attr.max_mw),
        max_qp_rd_atom: u8::try_from(attr.max_qp_rd_atom).unwrap_or(u8::MAX),
    })
}
