// SPDX-License-Identifier: GPL-2.0

//! What the sessions on a volume ask of it and tell it.

use super::Volume;
use crate::{
    drive::reservations::{
        Asking,
        Drive, //
    },
    io::Queue,
    session::attachment::Attachment, //
};
use hcablk_core::proto::message::{
    ReservationInfo,
    ReservationOp,
    Status, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

impl Volume {
    /// Returns whether something is left of a session on `drive` that a preemption has ended whose
    /// number is `last` or less.
    fn is_draining(&self, drive: &Arc<Drive>, last: u64) -> bool {
        let preempted = |other: &Attachment| other.is_preempted_by(last) && other.is_on(drive);
        !self.registry.wait_for_ends_within(0, &preempted)
    }
}

impl Volume {
    /// Takes a session's closed queues out of `queues` and keeps what they have counted, under the
    /// lock of the sums: a reader of the counters meets each queue once. May sleep.
    pub(crate) fn retire(&self, queues: &Mutex<KVec<Arc<Queue>>>) -> KVec<Arc<Queue>> {
        let past = self.past.lock();
        let queues = core::mem::take(&mut *queues.lock());
        for queue in queues.iter() {
            past.absorb(queue);
        }
        queues
    }

    /// Takes queue `index` out of `queues`, as [`Self::retire`]. May sleep.
    pub(crate) fn retire_one(
        &self,
        queues: &Mutex<KVec<Arc<Queue>>>,
        index: u8,
    ) -> Option<Arc<Queue>> {
        let past = self.past.lock();
        let mut queues = queues.lock();
        let place = queues.iter().position(|queue| queue.index() == index)?;
        let queue = queues.remove(place).ok()?;
        past.absorb(&queue);
        Some(queue)
    }

    /// Makes a change of the reservations of `drive`. `Draining`: it is decided, and something of
    /// hosts that were preempted, by it or before it, can still reach the drive; or it is not made,
    /// as by [`Drive::change`]. Sleeps, for as long as the file of the reservations takes.
    ///
    /// A preemption counts before the victims' sessions are marked and ended: what is listed later
    /// is checked by it, and what was listed before is waited for, with all requests that were
    /// checked before. So is what earlier ones have marked, also by one that ends nobody's
    /// registration: who asked for those may be gone.
    pub(crate) fn reserve(&self, asking: Asking, op: ReservationOp, drive: &Arc<Drive>) -> Status {
        let outcome = drive.change(asking, op, |number, victims| {
            let is_victim =
                |other: &Attachment| victims.contains(&other.host()) && other.is_on(drive);
            self.registry.preempt_attachments(number, &is_victim);
        });
        let preempts = matches!(op, ReservationOp::Preempt { .. });
        match preempts && self.is_draining(drive, outcome.number) {
            true => Status::Draining,
            false => outcome.status,
        }
    }

    /// Returns the key of registrant `index` of the drive. Fails with `Draining` while something of
    /// a host that was preempted can reach the drive, and with `Unsupported` and `Gone`. May sleep,
    /// but does not wait for the drive.
    pub(crate) fn read_key(
        &self,
        attachment: &Attachment,
        index: u32,
    ) -> Result<ReservationInfo, Status> {
        let backing = attachment.backing().ok_or(Status::Gone)?;
        let drive = backing.drive().ok_or(Status::Unsupported)?;
        let info = drive.read(Some(index));
        match drive.is_marking() || self.is_draining(drive, u64::MAX) {
            true => Err(Status::Draining),
            false => Ok(info),
        }
    }

    /// Forgets `attachment`, of which nothing is left. Process context.
    pub(crate) fn attachment_ended(&self, attachment: &Attachment) {
        self.past.lock().absorb_requests(attachment);
        self.registry.remove_attachment(attachment);
    }
}
