// SPDX-License-Identifier: GPL-2.0

//! The initiator: makes remote volumes local disks.
//!
//! A module names those below it in this list and none above; what goes up goes by a trait
//! ([`SessionOwner`](session::SessionOwner), [`ConnectionOwner`](connect::ConnectionOwner),
//! [`QueueOwner`](queue::QueueOwner)).
//!
//! - [`config`]: the directories under `/sys/kernel/config/hcablk`.
//! - [`device`]: a configured disk and its states.
//! - [`session`]: the connection behind a disk: its queues and its end.
//! - [`connect`]: how a queue pair comes up.
//! - [`head`]: what a disk keeps over its sessions.
//! - [`queue`]: the I/O path.
//! - [`batching`]: which answers interrupt: a pure state machine.
//! - [`shape`]: how large queues and requests are.
//! - [`settings`]: what users set.
//! - [`stats`]: what is counted.
//! - [`identity`]: by what a target tells a disk's connections.
//! - [`deadline`]: until when something is waited for.
//! - [`failure`]: everything that can go wrong, in words and as error codes.

mod admin;
mod batching;
mod config;
mod connect;
mod deadline;
mod device;
mod failure;
mod head;
mod identity;
mod queue;
mod session;
mod settings;
mod shape;
mod stats;

use device::WorkQueues;
use hcablk_core::{
    configfs::Subsystem,
    proto, // `last_sessions` names it from the root, as its tests do.
    sync::{
        Drained,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

module! {
    type: Initiator,
    name: "hcablk",
    authors: ["The hcablk developers"],
    description: "Shared block device over RDMA: initiator",
    license: "GPL",
}

/// What the module holds, dropped in this order: when the directories are gone
/// no new session begins, attempts to connect again are waited for, which need the other queue, and
/// then the ends of the old ones.
struct Initiator {
    _directories: Subsystem,
    _reconnect: Drained,
    _teardown: Drained,
    _keep_alive: Drained,
}

impl kernel::Module for Initiator {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let teardown = Arc::new(WorkQueue::new(c"hcablk")?, GFP_KERNEL)?;
        let reconnect = Arc::new(WorkQueue::new(c"hcablk_reconnect")?, GFP_KERNEL)?;
        let keep_alive = Arc::new(WorkQueue::new(c"hcablk_keep_alive")?, GFP_KERNEL)?;
        let workqueues = WorkQueues {
            teardown: teardown.clone(),
            reconnect: reconnect.clone(),
            keep_alive: keep_alive.clone(),
        };
        let root = Arc::new(config::Root::new(workqueues, module)?, GFP_KERNEL)?;
        Ok(Self {
            _directories: Subsystem::register(c"hcablk", root, module)?,
            _reconnect: Drained(reconnect),
            _teardown: Drained(teardown),
            _keep_alive: Drained(keep_alive),
        })
    }
}
