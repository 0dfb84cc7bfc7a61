// SPDX-License-Identifier: GPL-2.0

//! What user space shares with the kernel's core crate, under the same names: the files of `rust/`
//! that use nothing but `core`, by links to where they live. So a file of the initiator that uses
//! no more than these is compiled in user space as it is.
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

/// What of the verbs layer is pure.
pub mod rdma {
    #[rustfmt::skip]
    pub mod space;
}

/// What of the locks and atomics is pure.
pub mod sync {
    #[rustfmt::skip]
    pub mod atomic;
}
