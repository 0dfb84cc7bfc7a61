// SPDX-License-Identifier: GPL-2.0

//! Making a PCI device's memory available to peers, for its driver.

use crate::bindings;
use kernel::{
    device::Core,
    error::to_result,
    pci,
    prelude::*, //
};

/// BARs that a device can have.
const BARS: core::ops::Range<crate::ffi::c_int> = 0..6;

/// Publishes the device's largest memory BAR as peer memory until its driver is unbound: then the
/// kernel waits until all of it was returned. Returns its size in bytes. Sleeps.
///
/// Errors, among others: `ENODEV` (no memory BAR), `EINVAL` (the BAR's size is not a multiple of
/// 2 MiB, the unit of device memory).
///
/// C: `pci_p2pdma_add_resource()`, `pci_p2pmem_publish()`.
pub fn publish(device: &pci::Device<Core<'_>>) -> Result<u64> {
    device.enable_device_mem()?;
    let raw: *mut bindings::pci_dev = core::ptr::from_ref(device).cast_mut().cast();
    // SAFETY: `pci::Device` is a transparent wrapper of the C structure.
    let length = |bar| unsafe {
        let flags = bindings::hcablk_c_pci_resource_flags(raw, bar);
        if flags & bindings::IORESOURCE_MEM as crate::ffi::c_ulong == 0 {
            0
        } else {
            bindings::hcablk_c_pci_resource_len(raw, bar)
        }
    };
    let bar = BARS.max_by_key(|bar| length(*bar)).ok_or(ENODEV)?;
    let bytes = length(bar);
    if bytes == 0 {
        return Err(ENODEV);
    }
    // SAFETY: The device is being probed by its driver, with its memory enabled;
    // the kernel removes the added memory when the driver is unbound.
    unsafe {
        to_result(bindings::pci_p2pdma_add_resource(raw, bar, 0, 0))?;
        bindings::pci_p2pmem_publish(raw, true);
    }
    Ok(bytes)
}
