// SPDX-License-Identifier: GPL-2.0

//! What the kernel's printing macros take.

use core::net::SocketAddr;
use hcablk_core::{
    printable,
    proto::name::HostId, //
};

/// A host id for the kernel's printing macros.
pub(crate) struct Printed(pub(crate) HostId);

impl core::fmt::Display for Printed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}
printable!(Printed);

/// An address for the kernel's printing macros.
pub(crate) struct PrintedAddress(pub(crate) SocketAddr);

impl core::fmt::Display for PrintedAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}
printable!(PrintedAddress);
