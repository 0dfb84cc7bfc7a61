// SPDX-License-Identifier: GPL-2.0

//! `hcablk target evict` and `admit`: fencing hosts off a volume's drive.

use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use uuid::Uuid;

use super::fence::{cannot_evict, evicted, join, Fence};
use super::records::Records;
use super::{existing, no_such_volume};
use crate::configfs::{Group, CONFIGFS, TARGET};
use crate::error::{Error, Kind, Result};
use crate::host_names::HostNames;
use crate::names::VolumeName;
use crate::output::{Done, Outcome};
use crate::system::{Op, System};

/// Returns the hosts in their order, without repetitions.
fn each_once(ids: &[Uuid]) -> Vec<Uuid> {
    let mut hosts = Vec::new();
    for id in ids {
        if !hosts.contains(id) {
            hosts.push(*id);
        }
    }
    hosts
}

/// Runs `hcablk target evict`.
pub fn evict(
    system: &dyn System,
    volume: &VolumeName,
    ids: &[Uuid],
    timeout: Option<Duration>,
) -> Result<Outcome> {
    let end = timeout.map(|timeout| system.now() + timeout);
    let hosts = each_once(ids);
    let group = match existing(system, volume) {
        Ok(group) => group,
        Err(error) => return evict_unexported(system, volume, hosts, timeout, error),
    };
    if !system.exists(&group.path().join("evicted")) {
        return Err(cannot_evict());
    }
    let (known, cut) = evicted(&group)?;
    let mut fence = Fence::new(&group)?;
    fence.records.begin()?;
    let changed = {
        let _lock = fence.records.lock()?;
        let made = record(system, &fence.records, &hosts)?;
        let result = fence.evict_all(&hosts);
        result.map_err(|error| after_refusal(&fence, volume, &made, error))?;
        let is_known = |host: &Uuid| cut || known.iter().any(|one| one.host == *host);
        !made.is_empty() || !hosts.iter().all(is_known)
    };
    if let Err(error) = fence.wait(end) {
        return Err(unfinished(&fence, volume, error));
    }
    if !fence.admitted.is_empty() {
        return Err(Error::new(
            Kind::Failed,
            format!(
                "another command has admitted {} to {volume} at this moment",
                join(&fence.admitted, ", ")
            ),
        )
        .advise("Find out which one, before you evict it again."));
    }
    if let (Some(timeout), false) = (timeout, fence.draining.is_empty()) {
        let message = format!(
            "{volume} has evicted {}, but its requests at the drive have not ended within {} s: a write, \
             or a change of reservations, may still land",
            join(&fence.draining, ", "),
            timeout.as_secs()
        );
        return Err(Error::new(Kind::Busy, message)
            .with_errno(Errno::EAGAIN)
            .advise(ask_again(volume, &fence.draining)));
    }
    let gone = fence.gone;
    let mut outcome = Outcome::new(Done::Evict {
        volume: volume.to_string(),
        hosts,
        changed,
        host_names: HostNames::default(),
    });
    if gone {
        outcome.note(not_exported(volume));
    } else if !changed {
        outcome.note("evicted already");
    }
    Ok(outcome)
}

fn not_exported(volume: &VolumeName) -> String {
    format!(
        "{volume} is not exported on this machine now; when it is, these hosts are refused from the \
         beginning"
    )
}

/// Returns the advice for hosts that are evicted, but not fenced off yet.
fn ask_again(volume: &VolumeName, hosts: &[Uuid]) -> String {
    format!(
        "It is not certain that it is fenced. To wait longer: hcablk target evict {volume} {}",
        join(hosts, " ")
    )
}

/// Evicts hosts at a volume that this machine does not export at the moment: no host reaches a drive through it.
/// Succeeds only for hosts with a record, which proves that there is such a volume: a typing error must not look like a
/// fence.
fn evict_unexported(
    system: &dyn System,
    volume: &VolumeName,
    hosts: Vec<Uuid>,
    timeout: Option<Duration>,
    not_found: Error,
) -> Result<Outcome> {
    let module = Path::new("/sys/module").join(TARGET.name);
    if TARGET.tree(system).is_none() && system.exists(&module) {
        return Err(Error::new(
            Kind::Setup,
            format!(
                "the kernel module {} is loaded, but its configfs folder is not visible: its \
                 exports are not known",
                TARGET.name
            ),
        )
        .advise(format!(
            "Run as root: mount -t configfs configfs {CONFIGFS}"
        )));
    }
    let records = Records::new(system, volume.as_str());
    if !hosts.iter().all(|host| records.has(*host)) {
        return Err(not_found);
    }
    // The command that made the records may have been stopped before they were safe from a power failure.
    records.begin()?;
    let lock = records.lock()?;
    if existing(system, volume).is_ok() {
        // The volume was exported meanwhile, perhaps before the records existed.
        drop(lock);
        return evict(system, volume, &hosts, timeout);
    }
    for host in &hosts {
        records.add(*host)?;
    }
    let mut outcome = Outcome::new(Done::Evict {
        volume: volume.to_string(),
        hosts,
        changed: false,
        host_names: HostNames::default(),
    });
    outcome.note("evicted already");
    outcome.note(not_exported(volume));
    Ok(outcome)
}

