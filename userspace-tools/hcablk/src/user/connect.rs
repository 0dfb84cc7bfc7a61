// SPDX-License-Identifier: GPL-2.0

//! `hcablk connect --user`: makes a disk in user space, or finds an existing one with the requested settings.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use uuid::Uuid;

use super::files::{self, Failed, Wanted};
use super::show::{self, Disk};
use super::{settings, unit};
use crate::config::persist::{self, Files, Names, Stored};
use crate::configfs::INITIATOR;
use crate::error::{describe, Error, Kind, Result};
use crate::hostid;
use crate::initiator::{connecting_failed, resolve, Connect, Unreached};
use crate::keys;
use crate::output::{Done, Outcome};
use crate::system::{Lock, System};
use crate::target::DEFAULT_PORT;

/// The time between two checks whether the disk exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The time between two reports that the command waits.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The longest time for which a unit may be inactive after it was asked to start.
const START_LIMIT: Duration = Duration::from_secs(10);
/// The number of times that a program may end without a reason.
const SILENT_ENDS: u32 = 3;
/// The time limit for the device node to appear once the disk exists.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time limit for waiting for another command of this kind.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A requested disk.
pub(crate) struct Asked {
    /// The disk's name; `None` if any disk with these settings will do.
    pub(super) name: Option<String>,
    pub(super) wanted: Wanted,
    /// Whether all settings must match. Otherwise a setting that is left out may have any value, and so may the host's
    /// id.
    pub(super) is_whole: bool,
    /// Whether the host's id was given.
    pub(super) has_host: bool,
}

/// The steps that are needed to provide the disk.
enum Plan {
    /// Nothing: the disk exists.
    Nothing,
    /// A program takes the disk over.
    Recover,
    /// The disk is made.
    Make,
}

/// Runs `hcablk connect --user`.
pub fn connect(system: &dyn System, wanted: &Connect) -> Result<Outcome> {
    if wanted.persist {
        persist::check(system)?;
    }
    let asked = asked(system, wanted)?;
    let (name, device, did) = bring_up_as(system, &asked)?;
    let address = asked.wanted.address.to_string();
    let known = vec![(wanted.address.clone(), address)];
    let stored = wanted.persist.then(|| store(system, &name, known));
    let stored = match stored.transpose() {
        Ok(stored) => stored,
        // Undoing is only for a new disk: the requests of one that was taken over would be lost.
        Err(error) if matches!(did, Plan::Make) => return Err(undo(system, &name, error)),
        Err(error) => return Err(error),
    };
    let changed = !matches!(did, Plan::Nothing);
    let mut outcome = Outcome::new(Done::Connect {
        name: name.clone(),
        device: device.to_string_lossy().into_owned(),
        changed,
    });
    if !changed {
        outcome.note(format!("{name} is connected already"));
    }
    if let Some(stored) = stored {
        let is_changed = stored.is_changed;
        stored.report(&mut outcome);
        if is_changed {
            outcome.note(format!(
                "to connect it at each start: systemctl enable hcablk@{name}"
            ));
        }
    }
    Ok(outcome)
}

/// Writes a disk into the configuration. `known` has the target's address as the caller has given it, which may be a
/// name, and the address that it stands for.
fn store(system: &dyn System, name: &str, known: Vec<(String, String)>) -> Result<Stored> {
    let names = Names::look_up(system, name, known)?;
    let mut files = Files::lock(system)?;
    let all = super::configured::read(system)?;
    let found = all.into_iter().find(|(known, _)| known.as_str() == name);
    let Some((name, disk)) = found else {
        let message = format!("the disk {name} is gone again");
        return Err(Error::new(Kind::Failed, message));
    };
    files.add_disk(name, disk, &names)?;
    files.store()
}

/// Makes the disk, or finds an existing one: returns its name, its node, and whether anything was changed.
pub(crate) fn bring_up(system: &dyn System, asked: &Asked) -> Result<(String, PathBuf, bool)> {
    let (name, node, did) = bring_up_as(system, asked)?;
    Ok((name, node, !matches!(did, Plan::Nothing)))
}

