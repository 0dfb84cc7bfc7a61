// SPDX-License-Identifier: GPL-2.0

//! What a disk accepts.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::bindings;

/// Limits of a disk, a part of `struct queue_limits`. A 0 means the block
/// layer's default.
#[derive(Clone, Default)]
pub struct Limits {
    /// Smallest unit that can be addressed, in bytes: a power of two from 512.
    pub logical_block_size: u32,
    /// Smallest unit that is written without reading, in bytes.
    pub physical_block_size: u32,
    /// Largest request, in sectors of 512 bytes.
    pub max_hw_sectors: u32,
    /// Most segments in a request.
    pub max_segments: u16,
    /// Largest segment, in bytes; at least a page.
    pub max_segment_size: u32,
    /// No segment but the first starts, and none but the last ends, inside a
    /// unit of this mask plus one bytes.
    pub virt_boundary_mask: u64,
    /// Data in memory is aligned to this mask plus one bytes.
    pub dma_alignment: u32,
    /// Completed writes may be in a volatile cache: the disk gets flushes.
    pub write_cache: bool,
    /// Writes with FUA are accepted; without a write cache it means nothing.
    pub fua: bool,
    /// Pages under write must not change.
    pub stable_writes: bool,
    /// Preferred smallest I/O, in bytes.
    pub io_min: u32,
    /// Preferred I/O, in bytes; read-ahead is at least twice of it.
    pub io_opt: u32,
    /// Largest discard, in sectors; 0 means that there is none.
    pub max_discard_sectors: u32,
    /// Unit of discards, in bytes.
    pub discard_granularity: u32,
    /// Largest write of zeroes, in sectors; 0 means that there is none.
    pub max_write_zeroes_sectors: u32,
}

/// Limits that may change while a disk is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveLimits {
    /// As in [`Limits`].
    pub write_cache: bool,
    /// As in [`Limits`].
    pub fua: bool,
    /// As in [`Limits`].
    pub max_discard_sectors: u32,
    /// As in [`Limits`].
    pub discard_granularity: u32,
    /// As in [`Limits`].
    pub max_write_zeroes_sectors: u32,
}

impl LiveLimits {
    pub(super) fn to_raw(self) -> bindings::hcablk_live_limits {
        bindings::hcablk_live_limits {
            max_discard_sectors: self.max_discard_sectors,
            discard_granularity: self.discard_granularity,
            max_write_zeroes_sectors: self.max_write_zeroes_sectors,
            write_cache: self.write_cache,
            fua: self.fua,
        }
    }
}

impl Limits {
    pub(super) fn to_raw(&self) -> bindings::queue_limits {
        let mut features = 0;
        if self.write_cache {
            features |= bindings::BLK_FEAT_WRITE_CACHE;
        }
        if self.fua {
            features |= bindings::BLK_FEAT_FUA;
        }
        if self.stable_writes {
            features |= bindings::BLK_FEAT_STABLE_WRITES;
        }
        bindings::queue_limits {
            features,
            logical_block_size: self.logical_block_size,
            physical_block_size: self.physical_block_size,
            max_hw_sectors: self.max_hw_sectors,
            max_segments: self.max_segments,
            max_segment_size: self.max_segment_size,
            virt_boundary_mask: self.virt_boundary_mask as usize,
            dma_alignment: self.dma_alignment,
            io_min: self.io_min,
            io_opt: self.io_opt,
            max_hw_discard_sectors: self.max_discard_sectors,
            discard_granularity: self.discard_granularity,
            max_write_zeroes_sectors: self.max_write_zeroes_sectors,
            ..pin_init::zeroed()
        }
    }
}
