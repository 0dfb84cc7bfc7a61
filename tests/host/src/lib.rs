// SPDX-License-Identifier: GPL-2.0

//! The parts of the kernel modules that use nothing but `core`, linked in from their folders,
//! so that their tests run on the host in seconds.

// The files refer to the core and the kernel under these names, which this crate provides, too.
#[cfg(test)]
extern crate self as hcablk_core;
#[cfg(test)]
extern crate self as kernel;

mod proto;
pub mod decoders;
mod crypto;
mod proofs;
mod mq;
mod space;
#[cfg(test)]
mod account;
#[cfg(test)]
mod admin_state;
mod admission;
mod batching;
#[cfg(test)]
mod array_vec;
mod address;
#[cfg(test)]
mod association;
mod buckets;
mod challenges;
#[cfg(test)]
mod claimant;
mod change_turns;
mod choice;
mod cost;
#[cfg(test)]
mod drive_waiters;
mod flush_errors;
#[cfg(test)]
mod host_turns;
mod instances;
mod split;
mod last_sessions;
mod layout;
mod life;
mod loss;
#[cfg(test)]
mod lost_writes;
mod pace;
mod portals;
mod fair_share;
mod reservation;
mod session_state;
#[cfg(test)]
mod atomic;
#[cfg(test)]
mod sync {
    pub(crate) use crate::atomic;
}
#[cfg(test)]
mod unflushed;
mod validate;
#[cfg(test)]
mod shape;
#[cfg(test)]
mod statuses;
#[cfg(test)]
mod verbs;
#[cfg(test)]
use statuses::blkdev;
#[cfg(test)]
use verbs::{
    failure,
    memory,
    page,
    rdma,
    sglist, //
};
#[cfg(test)]
mod fuzz;
