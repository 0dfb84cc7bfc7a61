// SPDX-License-Identifier: GPL-2.0

//! What the block layer calls.

use super::{
    HwQueue,
    HwQueues, //
};
use hcablk_core::blkdev::{
    Operations,
    Rejected,
    Request,
    Requests,
    Timeout, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What the disk's operations are called on.
pub(crate) struct Driver;

impl Operations for Driver {
    type Data = HwQueues;
    type HwQueue = HwQueue;
    type Pdu = ();

    fn hw_queue(
        data: &HwQueues,
        index: u32,
        _requests: &Arc<Requests<Self>>,
    ) -> Result<Arc<HwQueue>> {
        data.get(index)
    }

    fn init_request(_: &HwQueues, _hw_queue: u32) -> Result {
        Ok(())
    }

    #[inline]
    fn queue_rq(
        hw_queue: &HwQueue,
        request: Request<Self>,
        last: bool,
    ) -> Result<(), Rejected<Self>> {
        hw_queue.issue(request, last)
    }

    fn commit_rqs(hw_queue: &HwQueue) {
        hw_queue.commit();
    }

    #[inline]
    fn poll(hw_queue: &HwQueue) -> u32 {
        hw_queue.poll()
    }

    fn timeout(hw_queue: &HwQueue, index: u32, tag: u16) -> Timeout {
        let requests = hw_queue.requests();
        if hw_queue.settle() && requests.is_idle(index, tag) {
            // It was answered and nobody had looked.
            return Timeout::Done;
        }
        // The end of the queue pair, or of the session, ends the request.
        let path = requests.path_of(index, tag);
        if let Some(queue) = path.and_then(|path| hw_queue.of_path(path)) {
            queue.owner.clone().queue_timed_out(queue, tag);
        }
        Timeout::ResetTimer
    }
}
