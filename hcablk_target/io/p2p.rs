// SPDX-License-Identifier: GPL-2.0

//! Handles a request whose data is in peer memory, and copies it where the HCA does not reach that
//! memory. A queue pair borrows peer memory if its volume is of mode [p2p](crate::drive::p2p).

use super::request::TargetRequest;
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

impl TargetRequest {
    /// Returns whether the HCA moves this request's data to or from RAM.
    #[inline]
    pub(crate) fn wire_in_ram(&self) -> bool {
        !self.peer_data().is_some_and(|memory| memory.is_mapped())
    }

    /// Returns whether a processor copies the data between RAM and peer memory.
    #[inline]
    pub(crate) fn bounces(&self) -> bool {
        self.peer_data().is_some_and(|memory| !memory.is_mapped())
    }

    /// Returns the peer memory that the data is in. The data of a read may be partly in lines and
    /// partly in other peer memory: then the HCA reaches both, or neither.
    #[inline]
    fn peer_data(&self) -> Option<&PeerMemory> {
        self.lines.as_deref().or(self.peer.as_deref())
    }

    /// Returns the kind of memory that holds the data, for trace events.
    pub(super) fn memory(&self) -> trace::Memory {
        trace::Memory::from_mapped(self.peer_data().map(|memory| memory.is_mapped()))
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

    /// Copies the data to the memory from which the drive reads it. Any context.
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

    /// Copies the data that the drive has read to the memory from which the HCA sends it. Any
    /// context.
    pub(crate) fn bounce_to_wire(&self) {
        if self.bounces() {
            self.copy_to_ram();
        }
    }

    /// Moves the request's data to RAM, and drops the peer memory.
    pub(crate) fn leave_peer(&mut self) {
        let copies = self.peer.is_some() && !self.bounces() && !self.is_read();
        if copies {
            self.copy_to_ram();
        }
        self.peer = None;
        self.lines = None;
        if copies {
            // The drive reads the buffers through its own mapping. The HCA may be the next to write
            // there.
            self.sync_for_hca();
        }
    }

    /// Makes visible to the HCA what processors have written to the request's buffers in RAM, if
    /// the HCA moves the data from or to these. Any context.
    #[inline]
    pub(super) fn sync_for_hca(&self) {
        if self.wire_in_ram() {
            for piece in self.pieces() {
                piece.buffer.sync_for_device(0, piece.length);
            }
        }
    }
}

/// Returns whether to log a message about queue pair `index`: only for a session's first
/// one, and rate-limited, since any peer can cause it repeatedly by connecting.
fn may_log(index: u8) -> bool {
    index == 0 && may_print(Lines::Sizes)
}

/// Borrows peer memory for queue pair `index` if the volume `volume` wants it, and logs the result
/// for a session's first queue pair. Sleeps.
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
                "with copies through RAM, which this RDMA device needs"
            };
            if may_log(index) {
                pr_info!(
                    "{volume}: uses memory of {}, {} KiB for the first queue, {how}\n",
                    *lease.provider(),
                    memory.len() >> 10
                );
            }
            Some(lease)
        }
        Err(why) => {
            if may_log(index) {
                pr_warn!("{volume}: no peer memory, RAM is used: {why}\n");
            }
            None
        }
    }
}

/// Returns the lines of the volume's cache as mapped for the HCA of a session's queue pair, if the
/// HCA reaches them. Logs, for a session's first queue pair, that the lines must be copied although
/// the volume's other memory need not be. Sleeps.
pub(crate) fn view(
    volume: &dyn kernel::fmt::Display,
    backing: &Backing,
    pd: &Arc<ProtectionDomain>,
    index: u8,
    sinks: bool,
) -> Option<PeerLease> {
    let lines = backing.cache()?.lease()?;
    // If the memory is lost, the first request that enters the cache reports that.
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
    if view.is_none() && may_log(index) {
        pr_warn!(
            "{volume}: this RDMA device does not reach the cache: a CPU copies each hit to RAM\n"
        );
    }
    view
}

/// Borrows peer memory for up to `buffers` transfer buffers, for requests on the HCA of `pd`. With
/// `sinks`, or if the HCA does no DMA to PCI devices, only the drive uses the memory. Otherwise
/// returns the reason why there is none. Sleeps.
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
    // A drive accepts memory of only one device in one bio: the cache's, if the cache is in peer
    // memory.
    let provider = match backing.cache().and_then(Cache::lender) {
        Some(lender) if lender.is_reached_by(&clients) => lender.clone(),
        Some(_) => return Err(OUT_OF_REACH),
        None => find(source, &clients)?,
    };
    let mapped_for = (!copies).then_some(pd);
    PeerLease::new(&provider, buffers, BUFFER_BYTES, mapped_for).map_err(|e| match e {
        ENOMEM => "the provider has no memory left to lend",
        EBUSY => "the provider's driver is being changed",
        _ => "the HCA cannot reach the provider's memory",
    })
}
