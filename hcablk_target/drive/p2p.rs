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
//! of a cache are peer memory, too: see `io/cache.rs`.
//!
//! A queue has a [`PeerLease`], see `io/p2p.rs`. A request that got buffers of it holds
//! a reference to the memory until it is idle again; one that is given up leaves that with its
//! queue, so that an unbinding waits until the queue pair is destroyed. How a provider that is
//! unbound gets its memory back is described with the lease.
//!
//! The module's parameter `p2p_virtual=1` takes soft-RoCE for an HCA that does DMA to PCI
//! devices: on x86 the kernel's address of peer memory works as ordinary memory does. It is there
//! for tests of the branch that is for real HCAs.

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

/// Why a named device does not do.
pub(crate) const OUT_OF_REACH: &str = "the drive and the HCA do not reach that device";

/// Finds the device that is to lend memory to `clients`; the error is the reason why there is none.
/// Sleeps.
pub(crate) fn find(source: Source, clients: &Clients<'_>) -> Result<Arc<Provider>, &'static str> {
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
