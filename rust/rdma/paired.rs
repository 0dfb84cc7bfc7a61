// SPDX-License-Identifier: GPL-2.0

//! Identifiers and completion queues that get one queue pair at a time.

use crate::sync::atomic::{
    Atomic,
    Full,
    Release, //
};
use kernel::prelude::*;

/// Whether an identifier or a completion queue has a queue pair.
pub(super) struct Paired(Atomic<bool>);

impl Paired {
    /// Starts without one.
    pub(super) const fn new() -> Self {
        Self(Atomic::new(false))
    }

    /// Takes note of a queue pair; `EBUSY` if there is one already. Any context.
    pub(super) fn set(&self) -> Result {
        if self.0.xchg(true, Full) {
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Takes note that there is none any more. Any context.
    pub(super) fn clear(&self) {
        self.0.store(false, Release);
    }
}
