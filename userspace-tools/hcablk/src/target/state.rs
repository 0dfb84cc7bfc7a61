// SPDX-License-Identifier: GPL-2.0

//! The state directory of a volume: the records that move with the volume to another target machine.
//!
//! It is on a file system that is mounted where the volume is exported. An empty mount point must not pass for a
//! volume without evictions, so the directory has a marker, which the administrator makes once. Since the first export
//! the marker contains the wwid of the only volume that the directory belongs to, and the number of exports.
//!
//! This machine keeps a record of each volume that it has exported with a state directory, with that number. So it
//! refuses an export without the directory, and an export with an older copy of it.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::hosts::hosts;
use super::records::Records;
use crate::config::running::attribute;
use crate::configfs::{Group, Transaction};
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::keys;
use crate::system::System;

/// The volume's attribute with the path of its state directory; empty: it has none.
pub(super) const ATTRIBUTE: &str = "state";

const MARKER: &str = ".hcablk-state";

/// The kernel's directory of reservations in a state directory, and the file without which the kernel refuses it.
const RESERVATIONS: &str = "reservations";
const RESERVATIONS_MARKER: &str = ".hcablk-reservations";

/// The folder with a file for each volume that this machine has exported with a state directory: the directory's path
/// and the text of its marker.
const FOLDER: &str = "/var/lib/hcablk/moving";

/// The content of a marker since the first export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marker {
    /// The wwid of the volume.
    wwid: Uuid,
    /// The number of exports, on all machines.
    exports: u64,
}

impl Marker {
    fn parse(text: &str) -> Option<Self> {
        let (wwid, exports) = text.trim_end().split_once('\n')?;
        Some(Self {
            wwid: hostid::parse(wwid).ok()?,
            exports: exports.parse().ok()?,
        })
    }

    fn text(self) -> String {
        format!("{}\n{}\n", self.wwid, self.exports)
    }
}

/// This machine's record of a volume that it has exported with a state directory.
struct Known {
    directory: String,
    marker: Marker,
}

impl Known {
    fn file(volume: &str) -> PathBuf {
        Path::new(FOLDER).join(volume)
    }

    /// Reads the record of a volume; `None` if there is none.
    fn read(system: &dyn System, volume: &str) -> Result<Option<Self>> {
        let file = Self::file(volume);
        let text = match system.read(&file) {
            Err(error) if error.is_gone() => return Ok(None),
            text => text?,
        };
        let parse = || {
            let (directory, marker) = text.split_once('\n')?;
            Some(Self {
                directory: directory.to_owned(),
                marker: Marker::parse(marker)?,
            })
        };
        parse().map(Some).ok_or_else(|| {
            Error::new(
                Kind::Failed,
                format!("{} is broken: it does not name a state directory", file.display()),
            )
            .advise(format!(
                "It was written when this machine exported {volume} with --state. If you know that the state directory \
                 is the newest one, remove the file."
            ))
        })
    }

    fn text(&self) -> String {
        format!("{}\n{}", self.directory, self.marker.text())
    }
}

