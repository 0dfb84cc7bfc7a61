// SPDX-License-Identifier: GPL-2.0

//! What `check` has found, as text.

use std::fmt::{self, Write as _};

use crate::check::{Finding, Level};

/// Writes the findings, and how many are not as they should be.
pub(super) fn write(
    f: &mut fmt::Formatter<'_>,
    findings: &[Finding],
    failures: usize,
    warnings: usize,
) -> fmt::Result {
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "WARNING",
            Level::Failure => "FAILURE",
        };
        writeln!(
            f,
            "{level:<8}{}: {}: {}",
            finding.check, finding.subject, finding.message
        )?;
        for line in finding.advice.iter().flat_map(|advice| advice.lines()) {
            writeln!(f, "          {line}")?;
        }
    }
    let mut sum = String::new();
    let several = |number: usize, what: &str| {
        let s = if number == 1 { "" } else { "s" };
        format!("{number} {what}{s}")
    };
    if failures + warnings == 0 {
        sum.push_str("nothing is wrong");
    } else {
        // Writing to a string cannot fail.
        let _ = write!(
            sum,
            "{}, {}",
            several(failures, "failure"),
            several(warnings, "warning")
        );
    }
    writeln!(f, "{sum}")
}
