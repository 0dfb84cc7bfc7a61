// SPDX-License-Identifier: GPL-2.0

//! The findings of `hcablk check`: as JSON and as text.

use std::fmt::{self, Write as _};

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Level {
    /// No problem.
    Ok,
    /// The subject cannot be checked, or the finding is worth knowing.
    Note,
    /// The subject works, but not as well as it could.
    Warning,
    /// The subject does not work.
    Failure,
}

/// One finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Finding {
    /// The kind of check.
    pub check: &'static str,
    /// The object that was checked.
    pub subject: String,
    /// The severity of the finding.
    pub level: Level,
    /// The finding.
    pub message: String,
    /// The advice; always present for warnings and failures.
    pub advice: Option<String>,
}

/// Writes the findings, and the number of problems.
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
