// SPDX-License-Identifier: GPL-2.0

//! The settings of a disk, in `/run/hcablk/ublk/N.json`, for a program that takes it over.

use crate::Error;
use hcablk::{
    system::{Machine, System as _},
    user::files::{self, Wanted, FOLDER},
};
use hcablk_volume_args::numbers;
use libhcablk::{Options, Past};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

/// The processors that the machine can have.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// The upper half of every mark: "hcab".
const MAGIC: u64 = 0x6863_6162 << 32;

/// The settings of a disk; see the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// The disk's name in `hcablk list`; `None` if its program was started by hand.
    pub(crate) name: Option<String>,
    /// The driver's data for the disk, which distinguishes it from a different disk of the same number.
    pub(crate) mark: u64,
    #[serde(flatten)]
    pub(crate) wanted: Wanted,
    /// The number of the session; 0: none has begun.
    pub(crate) session: u16,
    /// The text of [`libhcablk::Past`].
    pub(crate) past: Option<String>,
}

impl Saved {
    /// Makes the settings of a new disk, with a unique mark.
    pub(crate) fn begin(name: Option<&str>, wanted: Wanted) -> Result<Self, Error> {
        let mut random = [0; 4];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        Ok(Self {
            name: name.map(str::to_owned),
            mark: MAGIC | u64::from(u32::from_ne_bytes(random)),
            wanted,
            session: 0,
            past: None,
        })
    }

    /// Returns the options that open the volume.
    pub(crate) fn options(&self) -> Result<Options, Error> {
        let mut options = hcablk_volume_args::options(&self.wanted)?;
        if let Some(Ok(asked)) = self.wanted.option("queues").map(str::parse) {
            options = options.queues(fewer_queues(asked)?);
        }
        if self.session != 0 {
            options = options.session(self.session);
        }
        if let Some(past) = &self.past {
            options = options.past(past.parse()?);
        }
        Ok(options)
    }

    /// Returns the id of the volume, if the target reports it.
    pub(crate) fn id(&self) -> Option<String> {
        let past = self.past.as_ref()?.parse::<Past>().ok()?;
        Some(past.id())
    }

    fn path(disk: u32) -> PathBuf {
        Path::new(FOLDER).join(format!("{disk}.json"))
    }

    /// Reads the settings of a disk.
    pub(crate) fn read(disk: u32) -> Result<Self, Error> {
        let path = Self::path(disk);
        let text = fs::read_to_string(&path).map_err(|error| {
            format!(
                "ublkb{disk} is not a disk of this program: {}: {error}",
                path.display()
            )
        })?;
        let broken = |error| format!("{} cannot be understood: {error}", path.display());
        Ok(serde_json::from_str(&text).map_err(broken)?)
    }

    /// Stores the settings of a disk atomically.
    pub(crate) fn write(&self, disk: u32) -> Result<(), Error> {
        let text = files::text(self)?;
        Ok(Machine::new("/").replace_secret(&Self::path(disk), &text)?)
    }

    /// Removes the settings of a disk and its state, and releases its session's number.
    pub(crate) fn forget(&self, disk: u32) {
        // The files may be gone already. The state is removed first: it says that the disk exists.
        let _ = fs::remove_file(files::state(disk));
        let _ = fs::remove_file(Self::path(disk));
        // At worst, no program gets this number.
        let _ = numbers(&self.wanted).map(|options| options.release_session(self.session));
    }

    /// Reserves the session's number for a program that takes over the disk.
    pub(crate) fn reserve(&self) -> Result<(), Error> {
        let reserved = numbers(&self.wanted)?.reserve_session(self.session);
        Ok(reserved.map_err(|error| format!("reserving session {}: {error}", self.session))?)
    }

    /// Returns the numbers of the disks with stored settings, in order.
    pub(crate) fn disks() -> Vec<u32> {
        files::numbers(&Machine::new("/"), ".json")
    }
}

/// A lock of the program that serves a disk, makes it, or removes its leftovers.
pub(crate) struct Lock(#[expect(dead_code, reason = "it is held")] hcablk_volume_args::Lock);

impl Lock {
    /// Takes the lock of a disk; fails if another program has it.
    pub(crate) fn take(disk: u32) -> Result<Self, Error> {
        match hcablk_volume_args::Lock::take(&Path::new(FOLDER).join(format!("{disk}.lock")))? {
            Some(lock) => Ok(Self(lock)),
            None => Err(format!("another program serves ublkb{disk}, or takes it over").into()),
        }
    }
}

/// Returns the number of queues of a disk for which `asked` queues were requested. A disk has at most one queue for
/// each possible processor of the machine, because the driver makes no more. A flush reaches the queues of the volume
/// through the queues of the disk, so a queue of the volume without a queue of the disk would not be flushed.
fn fewer_queues(asked: u8) -> Result<u8, Error> {
    let possible = fs::read_to_string(POSSIBLE)?;
    let most = processors(&possible).ok_or_else(|| format!("{POSSIBLE} says {possible:?}"))?;
    if u32::from(asked) <= most {
        return Ok(asked);
    }
    eprintln!("hcablk-ublk: {asked} queues are asked for; the disk has {most}, one for each processor that the machine can have");
    Ok(u8::try_from(most)?)
}

/// Returns the last number in a list of processors, such as `0-3` or `0,2-7`, plus one.
fn processors(list: &str) -> Option<u32> {
    let highest = list.trim().rsplit([',', '-']).next()?;
    highest.parse::<u32>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted_data() -> Wanted {
        Wanted {
            address: [10, 0, 0, 1].into(),
            volume: "data".to_owned(),
            host: "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45".to_owned(),
            keys: false,
            wwid: None,
            options: vec![("queues".to_owned(), "2".to_owned())],
        }
    }

    #[test]
    fn a_disk_has_no_more_queues_than_the_machine_can_have_processors() {
        for (list, most) in [("0\n", 1), ("0-3\n", 4), ("0,2-7\n", 8), ("0-1,5\n", 6)] {
            assert_eq!(processors(list), Some(most), "{list:?}");
        }
        assert_eq!(processors(""), None);
        assert_eq!(fewer_queues(1).unwrap(), 1);
        let most = processors(&fs::read_to_string(POSSIBLE).unwrap()).unwrap();
        assert_eq!(u32::from(fewer_queues(127).unwrap()), most.min(127));
    }

    #[test]
    fn a_session_is_reserved_until_the_disk_is_forgotten() {
        let directory = std::env::temp_dir().join(format!("hcablk-saved-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut wanted = wanted_data();
        let state = directory.to_str().unwrap().to_owned();
        wanted.options.push(("state".to_owned(), state));
        let mut saved = Saved::begin(None, wanted).unwrap();
        saved.session = 5;
        saved.reserve().unwrap();
        assert!(directory.join("5.reserved").exists());
        // The number of a disk that does not exist.
        saved.forget(u32::MAX);
        assert!(!directory.join("5.reserved").exists());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn saved_disks_are_read_again_and_each_has_its_own_mark() {
        let wanted = wanted_data();
        let mut saved = Saved::begin(Some("db"), wanted.clone()).unwrap();
        assert_eq!(saved.id(), None);
        saved.past =
            Some("6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 0000000000000001 durable kept".to_owned());
        let text = files::text(&saved).unwrap();
        assert_eq!(serde_json::from_str::<Saved>(&text).unwrap(), saved);
        assert_eq!(
            saved.id().as_deref(),
            Some("6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47")
        );
        let other = Saved::begin(Some("db"), wanted).unwrap();
        assert_eq!(other.mark >> 32, MAGIC >> 32);
        assert_ne!(other.mark, saved.mark);
    }
}
