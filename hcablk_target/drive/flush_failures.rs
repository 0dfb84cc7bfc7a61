// SPDX-License-Identifier: GPL-2.0

//! Which flushes of a drive have failed. A drive that fails one may have lost what anybody had
//! written there, and says so to who flushed; the next flush succeeds. So each failure is counted,
//! for all volumes on the drive, and each initiator's next flush fails once if it has not seen the
//! latest: as `errseq_t` has it for write-backs of the page cache.
//!
//! What is made durable by a flush for it alone, such as a write with FUA on a drive without, is
//! not durable if another flush has failed since it was begun.
//!
//! One gap is left: a flush that the drive carried out after the failed one, but whose completion
//! is handled before the failed one is counted, succeeds; the initiator's next one fails.
//! Completions of two processors have no order, and a thread that has waited for a flush counts
//! when it runs.

use hcablk_core::{
    sync::atomic::{
        Acquire,
        Atomic,
        Full, //
    },
    system::errno,
};
use kernel::prelude::*;

/// Returns whether a file system that fails a sync or a write may say by `e` that it could not
/// flush the drive: what it refuses it has not begun.
pub(crate) fn may_be_of_flush(e: Error) -> bool {
    let refusals = [ENOSPC, EROFS, EFBIG, EPERM, EINVAL];
    !(refusals.contains(&e) || e == errno::edquot() || e == errno::eopnotsupp())
}

/// See the module. Shared by all volumes on a drive; any context.
pub(crate) struct FlushFailures(Atomic<u32>);

impl FlushFailures {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts a flush that has failed.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Full);
    }

    /// Returns how many there were.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Acquire)
    }
}
