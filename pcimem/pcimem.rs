// SPDX-License-Identifier: GPL-2.0

//! A driver that lends a PCI device's memory to peers, and does nothing else.
//!
//! Any device with a large memory BAR and no better use for it can stand between
//! drives and HCAs: an accelerator, an NVRAM card, an `ivshmem-plain` device of
//! QEMU. The kernel's p2pmem users find it from then on (`p2pmem` in its sysfs
//! directory), the target of hcablk among them.
//!
//! It binds to no device by itself, since it cannot know the purpose of a device. The administrator
//! binds each device by name:
//!
//! ```text
//! echo hcablk_pcimem > /sys/bus/pci/devices/0000:03:00.0/driver_override
//! echo 0000:03:00.0 > /sys/bus/pci/drivers_probe
//! ```

use hcablk_core::p2p::publish::publish;
use kernel::{
    device::Core,
    pci,
    prelude::*, //
};

/// Matches no existing device: identifiers have 16 bits. The table must have an entry.
const NOTHING: pci::DeviceId = pci::DeviceId::from_id(pci::Vendor::REDHAT, 0xffff_0000);

#[cfg(hcablk_kernel_7_3)]
kernel::pci_device_table!(TABLE, (), [(NOTHING, &())]);

#[cfg(not(hcablk_kernel_7_3))]
kernel::pci_device_table!(TABLE, MODULE_TABLE, (), [(NOTHING, ())]);

#[cfg(hcablk_kernel_7_3)]
type Info<'a> = Option<&'a ()>;
#[cfg(not(hcablk_kernel_7_3))]
type Info<'a> = &'a ();

struct PciMemory;

impl pci::Driver for PciMemory {
    type IdInfo = ();
    type Data<'bound> = Self;
    const ID_TABLE: pci::IdTable<()> = &TABLE;

    fn probe<'bound>(
        device: &'bound pci::Device<Core<'_>>,
        _info: Info<'bound>,
    ) -> impl PinInit<Self, Error> + 'bound {
        match publish(device) {
            Ok(bytes) => {
                dev_info!(device, "lends {} MiB to peers\n", bytes >> 20);
                Ok(Self)
            }
            Err(e) => {
                match e {
                    ENODEV => dev_err!(device, "has no memory to lend\n"),
                    EINVAL => dev_err!(
                        device,
                        "the size of its memory is not a multiple of 2 MiB\n"
                    ),
                    _ => dev_err!(device, "cannot lend its memory: error {}\n", e.to_errno()),
                }
                Err(e)
            }
        }
    }
}

kernel::module_pci_driver! {
    type: PciMemory,
    name: "hcablk_pcimem",
    authors: ["The hcablk developers"],
    description: "Lends a PCI device's memory to peers",
    license: "GPL",
}
