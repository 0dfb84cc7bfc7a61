// SPDX-License-Identifier: GPL-2.0

//! What the target exports, where, and to whom.
//!
//! - [`registry`]: which volumes and sessions there are.
//! - [`volume`]: an exported device and who may use it.
//! - [`port`]: an address that is listened on; [`portals`]: which of them a host is told.
//! - [`connect`]: how a queue pair comes up; [`attach`]: how a session gets a volume.
//! - [`admission`]: whether a connection request is granted.
//! - [`challenges`]: who was asked to prove who it is; [`keys`]: by what it can.
//! - [`hosts`]: who may use a volume, and who is evicted; [`instances`]: which start of a host is
//!   its newest.

pub(crate) mod admission;
pub(crate) mod attach;
pub(crate) mod challenges;
pub(crate) mod connect;
mod drive_waiters;
pub(crate) mod hosts;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod port;
pub(crate) mod portals;
pub(crate) mod registry;
pub(crate) mod volume;
