// SPDX-License-Identifier: GPL-2.0

//! Mode p2p: the drive's DMA goes to memory of a PCI device instead of RAM.
//!
//! | HCA | write | read |
//! |---|---|---|
//! | does DMA among PCI devices | RDMA READ to peer memory, drive reads it | drive writes it, RDMA WRITE from there |
//! | does not (soft-RoCE, siw, iWARP's registered memory) | RDMA READ to RAM, copied to peer memory | drive writes peer memory, copied to RAM |
//!
//! The second is a *bounce*: it keeps the drive off the memory bus, not the
//! processor, and is counted by itself (`p2p_bounce_bytes`).
//!
//! A buffer with peer memory has as much RAM beside it. A request falls back to
//! that, and is counted in `p2p_fallbacks`, when there is no peer memory, it was
//! called back or is in use, or when the page cache has what the request is
//! about. What a volume had to do without is logged when a session begins. The lines
//! of a cache are peer memory, too: see [`in_lines`](super::in_lines).
//!
//! A queue has a [`PeerLease`](hcablk_core::p2p::PeerLease). A request that got buffers of it holds a
//! reference to the memory until it is idle again; one that is given up leaves that with its queue,
//! so that an unbinding waits until the queue pair is destroyed. How a
//! provider that is unbound gets its memory back is described with the lease.
//!
//! The module's parameter `p2p_virtual=1` takes soft-RoCE for an HCA that does DMA to PCI
//! devices: on x86 the kernel's address of peer memory works as ordinary memory does. It is there
//! for tests of the branch that is for real HCAs.

use crate::{
    memory::layout::BUFFER_BYTES,
    request::Io,
    session::Session,
    storage::{
        backing::Backing,
        cache::Cache, //
    }, //
};
use hcablk_core::{
    blkdev::BlockDevice,
    p2p::{
        memory::must_copy,
        Clients,
        PciAddress,
        PeerLease,
        PeerMemory,
        Provider, //
    },
    proto::message::Op,
    rdma::{
        buffer::DmaBuffer,
        pd::ProtectionDomain, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Which device shall lend memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Whichever is nearest to the drive and the HCA.
    Nearest,
    Named(PciAddress),
}

impl Source {
    /// Parses a source. Errors: `EINVAL` when it is neither `auto` nor a PCI address.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Nearest),
            _ => PciAddress::parse(text).map(Self::Named).ok_or(EINVAL),
        }
    }
}

impl core::fmt::Display for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nearest => f.write_str("auto"),
            Self::Named(address) => address.fmt(f),
        }
    }
}

/// Borrows peer memory for a queue pair if the volume wants it, and says what came
/// of it at a session's first one. Sleeps.
pub(crate) fn lease(
    session: &Session,
    backing: &Backing,
    index: u8,
    sinks: bool,
    buffers: usize,
) -> Option<PeerLease> {
    let source = backing.peers()?;
    let volume = &**session.volume();
    match borrow(source, backing, session.pd(), sinks, buffers) {
        Ok(lease) => {
            let memory = lease.memory()?;
            let how = if memory.is_mapped() {
                "without copies"
            } else {
                "by copies to and from RAM, which this RDMA device needs"
            };
            if index == 0 {
                pr_info!(
                    "{volume}: uses memory of {}, {} KiB for the first queue, {how}\n",
                    *lease.provider(),
                    memory.len() >> 10
                );
            }
            Some(lease)
        }
        Err(why) => {
            if index == 0 {
                pr_warn!("{volume}: no peer memory, RAM is used: {why}\n");
            }
            None
        }
    }
}

const OUT_OF_REACH: &str = "the drive and the HCA do not reach that device";

/// Finds the device that is to lend memory to `clients`; the error is the reason why there is none.
/// Sleeps.
fn find(source: Source, clients: &Clients<'_>) -> Result<Arc<Provider>, &'static str> {
    let provider = match source {
        Source::Nearest => Provider::nearest(clients)
            .ok_or("no device lends memory that the drive and the HCA reach")?,
        Source::Named(address) => {
            let provider = Provider::named(address).ok_or("there is no such PCI device")?;
            if !provider.is_reached_by(clients) {
                return Err(OUT_OF_REACH);
            }
            provider
        }
    };
    Arc::new(provider, GFP_KERNEL).map_err(|_| "there is no memory for its books")
}

/// Borrows `pieces` pieces of `bytes` bytes for a cache of what is on `drive`: all of
/// them, or says why there are none. Which HCAs will use it is not known yet, so it is
/// mapped for none. Sleeps.
pub(crate) fn borrow_lines(
    source: Source,
    drive: &BlockDevice,
    pieces: usize,
    bytes: usize,
) -> Result<PeerLease, &'static str> {
    if !drive.peers() {
        return Err("its drive does no DMA to other PCI devices");
    }
    let provider = find(source, &Clients::drive(drive))?;
    let scarce = "that device has not so much memory left to lend";
    let lease = PeerLease::new(&provider, pieces, bytes, None).map_err(|_| scarce)?;
    let got = lease.memory().map_or(0, |memory| memory.pieces());
    if got != pieces {
        return Err(scarce);
    }
    Ok(lease)
}

/// Returns the lines of the volume's cache for the HCA of a session's queue pair, if it does DMA to
/// them; logs at a session's first one if they are copied though others of the volume's memory need
/// not be. Sleeps.
pub(crate) fn view(
    session: &Session,
    backing: &Backing,
    index: u8,
    sinks: bool,
) -> Option<PeerLease> {
    let lines = backing.cache()?.lease()?;
    // Lost: that is said by whoever misses it.
    lines.memory()?;
    let (drive, pd) = (backing.device()?, session.pd());
    if sinks || must_copy(pd) && !crate::p2p_virtual() {
        return None;
    }
    let reached = lines
        .provider()
        .is_reached_by(&Clients::drive_and_hca(drive, pd));
    let view = match reached {
        true => lines.view(pd).ok(),
        false => None,
    };
    if view.is_none() && index == 0 {
        pr_warn!(
            "{}: this RDMA device does not reach the cache: it is copied to RAM\n",
            **session.volume()
        );
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
    let copies = sinks || must_copy(pd) && !crate::p2p_virtual();
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

impl Io {
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
