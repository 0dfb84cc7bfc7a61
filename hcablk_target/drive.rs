// SPDX-License-Identifier: GPL-2.0

//! What volumes are made of.
//!
//! - [`backing`]: what a volume is made of, and its mode.
//! - [`claims`]: what drives and files are exported.
//! - [`reservations`]: persistent reservations, and the files that keep them.
//! - [`cache`]: a volume's lines of data in memory.
//! - [`flush_errors`]: errors of flushes that an initiator has yet to be told.
//! - [`flush_failures`]: which flushes of a drive have failed, for all who write there.
//! - [`write_errors`]: which errors of acknowledged writes a session id has yet to be told.
//! - [`host_turns`]: whose request is next when many wait for a drive.
//! - [`io_turns`]: the requests that do.
//! - [`observed`]: what a volume was when somebody looked last.
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
