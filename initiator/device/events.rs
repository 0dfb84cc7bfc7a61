// SPDX-License-Identifier: GPL-2.0

//! What others are told of the states of a disk and its paths: a tracepoint for each change, and uevents of
//! the block device for those that last.
//!
//! Whoever changes states calls [`Device::tell_changes`] afterwards, in process context and without their locks. It
//! compares them with what was told last, under one lock, so that what is told comes in order.
//!
//! That the target's portals are others is a uevent, too, `HCABLK_PORTALS=1`. Nothing here follows it: which paths a disk is to have
//! is up to user space.

use super::{
    path::PathState,
    Device,
    State, //
};
use crate::failure::Failure;
use hcablk_core::{
    blkdev::Announcer,
    proto::connect::PATHS_MAX,
    report::trace,
    sync::defer::without_io,
    system::now_ns, //
};
use kernel::{
    prelude::*,
    str::CString, //
};

/// Nanoseconds between two events that tell of the target's portals, at least: each may have a program run.
const PORTALS_NS: u64 = 1_000_000_000;

/// What was told last. A path that there is not is new.
pub(super) struct Told {
    state: State,
    paths: [PathState; PATHS_MAX as usize],
    /// Generation of the target's portals, 0: none was told of this disk.
    portals: u32,
    /// When that was told, nanoseconds.
    portals_ns: u64,
    /// Of the disk, while there is one.
    announcer: Option<Announcer>,
}

impl Told {
    pub(super) fn new() -> Self {
        Self {
            state: State::New,
            paths: [PathState::New; PATHS_MAX as usize],
            portals: 0,
            portals_ns: 0,
            announcer: None,
        }
    }
}

impl Device {
    /// Sets through which disk user space is told from now on.
    pub(super) fn set_announcer(&self, announcer: Option<Announcer>) {
        let mut told = self.told.lock();
        // Of another disk nothing was told.
        told.portals = 0;
        let former = core::mem::replace(&mut told.announcer, announcer);
        drop(told);
        drop(former);
    }

    /// Tells user space that the target's portals have this generation, if it was not told last; `false`: there is no
    /// disk yet, or it was told of another one less than [`PORTALS_NS`] ago. Sleeps; not with the lock of any state.
    pub(super) fn tell_portals(&self, generation: u32) -> bool {
        let auto = u8::from(self.settings().paths_auto);
        let mut told = self.told.lock();
        if told.portals == generation {
            return true;
        }
        let now = now_ns();
        let is_early = told.portals_ns != 0 && now - told.portals_ns < PORTALS_NS;
        let Some(announcer) = told.announcer.as_ref().filter(|_| !is_early) else {
            return false;
        };
        let is_told = self.uevent(|| {
            let disk = CString::try_from_fmt(fmt!("HCABLK_DISK={self}"))?;
            let auto = CString::try_from_fmt(fmt!("HCABLK_PATHS_AUTO={auto}"))?;
            announcer.announce(&[&disk, c"HCABLK_PORTALS=1", &auto])
        });
        told.portals_ns = now;
        if is_told {
            told.portals = generation;
        }
        is_told
    }

    /// Tells of all states that are others than those told last. Sleeps; not with the lock of any state.
    pub(super) fn tell_changes(&self) {
        let mut told = self.told.lock();
        let mut now = [(PathState::New, None); PATHS_MAX as usize];
        for path in self.paths.lock().iter() {
            if let Some(place) = now.get_mut(usize::from(path.number())) {
                let info = path.info();
                *place = (info.state, info.failure);
            }
        }
        for (number, (state, failure)) in (0..).zip(now) {
            let Some(last) = told.paths.get_mut(usize::from(number)) else {
                break;
            };
            if core::mem::replace(last, state) == state {
                continue;
            }
            trace::initiator::path(|| self.change(Some(number), state.name(), failure));
            if !state.is_reconnecting() {
                self.announce(&told.announcer, Some(number), state.name(), failure);
            }
        }
        let (state, failure) = self.show(|shown| (shown.state, shown.failure));
        if core::mem::replace(&mut told.state, state) != state {
            trace::initiator::disk(|| self.change(None, state.name(), failure));
            self.announce(&told.announcer, None, state.name(), failure);
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

    /// Tells user space of a state, if there is a disk.
    fn announce(
        &self,
        announcer: &Option<Announcer>,
        path: Option<u8>,
        state: &CStr,
        failure: Option<Failure>,
    ) {
        let Some(announcer) = announcer else {
            return;
        };
        self.uevent(|| {
            let disk = CString::try_from_fmt(fmt!("HCABLK_DISK={self}"))?;
            let state = state.to_str().map_err(|_| EINVAL)?;
            let state = CString::try_from_fmt(fmt!("HCABLK_STATE={state}"))?;
            let path = path.map(|path| CString::try_from_fmt(fmt!("HCABLK_PATH={path}")));
            let path = path.transpose()?;
            let error = failure.map(|why| CString::try_from_fmt(fmt!("HCABLK_ERROR={why}")));
            let error = error.transpose()?;
            let mut variables: KVec<&CStr> = KVec::new();
            let all = [Some(&disk), path.as_ref(), Some(&state), error.as_ref()];
            for variable in all.into_iter().flatten() {
                variables.push(variable, GFP_KERNEL)?;
            }
            announcer.announce(&variables)
        });
    }

    /// Has `announce` send a uevent; returns whether it was sent.
    fn uevent(&self, announce: impl FnOnce() -> Result) -> bool {
        // Whoever reclaims memory may wait for this disk.
        let result = without_io(announce);
        if let Err(e) = result {
            pr_warn!(
                "{self}: user space was not told of a change (error {})\n",
                e.to_errno()
            );
        }
        result.is_ok()
    }
}
