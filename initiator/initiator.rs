// SPDX-License-Identifier: GPL-2.0

//! The initiator: makes remote volumes local disks.
//!
//! Each module uses those below it in this list. A queue has its session, and a session its device,
//! which it tells how it ends.
//!
//! - [`config`]: the directories under `/sys/kernel/config/hcablk`.
//! - [`discovery`]: the directories under `/sys/kernel/config/hcablk_discovery`.
//! - [`device`]: a configured disk and its states.
//! - [`session`]: the connection behind a disk: its queues and its end.
//! - [`connect`]: how a queue pair comes up.
//! - [`head`]: what a disk keeps over its sessions.
//! - [`io`]: the I/O path.
//! - [`admin`]: the admin queue pair of a path.
//! - [`batching`]: which answers interrupt: a pure state machine.
//! - [`unflushed`]: which acknowledged writes no flush has covered.
//! - [`shape`]: how large queues and requests are.
//! - [`settings`]: what users set.
//! - [`workqueues`]: the workqueues of each path, and who destroys them.
//! - [`stats`]: what is counted.
//! - [`keys`]: by which keys this host and a target prove who they are.
//! - [`identity`]: by what a target tells a disk's connections.
//! - [`failure`]: everything that can go wrong, in words and as error codes.

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

/// What the module holds, dropped in this order: when the directories are gone no new session
/// begins; attempts to connect again, and then the ends of sessions, are waited for.
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
