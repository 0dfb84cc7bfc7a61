// SPDX-License-Identifier: GPL-2.0

//! `hcablk apply`: makes the kernel's state match the configuration.
//!
//! | module | holds |
//! |---|---|
//! | [`step`] | one change, and its description |
//! | [`plan`] | the changes that make the kernel's state match the configuration |
//! | [`carry_out`] | carrying out these changes, so that they can be undone |
//! | [`record`] | the objects that the target's service made, and those that it could not make |
//! | [`unapply`](mod@unapply) | ending what the service made |
//! | [`configured`] | `hcablk connect` for disks of the configuration |

pub mod carry_out;
pub mod configured;
pub mod plan;
pub mod record;
pub mod step;
mod unapply;

use crate::config::{self, lock, Config, Paths};
use crate::error::{Error, Kind, Result};
use crate::initiator::sync_by_name;
use crate::output::{Outcome, Report};
use crate::system::System;

use carry_out::Failed;
use plan::{Plan, Scope, Unplanned};
use record::{Mark, Record};
use step::{Pending, Table};
pub use unapply::unapply;

/// The arguments of `hcablk apply`.
#[derive(Clone, Copy, Debug)]
pub struct Apply {
    /// The sides to apply.
    pub scope: Scope,
    /// Only report the steps.
    pub dry_run: bool,
    /// Also end disks and sessions in use, where a setting cannot be changed otherwise.
    pub force: bool,
    /// Keep the others when an export, a port or a disk fails.
    pub keep_going: bool,
    /// The use of the records of the target's service.
    pub recording: Recording,
}

/// How `hcablk apply` uses the records of the target's service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// It ignores them.
    No,
    /// It writes the records.
    Write,
    /// It tries only what failed before, and writes the records.
    Retry,
}

/// Runs `hcablk apply`.
pub fn apply(system: &dyn System, wanted: Apply) -> Result<Outcome> {
    let _lock = if wanted.dry_run {
        None
    } else {
        lock(system, None)?
    };
    let record = (wanted.recording != Recording::No).then(|| Record::new(system));
    let config = match (record, config::load(system)) {
        (_, Ok(loaded)) => loaded.config,
        (None, Err(error)) => return Err(error),
        (Some(record), Err(error)) => {
            return Err(mistake_with_exports(record, wanted.recording, error)?)
        }
    };
    let mut plan = Plan::new(system, &config, wanted.scope, wanted.force)?;
    if let (Some(record), Recording::Retry) = (record, wanted.recording) {
        only_failed(record, &config, &mut plan)?;
    }
    if !wanted.keep_going {
        plan = plan.complete()?;
    }
    let mut remarks = Remarks::new(&plan, &config);
    let Plan {
        mut steps,
        mut pending,
        not_configured,
        unplanned,
    } = plan;
    for Unplanned { table, name, error } in &unplanned {
        let message = error.message.as_str();
        remarks.notes.push(format!("{table} {name}: {message}"));
        remarks.failure(*table, name, error);
    }
    if let (Some(record), Recording::Write) = (record, wanted.recording) {
        record.set_not_applied(false)?;
    }
    if !wanted.dry_run {
        if wanted.keep_going {
            let mut failures: Vec<_> = unplanned
                .iter()
                .map(|one| (one.table, one.name.clone()))
                .collect();
            let result = carry_out::each(system, &steps);
            if let Ok((_, failed)) = &result {
                let named = failed.iter().filter_map(|failed| failed.steps.first());
                failures.extend(named.map(|step| (step.table, step.name.clone())));
            }
            if let Some(record) = record {
                note(record, wanted.recording, &config, &failures)?;
            }
            let failed;
            (steps, failed) = result?;
            for failed in failed {
                let step = &failed.steps[failed.index];
                remarks.failure(step.table, &step.name, &failed.error);
                pending.extend(not_made(failed));
            }
        } else {
            carry_out::all(system, &steps)?;
        }
        if wanted.scope != Scope::Target {
            sync_paths(system, &config, wanted.keep_going, &mut remarks)?;
        }
    }
    let mut outcome = Outcome::new(Report::Applied {
        dry_run: wanted.dry_run,
        steps,
        pending,
        not_configured,
    });
    outcome.notes = remarks.notes;
    outcome.exit = remarks.exit;
    Ok(outcome)
}

/// Returns the error for a configuration with mistakes. If the service made exports of an earlier configuration, which
/// continue, records that the configuration is not applied, and says so in the error.
fn mistake_with_exports(record: Record<'_>, recording: Recording, error: Error) -> Result<Error> {
    if recording != Recording::Write || !record.any(Mark::Made)? {
        return Ok(error);
    }
    record.set_not_applied(true)?;
    let message = format!(
        "nothing was changed, and existing exports continue: {}",
        error.message
    );
    Ok(Error {
        kind: Kind::Exists,
        message,
        ..error
    })
}

