// SPDX-License-Identifier: GPL-2.0

//! A queue pair's seat: by it the queue borrows of what its client may have.
//!
//! The queue's [`Pool`](crate::queue::Pool) has it, which gives back all that it has
//! before, and the queue, which looks whether others wait. The last of these references
//! leaves the account, in process context, as everything of a queue goes.

use super::{
    arena::Arena,
    layout::ZONES,
    Client, //
};
use crate::queue::Queue;
use hcablk_core::rdma::buffer::DmaBuffer;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// See the module.
pub(crate) struct Seat {
    client: Arc<Client>,
    index: usize,
}

impl Seat {
    /// A seat of `client`. May sleep.
    pub(crate) fn new(client: &Arc<Client>) -> Result<Arc<Self>> {
        let seat = Self {
            client: client.clone(),
            index: client.arena().sit(client.index())?,
        };
        // Without memory it leaves again.
        Ok(Arc::new(seat, GFP_KERNEL)?)
    }

    #[inline]
    fn arena(&self) -> &Arena {
        self.client.arena()
    }

    /// Pages that the client may borrow.
    pub(crate) fn most(&self) -> u64 {
        self.client.most_pages()
    }

    /// `queue` is to be woken when it gets what it waits for, or others want what it does not use.
    pub(crate) fn attach(&self, queue: &Arc<Queue>) {
        self.arena().attach(self.index, queue);
    }

    /// Nobody is to be woken any more. Process context.
    pub(crate) fn detach(&self) {
        self.arena().detach(self.index);
    }

    /// Whether others want what the queue does not use. Any context.
    #[inline]
    pub(crate) fn is_pressed(&self) -> bool {
        self.arena().is_pressed()
    }

    /// Borrows `count` buffers of `zone`, which come to those in `into`; `false`: not now.
    /// Any context; takes the arena's lock.
    pub(crate) fn borrow(
        &self,
        zone: usize,
        count: usize,
        into: &mut KVec<Arc<DmaBuffer>>,
    ) -> bool {
        self.arena().borrow(self.index, zone, count, into)
    }

    /// Waits for so many buffers of one zone or another; `false`: there will not be so
    /// many. The queue is woken when it is worth another try. Any context; takes the arena's lock.
    pub(crate) fn wait(&self, wants: [u32; ZONES]) -> bool {
        self.arena().wait(self.index, wants)
    }

    /// Waits no longer. Any context; takes the arena's lock.
    pub(crate) fn leave_off(&self) {
        self.arena().leave_off(self.index);
    }

    /// Gives back all `buffers`, of `zone`. Any context; takes the arena's lock.
    pub(crate) fn give_back(&self, zone: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        self.arena().give_back(self.index, zone, buffers);
    }

    /// Leaks all `buffers`, of `zone`, which a peer may still write to. Any context; takes the
    /// arena's lock.
    pub(crate) fn lose(&self, zone: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        self.arena().lose(self.index, zone, buffers);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.arena().leave(self.index);
    }
}
