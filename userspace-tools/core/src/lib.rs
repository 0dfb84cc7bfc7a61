// SPDX-License-Identifier: GPL-2.0

//! The part of the kernel's core crate that user space shares, under the same names: the files of
//! `rust/` that use only `core`, linked from their places. So a file of the initiator that uses no
//! more than these compiles in user space unchanged.
//!
//! | module | what it is |
//! |---|---|
//! | `proto` | the wire protocol |
//! | `logic` | decisions and accounts |
//! | `rdma::space` | how many slots of a send queue are free |
//! | `sync::atomic` | atomics |
//!
//! Their tests run in `tests/host`.
// The tests need more than this crate has.
#![cfg(not(test))]
#![allow(
    clippy::all,
    clippy::pedantic,
    reason = "formatted, linted and documented as a part of the kernel modules"
)]

#[rustfmt::skip]
pub mod logic;
#[rustfmt::skip]
pub mod proto;

/// The pure part of the verbs layer.
pub mod rdma {
    #[rustfmt::skip]
    pub mod space;
}

/// The pure part of the locks and atomics.
pub mod sync {
    #[rustfmt::skip]
    pub mod atomic;
}
