// SPDX-License-Identifier: GPL-2.0

//! What a queue knows of whoever has it, and tells it: a session, which is above this module.

use super::Fault;
use crate::storage::{
    backing::Backing,
    flush_errors::Teller,
    write_errors::WriteErrors, //
};
use hcablk_core::{
    proto::{
        connect::{
            Epoch,
            Geometry,
            SessionId, //
        },
        name::HostId, //
    },
    rdma::pd::ProtectionDomain,
    sync::{
        atomic::Atomic,
        WorkQueue, //
    },
};
use kernel::sync::Arc;

/// Whether a session's initiator knows of a volatile write cache, and sends flushes. While it does not, each write is on stable media
/// before it is answered. Shared by the session and its queues.
pub(crate) type Flushes = Arc<Atomic<bool>>;

/// Who has a queue.
pub(crate) trait QueueOwner: Send + Sync + 'static {
    /// Returns the name of the volume, for messages.
    fn volume(&self) -> &dyn kernel::fmt::Display;

    /// Ends the session because of `fault` of queue `index`. Any context.
    fn queue_failed(self: Arc<Self>, index: u8, fault: Fault);
}

/// Which queue it is, of which session, and what it serves.
pub(crate) struct QueueConfig {
    pub(crate) session: SessionId,
    pub(crate) host: HostId,
    pub(crate) epoch: Epoch,
    pub(crate) index: u8,
    /// The volume, as the session's initiator is told.
    pub(crate) geometry: Geometry,
    /// The initiator flushes: see [`Flushes`].
    pub(crate) flushes: Flushes,
    /// Where completions are handled.
    pub(crate) completions: Arc<WorkQueue>,
    pub(crate) pd: Arc<ProtectionDomain>,
    pub(crate) backing: Arc<Backing>,
    /// Which errors of the session's writes are still to be told.
    pub(crate) write_errors: Arc<WriteErrors>,
    /// Which session tells them, among those of the disk.
    pub(crate) teller: Teller,
}
