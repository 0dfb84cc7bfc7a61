// SPDX-License-Identifier: GPL-2.0

//! Memory that HCAs and drives reach.
//!
//! - [`pages`]: physically contiguous pages.
//! - [`eager_ring`]: the target's ring for the data of eager writes.
//! - [`read_bounce`]: the initiator's slots for the data of small reads.

pub mod eager_ring;
pub mod pages;
pub mod read_bounce;
