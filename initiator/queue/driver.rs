// SPDX-License-Identifier: GPL-2.0

//! What the block layer calls.

use super::Queue;
use hcablk_core::blkdev::{
    Operations,
    Rejected,
    Request,
    Requests,
    Timeout, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// What the disk's operations are called on.
pub(crate) struct Driver;

/// Where a disk's queues come from: a session.
pub(crate) trait QueueSource: Send + Sync {
    /// Returns queue `index`, `None` if it is there no more.
    fn queue(&self, index: u32) -> Option<Arc<Queue>>;
}

/// The queues that a disk begins with. Shared with the disk's tag set, which asks for them while
/// the disk is being added; afterwards [`Requests::exchange`] gives it others.
#[pin_data]
pub(crate) struct FirstQueues {
    #[pin]
    source: Mutex<Option<Arc<dyn QueueSource>>>,
}

impl FirstQueues {
    /// Makes it without queues. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                source <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `add`, which adds the disk, with the queues of `source` to begin with. Sleeps.
    pub(crate) fn during<R>(&self, source: Arc<dyn QueueSource>, add: impl FnOnce() -> R) -> R {
        *self.source.lock() = Some(source);
        let result = add();
        let source = self.source.lock().take();
        drop(source);
        result
    }
}

impl Operations for Driver {
    type Data = FirstQueues;
    type HwQueue = Queue;
    type Pdu = ();

    fn hw_queue(
        first: &FirstQueues,
        index: u32,
        _requests: &Arc<Requests<Self>>,
    ) -> Result<Arc<Queue>> {
        let source = first.source.lock().clone().ok_or(ENXIO)?;
        source.queue(index).ok_or(ENXIO)
    }

    fn init_request(_: &FirstQueues, _hw_queue: u32) -> Result {
        Ok(())
    }

    #[inline]
    fn queue_rq(queue: &Queue, request: Request<Self>, last: bool) -> Result<(), Rejected<Self>> {
        queue.issue(request, last)
    }

    fn commit_rqs(queue: &Queue) {
        queue.commit();
    }

    #[inline]
    fn poll(queue: &Queue) -> u32 {
        queue.pair.cq().poll_now()
    }

    fn timeout(queue: &Queue, hw_queue: u32, tag: u16) -> Timeout {
        if queue.polled {
            // Perhaps it was answered and nobody has looked.
            queue.pair.cq().settle();
            if queue.requests.is_idle(hw_queue, tag) {
                return Timeout::Done;
            }
        }
        // The end of the queue pair, or of the session, ends the request.
        queue.owner.clone().queue_timed_out(queue);
        Timeout::ResetTimer
    }
}
