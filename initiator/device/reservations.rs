// SPDX-License-Identifier: GPL-2.0

//! The persistent reservations of a disk's drive, as users of the disk ask for them. The target has them, for this host, by
//! whichever path it is asked.
//!
//! A change whose answer is lost with a session is asked for again by another session, by the same sequence number, so
//! that the target makes it once.

use super::Device;
use hcablk_core::{
    blkdev::ReservationOps,
    proto::message::{
        AdminOp,
        ReservationInfo,
        ReservationOp,
        Status, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Event, //
    },
    system::errno,
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::deadline::Deadline;

/// Milliseconds for which a change is asked for, while there is no session, or the drive has not finished what
/// preempted hosts had begun.
const ASK_MS: u32 = 60_000;

/// Milliseconds between two questions.
const AGAIN_MS: u32 = 50;

/// The number of the last change: one count for all disks.
static SEQUENCE: Atomic<u32> = Atomic::new(0);

impl Device {
    /// Asks the target by a path that works, again and again as the module tells. Sleeps, [`ASK_MS`] and the time of one answer
    /// at most. Fails with `ENODEV` if there is no disk, and with `ETIMEDOUT`.
    fn ask_reservation(&self, question: AdminOp) -> Result<(Status, Option<ReservationInfo>)> {
        let deadline = Deadline::new(ASK_MS);
        let pause = Arc::pin_init(Event::new(), GFP_KERNEL)?;
        loop {
            let sessions = self.shown.lock().sessions.clone();
            if sessions
                .iter()
                .flatten()
                .any(|session| session.head().goes_within(0))
            {
                return Err(ENODEV);
            }
            for session in sessions.iter().flatten().filter(|s| s.is_live()) {
                let answer = session.admin().map(|admin| admin.ask_reservation(question));
                match answer {
                    Some(Ok((Status::Draining | Status::Gone, _))) => break,
                    Some(Ok(answer)) => return Ok(answer),
                    Some(Err(_)) | None => {}
                }
            }
            if deadline.has_passed() {
                return Err(ETIMEDOUT);
            }
            let _ = pause.wait_ms(AGAIN_MS);
        }
    }
}

impl ReservationOps for Device {
    fn change(&self, op: ReservationOp) -> Result<Status> {
        let _alone = self.reserving.lock();
        let sequence = SEQUENCE.fetch_add(1, Relaxed).wrapping_add(1);
        let (status, _) = self.ask_reservation(AdminOp::Reservation { sequence, op })?;
        Ok(status)
    }

    fn read(&self, index: Option<u32>) -> Result<ReservationInfo> {
        let question = match index {
            Some(index) => AdminOp::ReadKey { index },
            None => AdminOp::ReadReservation,
        };
        let (_, info) = self.ask_reservation(question)?;
        info.ok_or(errno::eopnotsupp())
    }
}
