// SPDX-License-Identifier: GPL-2.0

//! The transfer buffers of a request, and the memory that its data is in.

use super::{
    queue::Queue,
    request::TargetRequest, //
};
use crate::memory::{
    layout::{
        length_of,
        MEDIUM,
        SMALL, //
    },
    pool::Pool, //
};
use hcablk_core::{
    memory::pages::PageRange,
    p2p::PeerMemory,
    proto::message::Op,
    rdma::buffer::DmaBuffer, //
};
use kernel::sync::Arc;

impl TargetRequest {
    /// Takes buffers out of `pool`. Returns `false` if too few are free.
    #[inline(always)]
    pub(crate) fn take_buffers(&mut self, pool: &mut Pool) -> bool {
        let length = match self.op {
            Ok(Op::WriteInline { .. } | Op::WriteEager { .. }) => 0,
            _ => self.length(),
        };
        if length == 0 {
            self.size_class = MEDIUM;
            return true;
        }
        if pool.take_page(length, &mut self.shared) {
            self.size_class = SMALL;
            return true;
        }
        self.take_several(length, pool)
    }

    /// Takes buffers of any kind for `length` bytes, as [`Self::take_buffers`] does.
    #[inline(never)]
    fn take_several(&mut self, length: usize, pool: &mut Pool) -> bool {
        let memory = self.volume.peer_memory();
        let wants = memory.is_some();
        let Some(took) = pool.take(length, wants, &mut self.own, &mut self.shared) else {
            return false;
        };
        self.peer = memory.filter(|_| took.by_peer);
        self.own_count = took.own;
        self.size_class = took.size_class;
        true
    }

    /// Puts the buffers back into `pool`.
    #[inline]
    pub(crate) fn return_buffers(&mut self, pool: &mut Pool) {
        if self.own_count != 0 || self.peer.is_some() || self.lines.is_some() {
            self.return_own(pool);
        }
        if !self.shared.is_empty() {
            pool.give_shared(self.size_class, &mut self.shared);
        }
    }

    /// Puts the queue's own buffers back, and drops the reference to their peer memory.
    #[inline(never)]
    fn return_own(&mut self, pool: &mut Pool) {
        for number in self.own.iter().take(self.own_count) {
            pool.put_back(*number);
        }
        self.own_count = 0;
        self.peer = None;
        self.lines = None;
    }

    /// Returns the size in bytes of each of the buffers.
    #[inline]
    pub(crate) fn unit(&self) -> usize {
        length_of(self.size_class)
    }

    /// Returns the only buffer of the request, if that is a shared one and holds all the data, and
    /// none of the data belongs in peer memory or cache lines.
    #[inline]
    pub(crate) fn only_buffer(&self) -> Option<&DmaBuffer> {
        match self.shared.as_slice() {
            [buffer] if self.own_count == 0 && self.peer.is_none() && self.lines.is_none() => {
                Some(buffer)
            }
            _ => None,
        }
    }

    /// Returns the shared buffers; they precede the own ones.
    #[inline]
    pub(crate) fn shared(&self) -> &[Arc<DmaBuffer>] {
        &self.shared
    }

    /// Returns the numbers of the queue's own buffers that the request has.
    #[inline]
    pub(crate) fn own(&self) -> &[u16] {
        self.own.get(..self.own_count).unwrap_or(&[])
    }

    /// Iterates over the transfer buffers in order.
    #[inline]
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        Pieces {
            shared: self.shared.iter(),
            own: self.own().iter(),
            queue: &self.queue,
            unit: self.unit(),
            left: self.length(),
        }
    }

    /// Iterates over the RAM for the request's data: its transfer buffers, inline data or ring
    /// slot. Peer memory and cache lines of the request are ignored.
    pub(crate) fn ram_pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        self.buffer_pages(None, false)
    }

    /// Returns the number of the own buffer at `place`, on a volume without shared buffers.
    #[inline]
    pub(crate) fn own_buffer(&self, place: usize) -> Option<u16> {
        let used = self.own.get(..self.own_count)?;
        used.get(place).copied()
    }

    /// Iterates over the data in buffers. Peer memory `peer`, if given, replaces the transfer
    /// buffers. If the data is `in_lines` of the cache, returns only data that came with the
    /// request or through the eager ring.
    #[inline]
    pub(super) fn buffer_pages<'a>(
        &'a self,
        peer: Option<&'a PeerMemory>,
        in_lines: bool,
    ) -> impl Iterator<Item = PageRange<'a>> {
        let inline = self
            .inline()
            .map(|buffer| buffer.pages().range(0, self.length()));
        let eager_ring = self.eager_ring().map(|eager_ring| {
            let offset = self.ring_slot.offset as usize;
            eager_ring.ranges(offset, self.length())
        });
        let buffers = self.pieces().filter_map(move |piece| match peer {
            _ if in_lines => None,
            Some(memory) => memory.range(piece.number, 0, piece.length),
            None => Some(piece.buffer.pages().range(0, piece.length)),
        });
        let here = Iterator::chain(inline.into_iter(), eager_ring.into_iter().flatten());
        Iterator::chain(here, buffers)
    }
}

/// The iterator of [`TargetRequest::pieces`]. It is a named type because types of nested iterators
/// make symbols too long for the kernel.
pub(crate) struct Pieces<'a> {
    shared: core::slice::Iter<'a, Arc<DmaBuffer>>,
    own: core::slice::Iter<'a, u16>,
    queue: &'a Queue,
    /// Bytes of each buffer.
    unit: usize,
    /// Bytes of data not returned yet.
    left: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a>> {
        let (buffer, number) = match self.shared.next() {
            Some(shared) => (&**shared, Piece::SHARED),
            None => {
                let own = *self.own.next()?;
                (self.queue.buffer(own)?, own)
            }
        };
        let length = self.left.min(self.unit);
        self.left -= length;
        Some(Piece {
            buffer,
            number,
            length,
        })
    }
}

/// A transfer buffer with a part of a request's data.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) buffer: &'a DmaBuffer,
    /// The number of an own buffer, which is also the number of its peer memory; else
    /// [`Self::SHARED`].
    pub(crate) number: u16,
    /// Bytes of the data in the buffer.
    pub(crate) length: usize,
}

impl Piece<'_> {
    pub(crate) const SHARED: u16 = u16::MAX;
}
