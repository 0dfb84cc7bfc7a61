// SPDX-License-Identifier: GPL-2.0

//! The eager ring: memory to which a peer may write during the life of its queue pair, and into
//! which an initiator puts the data of eager writes. The account of its slots is
//! [`proto::eager_ring`](crate::proto::eager_ring).
//!
//! The peer can write to all of it at any time, also while a drive takes data from there; it
//! cannot read it. So the ring holds nothing but the data of that peer's writes: it is cleared
//! when it is allocated, is never used for anything else, and no decision depends on its contents.

use crate::{
    memory::pages::PageRange,
    proto::eager_ring::{
        EagerRingGrant,
        BYTES_MAX,
        UNIT, //
    },
    rdma::{
        buffer::DmaBuffer,
        device::Attributes,
        exposed::ExposedBuffers,
        mr::REGION_PAGE,
        pd::ProtectionDomain,
        wr::Register, //
    },
    system, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// log2 of the pages of a piece.
const ORDER: u32 = 3;
/// Bytes of a piece.
const PIECE: usize = PAGE_SIZE << ORDER;

const _: () = assert!(PIECE % UNIT as usize == 0);

/// The eager ring of a queue pair, in one memory region.
pub struct EagerRing {
    pieces: ExposedBuffers,
    grant: EagerRingGrant,
}

impl EagerRing {
    /// Returns the size of the largest ring, at most `bytes` bytes, that the device can have in one
    /// region.
    pub fn fit(attributes: Attributes, bytes: usize) -> usize {
        let region = attributes.max_fast_reg_pages as usize * REGION_PAGE as usize;
        let bytes = bytes.min(region).min(BYTES_MAX as usize);
        bytes - bytes % PIECE
    }

    /// Returns the maximum number of pieces over which `bytes` bytes of the ring are spread.
    pub const fn pieces(bytes: usize) -> usize {
        bytes.div_ceil(PIECE) + 1
    }

    /// Allocates a ring of `bytes` bytes, which [`Self::fit`] has returned. May sleep. Fails with
    /// `EINVAL` for 0 or another length, and with `ENOMEM`.
    pub fn new(pd: &Arc<ProtectionDomain>, bytes: usize) -> Result<Self> {
        let count = bytes / PIECE;
        if count == 0 || bytes % PIECE != 0 || bytes > BYTES_MAX as usize {
            return Err(EINVAL);
        }
        // The upper half of addresses is random, so that a peer without the grant must guess it.
        let base = system::random_u64() as u32;
        let pieces = ExposedBuffers::new(pd, count, ORDER, base)?;
        Ok(Self {
            grant: EagerRingGrant {
                bytes: bytes as u32,
                key: pieces.remote().key,
                base,
            },
            pieces,
        })
    }

    /// Returns the work request that registers the ring for the peer's writes. Post it once, before
    /// the first message to the peer on this queue pair, after which the peer may write. The
    /// registration ends with the object.
    pub fn register(&self) -> Result<Register<'_>> {
        self.pieces.register()
    }

    /// Ends the peer's access to the ring and unmaps it; its memory stays, since a drive may use
    /// it. Fails if the device refuses, and may then be called again. The caller must have drained
    /// the queue pair. Sleeps.
    pub fn sever(&self) -> Result {
        self.pieces.sever()
    }

    /// Returns the size, key and address of the ring, for the peer.
    pub fn grant(&self) -> EagerRingGrant {
        self.grant
    }

    /// Returns the pieces that hold `length` bytes from `offset`, each with its part of these.
    #[inline]
    fn parts(&self, offset: usize, length: usize) -> Parts<'_> {
        let first = offset / PIECE;
        let all = self.pieces.buffers();
        let end = (offset + length).min(all.len() * PIECE);
        let pieces = all.get(first..end.div_ceil(PIECE));
        Parts {
            pieces: pieces.unwrap_or(&[]).iter(),
            begin: first * PIECE,
            offset,
            end,
        }
    }

    /// Makes the peer's writes to `length` bytes from `offset` visible to the processor.
    #[inline]
    pub fn sync_for_cpu(&self, offset: usize, length: usize) {
        if !self.pieces.syncs() {
            return;
        }
        for (piece, from, length) in self.parts(offset, length) {
            piece.sync_for_cpu(from, length);
        }
    }

    /// Makes `length` bytes from `offset` ready for the next writes of the peer.
    #[inline]
    pub fn sync_for_device(&self, offset: usize, length: usize) {
        if !self.pieces.syncs() {
            return;
        }
        for (piece, from, length) in self.parts(offset, length) {
            piece.sync_for_device(from, length);
        }
    }

    /// Returns the pages of `length` bytes from `offset`, as [`Self::ranges`] does, if they are in
    /// one piece.
    #[inline]
    pub fn range(&self, offset: usize, length: usize) -> Option<PageRange<'_>> {
        let piece = self.pieces.buffers().get(offset / PIECE)?;
        let range = piece.pages().range(offset % PIECE, length);
        (range.length() as usize == length).then_some(range)
    }

    /// Returns the pages of `length` bytes from `offset`, for the drive.
    #[inline]
    pub fn ranges(&self, offset: usize, length: usize) -> Ranges<'_> {
        Ranges(self.parts(offset, length))
    }
}

/// An iterator with a name of its own: the name of a composed iterator type would be too long for a
/// symbol.
struct Parts<'a> {
    pieces: core::slice::Iter<'a, DmaBuffer>,
    /// Where the next piece begins.
    begin: usize,
    offset: usize,
    end: usize,
}

impl<'a> Iterator for Parts<'a> {
    type Item = (&'a DmaBuffer, usize, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.pieces.next()?;
        let begin = self.begin;
        self.begin += PIECE;
        let from = self.offset.max(begin) - begin;
        let to = self.end.min(begin + PIECE) - begin;
        Some((piece, from, to - from))
    }
}

/// The iterator that [`EagerRing::ranges`] returns.
pub struct Ranges<'a>(Parts<'a>);

impl<'a> Iterator for Ranges<'a> {
    type Item = PageRange<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (piece, from, length) = self.0.next()?;
        Some(piece.pages().range(from, length))
    }
}
