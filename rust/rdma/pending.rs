// SPDX-License-Identifier: GPL-2.0

//! The account of a region's registrations that wait for their doorbell: while there is one the
//! region is not destroyed.

use kernel::sync::{
    atomic::{
        Acquire,
        Atomic,
        Relaxed,
        Release, //
    },
    Arc, //
};

/// Counts the registrations of a region that wait for their doorbell.
pub struct PendingRegistrations(Atomic<u32>);

impl PendingRegistrations {
    pub(super) fn none() -> Self {
        Self(Atomic::new(0))
    }

    /// Returns whether one does.
    pub(super) fn any(&self) -> bool {
        self.0.load(Acquire) != 0
    }
}

/// A registration that waits: it is counted as long as this is there.
pub(super) struct Counted(Arc<PendingRegistrations>);

impl Counted {
    pub(super) fn new(waiting: &Arc<PendingRegistrations>) -> Self {
        waiting.0.fetch_add(1, Relaxed);
        Self(waiting.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Release);
    }
}
