// SPDX-License-Identifier: GPL-2.0

//! The persistent reservations of a disk's drive, for users of the disk. The target holds them for
//! this host; any path may carry the request.
//!
//! If a session is lost with the response to a change, a new session repeats the change with the
//! same sequence number, so that the target makes it once.

use super::Device;
use crate::{
    head::Head,
    session::Attachment, //
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

/// Milliseconds for which a change is retried while there is no session, or while the drive
/// finishes the requests of preempted hosts.
const ASK_MS: u32 = 60_000;

/// Milliseconds between two retries.
const AGAIN_MS: u32 = 50;

/// The number of the last change: one count for all disks.
static SEQUENCE: Atomic<u32> = Atomic::new(0);

/// The reservations of one disk. A device may have a new disk, of another volume, while this one is
/// still open; the new disk's target is never asked.
#[pin_data]
pub(super) struct DiskReservations {
    device: Arc<Device>,
    head: Arc<Head>,
    /// A change is being requested: a later sequence number implies that an earlier one was given
    /// up.
    #[pin]
    reserving: Mutex<bool>,
    #[pin]
    reserved: CondVar,
}

/// The right to request a change; dropping it lets the next caller proceed.
struct Turn<'a>(&'a DiskReservations);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.reserving.lock() = false;
        self.0.reserved.notify_one();
    }
}

impl DiskReservations {
    /// Creates the state of the disk of `head`. May sleep.
    pub(super) fn new(device: Arc<Device>, head: Arc<Head>) -> Result<Arc<Self>> {
        let new = pin_init!(Self {
            device,
            head,
            reserving <- new_mutex!(false),
            reserved <- new_condvar!(),
        });
        Arc::pin_init(new, GFP_KERNEL)
    }

    /// Waits until no other change is being requested, which may be slow. Sleeps. Fails with
    /// `EINTR` at a signal.
    fn turn(&self) -> Result<Turn<'_>> {
        let mut reserving = self.reserving.lock();
        while *reserving {
            if self.reserved.wait_interruptible(&mut reserving) {
                if !*reserving {
                    // This waiter leaves without its turn: pass on a wake-up that it may have got.
                    self.reserved.notify_one();
                }
                return Err(EINTR);
            }
        }
        *reserving = true;
        Ok(Turn(self))
    }

    /// Sends the request to the target over a path that works, with retries as the module says.
    /// Sleeps for [`ASK_MS`] and one response at most. Fails with `ENODEV` when the disk is
    /// removed, and with `ETIMEDOUT`.
    fn ask(&self, question: AdminOp) -> Result<(Status, Option<ReservationInfo>)> {
        let deadline = Deadline::new(ASK_MS);
        while !self.head.is_removed_within(0) {
            let sessions = self.device.shown.lock().sessions.clone();
            let own = |session: &&Arc<Attachment>| {
                session.is_live() && core::ptr::eq(session.head(), &*self.head)
            };
            for session in sessions.iter().flatten().filter(own) {
                let volume = session.admin();
                let response = volume.map(|volume| volume.ask_reservation(question));
                match response {
                    Some(Ok((Status::Draining | Status::Gone, _))) => break,
                    Some(Ok(response)) => return Ok(response),
                    Some(Err(_)) | None => {}
                }
            }
            if deadline.has_passed() {
                return Err(ETIMEDOUT);
            }
            let _ = self.head.is_removed_within(AGAIN_MS);
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
