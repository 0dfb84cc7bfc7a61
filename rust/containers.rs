// SPDX-License-Identifier: GPL-2.0

//! Containers of a fixed size: no operation allocates.
//!
//! - [`array_vec`]: a short vector on the stack.
//! - [`fifo`]: a queue.
//! - [`slots`]: a table for objects that the hardware works on.

pub mod array_vec;
pub mod fifo;
pub mod slots;
