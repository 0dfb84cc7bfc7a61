// SPDX-License-Identifier: GPL-2.0

//! `hcablk target allow` and `forbid`: the hosts that may use a volume.

use std::time::Duration;

use uuid::Uuid;

use super::existing;
use super::write_cache;
use crate::configfs::{remove, Group, Transaction};
use crate::error::{Error, Kind, Result};
use crate::host_names::HostNames;
use crate::keys;
use crate::names::VolumeName;
use crate::output::{is_cut, Client, Done, Outcome};
use crate::system::System;

/// Lists the hosts that a volume allows, each with its group.
pub(crate) fn hosts<'a>(volume: &Group<'a>) -> Result<Vec<(Uuid, Group<'a>)>> {
    let groups = volume.child("hosts").children()?;
    Ok(groups
        .into_iter()
        .filter_map(|group| Some((Uuid::try_parse(&group.name()).ok()?, group)))
        .collect())
}

pub(crate) fn allow_host(
    volume: &Group<'_>,
    host: Uuid,
    transaction: &mut Transaction<'_>,
) -> Result<()> {
    let group = volume.child("hosts").child(&host.to_string());
    transaction.mkdir(&group)?;
    keys::set_host(&group)
}

/// Runs `hcablk target allow`.
pub fn allow(system: &dyn System, volume: &VolumeName, ids: &[Uuid]) -> Result<Outcome> {
    let group = existing(system, volume)?;
    let allowed = hosts(&group)?;
    let mut transaction = Transaction::new(system);
    let mut add = || {
        for (at, id) in ids.iter().enumerate() {
            if !allowed.iter().any(|(host, _)| host == id) && !ids[..at].contains(id) {
                allow_host(&group, *id, &mut transaction)?;
            }
        }
        Ok(())
    };
    let result = add().and_then(|()| keys::moving::keep(&group));
    let changed = transaction.has_changes();
    transaction.finish(result)?;

    let mut outcome = Outcome::new(Done::Allow {
        volume: volume.to_string(),
        hosts: ids.to_vec(),
        changed,
        host_names: HostNames::default(),
    });
    if !changed {
        outcome.note("allowed already");
    }
    if let Some(advice) = write_cache::advice(&group) {
        outcome.note(advice);
    }
    for note in keys::missing::notes(&group)? {
        outcome.note(note);
    }
    Ok(outcome)
}

/// The time between two checks whether sessions are gone, the time after which the command first reports that it waits
/// for them, and the time between further reports.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const FIRST_REPORT: Duration = Duration::from_secs(2);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Waits until the sessions of `hosts`, which the volume does not allow any more, are gone: the kernel ends them, and
/// waits for no drive. Returns whether there are more sessions than the kernel shows.
pub(crate) fn wait_until_gone(volume: &Group<'_>, hosts: &[Uuid]) -> Result<bool> {
    let system = volume.system();
    let began = system.now();
    let mut next_report = began + FIRST_REPORT;
    loop {
        let text = volume.get("clients")?;
        let clients = Client::parse_all(&text);
        let is_left = |host: &&Uuid| clients.iter().any(|one| one.host == host.to_string());
        let left: Vec<Uuid> = hosts.iter().filter(is_left).copied().collect();
        if left.is_empty() {
            return Ok(is_cut(&text));
        }
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        let now = system.now();
        if now >= next_report {
            next_report = now + REPORT_INTERVAL;
            system.progress(&format!(
                "{} has forbidden {}; waiting for the drive to finish their requests, for {} s now",
                volume.name(),
                HostNames::read(system).join(&left),
                (now - began).as_secs()
            ));
        }
        system.pause(CHECK_INTERVAL);
    }
}

/// Runs `hcablk target forbid`.
pub fn forbid(
    system: &dyn System,
    volume: &VolumeName,
    ids: &[Uuid],
    if_exists: bool,
) -> Result<Outcome> {
    let group = existing(system, volume)?;
    let allowed = hosts(&group)?;
    let (there, missing): (Vec<Uuid>, Vec<Uuid>) = ids
        .iter()
        .partition(|id| allowed.iter().any(|(host, _)| host == *id));
    if !missing.is_empty() && !if_exists {
        let list: Vec<_> = missing.iter().map(ToString::to_string).collect();
        return Err(Error::new(
            Kind::NotFound,
            format!("volume {volume} does not allow {} anyway", list.join(", ")),
        )
        .advise(
            "Nothing was changed. `hcablk target list` shows the hosts that each volume allows.",
        ));
    }
    let mut changed = false;
    for (_, host) in allowed.iter().filter(|(id, _)| there.contains(id)) {
        remove(host)?;
        changed = true;
    }
    // This includes hosts that were forbidden before: that command may have ended before their sessions did.
    let cut = wait_until_gone(&group, ids)?;
    let mut outcome = Outcome::new(Done::Forbid {
        volume: volume.to_string(),
        hosts: there,
        changed,
        host_names: HostNames::default(),
    });
    if !changed {
        outcome.note("none of these hosts was allowed");
    }
    if cut {
        outcome.note(format!(
            "{volume} has more sessions than the kernel shows; sessions of these hosts among them are ending, too, \
             but may not have ended yet"
        ));
    }
    Ok(outcome)
}
