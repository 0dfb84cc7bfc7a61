// SPDX-License-Identifier: GPL-2.0

//! Serves the sessions on a volume: their counters, and their reservations.

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
    /// Returns whether a session on `drive` that was ended by a preemption with a number up to
    /// `last` has not ended completely.
    fn is_draining(&self, drive: &Arc<Drive>, last: u64) -> bool {
        let preempted = |other: &Attachment| other.is_preempted_by(last) && other.is_on(drive);
        !self.registry.wait_for_ends_within(0, &preempted)
    }
}

impl Volume {
    /// Removes a session's closed queues from `queues`, and adds their counters to the sums, under
    /// the lock of the sums: a reader of the counters sees each queue once. May sleep.
    pub(crate) fn retire(&self, queues: &Mutex<KVec<Arc<Queue>>>) -> KVec<Arc<Queue>> {
        let closed_queues = self.closed_queues.lock();
        let queues = core::mem::take(&mut *queues.lock());
        for queue in queues.iter() {
            closed_queues.absorb(queue);
        }
        queues
    }

    /// Removes queue `index` from `queues`, as [`Self::retire`]. May sleep.
    pub(crate) fn retire_one(
        &self,
        queues: &Mutex<KVec<Arc<Queue>>>,
        index: u8,
    ) -> Option<Arc<Queue>> {
        let closed_queues = self.closed_queues.lock();
        let mut queues = queues.lock();
        let place = queues.iter().position(|queue| queue.index() == index)?;
        let queue = queues.remove(place).ok()?;
        closed_queues.absorb(&queue);
        Some(queue)
    }

    /// Makes a change of the reservations of `drive`. Returns `Draining` in place of the outcome of
    /// a preemption while hosts that it or an earlier one has preempted can still reach the drive;
    /// also if [`Drive::change`] returns it, and the change is not made. Sleeps until the file of
    /// the reservations is written.
    ///
    /// A preemption takes effect before the victims' sessions are marked and ended. Sessions listed
    /// later are checked against it, and sessions listed before are waited for, with all their
    /// requests that were checked before. A preemption also waits for the sessions that earlier
    /// ones have marked, even if it ends no registration itself: the requesters of the earlier ones
    /// may have vanished.
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

    /// Returns the key of registrant `index` of the drive. Fails with `Draining` while a preempted
    /// host can still reach the drive, and with `Unsupported` and `Gone`. May sleep, but does not
    /// wait for the drive.
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

    /// Forgets `attachment`, which has ended completely. Process context.
    pub(crate) fn attachment_ended(&self, attachment: &Attachment) {
        self.closed_queues.lock().absorb_requests(attachment);
        self.registry.remove_attachment(attachment);
    }
}
