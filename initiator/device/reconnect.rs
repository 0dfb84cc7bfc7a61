// SPDX-License-Identifier: GPL-2.0

//! A disk whose session was lost gets another one, while its requests wait.
//!
//! The teardown of the lost session has given its requests back to the block layer, each
//! after its memory region was destroyed. The worker makes attempts, [`delay_ms`] apart, until one
//! succeeds, `ctrl_loss_tmo` is over, or a failure cannot pass
//! ([`Failure::may_pass`]). A new session has the disk's id and a later epoch: the target admits it
//! when nothing of the lost one can reach the drive any more, so that a write of the past never
//! comes after its retry.
//!
//! # Locks and contexts
//!
//! The worker runs on a workqueue of its own, since it waits for teardowns. It does not hold
//! `control` during an attempt, so that commands never wait for that; it looks afterwards, under
//! `control`, whether the disk is still there. It allocates without I/O: what reclaims memory may wait for this disk.

use super::{
    Active,
    Control,
    Device,
    Settings,
    State, //
};
use crate::{
    deadline::Deadline,
    failure::{
        Failure,
        Step, //
    },
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
    sync::defer::without_io,
    system, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue::WorkItem, //
};

/// Returns the milliseconds that an attempt may take: half of the connect timeout, 5 s by default.
fn attempt_ms(connect_timeout_s: u32) -> u32 {
    connect_timeout_s.saturating_mul(500)
}

/// What came of an attempt.
enum Attempt {
    /// There is a session, or nobody wants one any more.
    Over,
    Failed(Failure),
}

/// What an attempt starts from.
struct Plan {
    settings: Settings,
    head: Arc<Head>,
    lost: Arc<Session>,
    volume: VolumeInfo,
}

impl Plan {
    /// Returns `geometry` if it keeps what the block layer was told; the size may be another one, and
    /// requests may be larger.
    fn check(&self, volume: VolumeInfo) -> Result<VolumeInfo, Failure> {
        let (geometry, former) = (volume.geometry, self.volume.geometry);
        if geometry.max_transfer < former.max_transfer {
            // The target has less memory left; that may pass.
            return Err(Failure::Setup("requests as large as before", ENOSPC));
        }
        let same = Geometry {
            capacity: former.capacity,
            max_transfer: former.max_transfer,
            ..geometry
        };
        match same == former {
            true => Ok(volume),
            false => Err(Failure::OtherLimits),
        }
    }
}

/// How often the delay is doubled at most.
const DOUBLINGS_MAX: u32 = 3;

