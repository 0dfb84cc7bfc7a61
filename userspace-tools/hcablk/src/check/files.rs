// SPDX-License-Identifier: GPL-2.0

//! Configuration, host id, and their access rights.

use std::path::{Path, PathBuf};

use super::Findings;
use crate::config;
use crate::hostid;
use crate::system::System;

const FOLDER: &str = "/etc/hcablk";

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    findings.begin("configuration");
    match config::load(system) {
        Err(error) => findings.error(FOLDER, &error),
        Ok(loaded) if loaded.files.is_empty() => findings.note(
            FOLDER,
            "nothing is configured: after a restart nothing is exported or connected",
            "Set up exports and disks, then: hcablk config save",
        ),
        Ok(loaded) => {
            let config = loaded.config;
            findings.ok(
                FOLDER,
                format!(
                    "the configuration has no mistakes: {} exports, {} ports, {} disks",
                    config.export.len(),
                    config.port.len(),
                    config.disk.len()
                ),
            );
        }
    }
    findings.begin("host-id");
    match hostid::current(system) {
        Err(error) => findings.error(hostid::FILE, &error),
        Ok((id, hostid::Source::File)) => findings.ok(hostid::FILE, format!("this host is {id}")),
        Ok((id, hostid::Source::MachineId)) => findings.note(
            hostid::FILE,
            format!("this host is {id}, derived from /etc/machine-id"),
            "A machine that was cloned from the same image has the same id: give each its own with hcablk host-id --generate",
        ),
    }
    rights(system, findings);
}

/// A file or folder of the configuration.
struct Entry {
    path: PathBuf,
    is_folder: bool,
}

/// Returns all files and folders in the folder of the configuration, down to three levels: keys of other machines are
/// at the third.
fn entries(system: &dyn System) -> Vec<Entry> {
    let top = Path::new(FOLDER);
    let mut found = Vec::new();
    let mut paths = vec![top.to_owned()];
    while let Some(path) = paths.pop() {
        let names = system.entries(&path);
        let is_folder = names.is_ok();
        let below = path.strip_prefix(top).map_or(0, |p| p.components().count());
        if below < 3 {
            paths.extend(names.unwrap_or_default().iter().map(|name| path.join(name)));
        }
        found.push(Entry { path, is_folder });
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Returns whether a file must be readable by its owner only.
fn is_secret(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let is_inside = path
        .ancestors()
        .skip(1)
        .any(|above| above.ends_with("keys"));
    is_inside || name == Some("key") || path.extension().is_some_and(|end| end == "key")
}

fn rights(system: &dyn System, findings: &mut Findings) {
    findings.begin("file-rights");
    let root = system.rights(Path::new("/")).map(|rights| rights.owner);
    let mut bad = 0;
    let entries = entries(system);
    for Entry { path, is_folder } in &entries {
        let Some(rights) = system.rights(path) else {
            continue;
        };
        let shown = path.display().to_string();
        if root.is_some_and(|root| root != rights.owner) {
            findings.fail(
                &shown,
                "root does not own it: its owner decides what this machine exports and connects",
                format!("chown root:root {shown}"),
            );
        } else if rights.mode & 0o022 != 0 {
            findings.fail(
                &shown,
                format!(
                    "users other than root may write it (mode {:o})",
                    rights.mode
                ),
                format!("chmod go-w {shown}"),
            );
        } else if !is_folder && is_secret(path) && rights.mode & 0o077 != 0 {
            findings.fail(
                &shown,
                format!(
                    "users other than root may read this key (mode {:o})",
                    rights.mode
                ),
                format!("chmod go= {shown}, and make a new key: other users may know this one"),
            );
        } else {
            continue;
        }
        bad += 1;
    }
    if bad == 0 && system.exists(Path::new(FOLDER)) {
        findings.ok(FOLDER, "only root may write its files, and read keys");
    }
}
