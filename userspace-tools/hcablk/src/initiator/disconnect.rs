// SPDX-License-Identifier: GPL-2.0

//! `hcablk disconnect`: removes unused devices, or any device by force.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use super::paths;
use crate::configfs::{remove, Group, BUSY_PAUSE, BUSY_TRIES, INITIATOR};
use crate::error::{Error, Kind, Result};
use crate::output::{Done, Outcome};
use crate::system::{Op, System};
use crate::user;

/// The pause between attempts to disconnect a disk in use, and the time between reports.
const PAUSE: Duration = Duration::from_millis(200);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The devices that `hcablk disconnect` removes.
#[derive(Clone, Debug)]
pub enum Which {
    /// A device by its name or its node.
    One(String),
    /// Every device.
    All,
}

/// Runs `hcablk disconnect`.
///
/// With `force`, also removes a device whose disk is in use or whose requests hang. While a disk is in use, retries for
/// `wait`.
pub fn disconnect(
    system: &dyn System,
    which: &Which,
    force: bool,
    if_exists: bool,
    wait: Duration,
) -> Result<Outcome> {
    let end = system.now() + wait;
    let tree = INITIATOR.tree(system);
    let groups = match (&tree, which) {
        (None, _) => Vec::new(),
        (Some(tree), Which::All) => tree.children()?,
        (Some(tree), Which::One(text)) => find(tree, text)?.into_iter().collect(),
    };
    let in_user_space = match which {
        Which::All => user::all(system),
        Which::One(text) if groups.is_empty() => user::find(system, text).into_iter().collect(),
        Which::One(_) => Vec::new(),
    };
    if let (true, true, Which::One(text)) = (groups.is_empty(), in_user_space.is_empty(), which) {
        if !if_exists {
            return Err(no_such_device(text));
        }
    }

    let mut devices = Vec::new();
    let mut failures: Vec<Error> = Vec::new();
    for group in groups {
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        match until_unused(system, end, || take_down(&group, force)) {
            Ok(()) => devices.push(group.name()),
            Err(error) => failures.push(error),
        }
    }
    for disk in in_user_space {
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        match until_unused(system, end, || user::end(system, &disk, force)) {
            Ok(()) => devices.push(disk.shown_name()),
            Err(error) => failures.push(error),
        }
    }
    if let Some(mut all) = Error::together(failures) {
        all.done = devices
            .iter()
            .map(|name| format!("disconnected {name}"))
            .collect();
        return Err(all);
    }

    let nothing = devices.is_empty();
    let mut outcome = Outcome::new(Done::Disconnect {
        changed: !nothing,
        devices,
    });
    if nothing {
        outcome.note("nothing to disconnect");
    }
    Ok(outcome)
}

/// Ends a disk, and retries until `end` while it is in use.
fn until_unused(
    system: &dyn System,
    end: Duration,
    take_down: impl Fn() -> Result<()>,
) -> Result<()> {
    let mut next_report = system.now();
    loop {
        match take_down() {
            Err(error) if error.kind == Kind::Busy && system.now() < end => {
                if system.interrupted() {
                    return Err(Error::interrupted());
                }
                let now = system.now();
                if now >= next_report {
                    next_report = now + REPORT_INTERVAL;
                    system.progress(&format!("{}; waiting", error.message));
                }
                system.pause(PAUSE);
            }
            result => return result,
        }
    }
}

/// A feature that disks in user space lack.
pub(super) const PATHS: &str = "paths other than the one to its address";

/// Returns the error of a command that finds no device of the kernel's driver. For a disk in user space it says that
/// such a disk has no `lacks`.
pub(super) fn not_in_kernel(system: &dyn System, text: &str, lacks: &str) -> Error {
    user::refuse(system, text, lacks).unwrap_or_else(|| no_such_device(text))
}

pub(super) fn no_such_device(text: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no device {text}"))
        .advise("`hcablk list` shows the devices of this machine.")
}

/// Finds a device by its name or its node.
pub(super) fn find<'a>(tree: &Group<'a>, text: &str) -> Result<Option<Group<'a>>> {
    let groups = tree.children()?;
    if let Some(group) = groups.iter().find(|group| group.name() == text) {
        return Ok(Some(group.clone()));
    }
    let device = text.strip_prefix("/dev/").unwrap_or(text);
    let has = |group: &Group<'_>| {
        group
            .get("device")
            .is_ok_and(|text| !text.is_empty() && text == device)
    };
    Ok(groups.into_iter().find(has))
}

