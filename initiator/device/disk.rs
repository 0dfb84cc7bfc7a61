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
        NewDisk,
        TagSet,
        TagSetConfig, //
    },
    proto::{
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
        head.unflushed().set_cache(geometry.write_cache);
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
        write_cache.is_none_or(|on| self.follow_cache(active, on))
    }

    /// Has the disk send flushes from now on, or none any more, as its volume has a volatile write cache or none. Returns `false` if
    /// the block layer is busy for [`FREEZE_MS`]: then it is to be tried again, and the target, which is told when this is done,
    /// makes each write stable until then. By whoever has `control`.
    fn follow_cache(&self, active: &mut Active, on: bool) -> bool {
        let unflushed = active.head.unflushed();
        if active.volume.geometry.write_cache == on {
            return true;
        }
        if on {
            // A write may end in the cache as soon as the target knows of this.
            unflushed.set_cache(true);
        }
        let fua = active.volume.geometry.fua;
        if active.disk.try_set_write_cache(on, fua, FREEZE_MS).is_err() {
            unflushed.set_cache(active.volume.geometry.write_cache);
            return false;
        }
        unflushed.set_cache(on);
        active.volume.geometry.write_cache = on;
        let has = if on { "a" } else { "no" };
        pr_info!("{self}: the volume has {has} volatile write cache now\n");
        true
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
