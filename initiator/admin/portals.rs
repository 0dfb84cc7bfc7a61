// SPDX-License-Identifier: GPL-2.0

//! The request for changes of the addresses on which the target listens.
//!
//! It goes out only in rounds of the timer: even if the portals change continuously, the target can
//! respond only once in each round, and no other request has to wait for that.

use super::{
    Admin,
    State, //
};
use kernel::prelude::*;

impl Admin {
    /// Posts the request if it is due. As [`Self::post`].
    pub(super) fn ask_portals(&self, state: &mut State) -> Result {
        let request = state.portals_due();
        self.post(state, request)
    }

    /// Returns the generation of the reported portals, if user space was not notified of it yet.
    /// Any context.
    pub(crate) fn portals_news(&self) -> Option<u32> {
        self.state.lock().portals_news()
    }

    /// Records that user space was notified of the generation that [`Self::portals_news`] returned:
    /// the next round sends a new request. Any context.
    pub(crate) fn portals_followed(&self) {
        self.state.lock().portals_followed();
    }
}
