// SPDX-License-Identifier: GPL-2.0

//! The records of evicted hosts on this machine. The kernel forgets the hosts when the volume's directory is removed;
//! these records outlast the directory, the module and a restart of the machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use super::state;
use crate::configfs::Group;
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::system::{Lock, System};

/// The folder with a folder for each volume, which has an empty file for each evicted host.
const FOLDER: &str = "/var/lib/hcablk/evicted";

/// The folder that exists on each machine.
const TOP: &str = "/var/lib";

/// The pause between two attempts to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The records of one volume.
pub(super) struct Records<'a> {
    system: &'a dyn System,
    folder: PathBuf,
    /// The volume's state directory, if the records are in one.
    state: Option<PathBuf>,
}

impl<'a> Records<'a> {
    /// Returns access to this machine's own records of `volume`, which need not exist.
    pub(super) fn new(system: &'a dyn System, volume: &str) -> Self {
        Self {
            system,
            folder: Path::new(FOLDER).join(volume),
            state: None,
        }
    }

    /// Returns access to the records of a configured volume: in its state directory, if it has one.
    pub(super) fn of(volume: &Group<'a>) -> Result<Self> {
        let own = Self::new(volume.system(), &volume.name());
        Ok(match state::directory(volume)? {
            None => own,
            Some(directory) => Self {
                folder: directory.join("evicted"),
                state: Some(directory),
                ..own
            },
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fails if the records are in a state directory that is not there: an empty mount point has no records.
    fn check(&self) -> Result<()> {
        if let Some(directory) = &self.state {
            state::owner(self.system, directory)?;
        }
        Ok(())
    }

    /// Lists the names of the volumes that have had records.
    pub(super) fn volumes(system: &dyn System) -> Result<Vec<String>> {
        match system.folders(Path::new(FOLDER)) {
            Err(error) if error.is_gone() => Ok(Vec::new()),
            names => Ok(names?),
        }
    }

    fn file(&self, host: Uuid) -> PathBuf {
        self.folder.join(host.to_string())
    }

    /// Returns whether `host` is recorded as evicted.
    pub(super) fn has(&self, host: Uuid) -> bool {
        self.system.exists(&self.file(host))
    }

    /// Lists the hosts that are recorded as evicted; fails if there is a file that names no host, since a host that
    /// should be fenced might otherwise be admitted.
    pub(super) fn all(&self) -> Result<Vec<Uuid>> {
        self.check()?;
        let names = match self.system.entries(&self.folder) {
            Err(error) if error.is_gone() => return Ok(Vec::new()),
            names => names?,
        };
        names.iter().map(|name| self.parse(name)).collect()
    }

    fn parse(&self, name: &str) -> Result<Uuid> {
        hostid::parse(name)
            .ok()
            .filter(|host| host.to_string() == name)
            .ok_or_else(|| {
                Error::new(
                    Kind::Failed,
                    format!(
                        "{} does not name a host that is evicted",
                        self.folder.join(name).display()
                    ),
                )
                .advise(
                    "Each file there has the id of an evicted host for its name, in small letters.\n\
                     Find out what this one was meant for; rename or remove it, and try again.",
                )
            })
    }

    /// Makes the folder, so that it can be locked and hosts can be added.
    pub(super) fn begin(&self) -> Result<()> {
        self.check()?;
        let top = self.state.as_deref().unwrap_or(Path::new(TOP));
        Ok(self.system.make_durable_folder(&self.folder, top)?)
    }

    /// Records that `host` is evicted. Once this has returned a power failure does not lose the record, even if it
    /// existed before.
    pub(super) fn add(&self, host: Uuid) -> Result<()> {
        Ok(self.system.make_durable_file(&self.file(host))?)
    }

    /// Removes the record of `host`, if there is one.
    pub(super) fn remove(&self, host: Uuid) -> Result<()> {
        Ok(self.system.remove_durable_file(&self.file(host))?)
    }

    /// Waits until no other command changes these records or passes them to the kernel: otherwise a command that evicts
    /// a host and one that admits it could leave it recorded and admitted, or the reverse.
    pub(super) fn lock(&self) -> Result<Lock> {
        loop {
            if let Some(lock) = self.system.try_lock(&self.folder)? {
                return Ok(lock);
            }
            if self.system.interrupted() {
                return Err(Error::interrupted());
            }
            self.system.pause(LOCK_PAUSE);
        }
    }

    /// Locks as [`Records::lock`] does, unless nothing was ever recorded.
    pub(super) fn lock_if_begun(&self) -> Result<Option<Lock>> {
        self.check()?;
        if self.system.exists(&self.folder) {
            self.lock().map(Some)
        } else {
            Ok(None)
        }
    }
}
