// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits: the most that a volume's drive accepts at once, and its preferences.

use super::super::wire::{Reader, Writer};

/// Bytes of limits in a message.
pub(super) const LIMITS_LEN: usize = 40;

const ROTATIONAL: u8 = 1 << 0;
const ZEROES_UNMAP: u8 = 1 << 1;

/// Largest preferred I/O in bytes: initiators read ahead by twice as much.
const PREFERRED_MAX: u32 = 1 << 27;
/// log2 of the largest physical block in bytes.
const PHYSICAL_SHIFT_MAX: u8 = 24;
/// log2 of the largest atomic write in bytes.
const ATOMIC_SHIFT_MAX: u8 = 30;

/// Writes that the drive carries out atomically, even if it loses power (`REQ_ATOMIC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicWrites {
    /// log2 of the shortest one in bytes.
    pub min_shift: u8,
    /// log2 of the longest one in bytes.
    pub max_shift: u8,
    /// log2 of the boundary in bytes: no atomic write may cross a multiple of it; 0: there is none.
    pub boundary_shift: u8,
}

impl AtomicWrites {
    /// Converts the block layer's limits, which are in bytes. Returns `None` if there are no atomic
    /// writes, or if a limit is not a power of two.
    pub fn from_bytes(min: u32, max: u32, boundary: u32) -> Option<Self> {
        let shift = |bytes: u32| {
            bytes
                .is_power_of_two()
                .then(|| bytes.trailing_zeros() as u8)
        };
        Some(Self {
            min_shift: shift(min)?,
            max_shift: shift(max)?,
            boundary_shift: match boundary {
                0 => 0,
                bytes => shift(bytes)?,
            },
        })
    }

    fn is_sound(&self, logical_block_shift: u8) -> bool {
        (logical_block_shift..=self.max_shift).contains(&self.min_shift)
            && self.max_shift <= ATOMIC_SHIFT_MAX
            && (self.boundary_shift == 0
                || (self.max_shift..=ATOMIC_SHIFT_MAX).contains(&self.boundary_shift))
    }
}

/// The limits of a volume's drive; see the module. All of them may change during a session. Lengths
/// are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeLimits {
    /// Longest discard; 0: there is none.
    pub max_discard: u32,
    /// Unit of discards, if there are any.
    pub discard_granularity: u32,
    /// Offset of the first unit of discards.
    pub discard_alignment: u32,
    /// Longest write of zeroes; 0: there is none.
    pub max_zeroes: u32,
    /// Writes of zeroes may deallocate blocks.
    pub zeroes_unmap: bool,
    /// log2 of the physical block size.
    pub physical_block_shift: u8,
    /// Offset of the first physical block.
    pub alignment_offset: u32,
    /// Smallest I/O that the drive prefers.
    pub io_min: u32,
    /// The preferred size of I/O; 0: not reported.
    pub io_opt: u32,
    /// The drive is rotational: seeks are slow.
    pub rotational: bool,
    /// The atomic writes of the drive, if it has any.
    pub atomic: Option<AtomicWrites>,
}

impl VolumeLimits {
    /// Returns whether the numbers fit each other, and logical blocks of this size.
    pub fn is_sound(&self, logical_block_shift: u8) -> bool {
        if !(9..=12).contains(&logical_block_shift) {
            return false;
        }
        let block = 1u32 << logical_block_shift;
        let whole = |bytes: u32| bytes % block == 0;
        (logical_block_shift..=PHYSICAL_SHIFT_MAX).contains(&self.physical_block_shift)
            && whole(self.max_discard)
            && whole(self.max_zeroes)
            && (self.max_discard == 0
                || self.discard_granularity >= block && whole(self.discard_granularity))
            && (self.discard_alignment == 0 || self.discard_alignment < self.discard_granularity)
            && self.alignment_offset < 1 << PHYSICAL_SHIFT_MAX
            && self.io_min <= PREFERRED_MAX
            && self.io_opt <= PREFERRED_MAX
            && self
                .atomic
                .is_none_or(|atomic| atomic.is_sound(logical_block_shift))
    }

    /// Returns the limits, changed to values that the protocol can carry, for logical blocks of
    /// 2^`shift` bytes (`shift` is 9 to 12).
    pub fn fitted(self, shift: u8) -> Self {
        let preferred = |bytes| if bytes > PREFERRED_MAX { 0 } else { bytes };
        let block = 1u32 << shift;
        let whole = |bytes: u32| bytes & !(block - 1);
        let granularity = self.discard_granularity;
        let discards = granularity >= block && granularity % block == 0;
        Self {
            max_discard: if discards { whole(self.max_discard) } else { 0 },
            discard_granularity: if discards { granularity } else { 0 },
            discard_alignment: if discards {
                self.discard_alignment % granularity
            } else {
                0
            },
            max_zeroes: whole(self.max_zeroes),
            physical_block_shift: self.physical_block_shift.clamp(shift, PHYSICAL_SHIFT_MAX),
            atomic: self.atomic.filter(|atomic| atomic.is_sound(shift)),
            alignment_offset: self.alignment_offset % (1 << PHYSICAL_SHIFT_MAX),
            io_min: preferred(self.io_min),
            io_opt: preferred(self.io_opt),
            ..self
        }
    }

    pub(super) fn encode(&self) -> [u8; LIMITS_LEN] {
        let mut flags = 0;
        for (set, bit) in [
            (self.rotational, ROTATIONAL),
            (self.zeroes_unmap, ZEROES_UNMAP),
        ] {
            if set {
                flags |= bit;
            }
        }
        let atomic = self.atomic.unwrap_or(AtomicWrites {
            min_shift: 0,
            max_shift: 0,
            boundary_shift: 0,
        });
        Writer::new()
            .u32(self.max_discard)
            .u32(self.discard_granularity)
            .u32(self.discard_alignment)
            .u32(self.max_zeroes)
            .u32(self.alignment_offset)
            .u32(self.io_min)
            .u32(self.io_opt)
            .u8(self.physical_block_shift)
            .u8(flags)
            .u8(atomic.min_shift)
            .u8(atomic.max_shift)
            .u8(atomic.boundary_shift)
            .u8(0)
            .u16(0)
            .u32(0)
            .finish()
    }

    /// Reads limits; `None` if they are not valid.
    pub(super) fn decode(bytes: &[u8; LIMITS_LEN]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let limits = Self {
            max_discard: r.u32(),
            discard_granularity: r.u32(),
            discard_alignment: r.u32(),
            max_zeroes: r.u32(),
            alignment_offset: r.u32(),
            io_min: r.u32(),
            io_opt: r.u32(),
            physical_block_shift: r.u8(),
            zeroes_unmap: false,
            rotational: false,
            atomic: None,
        };
        let flags = r.u8();
        let atomic = AtomicWrites {
            min_shift: r.u8(),
            max_shift: r.u8(),
            boundary_shift: r.u8(),
        };
        let none = atomic.min_shift == 0;
        let good = flags & !(ROTATIONAL | ZEROES_UNMAP) == 0
            && (!none || atomic.max_shift == 0 && atomic.boundary_shift == 0)
            && (r.u8(), r.u16(), r.u32()) == (0, 0, 0);
        good.then_some(Self {
            zeroes_unmap: flags & ZEROES_UNMAP != 0,
            rotational: flags & ROTATIONAL != 0,
            atomic: (!none).then_some(atomic),
            ..limits
        })
    }
}
