// SPDX-License-Identifier: GPL-2.0

//! The persistent reservations of the exported drives, the same for all volumes of one drive, and
//! the files that keep them.
//!
//! A change is durable before it counts, and counts before it is answered. So a target that starts
//! again finds the last change that was answered, or one that was being made, whole. A volume
//! without a wwid has no reservations: they would be forgotten.
//!
//! - [`drives`]: which drives are exported, and by which wwids.
//! - [`file`]: the file that keeps a drive's.
//!
//! # Locks and contexts
//!
//! `control` is held while a file is written, and `turns` says who may: see [`ChangeTurns`].
//! `state` is held while a request is checked. Requests look at `held` first, which is all that
//! they pay while there is no reservation.

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

/// Who asks for a change: disk `disk` of `host`, by its `sequence`; and when.
#[derive(Clone, Copy)]
pub(crate) struct Asking {
    pub(crate) host: HostId,
    pub(crate) disk: SessionId,
    pub(crate) sequence: u32,
    pub(crate) ticket: Ticket,
}

/// The hosts whose registrations a preemption has ended.
type Victims = KVec<HostId>;

/// See the module.
#[pin_data]
pub(crate) struct Drive {
    file: FileId,
    wwid: Option<VolumeId>,
    /// There is a file, in a directory that is known for the right one.
    is_kept: bool,
    /// It is exported by another wwid, too. Set under `control`.
    ambiguous: Atomic<bool>,
    held: Atomic<bool>,
    /// A preemption counts, and its victims' sessions are not marked by it.
    marking: Atomic<bool>,
    #[pin]
    state: IrqLock<KBox<Reservations>>,
    #[pin]
    turns: IrqLock<ChangeTurns>,
    /// Its file; `None`: there is nowhere to keep it.
    #[pin]
    control: Mutex<Option<DriveFile>>,
}

impl Drive {
    /// Makes that of `file`, which is kept in the file of `kept`, as `state`; with that, whether
    /// its directory is known for the right one.
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

    /// Returns whether a request of `host` may not be carried out. Any context.
    #[inline]
    pub(crate) fn forbids(&self, host: &HostId, op: &Op) -> bool {
        let writes = !matches!(op, Op::Read(..));
        self.held.load(Relaxed) && !matches!(op, Op::Nop) && self.forbids_now(host, writes)
    }

    /// Returns whether a write of `host` may not be carried out. Any context.
    #[inline]
    pub(crate) fn forbids_writes(&self, host: &HostId) -> bool {
        self.held.load(Relaxed) && self.forbids_now(host, true)
    }

    #[cold]
    fn forbids_now(&self, host: &HostId, writes: bool) -> bool {
        !self.state.lock().allows(*host, writes)
    }

    /// Returns by what a change can be made that is asked for now. To be taken before it is looked
    /// whether the session ends: whoever shuts a host out ends its sessions first, and gives up
    /// changes then, so that a session which does not end yet has a ticket that will be given up.
    /// Any context.
    pub(crate) fn ticket(&self) -> Ticket {
        self.turns.lock().ticket()
    }

    /// Has all changes that were asked for asked for again, if they have not begun. Returns whether
    /// one of `host` has, and has not ended. Any context.
    fn give_up_changes(&self, host: HostId) -> bool {
        let mut turns = self.turns.lock();
        turns.give_up();
        turns.is_making(host)
    }

    /// Makes a change that is asked for, and returns how it ended. When a preemption counts,
    /// `preempted` is called with its number and the hosts whose registrations it has ended, to
    /// mark their sessions, before anybody is told that. `Draining`: it is not made, since another
    /// one is being made, or is to be made before; or it was given up. Sleeps, as long as the file
    /// takes.
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

    /// Makes a change whose turn it is.
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
                        "reservations need a wwid, the same for all volumes of a drive, and the directory `reservations` when the first of these is enabled\n"
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

    /// Returns whether a preemption counts whose victims' sessions are not marked by it yet. To be
    /// asked after [`Self::read`], and before it is looked for marked sessions. Any context.
    pub(crate) fn is_marking(&self) -> bool {
        self.marking.load(Acquire)
    }

    /// Makes `next` durable in the place of what there is, and logs if it cannot be.
    fn save(&self, kept: &mut DriveFile, next: &Reservations) -> Result {
        let mut former = KBox::new(Reservations::new(), GFP_KERNEL)?;
        former.clone_from(&self.state.lock());
        kept.save(&former, next).inspect_err(|e| {
            let told = match kept.is_uncertain() {
                true => "nothing is changed now, but it may be when the target begins again",
                false => "nothing is changed",
            };
            let errno = e.to_errno();
            if may_print(Lines::Reservations) {
                pr_warn!("a reservation cannot be kept in its file (error {errno}): {told}\n");
            }
        })
    }

    /// Makes the change in a copy.
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

    /// Returns the key of registrant `index`; or the reservation if that is `None`. Any context.
    pub(crate) fn read(&self, index: Option<u32>) -> ReservationInfo {
        let state = self.state.lock();
        match index {
            Some(index) => state.read_key(index),
            None => state.read_reservation(),
        }
    }
}
