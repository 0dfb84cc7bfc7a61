// SPDX-License-Identifier: GPL-2.0

//! The initiator: makes remote volumes local disks.
//!
//! Each module uses those below it in this list. A queue refers to its session, and a session to
//! its device, which it notifies of its end.
//!
//! - [`config`]: the directories under `/sys/kernel/config/hcablk`.
//! - [`discovery`]: the directories under `/sys/kernel/config/hcablk_discovery`.
//! - [`device`]: a configured disk and its states.
//! - [`session`]: the connection behind a disk: its queues and its end.
//! - [`connect`]: how a queue pair comes up.
//! - [`head`]: the part of a disk that outlives its sessions.
//! - [`io`]: the I/O path.
//! - [`admin`]: the admin queue pair of a path.
//! - [`batching`]: decides which responses interrupt: a pure state machine.
//! - [`unflushed`]: tracks acknowledged writes that no flush has covered.
//! - [`shape`]: the sizes of queues and requests.
//! - [`settings`]: the user's settings and their defaults.
//! - [`workqueues`]: the workqueues of each path, and their destruction.
//! - [`stats`]: counters and histograms.
//! - [`keys`]: the keys with which this host and a target authenticate each other.
//! - [`identity`]: the identity of a disk's connections at a target.
//! - [`failure`]: all failures of a connection, as messages and as error codes.

mod admin;
mod batching;
mod config;
mod connect;
mod device;
mod discovery;
mod failure;
mod head;
mod identity;
mod io;
mod keys;
mod session;
mod settings;
mod shape;
mod stats;
mod unflushed;
mod workqueues;

use hcablk_core::{
    configfs::Subsystem,
    proto, // `last_sessions` names it from the root, as its tests do.
    system::hibernation::NoHibernation,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use workqueues::{
    AllGone,
    AllQueues, //
};

module! {
    type: Initiator,
    name: "hcablk",
    authors: ["The hcablk developers"],
    description: "Shared block device over RDMA: initiator",
    license: "GPL",
}

/// The parts of the module, dropped in this order: after the directories are gone no new session
/// starts; then the module waits for reconnection attempts, and then for the ends of sessions.
struct Initiator {
    _no_hibernation: NoHibernation,
    _directories: Subsystem,
    _discovery: Subsystem,
    _queues: AllGone,
}

impl kernel::Module for Initiator {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let queues = AllQueues::new()?;
        let root = Arc::new(config::Root::new(queues.clone(), module)?, GFP_KERNEL)?;
        Ok(Self {
            _no_hibernation: NoHibernation::while_there_are(&head::DISKS)?,
            _discovery: {
                let root = Arc::new(discovery::Root, GFP_KERNEL)?;
                Subsystem::register(c"hcablk_discovery", root, module)?
            },
            _directories: Subsystem::register(c"hcablk", root, module)?,
            _queues: AllGone(queues),
        })
    }
}
