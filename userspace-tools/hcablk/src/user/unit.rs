// SPDX-License-Identifier: GPL-2.0

//! The unit of systemd that keeps the program of a disk running.
//!
//! The unit is made from a template (`hcablk-ublk@.service`) and is not transient: an administrator can read it and
//! change it with `systemctl edit`, and its order at boot and shutdown does not depend on how it was started.

use std::path::Path;

use crate::error::{Error, Kind, Result};
use crate::system::System;

/// Exists while systemd runs this machine.
const RUNS: &str = "/run/systemd/system";
/// The program that serves a disk.
pub(super) const PROGRAM: &str = "/usr/sbin/hcablk-ublk";
const MADE_BY_HAND: &str = "/usr/local/sbin/hcablk-ublk";
/// The properties that are read from a unit.
const PROPERTIES: &str = "--property=ActiveState,NRestarts,Result,ExecMainStatus";

/// Returns the unit of a disk.
pub(super) fn name(disk: &str) -> String {
    format!("hcablk-ublk@{disk}.service")
}

/// Returns the path of the program; `None` if it is not installed.
pub(super) fn program(system: &dyn System) -> Option<&'static str> {
    [PROGRAM, MADE_BY_HAND]
        .into_iter()
        .find(|program| system.exists(Path::new(program)))
}

/// Checks that the program is installed, that systemd runs, and that the kernel has what a disk needs.
pub(super) fn require(system: &dyn System, how: &str) -> Result<()> {
    let lacks = |why: String| Error::new(Kind::Setup, why);
    if program(system).is_none() {
        return Err(lacks(
            "the program hcablk-ublk, which serves disks in user space, is not installed"
                .to_owned(),
        )
        .advise(
            "Install the package hcablk-ublk. For a disk of the kernel's driver, leave out --user.",
        ));
    }
    if !system.exists(Path::new(RUNS)) {
        return Err(lacks(
            "systemd does not run this machine, so nothing would keep the program running that serves the disk".to_owned(),
        )
        .advise(format!(
            "Configure the machine's service manager to run the program, and to run `hcablk-ublk recover N` when it was killed:\n\
             {how}"
        )));
    }
    for (module, node) in [
        ("ublk_drv", "/dev/ublk-control"),
        ("rdma_ucm", "/dev/infiniband/rdma_cm"),
    ] {
        if system.exists(Path::new(node)) {
            continue;
        }
        system.load_module(module).map_err(|reason| {
            lacks(format!("cannot load the kernel module {module}: {reason}")).advise(
                "Run as root. A kernel that lacks it (`grep -E 'BLK_DEV_UBLK|INFINIBAND_USER_ACCESS' /boot/config-$(uname -r)`)\n\
                 cannot have disks in user space.",
            )
        })?;
    }
    Ok(())
}

fn systemctl(system: &dyn System, arguments: &[&str]) -> Result<String> {
    system.run("systemctl", arguments).map_err(|reason| {
        let command = arguments.join(" ");
        let error = Error::new(
            Kind::Failed,
            format!("`systemctl {command}` failed: {reason}"),
        );
        error.advise("This needs root, and a systemd that answers: systemctl status")
    })
}

/// Starts the unit of a disk, and does not wait.
pub(super) fn start(system: &dyn System, disk: &str) -> Result<()> {
    systemctl(system, &["start", "--no-block", &name(disk)]).map(drop)
}

/// Stops the unit of a disk: its program removes the disk, and ends. Waits for that.
pub(super) fn stop(system: &dyn System, disk: &str) -> Result<()> {
    systemctl(system, &["stop", &name(disk)])?;
    // If its program did not end in time, systemd lists the unit as failed. A unit that was stopped on purpose must not
    // stay in that list.
    let _ = systemctl(system, &["reset-failed", &name(disk)]);
    Ok(())
}

/// Returns the state of the unit: `active`, `activating`, `failed`, `inactive`, …
pub(super) fn state(system: &dyn System, disk: &str) -> Result<String> {
    Ok(status(system, disk)?.state)
}

/// The state of a unit according to systemd.
#[derive(Default)]
pub(super) struct Status {
    /// The state, as [`state`] returns it.
    pub(super) state: String,
    /// The number of restarts of its program since the unit was started.
    pub(super) restarts: u32,
    /// The reason why its last program has ended, or could not be started; `None` if it runs, or has ended normally.
    pub(super) reason: Option<String>,
}

/// Returns the state of the unit according to systemd.
pub(super) fn status(system: &dyn System, disk: &str) -> Result<Status> {
    let unit = name(disk);
    let text = systemctl(system, &["show", PROPERTIES, &unit])?;
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.trim())
    };
    let ended = value("ExecMainStatus").unwrap_or_default();
    Ok(Status {
        state: value("ActiveState").unwrap_or_default().to_owned(),
        restarts: value("NRestarts")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        reason: match value("Result") {
            None | Some("" | "success") => None,
            Some("exit-code") => Some(format!(
                "its program has exited with {ended}{}",
                hint(ended)
            )),
            Some("signal" | "core-dump") => {
                Some(format!("its program was ended by signal {ended}"))
            }
            Some(result) => Some(format!("systemd says {result:?}")),
        },
    })
}

/// Explains an exit code of systemd, which the program itself does not use.
fn hint(code: &str) -> &'static str {
    match code {
        "127" => ": a library that it needs may be missing",
        "203" => ": it could not be started",
        _ => "",
    }
}
