// SPDX-License-Identifier: GPL-2.0

//! How the disk follows the limits of its drive while it is in use.
//!
//! A disk that sends flushes goes on to show a write cache, and one that sends none shows the cache
//! that there is: see [`Head::set_flushes`](crate::head::Head::set_flushes).
//!
//! # Without hanging
//!
//! Limits change between requests, by a freeze of the queue. Requests that wait for a path hold the
//! queue's usage counter, so that a freeze lasts until the path is back; and each write to an
//! attribute of the queue in sysfs freezes it with `limits_lock` held. So nothing here waits for
//! either: the lock is only tried, and the freeze ends after [`FREEZE_MS`] in any case. What could
//! not be followed is tried again, ever more seldom, by the timers of the sessions. Meanwhile
//! nothing is promised that does not hold: the target has a drive's block layer split what is too
//! long, ends what the drive cannot do any more as not supported, and makes writes stable by itself
//! for a disk that sends no flushes.
//!
//! Discards and writes of zeroes that are gone are taken away at once, without a freeze: those who
//! issue them look at the limit first, and take a request that ends as not supported for what it
//! is.

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

/// Milliseconds for which the disk takes no new requests, at most, while those under way end: its
/// limits change in between.
const FREEZE_MS: u32 = 200;

/// Milliseconds until what could not be followed is tried again: at first, and in the end.
const RETRY_MS: core::ops::RangeInclusive<u32> = 500..=30_000;

/// Returns the limits of a disk whose volume has `limits`, if the target tells these, else those of
/// `geometry`; `write_cache`: the disk shows one.
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

/// See the module. With `Device::control` held.
pub(super) struct FollowedLimits {
    /// Those that the block layer has.
    shown: LiveLimits,
    /// Those that it shall have.
    wanted: LiveLimits,
    /// The block layer may have less than `shown`: see [`Self::want`].
    is_lowered: bool,
    /// When they are tried again, and how long that was put off.
    retry: Option<(Deadline, u32)>,
}

impl FollowedLimits {
    /// Makes those of a disk that was added with `limits`.
    pub(super) fn new(limits: LiveLimits) -> Self {
        Self {
            shown: limits,
            wanted: limits,
            is_lowered: false,
            retry: None,
        }
    }

    /// Returns those that the block layer has.
    pub(super) fn shown(&self) -> &LiveLimits {
        &self.shown
    }

    /// Sets the limits that `disk` shall have, and takes away at once what it cannot do any more.
    pub(super) fn want(&mut self, disk: &Disk<Driver>, limits: LiveLimits) {
        if self.wanted == limits {
            return;
        }
        self.wanted = limits;
        self.retry = None;
        disk.lower_limits(&limits);
        self.is_lowered = true;
    }

    /// Gives `disk` the limits that it shall have, if it does not have them, and they are due.
    /// Returns the limits before if it has others now, and `None` if nothing has changed;
    /// [`Self::is_due`] says whether something is left to do. Sleeps for [`FREEZE_MS`] at most.
    pub(super) fn follow(&mut self, disk: &Disk<Driver>) -> Option<LiveLimits> {
        let is_early = self.retry.is_some_and(|(at, _)| !at.has_passed());
        if !self.is_due() || is_early {
            return None;
        }
        match disk.try_set_limits(&self.wanted, FREEZE_MS) {
            Ok(()) => {
                self.retry = None;
                self.is_lowered = false;
                let former = core::mem::replace(&mut self.shown, self.wanted);
                (former != self.shown).then_some(former)
            }
            // Nothing would ever change that.
            Err(EINVAL) => {
                self.retry = None;
                // What was lowered for them comes back.
                self.is_lowered &= self.wanted != self.shown;
                self.wanted = self.shown;
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

    /// Returns whether the block layer has other limits than it shall have.
    pub(super) fn is_due(&self) -> bool {
        self.is_lowered || self.shown != self.wanted
    }
}
