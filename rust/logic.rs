// SPDX-License-Identifier: GPL-2.0

//! Decisions and accounts that use nothing but `core`: their tests run on the host, and programs
//! in user space share them.
//!
//! - [`change_turns`]: the order in which hosts change a drive's reservations.
//! - [`fair_share`]: how many shared buffers each queue pair may borrow.
//! - [`mq`]: the Multi-Queue replacement algorithm, which decides which lines a cache keeps.
//! - [`reservation`]: the persistent reservations of a drive.
//! - [`session_state`]: the states of a session, the same on both sides.
//!
//! [`proto`](crate::proto), the format of messages, uses nothing but `core` either.

pub mod change_turns;
pub mod fair_share;
pub mod mq;
pub mod reservation;
pub mod session_state;
