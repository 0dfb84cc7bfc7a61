// SPDX-License-Identifier: GPL-2.0

//! One attempt to connect a path of an existing disk: it makes a session, fences the other paths,
//! and then lets requests use it. The steps are those of a disk's first session (`bring_up.rs`);
//! `reconnect.rs` decides when the next attempt starts.

use super::{
    pace::{
        Outcome,
        Pace, //
    },
    path::PathState,
    plan::Plan,
    Active,
    Device,
    DeviceState, //
};
use crate::{
    connect::AttemptLinks,
    failure::{
        ConnectStep, //
        Failure,
    },
    io::Retired,
    session::{
        Attachment,
        VolumeInfo, //
    },
    settings::Offer, //
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

/// The result of an attempt.
pub(super) enum Attempt {
    /// The path has a session, or does not need one any more.
    Over,
    Failed(Failure, Outcome),
}

/// Returns how an attempt ended because of `failure`; `responded`: the target had responded.
fn outcome(failure: Failure, responded: bool) -> Outcome {
    match failure {
        Failure::Timeout(_) if responded => Outcome::Late,
        Failure::Timeout(_) => Outcome::NoResponse,
        _ => Outcome::Refused,
    }
}

/// Returns the result of an attempt that failed before anything was sent to the target.
fn not_begun(failure: Failure) -> Attempt {
    Attempt::Failed(failure, outcome(failure, false))
}

impl Device {
    /// Returns the deadline of an attempt that starts now: no later than the time at which requests
    /// begin to fail, since only the code between attempts fails them; and not long after the time
    /// at which the disk is due for removal.
    fn attempt_end(&self, plan: &Plan, pace: &Pace) -> Deadline {
        let loss = plan.head.loss();
        let fail_fast = loss.fail_fast.filter(|_| plan.head.requests_wait());
        let fail_fast = fail_fast.map(Deadline::left_ms);
        // Even the last attempt gets the minimum time.
        let gone = loss.end.map(|end| end.left_ms().max(pace.least_ms()));
        let limit = pace.whole_ms(plan.path.usual_ms());
        Deadline::new(
            [gone, fail_fast]
                .into_iter()
                .flatten()
                .fold(limit, u32::min),
        )
    }

    /// Returns the epoch of the next attempt, `None` if the path needs no session any more.
    /// Enabling the disk again uses a later epoch, so this attempt can never end that session at
    /// the target.
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

    /// Does the work of [`Self::attempt`] with `links`, which are interrupted from now on when the
    /// path needs no session any more.
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
        // The device may have been removed since it was checked.
        if plan.lacks_device() {
            return not_begun(Failure::DeviceRemoved);
        }
        let deadline = self.attempt_end(plan, pace);
        let response = || pace.response_ms(delay, plan.path.usual_ms(), deadline.left_ms());
        let times = (Deadline::new(u32::MAX), deadline);
        let mut offer = plan.settings.first_offer();
        let mut is_refused = false;
        loop {
            match self.attempt_with(links.clone(), plan, offer, &response, times) {
                (Attempt::Failed(..), Some(next)) if !deadline.has_passed() => {
                    offer = next;
                    is_refused = true;
                }
                // The disk must not be given up because of a refusal that says nothing about its
                // volume. The target needs more time for both offers.
                (Attempt::Failed(..), Some(_)) => {
                    return Attempt::Failed(Failure::Timeout(ConnectStep::Response), Outcome::Late);
                }
                (Attempt::Failed(failure @ Failure::Timeout(_), _), None) if is_refused => {
                    return Attempt::Failed(failure, Outcome::Late);
                }
                (attempt, _) => return attempt,
            }
        }
    }

    /// Makes an attempt with an offer of versions, which waits for the target's first response for
    /// `response` milliseconds. `begun`: when the first offer was made. On failure also returns the
    /// offer to make next.
    fn attempt_with(
        self: &Arc<Self>,
        links: Arc<AttemptLinks>,
        plan: &Plan,
        offer: Offer,
        response: &dyn Fn() -> u32,
        (begun, deadline): (Deadline, Deadline),
    ) -> (Attempt, Option<Offer>) {
        let head = Some(plan.head.clone());
        let number = plan.path.number();
        let made = match self.epoch_for(plan) {
            Ok(Some(epoch)) => {
                let offered = (plan.settings, offer);
                self.begin_session((&plan.path, links), offered, epoch, head, deadline)
            }
            Ok(None) => return (Attempt::Over, None),
            Err(e) => Err(Failure::Setup("a session", e)),
        };
        let (disk, first, _) = match made {
            Ok(made) => made,
            Err(failure) => return (not_begun(failure), None),
        };
        let session = disk.session();
        let is_proven = first.is_proven();
        let deadlines = (Deadline::new(response()), deadline);
        let result = Self::bring_up(&disk, first, deadlines, plan.volume.wwid);
        if result.is_ok() {
            plan.path.set_usual_ms(begun.elapsed_ms());
        }
        let result = result.and_then(|volume| plan.check(volume));
        let installed =
            result.and_then(|volume| self.fence_and_install(&disk, plan, volume, deadline));
        match installed {
            Ok(true) => {
                // The session may have been lost before the disk had it.
                if !disk.is_live() {
                    plan.head.set_unfenced(number, disk.epoch());
                }
                if let Some(failure) = disk.has_ended() {
                    self.session_lost(&disk, failure);
                }
                (Attempt::Over, None)
            }
            Ok(false) => {
                session.finish();
                session.stop_device_watch();
                (Attempt::Over, None)
            }
            Err(failure) => {
                // The failure of the session is the cause; report it rather than its consequence.
                let failure = session.failure().unwrap_or(failure);
                let outcome = outcome(failure, session.has_responded(is_proven));
                let next = session.next_offer(failure);
                let of_volume = session.as_of_volume(failure);
                // The queue pairs may need a long time to drain.
                self.fail_fast_if_due(plan);
                session.fail(failure);
                session.wait();
                session.stop_device_watch();
                (Attempt::Failed(of_volume, outcome), next)
            }
        }
    }

    /// Makes `session` a path of the disk after all other lost paths are fenced; returns `false` if
    /// the path needs no session any more. Sleeps until the drive has finished the requests that it
    /// had begun. If the session cannot be used afterwards, it is lost like any session of the
    /// disk.
    fn fence_and_install(
        &self,
        session: &Arc<Attachment>,
        plan: &Plan,
        volume: VolumeInfo,
        deadline: Deadline,
    ) -> Result<bool, Failure> {
        let admin = session.admin().ok_or(Failure::Disconnected)?;
        let origin = session.session().origin(&volume)?;
        plan.head.granted(session.path(), session.epoch(), &origin);
        loop {
            plan.head.fence_others(self, &admin, &origin, || {
                self.fail_fast_if_due(plan);
                plan.check_wanted(deadline)?;
                session.failure().map_or(Ok(()), Err)
            })?;
            // Dropped without a lock, after requests have moved to the new hardware queues.
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
                self.announce_changes();
                plan.head.dispatch().run_hw_queues();
                // Called after the waiting requests were issued: the disk's limits change between
                // requests.
                self.follow_begun(session);
                session.session().follow();
                return Ok(true);
            }
        }
    }

    /// Makes the disk follow `volume`, as reported to a session that starts, before the first
    /// request uses it; returns the volume that the disk shows from now on. While other paths are
    /// live (`others`), these report changes, and may have reported newer values. Fails if their
    /// reports differ on whether the volume is read-only: a target refuses writes according to its
    /// state at the session's start. The caller holds `control`.
    fn agree(
        &self,
        active: &Active,
        volume: VolumeInfo,
        others: bool,
    ) -> Result<VolumeInfo, Failure> {
        let former = active.volume.geometry;
        let mut geometry = Geometry {
            // Requests are not larger than at the disk's creation.
            max_transfer: former.max_transfer,
            // These limits follow later.
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

    /// Makes `session` a path of the disk, and lets requests use it. The caller holds `control`,
    /// and all other paths are fenced. Sleeps. On an error, requests may already use the session:
    /// it has to end before the path gets a new one.
    fn install(
        &self,
        (session, retired): (&Arc<Attachment>, &mut Retired),
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
            lost.session().stop_device_watch();
        }
        plan.path.set_state(PathState::Live, None);
        // A target that reports no instance may have forgotten all earlier writes.
        let is_other = volume.instance.is_none() || volume.instance != active.volume.instance;
        if is_other {
            // The new export instance counts its generations from the start.
            active.generation = None;
        }
        let (write_cache, reports_limits) = (volume.geometry.write_cache, volume.limits.is_some());
        let volume = self.agree(active, volume, others)?;
        let durable = plan.head.take_durable(active.volume.instance);
        if durable {
            plan.head.unflushed().forget();
        }
        if is_other && !durable {
            active.lost_writes.lose();
        }
        plan.head.begin_session(write_cache, reports_limits);
        active.volume = volume;
        let queue_count = session.session().queue_count();
        for queue in session
            .session()
            .queues()
            .map_err(|e| Failure::Setup("the disk's queues", e))?
        {
            plan.head
                .hw_queues()
                .add(session, &queue, retired)
                .map_err(|e| Failure::Setup("the disk's queues", e))?;
        }
        plan.head.end_loss();
        self.show_sessions(active, DeviceState::Queueing, None);
        if session.path() == 0 && plan.lost.is_some() {
            pr_info!("{self}: connection restored with {} queues\n", queue_count);
        } else {
            pr_info!(
                "{self}: path {} is connected with {} queues\n",
                session.path(),
                queue_count
            );
        }
        Ok(())
    }
}
