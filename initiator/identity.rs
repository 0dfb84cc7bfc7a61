// SPDX-License-Identifier: GPL-2.0

//! By what a target tells a disk's connections: the id of its sessions, and their epochs.
//!
//! A target ends a session before it admits one of the same id and a later epoch, and waits
//! until the drive has finished what it had begun for it. So the id belongs to the disk's
//! name for as long as the module is loaded, and epochs only grow: also a disk that was
//! disconnected, forgotten and configured again comes behind what is left of its past.
//!
//! Each path of a disk has its own id, which differs in the number of the path. What was issued on one path is
//! issued again on another one only when the target has fenced the first (`head/fencing.rs`).
//!
//! All ids have the *host instance* in common, a number that is made when the module is loaded: a target
//! lets a later instance of a host in when nothing is left of the earlier one, and that one not again.
//! So a host that was started again comes behind what it has forgotten.
//!
//! Another name and another host are other disks to a target.

#[cfg(doc)]
use hcablk_core::proto::connect::DISK_MAX;
use hcablk_core::sync::atomic::{
    Atomic,
    Relaxed, //
};
use hcablk_core::{
    proto::connect::{
        Epoch,
        HostInstance,
        SessionId, //
    },
    system, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The names of all disks that the module ever had, each at the place that is its number.
#[pin_data]
pub(crate) struct Identities {
    instance: HostInstance,
    #[pin]
    names: Mutex<KVec<CString>>,
    epoch: Atomic<u32>,
}

impl Identities {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                instance: HostInstance::of(system::random_u64()),
                names <- new_mutex!(KVec::new()),
                epoch: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the id of the sessions of the disk that is called `name` on its path 0; never 0. Fails with
    /// `ENOMEM`, and with `EOVERFLOW` when there were [`DISK_MAX`] names.
    pub(crate) fn of(&self, name: &str) -> Result<SessionId> {
        let mut names = self.names.lock();
        let known = names
            .iter()
            .position(|known| known.to_bytes() == name.as_bytes());
        let place = known.unwrap_or(names.len());
        // Disks are counted from 1, so that no id is 0.
        let disk = u16::try_from(place + 1).map_err(|_| EOVERFLOW)?;
        let id = SessionId::new(self.instance, disk).ok_or(EOVERFLOW)?;
        if known.is_none() {
            names.push(CString::try_from_fmt(fmt!("{name}"))?, GFP_KERNEL)?;
        }
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
