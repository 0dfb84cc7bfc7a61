// SPDX-License-Identifier: GPL-2.0

//! What the target exports, where, and to whom.
//!
//! - [`registry`]: which volumes and sessions there are.
//! - [`volume`]: an exported device and who may use it.
//! - [`port`]: an address that is listened on.
//! - [`admission`]: whether a connection request is granted.
//! - [`claims`]: what drives and files are exported.

pub(crate) mod admission;
pub(crate) mod claims;
pub(crate) mod port;
pub(crate) mod registry;
pub(crate) mod volume;
