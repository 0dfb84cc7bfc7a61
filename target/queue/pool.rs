// SPDX-License-Identifier: GPL-2.0

//! The transfer buffers of a queue that are free, by number.

use super::choice::{
    choose,
    Choice,
    Free, //
};
use kernel::prelude::*;

/// Those below `peers` have peer memory beside their RAM. There is room for
/// every buffer in its list, and for nothing else.
pub(crate) struct Pool {
    ram: KVec<u16>,
    peer: KVec<u16>,
    peers: u16,
}

impl Pool {
    /// All of `buffers` are free. May sleep.
    pub(super) fn new(buffers: usize, peers: usize) -> Result<Self> {
        let peers = u16::try_from(peers.min(buffers))?;
        let list = |range: core::ops::Range<u16>| -> Result<KVec<u16>> {
            let mut list = KVec::with_capacity(range.len(), GFP_KERNEL)?;
            // The lowest are taken first.
            for buffer in range.rev() {
                list.push(buffer, GFP_KERNEL)?;
            }
            Ok(list)
        };
        Ok(Self {
            ram: list(peers..u16::try_from(buffers)?)?,
            peer: list(0..peers)?,
            peers,
        })
    }

    /// Fills `places`: `Some(true)` with buffers whose peer memory is to be
    /// used, as `wants` asks; `Some(false)` with others; `None`: it must wait.
    pub(crate) fn take(&mut self, places: &mut [u16], wants: bool) -> Option<bool> {
        let free = Free {
            ram: self.ram.len(),
            peer: self.peer.len(),
            peers: self.peers.into(),
        };
        let choice = choose(places.len(), wants, free);
        for place in places {
            let buffer = match choice {
                Choice::Wait => None,
                Choice::Peer => self.peer.pop(),
                Choice::Ram => self.ram.pop(),
                Choice::Any => self.ram.pop().or_else(|| self.peer.pop()),
            };
            *place = buffer?;
        }
        match choice {
            Choice::Wait => None,
            choice => Some(choice == Choice::Peer),
        }
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: u16) {
        let list = if buffer < self.peers {
            &mut self.peer
        } else {
            &mut self.ram
        };
        let _ = list.push_within_capacity(buffer);
    }
}
