// SPDX-License-Identifier: GPL-2.0

//! `hcablk disconnect` of a disk in user space.

use std::path::Path;

use super::connect;
use super::files::{self, UserDiskState};
use super::show::Disk;
use super::unit;
use crate::error::{Error, Kind, Result};
use crate::initiator::users;
use crate::system::System;

/// Ends an unused disk; with `force` also one that is in use or whose requests hang.
pub(crate) fn end(system: &dyn System, disk: &Disk, force: bool) -> Result<()> {
    // While the lock is held, no command starts another disk, which could reuse the number of this
    // one once it is free.
    let _lock = connect::lock(system)?;
    let name = disk.shown_name();
    if is_another(system, disk)? {
        return Err(Error::new(
            Kind::Busy,
            format!(
                "{name} was disconnected meanwhile, and its number now belongs to another disk"
            ),
        )
        .advise("`hcablk list` shows the existing disks."));
    }
    if let (Some(number), false) = (disk.number, force) {
        let device = format!("ublkb{number}");
        let users = users(system, &device);
        if !users.is_empty() {
            let message = format!("{name} (/dev/{device}) is in use");
            return Err(Error::new(Kind::Busy, message).advise(users.join("\n")));
        }
    }
    if force && disk.is_served {
        // When the unit is stopped, the program would wait for the users of the disk.
        remove(system, disk, true)?;
    }
    if let Some(name) = &disk.name {
        unit::stop(system, name)?;
    }
    let is_there = disk.number.is_some_and(|number| {
        system.exists(&Path::new("/sys/block").join(format!("ublkb{number}")))
    });
    if is_there {
        // No program serves the disk, or the program was started without a unit.
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

/// Returns whether the number of a disk that was found a moment ago now belongs to another disk.
fn is_another(system: &dyn System, disk: &Disk) -> Result<bool> {
    let (Some(number), Some(found)) = (disk.number, &disk.state) else {
        return Ok(false);
    };
    let now = files::read::<UserDiskState>(system, &files::state(number))?;
    Ok(now.is_some_and(|now| now.mark != found.mark))
}

/// Makes `hcablk-ublk` remove the disk; with `force` also one that is in use.
fn remove(system: &dyn System, disk: &Disk, force: bool) -> Result<()> {
    let (name, Some(number)) = (disk.shown_name(), disk.number) else {
        return Ok(());
    };
    let program = unit::program(system).unwrap_or(unit::PROGRAM);
    let number = number.to_string();
    // If the state of the disk cannot be read, its mark is not known.
    let mark = disk.state.as_ref().and_then(|state| state.mark);
    let mark = mark.map(|mark| mark.to_string());
    let mut arguments = vec!["remove"];
    if force {
        arguments.push("--force");
    }
    if let Some(mark) = &mark {
        arguments.extend(["--mark", mark]);
    }
    arguments.push(&number);
    let removed = system.run(program, &arguments);
    removed.map(drop).map_err(|reason| {
        Error::new(Kind::Failed, format!("cannot remove {name}: {reason}")).advise(format!(
            "Its log may say more: journalctl -u {}",
            disk.unit()
        ))
    })
}
