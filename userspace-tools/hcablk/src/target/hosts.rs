// SPDX-License-Identifier: GPL-2.0

//! `hcablk target allow` and `forbid`: the hosts that may use a volume.

use uuid::Uuid;

use super::existing;
use crate::configfs::{remove, Group, Transaction};
use crate::error::{Error, Kind, Result};
use crate::names::VolumeName;
use crate::output::{Done, Outcome};
use crate::system::System;

/// Lists the hosts that a volume allows, each with its group.
pub(crate) fn hosts<'a>(volume: &Group<'a>) -> Result<Vec<(Uuid, Group<'a>)>> {
    let groups = volume.child("hosts").children()?;
    Ok(groups
        .into_iter()
        .filter_map(|group| Some((Uuid::try_parse(&group.name()).ok()?, group)))
        .collect())
}

pub(super) fn allow_host(
    volume: &Group<'_>,
    host: Uuid,
    transaction: &mut Transaction<'_>,
) -> Result<()> {
    transaction.mkdir(&volume.child("hosts").child(&host.to_string()))
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
    let result = add();
    let changed = transaction.has_changes();
    transaction.finish(result)?;

    let mut outcome = Outcome::new(Done::Allow {
        volume: volume.to_string(),
        hosts: ids.to_vec(),
        changed,
    });
    if !changed {
        outcome.note("allowed already");
    }
    Ok(outcome)
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
    let mut outcome = Outcome::new(Done::Forbid {
        volume: volume.to_string(),
        hosts: there,
        changed,
    });
    if !changed {
        outcome.note("none of these hosts was allowed");
    }
    Ok(outcome)
}
