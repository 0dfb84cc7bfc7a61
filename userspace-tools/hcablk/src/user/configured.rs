// SPDX-License-Identifier: GPL-2.0

//! Disks in user space of the configuration: `user = true`.

use std::path::PathBuf;

use uuid::Uuid;

use super::connect::{bring_up, differences, kernels, wanted, Asked, Difference, DiskAddress};
use super::disconnect::end;
use super::files::Wanted;
use super::settings;
use super::show::{self, Disk};
use crate::apply::step::{Action, Initial, Pending, PlanStep, Table};
use crate::config::value::Id;
use crate::config::{self, Paths};
use crate::configfs::{Transaction, INITIATOR};
use crate::error::{Error, Result};
use crate::hostid;
use crate::initiator::users;
use crate::keys;
use crate::names::{DeviceName, VolumeName};
use crate::system::System;

/// The settings of a disk that are not options of the library, and that a disk in user space has nevertheless.
const OTHERS: [&str; 1] = ["insecure"];

/// The change to a disk in user space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskChange {
    /// The disk is made, or taken over.
    Connect(Wanted),
    /// The disk is removed.
    Disconnect,
    /// The disk stays: the setting takes effect when the disk is made the next time.
    NextConnect,
}

/// The changes that make a disk match its configuration.
#[derive(Default)]
pub(crate) struct Planned {
    pub(crate) steps: Vec<PlanStep>,
    pub(crate) pending: Vec<Pending>,
}

/// Returns the reason why a disk in user space cannot have a setting that is configured for it, if there is one.
pub(crate) fn misfit(disk: &config::Disk) -> Option<String> {
    if disk.paths != Paths::default() {
        return Some("`paths`: a disk in user space has one path".to_owned());
    }
    let given = disk.settings().into_iter().filter(|wish| wish.given);
    let mut given = given.filter(|wish| !OTHERS.contains(&wish.attribute));
    given.find_map(|wish| {
        let key = wish.attribute.trim_end_matches("_kib");
        settings::refusal(wish.attribute, &wish.value).map(|why| format!("`{key}`: {why}"))
    })
}

/// Converts the configuration of a disk to the form of the command line.
fn asked(
    system: &dyn System,
    name: &DeviceName,
    disk: &config::Disk,
    host: Result<Uuid>,
) -> Result<Asked> {
    let given = disk.settings().into_iter().filter(|wish| wish.given);
    let options = given.filter_map(|wish| settings::option(wish.attribute, &wish.value));
    let host_id = match disk.host_id {
        Some(id) => id.0,
        None => host?,
    };
    let place = DiskAddress {
        address: &disk.address,
        volume: disk
            .volume
            .as_ref()
            .map_or(name.as_str(), VolumeName::as_str),
        host_id: Some(host_id),
        wwid: disk.wwid.map(|id| id.0),
        insecure: disk.insecure == Some(true),
    };
    Ok(Asked {
        name: Some(name.to_string()),
        wanted: wanted(system, &place, options.collect())?,
        is_whole: true,
        has_host: true,
    })
}

/// Makes a disk that is configured, or finds it: returns its node, and whether anything was changed.
pub(crate) fn connect_configured(
    system: &dyn System,
    name: &DeviceName,
    disk: &config::Disk,
    host: Result<Uuid>,
) -> Result<(PathBuf, bool)> {
    let (_, node, changed) = bring_up(system, &asked(system, name, disk, host)?)?;
    Ok((node, changed))
}

/// Plans for a disk. A disk that is not enabled does not exist: unlike a disk of the kernel's driver, it cannot be made
/// without being connected.
pub(crate) fn plan(
    system: &dyn System,
    name: &DeviceName,
    disk: &config::Disk,
    host: Result<Uuid>,
    force: bool,
) -> Result<Planned> {
    if INITIATOR.named(system).child(name.as_str()).exists() {
        return Err(kernels(name.as_str()));
    }
    let asked = asked(system, name, disk, host)?;
    let there = show::find(system, name.as_str()).filter(|there| there.number.is_some());
    let mut planned = Planned::default();
    let step = |action: Action, change: DiskChange| PlanStep {
        table: Table::Disk,
        name: name.to_string(),
        action,
        user: Some(change),
    };
    let connect = || DiskChange::Connect(asked.wanted.clone());
    let Some(there) = there else {
        if disk.enabled {
            let settings = initial(&asked.wanted);
            planned
                .steps
                .push(step(Action::Make { settings }, connect()));
        }
        return Ok(planned);
    };
    let known = there.wanted.as_ref();
    let mut changes: Vec<_> = known
        .into_iter()
        .flat_map(|known| differences(known, &asked))
        .map(|different| {
            let Difference {
                attribute,
                from,
                to,
            } = different;
            let action = Action::Set {
                attribute,
                from,
                to,
            };
            step(action, DiskChange::NextConnect)
        })
        .collect();
    let has_failed = there.shown_state() == "failed";
    if has_failed && changes.is_empty() && disk.enabled {
        return Ok(anew(system, &there, &step, connect()));
    }
    let must_end = !changes.is_empty() || !disk.enabled;
    let end = step(Action::Disable, DiskChange::Disconnect);
    if must_end && !force {
        if !disk.enabled {
            changes.push(end);
        }
        let reason = "it is connected";
        planned
            .pending
            .extend(changes.into_iter().map(|step| Pending {
                step,
                reason: reason.to_owned(),
            }));
        return Ok(planned);
    }
    if must_end {
        planned.steps.push(end);
        planned.steps.append(&mut changes);
    }
    if disk.enabled && (must_end || there.shown_state() == "left") {
        planned.steps.push(step(Action::Enable, connect()));
    }
    Ok(planned)
}

