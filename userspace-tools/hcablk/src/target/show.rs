// SPDX-License-Identifier: GPL-2.0

//! `hcablk target list`, `stats` and `times`.

use super::export::KEEP_RESERVATIONS;
use super::fence::{evicted, join};
use super::hosts::hosts;
use super::records::Records;
use super::{existing, not_loaded, ports, volumes, write_cache};
use crate::config::running::attribute;
use crate::configfs::{parse_counters, unless_gone, Group, TARGET};
use crate::error::{Error, Result};
use crate::host_names::HostNames;
use crate::keys::missing;
use crate::names::VolumeName;
use crate::output::{is_cut, Client, Counters, Outcome, Port, PortSession, Report, Volume};
use crate::system::System;
use crate::times::Times;

/// Runs `hcablk target list`.
pub fn list(system: &dyn System) -> Result<Outcome> {
    let Some(tree) = TARGET.tree(system) else {
        let mut outcome = Outcome::new(Report::Exports {
            columns: Vec::new(),
            host_names: HostNames::default(),
            volumes: Vec::new(),
            ports: Vec::new(),
        });
        outcome.note(not_loaded());
        for note in eviction_notes(system, &[]) {
            outcome.note(note);
        }
        return Ok(outcome);
    };
    let (found_volumes, found_ports) = (read_volumes(&tree)?, read_ports(&tree)?);
    let cut = |what: &str, shown: usize| {
        format!("{what} has more sessions than the kernel shows: these are the first {shown}")
    };
    let notes: Vec<_> = Iterator::chain(
        found_volumes
            .iter()
            .filter(|volume| volume.clients_cut)
            .map(|volume| cut(&format!("volume {}", volume.name), volume.clients.len())),
        found_ports
            .iter()
            .filter(|port| port.sessions_cut)
            .map(|port| cut(&format!("port {}", port.id), port.sessions.len())),
    )
    .collect();
    let mut more = eviction_notes(system, &found_volumes);
    more.extend(key_notes(&tree)?);
    let mut outcome = Outcome::new(Report::Exports {
        columns: Vec::new(),
        host_names: HostNames::default(),
        volumes: found_volumes,
        ports: found_ports,
    });
    for note in notes.into_iter().chain(more) {
        outcome.note(note);
    }
    Ok(outcome)
}

/// Reads all volumes and ports; `None` if the module is not loaded.
pub fn exports(system: &dyn System) -> Result<Option<(Vec<Volume>, Vec<Port>)>> {
    match TARGET.tree(system) {
        Some(tree) => Ok(Some((read_volumes(&tree)?, read_ports(&tree)?))),
        None => Ok(None),
    }
}

fn read_volumes(tree: &Group<'_>) -> Result<Vec<Volume>> {
    let mut found = Vec::new();
    for group in volumes(tree).children()? {
        found.extend(unless_gone(&group, read_volume(&group))?);
    }
    Ok(found)
}

fn read_ports(tree: &Group<'_>) -> Result<Vec<Port>> {
    let mut found = Vec::new();
    for group in ports(tree).children()? {
        found.extend(unless_gone(&group, read_port(&group))?);
    }
    // By number, not by text: 2 comes before 10.
    found.sort_by_key(|port: &Port| (port.id.len(), port.id.clone()));
    Ok(found)
}

/// Returns remarks on missing keys, without which hosts cannot use a volume.
fn key_notes(tree: &Group<'_>) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for volume in volumes(tree).children()? {
        let is_enabled = unless_gone(&volume, volume.flag("enable"))? == Some(true);
        let of_volume = is_enabled.then(|| unless_gone(&volume, missing::notes(&volume)));
        for note in of_volume.transpose()?.flatten().into_iter().flatten() {
            // A key that the target itself lacks is the same for all volumes.
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    Ok(notes)
}

/// Returns remarks on differences between the records of evicted hosts and the kernel's state.
fn eviction_notes(system: &dyn System, shown: &[Volume]) -> Vec<String> {
    let mut notes: Vec<_> = shown
        .iter()
        .filter(|volume| volume.evicted_cut)
        .map(|volume| {
            format!(
                "volume {} has evicted more hosts than the kernel shows: these are the first {}",
                volume.name,
                volume.evicted.len()
            )
        })
        .collect();
    let host_names = HostNames::read(system);
    let mut names = match Records::volumes(system) {
        Ok(names) => names,
        Err(error) => {
            notes.push(error.message);
            return notes;
        }
    };
    // Those with a state directory may have no records on this machine.
    let others = shown.iter().map(|volume| &volume.name);
    let others: Vec<_> = others
        .filter(|name| !names.contains(*name))
        .cloned()
        .collect();
    names.extend(others);
    for name in names {
        let recorded = match records_of(system, &name).and_then(|records| records.all()) {
            Ok(recorded) => recorded,
            Err(error) => {
                notes.push(error.message);
                continue;
            }
        };
        match shown.iter().find(|volume| volume.name == name) {
            None if recorded.is_empty() => (),
            None => notes.push(format!(
                "{name} is not exported now, and has evicted {}",
                host_names.join(&recorded)
            )),
            Some(volume) if volume.evicted_cut => (),
            Some(volume) => {
                let unknown: Vec<_> = recorded
                    .into_iter()
                    .filter(|host| volume.evicted.iter().all(|one| one.host != *host))
                    .collect();
                if !unknown.is_empty() {
                    notes.push(format!(
                        "{} is recorded as evicted from {name}, but the kernel has not evicted it. Run: \
                         hcablk target evict {name} {}",
                        host_names.join(&unknown),
                        join(&unknown, " ")
                    ));
                }
            }
        }
    }
    notes
}

/// Returns the records of a volume that may be configured.
fn records_of<'a>(system: &'a dyn System, name: &str) -> Result<Records<'a>> {
    let tree = TARGET.tree(system);
    let group = tree.map(|tree| volumes(&tree).child(name));
    match group.filter(Group::exists) {
        Some(group) => Records::of(&group),
        None => Ok(Records::new(system, name)),
    }
}

