// SPDX-License-Identifier: GPL-2.0

//! `hcablk config check`, `show` and `save`.

use std::path::{Path, PathBuf};

use super::files::{load_files, more};
use super::loaded::Loaded;
use super::schema::Config;
use super::{load, lock, running, MAIN};
use crate::error::{Error, Kind, Result};
use crate::output::{Done, Outcome, Report};
use crate::system::System;

/// The first lines of a file that `save` writes. They mark the file as its own: a change would make `save` refuse to
/// replace files of earlier releases.
const HEADER: &str = "\
# Written by `hcablk config save`. What is left out has its default.
# `hcablk config check` tells mistakes, `hcablk config diff` what the kernel holds otherwise.

";

/// Runs `hcablk config check`, for these files or for the configuration.
pub fn check(system: &dyn System, files: &[PathBuf]) -> Result<Outcome> {
    let loaded = if files.is_empty() {
        load(system)?
    } else {
        load_files(system, files)?
    };
    let remark = exports_without_port(&loaded);
    let Loaded { config, files, .. } = loaded;
    let nothing = files.is_empty();
    let mut outcome = Outcome::new(Report::Checked {
        files: files
            .iter()
            .map(|file| file.display().to_string())
            .collect(),
        exports: config.export.len(),
        ports: config.port.len(),
        disks: config.disk.len(),
    });
    if nothing {
        outcome.note(format!("there is no configuration: {MAIN} is missing"));
    }
    if let Some(what) = remark {
        outcome.note(what);
        outcome.exit = Some(Kind::Usage);
    }
    Ok(outcome)
}

/// Returns a remark if exports are configured but no port. `apply` accepts such a configuration: another program may
/// make a port.
fn exports_without_port(loaded: &Loaded) -> Option<String> {
    let config = &loaded.config;
    if config.port.values().any(|port| port.enabled) {
        return None;
    }
    let (name, _) = config.export.iter().find(|(_, export)| export.enabled)?;
    let place = loaded.place_of(&format!("export.{name}"));
    Some(format!(
        "{place}: there is no [port]: no client can connect to {name}, until hcablk target listen is run"
    ))
}

/// Runs `hcablk config show`, for the files or for the kernel's state.
pub fn show(system: &dyn System, is_running: bool) -> Result<Outcome> {
    let (config, notes) = if is_running {
        running::read(system)?
    } else {
        (load(system)?.config, Vec::new())
    };
    let toml = config.to_toml()?;
    let mut outcome = Outcome::new(Report::Configuration { config, toml });
    for note in notes {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Runs `hcablk config save`: writes the kernel's state into the main file, or a different one.
pub fn save(system: &dyn System, file: Option<&Path>, force: bool) -> Result<Outcome> {
    let main = Path::new(MAIN);
    let file = file.unwrap_or(main);
    // The lock precedes the reading: its holder may be changing the running state. Other files are not part of the
    // configuration and need no lock.
    let _lock = if file == main {
        lock(system, None)?
    } else {
        None
    };
    let (mut config, mut notes) = running::read(system)?;
    // The kernel does not know the names of hosts.
    match load(system) {
        Ok(loaded) => config.host_names = loaded.config.host_names,
        Err(error) => notes.push(format!(
            "[host_names] is left out, since the files have a mistake: {}",
            error.message
        )),
    }
    let text = format!("{HEADER}{}", config.to_toml()?);
    if file == main {
        refuse_beside_others(system)?;
    }
    let changed = refuse_to_overwrite(system, file, &text, &config, force)?;
    if changed {
        system.replace(file, &text)?;
    }
    let mut outcome = Outcome::new(Done::Save {
        file: file.display().to_string(),
        exports: config.export.len(),
        ports: config.port.len(),
        disks: config.disk.len(),
        changed,
    });
    if !changed {
        outcome.note("the file has this configuration already");
    }
    for note in notes {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Refuses to write if there are other files: everything is written to one file, and their tables would exist twice.
fn refuse_beside_others(system: &dyn System) -> Result<()> {
    let others: Vec<_> = more(system)?
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        Kind::Exists,
        format!(
            "{MAIN} is not the only file of the configuration: {}",
            others.join(", ")
        ),
    )
    .advise(
        "This command writes one file, and a table in two files is a mistake. Move the others, or write to \
         another file and copy what you need: hcablk config save --file FILE",
    ))
}

/// Returns whether the file must be written. A file that was written by hand is not lost by accident.
fn refuse_to_overwrite(
    system: &dyn System,
    file: &Path,
    text: &str,
    config: &Config,
    force: bool,
) -> Result<bool> {
    let old = match system.read(file) {
        Err(error) if error.is_gone() => return Ok(true),
        old => old?,
    };
    let says_so = || {
        let loaded = load_files(system, &[file.to_owned()]);
        loaded.is_ok_and(|loaded| loaded.config == *config)
    };
    if old == text || says_so() {
        return Ok(false);
    }
    if old.starts_with(HEADER) || force {
        return Ok(true);
    }
    Err(Error::new(
        Kind::Exists,
        format!(
            "{} exists, and was not written by this command",
            file.display()
        ),
    )
    .advise(
        "Its comments would be lost. To see the new content: hcablk config show --running\n\
         To replace it nevertheless: hcablk config save --force",
    ))
}
