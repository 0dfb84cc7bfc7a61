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
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// What all disks of the module are told apart by, and from those of other hosts.
pub(crate) struct Identities {
    base: u64,
    epoch: Atomic<u32>,
}

/// FNV-1a's, for 64 bits.
const PRIME: u64 = 0x0100_0000_01b3;

impl Identities {
    /// Others than those of any other host, or of this one before.
    pub(crate) fn new() -> Self {
        Self {
            base: system::random_u64(),
            epoch: Atomic::new(0),
        }
    }

    /// The id of the sessions of the disk that is called `name`; never 0.
    pub(crate) fn of(&self, name: &str) -> SessionId {
        let mix = |id: u64, byte: u8| (id ^ u64::from(byte)).wrapping_mul(PRIME);
        SessionId(name.bytes().fold(self.base, mix).max(1))
    }

    /// An epoch behind all that there were; `EOVERFLOW` when there is none left.
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