/// Reduces a plan to the exports and ports that failed before.
fn only_failed(record: Record<'_>, config: &Config, plan: &mut Plan) -> Result<()> {
    if record.is_not_applied() {
        return Err(Error::new(
            Kind::Usage,
            "the configuration had mistakes at the last attempt to apply it: nothing was applied, and existing exports continue",
        )
        .advise("hcablk config check\nWhen it finds none: systemctl restart hcablk-target"));
    }
    for table in [Table::Export, Table::Port] {
        for name in record.all(Mark::Failed, table)? {
            if !is_configured(config, table, &name) {
                record.forget(table, &name)?;
            }
        }
    }
    let failed = |table, name: &str| record.has(Mark::Failed, table, name);
    plan.steps.retain(|step| failed(step.table, &step.name));
    plan.pending
        .retain(|pending| failed(pending.step.table, &pending.step.name));
    plan.unplanned.retain(|one| failed(one.table, &one.name));
    plan.not_configured.clear();
    Ok(())
}

fn is_configured(config: &Config, table: Table, name: &str) -> bool {
    match table {
        Table::Export => config.export.keys().any(|key| key.as_str() == name),
        Table::Port => config.port.keys().any(|key| key.as_str() == name),
        Table::Host | Table::Disk => false,
    }
}

/// Records which exports and ports match the configuration, and which could not be made to match.
fn note(
    record: Record<'_>,
    recording: Recording,
    config: &Config,
    failures: &[(Table, String)],
) -> Result<()> {
    let exports = config.export.iter();
    let exports = exports.map(|(name, one)| (Table::Export, name.as_str(), one.enabled));
    let ports = config.port.iter();
    let ports = ports.map(|(name, one)| (Table::Port, name.as_str(), one.enabled));
    for (table, name, enabled) in exports.chain(ports) {
        let has_failed = failures
            .iter()
            .any(|(of, failed)| (*of, failed.as_str()) == (table, name));
        if has_failed {
            record.mark(Mark::Failed, table, name)?;
        } else if enabled
            && (recording == Recording::Write || record.has(Mark::Failed, table, name))
        {
            record.mark(Mark::Made, table, name)?;
        } else if recording == Recording::Write {
            record.forget(table, name)?;
        }
    }
    Ok(())
}

/// Returns all steps of an object of which one failed, each with the reason why it is not made.
fn not_made(failed: Failed) -> impl Iterator<Item = Pending> {
    let Failed {
        steps,
        index,
        error,
    } = failed;
    steps.into_iter().enumerate().map(move |(n, step)| Pending {
        step,
        reason: if n == index {
            error.message.clone()
        } else {
            "another step of it failed".to_owned()
        },
    })
}

/// Adds to each disk whose paths are `"auto"` the paths that its target reports.
fn sync_paths(
    system: &dyn System,
    config: &Config,
    keep_going: bool,
    remarks: &mut Remarks,
) -> Result<()> {
    for (name, disk) in &config.disk {
        if disk.enabled && disk.paths == Paths::Auto {
            match sync_by_name(system, name.as_str()) {
                Ok(notes) => remarks.notes.extend(notes),
                Err(error) if keep_going && error.kind != Kind::Interrupted => {
                    let message = error.message.as_str();
                    remarks.notes.push(format!("disk {name}: {message}"));
                    remarks.exit.get_or_insert(error.kind);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Runs `hcablk config diff`.
pub fn diff(system: &dyn System, scope: Scope) -> Result<Outcome> {
    let config = config::load(system)?.config;
    let plan = Plan::new(system, &config, scope, true)?.complete()?;
    let same = plan.steps.is_empty() && plan.not_configured.is_empty();
    let mut outcome = Outcome::new(Report::Difference {
        same,
        steps: plan.steps,
        not_configured: plan.not_configured,
    });
    if same {
        outcome.note("the kernel's state matches the configuration exactly");
    } else {
        outcome.exit = Some(Kind::Exists);
    }
    Ok(outcome)
}

/// The remarks of a command, and its exit code.
struct Remarks {
    notes: Vec<String>,
    exit: Option<Kind>,
}

impl Remarks {
    /// Returns the remarks on a plan.
    fn new(plan: &Plan, config: &Config) -> Self {
        let mut notes = Vec::new();
        let mut exit = None;
        if config.is_empty() {
            notes.push(format!("nothing is configured in {}", config::MAIN));
        } else if plan.steps.is_empty() && plan.pending.is_empty() && plan.unplanned.is_empty() {
            notes.push("everything already matches the configuration".to_owned());
        }
        if !plan.pending.is_empty() {
            exit = Some(Kind::Exists);
            notes.push(
                "pending changes affect objects in use: unmount and disconnect them, or run \
                 hcablk apply --force (a disk that is mounted or open is not ended)"
                    .to_owned(),
            );
        }
        if !plan.not_configured.is_empty() {
            notes.push(format!(
                "not configured, and left as it is: {}",
                plan.not_configured.join(", ")
            ));
        }
        Self { notes, exit }
    }

    /// Adds the advice for a failure. The exit code is that of the first failure; a failure takes precedence over
    /// pending changes.
    fn failure(&mut self, table: Table, name: &str, error: &Error) {
        let advice = error.advice_or_usual();
        self.notes.push(format!("{table} {name}: {advice}"));
        let not_undone = error.not_undone.iter();
        self.notes
            .extend(not_undone.map(|what| format!("could not undo: {what}")));
        if self.exit.is_none_or(|kind| kind == Kind::Exists) {
            self.exit = Some(error.kind);
        }
    }
}
