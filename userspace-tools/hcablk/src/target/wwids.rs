// SPDX-License-Identifier: GPL-2.0

//! The ids of volumes, stored when they are first derived: a host id that changes later must not make clients take the
//! volume for a different one.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::configfs::Transaction;
use crate::error::Result;
use crate::names::VolumeName;
use crate::system::System;

/// The folder with a file for each volume: a line that identifies its drive, and one with its id.
const FOLDER: &str = "/var/lib/hcablk/wwids";

fn file(volume: &VolumeName) -> PathBuf {
    Path::new(FOLDER).join(volume.as_str())
}

/// Returns the identity of a drive, independent of the link that names it: the id that the drive reports; for
/// everything else, such as a file that is named like a drive, its path.
fn drive(system: &dyn System, path: &str) -> Option<String> {
    let real = system.real_path(Path::new(path));
    let real = real.as_deref().unwrap_or(Path::new(path));
    let device = real.file_name()?;
    let known = ["wwid", "device/wwid"].iter().find_map(|file| {
        if !real.starts_with("/dev") {
            return None;
        }
        let text = system
            .read(&Path::new("/sys/class/block").join(device).join(file))
            .ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    });
    Some(known.unwrap_or_else(|| path.to_owned()))
}

/// Returns the stored id of a volume with this drive.
fn stored_wwid(system: &dyn System, volume: &VolumeName, drive: &str) -> Option<Uuid> {
    let text = system.read(&file(volume)).ok()?;
    let (of, id) = text.trim_end().rsplit_once('\n')?;
    (of == drive).then(|| Uuid::try_parse(id).ok()).flatten()
}

/// Returns the id of a volume for which the user gives none: the id that it had with this drive before, else an id
/// derived from this host's id, the name and the drive.
pub(crate) fn default_wwid(
    system: &dyn System,
    host: Option<Uuid>,
    volume: &VolumeName,
    path: &str,
) -> Option<Uuid> {
    let drive = drive(system, path)?;
    let derived = || {
        Some(Uuid::new_v5(
            &host?,
            format!("{volume}\n{drive}").as_bytes(),
        ))
    };
    stored_wwid(system, volume, &drive).or_else(derived)
}

/// Stores the id of a volume. An export of a different drive under that name replaces the id.
pub(crate) fn keep(
    system: &dyn System,
    volume: &VolumeName,
    path: &str,
    wwid: Uuid,
    transaction: &mut Transaction<'_>,
) -> Result<()> {
    let Some(drive) =
        drive(system, path).filter(|drive| stored_wwid(system, volume, drive) != Some(wwid))
    else {
        return Ok(());
    };
    let file = file(volume);
    let before = system.read(&file).ok();
    system.replace(&file, &format!("{drive}\n{wwid}\n"))?;
    transaction.changed(move |system| {
        match &before {
            Some(text) => system.replace(&file, text)?,
            None => system.remove_durable_file(&file)?,
        }
        Ok(())
    });
    Ok(())
}
