// SPDX-License-Identifier: GPL-2.0

//! The persistent reservations of a disk's drive, as users of the disk ask for them. The target has
//! them, for this host, by whichever path it is asked.
//!
//! A change whose answer is lost with a session is asked for again by another session, by the same
//! sequence number, so that the target makes it once.

use super::Device;
use crate::{
    head::Head,
    session::Session, //
};
use hcablk_core::{
    blkdev::ReservationOps,
    proto::message::{
        AdminOp,
        ReservationInfo,
        ReservationOp,
        Status, //
    },
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    system::{
        errno,
        Deadline, //
    },
};
use kernel::{
    new_condvar, new_mutex,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        Mutex, //
    },
};

/// Milliseconds for which a change is asked for, while there is no session, or the drive has not
/// finished what preempted hosts had begun.
const ASK_MS: u32 = 60_000;

/// Milliseconds between two questions.
const AGAIN_MS: u32 = 50;

/// The number of the last change: one count for all disks.
static SEQUENCE: Atomic<u32> = Atomic::new(0);

/// Those of one disk. A device may have another disk, of another volume, while somebody still has
/// this one open: that one is never asked.
#[pin_data]
pub(super) struct DiskReservations {
    device: Arc<Device>,
    head: Arc<Head>,
    /// Somebody asks for a change: a later sequence number says that an earlier one was given up.
    #[pin]
    reserving: Mutex<bool>,
    #[pin]
    reserved: CondVar,
}

/// Whose turn it is to ask for a change.
struct Turn<'a>(&'a DiskReservations);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.reserving.lock() = false;
        self.0.reserved.notify_one();
    }
}

impl DiskReservations {
    /// Makes those of the disk of `head`. May sleep.
    pub(super) fn new(device: Arc<Device>, head: Arc<Head>) -> Result<Arc<Self>> {
        let new = pin_init!(Self {
            device,
            head,
            reserving <- new_mutex!(false),
            reserved <- new_condvar!(),
        });
        Arc::pin_init(new, GFP_KERNEL)
    }

    /// Waits until nobody else asks for a change, which may take long. Sleeps. Fails with `EINTR`
    /// at a signal.
    fn turn(&self) -> Result<Turn<'_>> {
        let mut reserving = self.reserving.lock();
        while *reserving {
            if self.reserved.wait_interruptible(&mut reserving) {
                if !*reserving {
                    // It may have been for this one that another was not woken.
                    self.reserved.notify_one();
                }
                return Err(EINTR);
            }
        }
        *reserving = true;
        Ok(Turn(self))
    }

    /// Asks the target by a path that works, again and again as the module tells. Sleeps,
    /// [`ASK_MS`] and the time of one answer at most. Fails with `ENODEV` when the disk goes, and
    /// with `ETIMEDOUT`.
    fn ask(&self, question: AdminOp) -> Result<(Status, Option<ReservationInfo>)> {
        let deadline = Deadline::new(ASK_MS);
        while !self.head.goes_within(0) {
            let sessions = self.device.shown.lock().sessions.clone();
            let own = |session: &&Arc<Session>| {
                session.is_live() && core::ptr::eq(session.head(), &*self.head)
            };
            for session in sessions.iter().flatten().filter(own) {
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
            let _ = self.head.goes_within(AGAIN_MS);
        }
        Err(ENODEV)
    }
}

impl ReservationOps for DiskReservations {
    fn change(&self, op: ReservationOp) -> Result<Status> {
        let _turn = self.turn()?;
        let sequence = SEQUENCE.fetch_add(1, Relaxed).wrapping_add(1);
        let (status, _) = self.ask(AdminOp::Reservation { sequence, op })?;
        Ok(status)
    }

    fn read(&self, index: Option<u32>) -> Result<ReservationInfo> {
        let question = match index {
            Some(index) => AdminOp::ReadKey { index },
            None => AdminOp::ReadReservation,
        };
        let (_, info) = self.ask(question)?;
        info.ok_or(errno::eopnotsupp())
    }
}