fn take_down(group: &Group<'_>, force: bool) -> Result<()> {
    if force {
        let path = group.path().join("force_disconnect");
        match group.system().write(&path, "1\n") {
            Err(error) if !error.is_gone() => return Err(error.into()),
            _ => (),
        }
    }
    close(group)?;
    paths::remove_all(group)?;
    remove(group)
}

/// Writes 0 to `enable`; reports the users of the disk if the driver refuses.
pub(crate) fn close(group: &Group<'_>) -> Result<()> {
    let system = group.system();
    let device = group.get("device").unwrap_or_default();
    let mut tries = BUSY_TRIES;
    loop {
        let error = match system.write(&group.path().join("enable"), "0\n") {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if error.is_gone() {
            return Ok(());
        }
        if (error.op, error.errno) != (Op::Write, Errno::EBUSY) {
            return Err(error.into());
        }
        let users = users(system, &device);
        tries -= 1;
        if users.is_empty() && tries > 0 {
            if system.interrupted() {
                return Err(Error::interrupted());
            }
            system.pause(BUSY_PAUSE);
            continue;
        }
        let message = format!("{} (/dev/{device}) is in use", group.name());
        let advice = if users.is_empty() {
            format!(
                "No process or mount of this namespace has it open.\n\
                 Try: fuser -v /dev/{device}; lsblk /dev/{device}\n\
                 To end a hanging disk: hcablk disconnect --force {}",
                group.name()
            )
        } else {
            users.join("\n")
        };
        return Err(Error::new(Kind::Busy, message)
            .with_errno(error.errno)
            .advise(advice));
    }
}

/// Lists the users of a disk or one of its partitions, each with the way to end its use.
pub(crate) fn users(system: &dyn System, device: &str) -> Vec<String> {
    if device.is_empty() {
        return Vec::new();
    }
    let disk = Path::new("/sys/block").join(device);
    let mut parts = vec![(device.to_owned(), disk.clone())];
    for folder in system.folders(&disk).unwrap_or_default() {
        if folder
            .strip_prefix(device)
            .is_some_and(|rest| rest.starts_with('p'))
        {
            let path = disk.join(&folder);
            parts.push((folder, path));
        }
    }

    let mounts = system
        .read(Path::new("/proc/self/mountinfo"))
        .unwrap_or_default();
    let swaps = system.read(Path::new("/proc/swaps")).unwrap_or_default();
    let mut users = Vec::new();
    for (name, path) in &parts {
        let number = system.read(&path.join("dev")).unwrap_or_default();
        let node = format!("/dev/{name}");
        for place in mount_points(&mounts, number.trim(), &node) {
            users.push(format!("{node} is mounted at {place}: umount {place}"));
        }
        if swaps
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&node))
        {
            users.push(format!("{node} is used for swap: swapoff {node}"));
        }
        for holder in system.folders(&path.join("holders")).unwrap_or_default() {
            users.push(format!(
                "{node} is part of /dev/{holder}: stop that first \
                 (dmsetup remove, mdadm --stop, …)"
            ));
        }
    }
    if users.is_empty() {
        let nodes: Vec<_> = parts
            .iter()
            .map(|(name, _)| Path::new("/dev").join(name))
            .collect();
        for process in system.openers(&nodes) {
            // udev opens the disk on its own and closes it in a moment.
            if process.name.contains("udev") {
                continue;
            }
            users.push(format!(
                "process {} ({}) has it open",
                process.pid, process.name
            ));
        }
    }
    users
}

/// Lists the mount points of a block device, from the text of `/proc/self/mountinfo`: found by device number, or by
/// source for the file systems that show a number of their own.
fn mount_points(mountinfo: &str, number: &str, node: &str) -> Vec<String> {
    let mut places = Vec::new();
    for line in mountinfo.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        let source = fields
            .iter()
            .position(|&field| field == "-")
            .and_then(|dash| fields.get(dash + 2));
        let (Some(&device), Some(&place)) = (fields.get(2), fields.get(4)) else {
            continue;
        };
        if (!number.is_empty() && device == number) || source == Some(&node) {
            places.push(unescape(place));
        }
    }
    places
}

/// Undoes the kernel's escapes of blanks in mount tables (`\040`).
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     40 22 252:0 / /mnt/a\\040b rw,noatime shared:1 - ocfs2 /dev/hcablk0 rw\n\
                     41 22 0:55 / /mnt/c rw - btrfs /dev/hcablk0 rw\n";
        assert_eq!(
            mount_points(table, "252:0", "/dev/hcablk0"),
            ["/mnt/a b", "/mnt/c"]
        );
        assert_eq!(
            mount_points(table, "", "/dev/hcablk1"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape("a\\040b\\134c\\x"), "a b\\c\\x");
        assert_eq!(unescape("\\04"), "\\04");
    }
}
