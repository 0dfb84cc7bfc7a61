// SPDX-License-Identifier: GPL-2.0

//! Requests that end together: freeing their tags and leaving the queue is done once for many of
//! them.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use super::{
    Operations,
    Request,
    Status, //
};
use crate::bindings;
use core::ptr::NonNull;

/// Successful requests of any disk that will be ended together, at the latest when this is dropped.
/// Any context that may end a request; keep it only while handling a few other requests.
///
/// # Invariants
///
/// `last` and the requests in `batch` are started and have no other owner, and no
/// place.
pub struct Ending {
    /// The latest request: if it remains alone, ending it without a batch is cheaper.
    last: Option<NonNull<bindings::request>>,
    batch: bindings::io_comp_batch,
}

impl Default for Ending {
    #[inline]
    fn default() -> Self {
        // INVARIANT: There are none.
        Self {
            last: None,
            batch: pin_init::zeroed(),
        }
    }
}

impl Ending {
    /// Ends `request`: later, if it ends like most do.
    ///
    /// C: `blk_mq_add_to_batch()`, `blk_mq_end_request()`.
    #[inline]
    pub fn push<T: Operations>(&mut self, request: Request<T>, status: Status) {
        if status != Status::Ok {
            return end_failed(request, status);
        }
        let Some(request) = request.finish() else {
            return;
        };
        if let Some(other) = self.last.replace(request) {
            // INVARIANT: `request` is in its place. We were its owner, and it has no place.
            // SAFETY: By the type's invariant `other` is ours to end.
            unsafe { bindings::hcablk_c_blk_mq_end_with(other.as_ptr(), &mut self.batch) };
        }
    }

    /// Ends the gathered requests.
    #[inline]
    pub fn flush(&mut self) {
        let Some(last) = self.last.take() else { return };
        // SAFETY: By the type's invariant they are ours to end. The batch is empty then.
        unsafe {
            if self.batch.req_list.head.is_null() {
                bindings::blk_mq_end_request(last.as_ptr(), Status::Ok.to_raw());
            } else {
                bindings::hcablk_c_blk_mq_end_with(last.as_ptr(), &mut self.batch);
                bindings::blk_mq_end_request_batch(&mut self.batch);
            }
        }
    }
}

/// Ends a request that does not qualify for the batch.
#[cold]
#[inline(never)]
fn end_failed<T: Operations>(request: Request<T>, status: Status) {
    request.end(status);
}

impl Drop for Ending {
    #[inline]
    fn drop(&mut self) {
        self.flush();
    }
}
