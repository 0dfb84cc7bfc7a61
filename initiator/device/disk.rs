// SPDX-License-Identifier: GPL-2.0

//! The block device of a disk, and what the block layer knows of the volume.

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
    /// Makes the disk of `session`, with the limits that `geometry` and the device have. Sleeps.
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
            max_hw_sectors: bytes >> 9,
            max_segments: session.shape().segments,
            // A region's pages are whole, but for the first and the last.
            virt_boundary_mask: u64::from(REGION_PAGE - 1),
            dma_alignment: 3,
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

    /// Makes the disk follow the volume, as the target has told of it by `session`. Returns `false`
    /// while the device is busy with something else, or the session is not the disk's yet: it has
    /// to be tried again then. Process context.
    pub(super) fn follow_volume(&self, session: &Session, now: News) -> bool {
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
        // What an instance has told that is gone is none of this one.
        let is_of_former = session
            .volume()
            .is_some_and(|begun| begun.instance != active.volume.instance);
        if !session.is_live() || is_of_former {
            return true;
        }
        let shift = active.volume.geometry.logical_block_shift;
        let violation =
            if sectors > (i64::MAX >> 9) as u64 || (sectors << 9) & active.block_mask() != 0 {
                Some("the size that it told is none")
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
                // Another path has told what is newer. The target hears that this is known, too.
                if write_cache == Some(true) && active.head.flushes() {
                    active.head.unflushed().count(true);
                }
                return true;
            }
        }
        active.generation = generation.or(active.generation);
        if !read_only {
            // A target that tells no limits refuses the writes of a session that began while nobody
            // could write: another one comes in its place.
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

    /// Makes the disk follow the limits of `active.volume`, and that it has a volatile write cache,
    /// or none; what the block layer is too busy for is left to [`Self::follow_limits`]. With
    /// `control` held, process context.
    ///
    /// What a disk sends does not depend on the cache ([`Head::set_flushes`]): one that sends no
    /// flushes shows the cache, and its target goes on to make each write stable; one that sends
    /// them goes on.
    fn follow_drive(&self, active: &mut Active, cache: bool) {
        active.volume.geometry.write_cache = cache;
        let flushes = active.head.flushes();
        if flushes && cache {
            // Before the target hears that this is known. It is not taken back: on another path it
            // may still be so.
            active.head.unflushed().count(true);
        }
        let volume = &active.volume;
        let limits = live_limits(volume.limits.as_ref(), &volume.geometry, flushes || cache);
        active.limits.want(&active.disk, limits);
        self.apply_limits(active);
    }

    fn apply_limits(&self, active: &mut Active) {
        if let Some(former) = active.limits.follow(&active.disk) {
            self.report_limits(&former, active.limits.shown());
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
                "{self}: the volume takes discards of {discards} KiB and writes of zeroes of {zeroes} KiB now\n"
            );
        }
        if former.write_cache != now.write_cache {
            let has = if now.write_cache { "a" } else { "no" };
            pr_info!("{self}: the volume has {has} volatile write cache now\n");
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
            pr_info!("{self}: the volume has other preferences now\n");
        }
    }

    /// Makes the disk follow what it could not yet, if `session` is a path of it. Process context.
    pub(crate) fn follow_limits(&self, session: &Session) {
        let Some(mut control) = self.control.try_lock() else {
            return;
        };
        if let Some(active) = control.active.as_mut().filter(|a| a.has(session)) {
            self.apply_limits(active);
        }
    }

    /// Makes the disk follow what `session`, a path of it that begins, was told, when what has
    /// waited was issued. Process context.
    pub(super) fn follow_begun(&self, session: &Session) {
        let Some(told) = session.volume().filter(|_| session.is_live()) else {
            return;
        };
        let mut control = self.control.lock();
        let Some(active) = control.active.as_mut().filter(|a| a.has(session)) else {
            return;
        };
        if told.limits.is_some() {
            // It follows as news.
            return;
        }
        active.volume.limits = None;
        let former = active.volume.geometry;
        active.volume.geometry = Geometry {
            physical_block_shift: told.geometry.physical_block_shift,
            max_discard: told.geometry.max_discard,
            discard_granularity: told.geometry.discard_granularity,
            max_zeroes: told.geometry.max_zeroes,
            fua: told.geometry.fua,
            ..former
        };
        self.follow_drive(active, told.geometry.write_cache);
    }

    /// Tells the block layer of the volume's size, in sectors of 512 bytes, and whether nobody may
    /// write to it, if that is news. By who has `control`.
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
