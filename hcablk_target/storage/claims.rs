// SPDX-License-Identifier: GPL-2.0

//! What drives and files are exported, so that one with a cache is exported
//! once: what another volume writes would not be known to the cache; and which are exported through
//! the page cache, which writes back more than was written to it.
//!
//! A [`Claim`] is a part of the volume's backing and goes with it, when nobody
//! can write by it any more. The lock is taken inside a volume's or a session's.

use hcablk_core::blkdev::FileId;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};

/// By how many volumes the same is exported through the page cache.
type Cached = Arc<Atomic<u32>>;

/// Exported, and whether by one volume alone.
struct Entry {
    file: FileId,
    alone: bool,
    cached: Cached,
}

/// The list.
#[pin_data]
pub(crate) struct Claims {
    #[pin]
    entries: Mutex<KVec<Entry>>,
}

/// A drive or file is exported, as long as this is there.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    file: FileId,
    alone: bool,
    /// Whether it counts in `all_cached`.
    cached: bool,
    all_cached: Cached,
}

impl Claim {
    /// Returns whether a volume exports the same through the page cache, at this moment. Any context.
    #[inline]
    pub(crate) fn is_cached(&self) -> bool {
        self.all_cached.load(Relaxed) != 0
    }
}

impl Claims {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let claims = pin_init!(Self {
            entries <- new_mutex!(KVec::new()),
        });
        Arc::pin_init(claims, GFP_KERNEL)
    }

    /// Lists what a volume exports, and whether it does so through the page cache (`cached`); `EBUSY` when another
    /// one has it and either wants to be `alone`.
    pub(crate) fn claim(
        this: &Arc<Self>,
        file: FileId,
        alone: bool,
        cached: bool,
    ) -> Result<Claim> {
        let mut entries = this.entries.lock();
        let mut others = entries.iter().filter(|entry| entry.file == file);
        if others.clone().any(|other| alone || other.alone) {
            return Err(EBUSY);
        }
        let all_cached = match others.next() {
            Some(other) => other.cached.clone(),
            None => Arc::new(Atomic::new(0), GFP_KERNEL)?,
        };
        let entry = Entry {
            file,
            alone,
            cached: all_cached.clone(),
        };
        entries.push(entry, GFP_KERNEL)?;
        drop(entries);
        if cached {
            all_cached.fetch_add(1, Relaxed);
        }
        Ok(Claim {
            claims: this.clone(),
            file,
            alone,
            cached,
            all_cached,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.cached {
            self.all_cached.fetch_sub(1, Relaxed);
        }
        let mut entries = self.claims.entries.lock();
        // Those that are equal stand for each other.
        let mut left = false;
        entries.retain(|entry| {
            let go = !left && entry.file == self.file && entry.alone == self.alone;
            left |= go;
            !go
        });
    }
}
