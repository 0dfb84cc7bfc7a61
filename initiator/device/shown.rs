// SPDX-License-Identifier: GPL-2.0

//! A device's state, as attributes show it. It has a lock of its own, not the one that commands
//! hold while they sleep, so reading an attribute never waits for a command.

use super::{
    lost_writes::LostWrites,
    no_sessions,
    Active,
    Device,
    Sessions, //
};
use crate::{
    failure::Failure,
    session::Attachment, //
};
use core::fmt;
use hcablk_core::proto::{
    connect::{
        Epoch,
        SessionId,
        PATHS_MAX, //
    },
    name::VolumeId, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The state of a device; see the picture in `device.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceState {
    New,
    Connecting,
    Live,
    /// Some enabled paths are not live.
    Degraded,
    Queueing,
    FailingFast,
    Failing,
    Failed,
    Disconnecting,
}

impl DeviceState {
    /// Returns whether the device has a disk that will get a new session.
    pub(super) fn is_reconnecting(self) -> bool {
        matches!(self, Self::Queueing | Self::FailingFast)
    }
}

impl DeviceState {
    /// Returns the state's name in attributes and events.
    pub(super) fn name(self) -> &'static CStr {
        match self {
            Self::New => c"new",
            Self::Connecting => c"connecting",
            Self::Live => c"live",
            Self::Degraded => c"degraded",
            Self::Queueing => c"queueing",
            Self::FailingFast => c"failing-fast",
            Self::Failing => c"failing",
            Self::Failed => c"failed",
            Self::Disconnecting => c"disconnecting",
        }
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().to_str().unwrap_or("?"))
    }
}

/// The values that attributes show.
pub(crate) struct DeviceStatus {
    pub(crate) state: DeviceState,
    pub(crate) failure: Option<Failure>,
    /// Number of the disk.
    pub(crate) disk: Option<u32>,
    pub(crate) session: Option<(SessionId, Epoch)>,
    /// Identity of the volume.
    pub(crate) wwid: Option<VolumeId>,
    /// The lost writes of the disk.
    pub(super) lost_writes: Option<Arc<LostWrites>>,
    /// Each path's session until it has ended: they have the counters of the queues in use.
    pub(super) sessions: Sessions,
    /// Request durations are measured.
    pub(crate) timing: bool,
}

impl Device {
    /// Calls `f` with the values that attributes show.
    pub(crate) fn show<R>(&self, f: impl FnOnce(&DeviceStatus) -> R) -> R {
        f(&self.shown.lock())
    }

    /// Returns whether flushes fail because the target has lost acknowledged writes. May sleep.
    pub(crate) fn has_lost_writes(&self) -> bool {
        let lost_writes = self.shown.lock().lost_writes.clone();
        lost_writes.is_some_and(|lost_writes| lost_writes.is_lost())
    }

    /// Lets flushes succeed again, regardless of lost writes. May sleep.
    pub(crate) fn acknowledge_loss(&self) {
        let lost_writes = self.shown.lock().lost_writes.clone();
        if let Some(lost_writes) = lost_writes {
            lost_writes.acknowledge();
        }
    }

    pub(super) fn set_state(&self, state: DeviceState) {
        self.shown.lock().state = state;
    }

    /// Shows `state` without a session, and `failure` as its reason.
    pub(super) fn forget_session(&self, state: DeviceState, failure: Option<Failure>) {
        let mut shown = self.shown.lock();
        shown.state = state;
        shown.failure = failure;
        shown.disk = None;
        shown.session = None;
        shown.wwid = None;
        let lost_writes = shown.lost_writes.take();
        let former = core::mem::replace(&mut shown.sessions, no_sessions());
        drop(shown);
        drop(lost_writes);
        drop(former);
    }

    /// Shows the counters of a session on `path` that will be the disk's first, and lets it be
    /// forced off; `None`: it has ended.
    pub(super) fn show_session(&self, path: u8, session: Option<&Arc<Attachment>>) {
        let mut shown = self.shown.lock();
        if let Some(place) = shown.sessions.get_mut(usize::from(path)) {
            let former = core::mem::replace(place, session.cloned());
            drop(shown);
            drop(former);
        }
    }

    /// Shows that `session` ends, if the disk has others.
    pub(super) fn show_ending(&self, session: &Attachment) {
        let mut shown = self.shown.lock();
        let is_other = |other: &&Arc<Attachment>| other.path() != session.path() && other.is_live();
        if shown.state == DeviceState::Live && shown.sessions.iter().flatten().any(|s| is_other(&s))
        {
            shown.state = DeviceState::Degraded;
        }
    }

    /// Shows the sessions of `active`: `state` if none is live, because of `failure`.
    pub(super) fn show_sessions(
        &self,
        active: &Active,
        state: DeviceState,
        failure: Option<Failure>,
    ) {
        let mut sessions = no_sessions();
        let mut live = [false; PATHS_MAX as usize];
        let places = sessions.iter_mut().zip(&mut live);
        for ((place, is_live), session) in places.zip(&active.sessions) {
            // A session that ends still counts until its queues are retired; then neither it nor
            // its device is referenced here.
            *place = session.clone().filter(|session| !session.is_over());
            *is_live = place.as_ref().is_some_and(|session| session.is_live());
        }
        let all = self.for_all_wanted_paths(|path| {
            live.get(usize::from(path.number()))
                .is_some_and(|is_live| *is_live)
        });
        let first = sessions.iter().zip(live).find(|(_, is_live)| *is_live);
        let first = first.and_then(|(session, _)| session.clone());
        let mut shown = self.shown.lock();
        shown.state = match first {
            None if state == DeviceState::Queueing && active.head.fails_fast() => {
                DeviceState::FailingFast
            }
            None => state,
            Some(_) if all => DeviceState::Live,
            Some(_) => DeviceState::Degraded,
        };
        // A device that works shows no failure.
        shown.failure = failure.filter(|_| first.is_none());
        shown.disk = Some(active.disk.number());
        shown.session = first.map(|session| session.id());
        shown.wwid = active.volume.wwid;
        shown.lost_writes = Some(active.lost_writes.clone());
        for session in sessions.iter().flatten() {
            let queues = session.session();
            queues.for_each_queue(|queue| {
                for user in self.users_of(queue) {
                    user.set_timing(shown.timing);
                }
            });
        }
        let former = core::mem::replace(&mut shown.sessions, sessions);
        drop(shown);
        drop(former);
    }
}
