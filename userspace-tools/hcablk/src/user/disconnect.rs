// SPDX-License-Identifier: GPL-2.0

//! `hcablk disconnect` of a disk in user space.

use std::path::Path;

use super::connect;
use super::files;
use super::show::Disk;
use super::unit;
use crate::error::{Error, Kind, Result};
use crate::initiator::users;
use crate::system::System;

/// Ends a disk that nobody uses; with `force` also one that is in use or whose requests hang.
pub(crate) fn end(system: &dyn System, disk: &Disk, force: bool) -> Result<()> {
    // A number that is free again may be another disk's before this has ended.
    let _lock = connect::lock(system)?;
    let name = disk.shown_name();
    if let (Some(number), false) = (disk.number, force) {
        let device = format!("ublkb{number}");
        let users = users(system, &device);
        if !users.is_empty() {
            let message = format!("{name} (/dev/{device}) is in use");
            return Err(Error::new(Kind::Busy, message).advise(users.join("\n")));
        }
    }
    if force && disk.is_served {
        // Its program waits for its users if it is told by its unit to end.
        remove(system, disk, true)?;
    }
    if let Some(name) = &disk.name {
        unit::stop(system, name)?;
    }
    let is_there = disk.number.is_some_and(|number| {
        system.exists(&Path::new("/sys/block").join(format!("ublkb{number}")))
    });
    if is_there {
        // No program serves it, or none that is a unit's.
        remove(system, disk, force)?;
    }
    if let Some(name) = &disk.name {
        for file in [files::wanted(name), files::failed(name)] {
            if system.exists(&file) {
                system.remove_durable_file(&file)?;
            }
        }
    }
    Ok(())
}

/// Has `hcablk-ublk` remove the disk; with `force` also one that is in use.
fn remove(system: &dyn System, disk: &Disk, force: bool) -> Result<()> {
    let (name, Some(number)) = (disk.shown_name(), disk.number) else {
        return Ok(());
    };
    let program = unit::program(system).unwrap_or(unit::PROGRAM);
    let number = number.to_string();
    let arguments: &[&str] = if force {
        &["remove", "--force", &number]
    } else {
        &["remove", &number]
    };
    let removed = system.run(program, arguments);
    removed.map(drop).map_err(|reason| {
        Error::new(Kind::Failed, format!("cannot remove {name}: {reason}")).advise(format!(
            "Its log may say more: journalctl -u {}",
            disk.unit()
        ))
    })
}