/// Returns the milliseconds until the next attempt: `delay_s` seconds, doubled for each of the last
/// attempts that the target left without an answer (it may be waiting for its drive, and each
/// attempt with it), and up to a quarter more by `random`, so that the clients of a target do not
/// come all at once.
fn delay_ms(delay_s: u32, unanswered: u32, random: u64) -> u32 {
    let delay = delay_s.saturating_mul(1000) << unanswered.min(DOUBLINGS_MAX);
    delay + (random % (u64::from(delay / 4) + 1)) as u32
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

    /// Schedules the worker to connect again, after session `lost` ended because of `failure`. To
    /// be called with `control` held.
    pub(super) fn begin_reconnect(self: &Arc<Self>, lost: &Session, failure: Failure) {
        lost.head().begin_loss(lost.settings().ctrl_loss_tmo_s);
        self.forget_live(failure);
        // If it is queued already it has yet to look.
        let _ = self.workqueues.reconnect.enqueue(self.clone());
    }

    /// Lets attributes show that the disk is queueing, because of `failure`.
    fn forget_live(&self, failure: Failure) {
        let mut shown = self.shown.lock();
        shown.state = State::Queueing;
        shown.failure = Some(failure);
        shown.session = None;
        let live = shown.live.take();
        drop(shown);
        drop(live);
    }

    /// Removes the disk if it is queueing, since `lost` was lost if that is given: no other attempt is
    /// made.
    pub(super) fn give_up(&self, lost: Option<&Arc<Session>>, failure: Failure) {
        let mut control = self.control.lock();
        let waits = |active: &Active| lost.is_none_or(|lost| Arc::ptr_eq(&active.session, lost));
        if self.show(|shown| shown.state) != State::Queueing
            || !control.active.as_ref().is_some_and(waits)
        {
            return;
        }
        pr_warn!("{self}: no other connection: {failure}\n");
        self.remove_lost(&mut control, failure);
    }

    /// Returns whether the disk still waits for a session after the one of `plan`; then it shows
    /// `failure` as the reason why there is none.
    fn still_waits(&self, plan: &Plan, failure: Failure) -> bool {
        let control = self.control.lock();
        let waits = self.is_wanted(&control, plan);
        if waits {
            self.shown.lock().failure = Some(failure);
        }
        waits
    }

    /// Returns whether the disk waits for a session after the one of `plan`.
    fn is_wanted(&self, control: &Control, plan: &Plan) -> bool {
        self.show(|shown| shown.state) == State::Queueing
            && control
                .active
                .as_ref()
                .is_some_and(|active| Arc::ptr_eq(&active.session, &plan.lost))
    }

    /// Returns what attempts start from, `None` if the disk does not wait for a session.
    fn plan(&self) -> Option<Plan> {
        let control = self.control.lock();
        if self.show(|shown| shown.state) != State::Queueing {
            return None;
        }
        control.active.as_ref().map(|active| Plan {
            settings: *active.session.settings(),
            head: active.head.clone(),
            lost: active.session.clone(),
            volume: active.volume,
        })
    }

    /// Makes attempts until the disk has a session or is gone. The worker; sleeps.
    fn reconnect(self: &Arc<Self>) {
        let Some(plan) = self.plan() else {
            return;
        };
        let loss = plan.head.loss();
        let mut failure = plan.lost.failure().unwrap_or(Failure::Disconnected);
        let mut unanswered = 0;
        let mut at_once = !loss.again;
        loop {
            if !at_once {
                let mut delay = delay_ms(
                    plan.settings.reconnect_delay_s,
                    unanswered,
                    system::random_u64(),
                );
                if let Some(end) = loss.end {
                    delay = delay.min(end.left_ms());
                }
                let woken = plan.head.wait_ms(delay);
                if plan.lost.lacks_device() {
                    return self.give_up(Some(&plan.lost), Failure::DeviceRemoved);
                }
                if !self.still_waits(&plan, failure) {
                    return;
                }
                if woken {
                    // By the device of an attempt's session.
                    fsleep(Delta::from_millis(delay.into()));
                }
            }
            at_once = false;
            failure = match without_io(|| self.attempt(&plan)) {
                Attempt::Over => return,
                Attempt::Failed(failure) => failure,
            };
            if !failure.may_pass() || loss.end.is_some_and(Deadline::has_passed) {
                return self.give_up(Some(&plan.lost), failure);
            }
            if !self.still_waits(&plan, failure) {
                return;
            }
            unanswered = match failure {
                Failure::Timeout(Step::Answer) => unanswered + 1,
                _ => 0,
            };
        }
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

    /// Connects a session and gives the disk its queues.
    fn attempt(self: &Arc<Self>, plan: &Plan) -> Attempt {
        let deadline = Deadline::new(attempt_ms(plan.settings.connect_timeout_s));
        let head = Some(plan.head.clone());
        let begun = match self.epoch_for(plan) {
            Ok(Some(epoch)) => self.begin_session(plan.settings, epoch, head, deadline),
            Ok(None) => return Attempt::Over,
            Err(e) => Err(Failure::Setup("a session", e)),
        };
        let (session, first, _) = match begun {
            Ok(begun) => begun,
            Err(failure) => return Attempt::Failed(failure),
        };
        let result = Self::bring_up(&session, first, deadline, plan.volume.wwid)
            .and_then(|volume| plan.check(volume));
        let installed = result.and_then(|volume| self.install(&session, plan, volume));
        match installed {
            Ok(true) => {
                // It may have been lost before it was the disk's.
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
                session.finish();
                session.let_go();
                Attempt::Failed(failure)
            }
        }
    }

    /// Makes `session` the disk's; returns `false` if nobody wants it any more. Sleeps.
    fn install(
        &self,
        session: &Arc<Session>,
        plan: &Plan,
        volume: VolumeInfo,
    ) -> Result<bool, Failure> {
        let mut control = self.control.lock();
        let wanted = self.is_wanted(&control, plan);
        let Some(active) = control.active.as_mut().filter(|_| wanted) else {
            return Ok(false);
        };
        // Before the first request goes out again.
        let sectors = volume.geometry.capacity >> 9;
        if active.disk.capacity() != sectors {
            active.disk.set_capacity_and_notify(sectors);
        }
        if volume.geometry.write_cache && volume.instance != active.volume.instance {
            pr_warn!(
                "{self}: the target has forgotten writes that it acknowledged: a flush will fail\n"
            );
            plan.head.lose_writes();
        }
        active.volume = volume;
        for index in 0..u32::from(session.queue_count()) {
            let queue = session.queue(index).ok_or(Failure::Disconnected)?;
            let former = plan
                .head
                .requests()
                .exchange(index, queue)
                .map_err(|e| Failure::Setup("the disk's queues", e))?;
            drop(former);
        }
        active.session = session.clone();
        plan.lost.let_go();
        plan.head.end_loss();
        self.show_session(active);
        pr_info!(
            "{self}: connected again with {} queues\n",
            session.queue_count()
        );
        drop(control);
        plan.head.requests().run_hw_queues();
        Ok(true)
    }
}

impl WorkItem for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        Self::reconnect(&this);
    }
}
