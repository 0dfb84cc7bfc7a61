// SPDX-License-Identifier: GPL-2.0

//! Wrong usage, in the form of all failures.

use clap::error::ErrorKind;

use crate::error::{Error, Kind};

/// Explains a refusal of the parser. Returns `None` if the parser prints help or the version. For a call without a
/// command it prints help, too, unless the output is JSON.
pub fn explain(error: &clap::Error, wants_json: bool) -> Option<Error> {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || (is_help && !wants_json) {
        return None;
    }
    let text = error.render().to_string();
    let mut parts = text.split("\n\n").map(|part| {
        let lines = part.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>()
    });
    let first = match error.kind() {
        // The text of a missing command is the help.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            return Some(Error::new(Kind::Usage, "a command is missing").advise(
                "`hcablk --help` lists the commands, `hcablk path --help` those of path.",
            ));
        }
        _ => parts.next().unwrap_or_default().join(" "),
    };
    let message = first.strip_prefix("error: ").unwrap_or(&first);
    let rest = parts.flatten().map(|line| {
        line.replace(
            "For more information, try '--help'.",
            "`--help` lists the arguments.",
        )
    });
    let advice = rest.collect::<Vec<_>>().join("\n");
    Some(Error::new(Kind::Usage, message).advise(advice))
}
