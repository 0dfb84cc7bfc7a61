// SPDX-License-Identifier: GPL-2.0

//! `hcablk target unexport`: withdraws an unused volume, or any volume by force.

use std::time::Duration;

use nix::errno::Errno;

use super::records::Records;
use super::{existing, volumes};
use crate::apply::record::Record;
use crate::apply::step::Table;
use crate::configfs::{remove, Group, TARGET};
use crate::error::{Error, Kind, Result};
use crate::host_names::HostNames;
use crate::names::VolumeName;
use crate::output::{Client, Done, Outcome};
use crate::system::System;

/// The number of further checks, and the pause between them, for clients that have just disconnected: the target takes
/// a moment longer than the client.
const CLIENT_TRIES: u32 = 40;

const CLIENT_PAUSE: Duration = Duration::from_millis(50);

pub(super) fn disable(group: &Group<'_>) -> Result<()> {
    match group.system().write(&group.path().join("enable"), "0\n") {
        Err(error) if !error.is_gone() => Err(error.into()),
        _ => Ok(()),
    }
}

/// The options of `hcablk target unexport`, without the volumes.
#[derive(Clone, Copy, Debug)]
pub struct Unexport {
    /// End a volume even while clients are connected.
    pub force: bool,
    /// Do not fail when there is no such volume.
    pub if_exists: bool,
    /// The time limit for the drive, `None` for no limit.
    pub timeout: Option<Duration>,
}

/// Ends an export in this process: the kernel blocks the process until the drive has finished its current requests.
pub fn unexport_here(
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
    // The service must not restore an export that the user has ended.
    Record::new(system).forget(Table::Export, volume.as_str())?;
    Ok(Outcome::new(Done::Unexport {
        volume: volume.to_string(),
        changed: true,
    }))
}

/// Notes which hosts stay evicted from a removed volume.
fn note_evicted(
    system: &dyn System,
    volume: &str,
    records: Result<Records<'_>>,
    notes: &mut Vec<String>,
) {
    match records.and_then(|records| records.all()) {
        Ok(evicted) if evicted.is_empty() => (),
        Ok(evicted) => notes.push(format!(
            "these hosts stay evicted, and are refused when {volume} is exported again: {}",
            HostNames::read(system).join(&evicted)
        )),
        Err(error) => notes.push(error.message),
    }
}

/// Returns the command line that ends one export, for a process of its own.
fn line(volume: &VolumeName, force: bool) -> Vec<String> {
    let mut words = vec!["target", "unexport", "--here", "--if-exists"];
    if force {
        words.push("--force");
    }
    words.push(volume.as_str());
    words.into_iter().map(str::to_owned).collect()
}

/// Reports that an export ends later, since its drive hangs.
fn unfinished(system: &dyn System, volume: &VolumeName, timeout: Option<Duration>) -> Error {
    let what = format!(
        "volume {volume} is being ended, but its drive has not finished its current requests"
    );
    let advice = format!(
        "It ends when the drive has finished, and accepts no new requests until then. To wait for it: hcablk target \
         unexport --if-exists {volume}"
    );
    match timeout {
        Some(timeout) if !system.interrupted() => {
            let message = format!("{what} within {} s", timeout.as_secs());
            Error::new(Kind::Busy, message)
                .with_errno(Errno::EAGAIN)
                .advise(advice)
        }
        _ => Error::new(Kind::Interrupted, format!("interrupted: {what}")).advise(advice),
    }
}

/// Ends several exports in parallel, each in a process of its own: a drive that hangs blocks neither the others nor
/// this command. Returns the ended exports and remarks, or the failures with the exports that ended nevertheless.
pub(crate) fn unexport_these(
    system: &dyn System,
    volumes: &[VolumeName],
    force: bool,
    timeout: Option<Duration>,
) -> Result<(Vec<String>, Vec<String>)> {
    let was_there = |volume: &&VolumeName| existing(system, volume).is_ok();
    let volumes: Vec<_> = volumes.iter().filter(was_there).collect();
    let lines: Vec<_> = volumes.iter().map(|volume| line(volume, force)).collect();
    // A volume that has ended has no attribute that names its state directory.
    let records = volumes
        .iter()
        .map(|volume| Records::of(&existing(system, volume)?));
    let records: Vec<_> = records.collect();
    let results = system.run_selves(&lines, timeout);
    let (mut ended, mut notes, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for ((volume, records), result) in volumes.into_iter().zip(records).zip(results) {
        match result {
            Some(Ok(())) => {
                note_evicted(system, volume.as_str(), records, &mut notes);
                ended.push(volume.to_string());
            }
            Some(Err(error)) => failures.push(error),
            None => failures.push(unfinished(system, volume, timeout)),
        }
    }
    match Error::together(failures) {
        None => Ok((ended, notes)),
        Some(mut error) => {
            error.done = ended.iter().map(|name| format!("ended {name}")).collect();
            Err(error)
        }
    }
}

/// Runs `hcablk target unexport`.
pub fn unexport(system: &dyn System, volume: &VolumeName, how: Unexport) -> Result<Outcome> {
    match existing(system, volume) {
        Ok(_) => (),
        Err(error) if error.kind == Kind::NotFound && how.if_exists => {
            return unexport_here(system, volume, how.force, true);
        }
        Err(error) => return Err(error),
    }
    let (ended, notes) =
        unexport_these(system, std::slice::from_ref(volume), how.force, how.timeout)?;
    let mut outcome = Outcome::new(Done::Unexport {
        volume: volume.to_string(),
        changed: !ended.is_empty(),
    });
    outcome.notes.extend(notes);
    Ok(outcome)
}

/// Runs `hcablk target unexport --all`: if an export is in use, or its drive hangs, the others end nevertheless.
pub fn unexport_all(system: &dyn System, how: Unexport) -> Result<Outcome> {
    let all = match TARGET.tree(system) {
        Some(tree) => volumes(&tree).children()?,
        None => Vec::new(),
    };
    let names = all.iter().map(|group| group.name().parse());
    let names = names.collect::<Result<Vec<_>, String>>();
    let names = names.map_err(|why| Error::new(Kind::Failed, why))?;
    let (ended, notes) = unexport_these(system, &names, how.force, how.timeout)?;
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
            let names = HostNames::read(group.system());
            let shown = |client: &Client| match client.host.parse() {
                Ok(id) => names.show(&id),
                Err(_) => client.host.clone(),
            };
            let mut list: Vec<_> = clients.iter().map(shown).collect();
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
