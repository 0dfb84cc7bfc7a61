// SPDX-License-Identifier: GPL-2.0

//! Containers of a fixed size: no operation allocates.
//!
//! - [`fifo`]: a queue.
//! - [`slots`]: a table for objects that the hardware works on.

pub mod fifo;
pub mod slots;
