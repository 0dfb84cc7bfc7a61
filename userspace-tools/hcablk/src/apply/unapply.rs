// SPDX-License-Identifier: GPL-2.0

//! `hcablk target unapply`: ends what `hcablk target apply --record` made.

use std::time::Duration;

use super::record::{Mark, Record};
use super::step::Table;
use crate::config;
use crate::error::{Error, Result};
use crate::output::{Done, Outcome};
use crate::system::System;
use crate::target::{unexport_these, unlisten};

/// Runs `hcablk target unapply`. `unit` is the unit of systemd that is being stopped by this.
pub fn unapply(
    system: &dyn System,
    unit: Option<&str>,
    timeout: Option<Duration>,
) -> Result<Outcome> {
    let _lock = super::lock(system)?;
    let record = Record::of(system);
    // Check first, then touch: what is started next would fail.
    if let Some(unit) = unit.filter(|unit| is_restarted(system, unit)) {
        if let Err(error) = config::load(system) {
            let mut outcome = ended(Vec::new(), Vec::new());
            outcome.note(format!(
                "{unit} is restarted, but nothing was ended, since it could not be made again: {}",
                error.message
            ));
            return Ok(outcome);
        }
    }
    let ports = record.all(Mark::Made, Table::Port)?;
    // Clients that come back do not find a volume that is about to end.
    unlisten(system, Some(&ports), true)?;
    let volumes = record.all(Mark::Made, Table::Export)?;
    let names = volumes.iter().map(|name| name.parse());
    let names = names.collect::<Result<Vec<_>, String>>();
    let names = names.map_err(|why| Error::new(crate::error::Kind::Failed, why))?;
    let all = unexport_these(system, &names, true, timeout);
    for mark in [Mark::Failed, Mark::Made] {
        for name in record.all(mark, Table::Port)? {
            record.forget(Table::Port, &name)?;
        }
        for name in record.all(mark, Table::Export)? {
            record.forget(Table::Export, &name)?;
        }
    }
    record.set_not_applied(false)?;
    let (volumes, notes) = all?;
    let mut outcome = ended(volumes, ports);
    outcome.notes.extend(notes);
    Ok(outcome)
}

fn ended(volumes: Vec<String>, ports: Vec<String>) -> Outcome {
    let nothing = volumes.is_empty() && ports.is_empty();
    let mut outcome = Outcome::new(Done::Unapply {
        changed: !nothing,
        volumes,
        ports,
    });
    if nothing {
        outcome.note("nothing was ended");
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
