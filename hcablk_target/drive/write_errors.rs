// SPDX-License-Identifier: GPL-2.0

//! What a volume remembers of a disk's writes that were acknowledged and are not durable yet: which
//! errors of their write-back the initiator has still to be told. It is one for all paths of the
//! disk, since a flush by one of them covers the writes by the others.
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
    flush_errors::{
        FlushErrors,
        Teller, //
    },
    flush_failures::FlushFailures, //
};
use hcablk_core::{
    blkdev::WbErrCursor,
    proto::{
        connect::{
            Epoch,
            ExportInstance,
            Request,
            SessionId,
            PATHS_MAX, //
        },
        message::Status,
        name::HostId, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        new_irq_lock,
        IrqLock, //
    },
    system::{
        self,
        errno, //
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

/// How many disks of a host a volume remembers: more than a host may have sessions.
const RECORDS_PER_HOST: usize = 32;

/// Which errors of the page cache the initiator has got.
struct Seen {
    /// Up to which failed write-back.
    cursor: WbErrCursor,
    /// How many there were, and the last one.
    count: u32,
    last: Result,
}

/// See the module. Shared by the volume and, while there is one, by the session.
#[pin_data]
pub(crate) struct WriteErrors {
    instance: Option<ExportInstance>,
    #[pin]
    seen: Mutex<Seen>,
    #[pin]
    flushes: IrqLock<FlushErrors>,
    /// The failed flushes of the drive, and how many of them are among `flushes`.
    failures: Arc<FlushFailures>,
    seen_failures: Atomic<u32>,
    /// Whether there is one of these that is still to be told.
    owes_error: Atomic<bool>,
    /// Sessions that have it. It grows under the records' lock.
    sessions: Atomic<u32>,
    /// Those of them by which something may still be acknowledged.
    open: Atomic<u32>,
    /// Whether all is durable that was acknowledged, once an export that ends has found out.
    #[pin]
    durable: Mutex<Option<bool>>,
    /// How many sessions have had it so far.
    tellers: Atomic<Teller>,
}

impl WriteErrors {
    fn new(backing: &Backing) -> Result<Arc<Self>> {
        let cursor = backing.wb_err_cursor();
        let failures = backing.flush_failures().clone();
        let seen_failures = failures.count();
        Arc::pin_init(
            pin_init!(Self {
                instance: ExportInstance::of(system::random_u64()),
                seen <- new_mutex!(Seen {
                    cursor,
                    count: 0,
                    last: Ok(()),
                }),
                flushes <- new_irq_lock!(FlushErrors::new(), "hcablk_flush_errors"),
                failures,
                seen_failures: Atomic::new(seen_failures),
                owes_error: Atomic::new(false),
                sessions: Atomic::new(0),
                open: Atomic::new(0),
                durable <- new_mutex!(None),
                tellers: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether a session has it.
    fn is_used(&self) -> bool {
        self.sessions.load(Acquire) != 0
    }

    /// Returns the number by which an initiator knows it again.
    pub(crate) fn instance(&self) -> Option<ExportInstance> {
        self.instance
    }

    /// Returns how many errors of write-backs the initiator has got so far, for
    /// [`Self::check_wb_err`]. May sleep.
    pub(crate) fn seen(&self) -> u32 {
        self.seen.lock().count
    }

    /// Returns whether something may still be acknowledged, by any session.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Acquire) != 0
    }

    /// Makes durable what was acknowledged, if no error is still to be told. Returns whether it is:
    /// to all sessions the same, since an error is found once. To be called when the export ends,
    /// and [`Self::is_open`] no more. Sleeps, as long as the drive takes.
    pub(crate) fn is_durable(&self, backing: &Backing) -> bool {
        let mut known = self.durable.lock();
        *known.get_or_insert_with(|| self.make_durable(backing))
    }

    fn make_durable(&self, backing: &Backing) -> bool {
        let before = self.seen();
        let synced = self
            .check_wb_err(backing, before)
            .and_then(|()| backing.sync())
            .and_then(|()| self.check_wb_err(backing, before));
        synced.is_ok() && !self.owes_error.load(Acquire) && !self.misses_failure()
    }

    /// Returns whether a flush of the drive has failed that the initiator was not told of.
    #[inline]
    fn misses_failure(&self) -> bool {
        self.failures.count() != self.seen_failures.load(Acquire)
    }

    /// Returns the error of a write-back that has failed since this was called last, or since the
    /// record began; or the last one that a caller beside this one got, since they were `before`:
    /// of two flushes that wait at the same time each covers what was lost. May sleep.
    pub(crate) fn check_wb_err(&self, backing: &Backing, before: u32) -> Result {
        let mut seen = self.seen.lock();
        let found = backing.file().check_wb_err(&mut seen.cursor);
        if found.is_err() {
            seen.count = seen.count.wrapping_add(1);
            seen.last = found;
        }
        match seen.count == before {
            true => Ok(()),
            false => seen.last,
        }
    }

    /// Returns how a flush of session `by` ends for which the drive's part ended with `own`, and
    /// which error of a flush that tells of, or 0: [`FlushErrors::end`]. Any context.
    pub(crate) fn end_flush(&self, own: Status, by: Teller) -> (Status, u32) {
        // In this order: who sees the failures has the error owed before.
        if own == Status::Ok && !self.misses_failure() && !self.owes_error.load(Acquire) {
            return (own, 0);
        }
        let mut errors = self.flushes.lock();
        let missed = self.see_failures();
        let end = match own {
            Status::Ok if missed => errors.end(Status::IoError, by),
            own => errors.end(own, by),
        };
        self.owes_error.store(!errors.is_empty(), Release);
        end
    }

    /// Records that a write with FUA ended with `error`, which may be that of a flush: the next
    /// flush tells of it. Any context.
    #[cold]
    pub(crate) fn owe_flush_error(&self, error: Status) {
        let mut errors = self.flushes.lock();
        errors.owe(error);
        self.owes_error.store(true, Release);
        self.see_failures();
    }

    /// Takes all failed flushes of the drive for known, and returns whether there was one that was
    /// not. To be called with the lock of `flushes`.
    fn see_failures(&self) -> bool {
        let count = self.failures.count();
        let missed = self.seen_failures.load(Relaxed) != count;
        if missed {
            // The holder of the lock records the error as owed, or clears this, before it releases
            // the lock.
            self.owes_error.store(true, Release);
            self.seen_failures.store(count, Release);
        }
        missed
    }

    /// Records that an answer that told of the error of a flush was sent by session `by`, and has
    /// `arrived` or may not have: [`FlushErrors::sent`]. Any context.
    pub(crate) fn flush_error_sent(&self, number: u32, by: Teller, arrived: bool) {
        let mut errors = self.flushes.lock();
        errors.sent(number, by, arrived);
        self.owes_error.store(!errors.is_empty(), Release);
    }
}

/// A session's use of a record, which stays as long as there is one: who forgets it would tell the
/// initiator of another instance, and that nothing is left of what the session has begun.
pub(crate) struct WriteErrorsUse {
    errors: Arc<WriteErrors>,
    teller: Teller,
    /// Whether it is counted as one by which something may be acknowledged.
    is_open: Atomic<bool>,
}

impl WriteErrorsUse {
    fn new(errors: &Arc<WriteErrors>) -> Self {
        errors.sessions.fetch_add(1, Relaxed);
        errors.open.fetch_add(1, Relaxed);
        Self {
            errors: errors.clone(),
            teller: errors.tellers.fetch_add(1, Relaxed),
            is_open: Atomic::new(true),
        }
    }

    /// Counts the session no longer as one by which something may be acknowledged: its queues are
    /// closed.
    pub(crate) fn close(&self) {
        if self.is_open.xchg(false, Relaxed) {
            self.errors.open.fetch_sub(1, Release);
        }
    }

    /// Returns which session this is, among those that have the record.
    pub(crate) fn teller(&self) -> Teller {
        self.teller
    }
}

impl core::ops::Deref for WriteErrorsUse {
    type Target = Arc<WriteErrors>;

    fn deref(&self) -> &Arc<WriteErrors> {
        &self.errors
    }
}

impl Drop for WriteErrorsUse {
    fn drop(&mut self) {
        self.close();
        self.errors.sessions.fetch_sub(1, Release);
    }
}

struct Record {
    host: HostId,
    /// The id of the disk's sessions on path 0.
    disk: SessionId,
    /// For each path the highest epoch that a session had, or that was fenced; 0: there was none
    /// yet.
    epochs: [Epoch; PATHS_MAX as usize],
    errors: Arc<WriteErrors>,
}

impl Record {
    /// Returns whether it is of the disk whose session of `host` is `session`.
    fn is_of(&self, host: HostId, session: SessionId) -> bool {
        self.host == host && self.disk == session.on_path(0)
    }

    /// Returns the last epoch of a path.
    fn epoch(&self, path: u8) -> Epoch {
        self.epochs
            .get(usize::from(path))
            .copied()
            .unwrap_or(Epoch(0))
    }

    /// Returns the last epoch of all paths.
    fn newest_epoch(&self) -> Epoch {
        self.epochs.iter().copied().max().unwrap_or(Epoch(0))
    }

    /// Remembers an epoch of a path.
    fn remember(&mut self, path: u8, epoch: Epoch) {
        if let Some(last) = self.epochs.get_mut(usize::from(path)) {
            *last = epoch.max(*last);
        }
    }
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

    /// Returns the last epoch of the session that `request` names, if it is remembered.
    pub(crate) fn last_epoch(&self, request: &Request) -> Option<Epoch> {
        let list = self.list.lock();
        let found = list
            .iter()
            .find(|record| record.is_of(request.host, request.session));
        found
            .map(|record| record.epoch(request.session.path()))
            .filter(|epoch| epoch.0 != 0)
    }

    /// Remembers that `session` of `host` has begun with `epoch`. May sleep. Fails with `ESTALE` if
    /// it had that one or a later one, or was fenced with it.
    pub(crate) fn remember_epoch(&self, host: HostId, session: SessionId, epoch: Epoch) -> Result {
        let mut list = self.list.lock();
        if let Some(record) = list.iter_mut().find(|r| r.is_of(host, session)) {
            if epoch <= record.epoch(session.path()) {
                return Err(errno::estale());
            }
            record.remember(session.path(), epoch);
        }
        Ok(())
    }

    /// Lets no session of this id begin with `epoch` or one before. May sleep.
    pub(crate) fn fence(&self, host: HostId, session: SessionId, epoch: Epoch) {
        // There is nothing to remember if it had that one.
        let _ = self.remember_epoch(host, session, epoch);
    }

    /// Returns the record for the session that `request` begins: that of its disk if it goes on
    /// with former epochs and there is one, else a new one. May sleep. Fails with `ESTALE` if that
    /// id had this epoch or a later one, or, if it does not go on, any session of the disk had; and
    /// with `ENOMEM`.
    pub(crate) fn begin(&self, request: &Request, backing: &Backing) -> Result<WriteErrorsUse> {
        let mut list = self.list.lock();
        let found = list
            .iter()
            .position(|record| record.is_of(request.host, request.session));
        let known = found.and_then(|place| list.get(place));
        // A first request that comes late must not have the record forgotten of a session which
        // began after it, by another path.
        let last = |record: &Record| match request.resume {
            true => record.epoch(request.session.path()),
            false => record.newest_epoch(),
        };
        if known.is_some_and(|record| request.epoch <= last(record)) {
            return Err(errno::estale());
        }
        let goes_on = known.filter(|_| request.resume);
        let errors = match goes_on {
            Some(record) => record.errors.clone(),
            None => WriteErrors::new(backing)?,
        };
        let former = found.and_then(|place| list.remove(place).ok());
        let epochs = former.map_or([Epoch(0); PATHS_MAX as usize], |record| record.epochs);
        let own = |record: &Record| record.host == request.host;
        if list.iter().filter(|record| own(record)).count() >= RECORDS_PER_HOST {
            let oldest = list
                .iter()
                .position(|record| own(record) && !record.errors.is_used());
            drop(oldest.and_then(|place| list.remove(place).ok()));
        }
        list.push(
            Record {
                host: request.host,
                disk: request.session.on_path(0),
                epochs,
                errors: errors.clone(),
            },
            GFP_KERNEL,
        )?;
        Ok(WriteErrorsUse::new(&errors))
    }
}