/// Returns the state directory of a volume; `None` if it has none, or if the driver does not support them.
pub(crate) fn directory(volume: &Group<'_>) -> Result<Option<PathBuf>> {
    let path = attribute(volume, ATTRIBUTE)?;
    Ok(path.filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// Returns the wwid of the volume that a state directory belongs to; `None` if it belongs to none yet. Fails if the
/// directory is not there, or is not marked.
pub(crate) fn owner(system: &dyn System, directory: &Path) -> Result<Option<Uuid>> {
    Ok(read_marker(system, directory)?.map(|marker| marker.wwid))
}

/// Reads the marker of a state directory; `None` before the first export.
fn read_marker(system: &dyn System, directory: &Path) -> Result<Option<Marker>> {
    let file = directory.join(MARKER);
    let text = match system.read(&file) {
        Err(error) if error.is_gone() => return Err(missing(directory)),
        text => text?,
    };
    if text.trim_end().is_empty() {
        return Ok(None);
    }
    Marker::parse(&text).map(Some).ok_or_else(|| {
        Error::new(
            Kind::Failed,
            format!(
                "{} does not contain the wwid of a volume and the number of its exports",
                file.display()
            ),
        )
        .advise("Find out who has written it. The directory belongs to the volume whose wwid was there.")
    })
}

fn missing(directory: &Path) -> Error {
    let shown = directory.display();
    Error::new(
        Kind::Failed,
        format!("the state directory {shown} has no file {MARKER}: is its file system mounted?"),
    )
    .advise(format!(
        "Mount it. If the file system is mounted and new, make the file: touch {shown}/{MARKER}\n\
         Never make it below a mount point that is not mounted: evicted hosts would be admitted."
    ))
}

/// Fails if this machine has exported a volume with a state directory, and the export names none: hosts that were
/// evicted since then would be admitted.
fn refuse_without(system: &dyn System, volume: &str) -> Result<()> {
    let Some(known) = Known::read(system, volume)? else {
        return Ok(());
    };
    let (directory, file) = (known.directory, Known::file(volume));
    Err(Error::new(
        Kind::Exists,
        format!(
            "{volume} was exported with the state directory {directory}, and is not exported without it: evicted \
             hosts would be admitted"
        ),
    )
    .advise(format!(
        "Name it: --state {directory}, or `state` in the configuration.\n\
         If it is a different volume, or does not move any more: rm {}",
        file.display()
    )))
}

/// Makes a volume the owner of its state directory, if it has one, before the volume is enabled, and counts the export.
/// Passes the keys in the directory to this machine. Fails if the directory belongs to another volume, is older than
/// one that this machine has seen, or lacks evictions that this machine has recorded; and if the volume has no
/// directory, but had one on this machine.
pub(super) fn claim(volume: &Group<'_>, transaction: &mut Transaction<'_>) -> Result<()> {
    let (system, name) = (volume.system(), volume.name());
    let Some(directory) = directory(volume)? else {
        return refuse_without(system, &name);
    };
    let Ok(wwid) = hostid::parse(&volume.get("wwid")?) else {
        return Err(Error::new(
            Kind::Usage,
            format!("{name} has a state directory and no wwid"),
        )
        .advise("Give the volume a wwid: --wwid UUID (`uuidgen` prints one)."));
    };
    let marker = read_marker(system, &directory)?;
    if let Some(owner) = marker.map(|marker| marker.wwid).filter(|id| *id != wwid) {
        return Err(belongs_to_another(&name, wwid, &directory, owner));
    }
    let known = Known::read(system, &name)?;
    if let Some(known) = &known {
        refuse_older(&name, &directory, marker, known)?;
    }
    refuse_other_records(volume, &directory)?;
    if keys::moving::carry(volume, &directory, transaction)? {
        for (_, host) in hosts(volume)? {
            keys::set_host(&host)?;
        }
    }
    if marker.is_none() {
        let folder = directory.join(RESERVATIONS);
        system.make_durable_folder(&folder, &directory)?;
        system.make_durable_file(&folder.join(RESERVATIONS_MARKER))?;
    }
    let exports = marker.map_or(0, |marker| marker.exports) + 1;
    let new = Marker { wwid, exports };
    let before = marker.map_or_else(String::new, Marker::text);
    replace(
        system,
        &directory.join(MARKER),
        &new.text(),
        Some(before),
        transaction,
    )?;
    // After the marker: this machine must not know a later export than the directory.
    system.make_durable_folder(Path::new(FOLDER), Path::new("/var/lib"))?;
    let before = known.as_ref().map(Known::text);
    let known = Known {
        directory: directory.display().to_string(),
        marker: new,
    };
    replace(
        system,
        &Known::file(&name),
        &known.text(),
        before,
        transaction,
    )
}

/// Replaces a file. `before` is its former text; `None`: it did not exist.
fn replace(
    system: &dyn System,
    file: &Path,
    text: &str,
    before: Option<String>,
    transaction: &mut Transaction<'_>,
) -> Result<()> {
    let path = file.to_owned();
    // Also undone after a failure to sync the new file, which is in place then.
    transaction.changed(move |system| match &before {
        Some(text) => Ok(system.replace(&path, text)?),
        None => Ok(system.remove_durable_file(&path)?),
    });
    Ok(system.replace(file, text)?)
}

fn belongs_to_another(name: &str, wwid: Uuid, directory: &Path, owner: Uuid) -> Error {
    Error::new(
        Kind::Exists,
        format!(
            "the state directory {} belongs to the volume with the wwid {owner}, and {name} has the wwid {wwid}",
            directory.display()
        ),
    )
    .advise(
        "Each volume needs a state directory of its own. Without --wwid the volume gets the wwid of its directory.",
    )
}

/// Fails if a state directory is not the one of the last export on this machine, or a later state of it.
fn refuse_older(name: &str, directory: &Path, marker: Option<Marker>, known: &Known) -> Result<()> {
    let shown = directory.display();
    let last = known.marker;
    let found = match marker {
        Some(marker) if marker.wwid == last.wwid && marker.exports >= last.exports => return Ok(()),
        Some(marker) if marker.wwid == last.wwid => format!(
            "is an old copy: it is from export {} of {name}, and this machine has exported it later, as export {}",
            marker.exports, last.exports
        ),
        Some(marker) => format!(
            "belongs to the wwid {}, and this machine has exported {name} with the wwid {}",
            marker.wwid, last.wwid
        ),
        None => format!(
            "is new, and this machine has exported {name} with a state directory before, {}",
            known.directory
        ),
    };
    Err(Error::new(
        Kind::Exists,
        format!("the state directory {shown} {found}: evicted hosts would be admitted"),
    )
    .advise(format!(
        "Mount the newest state of the volume. If this is a different volume, or the newer state is lost for good: rm {}",
        Known::file(name).display()
    )))
}

/// Fails if this machine's own directory has evictions that the state directory lacks: these hosts would be admitted.
fn refuse_other_records(volume: &Group<'_>, directory: &Path) -> Result<()> {
    let name = volume.name();
    let here = Records::new(volume.system(), &name);
    let kept = Records::of(volume)?;
    let lost: Vec<_> = here
        .all()?
        .into_iter()
        .filter(|host| !kept.has(*host))
        .collect();
    let Some(host) = lost.first() else {
        return Ok(());
    };
    let (from, to) = (here.folder().display(), directory.display());
    Err(Error::new(
        Kind::Exists,
        format!("{name} has evicted {host}, and its state directory {to} does not record that"),
    )
    .advise(format!(
        "Move the records of this machine: mkdir -p {to}/evicted && mv {from}/* {to}/evicted/ && sync -f {to}\n\
         If the state directory is newer, remove them: rm -r {from}"
    )))
}
