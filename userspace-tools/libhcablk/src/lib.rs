// SPDX-License-Identifier: GPL-2.0

//! A client of hcablk volumes in user space: by RDMA verbs, without a kernel module of hcablk's on this
//! side. It speaks the same protocol with the same target as the kernel's driver.
//!
//! ```no_run
//! use libhcablk::{Options, Request, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = std::fs::read_to_string("/etc/hcablk/host_id")?;
//! let options = Options::new("10.77.0.1".parse()?, "vol1", host.trim())?;
//! let volume = Volume::open(&options)?;
//! let mut queue = volume.take_queue().ok_or("no queue")?;
//!
//! // Synchronously, from memory of any kind:
//! queue.write_at(&[7; 4096], 0)?;
//! queue.flush()?;
//!
//! // Asynchronously, in memory that the target reaches while the request is under way:
//! let buffer = volume.memory(1 << 20)?;
//! queue.submit(Request::read(0, buffer)).map_err(|refused| refused.0)?;
//! while queue.poll() == 0 {}
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | what it is |
//! |---|---|
//! | `volume`, `session`, `opening`, `identity` | an open volume; what it keeps over its sessions, and its thread; how sessions are made, and named |
//! | `connect`, `crypto`, `keys` | how queue pairs come up, and how both sides prove who they are |
//! | `admin` | the admin queue pair, whose states are the kernel driver's |
//! | `messages` | buffers of messages, of that and of queues |
//! | `queue`, `request` | the I/O path, and what applications submit |
//! | `driver` | state machines that are the kernel driver's |
//! | `plan`, `engine`, `times` | how data moves, the consequences of responses, and requests without a timely response: pure |
//! | `verbs` | rdma-core; the only unsafe code |
//!
//! `docs/design/user-client.md` lists the features that exist and those that do not.

mod admin;
#[cfg(test)]
mod allocations;
mod connect;
mod crypto;
mod driver;
mod engine;
mod failure;
mod identity;
mod keys;
mod messages;
mod opening;
mod options;
mod past;
mod plan;
mod queue;
mod request;
mod session;
mod times;
mod verbs;
mod volume;

pub use crate::{
    failure::{ConnectStep, Failure, RequestError},
    keys::{BadKey, Key},
    options::{BadName, BadOption, Options, PORT},
    past::{BadPast, Past},
    queue::Queue,
    request::{Completed, Flag, Notice, Request},
    verbs::memory::Buffer,
    volume::Volume,
};
/// Why a target refuses a session.
pub use hcablk_core::proto::connect::Reason;
