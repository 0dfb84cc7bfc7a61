// SPDX-License-Identifier: GPL-2.0

//! A request as the block layer, file systems and workqueues have it: where its data is, and to whom
//! its end is told.

use super::{
    Io,
    Owner, //
};
use hcablk_core::{
    blkdev::{
        BioOwner,
        BioSlot,
        BlockDevice,
        FileOwner,
        FileRef,
        FileSlot,
        Status, //
    },
    memory::pages::PageRange,
    proto::message::Op,
    rdma::buffer::DmaBuffer,
    sync::defer::{
        Deferred,
        WorkSlot, //
    },
};
use kernel::prelude::*;

hcablk_core::impl_has_slot!({O: Owner} Io<O>, slot: BioSlot);
hcablk_core::impl_has_slot!({O: Owner} Io<O>, file: FileSlot);
hcablk_core::impl_has_slot!({O: Owner} Io<O>, work: WorkSlot<Io<O>>);

impl<O: Owner> BioOwner for Io<O> {
    fn device(&self) -> Option<&BlockDevice> {
        self.owner.device()
    }

    #[inline(always)]
    fn piece(&self) -> Option<PageRange<'_>> {
        let length = self.length();
        match self.op {
            // What comes with a request has no transfer buffers.
            Ok(Op::WriteEager { .. }) => {
                let offset = self.ring_slot.offset as usize;
                self.eager_ring()?.range(offset, length)
            }
            Ok(Op::WriteInline { .. }) => whole(self.inline()?, length),
            _ => match self.only_buffer() {
                Some(buffer) => whole(buffer, length),
                None => self.first_piece(),
            },
        }
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        let buffers = self.buffer_pages(self.peer.as_deref(), self.is_in_lines());
        Iterator::chain(buffers, self.line_pages())
    }

    fn done(self: KBox<Self>, result: Result<(), Status>) {
        O::bio_done(self, result);
    }
}

/// Returns the pages of `length` bytes of `buffer`, if it has so many.
#[inline]
fn whole(buffer: &DmaBuffer, length: usize) -> Option<PageRange<'_>> {
    let range = buffer.pages().range(0, length);
    (range.length() as usize == length).then_some(range)
}

impl<O: Owner> Io<O> {
    /// Returns the memory of all of the data, if that is in its first transfer buffer.
    #[inline(never)]
    fn first_piece(&self) -> Option<PageRange<'_>> {
        if self.is_in_lines() || self.peer.is_some() {
            return None;
        }
        let (piece, length) = (self.pieces().next()?, self.length());
        whole(piece.buffer, length).filter(|_| piece.length == length)
    }
}

impl<O: Owner> FileOwner for Io<O> {
    fn file(&self) -> FileRef<'_> {
        self.owner.file()
    }

    fn completed(self: KBox<Self>, result: Result) {
        O::file_done(self, result);
    }
}

impl<O: Owner> Deferred for Io<O> {
    fn run(self: KBox<Self>) {
        O::run_deferred(self);
    }
}
