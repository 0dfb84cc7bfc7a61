// SPDX-License-Identifier: GPL-2.0

//! `hcablk report`: collects the state of this machine in one archive, without keys, for support.
//!
//! It changes nothing and writes only the archive. If a source cannot be read, the archive has the others, and its
//! README.txt names the missing one.
//!
//! | module | holds |
//! |---|---|
//! | `archive` | the format of the archive |
//! | `gather` | reading files, folders and the output of programs as the text of a part |
//! | `parts` | the parts of a report |
//! | `secrets` | removing keys and passwords from text |

mod archive;
mod gather;
mod parts;
mod secrets;

use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::events;
use crate::output::{Done, Outcome, ReportPart};
use crate::system::{OpError, System};

use parts::Part;
pub(crate) use secrets::without_keys;

/// The part that describes the others.
const README: &str = "README.txt";

/// Runs `hcablk report`.
pub fn report(system: &dyn System, output: Option<&Path>) -> Result<Outcome> {
    let now = system.clock().real;
    let host = plain(&system.host_name());
    let time = events::utc(now);
    let name = format!("hcablk-report-{host}-{}", compact(&time));
    let file = output.map_or_else(|| PathBuf::from(format!("{name}.tar.gz")), Path::to_owned);
    let mut parts = parts::all(system);
    for part in &mut parts {
        part.text = without_keys(&part.text);
    }
    let readme = Part {
        name: README.to_owned(),
        about: "this description",
        text: without_keys(&describe(&host, &time, &parts)),
        missing: Vec::new(),
    };
    parts.insert(0, readme);
    let bytes = archive::pack(&name, &parts, now.as_secs())?;
    system
        .create(&file, &bytes)
        .map_err(|error| cannot_write(&error))?;
    let mut outcome = Outcome::new(Done::Report {
        file: file.display().to_string(),
        bytes: bytes.len(),
        parts: parts.iter().map(shown).collect(),
    });
    let missing: Vec<_> = parts.iter().flat_map(|part| part.missing.iter()).collect();
    if !missing.is_empty() {
        outcome.note(format!(
            "{} sources could not be read: {README} in the archive names them; root can read the most",
            missing.len()
        ));
    }
    outcome.note(
        "it has no keys, but addresses, ids, names of hosts and disks, and lines of logs: look at it before you \
         pass it on",
    );
    Ok(outcome)
}

fn shown(part: &Part) -> ReportPart {
    ReportPart {
        name: part.name.clone(),
        missing: part.missing.clone(),
    }
}

fn cannot_write(error: &OpError) -> Error {
    if error.errno == nix::errno::Errno::EEXIST {
        let message = format!("{} exists already", error.path.display());
        return Error::new(Kind::Exists, message).advise(
            "A report replaces no file. Remove that one, or name another: hcablk report --output FILE",
        );
    }
    let kind = if error.lacks_rights() {
        Kind::Setup
    } else {
        Kind::Failed
    };
    Error::new(kind, format!("cannot write the report: {error}"))
        .with_errno(error.errno)
        .advise("Name a file in a folder that you can write: hcablk report --output FILE")
}

/// Returns a host name as a part of a file name.
fn plain(host: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let name: String = host
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "host" } else { name }.to_owned()
}

/// Shortens `2026-11-25T10:00:00.000000Z` to `20261125T100000Z`.
fn compact(time: &str) -> String {
    let seconds = time.split('.').next().unwrap_or(time);
    format!("{}Z", seconds.replace(['-', ':'], ""))
}

/// Returns the text of README.txt: where the report is from, its parts, and the sources that could not be read.
fn describe(host: &str, time: &str, parts: &[Part]) -> String {
    let width = parts.iter().map(|part| part.name.len()).max().unwrap_or(0);
    let mut lines = vec![
        format!("Report of hcablk {} on {host}, {time}", env!("CARGO_PKG_VERSION")),
        String::new(),
        "Begin with check.txt. Keys and passwords are left out or replaced by [removed]; addresses, ids, and".to_owned(),
        "names of hosts and disks are not.".to_owned(),
        String::new(),
    ];
    for part in parts {
        lines.push(format!("{:<width$}  {}", part.name, part.about));
    }
    lines.push(String::new());
    let missing: Vec<_> = parts
        .iter()
        .flat_map(|part| {
            part.missing
                .iter()
                .map(|why| format!("{}: {why}", part.name))
        })
        .collect();
    if missing.is_empty() {
        lines.push("All sources were read.".to_owned());
    } else {
        lines.push("These sources could not be read:".to_owned());
        lines.extend(missing.iter().map(|line| format!("  {line}")));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_hosts_become_names_of_files() {
        assert_eq!(plain("node-1.example.org"), "node-1.example.org");
        assert_eq!(plain("../a b"), "_a_b");
        assert_eq!(plain(""), "host");
        assert_eq!(compact("2026-11-25T10:03:12.402113Z"), "20261125T100312Z");
    }
}