fn read_volume(group: &Group<'_>) -> Result<Volume> {
    let clients = group.get_as_root("clients")?;
    let (evicted, evicted_cut) = evicted(group)?;
    Ok(Volume {
        name: group.name(),
        path: group.get("path")?,
        read_only: group.flag("read_only")?,
        insecure: group.flag("insecure")?,
        mode: group.get("mode")?,
        write_cache: attribute(group, write_cache::ATTRIBUTE)?,
        keep_reservations: attribute(group, KEEP_RESERVATIONS)?.map(|text| text == "1"),
        cache_mib: group.value("cache_mib")?,
        chunk_kib: group.value("chunk_kib")?,
        wwid: Some(group.get("wwid")?).filter(|wwid| !wwid.is_empty()),
        enabled: group.flag("enable")?,
        size_bytes: group.value("size")?,
        hosts: hosts(group)?.into_iter().map(|(host, _)| host).collect(),
        clients: Client::parse_all(&clients),
        clients_cut: is_cut(&clients),
        evicted,
        evicted_cut,
        error: group.reason(),
    })
}

fn read_port(group: &Group<'_>) -> Result<Port> {
    let sessions = group.get_as_root("sessions")?;
    Ok(Port {
        id: group.name(),
        address: group.get("address")?,
        port: group.value("port")?,
        enabled: group.flag("enable")?,
        buffer_mib: group.value("buffer_mib")?,
        memory_mib: group.value("memory_mib")?,
        queue_credits: group.value("queue_credits")?,
        sessions: PortSession::parse_all(&sessions),
        sessions_cut: is_cut(&sessions),
        error: group.reason(),
    })
}

/// Returns the groups of one volume, or of all; `None` if the module is not loaded.
pub(crate) fn selected<'a>(
    system: &'a dyn System,
    only: Option<&VolumeName>,
) -> Result<Option<Vec<Group<'a>>>> {
    match (only, TARGET.tree(system)) {
        (Some(volume), _) => Ok(Some(vec![existing(system, volume)?])),
        (None, Some(tree)) => Ok(Some(volumes(&tree).children()?)),
        (None, None) => Ok(None),
    }
}

/// Runs `hcablk target times`.
pub fn times(
    system: &dyn System,
    only: Option<&VolumeName>,
    measure: Option<bool>,
) -> Result<Outcome> {
    let groups = selected(system, only)?;
    let loaded = groups.is_some();
    let mut times = Vec::new();
    for group in groups.into_iter().flatten() {
        times.extend(unless_gone(&group, Times::read(&group, measure))?);
    }
    let idle = !times.is_empty() && times.iter().all(Times::is_idle);
    let mut outcome = Outcome::new(Report::ExportTimes { volumes: times });
    if !loaded {
        outcome.note(not_loaded());
    } else if idle {
        outcome.note("nothing was measured: `hcablk target times --measure on` starts measuring");
    }
    Ok(outcome)
}

/// Runs `hcablk target stats`.
pub fn stats(system: &dyn System, only: Option<&VolumeName>) -> Result<Outcome> {
    let counters = |groups: Vec<Group<'_>>| -> Result<Vec<Counters>> {
        let mut stats = Vec::new();
        for group in groups {
            // Ports may have no counters.
            if !group.system().exists(&group.path().join("stats")) {
                continue;
            }
            if let Some(text) = unless_gone(&group, group.get("stats").map_err(Error::from))? {
                stats.push(Counters {
                    name: group.name(),
                    counters: parse_counters(&text),
                });
            }
        }
        Ok(stats)
    };
    if let Some(volume) = only {
        return Ok(Outcome::new(Report::ExportStats {
            volumes: counters(vec![existing(system, volume)?])?,
            ports: Vec::new(),
        }));
    }
    let Some(tree) = TARGET.tree(system) else {
        let mut outcome = Outcome::new(Report::ExportStats {
            volumes: Vec::new(),
            ports: Vec::new(),
        });
        outcome.note(not_loaded());
        return Ok(outcome);
    };
    Ok(Outcome::new(Report::ExportStats {
        volumes: counters(volumes(&tree).children()?)?,
        ports: counters(ports(&tree).children()?)?,
    }))
}
