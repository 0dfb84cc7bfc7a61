// SPDX-License-Identifier: GPL-2.0

//! Memory of any shape, and I/O from and to it.

use crate::watched::Watched;
use hcablk_core::{
    blkdev::{
        submit,
        BioOp,
        BioOwner,
        BioSlot,
        BlockDevice,
        Status, //
    },
    memory::pages::{
        ContiguousPages,
        PageRange, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Returns the byte at a place; neighbouring pages differ.
pub(crate) fn pattern(seed: u8, at: usize) -> u8 {
    (at as u8)
        .wrapping_mul(31)
        .wrapping_add((at >> 8) as u8)
        .wrapping_add(seed)
        .max(1)
}

/// Pieces of memory for one I/O.
pub(crate) struct Memory {
    blocks: Arc<KVec<ContiguousPages>>,
    /// Block, offset and length.
    pieces: KVec<(usize, usize, usize)>,
}

impl Memory {
    /// Allocates `count` blocks of two pages, all of them in use.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let mut blocks = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            blocks.push(ContiguousPages::alloc(1)?, GFP_KERNEL)?;
        }
        Self {
            blocks: Arc::new(blocks, GFP_KERNEL)?,
            pieces: KVec::new(),
        }
        .whole()
    }

    /// Returns the same memory with other pieces in use.
    pub(crate) fn with_pieces(&self, pieces: &[(usize, usize, usize)]) -> Result<Self> {
        let mut own = KVec::new();
        own.extend_from_slice(pieces, GFP_KERNEL)?;
        Ok(Self {
            blocks: self.blocks.clone(),
            pieces: own,
        })
    }

    /// Returns the same memory with all of it in use.
    pub(crate) fn whole(&self) -> Result<Self> {
        let mut own = KVec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            own.push((index, 0, block.len()), GFP_KERNEL)?;
        }
        Ok(Self {
            blocks: self.blocks.clone(),
            pieces: own,
        })
    }

    /// Returns the length of the pieces in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.2).sum()
    }

    /// Returns the place in the whole memory of a byte of the pieces.
    pub(crate) fn byte_at(&self, mut at: usize) -> Option<usize> {
        let block_bytes = self.blocks.first()?.len();
        for &(block, offset, length) in self.pieces.iter() {
            if at < length {
                return Some(block * block_bytes + offset + at);
            }
            at -= length;
        }
        None
    }
}

/// The result of ended I/O, with its memory: the waiter drops that, since a completion must
/// not.
type Ended = Option<(Result<(), Status>, KBox<Job>)>;

/// I/O in flight.
pub(crate) struct Pending(Arc<Watched<Ended>>);

impl Pending {
    /// Waits for the end of the I/O.
    pub(crate) fn end(&self) -> Result<Result<(), Status>> {
        let (result, job) = self.0.wait(|ended| ended.take())?;
        drop(job);
        Ok(result)
    }

    /// Returns whether the I/O has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.with(|ended| ended.is_some())
    }
}

struct Job {
    slot: BioSlot,
    device: Arc<BlockDevice>,
    blocks: Arc<KVec<ContiguousPages>>,
    pieces: KVec<(usize, usize, usize)>,
    /// Taken out at the end of the I/O, which puts this job into it.
    ended: Option<Arc<Watched<Ended>>>,
    may_wait: bool,
}

/// Starts I/O, which has at most 32 pieces.
pub(crate) fn start(
    device: Arc<BlockDevice>,
    memory: &Memory,
    op: BioOp,
    sector: u64,
) -> Result<Pending> {
    submitted(device, memory, op, sector, true)
}

/// Starts I/O as [`start`] does, but does not wait until the device has room for it.
pub(crate) fn start_at_once(
    device: Arc<BlockDevice>,
    memory: &Memory,
    op: BioOp,
    sector: u64,
) -> Result<Pending> {
    submitted(device, memory, op, sector, false)
}

fn submitted(
    device: Arc<BlockDevice>,
    memory: &Memory,
    op: BioOp,
    sector: u64,
    may_wait: bool,
) -> Result<Pending> {
    let mut pieces = KVec::new();
    pieces.extend_from_slice(&memory.pieces, GFP_KERNEL)?;
    let ended = Watched::new(None)?;
    let job = KBox::new(
        Job {
            slot: BioSlot::new(32)?,
            device,
            blocks: memory.blocks.clone(),
            pieces,
            ended: Some(ended.clone()),
            may_wait,
        },
        GFP_KERNEL,
    )?;
    match submit(job, op, sector) {
        Ok(()) => Ok(Pending(ended)),
        Err((e, _)) => Err(e),
    }
}

hcablk_core::impl_has_slot!(Job, slot: BioSlot);

impl BioOwner for Job {
    fn device(&self) -> Option<&BlockDevice> {
        Some(&self.device)
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        self.pieces.iter().filter_map(|&(block, offset, length)| {
            Some(self.blocks.get(block)?.range(offset, length))
        })
    }

    fn may_wait(&self) -> bool {
        self.may_wait
    }

    fn done(mut self: KBox<Self>, result: Result<(), Status>) {
        if let Some(ended) = self.ended.take() {
            ended.change(|ended| *ended = Some((result, self)));
        }
    }
}
