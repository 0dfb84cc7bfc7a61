// SPDX-License-Identifier: GPL-2.0

//! Lists the exported devices and files, and the state that volumes on the same one share. A volume
//! with a cache must be the only one, since the cache would not see another volume's writes. A
//! direct write must know of volumes and programs that write through the page cache, since the page
//! cache writes back whole pages. And all volumes need the failed flushes of the drive.
//!
//! A [`Claim`] is part of the volume's backing and is dropped with it, when the volume can no
//! longer write. The lock is taken inside the lock of a volume or of a session.

use super::flush_failures::FlushFailures;
use hcablk_core::{
    blkdev::{
        DriveId,
        FileId,
        FileRef, //
    },
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
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

/// The state shared by all volumes on the same device or file.
pub(crate) struct Shared {
    /// The number of these volumes that use the page cache.
    cached: Atomic<u32>,
    /// The number of these volumes that count in [`FileRef::openers`].
    open: Atomic<u32>,
    rewrites: Rewrites,
    /// The failed flushes of all volumes on the drive.
    flush_failures: Arc<FlushFailures>,
}

impl Shared {
    /// Creates the state of a device or file with one volume. May sleep.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Self::on(Arc::new(FlushFailures::new(), GFP_KERNEL)?)
    }

    fn on(flush_failures: Arc<FlushFailures>) -> Result<Arc<Self>> {
        let shared = Self {
            cached: Atomic::new(0),
            open: Atomic::new(0),
            rewrites: Rewrites {
                begun: Atomic::new(0),
                ended: Atomic::new(0),
            },
            flush_failures,
        };
        Ok(Arc::new(shared, GFP_KERNEL)?)
    }

    /// Returns whether a volume currently exports the same device or file through the page cache.
    /// Any context.
    #[inline]
    pub(crate) fn is_exported_cached(&self) -> bool {
        self.cached.load(Relaxed) != 0
    }

    /// Returns whether others may currently write the same device or file through the page cache:
    /// another volume, or a program on this host that has `file`, the exported file, open. Any
    /// context.
    #[inline]
    pub(crate) fn is_also_cached(&self, file: FileRef<'_>) -> bool {
        self.is_exported_cached() || file.openers() > self.open.load(Relaxed)
    }

    pub(crate) fn rewrites(&self) -> &Rewrites {
        &self.rewrites
    }

    pub(crate) fn flush_failures(&self) -> &Arc<FlushFailures> {
        &self.flush_failures
    }
}

/// Counts write-backs of whole pages on behalf of requests for parts of them. Such a write-back may
/// overwrite a direct write to the rest of the page with the former data, and the direct write may
/// find no page when it completes. With these counts it detects whether a write-back was under way
/// at the same time.
pub(crate) struct Rewrites {
    begun: Atomic<u32>,
    ended: Atomic<u32>,
}

/// A moment, for [`Rewrites::any_since`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RewriteMark(u32);

impl Rewrites {
    /// Records that pages may be read, changed and written back whole, until the returned guard is
    /// dropped. Must be called before a page is read: a direct write that no longer finds a page
    /// then finds this record. Any context.
    pub(crate) fn begin(&self) -> Rewriting<'_> {
        self.begun.fetch_add(1, Full);
        Rewriting(self)
    }

    /// Returns the current moment, fully ordered with accesses before and after. Any context.
    #[inline]
    pub(crate) fn mark(&self) -> RewriteMark {
        RewriteMark(self.ended.fetch_add(0, Full))
    }

    /// Returns whether a write-back was under way at any time since `mark`. Any context.
    #[inline]
    pub(crate) fn any_since(&self, mark: RewriteMark) -> bool {
        // Compares the write-backs that have begun by now with those that had ended at the mark.
        RewriteMark(self.begun.fetch_add(0, Full)) != mark
    }
}

/// A guard: pages are being written back whole.
#[must_use]
pub(crate) struct Rewriting<'a>(&'a Rewrites);

impl Drop for Rewriting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Full);
    }
}

/// An export of a device or file, and whether it must be the only one.
struct Entry {
    file: FileId,
    drive: DriveId,
    alone: bool,
    shared: Arc<Shared>,
}

/// The list of exported devices and files.
#[pin_data]
pub(crate) struct Claims {
    #[pin]
    entries: Mutex<KVec<Entry>>,
}

/// The manner in which a volume exports a device or file.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// No other volume may export it.
    pub(crate) alone: bool,
    /// The volume uses the page cache.
    pub(crate) cached: bool,
    /// The volume counts in [`FileRef::openers`].
    pub(crate) counts: bool,
}

/// While this object exists, a device or file is listed as exported.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    file: FileId,
    manner: Manner,
    shared: Arc<Shared>,
}

impl Claim {
    /// Returns the state shared with other volumes on the same device or file.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Claims {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let claims = pin_init!(Self {
            entries <- new_mutex!(KVec::new()),
        });
        Arc::pin_init(claims, GFP_KERNEL)
    }

    /// Lists `file` as exported. Fails with `EBUSY` if another volume exports it and either must be
    /// the only one.
    pub(crate) fn claim(this: &Arc<Self>, file: FileRef<'_>, manner: Manner) -> Result<Claim> {
        let (id, drive) = (file.id(), file.drive_id());
        let mut entries = this.entries.lock();
        let mut others = entries.iter().filter(|entry| entry.file == id);
        if others.clone().any(|other| manner.alone || other.alone) {
            return Err(EBUSY);
        }
        let same_drive = entries.iter().find(|entry| entry.drive == drive);
        let shared = match (others.next(), same_drive) {
            (Some(other), _) => other.shared.clone(),
            (None, Some(same_drive)) => Shared::on(same_drive.shared.flush_failures.clone())?,
            (None, None) => Shared::new()?,
        };
        let entry = Entry {
            file: id,
            drive,
            alone: manner.alone,
            shared: shared.clone(),
        };
        entries.push(entry, GFP_KERNEL)?;
        drop(entries);
        shared.cached.fetch_add(manner.cached.into(), Relaxed);
        shared.open.fetch_add(manner.counts.into(), Relaxed);
        Ok(Claim {
            claims: this.clone(),
            file: id,
            manner,
            shared,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shared
            .cached
            .fetch_sub(self.manner.cached.into(), Relaxed);
        self.shared
            .open
            .fetch_sub(self.manner.counts.into(), Relaxed);
        let mut entries = self.claims.entries.lock();
        // Entries that are equal are interchangeable.
        let mut left = false;
        entries.retain(|entry| {
            let go = !left && entry.file == self.file && entry.alone == self.manner.alone;
            left |= go;
            !go
        });
    }
}
