// SPDX-License-Identifier: GPL-2.0

//! Peer-to-peer DMA: memory on a PCI device that drives and HCAs reach without
//! host RAM.
//!
//! - [`address`]: the name of a PCI device.
//! - [`provider`]: a device that lends its memory, and the devices that can reach it.
//! - [`memory`]: a piece of that memory, for drives, HCAs and copies.
//! - [`lease`]: leases of that memory, and their recall.
//! - [`publish`]: making a device's memory available, for drivers.
//!
//! C header: [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h); see also
//! [`Documentation/driver-api/pci/p2pdma.rst`](srctree/Documentation/driver-api/pci/p2pdma.rst).

pub mod address;
pub mod lease;
pub mod memory;
pub mod provider;
pub mod publish;

pub use self::{
    address::PciAddress,
    lease::{
        PeerLease,
        Watch, //
    },
    memory::PeerMemory,
    provider::{
        Clients,
        Provider, //
    },
};
