// SPDX-License-Identifier: GPL-2.0

//! What volumes are made of, and the drive's part of requests.
//!
//! - [`backing`]: what a volume is made of, and its mode.
//! - [`claims`]: what drives and files are exported.
//! - [`reservations`]: persistent reservations, and the files that keep them.
//! - [`submit`]: the drive's part of a request, by mode.
//! - [`cache`]: a volume's lines of data in memory.
//! - [`visit`]: the part of requests in these.
//! - [`completion`]: what all of this asks of whoever has requests, and tells it.
//! - [`flush_errors`]: errors of flushes that an initiator has yet to be told.
//! - [`flush_failures`]: which flushes of a drive have failed, for all who write there.
//! - [`write_errors`]: which errors of acknowledged writes a session id has yet to be told.
//! - [`observed`]: what a volume was when somebody looked last.
//! - [`p2p`]: mode p2p, the memory of PCI devices; [`lease`]: what a queue pair borrows of it.

pub(crate) mod backing;
pub(crate) mod cache;
pub(crate) mod claims;
mod completion;
pub(crate) mod flush_errors;
mod flush_failures;
pub(crate) mod lease;
pub(crate) mod observed;
pub(crate) mod p2p;
pub(crate) mod reservations;
pub(crate) mod submit;
pub(crate) mod visit;
pub(crate) mod write_errors;

pub(crate) use self::completion::Completion;
