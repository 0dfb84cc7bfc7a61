// SPDX-License-Identifier: GPL-2.0

//! Finds missing keys, and the next command for the user.

use std::net::IpAddr;

use super::{both, has_keys, hosts, read, KeyOwner};
use crate::configfs::{Group, TARGET};
use crate::error::Result;
use crate::host_names::HostNames;
use crate::system::System;

/// A missing key.
pub(crate) struct Missing {
    /// The owner of the key, or the volume that needs it.
    pub(crate) subject: String,
    /// The consequence of the missing key.
    pub(crate) message: String,
    /// The next command for the user, which needs ssh to the host.
    enroll: String,
    /// The commands for a user whose target has no ssh to the host.
    by_hand: String,
}

impl Missing {
    /// Returns the message and the commands in one line.
    pub(crate) fn note(&self) -> String {
        format!(
            "{}: {}, or by hand: {}",
            self.message, self.enroll, self.by_hand
        )
    }

    /// Returns the commands.
    pub(crate) fn remedy(&self) -> String {
        format!("{}\nor by hand: {}", self.enroll, self.by_hand)
    }
}

/// Returns whether a key exists; `None` if this user cannot read the keys, or a file is broken.
pub(crate) fn exists(system: &dyn System, owner: &KeyOwner) -> Option<bool> {
    Some(!read(system, owner).ok()?.is_empty())
}

/// Returns whether the key of a group is neither in a file nor in the kernel.
fn lacks_key(group: &Group<'_>, owner: &KeyOwner) -> bool {
    exists(group.system(), owner) == Some(false) && !has_keys(group)
}

/// Returns a report if this machine has no key as a target.
pub(crate) fn of_target(system: &dyn System) -> Option<Missing> {
    lacks_key(&TARGET.named(system), &KeyOwner::Target).then(|| Missing {
        subject: "target".to_owned(),
        message:
            "this machine has no key as a target, so no host can use a volume that is not INSECURE"
                .to_owned(),
        enroll: "hcablk enroll CLIENT VOLUME".to_owned(),
        by_hand: "hcablk key generate target && hcablk key apply".to_owned(),
    })
}

/// Returns a report on the hosts that a volume allows, but refuses because this target lacks their keys.
pub(crate) fn of_hosts(volume: &Group<'_>) -> Result<Option<Missing>> {
    let mut hosts = hosts(volume)?;
    hosts.retain(|(id, group)| lacks_key(group, &KeyOwner::OfHost(*id)));
    let ids: Vec<_> = hosts.iter().map(|(id, _)| id.to_string()).collect();
    let whose = match ids.as_slice() {
        [] => return Ok(None),
        [one] => one,
        _ => "UUID",
    };
    let name = volume.name();
    let shown: Vec<_> = hosts.iter().map(|(id, _)| *id).collect();
    let shown = HostNames::read(volume.system()).join(&shown);
    Ok(Some(Missing {
        message: format!("{name} refuses {shown}, since this target does not have the key"),
        enroll: format!("hcablk enroll CLIENT {name}"),
        by_hand: format!(
            "ssh CLIENT hcablk key show host | hcablk key add host {whose} && hcablk key apply"
        ),
        subject: name,
    }))
}

/// Returns remarks on the keys that this target lacks for a volume; none if the volume demands no keys.
pub(crate) fn notes(volume: &Group<'_>) -> Result<Vec<String>> {
    if volume.flag("insecure")? {
        return Ok(Vec::new());
    }
    let both = [of_target(volume.system()), of_hosts(volume)?];
    Ok(both.iter().flatten().map(Missing::note).collect())
}

/// Returns the command that exchanges the keys of this host and the target of a volume over ssh.
pub(crate) fn enroll(address: &str, volume: &str) -> String {
    let mut command = format!("hcablk enroll CLIENT {volume}");
    if address.parse::<IpAddr>().is_ok() {
        command.push_str(&format!(" --address {address}"));
    }
    command
}

/// Returns the commands, one in a line, that exchange the keys of this host and the target of a volume; `None` if this
/// host has both keys, or this user cannot read them.
pub(crate) fn exchange(
    system: &dyn System,
    address: &str,
    volume: &str,
    host: &str,
) -> Option<String> {
    let (own, target) = both(system, address).ok()?;
    if own.is_some() && target.is_some() {
        return None;
    }
    let mut commands = vec![
        format!("on the target: {}", enroll(address, volume)),
        "or by hand:".to_owned(),
    ];
    if own.is_none() {
        commands.push("here:          hcablk key generate host".to_owned());
    }
    commands.push(format!(
        "on the target: ssh CLIENT hcablk key show host | hcablk key add host {host} && hcablk key apply"
    ));
    if target.is_none() {
        commands.push(format!(
            "here:          ssh TARGET hcablk key show target | hcablk key add target {address}"
        ));
    }
    Some(commands.join("\n"))
}
