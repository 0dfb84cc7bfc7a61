// SPDX-License-Identifier: GPL-2.0

//! A device's paths together: which there are, how they begin and end with the disk, and how they
//! come and go while it is used.

use super::{
    path::{
        session_of,
        Path,
        PathState, //
    },
    Active,
    Control,
    Device,
    Sessions,
    State, //
};
use crate::{
    failure::Failure,
    head::Head,
    session::Session,
    settings::{
        Policy,
        Settings, //
    },
};
use hcablk_core::{
    configfs::Directory,
    proto::{
        connect::Epoch,
        name::VolumeId, //
    },
    sync::defer::for_reclaim,
    system::Deadline, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
};

/// How long a connection that was refused as stale is not tried again.
const STALE_RETRY_DELAY: Delta = Delta::from_millis(200);

impl Device {
    /// Returns the path of this number.
    pub(crate) fn path(&self, number: u8) -> Option<Arc<Path>> {
        let paths = self.paths.lock();
        paths.iter().find(|path| path.number() == number).cloned()
    }

    /// Makes a path. Fails with `EEXIST` if there is one of this number, and with `ENOMEM`.
    pub(crate) fn add_path(&self, number: u8) -> Result<Arc<Path>> {
        // Not with the list locked: whoever ends a session waits for that, and who reclaims memory
        // may wait for whoever does.
        let path = Path::new(number, &self.queues)?;
        let mut paths = self.paths.lock();
        if paths.iter().any(|path| path.number() == number) {
            return Err(EEXIST);
        }
        for_reclaim(|| paths.push(path.clone(), GFP_KERNEL))?;
        Ok(path)
    }

    /// Forgets a path, which is not used any more.
    pub(crate) fn forget_path(&self, path: &Path) {
        let mut paths = self.paths.lock();
        paths.retain(|own| !core::ptr::eq(&**own, path));
    }

    /// Returns whether `f` holds for all paths that are to be used.
    pub(super) fn for_all_wanted_paths(&self, f: impl Fn(&Path) -> bool) -> bool {
        let paths = self.paths.lock();
        paths.iter().all(|path| !path.info().enabled || f(path))
    }

    /// Returns whether the disk has another path than `session`, live or to be connected again.
    pub(crate) fn has_other_paths(&self, session: &Session) -> bool {
        !self.for_all_wanted_paths(|path| {
            path.number() == session.path() || !path.info().state.is_of_use()
        })
    }

    /// Connects the first path that can be, and makes the disk. Sleeps.
    pub(super) fn connect_first(
        self: &Arc<Self>,
        settings: Settings,
        epoch: Epoch,
        lost: Option<VolumeId>,
    ) -> Result<(Arc<Path>, Active), Failure> {
        let mut first_failure = None;
        let mut epoch = Ok(epoch);
        for number in 0.. {
            let next = {
                let paths = self.paths.lock();
                match paths.get(number) {
                    Some(path) => path.clone(),
                    None => break,
                }
            };
            if !next.info().enabled {
                continue;
            }
            let connected = epoch
                .map_err(|e| Failure::Setup("a session", e))
                .and_then(|epoch| self.connect_path(&next, settings, epoch, lost));
            match connected {
                Ok(mut active) => {
                    // Those of path 0, whichever it was.
                    active.settings.address = settings.address;
                    active.settings.port = settings.port;
                    return Ok((next, active));
                }
                Err(failure) => {
                    next.set_state(PathState::New, Some(failure));
                    if matches!(failure, Failure::Forced | Failure::Interrupted) {
                        return Err(failure);
                    }
                    first_failure = first_failure.or(Some(failure));
                    epoch = self.identities.next_epoch();
                }
            }
        }
        Err(first_failure.unwrap_or(Failure::Unset("address")))
    }

    /// Connects a path, and makes the disk. Sleeps, until [`Path::interrupt`] or a signal ends it.
    fn connect_path(
        self: &Arc<Self>,
        path: &Path,
        settings: Settings,
        mut epoch: Epoch,
        lost: Option<VolumeId>,
    ) -> Result<Active, Failure> {
        let settings = path.settings(settings);
        let deadline = Deadline::new(settings.connect_timeout_s.saturating_mul(1000));
        loop {
            let connected = self.connect(path, settings, epoch, lost, deadline);
            path.attempt_over();
            match connected {
                // The target's connection manager ends what it has left as soon as it has refused.
                Err(Failure::StaleConnection) if !deadline.has_passed() => {
                    pr_info!("{}: {}; trying again\n", **self, Failure::StaleConnection);
                    fsleep(STALE_RETRY_DELAY);
                    epoch = self
                        .identities
                        .next_epoch()
                        .map_err(|e| Failure::Setup("a session", e))?;
                }
                result => return result,
            }
        }
    }

