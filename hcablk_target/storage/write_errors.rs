// SPDX-License-Identifier: GPL-2.0

//! What a volume remembers of a session id's writes that were acknowledged and are not durable
//! yet: which errors of their write-back the initiator has still to be told.
//!
//! It outlives the session, so that no error is lost with a connection, and dies with the
//! export. Its number, the *export instance*, tells the initiator whether it is still the same: if
//! it is another one, acknowledged writes may be lost and nobody knows, and the initiator's next
//! flush fails.
//!
//! A host has at most [`RECORDS_PER_HOST`] of them on a volume, beyond those of live sessions; the
//! one that has not been used for longest goes. An initiator that needs it then sees another
//! instance.

use super::{
    backing::Backing,
    flush_errors::FlushErrors, //
};
use hcablk_core::{
    blkdev::WbErrCursor,
    proto::{
        connect::{
            ExportInstance,
            Request,
            SessionId, //
        },
        message::Status,
        name::HostId, //
    },
    sync::{
        new_irq_lock,
        IrqLock, //
    },
    system, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc,
        Mutex, //
    },
};

/// How many session ids of a host a volume remembers: more than a host may have sessions.
const RECORDS_PER_HOST: usize = 32;

/// See the module. Shared by the volume and, while there is one, by the session.
#[pin_data]
pub(crate) struct WriteErrors {
    instance: Option<ExportInstance>,
    /// Up to which failed write-back the initiator has got errors.
    #[pin]
    cursor: Mutex<WbErrCursor>,
    #[pin]
    flushes: IrqLock<FlushErrors>,
    /// Whether there is one of these that is still to be told.
    owes_error: Atomic<bool>,
}

impl WriteErrors {
    fn new(backing: &Backing) -> Result<Arc<Self>> {
        let cursor = backing.wb_err_cursor();
        Arc::pin_init(
            pin_init!(Self {
                instance: ExportInstance::of(system::random_u64()),
                cursor <- new_mutex!(cursor),
                flushes <- new_irq_lock!(FlushErrors::new(), "hcablk_flush_errors"),
                owes_error: Atomic::new(false),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number by which an initiator knows it again.
    pub(crate) fn instance(&self) -> Option<ExportInstance> {
        self.instance
    }

    /// Returns the error of a write-back that has failed since this was called last, or since
    /// the record began. May sleep.
    pub(crate) fn check_wb_err(&self, backing: &Backing) -> Result {
        backing.file().check_wb_err(&mut self.cursor.lock())
    }

    /// Returns how a flush, or a write with FUA, ends for which the drive's part ended with `own`, and
    /// which error of a flush that tells of, or 0: [`FlushErrors::end`]. Any context.
    pub(crate) fn end_flush(&self, own: Status) -> (Status, u32) {
        if own == Status::Ok && !self.owes_error.load(Acquire) {
            return (own, 0);
        }
        let mut errors = self.flushes.lock();
        let end = errors.end(own);
        self.owes_error.store(!errors.is_empty(), Release);
        end
    }

    /// Records that an answer that told of the error of a flush was sent: [`FlushErrors::sent`]. Any
    /// context.
    pub(crate) fn flush_error_sent(&self, number: u32) {
        let mut errors = self.flushes.lock();
        errors.sent(number);
        self.owes_error.store(!errors.is_empty(), Release);
    }
}

struct Record {
    host: HostId,
    session: SessionId,
    errors: Arc<WriteErrors>,
}

/// The records of an export, the one that was used last at the end.
#[pin_data]
pub(crate) struct Records {
    #[pin]
    list: Mutex<KVec<Record>>,
}

impl Records {
    /// Makes the records of a new export: there are none. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { list <- new_mutex!(KVec::new()) }),
            GFP_KERNEL,
        )
    }

    /// Returns the record for the session that `request` begins: that of its session id if it goes
    /// on with former epochs and there is one, else a new one. May sleep. Fails with `ENOMEM`.
    pub(crate) fn begin(&self, request: &Request, backing: &Backing) -> Result<Arc<WriteErrors>> {
        let mut list = self.list.lock();
        let found = list
            .iter()
            .position(|record| record.host == request.host && record.session == request.session);
        let former = found.and_then(|place| list.remove(place).ok());
        let errors = match former.filter(|_| request.resume) {
            Some(record) => record.errors,
            None => WriteErrors::new(backing)?,
        };
        let own = |record: &Record| record.host == request.host;
        if list.iter().filter(|record| own(record)).count() >= RECORDS_PER_HOST {
            let oldest = list.iter().position(own);
            drop(oldest.and_then(|place| list.remove(place).ok()));
        }
        list.push(
            Record {
                host: request.host,
                session: request.session,
                errors: errors.clone(),
            },
            GFP_KERNEL,
        )?;
        Ok(errors)
    }
}
