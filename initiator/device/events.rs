// SPDX-License-Identifier: GPL-2.0

//! Reports state changes of a disk and its paths: each with a tracepoint, lasting ones also with
//! [uevents](super::announce) of the block device.
//!
//! Code that changes states calls [`Device::announce_changes`] afterwards, in process context and
//! without their locks. That function compares the states with those announced last, under one
//! lock, so that announcements are in order.
//!
//! A change of the target's portals is a uevent, too, `HCABLK_PORTALS=1`. The kernel does not act
//! on it: user space decides which paths a disk gets.

use super::{
    announce::News,
    path::PathState,
    Device,
    DeviceState, //
};
use crate::failure::Failure;
use hcablk_core::{
    blkdev::Announcer,
    proto::connect::PATHS_MAX,
    report::trace,
    system::now_ns, //
};
use kernel::prelude::*;

/// Minimum time between two events about the target's portals, in nanoseconds: each may run a
/// program.
const PORTALS_NS: u64 = 1_000_000_000;

/// The states announced last. A path that does not exist has state New.
pub(super) struct Announced {
    state: DeviceState,
    paths: [PathState; PATHS_MAX as usize],
    /// Generation of the target's portals, 0: none was announced for this disk.
    portals: u32,
    /// Time of that announcement, nanoseconds.
    portals_ns: u64,
}

impl Announced {
    pub(super) fn new() -> Self {
        Self {
            state: DeviceState::New,
            paths: [PathState::New; PATHS_MAX as usize],
            portals: 0,
            portals_ns: 0,
        }
    }
}

impl Device {
    /// Sets the disk that announces changes to user space. Sleeps until a uevent that is being sent
    /// has been sent.
    pub(super) fn set_announcer(&self, announcer: Option<Announcer>) {
        // Nothing was announced for the new disk.
        self.announced.lock().portals = 0;
        self.announcements.set_announcer(announcer);
    }

    /// Notifies user space that the target's portals have this generation, unless it was announced
    /// last; `false`: there is no disk yet, or another generation was announced less than
    /// [`PORTALS_NS`] ago. Process context; the caller holds no state's lock.
    pub(crate) fn announce_portals(&self, generation: u32) -> bool {
        let auto = self.settings().paths_auto;
        let mut announced = self.announced.lock();
        if announced.portals == generation {
            return true;
        }
        let now = now_ns();
        let is_early = announced.portals_ns != 0 && now - announced.portals_ns < PORTALS_NS;
        if is_early || !self.announcements.announce(News::Portals { auto }) {
            return false;
        }
        announced.portals_ns = now;
        announced.portals = generation;
        true
    }

    /// Announces all states that differ from those announced last. Process context; the caller
    /// holds no state's lock.
    pub(super) fn announce_changes(&self) {
        let mut announced = self.announced.lock();
        let mut now = [(PathState::New, None); PATHS_MAX as usize];
        for path in self.paths.lock().iter() {
            if let Some(place) = now.get_mut(usize::from(path.number())) {
                let info = path.info();
                *place = (info.state, info.failure);
            }
        }
        for (number, (state, failure)) in (0..).zip(now) {
            let Some(last) = announced.paths.get_mut(usize::from(number)) else {
                break;
            };
            if core::mem::replace(last, state) == state {
                continue;
            }
            trace::initiator::path(|| self.change(Some(number), state.name(), failure));
            if !state.is_reconnecting() {
                self.announce(Some(number), state.name(), failure);
            }
        }
        let (state, failure) = self.show(|shown| (shown.state, shown.failure));
        if core::mem::replace(&mut announced.state, state) != state {
            trace::initiator::disk(|| self.change(None, state.name(), failure));
            self.announce(None, state.name(), failure);
        }
    }

    fn change(
        &self,
        path: Option<u8>,
        state: &'static CStr,
        failure: Option<Failure>,
    ) -> trace::DiskChange<'_> {
        trace::DiskChange {
            disk: &self.name,
            path,
            state,
            error: failure.map_or(0, |failure| failure.errno().to_errno()),
        }
    }

    /// Announces a state to user space, if there is a disk.
    fn announce(&self, path: Option<u8>, state: &'static CStr, failure: Option<Failure>) {
        self.announcements.announce(News::State {
            path,
            state,
            failure,
        });
    }
}
