// SPDX-License-Identifier: GPL-2.0

//! What drives and files are exported, so that one with a cache is exported
//! once: what another volume writes would not be known to the cache.
//!
//! A [`Claim`] is a part of the volume's backing and goes with it, when nobody
//! can write by it any more. The lock is taken inside a volume's or a session's.

use hcablk_core::blkdev::FileId;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// Exported, and whether by one volume alone.
type Entry = (FileId, bool);

/// The list.
#[pin_data]
pub(crate) struct Claims {
    #[pin]
    entries: Mutex<KVec<Entry>>,
}

/// A drive or file is exported, as long as this is there.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    entry: Entry,
}

impl Claims {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let claims = pin_init!(Self {
            entries <- new_mutex!(KVec::new()),
        });
        Arc::pin_init(claims, GFP_KERNEL)
    }

    /// Lists what a volume exports; `EBUSY` when another one has it and either
    /// wants to be `alone`.
    pub(crate) fn claim(this: &Arc<Self>, file: FileId, alone: bool) -> Result<Claim> {
        let entry = (file, alone);
        let mut entries = this.entries.lock();
        if entries.iter().any(|(f, a)| *f == file && (alone || *a)) {
            return Err(EBUSY);
        }
        entries.push(entry, GFP_KERNEL)?;
        drop(entries);
        Ok(Claim {
            claims: this.clone(),
            entry,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut entries = self.claims.entries.lock();
        // Those that are equal stand for each other.
        let mut left = false;
        entries.retain(|entry| {
            let go = !left && *entry == self.entry;
            left |= go;
            !go
        });
    }
}
