// SPDX-License-Identifier: GPL-2.0

//! Keys in the state directory of a volume, which move with it to another target machine.
//!
//! `keys/target` and `keys/hosts/UUID` in that directory have the format of the files in `/etc/hcablk/keys`, and only
//! root can read them. An export takes the newer of both keys, and stores it in both places; `hcablk key apply`, `allow`
//! and `enroll` store this machine's keys in the directory.

use std::path::{Path, PathBuf};

use super::{hosts, read, read_file, store_file, Key, KeyOwner};
use crate::configfs::{Group, Transaction};
use crate::error::{Error, Kind, Result};
use crate::system::System;
use crate::target::state_directory;

/// Returns the file in a state directory for the key of `owner`.
fn file(directory: &Path, owner: &KeyOwner) -> PathBuf {
    let folder = directory.join("keys");
    match owner {
        KeyOwner::OfHost(id) => folder.join("hosts").join(id.to_string()),
        _ => folder.join("target"),
    }
}

/// Lists the owners of the keys that move with a volume: the target and the hosts that the volume allows; none if the
/// volume demands no keys.
fn owners(volume: &Group<'_>) -> Result<Vec<KeyOwner>> {
    if volume.flag("insecure")? {
        return Ok(Vec::new());
    }
    let hosts = hosts(volume)?.into_iter();
    let hosts = hosts.map(|(id, _)| KeyOwner::OfHost(id));
    Ok([KeyOwner::Target].into_iter().chain(hosts).collect())
}

/// Returns the newer one of two lists of valid keys, whose first key is the newest; `None` if that is unknown, since
/// neither has the newest key of the other.
fn newer<'a>(here: &'a [Key], moved: &'a [Key]) -> Option<&'a [Key]> {
    let (Some(newest), Some(newest_moved)) = (here.first(), moved.first()) else {
        return Some(if moved.is_empty() { here } else { moved });
    };
    if newest == newest_moved {
        // The older key was retired in the shorter list.
        Some(if here.len() < moved.len() {
            here
        } else {
            moved
        })
    } else if here.contains(newest_moved) {
        Some(here)
    } else if moved.contains(newest) {
        Some(moved)
    } else {
        None
    }
}

/// Makes the keys in a state directory and those of this machine the same, before the volume is enabled. Returns whether
/// keys of this machine have changed. A host's key in the directory replaces an unrelated one of this machine: the host
/// last used the volume with it. Fails if this machine has an unrelated key of the target.
pub(crate) fn carry(
    volume: &Group<'_>,
    directory: &Path,
    transaction: &mut Transaction<'_>,
) -> Result<bool> {
    let system = volume.system();
    let mut changed = false;
    for owner in owners(volume)? {
        let at = file(directory, &owner);
        let (here, moved) = (read(system, &owner)?, read_file(system, &at)?);
        let keys = match newer(&here, &moved) {
            Some(keys) => keys,
            None if owner == KeyOwner::Target => return Err(other_target(&at)),
            None => &moved,
        };
        if keys != here {
            replace(system, &owner.file(), keys, here.clone(), transaction)?;
            changed = true;
        }
        if keys != moved {
            replace(system, &at, keys, moved.clone(), transaction)?;
        }
    }
    Ok(changed)
}

fn other_target(moved: &Path) -> Error {
    let (here, moved) = (KeyOwner::Target.file(), moved.display());
    let here = here.display();
    Error::new(
        Kind::Exists,
        format!("{here} and {moved} have different keys: clients would refuse this target"),
    )
    .advise(format!(
        "All machines that export the volume need the same key of the target: cp -p {moved} {here}\n\
         Clients of other volumes of this machine then need that key, too: hcablk key add target ADDRESS"
    ))
}

/// Replaces the keys in a file. `before` are its former keys; none if it did not exist.
fn replace(
    system: &dyn System,
    file: &Path,
    keys: &[Key],
    before: Vec<Key>,
    transaction: &mut Transaction<'_>,
) -> Result<()> {
    let path = file.to_owned();
    transaction.changed(move |system| match before.as_slice() {
        [] => Ok(system.remove_durable_file(&path)?),
        keys => store_file(system, &path, keys),
    });
    store_file(system, file, keys)
}

/// Stores this machine's keys in the state directory of a volume, if it has one. Keys that this machine lacks stay
/// there.
pub(crate) fn keep(volume: &Group<'_>) -> Result<()> {
    let Some(directory) = state_directory(volume)? else {
        return Ok(());
    };
    let system = volume.system();
    for owner in owners(volume)? {
        let at = file(&directory, &owner);
        let here = read(system, &owner)?;
        if !here.is_empty() && here != read_file(system, &at)? {
            crate::target::state_owner(system, &directory)?;
            store_file(system, &at, &here)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_keys_are_those_that_were_changed_last() {
        let key = |byte| Key([byte; super::super::LENGTH]);
        let of = |bytes: &[u8]| bytes.iter().map(|byte| key(*byte)).collect::<Vec<_>>();
        let none: &[u8] = &[];
        for (here, moved, expected) in [
            (none, none, Some(none)),
            (&[1], none, Some(&[1][..])),
            (none, &[1], Some(&[1])),
            (&[1], &[1], Some(&[1])),
            // Rotated here, or on the other machine.
            (&[2, 1], &[1], Some(&[2, 1])),
            (&[1], &[2, 1], Some(&[2, 1])),
            (&[2, 1], &[1, 3], Some(&[2, 1])),
            // Retired here, or on the other machine.
            (&[2], &[2, 1], Some(&[2])),
            (&[2, 1], &[2], Some(&[2])),
            (&[1], &[2], None),
            (&[3, 1], &[4, 1], None),
        ] {
            let (here, moved) = (of(here), of(moved));
            let expected = expected.map(of);
            assert_eq!(newer(&here, &moved), expected.as_deref());
        }
    }
}
