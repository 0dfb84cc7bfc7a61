// SPDX-License-Identifier: GPL-2.0

//! What the sessions on a volume ask of it and tell it.

use super::Volume;
use crate::{
    queue::Queue,
    session::{
        Session,
        SessionOwner, //
    },
    storage::reservations::{
        Asking,
        Drive, //
    }, //
};
use hcablk_core::{
    proto::{
        connect::{
            Epoch,
            SessionId, //
        },
        message::{
            ReservationInfo,
            ReservationOp,
            Status, //
        },
        name::HostId, //
    },
    sync::WorkQueue, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

impl Volume {
    /// Returns whether something is left of a session on `drive` that a preemption has ended whose number is `last` or less.
    fn is_draining(&self, drive: &Arc<Drive>, last: u64) -> bool {
        let preempted = |other: &Session| other.is_preempted_by(last) && other.is_on(drive);
        !self.owner.wait_for_ends_within(0, &preempted)
    }
}

impl SessionOwner for Volume {
    fn volume(&self) -> &dyn kernel::fmt::Display {
        self
    }

    fn admin_completions(&self) -> &Arc<WorkQueue> {
        self.owner.admin_completions()
    }

    fn changes(&self) -> &Arc<WorkQueue> {
        self.owner.changes()
    }

    fn portals_generation(&self) -> u32 {
        self.owner.portals_generation()
    }

    fn timing(&self) -> bool {
        Self::timing(self)
    }

    /// Does so under the lock of the sums: who sums up meanwhile has each queue once.
    fn retire(&self, queues: &Mutex<KVec<Arc<Queue>>>) -> KVec<Arc<Queue>> {
        let past = self.past.lock();
        let queues = core::mem::take(&mut *queues.lock());
        for queue in queues.iter() {
            past.absorb(queue);
        }
        queues
    }

    fn retire_one(&self, queues: &Mutex<KVec<Arc<Queue>>>, index: u8) -> Option<Arc<Queue>> {
        let past = self.past.lock();
        let mut queues = queues.lock();
        let place = queues.iter().position(|queue| queue.index() == index)?;
        let queue = queues.remove(place).ok()?;
        past.absorb(&queue);
        Some(queue)
    }

    fn fence(&self, host: HostId, id: SessionId, epoch: Epoch) -> bool {
        self.fence_session(host, id, epoch)
    }

    /// A preemption counts before the victims' sessions are marked and ended: what is listed later is checked by it, and what
    /// was listed before is waited for, with all requests that were checked before. So is what earlier ones
    /// have marked, also by one that ends nobody's registration: who asked for those may be gone.
    fn reserve(&self, asking: Asking, op: ReservationOp, drive: &Arc<Drive>) -> Status {
        let outcome = drive.change(asking, op, |number, victims| {
            let is_victim = |other: &Session| victims.contains(&other.host()) && other.is_on(drive);
            self.owner.preempt_sessions(number, &is_victim);
        });
        let preempts = matches!(op, ReservationOp::Preempt { .. });
        match preempts && self.is_draining(drive, outcome.number) {
            true => Status::Draining,
            false => outcome.status,
        }
    }

    fn read_key(&self, session: &Session, index: u32) -> Result<ReservationInfo, Status> {
        let backing = session.backing().ok_or(Status::Gone)?;
        let drive = backing.drive().ok_or(Status::Unsupported)?;
        let info = drive.read(Some(index));
        match drive.is_marking() || self.is_draining(drive, u64::MAX) {
            true => Err(Status::Draining),
            false => Ok(info),
        }
    }

    fn session_ended(&self, session: &Session) {
        self.owner.remove_session(session);
    }
}