/// Plans for a disk whose requests fail until it is made again, which requires that the disk is not in use.
fn anew(
    system: &dyn System,
    there: &Disk,
    step: &impl Fn(Action, DiskChange) -> PlanStep,
    connect: DiskChange,
) -> Planned {
    let steps = vec![
        step(Action::Disable, DiskChange::Disconnect),
        step(Action::Enable, connect),
    ];
    let node = there.node().unwrap_or_default();
    let device = node.file_name().unwrap_or_default().to_string_lossy();
    let users = users(system, &device);
    if users.is_empty() {
        return Planned {
            steps,
            pending: Vec::new(),
        };
    }
    let reason = format!("its requests fail, and it is in use: {}", users.join("; "));
    let pending = steps.into_iter().map(|step| Pending {
        step,
        reason: reason.clone(),
    });
    Planned {
        steps: Vec::new(),
        pending: pending.collect(),
    }
}

/// Returns the settings of a disk, for its description.
fn initial(wanted: &Wanted) -> Vec<Initial> {
    let given = |attribute: &'static str, value: String| Initial {
        attribute,
        value,
        given: true,
    };
    let mut settings = vec![
        given("address", wanted.address.to_string()),
        given("volume", wanted.volume.clone()),
    ];
    settings.extend(wanted.wwid.map(|id| given("expect_wwid", id.to_string())));
    for (attribute, name, _) in settings::OPTIONS {
        let value = wanted.option(name);
        settings.extend(value.map(|value| given(attribute, value.to_owned())));
    }
    settings
}

/// Carries out a change, and records how to undo it.
pub(crate) fn change(
    system: &dyn System,
    name: &str,
    change: &DiskChange,
    transaction: &mut Transaction<'_>,
) -> Result<()> {
    if system.interrupted() {
        return Err(Error::interrupted());
    }
    match change {
        DiskChange::NextConnect => Ok(()),
        DiskChange::Connect(wanted) => {
            let (_, _, changed) = bring_up(system, &whole(name, wanted))?;
            if changed {
                let name = name.to_owned();
                transaction.changed(move |system| match show::find(system, &name) {
                    Some(disk) => end(system, &disk, false),
                    None => Ok(()),
                });
            }
            Ok(())
        }
        DiskChange::Disconnect => {
            let Some(disk) = show::find(system, name) else {
                return Ok(());
            };
            end(system, &disk, false)?;
            if let Some(wanted) = disk.wanted {
                let before = whole(name, &wanted);
                transaction.changed(move |system| bring_up(system, &before).map(drop));
            }
            Ok(())
        }
    }
}

fn whole(name: &str, wanted: &Wanted) -> Asked {
    Asked {
        name: Some(name.to_owned()),
        wanted: wanted.clone(),
        is_whole: true,
        has_host: true,
    }
}

/// Reads the existing disks, in the form of the configuration.
pub(crate) fn read(system: &dyn System) -> Result<Vec<(DeviceName, config::Disk)>> {
    let own = hostid::current(system).ok().map(|(id, _)| id);
    let mut disks = Vec::new();
    for disk in show::all(system) {
        // The configuration does not control a disk that was started by hand.
        let (Some(name), Some(wanted)) = (&disk.name, &disk.wanted) else {
            continue;
        };
        let Ok(parsed) = name.parse() else {
            continue;
        };
        let host = wanted.host.parse().ok().filter(|host| Some(*host) != own);
        let mut read = config::Disk {
            address: wanted.address.to_string(),
            volume: (wanted.volume != *name)
                .then(|| wanted.volume.parse().ok())
                .flatten(),
            wwid: wanted.wwid.map(Id),
            host_id: host.map(Id),
            enabled: true,
            user: true,
            ..config::Disk::default()
        };
        let is_insecure =
            !wanted.keys && keys::both_exist(system, &wanted.address.to_string(), false).is_err();
        read.set_by(|attribute| {
            if attribute == "insecure" {
                return Ok(Some(u8::from(is_insecure).to_string()));
            }
            Ok(settings::attribute(wanted, attribute))
        })?;
        disks.push((parsed, read));
    }
    Ok(disks)
}
