// SPDX-License-Identifier: GPL-2.0

//! The pure state machines of the kernel's driver, linked from its files.
#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "formatted, linted and used as a part of the kernel modules"
)]

#[rustfmt::skip]
pub(crate) mod loss;
#[rustfmt::skip]
pub(crate) mod pace;
#[rustfmt::skip]
pub(crate) mod unflushed;
