// SPDX-License-Identifier: GPL-2.0

//! The target: serves block devices and files to initiators.
//!
//! Each module uses the modules that follow it in this list. Some name types of earlier ones as
//! well: queue pairs and admin queue pairs their session, a session its volumes and the registry,
//! drives the parts of a request, and pools of memory their queue pair. All read the parameters of
//! the module through functions in this file.
//!
//! - [`config`]: the directories under `/sys/kernel/config/hcablk_target`.
//! - [`export`]: the exported volumes, the addresses, the hosts, and their connections.
//! - [`session`]: an initiator's queue pairs, and their end.
//! - [`admin`]: the admin queue pair of a session.
//! - [`io`]: the I/O path: queue pairs and their requests.
//! - [`drive`]: the drives, files, caches and peer memory behind volumes.
//! - [`memory`]: the memory of all sessions, its limit, and its owners.
//! - [`stats`]: the counters.

mod admin;
mod claimant;
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
            description: "1: read write data into registered memory on every device, as on iWARP; for tests",
        },
        rdma_read: u8 {
            default: 1,
            description: "0: post no RDMA READ, so that write data comes with requests or in the eager ring",
        },
        pending_connects: u32 {
            default: 4096,
            description: "maximum number of connection requests that wait; further ones are refused",
        },
        p2p_virtual: u8 {
            default: 0,
            description: "1: treat soft-RoCE and siw as HCAs that reach peer memory; x86, for tests",
        },
    },
}

/// Returns whether RDMA READs of write data go into registered memory on every device.
pub(crate) fn force_mr() -> bool {
    // `value()` returns a value on some kernels, a reference on others.
    *Borrow::<u8>::borrow(&module_parameters::force_mr.value()) != 0
}

/// Returns whether RDMA READs may be posted for write data.
pub(crate) fn rdma_read() -> bool {
    *Borrow::<u8>::borrow(&module_parameters::rdma_read.value()) != 0
}

/// Returns the most connection requests that may wait at the same time; by default those of 32
/// initiators with 128 queue pairs each.
pub(crate) fn pending_connects() -> u32 {
    *Borrow::<u32>::borrow(&module_parameters::pending_connects.value())
}

/// Returns whether an RDMA device without its own DMA is treated as one that does DMA to PCI
/// devices.
pub(crate) fn p2p_virtual() -> bool {
    *Borrow::<u8>::borrow(&module_parameters::p2p_virtual.value()) != 0
}

/// The parts of the module, dropped in this order: when the directories are removed, no host can
/// connect any more. Then the drops wait for pending connections, changes of reservations and the
/// ends of sessions. After that no requests, no volumes with their own workqueues and no
/// completions are left.
struct Target {
    _no_hibernation: NoHibernation,
    _directories: Subsystem,
    _open: Open,
    _connect: Drained,
    _sessions: Sessions,
    _changes: Drained,
    _ends: Ends,
    _completions: Drained,
    _software: Drained,
    _work: Drained,
    _admin: Drained,
}

/// Stops the attaching of volumes when it is dropped.
struct Open(Arc<export::registry::Registry>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.shut();
    }
}

/// Ends the remaining sessions, which have no volumes, when it is dropped. Sessions with volumes
/// have ended with their volumes.
struct Sessions(Arc<export::registry::Registry>);

impl Drop for Sessions {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

/// Waits for the teardowns of all sessions when it is dropped.
struct Ends(Arc<export::registry::SessionEnds>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.drain();
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
            ends: export::registry::SessionEnds::new()?,
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
            _ends: Ends(queues.ends),
            _completions: Drained(queues.completions),
            _software: Drained(queues.software),
            _work: Drained(queues.control),
            _admin: Drained(queues.admin),
        })
    }
}
