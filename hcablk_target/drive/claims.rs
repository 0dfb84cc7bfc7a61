// SPDX-License-Identifier: GPL-2.0

//! What drives and files are exported, and what the volumes that export the same share: so that one
//! with a cache is exported once, since what another volume writes would not be known to the cache;
//! who writes through the page cache, which writes back more than was written to it; and which
//! flushes of the drive have failed.
//!
//! A [`Claim`] is a part of the volume's backing and goes with it, when nobody
//! can write by it any more. The lock is taken inside a volume's or a session's.

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

/// What all volumes share that export the same.
pub(crate) struct Shared {
    /// How many of them do so through the page cache.
    cached: Atomic<u32>,
    /// How many of them count in [`FileRef::openers`].
    open: Atomic<u32>,
    rewrites: Rewrites,
    /// Those of all volumes on the drive.
    flush_failures: Arc<FlushFailures>,
}

impl Shared {
    /// Makes what a volume shares with nobody yet. May sleep.
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

    /// Returns whether a volume exports the same through the page cache, at this moment. Any
    /// context.
    #[inline]
    pub(crate) fn is_exported_cached(&self) -> bool {
        self.cached.load(Relaxed) != 0
    }

    /// Returns whether others may write the same through the page cache at this moment: a volume,
    /// or somebody on this host who has `file`, the one that is exported, open. Any context.
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

/// Pages that are written back whole, by a request for a part of them. A write past the page cache
/// to the rest of such a page may be overwritten by that with what was there before, and may find
/// no page when it is done; so it finds out by these whether it was under way at the same time as
/// one of them.
pub(crate) struct Rewrites {
    begun: Atomic<u32>,
    ended: Atomic<u32>,
}

/// A moment, for [`Rewrites::any_since`].
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RewriteMark(u32);

impl Rewrites {
    /// Notes that pages may be read and written whole, until the returned guard is dropped: before
    /// the pages are, so that who finds no page any more finds this. Any context.
    pub(crate) fn begin(&self) -> Rewriting<'_> {
        self.begun.fetch_add(1, Full);
        Rewriting(self)
    }

    /// Returns this moment, in order with what is looked at before and after. Any context.
    #[inline]
    pub(crate) fn mark(&self) -> RewriteMark {
        RewriteMark(self.ended.fetch_add(0, Full))
    }

    /// Returns whether one was under way since `mark`, or is. Any context.
    #[inline]
    pub(crate) fn any_since(&self, mark: RewriteMark) -> bool {
        // Those that had begun by now, and those that had ended by then.
        RewriteMark(self.begun.fetch_add(0, Full)) != mark
    }
}

/// Pages are being written back whole.
#[must_use]
pub(crate) struct Rewriting<'a>(&'a Rewrites);

impl Drop for Rewriting<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Full);
    }
}

/// Exported, and whether by one volume alone.
struct Entry {
    file: FileId,
    drive: DriveId,
    alone: bool,
    shared: Arc<Shared>,
}

/// The list.
#[pin_data]
pub(crate) struct Claims {
    #[pin]
    entries: Mutex<KVec<Entry>>,
}

/// How a volume exports what it has open.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// No other volume may.
    pub(crate) alone: bool,
    /// Through the page cache.
    pub(crate) cached: bool,
    /// It counts in [`FileRef::openers`].
    pub(crate) counts: bool,
}

/// A drive or file is exported, as long as this is there.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    file: FileId,
    manner: Manner,
    shared: Arc<Shared>,
}

impl Claim {
    /// Returns what it shares with others that export the same.
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

    /// Lists that a volume exports `file`; `EBUSY` when another one has it and either wants to be
    /// alone.
    pub(crate) fn claim(this: &Arc<Self>, file: FileRef<'_>, manner: Manner) -> Result<Claim> {
        let (id, drive) = (file.id(), file.drive_id());
        let mut entries = this.entries.lock();
        let mut others = entries.iter().filter(|entry| entry.file == id);
        if others.clone().any(|other| manner.alone || other.alone) {
            return Err(EBUSY);
        }
        let beside = entries.iter().find(|entry| entry.drive == drive);
        let shared = match (others.next(), beside) {
            (Some(other), _) => other.shared.clone(),
            (None, Some(beside)) => Shared::on(beside.shared.flush_failures.clone())?,
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
        // Those that are equal stand for each other.
        let mut left = false;
        entries.retain(|entry| {
            let go = !left && entry.file == self.file && entry.alone == self.manner.alone;
            left |= go;
            !go
        });
    }
}
