// SPDX-License-Identifier: GPL-2.0

//! The paths of a disk, and the addresses that can be reached.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::initiator::INITIATOR;
use super::{Kernel, Unreached};

const PATH: &[(&str, &str)] = &[
    ("address", ""),
    ("port", "7744"),
    ("enable", "0"),
    ("state", "new"),
    ("error", ""),
];

/// Returns whether `group` is a path of a disk.
pub(super) fn is_path(group: &Path) -> bool {
    group.starts_with(INITIATOR)
        && group
            .parent()
            .is_some_and(|parent| parent.ends_with("paths"))
}

/// Returns whether the driver accepts the name of `group` for a path.
pub(super) fn may_be_made(group: &Path) -> bool {
    let name = group.file_name().unwrap().to_string_lossy();
    !is_path(group)
        || name
            .parse()
            .is_ok_and(|number| (1..=15u8).contains(&number))
}

impl Kernel {
    pub fn path(&self, device: &str, number: u8, attribute: &str) -> String {
        self.text(format!("{INITIATOR}/{device}/paths/{number}/{attribute}"))
    }

    pub fn set_path(&self, device: &str, number: u8, attribute: &str, value: &str) {
        self.file(
            format!("{INITIATOR}/{device}/paths/{number}/{attribute}"),
            value,
        );
    }

    pub fn has_path(&self, device: &str, number: u8) -> bool {
        self.has(&format!("{INITIATOR}/{device}/paths/{number}"))
    }

    /// Makes an address silent: a path to it waits.
    pub fn silence(&self, address: &str, text: &str) {
        self.not_reached(address, "waiting", Errno::ETIMEDOUT, text);
    }

    /// Makes the target at an address refuse paths for good.
    pub fn turn_down(&self, address: &str, text: &str) {
        self.not_reached(address, "refused", Errno::EACCES, text);
    }

    fn not_reached(&self, address: &str, state: &'static str, errno: Errno, text: &str) {
        let text = text.to_owned();
        self.unreached
            .borrow_mut()
            .insert(address.to_owned(), Unreached { state, errno, text });
    }

    /// Makes an address reachable again, and the paths to it live.
    pub fn reach(&self, address: &str) {
        self.unreached.borrow_mut().remove(address);
        for device in self.folders_of(Path::new(INITIATOR)) {
            if !self.text(device.join("device")).is_empty() {
                self.connect_paths(&device);
            }
        }
    }

    fn folders_of(&self, folder: &Path) -> Vec<PathBuf> {
        hcablk::system::System::folders(self, folder)
            .unwrap_or_default()
            .iter()
            .map(|name| folder.join(name))
            .collect()
    }

    /// Returns the enabled paths of a device: itself, and directories.
    fn wanted(&self, device: &Path) -> Vec<PathBuf> {
        let mut paths = vec![device.to_owned()];
        let further = self.folders_of(&device.join("paths"));
        paths.extend(further.into_iter().filter(|path| self.enabled(path)));
        paths
    }

    fn unreached(&self, path: &Path) -> Option<Unreached> {
        let address = self.text(path.join("address"));
        self.unreached.borrow().get(&address).cloned()
    }

    /// Makes the attributes of the group at `path`, if it is a path.
    pub(super) fn fill_path(&self, path: &Path) {
        if is_path(path) {
            self.fill(path, PATH);
        }
    }

    /// Fails with the error of the first path if no path of a device reaches the target.
    pub(super) fn connect_first(&self, device: &Path) -> Result<(), Errno> {
        let mut first = Ok(());
        for path in self.wanted(device) {
            let Some(unreached) = self.unreached(&path) else {
                return Ok(());
            };
            self.set(&path, "error", &unreached.text);
            first = first.and(Err(unreached.errno));
        }
        first
    }

    /// Connects the paths of a disk.
    pub(super) fn connect_paths(&self, device: &Path) {
        let paths = self.wanted(device);
        let mut live = 0;
        for path in &paths {
            let unreached = self.unreached(path);
            live += usize::from(unreached.is_none());
            if path != device {
                let (state, text) = unreached.map_or(("live", String::new()), |unreached| {
                    (unreached.state, unreached.text)
                });
                self.set(path, "state", state);
                self.set(path, "error", &text);
            }
        }
        let state = match live {
            0 => "queueing",
            _ if live < paths.len() => "degraded",
            _ => "live",
        };
        self.set(device, "state", state);
    }

    /// Ends the paths of a disk.
    pub(super) fn end_paths(&self, device: &Path) {
        for path in self.folders_of(&device.join("paths")) {
            self.set(&path, "state", "new");
        }
    }

    pub(super) fn enable_path(&self, path: &Path, on: bool) -> Result<(), Errno> {
        let device = path.parent().and_then(Path::parent).unwrap();
        let is_refused = self.text(path.join("state")) == "refused";
        if on == self.enabled(path) && !(on && is_refused) {
            return Ok(());
        }
        if on {
            self.refusal(path)?;
        }
        if on && self.text(path.join("address")).is_empty() {
            return Err(Errno::EINVAL);
        }
        let has_disk = !self.text(device.join("device")).is_empty();
        let is_other_live = |other: &PathBuf| other != path && self.unreached(other).is_none();
        if !on && has_disk && !self.wanted(device).iter().any(is_other_live) {
            return Err(Errno::EBUSY);
        }
        self.set(path, "enable", if on { "1" } else { "0" });
        self.set(path, "state", "new");
        self.set(path, "error", "");
        if has_disk {
            self.connect_paths(device);
        }
        Ok(())
    }
}
