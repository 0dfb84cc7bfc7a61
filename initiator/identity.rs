// SPDX-License-Identifier: GPL-2.0

//! By what a target tells a disk's connections: the id of its sessions, and their epochs.
//!
//! A target ends a session before it admits one of the same id and a later epoch, and waits
//! until the drive has finished what it had begun for it. So the id belongs to the disk's
//! name for as long as the module is loaded, and epochs only grow: also a disk that was
//! disconnected, forgotten and configured again comes behind what is left of its past.
//!
//! Another name, another host and a module that was loaded again are other disks to a target.

use hcablk_core::{
    proto::connect::{
        Epoch,
        SessionId, //
    },
    system, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};

/// The ids of all disks that the module ever had, each a random number: who knows one of them, as targets
/// and logs do, knows none of the others.
#[pin_data]
pub(crate) struct Identities {
    #[pin]
    ids: Mutex<KVec<(CString, SessionId)>>,
    epoch: Atomic<u32>,
}

impl Identities {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ids <- new_mutex!(KVec::new()),
                epoch: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the id of the sessions of the disk that is called `name`; never 0. Fails with
    /// `ENOMEM`.
    pub(crate) fn of(&self, name: &str) -> Result<SessionId> {
        let mut ids = self.ids.lock();
        if let Some((_, id)) = ids
            .iter()
            .find(|(known, _)| known.to_bytes() == name.as_bytes())
        {
            return Ok(*id);
        }
        let id = SessionId(system::random_u64().max(1));
        ids.push((CString::try_from_fmt(fmt!("{name}"))?, id), GFP_KERNEL)?;
        Ok(id)
    }

    /// Returns an epoch above all that there were. Fails with `EOVERFLOW` when there is none left.
    pub(crate) fn next_epoch(&self) -> Result<Epoch> {
        let mut now = self.epoch.load(Relaxed);
        loop {
            let next = now.checked_add(1).ok_or(EOVERFLOW)?;
            match self.epoch.cmpxchg(now, next, Relaxed) {
                Ok(_) => return Ok(Epoch(next)),
                Err(other) => now = other,
            }
        }
    }
}
