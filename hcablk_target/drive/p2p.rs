// SPDX-License-Identifier: GPL-2.0

//! Mode p2p: the drive's DMA goes to memory of a PCI device instead of RAM.
//!
//! | HCA | write | read |
//! |---|---|---|
//! | does DMA among PCI devices | RDMA READ to peer memory, drive reads it | drive writes it, RDMA WRITE from there |
//! | does not (soft-RoCE, siw, iWARP's registered memory) | RDMA READ to RAM, copied to peer memory | drive writes peer memory, copied to RAM |
//!
//! The second is a *bounce*: it relieves the memory bus of the drive's DMA, but not the processor,
//! and has its own counter (`p2p_bounce_bytes`).
//!
//! A buffer with peer memory also has RAM of the same size. A request falls back to the RAM, and is
//! counted in `p2p_fallbacks`, if there is no peer memory, if it was called back or is in use, or
//! if the page cache has data of the request's range. A session logs at its start that it does
//! without peer memory, and why. The lines of a cache are peer memory, too: see `io/cache.rs`.
//!
//! A queue has a [`PeerLease`], see `io/p2p.rs`. A request that got buffers with peer memory has a
//! reference to it until the request is idle again. A request that is given up leaves that
//! reference with its queue, so that an unbinding waits until the queue pair is destroyed. See
//! [`PeerLease`] for the way in which an unbound provider gets its memory back.
//!
//! The module's parameter `p2p_virtual=1` treats soft-RoCE as an HCA that does DMA to PCI devices:
//! on x86 the kernel's address of peer memory works like ordinary memory. It exists for tests of
//! the code for real HCAs.

use hcablk_core::{
    blkdev::BlockDevice,
    p2p::{
        Clients,
        PciAddress,
        PeerLease,
        Provider, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The device that lends memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The device that is nearest to the drive and the HCA.
    Nearest,
    Address(PciAddress),
}

impl Source {
    /// Parses a source. Fails with `EINVAL` if it is neither `auto` nor a PCI address.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Nearest),
            _ => PciAddress::parse(text).map(Self::Address).ok_or(EINVAL),
        }
    }
}

impl core::fmt::Display for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nearest => f.write_str("auto"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The reason why a named device cannot be used.
pub(crate) const OUT_OF_REACH: &str = "the drive and the HCA do not reach the provider";

/// Finds the device that lends memory to `clients`. The error is the reason why there is none.
/// Sleeps.
pub(crate) fn find(source: Source, clients: &Clients<'_>) -> Result<Arc<Provider>, &'static str> {
    let provider = match source {
        Source::Nearest => Provider::nearest(clients)
            .ok_or("no device lends memory that the drive and the HCA reach")?,
        Source::Address(address) => {
            let provider =
                Provider::find(address).ok_or("no PCI device has the address in `provider`")?;
            if !provider.is_reached_by(clients) {
                return Err(OUT_OF_REACH);
            }
            provider
        }
    };
    Arc::new(provider, GFP_KERNEL).map_err(|_| "out of memory for its bookkeeping")
}

/// Borrows `pieces` pieces of `bytes` bytes for a cache of the data on `drive`: all of them, or
/// none, with the reason. It is unknown which HCAs will use them, so they are mapped for none.
/// Sleeps.
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
    let scarce = "the provider has too little memory left to lend";
    let lease = PeerLease::new(&provider, pieces, bytes, None).map_err(|e| match e {
        EBUSY => "the provider's driver is being changed",
        _ => scarce,
    })?;
    let got = lease.memory().map_or(0, |memory| memory.pieces());
    if got != pieces {
        return Err(scarce);
    }
    Ok(lease)
}
