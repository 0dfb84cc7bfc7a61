// SPDX-License-Identifier: GPL-2.0

//! A request whose data is in peer memory, and the copies where the HCA does not reach that.
//! A queue pair borrows that memory if its volume is of mode [p2p](crate::drive::p2p).

use super::request::Request;
use crate::{
    drive::{
        backing::Backing,
        cache::Cache,
        p2p::{
            find,
            Source,
            OUT_OF_REACH, //
        },
    },
    memory::layout::BUFFER_BYTES,
    p2p_virtual, //
};
use hcablk_core::{
    p2p::{
        memory::must_copy,
        Clients,
        PeerLease,
        PeerMemory, //
    },
    proto::message::Op,
    rdma::{
        buffer::DmaBuffer,
        pd::ProtectionDomain, //
    },
    report::trace,
    system::{
        may_print,
        Lines, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Request {
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
    #[inline(always)]
    pub(crate) fn bounce_to_drive(&self) {
        if let Some(memory) = &self.peer {
            self.copy_to_peer(memory);
        }
    }

    #[inline(never)]
    fn copy_to_peer(&self, memory: &PeerMemory) {
        if self.bounces() && !self.is_read() {
            self.for_each_ram(|number, ram, length| memory.copy_in(number, ram, 0, length));
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

/// Returns whether what came of queue pair `index` is to be logged: that of a session's first one,
/// with a rate limit, since whoever connects can cause it again and again.
fn may_say(index: u8) -> bool {
    index == 0 && may_print(Lines::Sizes)
}

/// Borrows peer memory for queue pair `index` if the volume `volume` wants it, and says what came
/// of it at a session's first one. Sleeps.
pub(crate) fn lease(
    volume: &dyn kernel::fmt::Display,
    backing: &Backing,
    pd: &Arc<ProtectionDomain>,
    index: u8,
    sinks: bool,
    buffers: usize,
) -> Option<PeerLease> {
    let source = backing.peers()?;
    match borrow(source, backing, pd, sinks, buffers) {
        Ok(lease) => {
            let memory = lease.memory()?;
            let how = if memory.is_mapped() {
                "without copies"
            } else {
                "by copies to and from RAM, which this RDMA device needs"
            };
            if may_say(index) {
                pr_info!(
                    "{volume}: uses memory of {}, {} KiB for the first queue, {how}\n",
                    *lease.provider(),
                    memory.len() >> 10
                );
            }
            Some(lease)
        }
        Err(why) => {
            if may_say(index) {
                pr_warn!("{volume}: no peer memory, RAM is used: {why}\n");
            }
            None
        }
    }
}

/// Returns the lines of the volume's cache for the HCA of a session's queue pair, if it does DMA to
/// them; logs at a session's first one if they are copied though others of the volume's memory need
/// not be. Sleeps.
pub(crate) fn view(
    volume: &dyn kernel::fmt::Display,
    backing: &Backing,
    pd: &Arc<ProtectionDomain>,
    index: u8,
    sinks: bool,
) -> Option<PeerLease> {
    let lines = backing.cache()?.lease()?;
    // Lost: that is said by whoever misses it.
    lines.memory()?;
    let drive = backing.device()?;
    if sinks || must_copy(pd) && !p2p_virtual() {
        return None;
    }
    let reached = lines
        .provider()
        .is_reached_by(&Clients::drive_and_hca(drive, pd));
    let view = match reached {
        true => lines.view(pd).ok(),
        false => None,
    };
    if view.is_none() && may_say(index) {
        pr_warn!("{volume}: this RDMA device does not reach the cache: it is copied to RAM\n");
    }
    view
}

/// Borrows peer memory for up to `buffers` transfer buffers that requests of
/// `pd`'s HCA use, registered for each if `sinks`; says why there is none
/// otherwise. Sleeps.
fn borrow(
    source: Source,
    backing: &Backing,
    pd: &Arc<ProtectionDomain>,
    sinks: bool,
    buffers: usize,
) -> Result<PeerLease, &'static str> {
    let drive = backing.device().ok_or("it is not a block device")?;
    if !drive.peers() {
        return Err("its drive does no DMA to other PCI devices");
    }
    let copies = sinks || must_copy(pd) && !p2p_virtual();
    let clients = if copies {
        Clients::drive(drive)
    } else {
        Clients::drive_and_hca(drive, pd)
    };
    // A drive takes memory of one device at a time: the cache's, if it has some.
    let provider = match backing.cache().and_then(Cache::lender) {
        Some(lender) if lender.is_reached_by(&clients) => lender.clone(),
        Some(_) => return Err(OUT_OF_REACH),
        None => find(source, &clients)?,
    };
    let mapped_for = (!copies).then_some(pd);
    PeerLease::new(&provider, buffers, BUFFER_BYTES, mapped_for).map_err(|e| match e {
        ENOMEM => "that device has no memory left to lend",
        _ => "the HCA cannot reach it",
    })
}
