// SPDX-License-Identifier: GPL-2.0

//! The target: serves block devices and files to initiators.
//!
//! Each module names those that follow in this list only; what goes up goes by a trait or a
//! callback. But for [`parameters`]: `module!` has them in this one.
//!
//! - [`config`]: the directories under `/sys/kernel/config/hcablk_target`.
//! - [`export`]: what is exported, where, and to whom, and how connections come up.
//! - [`session`]: an initiator's queue pairs, and their end.
//! - [`admin`]: the admin queue pair of a session.
//! - [`io`]: the I/O path: queue pairs and their requests.
//! - [`drive`]: what volumes are made of: drives, files, caches, peer memory.
//! - [`memory`]: the memory of all sessions, its limit, and who has how much of it.
//! - [`stats`]: what is counted.

mod admin;
mod config;
mod drive;
mod export;
mod io;
mod memory;
mod session;
mod stats;

use core::borrow::Borrow;
use hcablk_core::{
    configfs::Subsystem,
    proto, // `admission` and `validate` name it from the root, as their tests do.
    sync::{
        Drained,
        WorkQueue, //
    },
    system::hibernation::NoHibernation,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

module! {
    type: Target,
    name: "hcablk_target",
    authors: ["The hcablk developers"],
    description: "Shared block device over RDMA: target",
    license: "GPL",
    params: {
        force_mr: u8 {
            default: 0,
            description: "1: fetch write data as on iWARP, whatever the device; for tests",
        },
        rdma_read: u8 {
            default: 1,
            description: "0: post no RDMA READ, so that write data comes with requests or in the eager ring",
        },
        pending_connects: u32 {
            default: 4096,
            description: "connection requests that may be under way; the others are refused",
        },
        p2p_virtual: u8 {
            default: 0,
            description: "1: give peer memory to soft-RoCE and siw as to an HCA; x86, for tests",
        },
    },
}

/// Returns whether write data is fetched into registered memory on every device.
pub(crate) fn force_mr() -> bool {
    // A value on some kernels, a reference on others.
    *Borrow::<u8>::borrow(&module_parameters::force_mr.value()) != 0
}

/// Returns whether write data may be fetched by RDMA READ.
pub(crate) fn rdma_read() -> bool {
    *Borrow::<u8>::borrow(&module_parameters::rdma_read.value()) != 0
}

/// Returns how many connection requests may wait for their turn at the same time; by default those
/// of 32 initiators with 128 queue pairs each.
pub(crate) fn pending_connects() -> u32 {
    *Borrow::<u32>::borrow(&module_parameters::pending_connects.value())
}

/// Returns whether an RDMA device without DMA of its own is taken for one that does DMA
/// among PCI devices.
pub(crate) fn p2p_virtual() -> bool {
    *Borrow::<u8>::borrow(&module_parameters::p2p_virtual.value()) != 0
}

/// What the module holds, dropped in this order: when the directories are gone nobody connects any
/// more, then connections that were coming up, changes of reservations and the ends of sessions are
/// waited for, and then there are no requests, no volumes with workqueues of their own and no
/// completions left.
struct Target {
    _no_hibernation: NoHibernation,
    _directories: Subsystem,
    _open: Open,
    _connect: Drained,
    _sessions: Sessions,
    _changes: Drained,
    _ends: Drained,
    _completions: Drained,
    _software: Drained,
    _work: Drained,
    _admin: Drained,
}

/// Lets no volume be attached any more when it is dropped.
struct Open(Arc<export::registry::Registry>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.shut();
    }
}

/// Ends what is left of sessions without volumes when it is dropped: those with some are gone with
/// the volumes.
struct Sessions(Arc<export::registry::Registry>);

impl Drop for Sessions {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

impl kernel::Module for Target {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let queues = export::registry::WorkQueues {
            control: Arc::new(WorkQueue::new(c"hcablk_target")?, GFP_KERNEL)?,
            connect: Arc::new(WorkQueue::new(c"hcablk_connect")?, GFP_KERNEL)?,
            admin: Arc::new(WorkQueue::new(c"hcablk_admin")?, GFP_KERNEL)?,
            completions: Arc::new(WorkQueue::for_completions(c"hcablk_queues")?, GFP_KERNEL)?,
            software: Arc::new(WorkQueue::new(c"hcablk_queuesw")?, GFP_KERNEL)?,
            changes: Arc::new(WorkQueue::new(c"hcablk_changes")?, GFP_KERNEL)?,
            ends: Arc::new(WorkQueue::new(c"hcablk_ends")?, GFP_KERNEL)?,
        };
        let registry = export::registry::Registry::new(queues.clone())?;
        let sessions = registry.clone();
        let root = Arc::new(config::Root::new(registry), GFP_KERNEL)?;
        Ok(Self {
            _no_hibernation: NoHibernation::while_there_are(&drive::backing::EXPORTS)?,
            _directories: Subsystem::register(c"hcablk_target", root, module)?,
            _open: Open(sessions.clone()),
            _connect: Drained(queues.connect),
            _sessions: Sessions(sessions),
            _changes: Drained(queues.changes),
            _ends: Drained(queues.ends),
            _completions: Drained(queues.completions),
            _software: Drained(queues.software),
            _work: Drained(queues.control),
            _admin: Drained(queues.admin),
        })
    }
}
