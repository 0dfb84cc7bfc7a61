// SPDX-License-Identifier: GPL-2.0

//! The parts of the kernel modules that use nothing but `core`, linked in from
//! where they live, so that their tests run on the host in seconds.

mod proto;
pub mod decoders;
mod mq;
mod space;
mod account;
mod admission;
mod batching;
mod address;
mod buckets;
mod check;
mod choice;
mod cost;
mod flush_errors;
mod grains;
mod layout;
mod share;
#[cfg(test)]
mod fuzz;
