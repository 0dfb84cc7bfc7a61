// SPDX-License-Identifier: GPL-2.0

//! The state directory of a volume: the records that move with the volume to another target machine.
//!
//! It is on a file system that is mounted where the volume is exported. An empty mount point must not pass for a
//! volume without evictions, so the directory has a marker, which the administrator makes once, and which then contains
//! the wwid of the only volume that the directory belongs to.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::records::Records;
use crate::config::running::attribute;
use crate::configfs::{Group, Transaction};
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::system::System;

/// The volume's attribute with the path of its state directory; empty: it has none.
pub(super) const ATTRIBUTE: &str = "state";

const MARKER: &str = ".hcablk-state";

/// Returns the state directory of a volume; `None` if it has none, or if the driver does not support them.
pub(super) fn directory(volume: &Group<'_>) -> Result<Option<PathBuf>> {
    let path = attribute(volume, ATTRIBUTE)?;
    Ok(path.filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// Returns the wwid of the volume that a state directory belongs to; `None` if it belongs to none yet. Fails if the
/// directory is not there, or is not marked.
pub(crate) fn owner(system: &dyn System, directory: &Path) -> Result<Option<Uuid>> {
    let marker = directory.join(MARKER);
    let text = match system.read(&marker) {
        Err(error) if error.is_gone() => return Err(missing(directory)),
        text => text?,
    };
    match text.trim_end() {
        "" => Ok(None),
        text => hostid::parse(text).map(Some).map_err(|_| {
            Error::new(
                Kind::Failed,
                format!("{} does not contain the wwid of a volume", marker.display()),
            )
            .advise("Find out who has written it. The directory belongs to the volume whose wwid was there.")
        }),
    }
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

/// Makes a volume the owner of its state directory, if it has one, before the volume is enabled. Fails if the directory
/// belongs to another volume, or lacks evictions that this machine has recorded.
pub(super) fn claim(volume: &Group<'_>, transaction: &mut Transaction<'_>) -> Result<()> {
    let Some(directory) = directory(volume)? else {
        return Ok(());
    };
    let (system, name) = (volume.system(), volume.name());
    let Ok(wwid) = hostid::parse(&volume.get("wwid")?) else {
        return Err(Error::new(
            Kind::Usage,
            format!("{name} has a state directory and no wwid"),
        )
        .advise("Give the volume a wwid: --wwid UUID (`uuidgen` prints one)."));
    };
    let owner = owner(system, &directory)?;
    if let Some(owner) = owner.filter(|owner| *owner != wwid) {
        return Err(Error::new(
            Kind::Exists,
            format!(
                "the state directory {} belongs to the volume with the wwid {owner}, and {name} has the wwid {wwid}",
                directory.display()
            ),
        )
        .advise("Each volume needs a state directory of its own. Without --wwid the volume gets the wwid of its \
             directory."));
    }
    refuse_other_records(volume, &directory)?;
    if owner.is_none() {
        let marker = directory.join(MARKER);
        system.replace(&marker, &format!("{wwid}\n"))?;
        transaction.changed(move |system| Ok(system.replace(&marker, "")?));
    }
    Ok(())
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
