// SPDX-License-Identifier: GPL-2.0

//! What others are told of the states of a disk and its paths: a tracepoint for each change, and uevents of
//! the block device for those that last.
//!
//! Whoever changes states calls [`Device::tell_changes`] afterwards, in process context and without their locks. It
//! compares them with what was told last, under one lock, so that what is told comes in order.

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
    sync::defer::without_io, //
};
use kernel::{
    prelude::*,
    str::CString, //
};

/// What was told last. A path that there is not is new.
pub(super) struct Told {
    state: State,
    paths: [PathState; PATHS_MAX as usize],
    /// Of the disk, while there is one.
    announcer: Option<Announcer>,
}

impl Told {
    pub(super) fn new() -> Self {
        Self {
            state: State::New,
            paths: [PathState::New; PATHS_MAX as usize],
            announcer: None,
        }
    }
}

impl Device {
    /// Sets through which disk user space is told from now on.
    pub(super) fn set_announcer(&self, announcer: Option<Announcer>) {
        let former = core::mem::replace(&mut self.told.lock().announcer, announcer);
        drop(former);
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
        // Whoever reclaims memory may wait for this disk.
        let result = without_io(|| {
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
        if let Err(e) = result {
            pr_warn!(
                "{self}: user space was not told of a state (error {})\n",
                e.to_errno()
            );
        }
    }
}
