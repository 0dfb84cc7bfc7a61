// SPDX-License-Identifier: GPL-2.0

//! Compares the time limit of OCFS2's heartbeat with the time for which a disk waits for its target.
//!
//! The heartbeat of the cluster stack `o2cb` restarts a node that has not written its heartbeat for
//! `(threshold - 1) * 2` seconds, unless the heartbeats of all nodes hang (`o2hb_write_timeout` and `o2hb_nego_timeout`
//! in the kernel's `fs/ocfs2/cluster/heartbeat.c`).

use std::path::Path;

use super::{kernel_name, line, partitions, Findings};
use crate::configfs::CONFIGFS;
use crate::initiator;
use crate::output::Device;
use crate::system::System;
use crate::user;

/// The configuration of `o2cb` on Debian: assignments of a shell.
const DEFAULTS: &str = "/etc/default/o2cb";
/// The kernel's threshold if nobody sets one.
const THRESHOLD: u64 = 31;
/// The number of levels of devices above a disk, such as LVM over LUKS, that are searched.
const LEVELS: usize = 8;

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    findings.begin("o2cb");
    let Some(heartbeat) = Heartbeat::read(system) else {
        return;
    };
    // If the disks cannot be read, the check `disk` reports this.
    let mut disks = initiator::devices(system)
        .ok()
        .flatten()
        .unwrap_or_default();
    disks.extend(user::devices(system));
    disks.retain(|disk| carries_ocfs2(system, disk));
    for disk in &disks {
        compare(disk, &heartbeat, findings);
    }
    if let (false, Some(now), Some(next)) = (disks.is_empty(), heartbeat.kernel, heartbeat.file) {
        if now != next {
            findings.warn(
                DEFAULTS,
                format!("the file says O2CB_HEARTBEAT_THRESHOLD={next}, and the kernel uses {now}"),
                "Unmount all OCFS2 file systems of this node, then: systemctl restart o2cb",
            );
        }
    }
}

/// The heartbeat's threshold, in the kernel and in the configuration.
struct Heartbeat {
    kernel: Option<u64>,
    file: Option<u64>,
}

impl Heartbeat {
    /// Reads the threshold; `None` if this machine does not use `o2cb`.
    fn read(system: &dyn System) -> Option<Self> {
        let file = system.read(Path::new(DEFAULTS)).ok();
        let stack = line(system, "/sys/fs/ocfs2/cluster_stack")
            .or_else(|| assigned(file.as_deref()?, "O2CB_STACK"))
            .filter(|stack| !stack.is_empty());
        if stack.is_some_and(|stack| stack != "o2cb") {
            return None;
        }
        let kernel = threshold_of_kernel(system);
        if file.is_none() && kernel.is_none() {
            return None;
        }
        let file = file.and_then(|text| assigned(&text, "O2CB_HEARTBEAT_THRESHOLD")?.parse().ok());
        Some(Self { kernel, file })
    }

    /// Returns the seconds for which a node may leave its heartbeat unwritten.
    fn seconds(&self) -> u64 {
        let threshold = self.kernel.or(self.file).unwrap_or(THRESHOLD);
        threshold.saturating_sub(1).saturating_mul(2)
    }
}

/// Returns the threshold that the kernel uses; `None` if no cluster is registered. The kernel has at most one.
fn threshold_of_kernel(system: &dyn System) -> Option<u64> {
    let clusters = Path::new(CONFIGFS).join("cluster");
    let name = system.folders(&clusters).ok()?.into_iter().next()?;
    let attribute = clusters.join(name).join("heartbeat/dead_threshold");
    system.read(&attribute).ok()?.trim().parse().ok()
}

/// Returns the last value that a shell's file assigns to a variable.
fn assigned(text: &str, variable: &str) -> Option<String> {
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.trim_start().split_once('=')?;
        (name == variable).then_some(value)
    });
    let value = values.last()?.split(" #").next()?.trim();
    Some(value.trim_matches(['"', '\'']).to_owned())
}

/// The seconds by which the heartbeat must outlast a disk's wait: the heartbeat's time counts from its last write,
/// before the loss of the target is noticed, and the disk reconnects in attempts.
const MARGIN: u64 = 40;

/// The time for which requests of a disk wait for a lost target.
#[derive(Clone, Copy)]
enum Wait {
    Seconds(u64),
    Forever,
}

impl Wait {
    /// Returns how long a disk waits. A disk without a wwid is removed when its connection is lost.
    fn of(disk: &Device) -> Self {
        if disk.wwid.is_none() {
            return Self::Seconds(0);
        }
        let limits = [disk.ctrl_loss_tmo, disk.fast_io_fail_tmo];
        let limits = limits.iter().filter_map(|limit| u64::try_from(*limit).ok());
        limits.min().map_or(Self::Forever, Self::Seconds)
    }

