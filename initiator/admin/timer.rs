// SPDX-License-Identifier: GPL-2.0

//! Keep-alives: when they are sent, and when the target has been silent for too long.

use super::{
    tag,
    Admin,
    Life,
    Portals,
    State,
    Watch, //
};
use crate::failure::Failure;
use hcablk_core::{
    proto::message::AdminOp,
    sync::Tick, //
};
use kernel::prelude::*;

/// Milliseconds between two rounds of the timer, at most.
const PERIOD_MS: u32 = 1000;

/// Returns the milliseconds between two rounds of the timer: a quarter of `tmo_s` seconds, if that is not too rare.
pub(super) fn period_ms(tmo_s: u16) -> u32 {
    (u32::from(tmo_s) * 250).min(PERIOD_MS)
}

/// A keep-alive. Its times are counted in rounds of the timer: what passes while nothing runs here (the host is suspended) is
/// not the target's silence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAlive {
    /// The last one was sent so long ago, and was answered.
    Answered { ms: u32 },
    /// It was sent so long ago, and is not answered.
    Asked { ms: u32 },
}

impl KeepAlive {
    fn ms(self) -> u32 {
        match self {
            Self::Answered { ms } | Self::Asked { ms } => ms,
        }
    }

    /// Returns it after `ms` milliseconds more.
    fn after(self, more: u32) -> Self {
        let ms = self.ms().saturating_add(more);
        match self {
            Self::Answered { .. } => Self::Answered { ms },
            Self::Asked { .. } => Self::Asked { ms },
        }
    }

    /// Returns it when its answer has come; `None`: it was not asked for.
    pub(super) fn answered(self) -> Option<Self> {
        match self {
            Self::Asked { ms } => Some(Self::Answered { ms }),
            Self::Answered { .. } => None,
        }
    }
}

impl Admin {
    /// Posts a keep-alive. As [`Admin::send`], but that no slot is free is no failure.
    pub(super) fn send_keep_alive(&self, state: &mut State) -> Result {
        let tmo_s = self.tmo_s;
        match self.send(state, tag::KEEP_ALIVE, AdminOp::KeepAlive { tmo_s }) {
            Ok(()) => {
                state.keep_alive = KeepAlive::Asked { ms: 0 };
                self.counts.keep_alives.bump();
                Ok(())
            }
            Err(EBUSY) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Counts a round of the timer, and sends what is due. Fails with why the session ends.
    fn round(&self) -> Result<(), Failure> {
        let tmo_ms = u32::from(self.tmo_s) * 1000;
        let mut state = self.state.lock();
        if state.life != Life::Live {
            return Ok(());
        }
        state.keep_alive = state.keep_alive.after(period_ms(self.tmo_s));
        state.notices = 0;
        let posted = match state.keep_alive {
            KeepAlive::Asked { ms } if ms >= tmo_ms => {
                return Err(Failure::KeepAlive(self.tmo_s));
            }
            KeepAlive::Answered { ms } if ms >= tmo_ms / 2 => self.send_keep_alive(&mut state),
            _ => Ok(()),
        };
        let posted = posted.and_then(|()| self.send_watch(&mut state));
        let posted = posted.and_then(|()| self.ask_portals(&mut state));
        posted.map_err(|_| Failure::Work(c"posting failed"))
    }
}

impl Tick for Admin {
    fn tick(&self) {
        // Errors may have come without an event.
        self.pair.cq().kick();
        if let Err(failure) = self.round() {
            self.fail(failure);
        }
        let told = {
            let state = self.state.lock();
            matches!(state.watch, Watch::Told(_)) || matches!(state.portals, Portals::Told(_))
        };
        if told || self.owner.is_behind() {
            // The disk could not follow, or user space not be told, when it came.
            self.owner.clone().on_news();
        }
    }
}
