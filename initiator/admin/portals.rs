// SPDX-License-Identifier: GPL-2.0

//! The request by which the target tells that it has begun or ceased to listen somewhere.
//!
//! It goes out in rounds of the timer only: of a target that tells changes without end one is heard
//! in each round, and no other request has to wait for that.

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

    /// Returns the generation of the portals that the target has told, if user space was not told
    /// yet. Any context.
    pub(crate) fn portals_news(&self) -> Option<u32> {
        self.state.lock().portals_news()
    }

    /// Records that user space was told of what [`Self::portals_news`] returned: the next round
    /// asks on. Any context.
    pub(crate) fn portals_followed(&self) {
        self.state.lock().portals_followed();
    }
}
