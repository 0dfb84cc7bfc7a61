// SPDX-License-Identifier: GPL-2.0

//! Manages what the target exports, at which addresses, and to which hosts.
//!
//! - [`registry`]: the lists of volumes and sessions.
//! - [`volume`]: an exported device or file, and the hosts that may use it.
//! - [`port`]: an address at which the target listens; [`portals`]: the addresses reported to a
//!   host.
//! - [`connect`]: how a queue pair is established; [`attach`]: how a session gets a volume.
//! - [`admission`]: whether a connection request is granted.
//! - [`challenges`]: the initiators that were asked for a proof of identity; [`keys`]: the keys for
//!   proofs.
//! - [`hosts`]: the hosts that may use a volume, and the evicted ones; [`instances`]: tracks the
//!   newest instance of each host.

pub(crate) mod admission;
pub(crate) mod attach;
pub(crate) mod challenges;
pub(crate) mod connect;
mod drive_waiters;
mod ending_hosts;
pub(crate) mod hosts;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod port;
pub(crate) mod portals;
pub(crate) mod registry;
pub(crate) mod volume;
