// SPDX-License-Identifier: GPL-2.0

//! The disk of a session: what the block layer is told of the volume.

use super::{
    announce::News,
    lost_writes::LostWrites,
    path::session_of,
    Active,
    Device, //
};
use crate::{
    failure::{
        Failure,
        Violation, //
    },
    head::Head,
    queue::Driver,
    session::{
        Session,
        VolumeInfo, //
    },
};
use core::fmt;
use hcablk_core::{
    blkdev::{
        Disk,
        Limits,
        LiveLimits,
        NewDisk,
        TagSet,
        TagSetConfig, //
    },
    proto::{
        connect::Geometry,
        message::VolumeState,
        ADMIN_QUEUE, //
    },
    rdma::mr::REGION_PAGE,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Milliseconds for which the disk takes no new requests, at most, while those under way end: its limits change in between.
const FREEZE_MS: u32 = 200;

/// Prefix of the disks' names.
pub(crate) const DISK_PREFIX: &CStr = c"hcablk";

impl Device {
    /// Makes the disk of `session`, with the limits that `geometry` and the device have. Sleeps.
    pub(super) fn add_disk(
        &self,
        session: &Arc<Session>,
        head: &Arc<Head>,
        volume: &VolumeInfo,
    ) -> Result<(Disk<Driver>, Arc<LostWrites>)> {
        let (settings, geometry) = (session.settings(), &volume.geometry);
        let config = TagSetConfig {
            timeout_ms: settings.io_timeout_s.saturating_mul(1000),
            numa_node: None,
            no_scheduler: false,
            poll_queues: settings.poll_queues.into(),
        };
        let tag_set = TagSet::new(&config, session.requests(), head.hw_queues().clone())?;
        let bytes = session.shape().bytes.min(geometry.max_transfer);
        if bytes >> 10 < settings.max_io_kib {
            pr_info!(
                "{self}: requests of {} KiB at most, not of {} KiB: {} has no more\n",
                bytes >> 10,
                settings.max_io_kib,
                if bytes < session.shape().bytes {
                    "the target"
                } else {
                    "the RDMA device"
                }
            );
        }
        let limits = Limits {
            logical_block_size: 1 << geometry.logical_block_shift,
            physical_block_size: 1 << geometry.physical_block_shift,
            max_hw_sectors: bytes >> 9,
            max_segments: session.shape().segments,
            // A region's pages are whole, but for the first and the last.
            virt_boundary_mask: u64::from(REGION_PAGE - 1),
            dma_alignment: 3,
            write_cache: geometry.write_cache,
            fua: geometry.fua,
            max_discard_sectors: geometry.max_discard >> 9,
            discard_granularity: geometry.discard_granularity,
            max_write_zeroes_sectors: geometry.max_zeroes >> 9,
            ..Limits::default()
        };
        let lost_writes = LostWrites::new(head, &self.announcements)?;
        head.set_flushes(geometry.write_cache);
        let new = NewDisk {
            prefix: DISK_PREFIX,
            limits: &limits,
            capacity: geometry.capacity >> 9,
            read_only: geometry.read_only,
            uuid: volume
                .wwid
                .as_ref()
                .map(|wwid| -> &dyn fmt::Display { wwid }),
            openers: Some(lost_writes.clone()),
        };
        let disk = Disk::add(&tag_set, new, self.module)?;
        Ok((disk, lost_writes))
    }

    /// Has the disk follow the volume, as the target has told of it by `session`. Returns `false` while the device is busy with
    /// something else, or the session is not the disk's yet: then it is to be tried again. Process context.
    pub(super) fn follow_volume(&self, session: &Session, now: VolumeState) -> bool {
        let VolumeState {
            sectors,
            read_only,
            write_cache,
        } = now;
        let Some(mut control) = self.control.try_lock() else {
            return false;
        };
        let Some(active) = control.active.as_mut() else {
            return false;
        };
        let Some(session) = session_of(&active.sessions, session.path())
            .filter(|own| core::ptr::eq(&***own, session))
        else {
            return false;
        };
        if sectors > (i64::MAX >> 9) as u64 || (sectors << 9) & active.block_mask() != 0 {
            session.fail(Failure::Protocol(Violation::new(
                "the size that it told is none",
                Some(ADMIN_QUEUE),
            )));
            return false;
        }
        if !read_only {
            // A session that began while nobody could write has its writes refused: another one comes in its place.
            for session in active.sessions.iter().flatten() {
                let began_read_only = |info: VolumeInfo| info.geometry.read_only;
                if session.is_live() && session.volume().is_some_and(began_read_only) {
                    session.fail(Failure::OtherAccess);
                }
            }
        }
        self.set_size_and_access(active, sectors, read_only);
        active.volume.geometry.capacity = sectors << 9;
        active.volume.geometry.read_only = read_only;
        active.has_cache = write_cache.unwrap_or(active.has_cache);
        self.follow_cache(active)
    }

    /// Has the disk follow that its volume has a volatile write cache now, or none. Returns `false` if that is to be tried again. By
    /// whoever has `control`.
    ///
    /// What a disk sends does not depend on it ([`Head::set_flushes`]): one that sends no flushes shows the cache, and its target
    /// goes on to make each write stable; one that sends them goes on.
    fn follow_cache(&self, active: &mut Active) -> bool {
        let on = active.has_cache;
        if active.head.flushes() {
            if on {
                // Before the target hears that this is known. It is not taken back: on another path it may still be so.
                active.head.unflushed().count(true);
            }
            return true;
        }
        if active.volume.geometry.write_cache == on {
            return true;
        }
        let geometry = Geometry {
            write_cache: on,
            ..active.volume.geometry
        };
        let followed = Self::try_limits(active, geometry);
        if followed {
            let has = if on { "a" } else { "no" };
            pr_info!("{self}: the volume has {has} volatile write cache now\n");
        }
        followed
    }

    /// Has the disk follow what `session`, a path of it, was told of limits when it began: of discards, writes of zeroes, and the cache. Returns `false` if
    /// that is to be tried again; what the drive cannot do ends as not supported until then. Process context.
    pub(super) fn follow_limits(&self, session: &Session) -> bool {
        let Some(mut control) = self.control.try_lock() else {
            return false;
        };
        let Some(active) = control.active.as_mut().filter(|a| a.has(session)) else {
            return true;
        };
        let Some(told) = session.volume().filter(|_| session.is_live()) else {
            return true;
        };
        let former = active.volume.geometry;
        let geometry = Geometry {
            max_discard: told.geometry.max_discard,
            discard_granularity: told.geometry.discard_granularity,
            max_zeroes: told.geometry.max_zeroes,
            ..former
        };
        let followed = geometry == former || Self::try_limits(active, geometry);
        if followed && geometry != former {
            pr_info!(
                "{self}: the volume takes discards of {} KiB and writes of zeroes of {} KiB now\n",
                geometry.max_discard >> 10,
                geometry.max_zeroes >> 10
            );
        }
        followed && self.follow_cache(active)
    }

    /// Changes the limits of the disk to those of `geometry`, if the block layer is not busy for longer than [`FREEZE_MS`]; returns
    /// whether it has.
    fn try_limits(active: &mut Active, geometry: Geometry) -> bool {
        let limits = LiveLimits {
            write_cache: geometry.write_cache,
            fua: geometry.fua,
            max_discard_sectors: geometry.max_discard >> 9,
            discard_granularity: geometry.discard_granularity,
            max_write_zeroes_sectors: geometry.max_zeroes >> 9,
        };
        let is_set = active.disk.try_set_limits(&limits, FREEZE_MS).is_ok();
        if is_set {
            active.volume.geometry = geometry;
        }
        is_set
    }

    /// Tells the block layer of the volume's size, in sectors of 512 bytes, and whether nobody may write to it, if that
    /// is news. By who has `control`.
    pub(super) fn set_size_and_access(&self, active: &Active, sectors: u64, read_only: bool) {
        if active.disk.capacity() != sectors {
            pr_info!("{self}: the volume has {sectors} sectors now\n");
            active.disk.set_capacity(sectors);
            self.announcements.announce(News::Resized);
        }
        if active.volume.geometry.read_only != read_only {
            let what = if read_only { "read-only" } else { "writable" };
            pr_info!("{self}: the volume is {what} now\n");
            active.disk.set_read_only(read_only);
            self.announcements.announce(News::ReadOnly(read_only));
        }
    }
}
