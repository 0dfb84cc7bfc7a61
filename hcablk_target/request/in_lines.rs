// SPDX-License-Identifier: GPL-2.0

//! Reads whose data is in the lines of their volume's cache, which are peer memory,
//! and not in transfer buffers.
//!
//! ```text
//!           hit                                                     HCA does DMA to PCI devices
//!  read ──┬─────────────────────────────► in lines ──┬─ RDMA WRITE from the lines ──────► left
//!         └─ miss: the drive's DMA to lines ──┘      └─ copied to RAM (a bounce) ───────► left
//! ```
//!
//! # Why nothing is copied between peer memory
//!
//! A processor reads peer memory over the bus, a few bytes for each round trip, and
//! waits for each. So a line is never filled by copying out of a transfer buffer in
//! peer memory: the drive's DMA goes to the line at once, by the bio that
//! puts into transfer buffers what is not to be kept. And a hit is sent from the
//! line. What a processor does copy is what it has in RAM anyway: the data of
//! writes, and of reads that went by RAM, is put *into* lines, which is as fast as
//! the bus, since nobody waits for a store. A write whose data is nowhere but in
//! peer memory drops the lines that it changes: the next read fills them by DMA.
//!
//! # When a read is not in lines
//!
//! A drive takes memory of one kind at a time. A read of which some is to be kept,
//! and the rest would be in RAM (no peer memory was free), goes by RAM altogether,
//! and is copied to the lines. One whose lines are more pieces than the HCA gathers
//! by one RDMA WRITE is copied to RAM first, as if the HCA did no DMA there.
//!
//! # Lifetime
//!
//! `Io::lines` is the reference to the lines' memory, from when the request enters the cache
//! until the request is idle; a provider that is unbound waits for it. If the HCA
//! sends from there, the request's visit has its lines pinned until the
//! answer's send has completed: reclaiming unpins them. That completion
//! may be found as late as the next keep-alive (see the queue's CQ notification); a line that is written meanwhile is of no use until then.

use super::{
    Io,
    Owner, //
};
use crate::memory::layout::BUFFER_BYTES;
use core::cmp::min;
use hcablk_core::{
    logic::mq::lines::{
        LINE,
        LINE_SHIFT, //
    },
    memory::pages::PageRange,
    p2p::PeerMemory,
    rdma::wr::Sge, //
};
use kernel::page::PAGE_SIZE;

/// Pages that are allocated together for lines, as a power of two.
pub(crate) const BLOCK_ORDER: u32 = 3;
/// Lines in them.
pub(crate) const BLOCK_LINES: usize = (PAGE_SIZE << BLOCK_ORDER) >> LINE_SHIFT;

/// Returns the piece of the lines' memory that the line in `slot` is in, and the byte there of the
/// line's byte `within`.
pub(crate) fn place_of(slot: u32, within: usize) -> (u32, usize) {
    let lines = BLOCK_LINES as u32;
    (slot / lines, (slot % lines) as usize * LINE + within)
}

/// A part of a request's data, that does not reach into another line or transfer buffer.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// The line's slot, if the request may use it, and the first byte there.
    line: Option<(u32, usize)>,
    /// The transfer buffer, and the first byte there.
    buffer: (u16, usize),
    length: usize,
}

impl Part {
    /// Returns whether the request may use its line.
    pub(crate) fn is_in_line(self) -> bool {
        self.line.is_some()
    }
}

impl<O: Owner> Io<O> {
    /// Iterates over the data in order, split at the borders of lines and of transfer buffers.
    pub(crate) fn parts(&self) -> Parts<'_, O> {
        Parts {
            io: self,
            at: 0,
            length: self.length(),
            offset: self.extent().map_or(0, |extent| extent.offset),
        }
    }

    /// Returns whether the data is, or is going to be, in lines of peer memory.
    #[inline]
    pub(crate) fn is_in_lines(&self) -> bool {
        self.lines.is_some()
    }

    /// Iterates over the data as a drive takes it, if it is in lines; else over nothing.
    pub(crate) fn line_pages(&self) -> LinePages<'_, O> {
        LinePages(self.lines.as_deref().map(|lines| (lines, self.parts())))
    }

    /// Puts what an HCA is told of the data into `sges`, if that is in lines that it
    /// reaches; how many these are. `None`: it takes the data from transfer buffers.
    #[inline]
    pub(crate) fn line_sges(&self, sges: &mut [Sge]) -> Option<usize> {
        let lines = self.lines.as_ref().filter(|lines| lines.is_mapped())?;
        let mut count = 0;
        for (part, sge) in self.parts().zip(sges) {
            *sge = match part.line {
                Some((slot, within)) => {
                    let (piece, offset) = place_of(slot, within);
                    lines.sge(piece, offset, part.length)?
                }
                None => {
                    let (buffer, skip) = part.buffer;
                    self.peer.as_ref()?.sge(buffer, skip, part.length)?
                }
            };
            count += 1;
        }
        Some(count)
    }

    /// Copies the data from the lines in `lines`, and what is not there from peer memory, to
    /// the RAM of the transfer buffers; how many bytes that were.
    pub(crate) fn load_lines(&self, lines: &PeerMemory) -> u64 {
        let mut copied = 0;
        for part in self.parts() {
            let (buffer, skip) = part.buffer;
            let Some(ram) = self.owner.buffer(buffer) else {
                continue;
            };
            let ram = ram.pages().range(skip, part.length);
            copied += match (part.line, &self.peer) {
                (Some((slot, within)), _) => {
                    let (piece, offset) = place_of(slot, within);
                    lines.load(piece, offset, ram)
                }
                (None, Some(peer)) => peer.load(buffer, skip, ram),
                (None, None) => 0,
            };
        }
        copied as u64
    }
}

/// What [`Io::parts`] returns. It has a name, since those of types that are made of
/// many iterators are too long for the kernel's symbols.
pub(crate) struct Parts<'a, O: Owner> {
    io: &'a Io<O>,
    /// Bytes that are done with, of how many.
    at: usize,
    length: usize,
    /// Where the data begins on the volume.
    offset: u64,
}

impl<O: Owner> Iterator for Parts<'_, O> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let from = self.at % BUFFER_BYTES;
        let place = self.offset + self.at as u64;
        let within = place as usize & (LINE - 1);
        let left = self.length.checked_sub(self.at).filter(|left| *left != 0)?;
        let length = min(LINE - within, min(BUFFER_BYTES - from, left));
        let slot = self.io.visit.slot(place >> LINE_SHIFT);
        let part = Part {
            line: slot.map(|slot| (slot, within)),
            buffer: (self.io.own_buffer(self.at / BUFFER_BYTES)?, from),
            length,
        };
        self.at += length;
        Some(part)
    }
}

/// What [`Io::line_pages`] returns.
pub(crate) struct LinePages<'a, O: Owner>(Option<(&'a PeerMemory, Parts<'a, O>)>);

impl<'a, O: Owner> Iterator for LinePages<'a, O> {
    type Item = PageRange<'a>;

    fn next(&mut self) -> Option<PageRange<'a>> {
        let (lines, parts) = self.0.as_mut()?;
        let part = parts.next()?;
        match part.line {
            Some((slot, within)) => {
                let (piece, offset) = place_of(slot, within);
                lines.range(piece, offset, part.length)
            }
            None => {
                let (buffer, from) = part.buffer;
                parts.io.peer.as_ref()?.range(buffer, from, part.length)
            }
        }
    }
}
