// SPDX-License-Identifier: GPL-2.0

//! Counts the failed flushes of a drive. A drive that fails a flush may have lost writes of any
//! volume, and reports that only to the caller that flushed; the next flush succeeds. So failures
//! are counted for all volumes on the drive, and each initiator's next flush fails once if it has
//! not seen the latest, as with `errseq_t` for write-backs of the page cache.
//!
//! A write that is made durable by its own flush, such as one with FUA on a drive without FUA, is
//! not durable if another flush has failed since the write was begun.
//!
//! One gap is left: a flush that the drive carried out after the failed one, but whose completion
//! is handled before the failed one is counted, succeeds; the initiator's next flush fails.
//! Completions on two processors have no order, and a thread that has waited for a flush counts
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

/// Returns whether error `e` of a sync or write in a file system can mean that flushing the drive
/// failed. With the other errors the file system has refused the request before it began.
pub(crate) fn may_be_of_flush(e: Error) -> bool {
    let refusals = [ENOSPC, EROFS, EFBIG, EPERM, EINVAL];
    !(refusals.contains(&e) || e == errno::edquot() || e == errno::eopnotsupp())
}

/// The number of failed flushes of a drive: see the module. Shared by all volumes on the drive; any
/// context.
pub(crate) struct FlushFailures(Atomic<u32>);

impl FlushFailures {
    pub(crate) const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// Counts a failed flush.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Full);
    }

    /// Returns the number of failed flushes.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Acquire)
    }
}
