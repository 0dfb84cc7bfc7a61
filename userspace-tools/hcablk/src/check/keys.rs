// SPDX-License-Identifier: GPL-2.0

//! Keys that are missing, that wait for the other side, or that the kernel does not have yet.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Findings;
use crate::config;
use crate::configfs::{Group, INITIATOR, TARGET};
use crate::error::Result;
use crate::host_names::HostNames;
use crate::hostid;
use crate::keys::{self, missing, KeyOwner, Missing};
use crate::system::System;
use crate::target::{allowed_hosts, volumes};

const APPLY: &str = "hcablk key apply";

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    findings.begin("keys");
    match keys::check(system) {
        Ok(()) => (),
        Err(error) if error.errno.is_some() => {
            let advice = error.advice_or_usual();
            findings.note("keys", error.message, &advice);
            return;
        }
        // A broken file.
        Err(error) => {
            findings.error("keys", &error);
            return;
        }
    }
    if let Err(error) = target(system, findings) {
        findings.error("target", &error);
    }
    if let Err(error) = host(system, findings) {
        findings.error("host", &error);
    }
}

fn missing(what: &Missing, findings: &mut Findings) {
    findings.warn(&what.subject, what.message.clone(), what.remedy());
}

/// Looks at the keys of this machine as a target, and of the hosts that its volumes allow.
fn target(system: &dyn System, findings: &mut Findings) -> Result<()> {
    let Some(tree) = TARGET.tree(system) else {
        return Ok(());
    };
    let mut demanding = Vec::new();
    for volume in volumes(&tree).children()? {
        if volume.flag("enable")? && !volume.flag("insecure")? {
            demanding.push(volume);
        }
    }
    if demanding.is_empty() {
        return Ok(());
    }
    match missing::of_target(system) {
        Some(what) => missing(&what, findings),
        None if !keys::is_held(&tree) => findings.warn(
            "target",
            "the kernel does not have the key of this machine as a target",
            APPLY,
        ),
        None => findings.ok("target", "this machine has a key as a target"),
    }
    for volume in demanding {
        let name = volume.name();
        let lacking = missing::of_hosts(&volume)?;
        let hosts = allowed_hosts(&volume)?;
        let has_file = |id| missing::exists(system, &KeyOwner::OfHost(id)) == Some(true);
        let unheld = hosts
            .iter()
            .filter(|(id, group)| has_file(*id) && !keys::is_held(group));
        let unheld: Vec<_> = unheld.map(|(id, _)| *id).collect();
        if let Some(what) = &lacking {
            missing(what, findings);
        }
        if !unheld.is_empty() {
            findings.warn(
                &name,
                format!(
                    "the kernel does not have the key of {}",
                    HostNames::read(system).join(&unheld)
                ),
                APPLY,
            );
        }
        if lacking.is_none() && unheld.is_empty() {
            findings.ok(
                &name,
                "this machine has the keys of all hosts that it allows",
            );
        }
    }
    Ok(())
}

/// A disk that is connected or configured.
struct Disk<'a> {
    address: String,
    volume: String,
    is_insecure: bool,
    group: Option<Group<'a>>,
}

/// Looks at the keys of this host, and of the targets of its disks.
fn host(system: &dyn System, findings: &mut Findings) -> Result<()> {
    if keys::is_pending(system) == Some(true) {
        findings.warn(
            "host.pending",
            "a new key of this host is pending, and it connects with the former one",
            "On each target: hcablk key add host, with the output of hcablk key show host of this machine, and \
             hcablk key apply. Then here: hcablk key apply",
        );
    }
    let id = hostid::current(system).map_or_else(|_| "UUID".to_owned(), |(id, _)| id.to_string());
    for (name, disk) in disks(system)? {
        let address = &disk.address;
        // Looking up a host name may be slow.
        if address.parse::<IpAddr>().is_err() {
            continue;
        }
        match keys::both_exist(system, address, disk.is_insecure) {
            Err(error) => findings.error(&name, &error),
            Ok(true)
                if disk
                    .group
                    .as_ref()
                    .is_some_and(|group| !keys::is_held(group)) =>
            {
                findings.warn(
                    &name,
                    "the kernel does not have the keys of the disk",
                    APPLY,
                );
            }
            Ok(true) => findings.ok(
                &name,
                format!("this host has its key and that of the target {address}"),
            ),
            Ok(false) => findings.note(
                &name,
                format!(
                    "without its own key and that of the target {address} this host can only use \
                     a volume that is exported with --insecure"
                ),
                &missing::exchange(system, address, &disk.volume, &id).unwrap_or_default(),
            ),
        }
    }
    Ok(())
}

/// Returns the disks of the kernel's driver, and those that are configured, by their names.
fn disks(system: &dyn System) -> Result<BTreeMap<String, Disk<'_>>> {
    let mut disks = BTreeMap::new();
    // The check `configuration` reports its mistakes.
    let configured =
        config::load(system).map_or_else(|_| BTreeMap::new(), |loaded| loaded.config.disk);
    for (name, disk) in configured {
        let found = Disk {
            address: disk.endpoint().address,
            volume: disk
                .volume
                .as_ref()
                .map_or_else(|| name.to_string(), ToString::to_string),
            is_insecure: disk.insecure.unwrap_or(false),
            group: None,
        };
        disks.insert(name.to_string(), found);
    }
    for group in INITIATOR
        .tree(system)
        .iter()
        .flat_map(Group::children)
        .flatten()
    {
        let found = Disk {
            address: group.get("address")?,
            volume: group.get("volume")?,
            is_insecure: group.flag("insecure")?,
            group: Some(group.clone()),
        };
        disks.insert(group.name(), found);
    }
    Ok(disks)
}
