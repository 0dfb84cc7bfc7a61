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
use crate::configfs::Transaction;
use crate::error::{Kind, Result};
use crate::initiator::sync_by_name;
use crate::output::{Outcome, Report};
use crate::system::System;

use plan::{Plan, Scope};

/// What `hcablk apply` was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Apply {
    /// Which side.
    pub scope: Scope,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Also end what is in use, where a setting cannot be changed otherwise.
    pub force: bool,
}

/// Runs `hcablk apply`.
pub fn apply(system: &dyn System, wanted: Apply) -> Result<Outcome> {
    let config = config::load(system)?.config;
    let plan = Plan::new(system, &config, wanted.scope, wanted.force)?;
    let mut notes = Vec::new();
    if !wanted.dry_run {
        let mut transaction = Transaction::new(system);
        let result = carry_out::all(system, &plan.steps, &mut transaction);
        transaction.finish(result)?;
        if wanted.scope != Scope::Target {
            notes = sync_paths(system, &config)?;
        }
    }
    let mut outcome = Outcome::new(Report::Applied {
        dry_run: wanted.dry_run,
        steps: plan.steps,
        pending: plan.pending,
        not_configured: plan.not_configured,
    });
    remark(&mut outcome, &config);
    for note in notes {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Gives the disks whose paths are `"auto"` those that their targets tell of; returns remarks.
fn sync_paths(system: &dyn System, config: &Config) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for (name, disk) in &config.disk {
        if disk.enabled && disk.paths == Paths::Auto {
            notes.extend(sync_by_name(system, name.as_str())?);
        }
    }
    Ok(notes)
}

/// Runs `hcablk config diff`.
pub fn diff(system: &dyn System, scope: Scope) -> Result<Outcome> {
    let config = config::load(system)?.config;
    let plan = Plan::new(system, &config, scope, true)?;
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

fn remark(outcome: &mut Outcome, config: &Config) {
    let Report::Applied {
        steps,
        pending,
        not_configured,
        ..
    } = &outcome.report
    else {
        return;
    };
    let mut notes = Vec::new();
    let mut exit = None;
    if config.is_empty() {
        notes.push(format!("nothing is configured in {}", config::MAIN));
    } else if steps.is_empty() && pending.is_empty() {
        notes.push("it is all as configured already".to_owned());
    }
    if !pending.is_empty() {
        exit = Some(Kind::Exists);
        notes.push(
            "what is pending cannot be changed while it is used: unmount and disconnect it, or have \
             this done by hcablk apply --force (a disk that is mounted or open is not ended)"
                .to_owned(),
        );
    }
    if !not_configured.is_empty() {
        notes.push(format!(
            "not configured, and left as it is: {}",
            not_configured.join(", ")
        ));
    }
    for note in notes {
        outcome.note(note);
    }
    outcome.exit = exit;
}
