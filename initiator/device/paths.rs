// SPDX-License-Identifier: GPL-2.0

//! The set of a device's paths: how they are added and removed, and how they start and end with the
//! disk.

use super::{
    path::{
        session_of,
        Path,
        PathState, //
    },
    Active,
    Control,
    Device,
    DeviceState, //
    Sessions,
};
use crate::{
    failure::Failure,
    head::{
        Head,
        LossLimits, //
    },
    io::Retired,
    session::Attachment,
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

/// The delay before a connection that was refused as stale is tried again.
const STALE_RETRY_DELAY: Delta = Delta::from_millis(200);

/// The remaining resources of a path whose session has ended. Dropping them waits for a grace
/// period and destroys queue pairs and memory regions: not under [`Device::control`], for which
/// other paths wait. Sleeps. [`Device::wait_for_releases`] waits for the drop.
#[must_use]
pub(super) struct ReleasedPath<'a> {
    device: &'a Device,
    retired: Retired,
    session: Option<Arc<Attachment>>,
}

impl ReleasedPath<'_> {
    /// Waits until the block layer no longer uses the path's queues: then the next run of the
    /// hardware queues finds all requests that they refused. Sleeps.
    fn settle(&mut self) {
        self.retired.settle();
    }
}

impl Drop for ReleasedPath<'_> {
    fn drop(&mut self) {
        for_reclaim(|| {
            drop(core::mem::replace(&mut self.retired, Retired::new()));
            // Its protection domain, after the queue pairs.
            self.session = None;
        });
        let mut releases = self.device.releases.lock();
        *releases -= 1;
        if *releases == 0 {
            self.device.all_released.notify_all();
        }
    }
}

impl Device {
    /// Returns path `number`.
    pub(crate) fn path(&self, number: u8) -> Option<Arc<Path>> {
        let paths = self.paths.lock();
        paths.iter().find(|path| path.number() == number).cloned()
    }

    /// Adds a path. Fails with `EEXIST` if `number` is taken, and with `ENOMEM`.
    pub(crate) fn add_path(&self, number: u8) -> Result<Arc<Path>> {
        // Allocated without the list's lock: ending a session takes that lock, and memory reclaim
        // may wait for the end of a session.
        let path = Path::new(number, &self.queues)?;
        let mut paths = self.paths.lock();
        if paths.iter().any(|path| path.number() == number) {
            return Err(EEXIST);
        }
        for_reclaim(|| paths.push(path.clone(), GFP_KERNEL))?;
        Ok(path)
    }

    /// Removes a path, which is unused.
    pub(crate) fn forget_path(&self, path: &Path) {
        let mut paths = self.paths.lock();
        paths.retain(|own| !core::ptr::eq(&**own, path));
    }

    /// Returns whether `f` holds for all enabled paths.
    pub(super) fn for_all_wanted_paths(&self, f: impl Fn(&Path) -> bool) -> bool {
        let paths = self.paths.lock();
        paths.iter().all(|path| !path.info().enabled || f(path))
    }

    /// Returns whether the disk has another path than `session`, live or reconnecting.
    pub(crate) fn has_other_paths(&self, session: &Attachment) -> bool {
        !self.for_all_wanted_paths(|path| {
            path.number() == session.path() || !path.info().state.is_of_use()
        })
    }

    /// Connects the first path that works, and makes the disk. Sleeps.
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
                    // The disk keeps path 0's address, regardless of the path that was connected.
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

    /// Connects a path, and makes the disk. Sleeps until [`Path::interrupt`] or a signal ends it.
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
                // After its refusal, the target's connection manager ends the left-over connection
                // at once.
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

    /// Schedules the workers of all enabled paths except `first`.
    pub(super) fn schedule_other_paths(self: &Arc<Self>, first: &Path) {
        for path in self.paths.lock().iter() {
            if path.number() != first.number() && path.info().enabled {
                path.set_state(PathState::Connecting, None);
                path.schedule(self);
            }
        }
    }

