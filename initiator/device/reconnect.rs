// SPDX-License-Identifier: GPL-2.0

//! A path gets a session, the first or another one, while requests go by other paths or wait.
//!
//! The teardown of a lost session has given its requests back to the block layer, each
//! after its memory region was destroyed. The path's worker makes attempts, at the [`Pace`] that the target allows, until
//! one succeeds, a failure cannot pass ([`Failure::may_pass`]), or there was no session on any path for `ctrl_loss_tmo`,
//! which counts as [`Head::begin_loss`] says. If the RDMA device goes away, it is let go of, and attempts go on, by
//! whichever device leads to the target. A new session has the path's id and a later epoch: the target admits it
//! when nothing of the lost one can reach the drive any more, so that a write of the past never
//! comes after its retry; other paths are fenced before it is used. If `fast_io_fail_tmo` is over before, requests
//! fail from then on until there is a session.
//!
//! # Locks and contexts
//!
//! The workers run on a workqueue of their own, since they wait for teardowns. They do not hold
//! `control` during an attempt, so that commands never wait for that; they look afterwards, under
//! `control`, whether the disk is still there. What reclaims memory may wait for this disk:
//! they allocate as `for_reclaim` says, and an attempt fails if there is none.

use super::{
    pace::{
        Outcome,
        Pace, //
    },
    path::{
        session_of,
        Path,
        PathState, //
    },
    plan::Plan,
    Active,
    Control,
    Device,
    Settings,
    State, //
};
use crate::{
    deadline::Deadline,
    failure::Failure,
    head::Head,
    session::{
        Session,
        VolumeInfo, //
    },
};
use hcablk_core::{
    proto::connect::{
        Epoch,
        Geometry, //
    },
    system, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What came of an attempt.
enum Attempt {
    /// There is a session, or nobody wants one any more.
    Over,
    Failed(Failure, Outcome),
}

/// Returns what `failure` says of the target, which has said something or not.
fn outcome(failure: Failure, answered: bool) -> Outcome {
    match failure {
        Failure::Timeout(_) if answered => Outcome::Late,
        Failure::Timeout(_) => Outcome::Unanswered,
        _ => Outcome::Refused,
    }
}

impl Device {
    /// Returns whether the disk is to outlive its sessions. A volume without a wwid may be another one when
    /// it comes back. What a target acknowledged from a volatile cache may be forgotten by then, so
    /// only one that tells so will do.
    pub(super) fn is_to_reconnect(&self, settings: &Settings, volume: &VolumeInfo) -> bool {
        if settings.ctrl_loss_tmo_s == Some(0) {
            return false;
        }
        let why = if volume.wwid.is_none() {
            "it has no wwid"
        } else if volume.geometry.write_cache && volume.instance.is_none() {
            "its target does not tell what it forgets of a volatile write cache"
        } else {
            return true;
        };
        pr_info!("{self}: a lost connection will not be made again: {why}\n");
        false
    }

    /// Removes the disk, if it is that of `head` and no path of it is live; returns whether it has: no other attempt is made then.
    /// Without `head`, whichever it is. Sleeps.
    pub(super) fn give_up(&self, head: Option<&Arc<Head>>, failure: Failure) -> bool {
        let mut control = self.control.lock();
        // There may be another disk since.
        if head.is_some_and(|head| !Self::has_disk(&control, head)) {
            return false;
        }
        if !self.show(|shown| shown.state.is_reconnecting()) || control.active.is_none() {
            return false;
        }
        pr_warn!("{self}: no other connection: {failure}\n");
        self.remove_lost(&mut control, failure);
        true
    }

    /// Makes no other attempt for the path of `plan`, because of `failure`. The disk goes if it has no other.
    fn refuse(&self, plan: &Plan, failure: Failure) {
        let mut control = self.control.lock();
        if !self.is_wanted(&control, plan) {
            return;
        }
        plan.path.set_state(PathState::Refused, Some(failure));
        if self.for_all_wanted_paths(|path| !path.info().state.is_of_use()) {
            pr_warn!("{self}: no other connection: {failure}\n");
            return self.remove_lost(&mut control, failure);
        }
        pr_warn!(
            "{self}: path {} is given up: {failure}\n",
            plan.path.number()
        );
        if let Some(active) = control.active.as_mut() {
            self.release_path(active, plan.path.number());
            self.show_sessions(active, State::Queueing, Some(failure));
        }
        self.tell_changes();
    }

    /// Returns whether the path still is to get the session after the one of `plan`; then it shows
    /// `failure` as the reason why there is none.
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
        self.tell_changes();
        waits
    }

    /// Returns whether the path is to get the session after the one of `plan`.
    fn is_wanted(&self, control: &Control, plan: &Plan) -> bool {
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

    /// Returns what attempts start from, `None` if the path is not to get a session.
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

    /// Makes attempts until the path has a session or is not wanted. The path's worker; sleeps.
    pub(super) fn reconnect(self: &Arc<Self>, path: &Arc<Path>) {
        path.woken.reset();
        let Some(mut plan) = self.plan(path) else {
            return;
        };
        let last = plan.lost.as_ref().and_then(|lost| lost.failure());
        let mut failure = last.unwrap_or(Failure::Disconnected);
        let settings = &plan.settings;
        let mut pace = Pace::new(settings.connect_timeout_s, settings.reconnect_delay_s);
        let mut next = Deadline::new(match path.was_lost_soon() {
            true => pace.delay_ms(system::random_u64()),
            false => 0,
        });
        loop {
            if !next.has_passed() {
                self.wait_between_attempts(&plan, next.left_ms());
                if !self.still_waits(&plan, failure) {
                    return;
                }
                self.fail_fast_if_due(&plan);
            }
            self.release_device(&mut plan);
            path.set_connecting();
            self.tell_changes();
            let delay = pace.delay_ms(system::random_u64());
            next = Deadline::new(delay);
            match self.attempt(&plan, &pace, delay) {
                Attempt::Over => return,
                Attempt::Failed(reason, outcome) => {
                    failure = reason;
                    pace.ended(outcome);
                }
            }
            // Another path may have come back since: then this one goes on trying.
            if plan.head.loss().end.is_some_and(Deadline::has_passed)
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

    /// Lets go of what the lost session still has of its RDMA device if that goes away, which waits for it.
    fn release_device(&self, plan: &mut Plan) {
        if !plan.lost.as_ref().is_some_and(|lost| lost.lacks_device()) {
            return;
        }
        let mut control = self.control.lock();
        if !self.is_wanted(&control, plan) {
            return;
        }
        plan.lost = None;
        if let Some(active) = control.active.as_mut() {
            self.release_path(active, plan.path.number());
        }
    }

    /// Waits for `delay` milliseconds until the next attempt. It ends at once when the path, its device or the disk goes.
    fn wait_between_attempts(&self, plan: &Plan, delay: u32) {
        let next = Deadline::new(delay);
        // Another path may be lost meanwhile, by which it ends earlier.
        let left = || {
            let lost = plan.head.loss().end.map_or(u32::MAX, Deadline::left_ms);
            lost.min(next.left_ms())
        };
        while self.wait_before_attempt(plan, left()) {
            plan.path.woken.reset();
            let lacks_device = plan.lost.as_ref().is_some_and(|lost| lost.lacks_device());
            let is_over = lacks_device || plan.head.goes_within(0);
            // Else it was the device of an attempt's session, which is gone.
            if is_over || !self.is_wanted(&self.control.lock(), plan) {
                return;
            }
        }
    }

    /// Waits for `delay` milliseconds, and has requests fail when it is time for that; returns whether it was woken.
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

    /// Fails the requests that wait for a path, and all that come until there is one, if it is time for that.
    fn fail_fast_if_due(&self, plan: &Plan) {
        let is_due = plan.head.loss().fail_fast.is_some_and(Deadline::has_passed);
        if !is_due || !plan.head.requests_wait() {
            return;
        }
        let control = self.control.lock();
        if self.is_wanted(&control, plan) && self.show(|shown| shown.state == State::Queueing) {
            pr_warn!("{self}: still no connection: requests fail until there is one\n");
            self.set_state(State::FailingFast);
            self.tell_changes();
            plan.head.fail_fast();
        }
    }

    /// Returns when an attempt that begins now has failed: not after the moment from which on requests fail, since that is seen
    /// to between attempts; and not long after the disk is to go.
    fn attempt_end(&self, plan: &Plan, pace: &Pace) -> Deadline {
        let loss = plan.head.loss();
        let fail_fast = loss.fail_fast.filter(|_| plan.head.requests_wait());
        let fail_fast = fail_fast.map(Deadline::left_ms);
        // Also the last one is to have a chance.
        let gone = loss.end.map(|end| end.left_ms().max(pace.least_ms()));
        let limit = pace.whole_ms(plan.path.usual_ms());
        Deadline::new(
            [gone, fail_fast]
                .into_iter()
                .flatten()
                .fold(limit, u32::min),
        )
    }

    /// Returns the epoch of the next attempt, `None` if nobody wants one any more. Whoever enables
    /// the disk anew has a later one, so that this one can never end its session at the target.
    fn epoch_for(&self, plan: &Plan) -> Result<Option<Epoch>> {
        let control = self.control.lock();
        match self.is_wanted(&control, plan) {
            true => self.identities.next_epoch().map(Some),
            false => Ok(None),
        }
    }

    /// Connects a session and makes it a path of the disk; the next attempt is due after `delay` ms.
    fn attempt(self: &Arc<Self>, plan: &Plan, pace: &Pace, delay: u32) -> Attempt {
        let not_begun = |failure| Attempt::Failed(failure, outcome(failure, false));
        if plan.volume.wwid.is_none() {
            return not_begun(Failure::Unnamed);
        }
        let deadline = self.attempt_end(plan, pace);
        let head = Some(plan.head.clone());
        let number = plan.path.number();
        let begun = match self.epoch_for(plan) {
            Ok(Some(epoch)) => self.begin_session(&plan.path, plan.settings, epoch, head, deadline),
            Ok(None) => return Attempt::Over,
            Err(e) => Err(Failure::Setup("a session", e)),
        };
        let (session, first, _) = match begun {
            Ok(begun) => begun,
            Err(failure) => return not_begun(failure),
        };
        let answer = pace.answer_ms(delay, plan.path.usual_ms(), deadline.left_ms());
        let is_proven = first.is_proven();
        let deadlines = (Deadline::new(answer), deadline);
        let begun = Deadline::new(u32::MAX);
        let result = Self::bring_up(&session, first, deadlines, plan.volume.wwid);
        if result.is_ok() {
            plan.path.set_usual_ms(begun.gone_ms());
        }
        let result = result.and_then(|volume| plan.check(volume));
        let installed = result.and_then(|volume| self.fence_and_install(&session, plan, volume));
        match installed {
            Ok(true) => {
                // It may have been lost before it was the disk's.
                if !session.is_live() {
                    plan.head.set_unfenced(number, session.epoch());
                }
                if let Some(failure) = session.has_ended() {
                    self.session_lost(&session, failure);
                }
                Attempt::Over
            }
            Ok(false) => {
                session.finish();
                session.let_go();
                Attempt::Over
            }
            Err(failure) => {
                // What broke the session comes before what that broke.
                let failure = session.failure().unwrap_or(failure);
                let outcome = outcome(failure, session.was_answered(is_proven));
                // Its queue pairs may take long to drain.
                self.fail_fast_if_due(plan);
                session.fail(failure);
                session.wait();
                session.let_go();
                Attempt::Failed(failure, outcome)
            }
        }
    }

    /// Makes `session` a path of the disk when all other paths that were lost are fenced; returns `false` if nobody
    /// wants it any more. Sleeps, as long as the drive takes for what it has begun. If it cannot be used then, it is lost as any
    /// session of the disk is.
    fn fence_and_install(
        &self,
        session: &Arc<Session>,
        plan: &Plan,
        volume: VolumeInfo,
    ) -> Result<bool, Failure> {
        let admin = session.admin().ok_or(Failure::Disconnected)?;
        let origin = session.origin(&volume)?;
        plan.head.granted(session.path(), session.epoch(), &origin);
        loop {
            plan.head.fence_others(&admin, &origin, || {
                self.fail_fast_if_due(plan);
                plan.goes_on()?;
                session.failure().map_or(Ok(()), Err)
            })?;
            let mut control = self.control.lock();
            if !self.is_wanted(&control, plan) {
                return Ok(false);
            }
            let Some(active) = control.active.as_mut() else {
                return Ok(false);
            };
            let (path, epoch) = (session.path(), session.epoch());
            let installed = plan.head.try_admit(path, epoch, origin, || {
                self.install(session, plan, active, volume)
            });
            if let Some(Err(failure)) = installed {
                session.fail(failure);
            }
            drop(control);
            if installed.is_some() {
                self.tell_changes();
                plan.head.requests().run_hw_queues();
                return Ok(true);
            }
        }
    }

    /// Has the disk follow `volume`, as a session that begins was told of it, before the first request goes out by that;
    /// returns what is true of the disk from now on. While other paths are live (`others`) they tell what changes, and may have
    /// told what is newer. Fails if they say otherwise who may write: a target refuses writes by what it said when the
    /// session began. With `control` held.
    fn agree(
        &self,
        active: &Active,
        volume: VolumeInfo,
        others: bool,
    ) -> Result<VolumeInfo, Failure> {
        let former = active.volume.geometry;
        let mut geometry = Geometry {
            // Requests are not larger than when the disk was made.
            max_transfer: former.max_transfer,
            ..volume.geometry
        };
        if others {
            if geometry.read_only != former.read_only {
                return Err(Failure::OtherAccess);
            }
            geometry.capacity = former.capacity;
        } else {
            self.set_size_and_access(active, geometry.capacity >> 9, geometry.read_only);
        }
        Ok(VolumeInfo { geometry, ..volume })
    }

    /// Makes `session` a path of the disk, and has requests go by it. With `control` held, while all other paths are fenced.
    /// Sleeps. If it fails some may go by it already: the session has to end, before the path has another one.
    fn install(
        &self,
        session: &Arc<Session>,
        plan: &Plan,
        active: &mut Active,
        volume: VolumeInfo,
    ) -> Result<(), Failure> {
        session.admit();
        let others = active.has_live();
        if let Some(place) = active.sessions.get_mut(usize::from(session.path())) {
            *place = Some(session.clone());
        }
        if let Some(lost) = &plan.lost {
            lost.let_go();
        }
        plan.path.set_state(PathState::Live, None);
        let is_other = volume.instance != active.volume.instance;
        let volume = self.agree(active, volume, others)?;
        let durable = plan.head.take_durable(active.volume.instance);
        if volume.geometry.write_cache && is_other && !durable {
            pr_warn!(
                "{self}: the target has forgotten writes that it acknowledged: a flush will fail\n"
            );
            plan.head.lose_writes();
        }
        active.volume = volume;
        for queue in session
            .queues()
            .map_err(|e| Failure::Setup("the disk's queues", e))?
        {
            plan.head
                .hw_queues()
                .put(&queue)
                .map_err(|e| Failure::Setup("the disk's queues", e))?;
        }
        plan.head.end_loss();
        self.show_sessions(active, State::Queueing, None);
        if session.path() == 0 && plan.lost.is_some() {
            pr_info!(
                "{self}: connected again with {} queues\n",
                session.queue_count()
            );
        } else {
            pr_info!(
                "{self}: path {} is connected with {} queues\n",
                session.path(),
                session.queue_count()
            );
        }
        Ok(())
    }
}
