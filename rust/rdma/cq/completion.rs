// SPDX-License-Identifier: GPL-2.0

//! The completions of a completion queue.

use crate::{
    bindings,
    rdma::wr::WorkId, //
};
use core::ptr;
use kernel::prelude::*;

/// A completed work request.
#[repr(transparent)]
pub struct Completion(bindings::ib_wc);

/// Proof that some work request, and all before it in its queue, have completed without an error.
/// Only a [`Completion`] can create it; its user must make sure that it is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success(());

impl Completion {
    /// Returns the work id with which the work request was posted.
    #[inline]
    pub fn work(&self) -> WorkId {
        // SAFETY: All 64 bits of the union are initialised: a user's `wr_id`, or the address that
        // the device's driver has posted for itself.
        WorkId::from_raw(unsafe { *self.0.__bindgen_anon_1.wr_id })
    }

    /// Hands the completion to the device's driver if it is that of a request which the
    /// driver has posted for itself, to drain a queue.
    ///
    /// Such a request has no `wr_id` but the address of a `struct ib_cqe`, a kernel address, whose
    /// highest bit is set. No [`WorkId`] of ours has that bit except the two of draining, for which
    /// the poller looks first.
    #[cold]
    pub(super) fn hand_over(&self, cq: *mut bindings::ib_cq) {
        if !self.work().is_drain() {
            return;
        }
        // SAFETY: Nobody but the device's driver posts requests with such an id: the address of an
        // `ib_cqe`, which stays until its function was called.
        unsafe {
            let entry: *mut bindings::ib_cqe = *self.0.__bindgen_anon_1.wr_cqe;
            if let Some(done) = (*entry).done {
                done(cq, ptr::from_ref(&self.0).cast_mut());
            }
        }
    }

    /// Returns whether the work request succeeded. If it did not, only [`Self::work`] and the
    /// status are valid.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.0.status == bindings::ib_wc_status_IB_WC_SUCCESS
    }

    /// Returns the proof that the work request succeeded, `None` if it did not.
    #[inline]
    pub fn success(&self) -> Option<Success> {
        self.is_ok().then_some(Success(()))
    }

    /// Returns whether the work request was flushed, since the queue pair is in the error state.
    pub fn is_flushed(&self) -> bool {
        self.0.status == bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR
    }

    /// Returns the status in words.
    pub fn status(&self) -> &'static CStr {
        // SAFETY: The function returns a constant string for every status.
        unsafe { CStr::from_char_ptr(bindings::ib_wc_status_msg(self.0.status)) }
    }

    /// Returns how many bytes were received.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// Returns the immediate value of the peer's write-with-immediate, `None` for other
    /// completions.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        let flags = self.0.wc_flags as u32;
        if flags & bindings::ib_wc_flags_IB_WC_WITH_IMM == 0
            || self.0.opcode != bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM
        {
            return None;
        }
        // SAFETY: The flag says that this part of the union is valid.
        Some(u32::from_be(unsafe { *self.0.ex.imm_data }))
    }

    /// Returns the key that the peer has invalidated by this message, `None` if it has not.
    #[inline]
    pub fn invalidated(&self) -> Option<u32> {
        let flags = self.0.wc_flags as u32;
        if flags & bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE == 0 {
            return None;
        }
        // SAFETY: The flag says that this part of the union is valid.
        Some(unsafe { *self.0.ex.invalidate_rkey })
    }
}
