// SPDX-License-Identifier: GPL-2.0

//! The change of reservations that an initiator asks for, made beside the admin queue pair: its
//! file may take as long as it likes, and keep-alives and fences are answered meanwhile, and the
//! session ends.
//!
//! ```text
//!          begin()             it is made
//!  Idle ───────────► Making ──────────────► Idle; answered, unless the admin queue pair is gone
//! ```
//!
//! There is one for each session, and it outlives that until the change is made: so it has nothing
//! of the HCA, nor of the volume but the drive's reservations. Whoever shuts its host out has
//! changes given up that have not begun.

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

/// What is asked for.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) tag: Tag,
    pub(super) sequence: u32,
    pub(super) op: ReservationOp,
    pub(super) drive: Arc<DriveUse>,
    pub(super) ticket: Ticket,
}

/// See the module.
#[pin_data]
pub(super) struct Changer {
    volume: Arc<Volume>,
    host: HostId,
    id: SessionId,
    /// `None`: idle.
    #[pin]
    asked: Mutex<Option<Asked>>,
    /// Who answers. Held while that is done, so that the teardown has the last reference.
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

    /// Has changes answered by `admin`, until that is [taken away](Self::forget_admin).
    pub(super) fn answer_by(&self, admin: &Arc<Admin>) {
        *self.admin.lock() = Some(admin.clone());
    }

    /// Lets go of the admin queue pair: nothing is answered any more. May sleep, not for a change.
    pub(super) fn forget_admin(&self) {
        let admin = self.admin.lock().take();
        drop(admin);
    }

    /// Begins to make a change. Fails with `Draining` while another one is being made. May sleep,
    /// not for a change.
    pub(super) fn begin(self: &Arc<Self>, asked: Asked) -> Result<(), Status> {
        {
            let mut place = self.asked.lock();
            if place.is_some() {
                return Err(Status::Draining);
            }
            *place = Some(asked);
        }
        // It is queued once for each that has come to the place.
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
        let Some(Asked {
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
            admin.answer_change(tag, status);
        }
    }
}
