// SPDX-License-Identifier: GPL-2.0

//! Text about the configuration: what was done to make it so, and what is otherwise.

use std::fmt;

use crate::apply::step::{Action, Pending, Step};

/// Writes what was done, or would be, and what was not.
pub(super) fn applied(
    f: &mut fmt::Formatter<'_>,
    dry_run: bool,
    steps: &[Step],
    pending: &[Pending],
) -> fmt::Result {
    let word = if dry_run { "would" } else { "done:" };
    for step in steps {
        writeln!(f, "{word} {step}")?;
    }
    for Pending { step, reason } in pending {
        writeln!(f, "pending: {step}: {reason}")?;
    }
    Ok(())
}

/// Says what a configuration has.
pub(super) fn counted(exports: usize, ports: usize, disks: usize) -> String {
    let count = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    };
    let [exports, ports, disks] = [
        count(exports, "export"),
        count(ports, "port"),
        count(disks, "disk"),
    ];
    format!("{exports}, {ports}, {disks}")
}

/// Writes in what the kernel is otherwise than configured. Of what is not there, nothing else is said.
pub(super) fn differences(
    f: &mut fmt::Formatter<'_>,
    steps: &[Step],
    beside: &[String],
) -> fmt::Result {
    let is_made = |step: &Step| {
        let makes = |other: &&Step| matches!(other.action, Action::Make { .. });
        let made = steps.iter().filter(makes);
        made.clone()
            .any(|other| other.table == step.table && other.name == step.name)
    };
    // What is disabled to be changed, and enabled again, differs by what is changed.
    let count = |step: &Step, action: &Action| {
        let same = |other: &&Step| {
            other.table == step.table && other.name == step.name && other.action == *action
        };
        steps.iter().filter(same).count()
    };
    for step in steps {
        let is_switch = matches!(step.action, Action::Enable | Action::Disable);
        let is_both = count(step, &Action::Enable) != 0 && count(step, &Action::Disable) != 0;
        let makes = matches!(step.action, Action::Make { .. });
        if makes || !(is_made(step) || is_switch && is_both) {
            writeln!(f, "{}", step.difference())?;
        }
    }
    for name in beside {
        writeln!(f, "- {name}: it is not configured")?;
    }
    Ok(())
}
