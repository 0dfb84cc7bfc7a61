// SPDX-License-Identifier: GPL-2.0

//! A disk of the unit `hcablk-ublk@NAME.service`.
//!
//! The unit does the same whenever it starts: it makes the disk if there is none, and takes over the one that its last
//! program has left. After a failure that may be temporary while requests wait, systemd restarts the unit; `hcablk`
//! reports all other failures to the user who asked for the disk.

use crate::{
    disk::{self, ForGood},
    driver::{self, Disk},
    saved::{Lock, Saved},
    Error,
};
use hcablk::{
    names::DeviceName,
    system::{Machine, System as _},
    user::files::{self, Failed, Wanted},
};
use libhcablk::Failure;
use std::{fs, process::ExitCode};

/// The exit code after which systemd does not restart the unit.
const FOR_GOOD: u8 = 2;

/// The first task of a program of the unit.
enum Begin {
    /// Make a disk.
    Make(Saved),
    /// Take over a disk that was left.
    Recover(u32),
}

/// Serves the disk `name`.
pub(crate) fn serve(name: &str) -> ExitCode {
    // The file holds the reason why the last program ended.
    let _ = fs::remove_file(files::failed(name));
    let mut waits = false;
    let result = begin(name, &mut waits).and_then(|begin| match begin {
        Begin::Make(saved) => disk::make(saved),
        Begin::Recover(number) => disk::recover(number),
    });
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("hcablk-ublk: {error}");
    let failure = error.downcast_ref::<Failure>();
    publish(
        name,
        &Failed {
            message: error.to_string(),
            errno: failure.map(|failure| failure.errno() as i32),
        },
    );
    let is_for_good = matches!(
        failure,
        Some(Failure::OtherVolume | Failure::OtherLimits | Failure::HalfProof)
    );
    let may_pass = !is_for_good && !error.is::<ForGood>();
    match waits && may_pass {
        true => ExitCode::FAILURE,
        false => ExitCode::from(FOR_GOOD),
    }
}

fn publish(name: &str, failed: &Failed) {
    let published = files::text(failed).and_then(|text| {
        Machine::new("/").replace_secret(&files::failed(name), &text)?;
        Ok(())
    });
    if let Err(error) = published {
        eprintln!("hcablk-ublk: cannot publish the reason of the failure: {error}");
    }
}

/// Decides what to do. Sets `waits` while requests of a disk may wait, and leaves it set on a failure in that time.
fn begin(name: &str, waits: &mut bool) -> Result<Begin, Error> {
    // The name is a part of file names.
    name.parse::<DeviceName>()?;
    let system = Machine::new("/");
    let file = files::wanted(name);
    let wanted: Wanted = files::read(&system, &file)?.ok_or_else(|| {
        format!(
            "nobody has asked for the disk {name}: {} is missing; `hcablk connect --user` writes it",
            file.display()
        )
    })?;
    for number in Saved::disks() {
        let saved = match Saved::read(number) {
            Ok(saved) if saved.name.as_deref() == Some(name) => saved,
            _ => continue,
        };
        *waits = true;
        match driver::find(number, saved.mark)? {
            Some(known) if known.was_served() => return Ok(Begin::Recover(number)),
            // The program was killed before the disk existed.
            Some(known) => begun(&saved, known)?,
            None => saved.forget(number),
        }
        *waits = false;
    }
    Ok(Begin::Make(Saved::begin(Some(name), wanted)?))
}

/// Removes a disk that was not completed.
fn begun(saved: &Saved, mut known: Disk) -> Result<(), Error> {
    let number = known.number;
    eprintln!("hcablk-ublk: ublkb{number} was never served, and is made again");
    let _lock = Lock::take(number)?;
    disk::remove_left(saved, &mut known)
}

/// Notifies systemd that the disk exists.
pub(crate) fn is_ready(device: &str) {
    if let Err(error) = hcablk_volume_args::notify_ready(&format!("Serving {device}")) {
        eprintln!("hcablk-ublk: cannot notify systemd that the disk exists: {error}");
    }
}