    /// Has all paths but `first` connected that are to be used.
    pub(super) fn schedule_other_paths(self: &Arc<Self>, first: &Path) {
        for path in self.paths.lock().iter() {
            if path.number() != first.number() && path.info().enabled {
                path.set_state(PathState::Connecting, None);
                path.schedule(self);
            }
        }
    }

    /// Ends the sessions of a disk that is gone, and all attempts to make others. By who has
    /// `control`. Sleeps.
    pub(super) fn end_paths(&self, head: &Head, sessions: &Sessions) {
        head.go();
        for session in sessions.iter().flatten() {
            session.finish();
            session.let_go();
        }
        head.hw_queues().clear();
        for path in self.paths.lock().iter() {
            path.set_state(PathState::New, path.info().failure);
            path.interrupt(Failure::Forced);
        }
    }

    /// Uses a path from now on: it is connected if there is a disk, else together with it. Nothing
    /// happens if it is used already. Fails with `EINVAL` if its address is not set.
    pub(crate) fn enable_path(
        self: &Arc<Self>,
        path: &Arc<Path>,
        directory: &Directory<'_>,
    ) -> Result {
        let control = self.control.lock();
        let info = path.info();
        if info.enabled && info.state != PathState::Refused {
            return Ok(());
        }
        if info.address.is_none() {
            return Err(EINVAL);
        }
        let pin = directory.pin()?;
        path.set_enabled(Some(pin));
        if let Some(active) = control.active.as_ref() {
            self.begin_path(path, active);
        }
        Ok(())
    }

    /// Has a path that was refused connected again, whatever has come of that.
    pub(super) fn connect_refused(self: &Arc<Self>, path: &Arc<Path>, active: &Active) {
        if path.info().state == PathState::Refused {
            self.begin_path(path, active);
        }
    }

    /// Has a path connected that has no session. By who has `control`.
    fn begin_path(self: &Arc<Self>, path: &Arc<Path>, active: &Active) {
        path.set_state(PathState::Connecting, None);
        self.show_sessions(active, State::Queueing, None);
        self.tell_changes();
        path.schedule(self);
    }

    /// Uses a path no longer: its requests go on by others. Nothing happens if it is not used.
    /// Fails with `EBUSY` if it is live, or was until now, and no other one is, or if it is the
    /// last one that may come back. Sleeps until its session has ended.
    pub(crate) fn disable_path(&self, path: &Path) -> Result {
        let mut control = self.control.lock();
        if !path.info().enabled {
            return Ok(());
        }
        let Some(active) = control.active.as_mut() else {
            path.set_enabled(None);
            path.set_state(PathState::New, None);
            return Ok(());
        };
        let number = path.number();
        let is_other = |session: &&Arc<Session>| session.path() != number && session.is_live();
        let others_wait = !self.for_all_wanted_paths(|other| {
            other.number() == number || !other.info().state.is_of_use()
        });
        let state = path.info().state;
        let is_last = match state {
            PathState::New | PathState::Refused => false,
            PathState::Connecting | PathState::Waiting => !others_wait,
            PathState::Live | PathState::Lost => {
                !active.sessions.iter().flatten().any(|s| is_other(&s))
            }
        };
        if is_last {
            return Err(EBUSY);
        }
        path.set_enabled(None);
        path.set_state(PathState::New, None);
        path.interrupt(Failure::Forced);
        // What has gone by it is fenced, or kept in mind as to be fenced.
        if let Some(session) = session_of(&active.sessions, number).cloned() {
            session.finish();
        }
        self.release_path(active, number);
        self.show_sessions(active, State::Queueing, None);
        self.tell_changes();
        active.head.requests().run_hw_queues();
        Ok(())
    }

    /// Lets go of what a path that is not connected again has of its RDMA device, which may be
    /// waiting for that. Its session has ended. By who has `control`; sleeps.
    pub(super) fn release_path(&self, active: &mut Active, number: u8) {
        let place = active.sessions.get_mut(usize::from(number));
        if let Some(session) = place.and_then(Option::take) {
            session.let_go();
        }
        self.remove_queues(&active.head, number);
    }

