// SPDX-License-Identifier: GPL-2.0

//! IP addresses as connection endpoints.

use crate::bindings;
use core::{
    mem::ManuallyDrop,
    net::{
        IpAddr,
        SocketAddr, //
    }, //
};
use kernel::prelude::*;

/// A socket address in the kernel's form.
pub(super) union RawAddress {
    v4: ManuallyDrop<bindings::sockaddr_in>,
    v6: ManuallyDrop<bindings::sockaddr_in6>,
}

impl RawAddress {
    /// Converts an address.
    pub(super) fn new(address: &SocketAddr) -> Self {
        match address.ip() {
            IpAddr::V4(ip) => Self {
                v4: ManuallyDrop::new(bindings::sockaddr_in {
                    sin_family: bindings::AF_INET as u16,
                    sin_port: address.port().to_be(),
                    sin_addr: bindings::in_addr {
                        s_addr: u32::from_ne_bytes(ip.octets()),
                    },
                    ..bindings::zeroed()
                }),
            },
            IpAddr::V6(ip) => Self {
                v6: ManuallyDrop::new(bindings::sockaddr_in6 {
                    sin6_family: bindings::AF_INET6 as u16,
                    sin6_port: address.port().to_be(),
                    sin6_addr: bindings::in6_addr {
                        in6_u: bindings::in6_addr__bindgen_ty_1 {
                            u6_addr8: ip.octets(),
                        },
                    },
                    ..bindings::zeroed()
                }),
            },
        }
    }

    /// Returns the pointer that C functions take.
    pub(super) fn as_mut_ptr(&mut self) -> *mut bindings::sockaddr {
        (&raw mut *self).cast()
    }
}

/// Reads an IPv4 or IPv6 address.
pub fn parse_ip(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|_| EINVAL)
}
