// SPDX-License-Identifier: GPL-2.0

//! Text about the configuration: the changes that applied it, and the differences from the kernel's state.

use std::fmt;

use crate::apply::step::{Action, Pending, PlanStep};

/// Writes the steps that were made, or would be made, and the pending ones.
pub(super) fn applied(
    f: &mut fmt::Formatter<'_>,
    dry_run: bool,
    steps: &[PlanStep],
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

/// Counts the objects of a configuration, in words.
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

/// Writes how the kernel's state differs from the configuration. A missing object is written as missing, without its
/// settings.
pub(super) fn differences(
    f: &mut fmt::Formatter<'_>,
    steps: &[PlanStep],
    not_configured: &[String],
) -> fmt::Result {
    let is_made = |step: &PlanStep| {
        let makes = |other: &&PlanStep| matches!(other.action, Action::Make { .. });
        let made = steps.iter().filter(makes);
        made.clone()
            .any(|other| other.table == step.table && other.name == step.name)
    };
    // An object that is disabled for a change, and enabled again, differs only by that change.
    let count = |step: &PlanStep, action: &Action| {
        let same = |other: &&PlanStep| {
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
    for name in not_configured {
        writeln!(f, "- {name}: it is not configured")?;
    }
    Ok(())
}
