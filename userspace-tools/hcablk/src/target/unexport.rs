// SPDX-License-Identifier: GPL-2.0

//! `hcablk target unexport`: withdraws a volume that nobody uses, or by force.

use std::time::Duration;

use super::fence::join;
use super::records::Records;
use super::{existing, volumes};
use crate::configfs::{remove, Group, TARGET};
use crate::error::{Error, Kind, Result};
use crate::names::VolumeName;
use crate::output::{Client, Done, Outcome};
use crate::system::System;

/// How often, and how long apart, `unexport` looks again for clients that have just disconnected: a
/// client is done a moment before its target is.
const CLIENT_TRIES: u32 = 40;

const CLIENT_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn disable(group: &Group<'_>) -> Result<()> {
    match group.system().write(&group.path().join("enable"), "0\n") {
        Err(error) if !error.is_gone() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Runs `hcablk target unexport`.
pub fn unexport(
    system: &dyn System,
    volume: &VolumeName,
    force: bool,
    if_exists: bool,
) -> Result<Outcome> {
    let group = match existing(system, volume) {
        Ok(group) => group,
        Err(error) if error.kind == Kind::NotFound && if_exists => {
            let mut outcome = Outcome::new(Done::Unexport {
                volume: volume.to_string(),
                changed: false,
            });
            outcome.note(format!("there is no volume {volume}"));
            return Ok(outcome);
        }
        Err(error) => return Err(error),
    };
    if !force {
        refuse_while_used(&group, volume)?;
    }
    disable(&group)?;
    for host in group.child("hosts").children()? {
        remove(&host)?;
    }
    remove(&group)?;
    let mut outcome = Outcome::new(Done::Unexport {
        volume: volume.to_string(),
        changed: true,
    });
    match Records::of(system, volume.as_str()).all() {
        Ok(evicted) if evicted.is_empty() => (),
        Ok(evicted) => outcome.note(format!(
            "these hosts stay evicted, and are refused when {volume} is exported again: {}",
            join(&evicted, ", ")
        )),
        Err(error) => outcome.note(error.message),
    }
    Ok(outcome)
}

/// Runs `hcablk target unexport --all`: goes on with the others when one is in use.
pub fn unexport_all(system: &dyn System, force: bool) -> Result<Outcome> {
    let all = match TARGET.tree(system) {
        Some(tree) => volumes(&tree).children()?,
        None => Vec::new(),
    };
    let (mut ended, mut notes, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for group in all {
        let name = group.name();
        let volume = name
            .parse()
            .map_err(|why: String| Error::new(Kind::Failed, why))?;
        match unexport(system, &volume, force, true) {
            Ok(outcome) => {
                notes.extend(outcome.notes);
                ended.push(name);
            }
            Err(error) if error.kind == Kind::Interrupted => return Err(error),
            Err(error) => failures.push(error),
        }
    }
    if let Some(all) = Error::together(failures) {
        return Err(all);
    }
    let nothing = ended.is_empty();
    let mut outcome = Outcome::new(Done::UnexportAll {
        changed: !nothing,
        volumes: ended,
    });
    if nothing {
        outcome.note("no volume to end");
    }
    outcome.notes.extend(notes);
    Ok(outcome)
}

fn refuse_while_used(group: &Group<'_>, volume: &VolumeName) -> Result<()> {
    let mut tries = CLIENT_TRIES;
    loop {
        let clients = Client::parse_all(&group.get("clients")?);
        if clients.is_empty() {
            return Ok(());
        }
        tries -= 1;
        if tries == 0 {
            let mut list: Vec<_> = clients.iter().map(|client| client.host.as_str()).collect();
            list.dedup();
            return Err(Error::new(
                Kind::Busy,
                format!("volume {volume} is in use by {}", list.join(", ")),
            )
            .advise(format!(
                "Disconnect it there (hcablk disconnect).\n\
                     To end it anyway, so that the clients' requests fail:\n\
                     hcablk target unexport --force {volume}"
            )));
        }
        if group.system().interrupted() {
            return Err(Error::interrupted());
        }
        group.system().pause(CLIENT_PAUSE);
    }
}
