// SPDX-License-Identifier: GPL-2.0

//! Peer memory beside a queue's transfer buffers, and the cache's lines as its HCA
//! reaches them.

use super::Queue;
use hcablk_core::p2p::{
    Loan,
    PeerMemory,
    Provider, //
};
use kernel::sync::Arc;

impl Queue {
    /// A reference to the peer memory for one request, if there is any.
    #[inline]
    pub(crate) fn peer_memory(&self) -> Option<Arc<PeerMemory>> {
        self.loan.as_ref()?.memory()
    }

    /// The cache's lines for this HCA, if it does DMA to them.
    #[inline]
    pub(crate) fn view(&self) -> Option<&Loan> {
        self.view.as_ref()
    }

    /// The peer memory and who lends it, if there is any.
    pub(crate) fn loan(&self) -> Option<(&Provider, Arc<PeerMemory>)> {
        let loan = self.loan.as_ref()?;
        Some((loan.provider(), loan.memory()?))
    }
}