/// Makes the disk, or finds an existing one: returns its name, its node, and the steps for that.
fn bring_up_as(system: &dyn System, asked: &Asked) -> Result<(String, PathBuf, Plan)> {
    let name = match &asked.name {
        Some(name) => name.clone(),
        None => find_connected(system, asked).unwrap_or_else(|| asked.wanted.volume.clone()),
    };
    let (plan, begun) = {
        let _lock = lock(system)?;
        let plan = plan(system, &name, asked)?;
        if !matches!(plan, Plan::Nothing) {
            unit::require(system, &by_hand(&asked.wanted))?;
        }
        if let Plan::Make = plan {
            // From here on other commands see that the name is taken.
            write(system, &name, &asked.wanted)?;
        }
        let begun = match plan {
            Plan::Nothing => Ok(()),
            // Under the lock, so that no other command finds the name without a unit.
            _ => begin(system, &name),
        };
        (plan, begun)
    };
    if matches!(plan, Plan::Nothing) {
        return Ok((name.clone(), node(system, &name)?, plan));
    }
    let started = begun
        .and_then(|()| wait_for(system, &name))
        .and_then(|()| node(system, &name));
    match started {
        Ok(node) => Ok((name, node, plan)),
        Err(error) if matches!(plan, Plan::Make) => Err(undo(system, &name, error)),
        Err(error) => Err(error),
    }
}

/// Converts the command line to a request.
fn asked(system: &dyn System, connect: &Connect) -> Result<Asked> {
    let options = settings::options(connect)?;
    let place = DiskAddress {
        address: &connect.address,
        volume: connect.volume.as_str(),
        host_id: connect.host_id,
        wwid: connect.expect_wwid,
        insecure: connect.insecure,
    };
    Ok(Asked {
        name: connect.name.as_ref().map(ToString::to_string),
        wanted: wanted(system, &place, options)?,
        is_whole: false,
        has_host: connect.host_id.is_some(),
    })
}

/// The address and volume of a disk, and its host.
pub(super) struct DiskAddress<'a> {
    pub(super) address: &'a str,
    pub(super) volume: &'a str,
    pub(super) host_id: Option<Uuid>,
    pub(super) wwid: Option<Uuid>,
    pub(super) insecure: bool,
}

/// Returns the settings that a disk is made with.
pub(super) fn wanted(
    system: &dyn System,
    place: &DiskAddress<'_>,
    options: Vec<(String, String)>,
) -> Result<Wanted> {
    let address = resolve(place.address)?;
    let host = match place.host_id {
        Some(id) => id,
        None => hostid::current(system)?.0,
    };
    let parsed: IpAddr = address.parse().map_err(|error| {
        Error::new(
            Kind::Failed,
            format!("a program cannot connect to the address {address}: {error}"),
        )
    })?;
    Ok(Wanted {
        keys: keys::both_exist(system, &address, place.insecure)?,
        address: parsed,
        volume: place.volume.to_owned(),
        host: host.to_string(),
        wwid: place.wwid,
        options,
    })
}

/// Returns the command that does the same where systemd does not run.
fn by_hand(wanted: &Wanted) -> String {
    let options: Vec<_> = wanted
        .options
        .iter()
        .map(|(name, value)| format!("-o {name}={value} "))
        .collect();
    let keys = if wanted.keys { "--keys " } else { "" };
    format!(
        "hcablk-ublk add --host-id {} {keys}{}{} {}",
        wanted.host,
        options.concat(),
        wanted.address,
        wanted.volume
    )
}

/// Waits for other commands that connect or disconnect disks in user space.
pub(super) fn lock(system: &dyn System) -> Result<Lock> {
    let folder = Path::new(files::FOLDER);
    system.make_durable_folder(folder, folder)?;
    let began = system.now();
    loop {
        if let Some(lock) = system.try_lock(folder)? {
            return Ok(lock);
        }
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        if system.now() >= began + LOCK_TIMEOUT {
            return Err(Error::new(
                Kind::Busy,
                "another command connects or disconnects a disk in user space",
            )
            .advise("Try again when that is done."));
        }
        system.pause(CHECK_INTERVAL);
    }
}

/// Finds a disk that is connected with the requested settings, under any name.
fn find_connected(system: &dyn System, asked: &Asked) -> Option<String> {
    let is_it = |disk: &Disk| {
        let is_up = matches!(disk.shown_state(), "live" | "queueing");
        let is_same = |known: &Wanted| differences(known, asked).is_empty();
        is_up && disk.wanted.as_ref().is_some_and(is_same)
    };
    let disks = show::all(system);
    disks.iter().find(|disk| is_it(disk)).map(Disk::shown_name)
}

