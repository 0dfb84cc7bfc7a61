// SPDX-License-Identifier: GPL-2.0

//! Handles a target's loss of writes that it acknowledged to this host. Flushes and FUA writes of
//! the disk fail until it is closed ([`LostState`]), and user space is notified of the start and
//! the end.
//!
//! # Locks and contexts
//!
//! The lock of `state` is held only to read and to change it. The block layer calls with the disk's
//! `open_mutex` held, so nothing here waits for I/O, nor for `Device::control`, whose holder may
//! wait for that mutex.

use super::announce::{
    Announcements,
    News, //
};
use crate::head::{
    Head,
    LostState, //
};
use hcablk_core::{
    blkdev::{
        DiskOpeners,
        OpenMode, //
    },
    report::trace, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The state of lost writes; see the module. One for each disk.
#[pin_data]
pub(super) struct LostWrites {
    head: Arc<Head>,
    announcements: Arc<Announcements>,
    #[pin]
    state: Mutex<LostState>,
}

impl LostWrites {
    /// Creates the state of a disk that has lost no writes. May sleep.
    pub(super) fn new(head: &Arc<Head>, announcements: &Arc<Announcements>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                head: head.clone(),
                announcements: announcements.clone(),
                state <- new_mutex!(LostState::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether flushes fail. May sleep.
    pub(super) fn is_lost(&self) -> bool {
        self.state.lock().is_lost()
    }

    /// Records that the target has forgotten acknowledged writes: those that no flush has covered
    /// are lost. No request is under way. Process context.
    pub(super) fn lose(&self) {
        let unflushed = self.head.unflushed();
        if !unflushed.is_dirty() {
            return;
        }
        // The next loss concerns later writes.
        unflushed.forget();
        let mut state = self.state.lock();
        let again = state.is_lost();
        state.lose();
        self.head.set_lost_writes();
        drop(state);
        let disk = self.announcements.name();
        pr_err!(
            "{disk}: the target lost writes that it had acknowledged: flushes fail until all users close the disk; \
             unmount it, check its data and mount it again; if it cannot be closed, \
             check its data and run `hcablk acknowledge-loss {disk}`\n"
        );
        if !again {
            self.report(true);
        }
    }

    /// Lets flushes succeed again although writes were lost: the administrator has acknowledged the
    /// loss. May sleep.
    pub(super) fn acknowledge(&self) {
        let mut state = self.state.lock();
        let was_lost = state.acknowledge();
        self.head.clear_lost_writes();
        drop(state);
        if was_lost {
            pr_info!(
                "{}: the loss of writes was acknowledged: flushes succeed again\n",
                self.announcements.name()
            );
            self.report(false);
        }
    }

    fn report(&self, lost: bool) {
        trace::initiator::lost_writes(|| trace::LostWrites {
            disk: self.announcements.disk(),
            lost,
        });
        self.announcements.announce(News::LostWrites(lost));
    }
}

impl DiskOpeners for LostWrites {
    fn opened(&self, mode: OpenMode, claims: u32) {
        let mut state = self.state.lock();
        if state.opened(mode, claims) {
            // The error was returned to a reader; no writer has seen it.
            self.head.forget_reported_loss();
        }
    }

    fn closed(&self, claims: u32) {
        let mut state = self.state.lock();
        if !state.closed(claims, self.head.is_loss_reported()) {
            return;
        }
        // The disk is closed: no flush is under way that this could let succeed.
        self.head.clear_lost_writes();
        drop(state);
        pr_info!(
            "{}: all users have closed the disk: flushes succeed again\n",
            self.announcements.name()
        );
        self.report(false);
    }
}
