// SPDX-License-Identifier: GPL-2.0

//! A PCI device that lends its memory, and the devices that can reach it.

use super::PciAddress;
use crate::{
    bindings,
    blkdev::BlockDevice,
    rdma::pd::{
        DomainUse,
        ProtectionDomain, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// The number of times that [`Provider::while_bound`] tries to take a device's lock, one each
/// millisecond: far longer than another lease holds it.
const LOCK_TRIES: u32 = 1000;

/// The devices whose DMA must reach a provider's memory: a drive, and perhaps an HCA.
///
/// # Invariants
///
/// The first `count` of `devices` are alive for as long as `'a`.
pub struct Clients<'a> {
    devices: [*mut bindings::device; 2],
    count: usize,
    _alive: PhantomData<&'a BlockDevice>,
    /// Keeps the HCA.
    _hca: Option<DomainUse>,
}

impl<'a> Clients<'a> {
    /// Returns a drive as the only client, for use when a processor copies for the HCA.
    pub fn drive(drive: &'a BlockDevice) -> Self {
        // SAFETY: The device is open.
        let disk = unsafe { bindings::hcablk_c_disk_device(drive.as_raw()) };
        // INVARIANT: An open block device keeps its disk.
        Self {
            devices: [disk, null_mut()],
            count: 1,
            _alive: PhantomData,
            _hca: None,
        }
    }

    /// Returns a drive and the HCA of a protection domain as clients. If the domain was severed,
    /// the drive is the only client.
    pub fn drive_and_hca(drive: &'a BlockDevice, pd: &Arc<ProtectionDomain>) -> Self {
        let mut clients = Self::drive(drive);
        let Ok(used) = pd.begin_use() else {
            return clients;
        };
        // SAFETY: The use of the domain keeps its device.
        let hca = unsafe { (*pd.device()).dma_device };
        // Without a DMA device, a processor does the HCA's DMA.
        if !hca.is_null() {
            // INVARIANT: As above.
            clients.devices[1] = hca;
            clients.count = 2;
            clients._hca = Some(used);
        }
        clients
    }

    fn len(&self) -> crate::ffi::c_int {
        self.count as crate::ffi::c_int
    }
}

/// A reference to a PCI device.
///
/// # Invariants
///
/// `device` is valid; we have a reference to it.
pub struct Provider {
    device: NonNull<bindings::pci_dev>,
}

// SAFETY: PCI devices may be used from any thread.
unsafe impl Send for Provider {}
// SAFETY: As above.
unsafe impl Sync for Provider {}

impl Provider {
    /// Finds the device of this name. May sleep.
    ///
    /// C: `pci_get_domain_bus_and_slot()`.
    pub fn find(address: PciAddress) -> Option<Self> {
        // SAFETY: No requirements.
        let device = unsafe {
            bindings::pci_get_domain_bus_and_slot(
                i32::try_from(address.domain).ok()?,
                address.bus.into(),
                address.devfn.into(),
            )
        };
        // INVARIANT: It came with a reference.
        Some(Self {
            device: NonNull::new(device)?,
        })
    }

    /// Finds the nearest device that lends memory which all of `clients` can reach; a random one of
    /// those that are equally near. Sleeps.
    ///
    /// C: `pci_p2pmem_find_many()`.
    pub fn nearest(clients: &Clients<'_>) -> Option<Self> {
        let mut devices = clients.devices;
        // SAFETY: The devices are alive by the type's invariant.
        let device = unsafe { bindings::pci_p2pmem_find_many(devices.as_mut_ptr(), clients.len()) };
        // INVARIANT: It came with a reference.
        Some(Self {
            device: NonNull::new(device)?,
        })
    }

    /// Returns whether all of `clients` can reach the provider's memory; otherwise the kernel logs
    /// the obstacle. Sleeps.
    ///
    /// C: `pci_p2pdma_distance_many()`.
    pub fn is_reached_by(&self, clients: &Clients<'_>) -> bool {
        let mut devices = clients.devices;
        // SAFETY: All devices are alive by the types' invariants.
        let distance = unsafe {
            bindings::pci_p2pdma_distance_many(
                self.as_raw(),
                devices.as_mut_ptr(),
                clients.len(),
                true,
            )
        };
        distance >= 0
    }

    pub(super) fn as_raw(&self) -> *mut bindings::pci_dev {
        self.device.as_ptr()
    }

    /// Calls `f` with the device's lock held, so that meanwhile no driver is bound to the device or
    /// unbound from it. Sleeps. Fails with `EBUSY` if the lock is held for [`LOCK_TRIES`] ms and a
    /// little more: the driver core holds it while it unbinds the driver, which takes until all I/O
    /// in the device's memory has ended.
    pub(super) fn while_bound<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        // Other queue pairs that lease memory, and sysfs, hold the lock for a moment.
        for _ in 0..LOCK_TRIES {
            // SAFETY: The device is valid by the type's invariant.
            if unsafe { bindings::hcablk_c_device_trylock(self.as_raw()) } {
                let result = f();
                // SAFETY: Locked above, by this thread.
                unsafe { bindings::hcablk_c_device_unlock(self.as_raw()) };
                return result;
            }
            fsleep(Delta::from_millis(1));
        }
        Err(EBUSY)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: The reference is ours.
        unsafe { bindings::pci_dev_put(self.as_raw()) };
    }
}

impl core::fmt::Display for Provider {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // SAFETY: By the type invariant we have a reference to the device, and the name lives
        // until the device is freed.
        let name = unsafe { CStr::from_char_ptr(bindings::hcablk_c_pci_name(self.as_raw())) };
        f.write_str(name.to_str().unwrap_or("?"))
    }
}
crate::printable!(Provider);
