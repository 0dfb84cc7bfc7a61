// SPDX-License-Identifier: GPL-2.0

//! The block device of a disk, and its view of the volume.

use super::{
    announce,
    limits::{
        live_limits,
        FollowedLimits, //
    },
    lost_writes::LostWrites,
    path::session_of,
    Active,
    Device, //
};
use crate::{
    admin::News,
    failure::{
        Failure,
        Violation, //
    },
    head::Head,
    io::Driver,
    session::{
        Session,
        VolumeInfo,
        UNSOUND_LIMITS, //
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
    rdma::mr::REGION_PAGE, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Prefix of the disks' names.
pub(crate) const DISK_PREFIX: &CStr = c"hcablk";

impl Device {
    /// Creates the disk of `session`, with the limits of `volume` and of the RDMA device. Sleeps.
    pub(super) fn add_disk(
        &self,
        session: &Arc<Session>,
        head: &Arc<Head>,
        volume: &VolumeInfo,
    ) -> Result<(Disk<Driver>, Arc<LostWrites>, FollowedLimits)> {
        let (settings, geometry) = (session.settings(), &volume.geometry);
        let config = TagSetConfig {
            timeout_ms: settings.io_timeout_s.saturating_mul(1000),
            numa_node: None,
            no_scheduler: false,
            poll_queues: settings.poll_queues.into(),
        };
        let tag_set = TagSet::new(&config, head.dispatch(), head.hw_queues().clone())?;
        let bytes = session.shape().bytes.min(geometry.max_transfer);
        if bytes >> 10 < settings.max_io_kib {
            pr_info!(
                "{self}: requests are limited to {} KiB instead of {} KiB: {} supports no more\n",
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
            max_hw_sectors: bytes >> 9,
            max_segments: session.shape().segments,
            // A region consists of whole pages, except for the first and the last.
            virt_boundary_mask: u64::from(REGION_PAGE - 1),
            // The block layer splits a request when its segments are used up, and refuses the
            // request if less than one block fits before the split. With one segment this happens
            // to memory that begins within a block and reaches the end of a page there, so such
            // memory is refused earlier.
            dma_alignment: match session.shape().segments {
                1 => (1 << geometry.logical_block_shift) - 1,
                _ => 3,
            },
            live: live_limits(volume.limits.as_ref(), geometry, geometry.write_cache),
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
        Ok((disk, lost_writes, FollowedLimits::new(limits.live)))
    }

    /// Makes the disk follow the volume, as the target has reported it on `session`. Returns
    /// `false` while the device is busy with something else, or the session is not the disk's yet:
    /// the caller must try again then. Process context.
    pub(super) fn follow_volume(&self, session: &Attachment, now: News) -> bool {
        let VolumeState {
            sectors,
            read_only,
            write_cache,
        } = now.state;
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
        // Reports of a former export instance do not apply to this one.
        let is_of_former = session
            .volume()
            .is_some_and(|begun| begun.instance != active.volume.instance);
        if !session.is_live() || is_of_former {
            return true;
        }
        let shift = active.volume.geometry.logical_block_shift;
        let violation =
            if sectors > (i64::MAX >> 9) as u64 || (sectors << 9) & active.block_mask() != 0 {
                Some("the reported size is invalid")
            } else if now
                .limits
                .is_some_and(|(_, limits)| !limits.is_sound(shift))
            {
                Some(UNSOUND_LIMITS)
            } else {
                None
            };
        if let Some(what) = violation {
            let violation = Violation::new(what, Some(ADMIN_QUEUE));
            session.fail(Failure::Protocol(violation));
            return false;
        }
        let generation = now.limits.map(|(generation, _)| generation);
        if let (Some(generation), Some(followed)) = (generation, active.generation) {
            if generation.wrapping_sub(followed) > u32::MAX / 2 {
                // Another path has reported a newer state. The target is notified that this one is
                // known, too.
                if write_cache == Some(true) && active.head.flushes() {
                    active.head.unflushed().count(true);
                }
                return true;
            }
        }
        active.generation = generation.or(active.generation);
        if !read_only {
            // A target that reports no limits refuses the writes of a session that began while the
            // volume was read-only: a new session replaces it.
            for session in active.sessions.iter().flatten() {
                let stays_read_only =
                    |info: VolumeInfo| info.geometry.read_only && info.limits.is_none();
                if session.is_live() && session.volume().is_some_and(stays_read_only) {
                    session.fail(Failure::OtherAccess);
                }
            }
        }
        self.set_size_and_access(active, sectors, read_only);
        active.volume.geometry.capacity = sectors << 9;
        active.volume.geometry.read_only = read_only;
        let cache = write_cache.unwrap_or(active.volume.geometry.write_cache);
        if let Some((_, limits)) = now.limits {
            active.volume.limits = Some(limits);
        }
        self.follow_drive(active, cache);
        true
    }

    /// Makes the disk follow the limits of `active.volume`, and the presence of a volatile write
    /// cache. Limits that the block layer is too busy for are left to [`Self::follow_limits`]. The
    /// caller holds `control`; process context.
    ///
    /// The cache does not decide which requests a disk sends ([`Head::set_flushes`]): a disk that
    /// sends no flushes shows the cache, and its target continues to make each write stable; a disk
    /// that sends flushes continues to send them.
    fn follow_drive(&self, active: &mut Active, cache: bool) {
        active.volume.geometry.write_cache = cache;
        let flushes = active.head.flushes();
        if flushes && cache {
            // Done before the target is notified that the change is known. It is not undone: on
            // another path the cache may still be volatile.
            active.head.unflushed().count(true);
        }
        let volume = &active.volume;
        let limits = live_limits(volume.limits.as_ref(), &volume.geometry, flushes || cache);
        active.limits.want(&active.disk, limits);
        self.apply_limits(active);
    }

    fn apply_limits(&self, active: &mut Active) {
        if let Some(former) = active.limits.follow(&active.disk) {
            self.report_limits(&former, active.limits.applied());
        }
        active.head.set_limits_due(active.limits.is_due());
    }

    fn report_limits(&self, former: &LiveLimits, now: &LiveLimits) {
        let emptied = |limits: &LiveLimits| {
            (
                limits.max_discard_sectors / 2,
                limits.max_write_zeroes_sectors / 2,
            )
        };
        if emptied(former) != emptied(now) {
            let (discards, zeroes) = emptied(now);
            pr_info!(
                "{self}: the volume now accepts discards of {discards} KiB and writes of zeroes of {zeroes} KiB\n"
            );
        }
        if former.write_cache != now.write_cache {
            let has = if now.write_cache { "a" } else { "no" };
            pr_info!("{self}: the volume now has {has} volatile write cache\n");
        }
        let others = |limits: &LiveLimits| LiveLimits {
            max_discard_sectors: 0,
            discard_granularity: 0,
            max_write_zeroes_sectors: 0,
            write_cache: false,
            fua: false,
            ..*limits
        };
        if others(former) != others(now) {
            pr_info!("{self}: the volume's preferred I/O sizes and alignments have changed\n");
        }
    }

    /// Makes the disk follow the postponed limits, if `session` is a path of it. Process context.
    pub(crate) fn follow_limits(&self, session: &Attachment) {
        let Some(mut control) = self.control.try_lock() else {
            return;
        };
        if let Some(active) = control.active.as_mut().filter(|a| a.has(session)) {
            self.apply_limits(active);
        }
    }

    /// Makes the disk follow the report to `session`, a path of it that starts, after the waiting
    /// requests were issued. Process context.
    pub(super) fn follow_begun(&self, session: &Attachment) {
        let Some(report) = session.volume().filter(|_| session.is_live()) else {
            return;
        };
        let mut control = self.control.lock();
        let Some(active) = control.active.as_mut().filter(|a| a.has(session)) else {
            return;
        };
        if report.limits.is_some() {
            // The report is followed as news.
            return;
        }
        active.volume.limits = None;
        let former = active.volume.geometry;
        active.volume.geometry = Geometry {
            physical_block_shift: report.geometry.physical_block_shift,
            max_discard: report.geometry.max_discard,
            discard_granularity: report.geometry.discard_granularity,
            max_zeroes: report.geometry.max_zeroes,
            fua: report.geometry.fua,
            ..former
        };
        self.follow_drive(active, report.geometry.write_cache);
    }

    /// Updates the block layer's size of the volume, in sectors of 512 bytes, and whether it is
    /// read-only, where these have changed. The caller holds `control`.
    pub(super) fn set_size_and_access(&self, active: &Active, sectors: u64, read_only: bool) {
        if active.disk.capacity() != sectors {
            pr_info!("{self}: the volume has {sectors} sectors now\n");
            active.disk.set_capacity(sectors);
            self.announcements.announce(announce::News::Resized);
        }
        if active.volume.geometry.read_only != read_only {
            let what = if read_only { "read-only" } else { "writable" };
            pr_info!("{self}: the volume is {what} now\n");
            active.disk.set_read_only(read_only);
            self.announcements
                .announce(announce::News::ReadOnly(read_only));
        }
    }
}
