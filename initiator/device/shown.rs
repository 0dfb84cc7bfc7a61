// SPDX-License-Identifier: GPL-2.0

//! A device's state, and what attributes show of it: apart from what commands hold while they
//! sleep, so that reading never waits.

use super::{
    Active,
    Device, //
};
use crate::{
    failure::Failure,
    session::Session, //
};
use core::fmt;
use hcablk_core::proto::{
    connect::{
        Epoch,
        SessionId, //
    },
    name::VolumeId, //
};
use kernel::sync::Arc;

/// See the picture in `device.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    New,
    Connecting,
    Live,
    Queueing,
    Failing,
    Failed,
    Disconnecting,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "new",
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Queueing => "queueing",
            Self::Failing => "failing",
            Self::Failed => "failed",
            Self::Disconnecting => "disconnecting",
        })
    }
}

/// What attributes show.
pub(crate) struct Shown {
    pub(crate) state: State,
    pub(crate) failure: Option<Failure>,
    /// Number of the disk.
    pub(crate) disk: Option<u32>,
    pub(crate) session: Option<(SessionId, Epoch)>,
    /// Which volume it is.
    pub(crate) wwid: Option<VolumeId>,
    /// Where counters of live queues are.
    pub(super) live: Option<Arc<Session>>,
    /// How long requests take is measured.
    pub(crate) timing: bool,
}

impl Device {
    /// Calls `f` with what attributes show.
    pub(crate) fn show<R>(&self, f: impl FnOnce(&Shown) -> R) -> R {
        f(&self.shown.lock())
    }

    pub(super) fn set_state(&self, state: State) {
        self.shown.lock().state = state;
    }

    /// Lets attributes show `state` without a session, and `failure` as its reason.
    pub(super) fn forget_session(&self, state: State, failure: Option<Failure>) {
        let mut shown = self.shown.lock();
        shown.state = state;
        shown.failure = failure;
        shown.disk = None;
        shown.session = None;
        shown.wwid = None;
        let live = shown.live.take();
        drop(shown);
        drop(live);
    }

    /// Lets attributes show the session of `active`.
    pub(super) fn show_session(&self, active: &Active) {
        let mut shown = self.shown.lock();
        shown.state = State::Live;
        shown.failure = None;
        shown.disk = Some(active.disk.number());
        shown.session = Some((active.session.id(), active.session.epoch()));
        shown.wwid = active.volume.wwid;
        active
            .session
            .for_each_queue(|queue| queue.time(shown.timing));
        shown.live = Some(active.session.clone());
    }
}
