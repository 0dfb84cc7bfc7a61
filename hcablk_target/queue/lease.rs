// SPDX-License-Identifier: GPL-2.0

//! Peer memory beside a queue's transfer buffers, and the cache's lines as its HCA
//! reaches them.

use super::Queue;
use hcablk_core::p2p::{
    PeerLease,
    PeerMemory,
    Provider, //
};
use kernel::sync::Arc;

impl Queue {
    /// Returns a reference to the peer memory for one request, if there is any.
    #[inline]
    pub(crate) fn peer_memory(&self) -> Option<Arc<PeerMemory>> {
        self.lease.as_ref()?.memory()
    }

    /// Returns the cache's lines for this HCA, if it does DMA to them.
    #[inline]
    pub(crate) fn view(&self) -> Option<&PeerLease> {
        self.view.as_ref()
    }

    /// Returns the peer memory and who lends it, if there is any.
    pub(crate) fn lease(&self) -> Option<(&Provider, Arc<PeerMemory>)> {
        let lease = self.lease.as_ref()?;
        Some((lease.provider(), lease.memory()?))
    }
}