    /// Ends the sessions of a disk that was removed, and all attempts to make new ones. The caller
    /// holds `control`. Sleeps.
    pub(super) fn end_paths(&self, head: &Head, sessions: &Sessions) {
        head.begin_removal();
        for session in sessions.iter().flatten() {
            session.finish();
            session.session().stop_device_watch();
        }
        head.hw_queues().clear();
        for path in self.paths.lock().iter() {
            path.set_state(PathState::New, path.info().failure);
            path.interrupt(Failure::Forced);
        }
    }

    /// Enables a path: it is connected now if there is a disk, else together with the disk. Does
    /// nothing if the path is enabled already. Fails with `EINVAL` if its address is not set.
    pub(crate) fn enable_path(
        self: &Arc<Self>,
        path: &Arc<Path>,
        directory: &Directory<'_>,
    ) -> Result {
        let control = self.lock_control()?;
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

    /// Reconnects a path that was refused, and ignores whether that succeeds.
    pub(super) fn connect_refused(self: &Arc<Self>, path: &Arc<Path>, active: &Active) {
        if path.info().state == PathState::Refused {
            self.begin_path(path, active);
        }
    }

    /// Starts connecting a path that has no session. The caller holds `control`.
    fn begin_path(self: &Arc<Self>, path: &Arc<Path>, active: &Active) {
        path.set_state(PathState::Connecting, None);
        self.show_sessions(active, DeviceState::Queueing, None);
        self.announce_changes();
        path.schedule(self);
    }

    /// Disables a path: its requests continue on others. Does nothing if the path is disabled
    /// already. Fails with `EBUSY` if the path is live, or was until now, and no other path is
    /// live; and if it is the last path that may come back. Sleeps until its session has ended.
    pub(crate) fn disable_path(&self, path: &Path) -> Result {
        let mut control = self.lock_control()?;
        if !path.info().enabled {
            return Ok(());
        }
        let Some(active) = control.active.as_mut() else {
            path.set_enabled(None);
            path.set_state(PathState::New, None);
            return Ok(());
        };
        let number = path.number();
        let is_other = |session: &&Arc<Attachment>| session.path() != number && session.is_live();
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
        // The requests of the path are fenced, or recorded as unfenced.
        if let Some(session) = session_of(&active.sessions, number).cloned() {
            session.finish();
        }
        let mut released = self.release_path(active, number);
        self.show_sessions(active, DeviceState::Queueing, None);
        self.announce_changes();
        let head = active.head.clone();
        drop(control);
        released.settle();
        head.dispatch().run_hw_queues();
        drop(released);
        Ok(())
    }

    /// Releases a path's session, which has ended, and thus its RDMA device: the removal of the
    /// device may wait for that. The caller holds `control`, for which reconnecting paths wait, so
    /// this must not wait for memory; the caller drops what is returned after `control`. Sleeps.
    pub(super) fn release_path(&self, active: &mut Active, number: u8) -> ReleasedPath<'_> {
        let place = active.sessions.get_mut(usize::from(number));
        let session = place.and_then(Option::take);
        if let Some(session) = &session {
            session.session().stop_device_watch();
        }
        let mut retired = Retired::new();
        let hw_queues = active.head.hw_queues();
        if let Err(e) = for_reclaim(|| hw_queues.remove(number, &mut retired)) {
            pr_warn!(
                "{self}: cannot release path {number} (error {})\n",
                e.to_errno()
            );
        }
        *self.releases.lock() += 1;
        ReleasedPath {
            device: self,
            retired,
            session,
        }
    }

    /// Waits until no path is being released: until the RDMA device has room again for the
    /// resources that the paths had. The caller does not hold `control`. Sleeps.
    pub(super) fn wait_for_releases(&self) {
        let mut releases = self.releases.lock();
        while *releases != 0 {
            self.all_released.wait(&mut releases);
        }
    }

