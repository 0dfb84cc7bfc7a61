// SPDX-License-Identifier: GPL-2.0

//! Makes the disk follow the limits of its drive while it is in use.
//!
//! A disk that sends flushes continues to show a write cache; one that sends none shows the cache
//! that the volume has: see [`Head::set_flushes`](crate::head::Head::set_flushes).
//!
//! # Without hanging
//!
//! Limits change between requests, during a freeze of the queue. Requests that wait for a path hold
//! the queue's usage counter, so that a freeze lasts until the path is back; and each write to an
//! attribute of the queue in sysfs freezes it with `limits_lock` held. So nothing here waits for
//! either: the lock is only tried, and the freeze ends after [`FREEZE_MS`] in any case. The
//! sessions' timers retry limits that could not be applied, at growing intervals. In the meantime
//! the disk makes no false promise: the target's block layer splits requests that are too long for
//! the drive, ends those that the drive no longer supports as not supported, and makes writes
//! stable itself for a disk that sends no flushes.
//!
//! When the volume no longer supports discards or writes of zeroes, they are disabled at once,
//! without a freeze: their callers check the limit first, and handle a request that ends as not
//! supported.

use crate::io::Driver;
use hcablk_core::{
    blkdev::{
        Disk,
        LiveLimits, //
    },
    proto::{
        connect::Geometry,
        message::VolumeLimits, //
    },
    system::Deadline, //
};
use kernel::prelude::*;

/// The most milliseconds for which the disk accepts no new requests while those under way end: its
/// limits change in between.
const FREEZE_MS: u32 = 200;

/// Milliseconds before limits that could not be applied are retried: at first, and at most.
const RETRY_MS: core::ops::RangeInclusive<u32> = 500..=30_000;

/// Returns the limits of a disk whose volume has `limits`, if the target reports these, else those
/// of `geometry`; `write_cache`: the disk shows a write cache.
pub(super) fn live_limits(
    limits: Option<&VolumeLimits>,
    geometry: &Geometry,
    write_cache: bool,
) -> LiveLimits {
    let shown = LiveLimits {
        physical_block_size: 1 << geometry.physical_block_shift,
        max_discard_sectors: geometry.max_discard >> 9,
        discard_granularity: geometry.discard_granularity,
        max_write_zeroes_sectors: geometry.max_zeroes >> 9,
        write_cache,
        fua: geometry.fua,
        ..LiveLimits::default()
    };
    let Some(limits) = limits else {
        return shown;
    };
    LiveLimits {
        physical_block_size: 1 << limits.physical_block_shift,
        alignment_offset: limits.alignment_offset,
        io_min: limits.io_min,
        io_opt: limits.io_opt,
        max_discard_sectors: limits.max_discard >> 9,
        discard_granularity: limits.discard_granularity,
        discard_alignment: limits.discard_alignment,
        max_write_zeroes_sectors: limits.max_zeroes >> 9,
        zeroes_unmap: limits.zeroes_unmap,
        atomic_write: limits.atomic.map_or((0, 0), |atomic| {
            (1 << atomic.min_shift, 1 << atomic.max_shift)
        }),
        atomic_write_boundary: match limits.atomic.map_or(0, |atomic| atomic.boundary_shift) {
            0 => 0,
            shift => 1 << shift,
        },
        rotational: limits.rotational,
        ..shown
    }
}

/// The limits that a disk has and those that it should have; see the module. Under
/// `Device::control`.
pub(super) struct FollowedLimits {
    /// The limits that the block layer has.
    applied: LiveLimits,
    /// The limits that the block layer should have.
    wanted: LiveLimits,
    /// Some of the block layer's limits may be lower than in `applied`: see [`Self::want`].
    is_lowered: bool,
    /// When the limits are tried again, and the delay until then.
    retry: Option<(Deadline, u32)>,
}

impl FollowedLimits {
    /// Creates the state of a disk that was added with `limits`.
    pub(super) fn new(limits: LiveLimits) -> Self {
        Self {
            applied: limits,
            wanted: limits,
            is_lowered: false,
            retry: None,
        }
    }

    /// Returns the limits that the block layer has.
    pub(super) fn applied(&self) -> &LiveLimits {
        &self.applied
    }

    /// Sets the limits that `disk` should have, and disables at once the operations that it lost.
    pub(super) fn want(&mut self, disk: &Disk<Driver>, limits: LiveLimits) {
        if self.wanted == limits {
            return;
        }
        self.wanted = limits;
        self.retry = None;
        disk.lower_limits(&limits);
        self.is_lowered = true;
    }

    /// Applies the wanted limits to `disk` if they differ and a try is due. Returns the former
    /// limits if they have changed, `None` otherwise; [`Self::is_due`] returns whether work is
    /// left. Sleeps for [`FREEZE_MS`] at most.
    pub(super) fn follow(&mut self, disk: &Disk<Driver>) -> Option<LiveLimits> {
        let is_early = self.retry.is_some_and(|(at, _)| !at.has_passed());
        if !self.is_due() || is_early {
            return None;
        }
        match disk.try_set_limits(&self.wanted, FREEZE_MS) {
            Ok(()) => {
                self.retry = None;
                self.is_lowered = false;
                let former = core::mem::replace(&mut self.applied, self.wanted);
                (former != self.applied).then_some(former)
            }
            // No retry would succeed.
            Err(EINVAL) => {
                self.retry = None;
                // Operations disabled for the wanted limits are enabled again.
                self.is_lowered &= self.wanted != self.applied;
                self.wanted = self.applied;
                None
            }
            Err(_) => {
                let (first, last) = (*RETRY_MS.start(), *RETRY_MS.end());
                let ms = self.retry.map_or(first, |(_, ms)| (2 * ms).min(last));
                self.retry = Some((Deadline::new(ms), ms));
                None
            }
        }
    }

    /// Returns whether the block layer's limits differ from the wanted ones.
    pub(super) fn is_due(&self) -> bool {
        self.is_lowered || self.applied != self.wanted
    }
}
