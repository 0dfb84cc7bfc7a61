// SPDX-License-Identifier: GPL-2.0

//! The right of a queue pair to borrow shared buffers, within what its client may have.
//!
//! The queue's [`Pool`](super::pool::Pool) has it, which gives back all that it has
//! before, and the queue, which looks whether others wait. The last of these references
//! leaves the account, in process context, as everything of a queue goes.

use super::{
    layout::SIZE_CLASSES,
    shared_pool::SharedPool,
    Client, //
};
use crate::io::Queue;
use hcablk_core::rdma::buffer::DmaBuffer;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The right of a queue pair to borrow shared buffers.
pub(crate) struct PoolHandle {
    client: Arc<Client>,
    index: usize,
}

impl PoolHandle {
    /// Makes a handle of `client`; `ENOMEM` if the account has no room. May sleep.
    pub(crate) fn new(client: &Arc<Client>) -> Result<Arc<Self>> {
        let handle = Self {
            client: client.clone(),
            index: client.shared_pool().add_borrower(client.index())?,
        };
        // Without memory it leaves again.
        Ok(Arc::new(handle, GFP_KERNEL)?)
    }

    #[inline]
    fn shared_pool(&self) -> &SharedPool {
        self.client.shared_pool()
    }

    /// Returns the pages that the client may borrow.
    pub(crate) fn most(&self) -> u64 {
        self.client.most_pages()
    }

    /// Lets `queue` be woken when it gets what it waits for, or others want what it does not use.
    pub(crate) fn attach(&self, queue: Arc<Queue>) {
        self.shared_pool().attach(self.index, queue);
    }

    /// Lets no queue be woken any more. Process context.
    pub(crate) fn detach(&self) {
        self.shared_pool().detach(self.index);
    }

    /// Returns whether others want what the queue does not use. Any context.
    #[inline]
    pub(crate) fn is_pressed(&self) -> bool {
        self.shared_pool().is_pressed()
    }

    /// Borrows `count` buffers of `class`, which come to those in `into`; `false`: not now.
    /// Any context; takes the shared pool's lock.
    pub(crate) fn borrow(
        &self,
        size_class: usize,
        count: usize,
        into: &mut KVec<Arc<DmaBuffer>>,
    ) -> bool {
        self.shared_pool()
            .borrow(self.index, size_class, count, into)
    }

    /// Waits for so many buffers of one size class or another; `false`: there will not be so many.
    /// The queue is woken when it is worth another try. Any context; takes the shared pool's lock.
    pub(crate) fn wait(&self, wants: [u32; SIZE_CLASSES]) -> bool {
        self.shared_pool().wait(self.index, wants)
    }

    /// Takes back that the queue waits for buffers. Any context; takes the shared pool's lock.
    pub(crate) fn cancel_wait(&self) {
        self.shared_pool().cancel_wait(self.index);
    }

    /// Gives back all `buffers`, of `class`. Any context; takes the shared pool's lock.
    pub(crate) fn give_back(&self, size_class: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        self.shared_pool()
            .give_back(self.index, size_class, buffers);
    }

    /// Leaks all `buffers`, of `class`, which a peer may still write to. Any context; takes the
    /// shared pool's lock.
    pub(crate) fn lose(&self, size_class: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        self.shared_pool().lose(self.index, size_class, buffers);
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        self.shared_pool().remove_borrower(self.index);
    }
}
