// SPDX-License-Identifier: GPL-2.0

//! The module's parameters.

use core::borrow::Borrow;

/// Returns whether write data is fetched into registered memory on every device.
pub(crate) fn force_mr() -> bool {
    // A value on some kernels, a reference on others.
    *Borrow::<u8>::borrow(&crate::module_parameters::force_mr.value()) != 0
}

/// Returns whether write data may be fetched by RDMA READ.
pub(crate) fn rdma_read() -> bool {
    *Borrow::<u8>::borrow(&crate::module_parameters::rdma_read.value()) != 0
}

/// Returns how many connection requests may wait for their turn at the same time; by default those
/// of 32 initiators with 128 queue pairs each.
pub(crate) fn pending_connects() -> u32 {
    *Borrow::<u32>::borrow(&crate::module_parameters::pending_connects.value())
}

/// Returns whether an RDMA device without DMA of its own is taken for one that does DMA
/// among PCI devices.
pub(crate) fn p2p_virtual() -> bool {
    *Borrow::<u8>::borrow(&crate::module_parameters::p2p_virtual.value()) != 0
}
