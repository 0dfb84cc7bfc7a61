// SPDX-License-Identifier: GPL-2.0

//! `hcablk path sync`: adds a path for each portal that a disk's target reports, if the disk is configured for that.
//!
//! The target is asked over the existing paths, one after the other, until it replies over one of them. A portal that
//! is not reached, or does not lead to the disk's volume, is reported; the others are used, and the next call tries it
//! again.

use std::time::Duration;

use super::disconnect::{no_such_device, not_in_kernel, PATHS};
use super::discover::{ask_all, Discover, Lists};
use super::path::{has_lost_all, remove, wait, PathId, Waited};
use super::paths::{self, Further};
use super::show::selected;
use crate::configfs::{Group, Transaction, INITIATOR};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::output::{Done, Outcome, SyncedDisk};
use crate::system::{Lock, System};

/// The time between two checks whether another command still changes the disk's paths.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// The changes to a disk's paths, and remarks.
pub(super) struct Synced {
    pub(super) disk: SyncedDisk,
    pub(super) notes: Vec<String>,
}

/// Runs `hcablk path sync` for the disk `only`, or for all disks that get a path for each portal.
pub fn sync(system: &dyn System, only: Option<&str>, prune: bool) -> Result<Outcome> {
    let mut disks = Vec::new();
    let mut notes = Vec::new();
    let groups = match (selected(system, only, PATHS)?, only) {
        (Some(groups), _) => groups,
        (None, None) => Vec::new(),
        (None, Some(name)) => return Err(not_in_kernel(system, name, PATHS)),
    };
    for group in groups {
        if paths::auto(&group)? {
            let synced = sync_disk(&group, prune)?;
            disks.push(synced.disk);
            notes.extend(synced.notes);
        } else if only.is_some() {
            notes.push(format!(
                "{} has explicit paths, so its target is not asked for portals (see hcablk connect --paths auto)",
                group.name()
            ));
        }
    }
    let changed = disks.iter().any(SyncedDisk::is_changed);
    let mut outcome = Outcome::new(Done::PathSync { disks, changed });
    for note in notes {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Adds to a disk the missing paths to the portals of its target; with `prune`, removes paths that lead to no portal.
/// Fails only if it is interrupted, or the disk is gone.
pub(super) fn sync_disk(group: &Group<'_>, prune: bool) -> Result<Synced> {
    let name = group.name();
    let mut synced = Synced {
        disk: SyncedDisk {
            name: name.clone(),
            added: Vec::new(),
            removed: Vec::new(),
        },
        notes: Vec::new(),
    };
    if group.get("device")?.is_empty() {
        synced
            .notes
            .push(format!("{name} is not connected: its target is not asked"));
        return Ok(synced);
    }
    let _lock = lock(group)?;
    let portals = match portals(group) {
        Ok(portals) => portals,
        Err(error) if error.kind == Kind::Interrupted => return Err(error),
        Err(error) => {
            let why = error.message;
            synced
                .notes
                .push(format!("{name} keeps the paths that it has: {why}"));
            return Ok(synced);
        }
    };
    add(group, &portals, &mut synced)?;
    if prune {
        remove_others(group, &portals, &mut synced)?;
    }
    Ok(synced)
}

/// Waits until no other command syncs the paths: two commands would add two paths to one portal.
fn lock(group: &Group<'_>) -> Result<Lock> {
    let system = group.system();
    loop {
        if let Some(lock) = system.try_lock(group.path())? {
            return Ok(lock);
        }
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        system.pause(LOCK_PAUSE);
    }
}

/// Asks a disk's target for its portals. Fails if the target replies over no path, or does not offer the disk's volume.
fn portals(group: &Group<'_>) -> Result<Vec<Endpoint>> {
    let mut endpoints: Vec<_> = paths::show(group, &group.get("state")?)?
        .into_iter()
        .map(|path| {
            let is_lost = path.state.as_deref().is_some_and(|state| state != "live");
            let (address, port) = (path.address, path.port);
            (is_lost, Endpoint { address, port })
        })
        .collect();
    if endpoints.is_empty() {
        endpoints.push((false, paths::own(group)?));
    }
    // Live paths first.
    endpoints.sort_by_key(|(is_lost, _)| *is_lost);
    let mut last = None;
    for (_, endpoint) in endpoints {
        match portals_over(group, &endpoint) {
            Err(error) if error.kind != Kind::Interrupted => last = Some(error),
            result => return result,
        }
    }
    Err(last.unwrap_or_else(|| no_such_device(&group.name())))
}

/// Asks a disk's target for its portals over one path.
fn portals_over(group: &Group<'_>, endpoint: &Endpoint) -> Result<Vec<Endpoint>> {
    let wanted = Discover {
        address: endpoint.address.clone(),
        port: endpoint.port,
        host_id: hostid::parse(&group.get("host_id")?).ok(),
        insecure: group.flag("insecure")?,
        connect_timeout: Some(group.value("connect_timeout")?),
        key_of: Some(group.get("address")?),
        pending_key: false,
    };
    let Lists { volumes, portals } = ask_all(group.system(), &wanted)?;
    let (volume, wwid) = (group.get("volume")?, group.get("wwid")?);
    let is_it = |volume_entry: &crate::output::Discovered| {
        volume_entry.name == volume && volume_entry.wwid.as_deref().unwrap_or_default() == wwid
    };
    if volumes.iter().any(is_it) {
        return Ok(portals.iter().map(Endpoint::from).collect());
    }
    Err(Error::new(
        Kind::Connection,
        format!("the target at {endpoint} does not offer this host the disk's volume {volume}"),
    ))
}

/// Adds the missing paths: starts all, and then waits for them.
fn add(group: &Group<'_>, portals: &[Endpoint], synced: &mut Synced) -> Result<()> {
    let (own, further) = (paths::own(group)?, paths::further(group)?);
    let is_there = |portal: &&Endpoint| {
        portal.is_same(&own) || further.iter().any(|path| path.endpoint.is_same(portal))
    };
    let system = group.system();
    let mut coming = Vec::new();
    for portal in portals.iter().filter(|portal| !is_there(portal)) {
        let Some(number) = paths::free_number(group)? else {
            let most = paths::LAST + 1;
            let note = format!(
                "{} already has the maximum of {most} paths, so it gets no path to {portal}",
                synced.disk.name
            );
            synced.notes.push(note);
            continue;
        };
        let mut transaction = Transaction::new(system);
        match paths::make(group, number, portal, &mut transaction) {
            Ok(path) => coming.push((path, transaction)),
            Err(error) => left_out(portal, transaction.finish(Err(error)), synced)?,
        }
    }
    let timeout = Duration::from_secs(group.value("connect_timeout")?);
    let began = system.now();
    let mut interrupted = None;
    for (path, transaction) in coming {
        let result = match interrupted {
            None => wait_for(group, &path, (began, timeout), transaction),
            Some(()) => transaction.finish(Err(Error::interrupted())),
        };
        match result {
            Ok(()) => synced.disk.added.push(path.reference()),
            Err(error) if error.kind == Kind::Interrupted => interrupted = Some(()),
            error => left_out(&path.endpoint, error, synced)?,
        }
    }
    interrupted.map_or(Ok(()), |()| Err(Error::interrupted()))
}

/// Waits until a path is live, at most for `timeout` from `began` on. Then removes the path, unless the disk has no
/// live path: a disk must not stay degraded for good because this host is not in all networks of its target.
fn wait_for(
    group: &Group<'_>,
    path: &Further<'_>,
    (began, timeout): (Duration, Duration),
    transaction: Transaction<'_>,
) -> Result<()> {
    match wait(path, &group.name(), began, timeout) {
        Ok(Waited::Live | Waited::Unused) => Ok(()),
        // While no path is live, the driver removes none: this one may be the first to become live.
        Err(_) if has_lost_all(group) => Ok(()),
        Err(error) => transaction.finish(Err(error)),
    }
}

/// Notes that a portal is left out; fails if the reason is an interruption by the user.
fn left_out(portal: &Endpoint, result: Result<()>, synced: &mut Synced) -> Result<()> {
    match result {
        Err(error) if error.kind == Kind::Interrupted => Err(error),
        Err(error) => {
            let name = &synced.disk.name;
            let mut note = format!(
                "{name} has no path to the portal {portal}: {}",
                error.message
            );
            for what in error.not_undone {
                note.push_str(&format!("; not undone: {what}"));
            }
            synced.notes.push(note);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Removes paths that lead to no portal.
fn remove_others(group: &Group<'_>, portals: &[Endpoint], synced: &mut Synced) -> Result<()> {
    let name = synced.disk.name.clone();
    let is_reported = |endpoint: &Endpoint| portals.iter().any(|portal| portal.is_same(endpoint));
    let own = paths::own(group)?;
    if !is_reported(&own) {
        let note = format!(
            "path 0 ({own}) of {name} leads to no portal that the target reports; it stays, being the disk's own address"
        );
        synced.notes.push(note);
    }
    for path in paths::further(group)? {
        if is_reported(&path.endpoint) {
            continue;
        }
        match remove(group.system(), &name, &PathId::Number(path.number), true) {
            Ok(_) => synced.disk.removed.push(path.reference()),
            Err(error) if error.kind == Kind::Interrupted => return Err(error),
            Err(error) => synced.notes.push(error.message),
        }
    }
    Ok(())
}

/// Calls [`sync_disk`] for the disk of that name, without `prune`, and returns the remarks.
pub(crate) fn sync_by_name(system: &dyn System, name: &str) -> Result<Vec<String>> {
    let group = INITIATOR.named(system).child(name);
    Ok(sync_disk(&group, false)?.notes)
}
