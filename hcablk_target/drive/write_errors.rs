// SPDX-License-Identifier: GPL-2.0

//! Records, for each disk, the write-back errors of acknowledged writes that its initiator has not
//! been notified of. There is one record for all paths of the disk, since a flush on one path
//! covers the writes on the others.
//!
//! A record outlives the session, so that no error is lost with a connection, and is dropped with
//! the export. Its number, the *export instance*, lets the initiator check whether the record is
//! the same. If not, acknowledged writes may be lost without notice, and the initiator's next flush
//! fails.
//!
//! A host has at most [`RECORDS_PER_HOST`] records on a volume, including those of live sessions.
//! For a further one the least recently used record without a session is dropped. An initiator that
//! resumes the disk of that record then sees a different instance.

use super::{
    backing::Backing,
    flush_errors::{
        FlushErrors,
        SessionNumber, //
    },
    flush_failures::FlushFailures, //
};
use hcablk_core::{
    blkdev::WbErrCursor,
    proto::{
        connect::{
            ConnectRequest,
            Epoch,
            ExportInstance,
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

/// The number of disks of a host that a volume remembers: more than it may have sessions there.
const RECORDS_PER_HOST: usize = 32;

/// The errors of the page cache that were reported to the initiator.
struct Seen {
    /// The position in the file's write-back errors.
    cursor: WbErrCursor,
    /// The number of these errors, and the last one.
    count: u32,
    last: Result,
}

/// The record of one disk: see the module. Shared by the volume and the disk's sessions, if there
/// are any.
#[pin_data]
pub(crate) struct WriteErrors {
    instance: Option<ExportInstance>,
    #[pin]
    seen: Mutex<Seen>,
    #[pin]
    flushes: IrqLock<FlushErrors>,
    /// The failed flushes of the drive, and how many of them are accounted for in `flushes`.
    failures: Arc<FlushFailures>,
    seen_failures: Atomic<u32>,
    /// Whether `flushes` has an error that is not reported yet.
    owes_error: Atomic<bool>,
    /// The number of sessions that have the record. Grows under the lock of the records.
    sessions: Atomic<u32>,
    /// The number of these sessions that may still acknowledge writes.
    open: Atomic<u32>,
    /// Whether the session that was the last to begin to end ended because of a fault: then the
    /// disk may still wait for the volume.
    is_lost: Atomic<bool>,
    /// Whether all acknowledged writes are durable, once an ending export has determined it.
    #[pin]
    durable: Mutex<Option<bool>>,
    /// The number of the next session that uses the record.
    next_session_number: Atomic<SessionNumber>,
}

impl WriteErrors {
    fn new(backing: &Backing) -> Result<Arc<Self>> {
        let cursor = backing.wb_err_cursor();
        let failures = backing.flush_failures().clone();
        let seen_failures = failures.count();
        Arc::pin_init(
            pin_init!(Self {
                instance: ExportInstance::from_number(system::random_u64()),
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
                is_lost: Atomic::new(false),
                durable <- new_mutex!(None),
                next_session_number: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns whether a session has the record.
    fn is_used(&self) -> bool {
        self.sessions.load(Acquire) != 0
    }

    /// Returns the number with which an initiator recognizes the record.
    pub(crate) fn instance(&self) -> Option<ExportInstance> {
        self.instance
    }

    /// Returns the number of write-back errors reported to the initiator so far, for
    /// [`Self::check_wb_err`]. May sleep.
    pub(crate) fn seen(&self) -> u32 {
        self.seen.lock().count
    }

    /// Returns whether any session may still acknowledge writes.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Acquire) != 0
    }

    /// Makes acknowledged writes durable, if no error is left to report. Returns `true` on
    /// success. All sessions get the same result, since an error is found only once. Must be called
    /// when the export ends, and [`Self::is_open`] returns `false`. Sleeps until the drive has
    /// finished.
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

    /// Returns whether a flush of the drive has failed that was not reported to the initiator.
    #[inline]
    fn misses_failure(&self) -> bool {
        self.failures.count() != self.seen_failures.load(Acquire)
    }

    /// Returns the error of a write-back that has failed since the last call, or since the record
    /// began; or the last error that another caller got, if the number of errors has changed since
    /// it was `before`: two flushes that wait at the same time both cover the loss. May sleep.
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

    /// Returns the status of a flush of session `by` for which the drive returned `own`, and the
    /// number of the flush error that it reports, or 0: [`FlushErrors::end`]. Any context.
    pub(crate) fn end_flush(&self, own: Status, by: SessionNumber) -> (Status, u32) {
        // In this order: `seen_failures` changes only after `owes_error` is set.
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
    /// flush reports it. Any context.
    #[cold]
    pub(crate) fn owe_flush_error(&self, error: Status) {
        let mut errors = self.flushes.lock();
        errors.owe(error);
        self.owes_error.store(true, Release);
        self.see_failures();
    }

    /// Accounts for all failed flushes of the drive, and returns whether any was new. Must be
    /// called with the lock of `flushes`.
    fn see_failures(&self) -> bool {
        let count = self.failures.count();
        let missed = self.seen_failures.load(Relaxed) != count;
        if missed {
            // The holder of the lock records the error as owed, or clears the flag, before it
            // releases the lock.
            self.owes_error.store(true, Release);
            self.seen_failures.store(count, Release);
        }
        missed
    }

    /// Records that session `by` has sent a response with flush error `number`; `arrived`: the
    /// response has certainly arrived. See [`FlushErrors::sent`]. Any context.
    pub(crate) fn flush_error_sent(&self, number: u32, by: SessionNumber, arrived: bool) {
        let mut errors = self.flushes.lock();
        errors.sent(number, by, arrived);
        self.owes_error.store(!errors.is_empty(), Release);
    }
}

/// A session's use of a record. A record in use is never dropped: without it, the initiator would
/// see another instance, and believe that no request of the session is left.
pub(crate) struct WriteErrorsUse {
    errors: Arc<WriteErrors>,
    session_number: SessionNumber,
    /// Whether the session is counted as one that may acknowledge writes.
    is_open: Atomic<bool>,
}

impl WriteErrorsUse {
    fn new(errors: &Arc<WriteErrors>) -> Self {
        errors.sessions.fetch_add(1, Relaxed);
        errors.open.fetch_add(1, Relaxed);
        errors.is_lost.store(false, Relaxed);
        Self {
            errors: errors.clone(),
            session_number: errors.next_session_number.fetch_add(1, Relaxed),
            is_open: Atomic::new(true),
        }
    }

    /// Stops counting the session as one that may acknowledge writes: its queue pairs are closed,
    /// or no longer have the volume.
    pub(crate) fn close(&self) {
        if self.is_open.xchg(false, Relaxed) {
            self.errors.open.fetch_sub(1, Release);
        }
    }

    /// Records that the session begins to end, and whether because of a fault. Any context.
    pub(crate) fn begin_end(&self, by_fault: bool) {
        self.errors.is_lost.store(by_fault, Relaxed);
    }

    /// Returns the number of this session, among those that have the record.
    pub(crate) fn session_number(&self) -> SessionNumber {
        self.session_number
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
    /// For each path the highest epoch that a session had, or that was fenced; 0: no session yet.
    epochs: [Epoch; PATHS_MAX as usize],
    errors: Arc<WriteErrors>,
}

impl Record {
    /// Returns whether the record is of the disk with the session `session` of `host`.
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

    /// Records an epoch of a path.
    fn remember(&mut self, path: u8, epoch: Epoch) {
        if let Some(last) = self.epochs.get_mut(usize::from(path)) {
            *last = epoch.max(*last);
        }
    }
}

/// The records of an export, with the most recently used one at the end.
#[pin_data]
pub(crate) struct Records {
    #[pin]
    list: Mutex<KVec<Record>>,
}

impl Records {
    /// Creates the empty records of a new export. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self { list <- new_mutex!(KVec::new()) }),
            GFP_KERNEL,
        )
    }

    /// Returns the last epoch of the session that `request` names, if it is recorded.
    pub(crate) fn last_epoch(&self, request: &ConnectRequest) -> Option<Epoch> {
        let list = self.list.lock();
        let found = list
            .iter()
            .find(|record| record.is_of(request.host, request.session));
        found
            .map(|record| record.epoch(request.session.path()))
            .filter(|epoch| epoch.0 != 0)
    }

    /// Records that `session` of `host` has begun with `epoch`. May sleep. Fails with `ESTALE` if
    /// the session had this epoch or a later one, or was fenced with it.
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

    /// Returns the disks whose last session has ended because of a fault, each with its host and
    /// its session on path 0. May sleep. Fails with `ENOMEM`.
    pub(crate) fn lost(&self) -> Result<KVec<(HostId, SessionId)>> {
        let list = self.list.lock();
        let mut lost = KVec::with_capacity(list.len(), GFP_KERNEL)?;
        for record in list.iter() {
            if record.errors.is_lost.load(Relaxed) && !record.errors.is_used() {
                lost.push((record.host, record.disk), GFP_KERNEL)?;
            }
        }
        Ok(lost)
    }

    /// Prevents every session of this id from beginning with `epoch` or an earlier one. May sleep.
    pub(crate) fn fence(&self, host: HostId, session: SessionId, epoch: Epoch) {
        // If the session had this epoch already, nothing has to be recorded.
        let _ = self.remember_epoch(host, session, epoch);
    }

    /// Returns the record for the session that `request` begins: the existing one of its disk if
    /// the request resumes former epochs, else a new one. May sleep. Fails with `ENOMEM`, and with
    /// `ESTALE` if the session id had this epoch or a later one. A request that does not resume
    /// also fails with `ESTALE` if any other session of the disk had.
    pub(crate) fn begin(
        &self,
        request: &ConnectRequest,
        backing: &Backing,
    ) -> Result<WriteErrorsUse> {
        let mut list = self.list.lock();
        let found = list
            .iter()
            .position(|record| record.is_of(request.host, request.session));
        let known = found.and_then(|place| list.get(place));
        // A delayed first request must not discard the record of a session that began after it,
        // over another path.
        let last = |record: &Record| match request.resume {
            true => record.epoch(request.session.path()),
            false => record.newest_epoch(),
        };
        if known.is_some_and(|record| request.epoch <= last(record)) {
            return Err(errno::estale());
        }
        let resumed = known.filter(|_| request.resume);
        let errors = match resumed {
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