/// A setting of a disk that differs from the requested one.
pub(super) struct Difference {
    pub(super) attribute: &'static str,
    pub(super) from: String,
    pub(super) to: String,
}

/// Lists the settings that differ from the requested ones.
pub(super) fn differences(known: &Wanted, asked: &Asked) -> Vec<Difference> {
    let wanted = &asked.wanted;
    let mut different = Vec::new();
    let mut compare = |attribute: &'static str, from: &str, to: &str| {
        if from != to {
            different.push(Difference {
                attribute,
                from: from.to_owned(),
                to: to.to_owned(),
            });
        }
    };
    compare(
        "address",
        &known.address.to_string(),
        &wanted.address.to_string(),
    );
    compare("volume", &known.volume, &wanted.volume);
    let proves = |keys: bool| if keys { "yes" } else { "no" };
    compare("keys", proves(known.keys), proves(wanted.keys));
    if asked.has_host || asked.is_whole {
        compare("host_id", &known.host, &wanted.host);
    }
    if wanted.wwid.is_some() || asked.is_whole {
        let text = |id: Option<Uuid>| id.map_or_else(String::new, |id| id.to_string());
        compare("expect_wwid", &text(known.wwid), &text(wanted.wwid));
    }
    for (attribute, name, default) in settings::OPTIONS {
        let to = wanted.option(name);
        // The port is always compared: one that is not given is the default.
        if to.is_some() || asked.is_whole || *name == "port" {
            let from = known.option(name).unwrap_or(default);
            compare(attribute, from, to.unwrap_or(default));
        }
    }
    different
}

/// Decides which steps are needed.
fn plan(system: &dyn System, name: &str, asked: &Asked) -> Result<Plan> {
    let kernel = INITIATOR.named(system).child(name);
    if kernel.exists() {
        return Err(kernels(name));
    }
    let Some(disk) = show::find(system, name) else {
        return Ok(Plan::Make);
    };
    if disk.number.is_none() {
        return match unit::state(system, name)?.as_str() {
            "active" | "activating" | "deactivating" | "reloading" => Err(changing(name)),
            // A killed command has left the request behind.
            _ => Ok(Plan::Make),
        };
    }
    let different: Vec<_> = disk
        .wanted
        .iter()
        .flat_map(|known| differences(known, asked))
        .map(|one| {
            let Difference {
                attribute,
                from,
                to,
            } = one;
            format!("{attribute} is {from}, not {to}")
        })
        .collect();
    if !different.is_empty() {
        return Err(Error::new(
            Kind::Exists,
            format!(
                "there is a disk {name} in user space with other settings: {}",
                different.join(", ")
            ),
        )
        .advise(format!(
            "Disconnect it first (hcablk disconnect {name}), or connect under another name (--name)."
        )));
    }
    match disk.shown_state() {
        "live" | "queueing" => Ok(Plan::Nothing),
        "left" if disk.name.is_some() => Ok(Plan::Recover),
        _ => {
            let why = disk.state.and_then(|state| state.error);
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            Err(Error::new(
                Kind::Failed,
                format!("{name} exists and cannot continue{why}"),
            )
            .advise(format!(
                "Unmount it, and create it again: hcablk disconnect {name}"
            )))
        }
    }
}

/// Explains that a disk of the kernel's driver has the name.
pub(super) fn kernels(name: &str) -> Error {
    Error::new(
        Kind::Exists,
        format!("there is a disk {name} of the kernel's driver"),
    )
    .advise(format!(
        "Disconnect it first (hcablk disconnect {name}), or connect under another name (--name)."
    ))
}

fn changing(name: &str) -> Error {
    Error::new(Kind::Busy, format!("{name} is connecting"))
        .advise("Try again when that is done; `hcablk list` shows its state.")
}

fn write(system: &dyn System, name: &str, wanted: &Wanted) -> Result<()> {
    forget_failure(system, name)?;
    let text = files::text(wanted)?;
    Ok(system.replace_secret(&files::wanted(name), &text)?)
}

