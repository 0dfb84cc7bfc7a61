// SPDX-License-Identifier: GPL-2.0

//! One attempt to connect a path of an existing disk: it makes a session, fences the other paths,
//! and then lets requests use it. Its steps are those of the first session of a disk
//! (`bring_up.rs`); when the next attempt comes is said in `reconnect.rs`.

use super::{
    pace::{
        Outcome,
        Pace, //
    },
    path::PathState,
    plan::Plan,
    Active,
    Device,
    State, //
};
use crate::{
    connect::AttemptLinks,
    failure::Failure,
    io::Retired,
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
    system::Deadline, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What came of an attempt.
pub(super) enum Attempt {
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

/// Returns what came of an attempt for which nothing was sent to the target, because of `failure`.
fn not_begun(failure: Failure) -> Attempt {
    Attempt::Failed(failure, outcome(failure, false))
}

impl Device {
    /// Returns when an attempt that begins now has failed: not after the moment from which on
    /// requests fail, since that is seen to between attempts; and not long after the disk is to go.
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

    /// Connects a session and makes it a path of the disk; the next attempt is due after `delay`
    /// ms.
    pub(super) fn attempt(self: &Arc<Self>, plan: &Plan, pace: &Pace, delay: u32) -> Attempt {
        let result = match plan.path.begin_attempt() {
            Ok(links) => self.attempt_by(links, plan, pace, delay),
            Err(failure) => not_begun(failure),
        };
        plan.path.attempt_over();
        result
    }

    /// Does what [`Self::attempt`] does, by `links`, which are interrupted from now on if nobody
    /// wants the path any more.
    fn attempt_by(
        self: &Arc<Self>,
        links: Arc<AttemptLinks>,
        plan: &Plan,
        pace: &Pace,
        delay: u32,
    ) -> Attempt {
        if plan.volume.wwid.is_none() {
            return not_begun(Failure::Unnamed);
        }
        // It may have lost that since it was looked at.
        if plan.lacks_device() {
            return not_begun(Failure::DeviceRemoved);
        }
        let deadline = self.attempt_end(plan, pace);
        let head = Some(plan.head.clone());
        let number = plan.path.number();
        let begun = match self.epoch_for(plan) {
            Ok(Some(epoch)) => {
                self.begin_session((&plan.path, links), plan.settings, epoch, head, deadline)
            }
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
        let installed =
            result.and_then(|volume| self.fence_and_install(&session, plan, volume, deadline));
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

    /// Makes `session` a path of the disk when all other paths that were lost are fenced; returns
    /// `false` if nobody wants it any more. Sleeps, as long as the drive takes for what it has
    /// begun. If it cannot be used then, it is lost as any session of the disk is.
    fn fence_and_install(
        &self,
        session: &Arc<Session>,
        plan: &Plan,
        volume: VolumeInfo,
        deadline: Deadline,
    ) -> Result<bool, Failure> {
        let admin = session.admin().ok_or(Failure::Disconnected)?;
        let origin = session.origin(&volume)?;
        plan.head.granted(session.path(), session.epoch(), &origin);
        loop {
            plan.head.fence_others(&admin, &origin, || {
                self.fail_fast_if_due(plan);
                plan.goes_on(deadline)?;
                session.failure().map_or(Ok(()), Err)
            })?;
            // Dropped with nothing locked, when requests go by what is new.
            let mut retired = Retired::new();
            let mut control = self.control.lock();
            if !self.is_wanted(&control, plan) {
                return Ok(false);
            }
            let Some(active) = control.active.as_mut() else {
                return Ok(false);
            };
            let (path, epoch) = (session.path(), session.epoch());
            let installed = plan.head.try_admit(path, epoch, origin, || {
                self.install((session, &mut retired), plan, active, volume)
            });
            if let Some(Err(failure)) = installed {
                session.fail(failure);
            }
            drop(control);
            retired.settle();
            if installed.is_some() {
                self.tell_changes();
                plan.head.requests().run_hw_queues();
                // When what has waited is issued: the disk's limits change between requests.
                self.follow_begun(session);
                session.follow();
                return Ok(true);
            }
        }
    }

    /// Makes the disk follow `volume`, as a session that begins was told of it, before the first
    /// request goes out by that; returns what is true of the disk from now on. While other paths
    /// are live (`others`) they tell what changes, and may have told what is newer. Fails if they
    /// say otherwise who may write: a target refuses writes by what it said when the session began.
    /// With `control` held.
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
            // These follow later.
            physical_block_shift: former.physical_block_shift,
            write_cache: former.write_cache,
            fua: former.fua,
            max_discard: former.max_discard,
            discard_granularity: former.discard_granularity,
            max_zeroes: former.max_zeroes,
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
        Ok(VolumeInfo {
            geometry,
            limits: active.volume.limits,
            ..volume
        })
    }

    /// Makes `session` a path of the disk, and has requests go by it. With `control` held, while
    /// all other paths are fenced. Sleeps. If it fails some may go by it already: the session has
    /// to end, before the path has another one.
    fn install(
        &self,
        (session, retired): (&Arc<Session>, &mut Retired),
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
        // One that does not tell may have forgotten all.
        let is_other = volume.instance.is_none() || volume.instance != active.volume.instance;
        if is_other {
            // The export counts anew.
            active.generation = None;
        }
        let (write_cache, tells) = (volume.geometry.write_cache, volume.limits.is_some());
        let volume = self.agree(active, volume, others)?;
        let durable = plan.head.take_durable(active.volume.instance);
        if durable {
            plan.head.unflushed().forget();
        }
        if is_other && !durable {
            active.lost_writes.lose();
        }
        plan.head.begin_session(write_cache, tells);
        active.volume = volume;
        for queue in session
            .queues()
            .map_err(|e| Failure::Setup("the disk's queues", e))?
        {
            plan.head
                .hw_queues()
                .put(&queue, retired)
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