    /// Takes the queues of a path, whose session has ended, from the hardware queues. Sleeps; who
    /// has `control`, for which the way back of another path waits, waits for no memory.
    pub(super) fn remove_queues(&self, head: &Head, number: u8) {
        if let Err(e) = for_reclaim(|| head.hw_queues().remove(number)) {
            pr_warn!(
                "{self}: cannot release path {number} (error {})\n",
                e.to_errno()
            );
        }
    }

    /// Sets by which policy requests go among the paths, at once if there is a disk.
    pub(crate) fn set_policy(&self, policy: Policy) -> Result {
        let mut control = self.control.lock();
        if let Some(active) = control.active.as_mut() {
            for_reclaim(|| active.head.hw_queues().set_policy(policy))?;
            active.settings.policy = policy;
        }
        self.settings.lock().policy = policy;
        Ok(())
    }

    /// Changes `ctrl_loss_tmo`, `fast_io_fail_tmo` or `reconnect_delay`, at any time. A loss of now
    /// counts anew by them. `EBUSY` if a disk would begin or cease to outlive its connection: that
    /// is decided when it is connected.
    pub(crate) fn set_limits(&self, change: impl Fn(&mut Settings)) -> Result {
        let mut control = self.control.lock();
        if let Some(active) = control.active.as_mut() {
            let ends_with_it = |settings: &Settings| settings.ctrl_loss_tmo_s == Some(0);
            let mut new = active.settings;
            change(&mut new);
            if ends_with_it(&new) != ends_with_it(&active.settings) {
                return Err(EBUSY);
            }
            active.settings = new;
            active.head.limit_loss((&new).into());
        }
        change(&mut self.settings.lock());
        for path in self.paths.lock().iter() {
            path.woken.set();
        }
        Ok(())
    }

    /// Sets whether user space is to add a path for each portal of the target.
    pub(crate) fn set_paths_auto(&self, auto: bool) {
        self.settings.lock().paths_auto = auto;
    }

    /// Says that `session` is lost because of `failure` while the disk stays: by other paths, or
    /// waiting for one. By who has `control`.
    pub(super) fn lose_session(&self, active: &Active, session: &Session, failure: Failure) {
        let number = session.path();
        let is_alone = self.paths.lock().len() == 1;
        if active.has_live() {
            pr_warn!("{self}: path {number} lost: {failure}; requests go by the others\n");
            return self.show_sessions(active, State::Queueing, None);
        }
        if is_alone {
            pr_warn!("{self}: connection lost: {failure}; requests wait for another one\n");
        } else {
            pr_warn!("{self}: path {number} lost: {failure}; requests wait for a path\n");
        }
        self.count_loss(active);
        self.show_sessions(active, State::Queueing, Some(failure));
    }

    /// Counts from now on for how long there is no path, if that has not begun. Whoever waits with
    /// another attempt looks how long it may. By who has `control`.
    fn count_loss(&self, active: &Active) {
        let limits = (&active.settings).into();
        active.head.begin_loss(self.completed(), limits);
        for path in self.paths.lock().iter() {
            path.woken.set();
        }
    }

    /// Begins to count for how long there is no path, if `session` was the last one that was live
    /// and another is to follow: its teardown takes as long as its queue pairs need to drain. Does
    /// nothing while somebody is at work on the disk; then it is counted from the end of the
    /// teardown on. Process context.
    pub(super) fn begin_loss(&self, session: &Session, failure: Failure) {
        let Some(control) = self.control.try_lock() else {
            return;
        };
        let last = |active: &&Active| active.has(session) && !active.has_live();
        let Some(active) = control.active.as_ref().filter(last) else {
            return;
        };
        if !session.is_to_be_followed() {
            return;
        }
        self.count_loss(active);
        let mut shown = self.shown.lock();
        if matches!(shown.state, State::Live | State::Degraded) {
            shown.state = State::Queueing;
            shown.failure = Some(failure);
        }
    }

    /// Returns whether `control` has the disk of `head`.
    pub(super) fn has_disk(control: &Control, head: &Arc<Head>) -> bool {
        let active = control.active.as_ref();
        active.is_some_and(|active| Arc::ptr_eq(&active.head, head))
    }
}