    /// Returns whether the disk, with [`MARGIN`], waits longer than a heartbeat may stay unwritten, `limit` seconds.
    fn exceeds(self, limit: u64) -> bool {
        match self {
            Self::Seconds(seconds) => seconds.saturating_add(MARGIN) > limit,
            Self::Forever => true,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Seconds(seconds) => format!("{seconds} s"),
            Self::Forever => "without a limit".to_owned(),
        }
    }

    /// Returns the threshold with which the heartbeat outlasts the wait.
    fn threshold(self) -> String {
        match self {
            Self::Seconds(seconds) => (seconds.saturating_add(MARGIN).div_ceil(2) + 1).to_string(),
            Self::Forever => {
                format!("N, where N is (the longest outage in seconds + {MARGIN}) / 2 + 1")
            }
        }
    }
}

fn compare(disk: &Device, heartbeat: &Heartbeat, findings: &mut Findings) {
    let (wait, limit) = (Wait::of(disk), heartbeat.seconds());
    let name = &disk.name;
    if !wait.exceeds(limit) {
        findings.ok(
            name,
            format!(
                "its OCFS2 waits {limit} s for the disk, and the disk {} for its target",
                wait.text()
            ),
        );
        return;
    }
    findings.warn(
        name,
        format!(
            "the disk waits {} for its target, but o2cb restarts this node {limit} s after its last heartbeat write, \
             unless the disks of all nodes hang",
            wait.text()
        ),
        format!(
            "Unmount OCFS2 on all nodes, write O2CB_HEARTBEAT_THRESHOLD={} into {DEFAULTS} of each, and \
             systemctl restart o2cb.\n\
             The nodes then also wait longer for the locks of a node that has died.",
            wait.threshold()
        ),
    );
}

/// Returns whether a disk, one of its partitions, or a device above it has an OCFS2 that uses the heartbeat.
///
/// This does not read the disk, which may hang: it reads the list of mounts, and the database of udev.
fn carries_ocfs2(system: &dyn System, disk: &Device) -> bool {
    let Some(name) = kernel_name(disk) else {
        return false;
    };
    let names = above(system, name);
    match mounted(system, &names) {
        Some(uses_heartbeat) => uses_heartbeat,
        None => names.iter().any(|name| udev_found(system, name)),
    }
}

/// Returns the names of a block device, its partitions, and the devices that use these.
fn above(system: &dyn System, name: &str) -> Vec<String> {
    let mut found = vec![name.to_owned()];
    let mut newest = found.clone();
    for _ in 0..LEVELS {
        let mut next = Vec::new();
        for name in &newest {
            let folder = Path::new("/sys/class/block").join(name);
            next.extend(partitions(system, name));
            next.extend(system.folders(&folder.join("holders")).unwrap_or_default());
        }
        next.retain(|name| !found.contains(name));
        if next.is_empty() {
            break;
        }
        found.extend(next.iter().cloned());
        newest = next;
    }
    found
}

/// Returns whether a mounted OCFS2 of these devices uses the heartbeat; `None` if none is mounted.
fn mounted(system: &dyn System, names: &[String]) -> Option<bool> {
    let mounts = system.read(Path::new("/proc/mounts")).ok()?;
    let mut uses = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let source = Path::new(fields.next()?);
        let (kind, options) = (fields.nth(1)?, fields.next()?);
        let real = system.real_path(source);
        let name = real.as_deref().unwrap_or(source).file_name()?.to_str()?;
        let is_ours = kind == "ocfs2" && names.iter().any(|one| one == name);
        // A file system that only one node uses is mounted without a heartbeat.
        is_ours.then(|| !options.split(',').any(|option| option == "heartbeat=none"))
    });
    uses.next()
}

/// Returns whether udev has found an OCFS2 on a block device.
fn udev_found(system: &dyn System, name: &str) -> bool {
    let number = line(system, &format!("/sys/class/block/{name}/dev"));
    let record = number.and_then(|number| line(system, &format!("/run/udev/data/b{number}")));
    record.is_some_and(|text| text.lines().any(|line| line == "E:ID_FS_TYPE=ocfs2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_last_one_that_is_assigned() {
        let text = "# A=1\nA=2\n A=\"3\" # three\nAB=4\nB=\n";
        assert_eq!(assigned(text, "A").as_deref(), Some("3"));
        assert_eq!(assigned(text, "B").as_deref(), Some(""));
        assert_eq!(assigned(text, "C"), None);
    }

    #[test]
    fn the_threshold_covers_the_wait() {
        for (seconds, threshold) in [(60, "51"), (61, "52"), (600, "321")] {
            assert_eq!(Wait::Seconds(seconds).threshold(), threshold);
        }
        assert!(Wait::Forever.exceeds(u64::MAX));
        assert!(Wait::Seconds(60).exceeds(60));
        assert!(!Wait::Seconds(60).exceeds(100));
    }
}
