// SPDX-License-Identifier: GPL-2.0

//! The request by which the target tells that it has begun or ceased to listen somewhere.
//!
//! It goes out in rounds of the timer only: of a target that tells changes without end one is heard in each round, and no other
//! request has to wait for that.

use super::{
    answer::{
        NO_CHANGE,
        UNASKED, //
    },
    tag,
    Admin,
    Life,
    State, //
};
use hcablk_core::proto::message::AdminOp;
use kernel::prelude::*;

/// See the module.
///
/// ```text
///             SEND                       answer                 user space was told
///  Due(known) ────► Asked(known) ────────────────► Told(now) ──────────────────────► Due(now)
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Portals {
    /// The target does not tell.
    NotTold,
    Due(u32),
    Asked(u32),
    Told(u32),
}

impl Portals {
    /// Returns it when the target has told the generation `now`. Fails with what the target broke.
    pub(super) fn answered(self, now: Option<u32>) -> Result<Self, &'static str> {
        match (self, now) {
            (Self::Asked(known), Some(now)) if known == now => Err(NO_CHANGE),
            (Self::Asked(_), Some(now)) => Ok(Self::Told(now)),
            _ => Err(UNASKED),
        }
    }
}

impl Admin {
    /// Posts the request if it is due. As [`Self::send`], but that no slot is free is no failure.
    pub(super) fn ask_portals(&self, state: &mut State) -> Result {
        let Portals::Due(known) = state.portals else {
            return Ok(());
        };
        if state.life != Life::Live {
            return Ok(());
        }
        match self.send(state, tag::PORTALS, AdminOp::Portals { known }) {
            Ok(()) => {
                state.portals = Portals::Asked(known);
                Ok(())
            }
            Err(EBUSY) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Returns the generation of the portals that the target has told, if user space was not told yet. Any context.
    pub(crate) fn portals_news(&self) -> Option<u32> {
        match self.state.lock().portals {
            Portals::Told(now) => Some(now),
            _ => None,
        }
    }

    /// Records that user space was told of what [`Self::portals_news`] returned: the next round asks on. Any context.
    pub(crate) fn portals_followed(&self) {
        let mut state = self.state.lock();
        if let Portals::Told(now) = state.portals {
            state.portals = Portals::Due(now);
        }
    }
}
