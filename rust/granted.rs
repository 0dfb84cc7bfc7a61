// SPDX-License-Identifier: GPL-2.0

//! Memory that a peer may write to as long as its queue pair lives: where an
//! initiator puts the data of writes. Which part it may use when is the account's
//! business ([`proto::grant`](crate::proto::grant)).
//!
//! The peer can write into all of it at any time, also while a drive takes data
//! from there; it cannot read it. So it is nothing but the data of that peer's
//! writes: cleared when it is made, never used for anything else, and never looked
//! at by what decides something.

use crate::{
    pages::PageRange,
    proto::grant::{
        Grant,
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
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// In place of what tells requests' regions apart: the upper half of addresses.
const COOKIE: u32 = 0x6772_6e74;

/// log2 of the pages of a piece.
const ORDER: u32 = 3;
/// Bytes of a piece.
const PIECE: usize = PAGE_SIZE << ORDER;

const _: () = assert!(PIECE % UNIT as usize == 0);

/// Granted memory, in one memory region.
pub struct Granted {
    pieces: ExposedBuffers,
    grant: Grant,
}

impl Granted {
    /// How much of `bytes` bytes a device can have in one region.
    pub fn fit(attributes: Attributes, bytes: usize) -> usize {
        let region = attributes.max_fast_reg_pages as usize * REGION_PAGE as usize;
        let bytes = bytes.min(region).min(BYTES_MAX as usize);
        bytes - bytes % PIECE
    }

    /// Pieces that `bytes` bytes of it may be spread over.
    pub const fn pieces(bytes: usize) -> usize {
        bytes.div_ceil(PIECE) + 1
    }

    /// Makes `bytes` bytes, which [`Self::fit`] has said and are not 0. May sleep.
    pub fn new(pd: &Arc<ProtectionDomain>, bytes: usize) -> Result<Self> {
        let count = bytes / PIECE;
        if count == 0 || bytes % PIECE != 0 || bytes > BYTES_MAX as usize {
            return Err(EINVAL);
        }
        let pieces = ExposedBuffers::new(pd, count, ORDER, COOKIE)?;
        Ok(Self {
            grant: Grant {
                bytes: bytes as u32,
                key: pieces.remote().key,
                base: COOKIE,
            },
            pieces,
        })
    }

    /// The work request that lets the peer write. To be posted once, before any
    /// message from which the peer may conclude that it may; the right ends with
    /// the object.
    pub fn register(&self) -> Register<'_> {
        self.pieces.register()
    }

    /// What to tell the peer.
    pub fn grant(&self) -> Grant {
        self.grant
    }

    /// The pieces with `length` bytes from `offset`, each with the part of it.
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

    /// What the peer has written to `length` bytes from `offset` becomes visible.
    #[inline]
    pub fn sync_for_cpu(&self, offset: usize, length: usize) {
        for (piece, from, length) in self.parts(offset, length) {
            piece.sync_for_cpu(from, length);
        }
    }

    /// `length` bytes from `offset` are the peer's again.
    #[inline]
    pub fn sync_for_device(&self, offset: usize, length: usize) {
        for (piece, from, length) in self.parts(offset, length) {
            piece.sync_for_device(from, length);
        }
    }

    /// The pages of `length` bytes from `offset`, for the drive.
    #[inline]
    pub fn ranges(&self, offset: usize, length: usize) -> Ranges<'_> {
        Ranges(self.parts(offset, length))
    }
}

/// A type with a name: that of an iterator made of others is too long for a
/// symbol where it is part of another.
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

/// What [`Granted::ranges`] returns.
pub struct Ranges<'a>(Parts<'a>);

impl<'a> Iterator for Ranges<'a> {
    type Item = PageRange<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (piece, from, length) = self.0.next()?;
        Some(piece.pages().range(from, length))
    }
}
