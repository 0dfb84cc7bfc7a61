// SPDX-License-Identifier: GPL-2.0

//! The right of a queue pair to borrow shared buffers, within its client's limit.
//!
//! The queue's [`Pool`](super::pool::Pool) has a reference to the handle, and returns all its
//! buffers before it drops this reference. The queue has a second reference, to check whether
//! others wait. Dropping the last reference removes the borrower from the account, in process
//! context, in which everything of a queue is dropped.

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
    /// Creates a handle of `client`. Fails with `ENOMEM` if the account has no room. May sleep.
    pub(crate) fn new(client: &Arc<Client>) -> Result<Arc<Self>> {
        let handle = Self {
            client: client.clone(),
            index: client.shared_pool().add_borrower(client.index())?,
        };
        // On failure the drop leaves the account again.
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

    /// Sets the queue to wake when its wait is over, or when others want its unused buffers.
    pub(crate) fn attach(&self, queue: Arc<Queue>) {
        self.shared_pool().attach(self.index, queue);
    }

    /// Stops wakes of the queue. Process context.
    pub(crate) fn detach(&self) {
        self.shared_pool().detach(self.index);
    }

    /// Returns whether others want the queue's unused buffers. Any context.
    #[inline]
    pub(crate) fn is_pressed(&self) -> bool {
        self.shared_pool().is_pressed()
    }

    /// Borrows `count` buffers of `size_class`, and appends them to `into`. Returns `false` if that
    /// is not possible now. Any context; takes the shared pool's lock.
    pub(crate) fn borrow(
        &self,
        size_class: usize,
        count: usize,
        into: &mut KVec<Arc<DmaBuffer>>,
    ) -> bool {
        self.shared_pool()
            .borrow(self.index, size_class, count, into)
    }

    /// Waits for the given number of buffers of one of several size classes. Returns `false` if
    /// there can never be that many. The queue is woken when another attempt can succeed. Any
    /// context; takes the shared pool's lock.
    pub(crate) fn wait(&self, wants: [u32; SIZE_CLASSES]) -> bool {
        self.shared_pool().wait(self.index, wants)
    }

    /// Cancels the queue's wait for buffers. Any context; takes the shared pool's lock.
    pub(crate) fn cancel_wait(&self) {
        self.shared_pool().cancel_wait(self.index);
    }

    /// Gives all `buffers`, of `size_class`, back to the shared pool. Any context; takes the shared
    /// pool's lock.
    pub(crate) fn give_back(&self, size_class: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        self.shared_pool()
            .give_back(self.index, size_class, buffers);
    }

    /// Leaks all `buffers`, of `size_class`, to which a peer may still write. May sleep; takes the
    /// shared pool's locks.
    pub(crate) fn lose(&self, size_class: usize, buffers: &mut KVec<Arc<DmaBuffer>>) {
        self.shared_pool().lose(self.index, size_class, buffers);
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        self.shared_pool().remove_borrower(self.index);
    }
}
