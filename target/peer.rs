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
//! about. What a volume had to do without is said when a session begins.

use crate::{
    backing::Backing,
    io::Io,
    queue::CHUNK_BYTES,
    session::Session, //
};
use hcablk_core::{
    p2p::{
        memory::must_copy,
        Clients,
        Loan,
        PciAddress,
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
    /// `EINVAL` when it is neither `auto` nor a PCI address.
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
pub(crate) fn loan(
    session: &Session,
    backing: &Backing,
    index: u8,
    sinks: bool,
    buffers: usize,
) -> Option<Loan> {
    let source = backing.peers()?;
    let volume = &**session.volume();
    match borrow(source, backing, session.pd(), sinks, buffers) {
        Ok(loan) => {
            let memory = loan.memory()?;
            let how = if memory.is_mapped() {
                "without copies"
            } else {
                "by copies to and from RAM, which this RDMA device needs"
            };
            if index == 0 {
                pr_info!(
                    "{volume}: uses memory of {}, {} KiB for the first queue, {how}\n",
                    *loan.provider(),
                    memory.len() >> 10
                );
            }
            Some(loan)
        }
        Err(why) => {
            if index == 0 {
                pr_warn!("{volume}: no peer memory, RAM is used: {why}\n");
            }
            None
        }
    }
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
) -> Result<Loan, &'static str> {
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
    let provider = match source {
        Source::Nearest => Provider::nearest(&clients)
            .ok_or("no device lends memory that the drive and the HCA reach")?,
        Source::Named(address) => {
            let provider = Provider::named(address).ok_or("there is no such PCI device")?;
            if !provider.is_reached_by(&clients) {
                return Err("the drive and the HCA do not reach that device");
            }
            provider
        }
    };
    let no_memory = "there is no memory for its books";
    let provider = Arc::new(provider, GFP_KERNEL).map_err(|_| no_memory)?;
    let mapped_for = (!copies).then_some(pd);
    Loan::new(&provider, buffers, CHUNK_BYTES, mapped_for).map_err(|e| match e {
        ENOMEM => "that device has no memory left to lend",
        _ => "the HCA cannot reach it",
    })
}

impl Io {
    /// Whether the HCA moves this request's data from and to RAM.
    #[inline]
    pub(crate) fn wire_in_ram(&self) -> bool {
        !self.peer.as_ref().is_some_and(|memory| memory.is_mapped())
    }

    /// Whether a processor copies the data between RAM and peer memory.
    #[inline]
    pub(crate) fn bounces(&self) -> bool {
        self.peer.as_ref().is_some_and(|memory| !memory.is_mapped())
    }

    fn is_read(&self) -> bool {
        matches!(self.op, Ok(Op::Read(..)))
    }

    fn for_each_ram(&self, mut f: impl FnMut(u16, &DmaBuffer, usize)) {
        for (chunk, length) in self.chunks() {
            if let Some(buffer) = self.queue.buffer(chunk) {
                f(chunk, buffer, length);
            }
        }
    }

    fn copy_to_ram(&self) {
        if let Some(memory) = &self.peer {
            self.for_each_ram(|chunk, ram, length| memory.copy_out(chunk, ram, 0, length));
        }
    }

    /// The drive is about to read, or write, the data: puts it where it is read.
    pub(crate) fn bounce_to_drive(&self) {
        match &self.peer {
            Some(memory) if self.bounces() && !self.is_read() => {
                self.for_each_ram(|chunk, ram, length| memory.copy_in(chunk, ram, 0, length));
            }
            _ => {}
        }
    }

    /// The drive has written the data: puts it where the HCA takes it from.
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
    }
}
