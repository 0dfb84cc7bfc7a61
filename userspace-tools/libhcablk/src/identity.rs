// SPDX-License-Identifier: GPL-2.0

//! The ids and epochs with which a target distinguishes the sessions of this host's programs.
//!
//! A target accepts sessions of only one *instance* of a host on a volume: a session of a new instance ends those of
//! the others. So the programs of a machine share one instance, in a directory that is empty after each start of the
//! machine, `/run/hcablk/sessions` by default:
//!
//! | file | content |
//! |---|---|
//! | `instance` | the instance, a random number |
//! | `1` to `4095` | a session's number, locked while a program has it; the last epoch of it |
//! | `N.reserved` | number N is reserved: only a program that takes over the work of a killed program gets it |
//!
//! The kernel drops the lock of a program that ends in any way. The next program with the number has a later epoch, so
//! the target ends the rest of the former session before the new one begins. A reservation outlives its program. The
//! program that completes the work releases it.

use crate::failure::Failure;
use hcablk_core::proto::connect::{Epoch, HostInstance, SessionId, DISK_MAX};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use std::{
    fs::{create_dir_all, exists, remove_file, File, OpenOptions},
    io::{self, Read as _, Seek as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The identity of a volume's sessions, which no other program has at the same time.
#[derive(Debug)]
pub(crate) struct Identity {
    id: SessionId,
    number: u16,
    /// The last epoch.
    epoch: u32,
    lock: Flock<File>,
}

fn failed(error: &io::Error) -> Failure {
    Failure::Identity(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Reads the number in a file; 0 if the file is empty.
fn stored(file: &mut File) -> io::Result<u64> {
    let mut text = String::new();
    file.rewind()?;
    file.take(64).read_to_string(&mut text)?;
    Ok(text.trim().parse().unwrap_or(0))
}

/// Replaces a number atomically: the file always holds a whole number.
fn store(file: &File, number: u64) -> io::Result<()> {
    file.write_all_at(format!("{number:020}\n").as_bytes(), 0)
}

impl Identity {
    /// Takes the identity of this number in `directory`, which is made if it is missing; `None`: the first free number.
    /// A reserved number is for a successor.
    pub(crate) fn take(
        directory: &Path,
        number: Option<u16>,
        is_successor: bool,
    ) -> Result<Self, Failure> {
        create_dir_all(directory).map_err(|error| failed(&error))?;
        let instance = instance(&directory.join("instance")).map_err(|error| failed(&error))?;
        let numbers = number.map_or(1..=DISK_MAX, |number| number..=number);
        for disk in numbers {
            let file = open(&directory.join(disk.to_string())).map_err(|error| failed(&error))?;
            let Ok(mut lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
                continue;
            };
            // Check only after locking: a program reserves its number while it holds the lock.
            let is_reserved =
                exists(reservation(directory, disk)).map_err(|error| failed(&error))?;
            if is_reserved && !(is_successor && number.is_some()) {
                continue;
            }
            let id = SessionId::new(instance, disk).ok_or(Failure::NoIdentity)?;
            let last = stored(&mut lock).map_err(|error| failed(&error))?;
            // Its epochs are used up, so the number cannot be used any more.
            let Some(epoch) = u32::try_from(last).ok().filter(|last| *last != u32::MAX) else {
                continue;
            };
            return Ok(Self {
                id,
                number: disk,
                epoch,
                lock,
            });
        }
        Err(match number {
            Some(number) => Failure::SessionInUse(number),
            None => Failure::NoIdentity,
        })
    }

    /// Returns the session number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Returns the id of the session.
    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the epoch of the next session, which is later than all before.
    pub(crate) fn next_epoch(&mut self) -> Result<Epoch, Failure> {
        let epoch = self.epoch.checked_add(1).ok_or(Failure::NoIdentity)?;
        // Stored before the epoch is used: the next program with this number must not use it again.
        store(&self.lock, epoch.into()).map_err(|error| failed(&error))?;
        self.epoch = epoch;
        Ok(Epoch(epoch))
    }
}

fn reservation(directory: &Path, number: u16) -> PathBuf {
    directory.join(format!("{number}.reserved"))
}

fn refuse_no_number(number: u16) -> Result<(), Failure> {
    match (1..=DISK_MAX).contains(&number) {
        true => Ok(()),
        false => Err(Failure::Identity(Errno::EINVAL)),
    }
}

/// Reserves a number of `directory` that this program has: when the program is gone, only a successor gets it.
pub(crate) fn reserve(directory: &Path, number: u16) -> Result<(), Failure> {
    refuse_no_number(number)?;
    let made = open(&reservation(directory, number));
    made.map(drop).map_err(|error| failed(&error))
}

/// Releases a reservation, if there is one.
pub(crate) fn release(directory: &Path, number: u16) -> Result<(), Failure> {
    refuse_no_number(number)?;
    match remove_file(reservation(directory, number)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&error)),
        _ => Ok(()),
    }
}

/// Returns this machine's instance; creates it if it does not exist.
fn instance(path: &Path) -> io::Result<HostInstance> {
    let mut lock = Flock::lock(open(path)?, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    let mut random = stored(&mut lock)?;
    if random == 0 {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        // Ensures that the bits that become the instance are not all 0.
        random = u64::from_ne_bytes(bytes) | (1 << 63);
        store(&lock, random)?;
    }
    Ok(HostInstance::from_random(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_and_later_ones_have_later_epochs() {
        let directory = std::env::temp_dir().join(format!("hcablk-ids-{}", std::process::id()));
        let mut one = Identity::take(&directory, None, false).unwrap();
        let two = Identity::take(&directory, None, false).unwrap();
        assert_ne!(one.id(), two.id());
        assert_eq!(one.id().instance(), two.id().instance());
        let (id, epoch) = (one.id(), one.next_epoch().unwrap());
        let later = one.next_epoch().unwrap();
        assert!(later > epoch);
        drop(one);
        let mut again = Identity::take(&directory, None, false).unwrap();
        assert_eq!(again.id(), id);
        assert!(again.next_epoch().unwrap() > later);
        let taken = Identity::take(&directory, Some(1), false).err();
        assert_eq!(taken, Some(Failure::SessionInUse(1)));
        let mut chosen = Identity::take(&directory, Some(7), false).unwrap();
        assert_eq!(chosen.next_epoch().unwrap(), Epoch(1));
        std::fs::write(directory.join("1"), "4294967295").unwrap();
        drop(again);
        let other = Identity::take(&directory, None, false).unwrap();
        assert_ne!(other.id(), id, "there is no later epoch");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_reserved_number_is_for_a_successor() {
        let directory = std::env::temp_dir().join(format!("hcablk-kept-{}", std::process::id()));
        let killed = Identity::take(&directory, None, false).unwrap();
        let number = killed.number();
        reserve(&directory, number).unwrap();
        reserve(&directory, number).unwrap();
        drop(killed);
        // The reserved number is given neither by chance nor on request.
        let other = Identity::take(&directory, None, false).unwrap();
        assert_ne!(other.number(), number);
        let asked = Identity::take(&directory, Some(number), false).err();
        assert_eq!(asked, Some(Failure::SessionInUse(number)));
        let successor = Identity::take(&directory, Some(number), true).unwrap();
        assert_eq!(successor.number(), number);
        drop(successor);
        release(&directory, number).unwrap();
        release(&directory, number).unwrap();
        assert_eq!(
            Identity::take(&directory, None, false).unwrap().number(),
            number
        );
        for none in [0, DISK_MAX + 1] {
            let refused = Err(Failure::Identity(Errno::EINVAL));
            assert_eq!(reserve(&directory, none), refused);
            assert_eq!(release(&directory, none), refused);
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_reported() {
        let result = Identity::take(Path::new("/dev/null/ids"), None, false);
        assert_eq!(result.err(), Some(Failure::Identity(Errno::ENOTDIR)));
    }
}
