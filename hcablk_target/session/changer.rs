// SPDX-License-Identifier: GPL-2.0

//! Carries out the change of reservations that an initiator requests. It runs apart from the admin
//! queue pair: the file of reservations may be slow, while keep-alives and fences must get their
//! responses, and the session must be able to end.
//!
//! ```text
//!          begin()             it is made
//!  Idle ───────────► Making ──────────────► Idle; response sent, unless the admin queue pair is gone
//! ```
//!
//! Each attachment has one changer, which outlives the attachment until the change is made. So it
//! holds no object of the HCA, and no part of the volume except the drive's reservations. The
//! eviction of the host drops its changes that have not begun.

use crate::{
    admin::Admin,
    drive::reservations::{
        Asking,
        DriveUse, //
    },
    export::volume::Volume, //
};
use hcablk_core::{
    broken,
    logic::change_turns::Ticket,
    proto::{
        connect::SessionId,
        message::{
            ReservationOp,
            Status,
            Tag, //
        },
        name::HostId, //
    },
};
use kernel::{
    impl_has_work, new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

/// A requested change.
#[derive(Clone)]
pub(super) struct RequestedChange {
    pub(super) tag: Tag,
    pub(super) sequence: u32,
    pub(super) op: ReservationOp,
    pub(super) drive: Arc<DriveUse>,
    pub(super) ticket: Ticket,
}

/// Carries out the changes of reservations of one attachment: see the module.
#[pin_data]
pub(super) struct Changer {
    volume: Arc<Volume>,
    host: HostId,
    id: SessionId,
    /// The change being made; `None`: idle.
    #[pin]
    asked: Mutex<Option<RequestedChange>>,
    /// The admin queue pair that sends the response. Locked while the response is sent, so that the
    /// teardown drops the last reference.
    #[pin]
    admin: Mutex<Option<Arc<Admin>>>,
    #[pin]
    work: Work<Changer>,
}

impl_has_work! {
    impl HasWork<Self> for Changer { self.work }
}

impl Changer {
    pub(super) fn new(volume: Arc<Volume>, host: HostId, id: SessionId) -> Result<Arc<Self>> {
        let changer = pin_init!(Self {
            volume,
            host,
            id,
            asked <- new_mutex!(None),
            admin <- new_mutex!(None),
            work <- new_work!("hcablk_target::Changer"),
        });
        Arc::pin_init(changer, GFP_KERNEL)
    }

    /// Sets the admin queue pair that sends the responses, until it is
    /// [removed](Self::forget_admin).
    pub(super) fn respond_through(&self, admin: &Arc<Admin>) {
        *self.admin.lock() = Some(admin.clone());
    }

    /// Drops the admin queue pair: no more responses are sent. May sleep, but does not wait for a
    /// change.
    pub(super) fn forget_admin(&self) {
        let admin = self.admin.lock().take();
        drop(admin);
    }

    /// Begins to make a change. Fails with `Draining` while another change is being made. May
    /// sleep, but does not wait for a change.
    pub(super) fn begin(self: &Arc<Self>, asked: RequestedChange) -> Result<(), Status> {
        {
            let mut place = self.asked.lock();
            if place.is_some() {
                return Err(Status::Draining);
            }
            *place = Some(asked);
        }
        // Queued once for each change that has entered `asked`.
        if self
            .volume
            .registry()
            .changes()
            .enqueue(self.clone())
            .is_err()
        {
            broken!("a change of reservations was queued already");
        }
        Ok(())
    }
}

impl WorkItem for Changer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(RequestedChange {
            tag,
            sequence,
            op,
            drive,
            ticket,
        }) = this.asked.lock().clone()
        else {
            return;
        };
        let asking = Asking {
            host: this.host,
            disk: this.id,
            sequence,
            ticket,
        };
        let status = this.volume.reserve(asking, op, &drive);
        let done = this.asked.lock().take();
        drop((done, drive));
        if let Some(admin) = this.admin.lock().as_ref() {
            admin.respond_to_change(tag, status);
        }
    }
}
