// SPDX-License-Identifier: GPL-2.0

//! A request whose data is in peer memory, and the copies where the HCA does not reach that.

use super::{
    Io,
    Owner, //
};
use hcablk_core::{
    p2p::PeerMemory,
    proto::message::Op,
    rdma::buffer::DmaBuffer,
    report::trace, //
};

impl<O: Owner> Io<O> {
    /// Returns whether the HCA moves this request's data from and to RAM.
    #[inline]
    pub(crate) fn wire_in_ram(&self) -> bool {
        !self.peer_data().is_some_and(|memory| memory.is_mapped())
    }

    /// Returns whether a processor copies the data between RAM and peer memory.
    #[inline]
    pub(crate) fn bounces(&self) -> bool {
        self.peer_data().is_some_and(|memory| !memory.is_mapped())
    }

    /// Returns the peer memory that the data is in. A read in lines may have some of it in both:
    /// then the HCA reaches both, or neither.
    #[inline]
    fn peer_data(&self) -> Option<&PeerMemory> {
        self.lines.as_deref().or(self.peer.as_deref())
    }

    /// Returns where the data is, for trace events.
    pub(super) fn memory(&self) -> trace::Memory {
        trace::Memory::of(self.peer_data().map(|memory| memory.is_mapped()))
    }

    fn is_read(&self) -> bool {
        matches!(self.op, Ok(Op::Read(..)))
    }

    fn for_each_ram(&self, mut f: impl FnMut(u16, &DmaBuffer, usize)) {
        for piece in self.pieces() {
            f(piece.number, piece.buffer, piece.length);
        }
    }

    fn copy_to_ram(&self) {
        if let Some(lines) = &self.lines {
            self.load_lines(lines);
        } else if let Some(memory) = &self.peer {
            self.for_each_ram(|number, ram, length| memory.copy_out(number, ram, 0, length));
        }
    }

    /// Copies the data to where the drive reads it, before it does. Any context.
    pub(crate) fn bounce_to_drive(&self) {
        match &self.peer {
            Some(memory) if self.bounces() && !self.is_read() => {
                self.for_each_ram(|number, ram, length| memory.copy_in(number, ram, 0, length));
            }
            _ => {}
        }
    }

    /// Copies the data that the drive has written to where the HCA takes it from. Any context.
    pub(crate) fn bounce_to_wire(&self) {
        if self.bounces() {
            self.copy_to_ram();
        }
    }

    /// Goes on in RAM, with the data.
    pub(crate) fn leave_peer(&mut self) {
        if self.peer.is_some() && !self.bounces() && !self.is_read() {
            self.copy_to_ram();
        }
        self.peer = None;
        self.lines = None;
    }
}
