// SPDX-License-Identifier: GPL-2.0

//! A client of hcablk volumes in user space, over RDMA verbs, without a kernel module of hcablk on
//! this side. It speaks the kernel driver's protocol, with the same targets.
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
//! | `volume`, `session`, `opening`, `identity` | an open volume; its state that outlives a session, and its thread; how sessions are made; their ids |
//! | `connect`, `crypto`, `keys` | how queue pairs come up, and how both sides prove who they are |
//! | `admin` | the admin queue pair, with the state machine of the kernel's driver |
//! | `messages` | message buffers, of the admin queue pair and of queues |
//! | `queue`, `request` | the I/O path, and what applications submit |
//! | `driver` | further state machines of the kernel's driver |
//! | `plan`, `engine`, `times` | pure code: how data moves, the consequences of responses, and requests without a timely response |
//! | `verbs` | a safe layer over rdma-core, with nearly all unsafe code |
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
