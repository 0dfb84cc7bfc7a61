// SPDX-License-Identifier: GPL-2.0

//! Mistakes that no single key shows: keys that contradict each other.

use uuid::Uuid;

use super::loaded::{Loaded, Mistake};
use super::schema::{Disk, Export};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::hostid;
use crate::names::{DeviceName, VolumeName};
use crate::system::System;
use crate::target::Mode;
use crate::user;

/// Adds the mistakes of keys that contradict each other.
pub(super) fn check(
    system: &dyn System,
    loaded: &Loaded,
    mistakes: &mut Vec<Mistake>,
) -> Result<()> {
    if let Some(host) = loaded.config.host {
        check_host(system, loaded, host.id.0, mistakes)?;
    }
    let names = &loaded.config.host_names;
    for (at, (name, id)) in names.iter().enumerate() {
        if let Some((first, _)) = names.iter().take(at).find(|(_, other)| *other == id) {
            let what = format!("{first} and {name} are the same host, {id}");
            mistakes.push(Mistake::new(&loaded.place_of("host_names"), what));
        }
    }
    for (name, export) in &loaded.config.export {
        let place = loaded.place_of(&format!("export.{name}"));
        mistakes.extend(wrong_export(export).map(|what| Mistake::new(&place, what)));
    }
    for (name, disk) in &loaded.config.disk {
        let place = loaded.place_of(&format!("disk.{name}"));
        mistakes.extend(wrong_disk(name, disk).map(|what| Mistake::new(&place, what)));
    }
    check_ports(loaded, mistakes);
    Ok(())
}

/// Adds a mistake if the files set an id that differs from the stored one: a machine has one id,
/// and the file may have been copied from a different machine.
fn check_host(
    system: &dyn System,
    loaded: &Loaded,
    id: Uuid,
    mistakes: &mut Vec<Mistake>,
) -> Result<()> {
    if let Some(stored) = hostid::stored(system)?.filter(|stored| *stored != id) {
        let what = format!(
            "the host's id is {id} here, and {stored} in {}",
            hostid::FILE
        );
        mistakes.push(Mistake::new(&loaded.place_of("host"), what).advise(format!(
            "If the configuration is another machine's, remove its [host]; if this one is right: \
             hcablk host-id --set {id} --force"
        )));
    }
    Ok(())
}

fn wrong_export(export: &Export) -> Option<String> {
    let mode = export.mode.unwrap_or(Mode::Direct);
    let name = mode.name();
    if export.provider.is_some() && mode != Mode::P2p {
        return Some(format!("`provider` is for mode p2p, not for mode {name}"));
    }
    if export.cache.is_some_and(|cache| cache.0 != 0) && !matches!(mode, Mode::Direct | Mode::P2p) {
        return Some(format!(
            "`cache` is for the modes direct and p2p, not for mode {name}"
        ));
    }
    let twice = |(at, id)| export.allow[..at].contains(id).then_some(id);
    export
        .allow
        .iter()
        .enumerate()
        .find_map(twice)
        .map(|id| format!("`allow` has {id} twice"))
}

fn wrong_disk(name: &DeviceName, disk: &Disk) -> Option<String> {
    if disk.volume.is_none() && name.as_str().parse::<VolumeName>().is_err() {
        return Some(format!(
            "`volume` is missing, and {name} is not a valid name of a volume (at most 16 characters)"
        ));
    }
    if disk
        .address
        .parse::<Endpoint>()
        .map(|endpoint| endpoint.address)
        != Ok(disk.address.clone())
    {
        return Some(format!(
            "{:?} is neither an address nor a host name; the port is `port`",
            disk.address
        ));
    }
    if disk.user {
        return user::misfit(disk);
    }
    let mut known = vec![(0, disk.endpoint())];
    for (number, path) in disk.paths.these() {
        if let Some((first, _)) = known
            .iter()
            .find(|(_, other)| other.is_same(&path.endpoint))
        {
            return Some(format!(
                "path {} leads where path {first} does: {}",
                number.0, path.endpoint
            ));
        }
        known.push((number.0, path.endpoint.clone()));
    }
    None
}

/// Adds a mistake for each port with the address and number of an earlier one: it could not be
/// enabled.
fn check_ports(loaded: &Loaded, mistakes: &mut Vec<Mistake>) {
    let place_of = |port: &super::Port| {
        let of = |attribute| {
            let wish = port
                .settings()
                .into_iter()
                .find(|wish| wish.attribute == attribute);
            wish.map(|wish| wish.value)
        };
        (of("address"), of("port"))
    };
    let mut known = Vec::new();
    for (name, port) in loaded.config.port.iter().filter(|(_, port)| port.enabled) {
        let at = place_of(port);
        match known.iter().find(|(_, other)| *other == at) {
            Some((first, _)) => mistakes.push(Mistake::new(
                &loaded.place_of(&format!("port.{name}")),
                format!("it has the address and port of [port.{first}]"),
            )),
            None => known.push((name, at)),
        }
    }
}
