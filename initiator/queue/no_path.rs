// SPDX-License-Identifier: GPL-2.0

//! What becomes of requests while no path accepts any.

use hcablk_core::sync::atomic::{
    Acquire,
    Atomic,
    Release, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// See the module. Shared by the disk's head and its hardware queues.
pub(crate) struct NoPath {
    /// They wait for a session.
    queues: Atomic<bool>,
    /// There has been none for so long that they fail, though there may be another one.
    fails_fast: Atomic<bool>,
    /// No session is live, and another one is to follow.
    is_lost: Atomic<bool>,
}

impl NoPath {
    /// Makes it for requests that fail. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let no_path = Self {
            queues: Atomic::new(false),
            fails_fast: Atomic::new(false),
            is_lost: Atomic::new(false),
        };
        Ok(Arc::new(no_path, GFP_KERNEL)?)
    }

    /// Returns whether a lost session is followed by another one, for which requests wait.
    #[inline]
    pub(crate) fn queues(&self) -> bool {
        self.queues.load(Acquire)
    }

    /// Sets that.
    pub(crate) fn set_queues(&self, on: bool) {
        self.queues.store(on, Release);
    }

    /// Returns whether requests fail although they would wait.
    pub(crate) fn fails_fast(&self) -> bool {
        self.fails_fast.load(Acquire)
    }

    /// Sets that.
    pub(crate) fn set_fails_fast(&self, on: bool) {
        self.fails_fast.store(on, Release);
    }

    /// Returns whether no session is live, and another one is to follow.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Acquire)
    }

    /// Sets that.
    pub(crate) fn set_lost(&self, lost: bool) {
        self.is_lost.store(lost, Release);
    }

    /// Returns whether requests wait now if there is no session, rather than fail.
    pub(crate) fn requests_wait(&self) -> bool {
        self.queues() && !self.fails_fast()
    }
}
