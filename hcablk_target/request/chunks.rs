// SPDX-License-Identifier: GPL-2.0

//! The chunks that a request has, if its data moves by them.

use super::split::{
    ChunkProgress,
    CHUNKS_MAX, //
};
use hcablk_core::{
    blkdev::Status as DriveStatus,
    report::broken::push_into_room, //
};
use kernel::prelude::*;

/// Why a chunk did not move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Drive(DriveStatus),
    /// The session is ending.
    Wire,
}

/// A request's chunks.
pub(crate) struct IoChunks {
    pub(crate) numbers: [u16; CHUNKS_MAX],
    pub(crate) count: usize,
    pub(crate) progress: ChunkProgress<Failure>,
}

impl IoChunks {
    pub(crate) const NONE: Self = Self {
        numbers: [0; CHUNKS_MAX],
        count: 0,
        progress: ChunkProgress::NONE,
    };

    /// Returns whether the request has chunks.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.count != 0
    }

    /// Returns whether its data moves, or has moved, by them.
    #[inline]
    pub(crate) fn moves(&self) -> bool {
        self.progress.chunks() != 0
    }

    /// Returns the chunks that its data has moved in, and how many of them were
    /// passed on before the last had arrived.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.progress.chunks().into(), self.progress.early().into())
    }

    /// Gives the chunks back.
    #[inline]
    pub(crate) fn give(&mut self, free: &mut KVec<u16>) {
        if self.count != 0 {
            self.give_all(free);
        }
    }

    #[inline(never)]
    fn give_all(&mut self, free: &mut KVec<u16>) {
        for number in self.numbers.iter().take(self.count) {
            push_into_room(free, *number, "the list of free chunks has no room");
        }
        self.count = 0;
        self.progress = ChunkProgress::NONE;
    }

    /// Returns the numbers of the chunks in the queue's tables.
    pub(crate) fn numbers(&self) -> &[u16] {
        self.numbers.get(..self.count).unwrap_or(&[])
    }
}
