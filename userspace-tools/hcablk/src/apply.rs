// SPDX-License-Identifier: GPL-2.0

//! `hcablk apply`: makes the kernel hold what the configuration says.
//!
//! | module | holds |
//! |---|---|
//! | [`step`] | one change, and how it is told |
//! | [`plan`] | the changes that make the kernel hold what is configured |
//! | [`carry_out`] | doing them, so that they can be undone |
//! | [`configured`] | `hcablk connect` for disks of the configuration |

pub mod carry_out;
pub mod configured;
pub mod plan;
pub mod step;

use crate::config::{self, Config, Paths};
use crate::error::{Error, Kind, Result};
use crate::initiator::sync_by_name;
use crate::output::{Outcome, Report};
use crate::system::System;

use carry_out::Failed;
use plan::{Plan, Scope, Unplanned};
use step::{Pending, Table};

/// What `hcablk apply` was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Apply {
    /// Which side.
    pub scope: Scope,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Also end what is in use, where a setting cannot be changed otherwise.
    pub force: bool,
    /// Keep what was made of the others when an export, a port or a disk fails.
    pub keep_going: bool,
}

/// Runs `hcablk apply`.
pub fn apply(system: &dyn System, wanted: Apply) -> Result<Outcome> {
    let config = config::load(system)?.config;
    let mut plan = Plan::new(system, &config, wanted.scope, wanted.force)?;
    if !wanted.keep_going {
        plan = plan.complete()?;
    }
    let mut remarks = Remarks::of(&plan, &config);
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
    if !wanted.dry_run {
        if wanted.keep_going {
            let failed;
            (steps, failed) = carry_out::each(system, &steps)?;
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

/// Returns the steps of what failed, with the reason of each.
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

/// Gives the disks whose paths are `"auto"` those that their targets tell of.
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
        outcome.note("the kernel holds what is configured, and nothing else");
    } else {
        outcome.exit = Some(Kind::Exists);
    }
    Ok(outcome)
}

/// What is said beside the answer, and the exit code that comes of it.
struct Remarks {
    notes: Vec<String>,
    exit: Option<Kind>,
}

impl Remarks {
    /// Those on what is planned.
    fn of(plan: &Plan, config: &Config) -> Self {
        let mut notes = Vec::new();
        let mut exit = None;
        if config.is_empty() {
            notes.push(format!("nothing is configured in {}", config::MAIN));
        } else if plan.steps.is_empty() && plan.pending.is_empty() && plan.unplanned.is_empty() {
            notes.push("it is all as configured already".to_owned());
        }
        if !plan.pending.is_empty() {
            exit = Some(Kind::Exists);
            notes.push(
                "what is pending cannot be changed while it is used: unmount and disconnect it, or have \
                 this done by hcablk apply --force (a disk that is mounted or open is not ended)"
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

    /// Says what to do about what failed. The exit code is the first failure's, rather than that of what is in use.
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
