// SPDX-License-Identifier: GPL-2.0

//! Connects a path of a disk, or connects it again, while requests use other paths or wait.
//!
//! The teardown of a lost session has returned its requests to the block layer, each after its
//! memory region was destroyed. The path's worker makes attempts, at the [`Pace`] that the target
//! allows, until one succeeds, a failure is permanent ([`Failure::may_pass`]), or no path had a
//! session for `ctrl_loss_tmo` ([`Head::begin_loss`] starts this time). If the RDMA device is
//! removed, the path releases it, and attempts continue over any device that leads to the target. A
//! new session has the path's id and a later epoch: the target admits it when no request of the
//! lost session can reach the drive any more, so that an old write never overtakes its retry; other
//! paths are fenced before it is used. When `fast_io_fail_tmo` is over first, requests fail from
//! then on until there is a session.
//!
//! # Locks and contexts
//!
//! The workers run on their own workqueue, since they wait for teardowns. They do not hold
//! `control` during an attempt, so commands never wait for one; they check afterwards, under
//! `control`, that the disk still exists. Disabling the path interrupts the attempt
//! ([`Path::interrupt`]). Memory reclaim may wait for this disk: the workers allocate as
//! `for_reclaim` says, and an attempt without memory fails.

use super::{
    attempt::Attempt,
    pace::Pace,
    path::{
        session_of,
        Path,
        PathState, //
    },
    plan::Plan,
    Active,
    Control,
    Device,
    DeviceState, //
    Settings,
};
use crate::{
    failure::Failure,
    head::Head,
    session::VolumeInfo, //
};
use hcablk_core::system::{
    self,
    Deadline, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Device {
    /// Returns whether the disk outlives its sessions. Without a wwid, a volume that returns may be
    /// a different one. A target may forget writes that it acknowledged from a volatile cache, so
    /// it must also report that loss.
    pub(super) fn is_to_reconnect(&self, settings: &Settings, volume: &VolumeInfo) -> bool {
        if settings.ctrl_loss_tmo_s == Some(0) {
            return false;
        }
        let why = if volume.wwid.is_none() {
            "it has no wwid"
        } else if volume.geometry.write_cache && volume.instance.is_none() {
            "its target does not report losses of a volatile write cache"
        } else {
            return true;
        };
        pr_info!("{self}: a lost connection will not be restored: {why}\n");
        false
    }

    /// Removes the disk if no path of it is live, and it is the disk of `head` (`None`: any disk).
    /// Returns whether the disk was removed; no further attempt is made then. Sleeps.
    pub(super) fn give_up(&self, head: Option<&Arc<Head>>, failure: Failure) -> bool {
        let mut control = self.control.lock();
        // The device may have a new disk by now.
        if head.is_some_and(|head| !Self::has_disk(&control, head)) {
            return false;
        }
        if !self.show(|shown| shown.state.is_reconnecting()) || control.active.is_none() {
            return false;
        }
        pr_warn!("{self}: cannot reconnect: {failure}\n");
        let released = self.remove_lost(&mut control, failure);
        drop(control);
        drop(released);
        true
    }

    /// Stops all attempts to connect the path of `plan`, because of `failure`. Removes the disk if
    /// it has no other path.
    fn refuse(&self, plan: &Plan, failure: Failure) {
        let mut control = self.control.lock();
        if !self.is_wanted(&control, plan) {
            return;
        }
        plan.path.set_state(PathState::Refused, Some(failure));
        if self.for_all_wanted_paths(|path| !path.info().state.is_of_use()) {
            pr_warn!("{self}: cannot reconnect: {failure}\n");
            let released = self.remove_lost(&mut control, failure);
            drop(control);
            return drop(released);
        }
        pr_warn!(
            "{self}: path {} is refused, and not tried again: {failure}\n",
            plan.path.number()
        );
        let released = control.active.as_mut().map(|active| {
            let released = self.release_path(active, plan.path.number());
            self.show_sessions(active, DeviceState::Queueing, Some(failure));
            released
        });
        drop(control);
        drop(released);
        self.announce_changes();
    }

    /// Returns whether the path still needs a session to replace that of `plan`. If so, shows
    /// `failure` as the reason for the missing session.
    fn still_waits(&self, plan: &Plan, failure: Failure) -> bool {
        let control = self.control.lock();
        let waits = self.is_wanted(&control, plan);
        if waits {
            plan.path.set_state(PathState::Waiting, Some(failure));
            let mut shown = self.shown.lock();
            if shown.state.is_reconnecting() {
                shown.failure = Some(failure);
            }
        }
        drop(control);
        self.announce_changes();
        waits
    }

    /// Returns whether the path needs a session to replace that of `plan`.
    pub(super) fn is_wanted(&self, control: &Control, plan: &Plan) -> bool {
        Self::has_disk(control, &plan.head)
            && plan.is_for(&plan.path.info())
            && control.active.as_ref().is_some_and(|active| {
                let last = session_of(&active.sessions, plan.path.number());
                match (last, &plan.lost) {
                    (None, None) => true,
                    (Some(last), Some(lost)) => Arc::ptr_eq(last, lost),
                    _ => false,
                }
            })
    }

    /// Returns the starting point of attempts, `None` if the path needs no session.
    fn plan(&self, path: &Arc<Path>) -> Option<Plan> {
        let control = self.control.lock();
        let info = path.info();
        if !info.enabled || !info.state.is_reconnecting() {
            return None;
        }
        control.active.as_ref().map(|active| Plan {
            path: path.clone(),
            settings: path.settings(active.settings),
            head: active.head.clone(),
            lost: session_of(&active.sessions, path.number()).cloned(),
            volume: active.volume,
            usage: info.usage,
        })
    }

    /// Makes attempts until the path has a session or needs none. The path's worker; sleeps.
    pub(super) fn reconnect(self: &Arc<Self>, path: &Arc<Path>) {
        path.woken.reset();
        let Some(mut plan) = self.plan(path) else {
            return;
        };
        let last = plan.lost.as_ref().and_then(|lost| lost.failure());
        let mut failure = last.unwrap_or(Failure::Disconnected);
        let settings = &plan.settings;
        let mut pace = Pace::new(settings.connect_timeout_s, settings.reconnect_delay_s);
        let aside = pace
            .aside_ms(path.losses())
            .filter(|_| !plan.lacks_device() && self.has_live_path());
        let mut next = Deadline::new(match path.was_lost_soon() && !plan.lacks_device() {
            true => pace.delay_ms(system::random_u64()),
            false => 0,
        });
        if let Some(ms) = aside {
            pr_warn!(
                "{self}: path {} was lost {} times in a row: it is set aside for {} s while requests use other paths\n",
                path.number(),
                path.losses(),
                ms / 1000
            );
            self.set_aside(&plan, Deadline::new(ms));
            if !self.still_waits(&plan, failure) {
                return;
            }
        }
        loop {
            if !next.has_passed() {
                self.wait_between_attempts(&plan, next.left_ms());
                if !self.still_waits(&plan, failure) {
                    return;
                }
                self.fail_fast_if_due(&plan);
            }
            if plan.lacks_device() {
                self.release_lost(&mut plan);
            }
            path.set_connecting();
            self.announce_changes();
            pace.set_reconnect_delay(self.settings().reconnect_delay_s);
            let delay = pace.delay_ms(system::random_u64());
            next = Deadline::new(delay);
            match self.attempt(&plan, &pace, delay) {
                Attempt::Over => return,
                Attempt::Failed(reason, outcome) => {
                    failure = reason;
                    pace.ended(outcome);
                    // An RDMA device with a quota, or a machine short of memory, may support only
                    // one session.
                    if reason.may_be_shortage() && self.release_lost(&mut plan) {
                        next = Deadline::new(0);
                    }
                }
            }
            // If the path is disabled, the attempts of other paths may continue.
            if !self.is_wanted(&self.control.lock(), &plan) {
                return;
            }
            // If another path has come back, keep trying. Keep trying, too, if the only obstacle
            // was that the path's last session still held a device.
            if plan.head.loss().end.is_some_and(Deadline::has_passed)
                && !plan.lacks_device()
                && self.give_up(Some(&plan.head), failure)
            {
                return;
            }
            if !failure.may_pass() {
                return self.refuse(&plan, failure);
            }
            if !self.still_waits(&plan, failure) {
                return;
            }
            let rest = pace.rest_ms(system::random_u64());
            if rest > next.left_ms() {
                next = Deadline::new(rest);
            }
        }
    }

    /// Releases the lost session's RDMA device and memory: the device is being removed and waits
    /// for that, or resources do not suffice for a second session. Returns whether there was
    /// something to release.
    fn release_lost(&self, plan: &mut Plan) -> bool {
        let mut control = self.control.lock();
        if plan.lost.is_none() || !self.is_wanted(&control, plan) {
            return false;
        }
        let lost = plan.lost.take();
        let released = control
            .active
            .as_mut()
            .map(|active| self.release_path(active, plan.path.number()));
        drop(control);
        drop((released, lost));
        true
    }

    /// Returns whether requests use some path. Sleeps.
    fn has_live_path(&self) -> bool {
        let control = self.control.lock();
        control.active.as_ref().is_some_and(Active::has_live)
    }

    /// Waits until `end`. Returns early when no other path is live, or when the path, its device or
    /// the disk is removed.
    fn set_aside(&self, plan: &Plan, end: Deadline) {
        while !end.has_passed() {
            if plan.path.woken.wait_ms(end.left_ms()).is_err() {
                return;
            }
            plan.path.woken.reset();
            let is_over =
                plan.lacks_device() || plan.head.is_removed_within(0) || !self.has_live_path();
            if is_over || !self.is_wanted(&self.control.lock(), plan) {
                return;
            }
        }
    }

    /// Waits for `delay` milliseconds before the next attempt. Returns early when the path, its
    /// device or the disk is removed.
    fn wait_between_attempts(&self, plan: &Plan, delay: u32) {
        let next = Deadline::new(delay);
        // Another path may be lost during the wait, which shortens it.
        let left = || {
            let lost = plan.head.loss().end.map_or(u32::MAX, Deadline::left_ms);
            lost.min(next.left_ms())
        };
        while self.wait_before_attempt(plan, left()) {
            plan.path.woken.reset();
            let is_over = plan.lacks_device() || plan.head.is_removed_within(0);
            // Otherwise the device of an attempt's session was removed.
            if is_over || !self.is_wanted(&self.control.lock(), plan) {
                return;
            }
        }
    }

    /// Waits for `delay` milliseconds, and fails the waiting requests when `fast_io_fail_tmo` is
    /// over; returns whether it was woken.
    fn wait_before_attempt(&self, plan: &Plan, delay: u32) -> bool {
        let wait = |ms| plan.path.woken.wait_ms(ms).is_ok();
        let fail_fast = plan.head.loss().fail_fast;
        let Some(fail_fast) = fail_fast.filter(|_| plan.head.requests_wait()) else {
            return wait(delay);
        };
        let first = delay.min(fail_fast.left_ms());
        if wait(first) {
            return true;
        }
        self.fail_fast_if_due(plan);
        delay > first && wait(delay - first)
    }

    /// Fails the requests that wait for a path, and all later ones until there is a path, if
    /// `fast_io_fail_tmo` is over.
    pub(super) fn fail_fast_if_due(&self, plan: &Plan) {
        let is_due = plan.head.loss().fail_fast.is_some_and(Deadline::has_passed);
        if !is_due || !plan.head.requests_wait() {
            return;
        }
        let control = self.control.lock();
        if self.is_wanted(&control, plan) && self.show(|shown| shown.state == DeviceState::Queueing)
        {
            pr_warn!("{self}: still no connection: requests fail until there is one\n");
            self.set_state(DeviceState::FailingFast);
            self.announce_changes();
            plan.head.fail_fast();
        }
    }
}
