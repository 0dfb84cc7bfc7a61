// SPDX-License-Identifier: GPL-2.0

//! Which flushes of a drive have failed. A drive that fails one may have lost what anybody had written there, and says so to
//! who flushed; the next flush succeeds. So each failure is counted, for all volumes on the drive, and each initiator's next
//! flush fails once if it has not seen the latest: as `errseq_t` has it for write-backs of the page cache.
//!
//! One gap is left: a flush that the drive carried out after the failed one, but whose completion another processor handles
//! before that of the failed one, succeeds; the initiator's next one fails.

use hcablk_core::sync::atomic::{
    Acquire,
    Atomic,
    Full, //
};

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
