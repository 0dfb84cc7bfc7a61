// SPDX-License-Identifier: GPL-2.0

//! Carries out the plan, so that it can be undone.

use std::path::Path;
use std::time::Duration;

use uuid::Uuid;

use super::step::{Action, Initial, PlanStep, Table};
use crate::configfs::{Group, Transaction, INITIATOR, TARGET};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::initiator::{close, enable as connect, same, set_up_path};
use crate::keys;
use crate::names::VolumeName;
use crate::system::System;
use crate::target::{
    allow_host, allowed_hosts, enable_export, enable_port, keep_wwid, ports, volumes,
    wait_until_gone,
};
use crate::user;

/// The time after which the command first reports that it is waiting.
const FIRST_REPORT: Duration = Duration::from_secs(2);

/// The settings of a path.
const PATH: [&str; 2] = ["address", "port"];

/// An object of the configuration that could not be made. Its steps that had succeeded are undone.
pub struct Failed {
    /// The steps of the object that failed.
    pub steps: Vec<PlanStep>,
    /// The index of the failed step.
    pub index: usize,
    /// The reason for the failure.
    pub error: Error,
}

/// Carries out the steps, one after the other, and undoes them all if one fails.
pub fn all(system: &dyn System, steps: &[PlanStep]) -> Result<()> {
    together(system, steps, system.now()).map_err(|failed| failed.1)
}

/// Carries out the steps of each export, port and disk separately: if one fails, the others stay. Returns the steps
/// that were done, and the failures. Fails if the command is interrupted; the steps done before stay.
pub fn each(system: &dyn System, steps: &[PlanStep]) -> Result<(Vec<PlanStep>, Vec<Failed>)> {
    let began = system.now();
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for steps in steps.chunk_by(|one, next| (one.table, &one.name) == (next.table, &next.name)) {
        match together(system, steps, began) {
            Ok(()) => done.extend_from_slice(steps),
            Err(failure) => {
                let (index, error) = *failure;
                if error.kind == Kind::Interrupted {
                    return Err(error);
                }
                failed.push(Failed {
                    steps: steps.to_vec(),
                    index,
                    error,
                });
            }
        }
    }
    Ok((done, failed))
}

/// Carries out the steps in one transaction; reports the step that failed.
fn together(
    system: &dyn System,
    steps: &[PlanStep],
    began: Duration,
) -> Result<(), Box<(usize, Error)>> {
    let mut transaction = Transaction::new(system);
    let mut index = 0;
    let result = steps.iter().enumerate().try_for_each(|(now, step)| {
        index = now;
        if system.now() >= began + FIRST_REPORT
            && matches!(step.action, Action::Enable | Action::Disable)
        {
            system.progress(&step.to_string());
        }
        one(system, step, &mut transaction)
    });
    transaction
        .finish(result)
        .map_err(|error| Box::new((index, error)))
}

/// Returns the directory that a step changes; loads the module.
fn group<'a>(system: &'a dyn System, step: &PlanStep) -> Result<Group<'a>> {
    Ok(match step.table {
        Table::Export => volumes(&TARGET.require(system)?),
        Table::Port => ports(&TARGET.require(system)?),
        Table::Disk | Table::Host => INITIATOR.require(system)?,
    }
    .child(&step.name))
}

fn one(system: &dyn System, step: &PlanStep, transaction: &mut Transaction<'_>) -> Result<()> {
    if let Action::StoreHostId { id } = &step.action {
        return transaction.make_file(Path::new(hostid::FILE), &format!("{id}\n"));
    }
    if let Some(change) = &step.user {
        return user::change(system, &step.name, change, transaction);
    }
    let group = &group(system, step)?;
    let path = |number: u8| group.child("paths").child(&number.to_string());
    match &step.action {
        Action::StoreHostId { .. } => Ok(()),
        Action::Make { settings } => {
            if step.table == Table::Export {
                keep_derived(system, &step.name, settings, transaction)?;
            }
            make(group, settings, transaction)
        }
        Action::Set { attribute, to, .. } => transaction.set(group, attribute, to),
        Action::Allow { host, .. } => allow_host(group, *host, transaction),
        Action::Forbid { host, .. } => {
            // Uses the name of the existing directory, which may be written differently.
            let hosts = allowed_hosts(group)?;
            for (_, allowed) in hosts.iter().filter(|(id, _)| id == host) {
                transaction.rmdir_restorable(allowed, keys::set_host)?;
            }
            wait_until_gone(group, &[*host]).map(drop)
        }
        Action::AddPath {
            number,
            address,
            port,
            enabled,
        } => {
            let endpoint = Endpoint {
                address: address.clone(),
                port: *port,
            };
            let path = set_up_path(group, *number, &endpoint, transaction)?;
            if *enabled {
                transaction.enable(&path.group)??;
            }
            Ok(())
        }
        Action::RemovePath { number, .. } => {
            let path = path(*number);
            if path.flag("enable")? {
                transaction.disable(&path, switch_off)?;
            }
            transaction.rmdir(&path, &PATH)
        }
        Action::EnablePath { number } => Ok(transaction.enable(&path(*number))??),
        Action::DisablePath { number } => transaction.disable(&path(*number), switch_off),
        Action::Enable => match step.table {
            Table::Export => enable_export(group, transaction).map(drop),
            Table::Port => enable_port(group, transaction),
            Table::Disk | Table::Host => connect(group, transaction).map(drop),
        },
        Action::Disable => match step.table {
            Table::Disk => transaction.disable(group, close),
            _ => transaction.disable(group, switch_off),
        },
    }
}

/// Stores the derived wwid of a volume, if the configuration has none.
fn keep_derived(
    system: &dyn System,
    name: &str,
    settings: &[Initial],
    transaction: &mut Transaction<'_>,
) -> Result<()> {
    let value = |attribute| settings.iter().find(|one| one.attribute == attribute);
    let derived = value("wwid").filter(|wwid| !wwid.given);
    let wwid = derived.and_then(|wwid| Uuid::try_parse(&wwid.value).ok());
    match (name.parse::<VolumeName>(), value("path"), wwid) {
        (Ok(name), Some(path), Some(wwid)) => {
            keep_wwid(system, &name, &path.value, wwid, transaction)
        }
        _ => Ok(()),
    }
}

fn make(group: &Group<'_>, settings: &[Initial], transaction: &mut Transaction<'_>) -> Result<()> {
    transaction.mkdir(group)?;
    for setting in settings {
        // A value that is the default already is not written, since the attribute may not be writable.
        let now = group.get(setting.attribute);
        let is_so = now
            .as_ref()
            .is_ok_and(|now| same(setting.attribute, now, &setting.value));
        let is_unknown = now.is_err_and(|error| error.is_gone()) && !setting.given;
        if !is_so && !is_unknown {
            transaction.set(group, setting.attribute, &setting.value)?;
        }
    }
    Ok(())
}

fn switch_off(group: &Group<'_>) -> Result<()> {
    Ok(group.system().write(&group.path().join("enable"), "0\n")?)
}
