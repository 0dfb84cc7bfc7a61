// SPDX-License-Identifier: GPL-2.0

//! The limits of a disk.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::bindings;

/// Limits of a disk, a part of `struct queue_limits`. A 0 means the block
/// layer's default.
#[derive(Clone, Default)]
pub struct Limits {
    /// Smallest unit that can be addressed, in bytes: a power of two from 512.
    pub logical_block_size: u32,
    /// Largest request, in sectors of 512 bytes.
    pub max_hw_sectors: u32,
    /// Maximum number of segments in a request.
    pub max_segments: u16,
    /// Largest segment, in bytes; at least a page.
    pub max_segment_size: u32,
    /// Only the first segment may start, and only the last may end, inside a unit of this mask plus
    /// one bytes.
    pub virt_boundary_mask: u64,
    /// Data in memory is aligned to this mask plus one bytes.
    pub dma_alignment: u32,
    /// Pages under write must not change.
    pub stable_writes: bool,
    /// The limits that may change while the disk is in use.
    pub live: LiveLimits,
}

/// Limits that may change while a disk is in use
/// ([`Disk::try_set_limits`](super::Disk::try_set_limits)), and that can be read from a block
/// device. Sectors have 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveLimits {
    /// Smallest unit that is written without reading, a physical block, in bytes.
    pub physical_block_size: u32,
    /// Offset of the first physical block, in bytes.
    pub alignment_offset: u32,
    /// Preferred smallest I/O, in bytes.
    pub io_min: u32,
    /// Preferred size of I/O, in bytes; read-ahead is at least twice this size. 0: no preference.
    pub io_opt: u32,
    /// Largest discard, in sectors; 0 means that there is none.
    pub max_discard_sectors: u32,
    /// Unit of discards, in bytes.
    pub discard_granularity: u32,
    /// Offset of the first unit of discards, in bytes.
    pub discard_alignment: u32,
    /// Largest write of zeroes, in sectors; 0 means that there is none.
    pub max_write_zeroes_sectors: u32,
    /// Writes of zeroes may deallocate blocks.
    pub zeroes_unmap: bool,
    /// Shortest and longest atomic write, in bytes: powers of two; 0 means that there are none.
    pub atomic_write: (u32, u32),
    /// No atomic write crosses a multiple of this number of bytes, a power of two that is not
    /// smaller than the longest atomic write; 0 means that there is no such boundary.
    pub atomic_write_boundary: u32,
    /// The drive is rotational.
    pub rotational: bool,
    /// Completed writes may be in a volatile cache: the disk gets flushes.
    pub write_cache: bool,
    /// Writes with FUA are accepted; without a write cache this has no effect.
    pub fua: bool,
}

impl LiveLimits {
    pub(super) fn to_raw(self) -> bindings::hcablk_live_limits {
        bindings::hcablk_live_limits {
            physical_block_size: self.physical_block_size,
            alignment_offset: self.alignment_offset,
            io_min: self.io_min,
            io_opt: self.io_opt,
            max_discard_sectors: self.max_discard_sectors,
            discard_granularity: self.discard_granularity,
            discard_alignment: self.discard_alignment,
            max_write_zeroes_sectors: self.max_write_zeroes_sectors,
            atomic_write_unit_min: self.atomic_write.0,
            atomic_write_unit_max: self.atomic_write.1,
            atomic_write_boundary: self.atomic_write_boundary,
            zeroes_unmap: self.zeroes_unmap,
            rotational: self.rotational,
            write_cache: self.write_cache,
            fua: self.fua,
        }
    }

    pub(super) fn from_raw(raw: &bindings::hcablk_live_limits) -> Self {
        Self {
            physical_block_size: raw.physical_block_size,
            alignment_offset: raw.alignment_offset,
            io_min: raw.io_min,
            io_opt: raw.io_opt,
            max_discard_sectors: raw.max_discard_sectors,
            discard_granularity: raw.discard_granularity,
            discard_alignment: raw.discard_alignment,
            max_write_zeroes_sectors: raw.max_write_zeroes_sectors,
            zeroes_unmap: raw.zeroes_unmap,
            atomic_write: (raw.atomic_write_unit_min, raw.atomic_write_unit_max),
            atomic_write_boundary: raw.atomic_write_boundary,
            rotational: raw.rotational,
            write_cache: raw.write_cache,
            fua: raw.fua,
        }
    }
}

impl Limits {
    pub(super) fn to_raw(&self) -> bindings::queue_limits {
        let mut raw = bindings::queue_limits {
            features: match self.stable_writes {
                true => bindings::BLK_FEAT_STABLE_WRITES,
                false => 0,
            },
            logical_block_size: self.logical_block_size,
            max_hw_sectors: self.max_hw_sectors,
            max_segments: self.max_segments,
            max_segment_size: self.max_segment_size,
            virt_boundary_mask: self.virt_boundary_mask as usize,
            dma_alignment: self.dma_alignment,
            ..pin_init::zeroed()
        };
        // SAFETY: Both are valid for the call, which only copies fields.
        unsafe { bindings::hcablk_c_set_limits(&mut raw, &self.live.to_raw()) };
        raw
    }
}
