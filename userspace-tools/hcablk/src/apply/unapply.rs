// SPDX-License-Identifier: GPL-2.0

//! `hcablk target unapply`: ends the exports and ports that `hcablk target apply --record` made.

use std::time::Duration;

use super::record::{Mark, Record};
use super::step::Table;
use crate::config;
use crate::error::{Error, Kind, Result};
use crate::names::VolumeName;
use crate::output::{Done, Outcome};
use crate::system::System;
use crate::target::{existing, unexport_these, unlisten};

/// The time limit of the wait for another command that applies the configuration: when the machine shuts down, such a
/// command may hang with a drive, and must not prevent the orderly end of the other exports.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Runs `hcablk target unapply`. `unit` is the unit of systemd that is being stopped.
pub fn unapply(
    system: &dyn System,
    unit: Option<&str>,
    timeout: Option<Duration>,
) -> Result<Outcome> {
    let _lock = config::lock(system, Some(LOCK_LIMIT))?;
    let record = Record::new(system);
    // Checked before anything changes: with a mistake in the configuration, the next start would fail.
    if let Some(unit) = unit.filter(|unit| is_restarted(system, unit)) {
        if let Err(error) = config::load(system) {
            let mut outcome = ended(Vec::new(), Vec::new());
            outcome.note(format!(
                "{unit} is restarted, but no export or port was ended, since the configuration has a mistake and could not be applied again: {}",
                error.message
            ));
            return Ok(outcome);
        }
    }
    if unit.is_some() && !record.was_begun() {
        adopt(system, record)?;
    }
    for table in [Table::Export, Table::Port] {
        for name in record.all(Mark::Failed, table)? {
            record.forget(table, &name)?;
        }
    }
    record.set_not_applied(false)?;
    let mut failures = Vec::new();
    let mut ports = Vec::new();
    // Clients that reconnect must not find a volume that is about to end. The record of an export that ends, or had
    // ended before, is removed; the other records stay for the next stop.
    for id in record.all(Mark::Made, Table::Port)? {
        match unlisten(system, Some(std::slice::from_ref(&id)), true) {
            Ok(_) => {
                record.forget(Table::Port, &id)?;
                ports.push(id);
            }
            Err(error) => failures.push(error),
        }
    }
    let names = record.all(Mark::Made, Table::Export)?;
    let names = names.iter().map(|name| name.parse());
    let names = names.collect::<Result<Vec<VolumeName>, String>>();
    let names = names.map_err(|why| Error::new(Kind::Failed, why))?;
    let mut done: Vec<_> = ports.iter().map(|id| format!("ended port {id}")).collect();
    let (volumes, notes) = match unexport_these(system, &names, true, timeout) {
        Ok(ended) => ended,
        Err(error) => {
            done.extend(error.done.iter().cloned());
            failures.push(error);
            (Vec::new(), Vec::new())
        }
    };
    for name in names {
        if existing(system, &name).is_err() {
            record.forget(Table::Export, name.as_str())?;
        }
    }
    if let Some(mut error) = Error::together(failures) {
        error.done = done.into();
        return Err(error);
    }
    let mut outcome = ended(volumes, ports);
    outcome.notes.extend(notes);
    Ok(outcome)
}

/// Records all configured objects as made: a command of an earlier version, which kept no records, has made them.
fn adopt(system: &dyn System, record: Record<'_>) -> Result<()> {
    let Ok(loaded) = config::load(system) else {
        return Ok(());
    };
    for (name, _) in loaded.config.export.iter().filter(|(_, one)| one.enabled) {
        record.mark(Mark::Made, Table::Export, name.as_str())?;
    }
    for (name, _) in loaded.config.port.iter().filter(|(_, one)| one.enabled) {
        record.mark(Mark::Made, Table::Port, name.as_str())?;
    }
    Ok(())
}

fn ended(volumes: Vec<String>, ports: Vec<String>) -> Outcome {
    let nothing = volumes.is_empty() && ports.is_empty();
    let mut outcome = Outcome::new(Done::Unapply {
        changed: !nothing,
        volumes,
        ports,
    });
    if nothing {
        outcome.note("no export or port ended");
    }
    outcome
}

/// Returns whether systemd stops `unit` only to start it again.
fn is_restarted(system: &dyn System, unit: &str) -> bool {
    let jobs = system.run("systemctl", &["list-jobs", "--no-legend", "--plain", unit]);
    jobs.is_ok_and(|jobs| {
        jobs.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next() == Some(unit) && fields.next() == Some("restart")
        })
    })
}