/// Records all hosts and returns those that were not recorded before; on a failure, removes the new records.
fn record(system: &dyn System, records: &Records<'_>, hosts: &[Uuid]) -> Result<Vec<Uuid>> {
    let mut made = Vec::new();
    for host in hosts {
        let result = if system.interrupted() {
            Err(Error::interrupted())
        } else {
            if !records.has(*host) {
                made.push(*host);
            }
            records.add(*host)
        };
        if let Err(error) = result {
            return Err(forget(records, &made, error));
        }
    }
    Ok(made)
}

/// Removes the records of hosts that were not evicted, and returns the error, with the records that could not be
/// removed.
fn forget(records: &Records<'_>, made: &[Uuid], mut error: Error) -> Error {
    for host in made.iter().filter(|host| records.has(**host)) {
        if let Err(failure) = records.remove(*host) {
            error.not_undone.push(failure.message);
        }
    }
    error
}

/// Explains why the kernel did not accept all hosts. Hosts beyond its limit are not evicted; their records are removed,
/// since they would keep the volume from being exported.
fn after_refusal(fence: &Fence<'_>, volume: &VolumeName, made: &[Uuid], error: Error) -> Error {
    if error.errno.as_deref() == Some("ENOSPC") {
        let vain: Vec<_> = made
            .iter()
            .copied()
            .filter(|host| fence.not_evicted.contains(host))
            .collect();
        return forget(&fence.records, &vain, error);
    }
    unfinished(fence, volume, error)
}

/// Reports the changes that an interrupted command leaves behind.
fn unfinished(fence: &Fence<'_>, volume: &VolumeName, error: Error) -> Error {
    if error.kind != Kind::Interrupted {
        return error;
    }
    let mut parts = Vec::new();
    if !fence.draining.is_empty() {
        parts.push(format!(
            "{volume} has evicted {}, but the drive has not finished its requests: a \
             write may still land",
            join(&fence.draining, ", ")
        ));
    }
    if !fence.not_evicted.is_empty() {
        parts.push(format!(
            "{} is recorded as evicted, but may still use {volume}",
            join(&fence.not_evicted, ", ")
        ));
    }
    let hosts = [fence.draining.as_slice(), fence.not_evicted.as_slice()].concat();
    Error::new(
        Kind::Interrupted,
        format!("interrupted: {}", parts.join("; ")),
    )
    .advise(ask_again(volume, &hosts))
}

/// Runs `hcablk target admit`.
pub fn admit(
    system: &dyn System,
    volume: &VolumeName,
    ids: &[Uuid],
    if_exists: bool,
) -> Result<Outcome> {
    let hosts = each_once(ids);
    let group = existing(system, volume).ok();
    let records = match &group {
        Some(group) => Records::of(group)?,
        None => Records::new(system, volume.as_str()),
    };
    if group.is_none() && !hosts.iter().any(|host| records.has(*host)) {
        return Err(no_such_volume(volume));
    }
    records.begin()?;
    let _lock = records.lock()?;
    let (known, cut) = group.as_ref().map_or(Ok((Vec::new(), false)), evicted)?;
    let missing: Vec<_> = hosts
        .iter()
        .copied()
        .filter(|host| !cut && !records.has(*host) && !known.iter().any(|one| one.host == *host))
        .collect();
    if !missing.is_empty() && !if_exists {
        return Err(not_evicted(volume, &missing).advise(
            "Nothing was changed. `hcablk target list` shows the hosts that are evicted.",
        ));
    }
    let mut admitted = Vec::new();
    let mut strangers = Vec::new();
    for host in hosts.into_iter().filter(|host| !missing.contains(host)) {
        if admit_host(group.as_ref(), &records, host)? {
            admitted.push(host);
        } else {
            strangers.push(host);
        }
    }
    if !strangers.is_empty() && !if_exists {
        return Err(not_evicted(volume, &strangers));
    }
    let changed = !admitted.is_empty();
    let mut outcome = Outcome::new(Done::Admit {
        volume: volume.to_string(),
        hosts: admitted,
        changed,
        host_names: HostNames::default(),
    });
    if !changed {
        outcome.note("none of these hosts was evicted");
    }
    Ok(outcome)
}

fn not_evicted(volume: &VolumeName, hosts: &[Uuid]) -> Error {
    Error::new(
        Kind::NotFound,
        format!(
            "volume {volume} has not evicted {} anyway",
            join(hosts, ", ")
        ),
    )
}

/// Makes the kernel admit a host, then removes its record: while a record exists the host may be refused. Returns
/// whether the host was evicted.
fn admit_host(group: Option<&Group<'_>>, records: &Records<'_>, host: Uuid) -> Result<bool> {
    let mut was = records.has(host);
    if let Some(group) = group {
        let file = group.path().join("admit");
        match group.system().write(&file, &format!("{host}\n")) {
            Ok(()) => was = true,
            Err(error) if error.op == Op::Write && error.errno == Errno::ENOENT => (),
            Err(error) if error.is_gone() && !group.exists() => (),
            Err(error) if error.is_gone() => return Err(cannot_evict()),
            Err(error) => return Err(error.into()),
        }
    }
    if records.has(host) {
        records.remove(host)?;
    }
    Ok(was)
}
