// SPDX-License-Identifier: GPL-2.0

//! What the block layer calls.

use super::{
    Driver,
    Queue, //
};
use crate::head::Head;
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

impl Operations for Driver {
    type Data = Head;
    type HwQueue = Queue;
    type Pdu = ();

    fn hw_queue(head: &Head, index: u32, _requests: &Arc<Requests<Self>>) -> Result<Arc<Queue>> {
        let session = head.first().ok_or(ENXIO)?;
        session.queue(index).ok_or(ENXIO)
    }

    fn init_request(_: &Head, _hw_queue: u32) -> Result {
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
        queue.session.replace_late(queue);
        Timeout::ResetTimer
    }
}
