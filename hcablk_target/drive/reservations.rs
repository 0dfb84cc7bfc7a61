// SPDX-License-Identifier: GPL-2.0

//! Holds the persistent reservations of the exported drives, shared by all volumes of one drive,
//! and the files that store them.
//!
//! A change is made durable before it takes effect, and takes effect before its response. So a
//! target that restarts finds the last change whose response was sent, or the one that was being
//! made, as a whole. A volume without a wwid has no reservations: the target would lose them.
//!
//! - [`drives`]: the exported drives, and their wwids.
//! - [`file`]: the file with the reservations of a drive.
//!
//! # Locks and contexts
//!
//! `control` is held while a file is written, and `turns` decides which change is made next: see
//! [`ChangeTurns`]. `state` is held while a request is checked. Requests read `held` first, which
//! is their only cost while there is no reservation.

use self::file::DriveFile;
use hcablk_core::{
    blkdev::FileId,
    logic::{
        change_turns::{
            ChangeTurns,
            Ticket, //
        },
        reservation::{
            Outcome,
            Reservations,
            REGISTRANTS_MAX, //
        },
    },
    proto::{
        connect::SessionId,
        message::{
            Op,
            ReservationInfo,
            ReservationOp,
            Status, //
        },
        name::{
            HostId,
            VolumeId, //
        },
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        defer::without_io,
        new_irq_lock,
        IrqLock, //
    },
    system::{
        may_print,
        now_ns,
        Lines, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

mod drives;
mod file;

pub(crate) use self::drives::{
    DriveUse,
    Drives,
    Keep, //
};

/// The origin of a requested change: disk `disk` of `host`, which gave it the number `sequence`;
/// and the time of the request.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) host: HostId,
    pub(crate) disk: SessionId,
    pub(crate) sequence: u32,
    pub(crate) ticket: Ticket,
}

/// The hosts whose registrations a preemption has ended.
type Victims = KVec<HostId>;

/// The reservations of one drive: see the module.
#[pin_data]
pub(crate) struct Drive {
    file: FileId,
    wwid: Option<VolumeId>,
    /// The reservations are stored in a file, in a directory that has the marker file.
    is_kept: bool,
    /// The drive is also exported under another wwid. Set under `control`.
    ambiguous: Atomic<bool>,
    held: Atomic<bool>,
    /// A preemption is in effect, and its victims' sessions are not marked yet.
    marking: Atomic<bool>,
    #[pin]
    state: IrqLock<KBox<Reservations>>,
    #[pin]
    turns: IrqLock<ChangeTurns>,
    /// The file of the reservations; `None`: they cannot be kept.
    #[pin]
    control: Mutex<Option<DriveFile>>,
}

impl Drive {
    /// Creates the reservations `state` of the drive `file`. `kept` is the file that stores them,
    /// and whether its directory has the marker file.
    fn new(
        file: FileId,
        wwid: Option<VolumeId>,
        kept: Option<(DriveFile, bool)>,
        state: KBox<Reservations>,
    ) -> Result<Arc<Self>> {
        let held = state.is_held();
        let is_kept = matches!(kept, Some((_, true)));
        let kept = kept.map(|(file, _)| file);
        let drive = pin_init!(Self {
            file,
            wwid,
            is_kept,
            ambiguous: Atomic::new(false),
            held: Atomic::new(held),
            marking: Atomic::new(false),
            state <- new_irq_lock!(state, "hcablk_reservations"),
            turns <- new_irq_lock!(ChangeTurns::new(), "hcablk_change_turns"),
            control <- new_mutex!(kept),
        });
        Arc::pin_init(drive, GFP_KERNEL)
    }

    /// Returns whether the reservations forbid a request of `host`. Any context.
    #[inline]
    pub(crate) fn forbids(&self, host: &HostId, op: &Op) -> bool {
        let writes = !matches!(op, Op::Read(..));
        self.held.load(Relaxed) && !matches!(op, Op::Nop) && self.forbids_now(host, writes)
    }

    /// Returns whether the reservations forbid a write of `host`. Any context.
    #[inline]
    pub(crate) fn forbids_writes(&self, host: &HostId) -> bool {
        self.held.load(Relaxed) && self.forbids_now(host, true)
    }

    #[cold]
    fn forbids_now(&self, host: &HostId, writes: bool) -> bool {
        !self.state.lock().allows(*host, writes)
    }

    /// Returns a ticket for a change that is requested now. Must be called before the caller checks
    /// whether the session is ending: a caller that evicts a host ends its sessions first, and then
    /// gives up changes, so that a session which is not ending yet has a ticket that will be given
    /// up. Any context.
    pub(crate) fn ticket(&self) -> Ticket {
        self.turns.lock().ticket()
    }

    /// Gives up all requested changes that have not begun; their initiators repeat them. Returns
    /// whether a change of `host` has begun and not ended. Any context.
    fn give_up_changes(&self, host: HostId) -> bool {
        let mut turns = self.turns.lock();
        turns.give_up();
        turns.is_making(host)
    }

    /// Makes a requested change, and returns its outcome. When a preemption takes effect, calls
    /// `preempted` with its number and the hosts whose registrations it has ended, to mark their
    /// sessions, before the response is sent. Returns `Draining` if the change is not made, since
    /// another change is being made or must be made first, or it was given up. Sleeps until the
    /// file is written.
    pub(crate) fn change(
        &self,
        asking: Asking,
        op: ReservationOp,
        preempted: impl FnOnce(u64, &[HostId]),
    ) -> Outcome {
        let now_ms = now_ns() / 1_000_000;
        let begun = self.turns.lock().begin(asking.host, asking.ticket, now_ms);
        if begun.is_err() {
            return Outcome::failed(Status::Draining);
        }
        let outcome = self.make(asking, op, preempted);
        self.turns.lock().end();
        outcome
    }

    /// Makes a change whose turn has come.
    fn make(
        &self,
        asking: Asking,
        op: ReservationOp,
        preempted: impl FnOnce(u64, &[HostId]),
    ) -> Outcome {
        without_io(|| {
            let mut control = self.control.lock();
            let ambiguous = self.ambiguous.load(Relaxed);
            let Some(kept) = Option::as_mut(&mut *control).filter(|_| !ambiguous) else {
                if may_print(Lines::Reservations) {
                    pr_warn!(
                        "refused a change of reservations: its drive has no wwid, is exported under several wwids, \
                         or the directory `reservations` was missing when its first volume was enabled\n"
                    );
                }
                return Outcome::failed(Status::Unsupported);
            };
            let Ok((next, outcome, victims)) = self.prepare(asking, op) else {
                return Outcome::failed(Status::IoError);
            };
            if outcome.changed && self.save(kept, &next).is_err() {
                return Outcome::failed(Status::IoError);
            }
            let held = next.is_held();
            self.marking.store(!victims.is_empty(), Relaxed);
            let former = core::mem::replace(&mut *self.state.lock(), next);
            self.held.store(held, Release);
            if !victims.is_empty() {
                preempted(outcome.number, &victims);
                self.marking.store(false, Release);
                self.turns.lock().give_up();
            }
            drop(former);
            outcome
        })
    }

    /// Returns whether a preemption is in effect whose victims' sessions are not marked yet. Must
    /// be called after [`Self::read`], and before the check for marked sessions. Any context.
    pub(crate) fn is_marking(&self) -> bool {
        self.marking.load(Acquire)
    }

    /// Makes `next` durable in place of the current state, and logs a failure.
    fn save(&self, kept: &mut DriveFile, next: &Reservations) -> Result {
        let mut former = KBox::new(Reservations::new(), GFP_KERNEL)?;
        former.clone_from(&self.state.lock());
        kept.save(&former, next).inspect_err(|e| {
            let effect = match kept.is_uncertain() {
                true => "nothing is changed now, but the change may take effect when the target restarts",
                false => "nothing is changed",
            };
            let errno = e.to_errno();
            if may_print(Lines::Reservations) {
                let wwid = kept.wwid();
                pr_warn!("cannot write a change of reservations to file {wwid} (error {errno}): {effect}\n");
            }
        })
    }

    /// Makes the change in a copy of the reservations, which it returns with the outcome and the
    /// victims.
    fn prepare(
        &self,
        asking: Asking,
        op: ReservationOp,
    ) -> Result<(KBox<Reservations>, Outcome, Victims)> {
        let mut next = KBox::new(Reservations::new(), GFP_KERNEL)?;
        let mut victims = KVec::with_capacity(REGISTRANTS_MAX, GFP_KERNEL)?;
        next.clone_from(&self.state.lock());
        let Asking {
            host,
            disk,
            sequence,
            ..
        } = asking;
        let outcome = next.change(host, disk, sequence, op, &mut |gone| {
            let _ = victims.push_within_capacity(gone);
        });
        Ok((next, outcome, victims))
    }

    /// Returns the key of registrant `index`, or with `None` the reservation. Any context.
    pub(crate) fn read(&self, index: Option<u32>) -> ReservationInfo {
        let state = self.state.lock();
        match index {
            Some(index) => state.read_key(index),
            None => state.read_reservation(),
        }
    }
}
