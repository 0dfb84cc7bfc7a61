// SPDX-License-Identifier: GPL-2.0

//! A volume as the requests of one queue pair use it: what it is made of, what its initiator was
//! told of it, and what the queue pair has for it alone.
//!
//! # Lifetime
//!
//! Each request refers to the volume that it is about, also while it is idle: to the last one. So
//! the device stays open until the queue is closed, which drops its requests first.

use super::{
    queue::Flushes,
    validate::{
        check,
        check_write, //
    },
};
use crate::drive::{
    backing::Backing,
    flush_errors::Teller,
    write_errors::WriteErrors, //
};
use hcablk_core::{
    p2p::{
        PeerLease,
        PeerMemory, //
    },
    proto::{
        connect::Geometry,
        message::{
            Extent,
            Op,
            Status, //
        },
        name::{
            HostId,
            VolumeName, //
        },
    },
    sync::{
        atomic::Relaxed,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What a session knows of a volume that its queue pairs serve.
#[derive(Clone)]
pub(crate) struct VolumeConfig {
    /// For messages.
    pub(crate) name: VolumeName,
    pub(crate) host: HostId,
    /// The volume, as the session's initiator is told.
    pub(crate) geometry: Geometry,
    pub(crate) flushes: Flushes,
    pub(crate) backing: Arc<Backing>,
    /// Which errors of the session's writes are still to be told.
    pub(crate) write_errors: Arc<WriteErrors>,
    /// Which session tells them, among those of the disk.
    pub(crate) teller: Teller,
}

/// See the module.
pub(crate) struct QueueVolume {
    config: VolumeConfig,
    /// See [`Backing::writes_with_fua`].
    with_fua: bool,
    /// See [`Backing::is_straight`].
    is_straight: bool,
    /// The target fetches no data by RDMA READ.
    no_read: bool,
    /// Peer memory beside the queue pair's first transfer buffers.
    lease: Option<PeerLease>,
    /// The cache's lines, if they are in peer memory that the HCA reaches.
    view: Option<PeerLease>,
}

impl QueueVolume {
    /// Makes the volume of a queue pair whose requests have up to `largest` bytes, and which posts
    /// no RDMA READ if `no_read`. May sleep.
    pub(super) fn new(
        mut config: VolumeConfig,
        largest: u32,
        no_read: bool,
        (lease, view): (Option<PeerLease>, Option<PeerLease>),
    ) -> Result<Arc<Self>> {
        config.geometry.max_transfer = largest;
        let volume = Self {
            with_fua: config.backing.writes_with_fua(),
            is_straight: config.backing.is_straight(),
            config,
            no_read,
            lease,
            view,
        };
        Ok(Arc::new(volume, GFP_KERNEL)?)
    }

    #[inline]
    pub(super) fn backing(&self) -> &Backing {
        &self.config.backing
    }

    /// Returns the name of the volume, for messages.
    pub(super) fn name(&self) -> &VolumeName {
        &self.config.name
    }

    /// Returns the volume, as the initiator of this queue pair is told.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.config.geometry
    }

    #[inline]
    pub(super) fn write_errors(&self) -> &WriteErrors {
        &self.config.write_errors
    }

    /// Returns which session tells of write errors, among those of the disk.
    #[inline]
    pub(super) fn teller(&self) -> Teller {
        self.config.teller
    }

    /// Returns the workqueue on which requests wait for the drive.
    pub(super) fn io_work(&self) -> &WorkQueue {
        self.backing().io_work()
    }

    /// Returns whether data moves between the wire and the drive by RAM, past all caches: see
    /// [`Backing::is_straight`].
    #[inline]
    pub(super) fn is_straight(&self) -> bool {
        self.is_straight
    }

    /// Returns whether the session's initiator sends flushes. Else a write is on stable media
    /// before its response.
    #[inline]
    pub(super) fn initiator_flushes(&self) -> bool {
        self.config.flushes.load(Relaxed)
    }

    /// Returns whether a write that begins now is sent to the drive as one with FUA, though its
    /// initiator has not asked for that.
    #[inline]
    pub(super) fn forces_fua(&self) -> bool {
        self.with_fua && !self.initiator_flushes() && self.backing().is_volatile()
    }

    /// Returns the bytes of the volume at this moment, in whole blocks; 0 if the drive is gone.
    #[inline]
    pub(super) fn capacity(&self) -> u64 {
        let block = 1u64 << self.geometry().logical_block_shift;
        self.backing().size_bytes() & !(block - 1)
    }

    /// Returns the peer memory and who lends it, if there is any.
    pub(super) fn lease(&self) -> Option<&PeerLease> {
        self.lease.as_ref()
    }

    /// Returns the peer memory beside the transfer buffers, if there is any.
    #[inline]
    pub(super) fn peer_memory(&self) -> Option<Arc<PeerMemory>> {
        self.lease.as_ref()?.memory()
    }

    /// Returns the cache's lines, if they are in peer memory that the HCA reaches.
    pub(super) fn view(&self) -> Option<&PeerLease> {
        self.view.as_ref()
    }

    /// Returns how a request is refused before it begins; `Ok`: it is not.
    ///
    /// Whether a reservation of another host forbids it is asked under the lock under which the
    /// queue closes: who closes it after a change waits for all that was allowed before.
    #[inline(always)]
    pub(super) fn admit(&self, op: &Op) -> Status {
        let backing = self.backing();
        let (size, refuses_writes) = (backing.size_bytes(), || backing.refuses_writes());
        let emptied = || backing.emptied();
        if let Err(status) = check(op, self.geometry(), size, refuses_writes, emptied) {
            status
        } else if self.never_does(op) {
            Status::Unsupported
        } else if backing
            .drive()
            .is_some_and(|drive| drive.forbids(&self.config.host, op))
        {
            Status::Conflict
        } else {
            Status::Ok
        }
    }

    /// Returns how a write to these blocks is refused, as [`Self::admit`] does, whose data is there
    /// already.
    #[inline(always)]
    pub(super) fn admit_write(&self, extent: &Extent) -> Status {
        let backing = self.backing();
        let (size, refuses_writes) = (backing.size_bytes(), || backing.refuses_writes());
        if let Err(status) = check_write(extent, self.geometry(), size, refuses_writes) {
            status
        } else if backing
            .drive()
            .is_some_and(|drive| drive.forbids_writes(&self.config.host))
        {
            Status::Conflict
        } else {
            Status::Ok
        }
    }

    /// Returns whether it is a request that this queue pair, or the drive, never carries out.
    #[inline]
    fn never_does(&self, op: &Op) -> bool {
        match op {
            Op::Write { .. } if self.no_read => true,
            Op::Write {
                atomic: true,
                extent,
                ..
            } => !self.backing().takes_atomic_write(extent.length),
            _ => false,
        }
    }
}
