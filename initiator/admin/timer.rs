// SPDX-License-Identifier: GPL-2.0

//! The timer of an admin queue pair: sends keep-alives, and detects a target that is silent for too
//! long.

use super::{
    Admin,
    State, //
};
use crate::failure::Failure;
use hcablk_core::sync::Tick;
use kernel::prelude::*;

impl Admin {
    /// Posts the keep-alive if it is due. As [`Admin::post`].
    pub(super) fn send_keep_alive(&self, state: &mut State) -> Result {
        let keep_alive = state.keep_alive_due(self.tmo_s);
        if keep_alive.is_some() {
            self.counts.keep_alives.bump();
        }
        self.post(state, keep_alive)
    }

    /// Posts the requests that are due, except that for the portals. As [`Admin::post`].
    pub(super) fn send_due(&self, state: &mut State) -> Result {
        let detach = state.detach_due();
        self.post(state, detach)?;
        self.send_watches(state)?;
        // Last: it may be due because a watch had to wait.
        self.send_keep_alive(state)
    }

    /// Counts a round of the timer, and sends the requests that are due. Fails with the reason if
    /// the session ends.
    fn round(&self) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if !state.round(self.tmo_s) {
            return Err(Failure::KeepAlive(self.tmo_s));
        }
        let posted = self.send_due(&mut state);
        let posted = posted.and_then(|()| self.ask_portals(&mut state));
        posted.map_err(|_| Failure::Work(c"posting failed"))
    }
}

impl Tick for Admin {
    fn tick(&self) {
        // Find errors that raised no event.
        self.pair.cq().kick();
        if let Err(failure) = self.round() {
            self.fail(failure);
        }
        let is_due = {
            let state = self.state.lock();
            state.has_news() || state.portals_news().is_some()
        };
        if is_due || self.owner.is_behind() {
            // Retry what was impossible at first: updating the disk, or notifying user space.
            self.owner.clone().on_news();
        }
    }
}
