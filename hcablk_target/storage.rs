// SPDX-License-Identifier: GPL-2.0

//! What volumes are made of, and the drive's part of requests.
//!
//! - [`backing`]: what a volume is made of, and its mode.
//! - [`submit`]: the drive's part of a request, by mode.
//! - [`cache`]: a volume's lines of data in memory.
//! - [`in_lines`]: where the data of reads is that go by a cache in peer memory.
//! - [`flush_errors`]: errors of flushes that an initiator has yet to be told.
//! - [`write_errors`]: which errors of acknowledged writes a session id has yet to be told.
//! - [`p2p`]: mode p2p, the memory of PCI devices.

pub(crate) mod backing;
pub(crate) mod cache;
pub(crate) mod flush_errors;
pub(crate) mod in_lines;
pub(crate) mod p2p;
pub(crate) mod submit;
pub(crate) mod write_errors;
