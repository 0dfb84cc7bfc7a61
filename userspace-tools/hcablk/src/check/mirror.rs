// SPDX-License-Identifier: GPL-2.0

//! Disks that are legs of an md array: whether the array survives the loss of a target, and a leg's return.
//!
//! md forgets which blocks it has written (clears their bits in the write-intent bitmap) when all legs have acknowledged
//! the writes. A leg that then loses its volatile cache has old data which md does not copy.

use std::path::Path;

use super::{kernel_name, line, partitions, Findings};
use crate::configfs::CONFIGFS;
use crate::initiator;
use crate::output::Device;
use crate::system::System;

/// The levels of md with which a leg can be lost and come back.
const REDUNDANT: [&str; 5] = ["raid1", "raid10", "raid4", "raid5", "raid6"];

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    findings.begin("mirror");
    // If the disks cannot be read, the check `disk` reports this.
    let disks = initiator::devices(system).ok().flatten();
    for disk in disks.unwrap_or_default() {
        for leg in legs(system, &disk) {
            examine(system, &disk, &leg, findings);
        }
    }
}

/// A disk, or a partition of it, in an md array.
struct Leg {
    /// The array's name in the kernel, such as `md0`.
    array: String,
    /// The name of the disk or partition in the kernel.
    name: String,
    /// Words such as `in_sync`, `faulty` and `failfast`.
    state: String,
}

impl Leg {
    fn is(&self, word: &str) -> bool {
        self.state.split(',').any(|one| one == word)
    }
}

/// Returns the legs of redundant arrays that are on a disk.
fn legs(system: &dyn System, disk: &Device) -> Vec<Leg> {
    let Some(disk) = kernel_name(disk) else {
        return Vec::new();
    };
    let mut names = partitions(system, disk);
    names.push(disk.to_owned());
    let mut found = Vec::new();
    for name in names {
        let holders = Path::new("/sys/class/block").join(&name).join("holders");
        for array in system.folders(&holders).unwrap_or_default() {
            let level = line(system, &format!("/sys/class/block/{array}/md/level"));
            if level.is_some_and(|level| REDUNDANT.contains(&level.as_str())) {
                let state = format!("/sys/class/block/{array}/md/dev-{name}/state");
                let state = line(system, &state).unwrap_or_default();
                let name = name.clone();
                found.push(Leg { array, name, state });
            }
        }
    }
    found
}

fn examine(system: &dyn System, disk: &Device, leg: &Leg, findings: &mut Findings) {
    let before = findings.all.len();
    let volatile = has_volatile_cache(system, disk);
    lost(leg, disk, volatile, findings);
    copied_to(system, leg, disk, findings);
    if volatile {
        warn_of_cache(leg, disk, findings);
    }
    times(leg, disk, findings);
    if findings.all.len() == before {
        findings.ok(&disk.name, format!("a leg of {}", leg.array));
    }
}

fn has_volatile_cache(system: &dyn System, disk: &Device) -> bool {
    let device = kernel_name(disk).unwrap_or_default();
    let path = format!("/sys/class/block/{device}/queue/write_cache");
    line(system, &path).as_deref() == Some("write back")
}

/// Warns of a leg that md has failed, with the way to put it back.
fn lost(leg: &Leg, disk: &Device, volatile: bool, findings: &mut Findings) {
    if !leg.is("faulty") {
        return;
    }
    let Leg { array, name, .. } = leg;
    // After a re-add, md would copy only what its bitmap lists, which lacks the writes that a lost cache held.
    let advice = if volatile {
        format!(
            "When the disk is live, copy all data to it: mdadm /dev/{array} --remove /dev/{name}; \
             mdadm --zero-superblock /dev/{name}; mdadm /dev/{array} --add /dev/{name}"
        )
    } else {
        format!(
            "When the disk is live, udev and /usr/lib/hcablk/md-re-add put it back; by hand: \
             mdadm /dev/{array} --remove /dev/{name}; mdadm /dev/{array} --re-add /dev/{name}"
        )
    };
    findings.warn(
        &disk.name,
        format!("{array} continues without {name}, since requests to it have failed"),
        advice,
    );
}

/// Notes that md copies to a leg, and how much it has copied.
fn copied_to(system: &dyn System, leg: &Leg, disk: &Device, findings: &mut Findings) {
    let Leg { array, name, .. } = leg;
    let md = format!("/sys/class/block/{array}/md");
    // A spare without a slot waits until another leg fails.
    let slot = line(system, &format!("{md}/dev-{name}/slot"));
    if !leg.is("spare") || slot.as_deref() == Some("none") {
        return;
    }
    let progress = line(system, &format!("{md}/sync_completed"));
    let message = match progress.as_deref().and_then(percent) {
        Some(percent) => {
            format!("{array} copies to {name} what it lacks: {percent} % of the leg is done")
        }
        None => format!("{array} has not begun to copy to {name} what it lacks"),
    };
    findings.note(&disk.name, message, "");
}

/// Returns the share of `DONE / ALL`, in percent.
fn percent(progress: &str) -> Option<u64> {
    let (done, all) = progress.split_once(" / ")?;
    let done = done.parse::<u64>().ok()?.checked_mul(100)?;
    done.checked_div(all.parse().ok()?)
}

/// Warns of a leg with a volatile write cache, which can come back with old data.
fn warn_of_cache(leg: &Leg, disk: &Device, findings: &mut Findings) {
    let Leg { array, name, .. } = leg;
    let volume = &disk.volume;
    findings.warn(
        &disk.name,
        format!(
            "{name} is a leg of {array} and has a volatile write cache: if its target crashes, {array} does not know \
             which writes the leg has lost, and may read old data from it"
        ),
        format!(
            "Export the volume {volume} with --write-cache through. Until then copy all data to a leg that comes back: \
             mdadm --remove, --zero-superblock, --add."
        ),
    );
}

/// Warns of a leg whose requests wait long for a lost target.
fn times(leg: &Leg, disk: &Device, findings: &mut Findings) {
    let Leg { array, name, .. } = leg;
    let disk_name = &disk.name;
    if disk.fast_io_fail_tmo < 0 && !leg.is("failfast") {
        let limit = match disk.ctrl_loss_tmo {
            seconds @ 0.. => format!("for {seconds} s"),
            _ => "without a limit".to_owned(),
        };
        findings.warn(
            disk_name,
            format!("if the target of {name} is lost, all writes to {array} wait for it {limit}"),
            setting(disk_name, "fast_io_fail_tmo", "SECONDS"),
        );
    }
    if disk.ctrl_loss_tmo > 0 {
        findings.note(
            disk_name,
            format!(
                "the disk ends {} s after the loss of its target, and a leg on a new disk is not put back by \
                 /usr/lib/hcablk/md-re-add",
                disk.ctrl_loss_tmo
            ),
            &setting(disk_name, "ctrl_loss_tmo", "-1"),
        );
    }
}

/// Returns the advice to change an attribute of a disk.
fn setting(disk: &str, attribute: &str, value: &str) -> String {
    format!("echo {value} > {CONFIGFS}/hcablk/{disk}/{attribute}, and set {attribute} in the configuration")
}
