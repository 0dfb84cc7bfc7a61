// SPDX-License-Identifier: GPL-2.0

//! The identity of a disk's connections at a target: the id of its sessions, and their epochs.
//!
//! A target ends a session before it admits one of the same id and a later epoch, and waits until
//! the drive has finished the requests of the first. So a disk's name owns its id until another
//! name needs the number in it, and epochs only grow, across all disks: even a disk that was
//! disconnected, removed and configured again is ordered after the remaining requests of its former
//! sessions. When no number is left, a new name gets that of the disk that was removed first.
//!
//! Each path of a disk has its own id, which differs in the number of the path. Requests of one
//! path are issued again on another only after the target has fenced the first (`head/fencing.rs`).
//!
//! All ids share the *host instance*, a random number from the loading of the module: a target
//! admits a later instance of a host when nothing is left of the earlier one, which it then
//! refuses. So a host that was restarted is ordered after the requests that it has forgotten.
//!
//! To a target, disks of another name or another host are different disks.

use hcablk_core::sync::atomic::{
    Atomic,
    Relaxed, //
};
use hcablk_core::{
    proto::connect::{
        Epoch,
        HostInstance,
        SessionId,
        DISK_MAX, //
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

/// A disk that the module has, or had.
struct NumberedDisk {
    name: CString,
    /// Number of [`Identity`]s of the disk.
    users: u32,
    /// The removal count when its last [`Identity`] was dropped: a greater number each time.
    forgotten: u64,
}

/// The disks; the index is the disk's number.
struct Disks {
    list: KVec<NumberedDisk>,
    /// Number of removals so far.
    forgotten: u64,
}

impl Disks {
    /// Returns the index of the disk that is called `name`, and counts a use of it. Fails with
    /// `ENOMEM`, and with `EOVERFLOW` if [`DISK_MAX`] others are in use.
    fn take(&mut self, name: &str) -> Result<usize> {
        let known = self
            .list
            .iter()
            .position(|disk| disk.name.to_bytes() == name.as_bytes());
        if let Some(disk) = known.and_then(|place| self.list.get_mut(place)) {
            disk.users += 1;
            return known.ok_or(EINVAL);
        }
        let new = NumberedDisk {
            name: CString::try_from_fmt(fmt!("{name}"))?,
            users: 1,
            forgotten: 0,
        };
        if self.list.len() < usize::from(DISK_MAX) {
            self.list.push(new, GFP_KERNEL)?;
            return Ok(self.list.len() - 1);
        }
        let unused = self
            .list
            .iter()
            .enumerate()
            .filter(|(_, disk)| disk.users == 0);
        let (place, _) = unused
            .min_by_key(|(_, disk)| disk.forgotten)
            .ok_or(EOVERFLOW)?;
        let former = self.list.get_mut(place).ok_or(EINVAL)?;
        *former = new;
        Ok(place)
    }

    /// Drops a use of the disk at `place`.
    fn give_back(&mut self, place: usize) {
        self.forgotten += 1;
        if let Some(disk) = self.list.get_mut(place) {
            disk.users -= 1;
            disk.forgotten = self.forgotten;
        }
    }
}

/// The identities of a module's disks; see the module.
#[pin_data]
pub(crate) struct Identities {
    instance: HostInstance,
    #[pin]
    disks: Mutex<Disks>,
    epoch: Atomic<u32>,
}

/// The ids of a disk's sessions, which no other disk gets while this exists.
pub(crate) struct Identity {
    identities: Arc<Identities>,
    place: usize,
    /// The id on path 0.
    id: SessionId,
}

impl Identity {
    /// Returns the id of the sessions on a path.
    pub(crate) fn on_path(&self, path: u8) -> SessionId {
        self.id.on_path(path)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        self.identities.disks.lock().give_back(self.place);
    }
}

impl Identities {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                instance: HostInstance::from_random(system::random_u64()),
                disks <- new_mutex!(Disks {
                    list: KVec::new(),
                    forgotten: 0,
                }),
                epoch: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the identity of the disk that is called `name`. May sleep. Fails with `ENOMEM`, and
    /// with `EOVERFLOW` if [`DISK_MAX`] others have one.
    pub(crate) fn identify(self: &Arc<Self>, name: &str) -> Result<Identity> {
        let place = self.disks.lock().take(name)?;
        // Disk numbers start at 1, so that no id is 0.
        let disk = u16::try_from(place + 1).ok();
        let id = disk.and_then(|disk| SessionId::new(self.instance, disk));
        let Some(id) = id else {
            self.disks.lock().give_back(place);
            return Err(EOVERFLOW);
        };
        Ok(Identity {
            identities: self.clone(),
            place,
            id,
        })
    }

    /// Returns an epoch above all earlier ones. Fails with `EOVERFLOW` when there is none left.
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