fn forget_failure(system: &dyn System, name: &str) -> Result<()> {
    let file = files::failed(name);
    if system.exists(&file) {
        system.remove_durable_file(&file)?;
    }
    Ok(())
}

/// Starts the unit.
fn begin(system: &dyn System, name: &str) -> Result<()> {
    if system.interrupted() {
        return Err(Error::interrupted());
    }
    unit::start(system, name)
}

/// Waits until the program of the unit serves the disk.
fn wait_for(system: &dyn System, name: &str) -> Result<()> {
    let began = system.now();
    let mut next_report = began + REPORT_INTERVAL;
    // The file with the reason for the end of a program exists only until the next program starts.
    let mut has_spoken = false;
    let mut reason = None;
    loop {
        let disk = show::find(system, name);
        if disk.is_some_and(|disk| disk.number.is_some() && disk.is_served) {
            return Ok(());
        }
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        let now = system.now();
        let unit = unit::status(system, name)?;
        reason = unit.reason.or(reason);
        has_spoken |= system.exists(&files::failed(name));
        let is_over = match unit.state.as_str() {
            "failed" => true,
            "inactive" => now >= began + START_LIMIT,
            // systemd would restart it again and again.
            _ => !has_spoken && unit.restarts >= SILENT_ENDS,
        };
        if is_over {
            return Err(why(system, name, reason));
        }
        if now >= next_report {
            next_report = now + REPORT_INTERVAL;
            let so_far = files::read::<Failed>(system, &files::failed(name))?;
            let so_far = so_far.map(|failed| format!(": {}", failed.message));
            system.progress(&format!(
                "waiting for the disk {name}, which {} is making{}",
                unit::name(name),
                so_far.unwrap_or_default()
            ));
        }
        system.pause(CHECK_INTERVAL);
    }
}

/// Explains why a unit has no disk; `reason` is systemd's reason for the end of its program.
fn why(system: &dyn System, name: &str, reason: Option<String>) -> Error {
    let log = format!("Its log says more: journalctl -u {}", unit::name(name));
    let failed = files::read::<Failed>(system, &files::failed(name));
    let wanted = files::read::<Wanted>(system, &files::wanted(name));
    let (Ok(Some(failed)), Ok(Some(wanted))) = (failed, wanted) else {
        let reason = reason
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        let why = format!(
            "cannot make the disk {name}: {} failed{reason}",
            unit::name(name)
        );
        return Error::new(Kind::Failed, why).advise(log);
    };
    let Some(errno) = failed.errno.map(Errno::from_raw) else {
        let why = format!("cannot make the disk {name}: {}", failed.message);
        return Error::new(Kind::Failed, why).advise(log);
    };
    let port = DEFAULT_PORT.to_string();
    connecting_failed(
        system,
        errno,
        &format!("{}: {}", describe(errno), failed.message),
        &Unreached {
            address: &wanted.address.to_string(),
            port: wanted.option("port").unwrap_or(&port),
            volume: &wanted.volume,
            host_id: &wanted.host,
        },
    )
}

/// Waits for the device node of an existing disk.
fn node(system: &dyn System, name: &str) -> Result<PathBuf> {
    let node = show::find(system, name).and_then(|disk| disk.node());
    let Some(node) = node else {
        return Err(why(system, name, None));
    };
    if system.wait_for(&node, NODE_TIMEOUT) {
        return Ok(node);
    }
    if system.interrupted() {
        return Err(Error::interrupted());
    }
    Err(Error::new(
        Kind::Setup,
        format!(
            "the disk {name} exists, but {} did not appear within {} s",
            node.display(),
            NODE_TIMEOUT.as_secs()
        ),
    )
    .advise("Is devtmpfs mounted at /dev?"))
}

/// Undoes the steps that were begun.
fn undo(system: &dyn System, name: &str, mut error: Error) -> Error {
    if let Err(failure) = unit::stop(system, name) {
        error.not_undone.push(format!(
            "start of {}: {}",
            unit::name(name),
            failure.message
        ));
    }
    for file in [files::wanted(name), files::failed(name)] {
        if system.exists(&file) {
            if let Err(failure) = system.remove_durable_file(&file) {
                error.not_undone.push(failure.to_string());
            }
        }
    }
    error
}