    /// Sets the path policy of requests, at once if there is a disk.
    pub(crate) fn set_policy(&self, policy: Policy) -> Result {
        // Dropped after `control`, for which reconnecting paths wait: the drop waits for a grace
        // period.
        let mut retired = Retired::new();
        let mut control = self.lock_control()?;
        if let Some(active) = control.active.as_mut() {
            for_reclaim(|| active.head.hw_queues().set_policy(policy, &mut retired))?;
            active.settings.policy = policy;
        }
        self.settings.lock().policy = policy;
        Ok(())
    }

    /// Changes `ctrl_loss_tmo`, `fast_io_fail_tmo` or `reconnect_delay`, at any time. If the disk
    /// has no session now, changed time limits count from now. Fails with `EBUSY` if `change` would
    /// alter whether the disk outlives its connection, which is decided when the disk is connected.
    /// Waits while the disk is being connected.
    pub(crate) fn set_limits(&self, change: impl Fn(&mut Settings)) -> Result {
        let mut control = self.lock_control()?;
        if let Some(active) = control.active.as_mut() {
            let ends_with_connection = |settings: &Settings| settings.ctrl_loss_tmo_s == Some(0);
            let mut new = active.settings;
            change(&mut new);
            if ends_with_connection(&new) != ends_with_connection(&active.settings) {
                return Err(EBUSY);
            }
            let former = LossLimits::from(&active.settings);
            let limits = LossLimits::from(&new);
            active.settings = new;
            if former != limits {
                active.head.limit_loss(limits);
            }
        }
        change(&mut self.settings.lock());
        for path in self.paths.lock().iter() {
            path.woken.set();
        }
        Ok(())
    }

    /// Sets whether user space adds a path for each portal of the target.
    pub(crate) fn set_paths_auto(&self, auto: bool) {
        self.settings.lock().paths_auto = auto;
    }

    /// Marks `session` as lost because of `failure` while the disk stays: it uses other paths, or
    /// waits for one. The caller holds `control`.
    pub(super) fn lose_session(&self, active: &Active, session: &Attachment, failure: Failure) {
        let number = session.path();
        let is_alone = self.paths.lock().len() == 1;
        if active.has_live() {
            pr_warn!("{self}: path {number} lost: {failure}; requests use the other paths\n");
            return self.show_sessions(active, DeviceState::Queueing, None);
        }
        if is_alone {
            pr_warn!("{self}: connection lost: {failure}; requests wait for a new connection\n");
        } else {
            pr_warn!("{self}: path {number} lost: {failure}; requests wait for a path\n");
        }
        self.count_loss(active);
        self.show_sessions(active, DeviceState::Queueing, Some(failure));
    }

    /// Starts the time without a path, if that has not begun. The deadline of each waiting attempt
    /// depends on it. The caller holds `control`.
    fn count_loss(&self, active: &Active) {
        let limits = (&active.settings).into();
        active.head.begin_loss(self.completed(), limits);
        for path in self.paths.lock().iter() {
            path.woken.set();
        }
    }

    /// Starts the time without a path, if `session` was the last live one and a new one will
    /// follow. Its teardown may last: the queue pairs have to drain. Does nothing while another
    /// task works on the disk; the time then starts at the end of the teardown. Process context.
    pub(super) fn begin_loss(&self, session: &Attachment, failure: Failure) {
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
        if matches!(shown.state, DeviceState::Live | DeviceState::Degraded) {
            shown.state = DeviceState::Queueing;
            shown.failure = Some(failure);
        }
    }

    /// Returns whether `control` has the disk of `head`.
    pub(super) fn has_disk(control: &Control, head: &Arc<Head>) -> bool {
        let active = control.active.as_ref();
        active.is_some_and(|active| Arc::ptr_eq(&active.head, head))
    }
}
