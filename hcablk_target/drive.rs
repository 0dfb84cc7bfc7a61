// SPDX-License-Identifier: GPL-2.0

//! Holds the drives and files behind volumes.
//!
//! - [`backing`]: the device or file behind a volume, and the volume's mode.
//! - [`claims`]: the exported devices and files.
//! - [`reservations`]: persistent reservations, and the files that store them.
//! - [`cache`]: a volume's cache lines in memory.
//! - [`flush_errors`]: errors of flushes that an initiator has not been notified of.
//! - [`flush_failures`]: the failed flushes of a drive, for all its volumes.
//! - [`write_errors`]: errors of acknowledged writes that a disk has not been notified of.
//! - [`host_turns`]: the order of hosts when many requests wait for a drive; [`io_turns`]: holds
//!   these requests.
//! - [`observed`]: the last observed state of a volume.
//! - [`p2p`]: mode p2p, the memory of PCI devices.

pub(crate) mod backing;
pub(crate) mod cache;
pub(crate) mod claims;
pub(crate) mod flush_errors;
pub(crate) mod flush_failures;
mod host_turns;
pub(crate) mod io_turns;
pub(crate) mod observed;
pub(crate) mod p2p;
pub(crate) mod reservations;
pub(crate) mod write_errors;
