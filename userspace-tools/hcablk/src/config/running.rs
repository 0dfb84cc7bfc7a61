// SPDX-License-Identifier: GPL-2.0

//! The kernel's state in the form of a configuration that restores it.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::paths::{DiskPath, PathNumber, Paths};
use super::schema::{Config, Disk, Export, Host, Port};
use super::value::{DevicePath, Id, Setting as _, Wwid};
use crate::configfs::{Group, INITIATOR, TARGET};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::hostid;
use crate::initiator::{further_paths, paths_auto};
use crate::system::System;
use crate::target::{allowed_hosts, ports, volumes};
use crate::user;

/// Reads the whole state of both modules; remarks name the settings that the configuration cannot
/// express.
pub fn read(system: &dyn System) -> Result<(Config, Vec<String>)> {
    let mut config = Config::default();
    let mut notes = Vec::new();
    if let Some(id) = hostid::stored(system)? {
        config.host = Some(Host { id: Id(id) });
    }
    if let Some(tree) = TARGET.tree(system) {
        for group in volumes(&tree).children()? {
            match read_export(&group)? {
                Some(export) => drop(config.export.insert(name(&group)?, export)),
                None => notes.push(left_out("volume", &group, "has no device")),
            }
        }
        for group in ports(&tree).children()? {
            config.port.insert(name(&group)?, read_port(&group)?);
        }
    }
    if let Some(tree) = INITIATOR.tree(system) {
        let own = hostid::current(system).ok().map(|(id, _)| id);
        for group in tree.children()? {
            let Some(disk) = read_disk(&group, own)? else {
                notes.push(left_out("disk", &group, "has no address or no volume"));
                continue;
            };
            if let "failed" | "failing" = group.get("state")?.as_str() {
                notes.push(format!(
                    "the disk {} has lost its connection: it is recorded as not enabled",
                    group.name()
                ));
            }
            config.disk.insert(name(&group)?, disk);
        }
    }
    for (name, disk) in user::read(system)? {
        config.disk.insert(name, disk);
    }
    Ok((config, notes))
}

fn left_out(what: &str, group: &Group<'_>, why: &str) -> String {
    format!("the {what} {} {why} yet, and is left out", group.name())
}

fn name<T: std::str::FromStr<Err = String>>(group: &Group<'_>) -> Result<T> {
    group.name().parse().map_err(|why| {
        Error::new(
            crate::error::Kind::Failed,
            format!("{} cannot be expressed: {why}", group.path().display()),
        )
    })
}

/// Reads an attribute; `None` if the driver does not have it.
pub(crate) fn attribute(group: &Group<'_>, attribute: &str) -> Result<Option<String>> {
    match group.get(attribute) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_gone() && group.exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn read_export(group: &Group<'_>) -> Result<Option<Export>> {
    let path = group.get("path")?;
    if path.is_empty() {
        return Ok(None);
    }
    let mut allow: Vec<_> = allowed_hosts(group)?
        .into_iter()
        .map(|(id, _)| Id(id))
        .collect();
    allow.sort();
    let mut export = Export {
        device: DevicePath(path),
        allow,
        wwid: Wwid::from_attribute(&group.get("wwid")?),
        enabled: group.flag("enable")?,
        read_only: None,
        insecure: None,
        mode: None,
        write_cache: None,
        keep_reservations: None,
        state: None,
        cache: None,
        chunk: None,
        provider: None,
        timing: None,
    };
    export.set_by(|name| attribute(group, name))?;
    Ok(Some(export))
}

pub(crate) fn read_port(group: &Group<'_>) -> Result<Port> {
    let mut port = Port {
        enabled: group.flag("enable")?,
        ..Port::default()
    };
    port.set_by(|name| attribute(group, name))?;
    Ok(port)
}

pub(crate) fn read_disk(group: &Group<'_>, own: Option<Uuid>) -> Result<Option<Disk>> {
    let volume = group.get("volume")?;
    let address = group.get("address")?;
    if volume.is_empty() || address.is_empty() {
        return Ok(None);
    }
    let mut disk = Disk {
        address,
        volume: (volume != group.name())
            .then(|| volume.parse().ok())
            .flatten(),
        wwid: Id::from_attribute(&group.get("expect_wwid")?),
        host_id: Id::from_attribute(&group.get("host_id")?).filter(|id| Some(id.0) != own),
        enabled: group.flag("enable")?,
        ..Disk::default()
    };
    disk.set_by(|name| attribute(group, name))?;
    disk.paths = read_paths(group)?;
    Ok(Some(disk))
}

fn read_paths(group: &Group<'_>) -> Result<Paths> {
    if paths_auto(group)? {
        return Ok(Paths::Auto);
    }
    let mut paths = BTreeMap::new();
    for path in further_paths(group)? {
        let Endpoint { address, .. } = &path.endpoint;
        if !address.is_empty() {
            let (endpoint, enabled) = (path.endpoint.clone(), path.enabled);
            paths.insert(PathNumber(path.number), DiskPath { endpoint, enabled });
        }
    }
    Ok(Paths::These(paths))
}
