// SPDX-License-Identifier: GPL-2.0

//! `hcablk connect DISK` and `--all`: connects disks of the configuration one by one, and retries while their targets
//! are not up.

use std::time::Duration;

use super::carry_out;
use super::plan::{self, Plan};
use crate::config::{self, Config, Disk, Paths};
use crate::configfs::INITIATOR;
use crate::error::{Error, Kind, Result};
use crate::initiator::{sync_by_name, wait_for_node};
use crate::names::DeviceName;
use crate::output::{ConnectedDisk, Done, Outcome};
use crate::system::System;
use crate::user;

/// The pause between two attempts to connect a disk.
const PAUSE: Duration = Duration::from_secs(1);

/// The time between two messages about the disks that are tried again.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// A connected disk, and the remarks on its paths.
type Connected = (ConnectedDisk, Vec<String>);

/// The result of one attempt to connect a disk.
struct Attempt<'a> {
    name: &'a DeviceName,
    disk: &'a Disk,
    result: Option<Result<Connected>>,
}

/// Connects the configured disk `only`, or all enabled ones; retries for `wait` while a target is not up or does not
/// allow this host yet.
pub fn connect(system: &dyn System, only: Option<&str>, wait: Duration) -> Result<Outcome> {
    let config = config::load(system)?.config;
    let mut attempts: Vec<_> = config
        .disk
        .iter()
        .filter(|(name, disk)| only.map_or(disk.enabled, |only| name.as_str() == only))
        .map(|(name, disk)| Attempt {
            name,
            disk,
            result: None,
        })
        .collect();
    if let (Some(name), true) = (only, attempts.is_empty()) {
        return Err(Error::new(
            Kind::NotFound,
            format!("there is no disk {name} in the configuration"),
        )
        .advise(
            "`hcablk config show` shows the configuration.\n\
             To connect to a volume that is not in it: hcablk connect ADDRESS VOLUME",
        ));
    }
    try_until(system, &config, &mut attempts, wait)?;
    report(attempts, only.is_some())
}

fn try_until(
    system: &dyn System,
    config: &Config,
    attempts: &mut [Attempt<'_>],
    wait: Duration,
) -> Result<()> {
    let began = system.now();
    let mut next_report = began;
    loop {
        for attempt in attempts.iter_mut().filter(|attempt| attempt.is_open()) {
            if system.interrupted() {
                return Err(Error::interrupted());
            }
            attempt.result = Some(connect_one(system, config, attempt.name, attempt.disk));
        }
        let now = system.now();
        let open = || attempts.iter().filter(|attempt| attempt.is_open());
        if open().next().is_none() || now >= began + wait {
            return Ok(());
        }
        if now >= next_report {
            next_report = now + REPORT_INTERVAL;
            for attempt in open() {
                if let Some(Err(error)) = &attempt.result {
                    system.progress(&format!(
                        "the disk {} is tried again for {} s: {}",
                        attempt.name,
                        (began + wait - now).as_secs(),
                        error.message
                    ));
                }
            }
        }
        system.pause(PAUSE);
    }
}

impl Attempt<'_> {
    /// Returns whether a new attempt may succeed: the target is not up yet, or does not export the volume or allow this
    /// host yet, or the RDMA device is missing.
    fn is_open(&self) -> bool {
        let again = |error: &Error| match error.kind {
            Kind::Connection => !matches!(
                error.errno.as_deref(),
                Some("EPROTO" | "EPROTONOSUPPORT" | "ESTALE")
            ),
            Kind::Setup => error.errno.as_deref() == Some("ENODEV"),
            _ => false,
        };
        match &self.result {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(error)) => again(error),
        }
    }
}

fn connect_one(
    system: &dyn System,
    config: &Config,
    name: &DeviceName,
    disk: &Disk,
) -> Result<Connected> {
    // A user who names a disk wants it now, whether or not it is connected at each start.
    let disk = &Disk {
        enabled: true,
        ..disk.clone()
    };
    if disk.user {
        let (node, changed) =
            user::connect_configured(system, name, disk, plan::own_id(system, config))?;
        let connected = ConnectedDisk {
            name: name.to_string(),
            device: node.to_string_lossy().into_owned(),
            changed,
        };
        return Ok((connected, Vec::new()));
    }
    let plan = Plan::for_disk(system, config, name, disk)?;
    if !plan.pending.is_empty() {
        let what: Vec<_> = plan
            .pending
            .iter()
            .map(|pending| pending.step.to_string())
            .collect();
        return Err(Error::new(
            Kind::Exists,
            format!(
                "the disk {name} is connected with other settings: {}",
                what.join(", ")
            ),
        )
        .advise(format!(
            "Unmount it, and connect it anew: hcablk disconnect {name} && hcablk connect {name}"
        )));
    }
    carry_out::all(system, &plan.steps)?;
    let node = wait_for_node(&INITIATOR.named(system).child(name.as_str()))?;
    let notes = match disk.paths {
        Paths::Auto => sync_by_name(system, name.as_str())?,
        Paths::These(_) => Vec::new(),
    };
    let connected = ConnectedDisk {
        name: name.to_string(),
        device: node.to_string_lossy().into_owned(),
        changed: !plan.steps.is_empty(),
    };
    Ok((connected, notes))
}

fn report(attempts: Vec<Attempt<'_>>, is_one: bool) -> Result<Outcome> {
    let mut disks = Vec::new();
    let mut notes = Vec::new();
    let mut failures = Vec::new();
    for attempt in attempts {
        match attempt.result {
            Some(Ok((disk, about_paths))) => {
                if !disk.changed {
                    notes.push(format!("{} is connected already", disk.name));
                }
                notes.extend(about_paths);
                disks.push(disk);
            }
            Some(Err(error)) => failures.push(error),
            None => (),
        }
    }
    if let Some(all) = Error::together(failures) {
        return Err(all);
    }
    let nothing = disks.is_empty();
    let done = match disks.pop() {
        Some(disk) if is_one => Done::Connect {
            name: disk.name,
            device: disk.device,
            changed: disk.changed,
        },
        last => {
            disks.extend(last);
            Done::ConnectAll {
                changed: disks.iter().any(|disk| disk.changed),
                disks,
            }
        }
    };
    let mut outcome = Outcome::new(done);
    for note in notes {
        outcome.note(note);
    }
    if nothing {
        outcome.note("no disk is configured to be connected");
    }
    Ok(outcome)
}
