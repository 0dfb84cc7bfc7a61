// SPDX-License-Identifier: GPL-2.0

//! Peer memory beside a queue's transfer buffers.

use super::Queue;
use hcablk_core::p2p::{
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

    /// The peer memory and who lends it, if there is any.
    pub(crate) fn loan(&self) -> Option<(&Provider, Arc<PeerMemory>)> {
        let loan = self.loan.as_ref()?;
        Some((loan.provider(), loan.memory()?))
    }
}
