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

    #[inline]
    fn piece(&self) -> Option<PageRange<'_>> {
        if let Some(buffer) = self.only_buffer() {
            let range = buffer.pages().range(0, self.length());
            return (range.length() as usize == self.length()).then_some(range);
        }
        if self.is_in_lines() || self.peer.is_some() {
            return None;
        }
        let length = self.length();
        let range = match self.op {
            Ok(Op::WriteInline { .. }) => self.inline()?.pages().range(0, length),
            Ok(Op::WriteEager { .. }) => self
                .eager_ring()?
                .range(self.ring_slot.offset as usize, length)?,
            _ => {
                let piece = self.pieces().next()?;
                piece.buffer.pages().range(0, piece.length)
            }
        };
        (range.length() as usize == length).then_some(range)
    }

    fn pages(&self) -> impl Iterator<Item = PageRange<'_>> {
        let buffers = self.buffer_pages(self.peer.as_deref(), self.is_in_lines());
        Iterator::chain(buffers, self.line_pages())
    }

    fn done(self: KBox<Self>, result: Result<(), Status>) {
        O::bio_done(self, result);
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
