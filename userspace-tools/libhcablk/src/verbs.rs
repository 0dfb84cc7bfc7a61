// SPDX-License-Identifier: GPL-2.0

//! A safe layer over rdma-core, with the unsafe code of this crate. Outside of it is only
//! `Volume::register()`, an unsafe function with this layer's contract.
//!
//! - [`cm`]: connection identifiers and their events.
//! - [`device`]: a device's protection domain, and its capabilities.
//! - [`memory`]: registered memory, windows on it, and the buffers of applications.
//! - [`queue`]: completion queues and queue pairs.
//!
//! # References
//!
//! ```text
//!  QueuePair ──► CompletionQueue ──► ProtectionDomain ──► Id (resolved, never connected)
//!  Window, Region ───────────────────────────┘
//! ```
//!
//! An arrow is a counted reference. librdmacm closes a device when the last identifier that was
//! resolved to it is destroyed: so each protection domain holds an identifier.
//!
//! Memory is freed only after its region was deregistered, which an RDMA device refuses while
//! anything may reach the region: then the memory is leaked. So no work request, however late,
//! reaches freed memory, whichever calls the users of this layer make.
#![expect(unsafe_code, reason = "it calls rdma-core")]

pub(crate) mod cm;
pub(crate) mod device;
pub(crate) mod memory;
pub(crate) mod queue;

/// The output of bindgen for rdma-core's headers.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    reason = "generated"
)]
mod sys {
    include!(concat!(env!("OUT_DIR"), "/rdma.rs"));
}

use nix::errno::Errno;
use std::{ffi::c_int, ptr::NonNull};

/// Converts the result of a function that returns -1 and sets `errno` when it fails.
fn by_errno(result: c_int) -> Result<(), Errno> {
    Errno::result(result).map(drop)
}

/// Converts the result of a verb, which is the error number; some verbs return -1 and set `errno`.
fn by_value(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        error => Err(Errno::from_raw(error.abs())),
    }
}

/// Returns the object that a function has made, or the error in `errno` if it returned null.
fn made<T>(object: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(object).ok_or_else(Errno::last)
}
