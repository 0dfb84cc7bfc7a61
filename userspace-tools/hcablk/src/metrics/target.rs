// SPDX-License-Identifier: GPL-2.0

//! The metrics of volumes and ports.

use std::path::Path;

use super::exposition::{Exposition, Type};
use crate::configfs::{unless_gone, Group, TARGET};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::output::{Port, Volume};
use crate::stats::{volumes, Sample};
use crate::system::System;
use crate::target;
use crate::times::Times;

/// A volume.
struct Export {
    volume: Volume,
    sample: Sample,
    times: Times,
}

/// A number of a volume: its name, its help, and the function that returns it.
type Gauge = (&'static str, &'static str, fn(&Volume) -> u64);

/// A port.
struct Listening {
    port: Port,
    /// The port's attribute `memory`.
    memory: String,
}

/// All volumes and ports.
pub(super) struct Exports {
    volumes: Vec<Export>,
    ports: Vec<Listening>,
}

/// Reads all volumes and ports; `None` if the module is not loaded.
pub(super) fn read(system: &dyn System) -> Result<Option<Exports>> {
    let Some((shown, ports)) = target::exports(system)? else {
        return Ok(None);
    };
    let samples = volumes(system, None)?.samples;
    let mut found = Vec::new();
    for group in target::selected(system, None)?.into_iter().flatten() {
        let name = group.name();
        let volume = shown.iter().find(|volume| volume.name == name);
        let sample = samples.iter().find(|sample| sample.name == name);
        // A volume that was added or removed between the readings is left out this time.
        if let (Some(volume), Some(sample), Some(times)) = (
            volume,
            sample,
            unless_gone(&group, Times::read(&group, None))?,
        ) {
            found.push(Export {
                volume: volume.clone(),
                sample: sample.clone(),
                times,
            });
        }
    }
    let mut listening = Vec::new();
    for port in ports {
        let group = port_group(system, &port.id);
        let memory = unless_gone(&group, group.get("memory").map_err(Error::from))?;
        if let Some(memory) = memory {
            listening.push(Listening { port, memory });
        }
    }
    Ok(Some(Exports {
        volumes: found,
        ports: listening,
    }))
}

fn port_group<'a>(system: &'a dyn System, id: &str) -> Group<'a> {
    let tree = TARGET.named(system);
    let path = tree.path().join(Path::new("ports")).join(id);
    Group::new(system, path)
}

/// Writes the metrics of all volumes and ports.
pub(super) fn write(all: &mut Exposition, exports: &Exports) {
    if !exports.volumes.is_empty() {
        of_volumes(all, &exports.volumes);
    }
    if !exports.ports.is_empty() {
        of_ports(all, &exports.ports);
    }
}

fn of_volumes(all: &mut Exposition, volumes: &[Export]) {
    all.family("hcablk_volume_info", Type::Gauge, "A volume: always 1.");
    for Export { volume, .. } in volumes {
        all.sample(
            &[
                ("volume", &volume.name),
                ("path", &volume.path),
                ("mode", &volume.mode),
                ("wwid", volume.wwid.as_deref().unwrap_or_default()),
            ],
            1,
        );
    }
    gauges(all, volumes);
    let counted: Vec<_> = volumes
        .iter()
        .map(|export| {
            let labels = vec![("volume", export.volume.name.as_str())];
            (labels, export.sample.counters.as_slice())
        })
        .collect();
    all.counters("hcablk_volume", &counted, |name| {
        format!("Counter {name} of volumes: docs/reference/counters.md.")
    });
    all.family(
        "hcablk_volume_request_seconds",
        Type::Histogram,
        "Durations of requests to a volume by state; measured after hcablk target times --measure on.",
    );
    for export in volumes {
        for state in &export.times.states {
            all.times(
                &[("volume", &export.volume.name), ("state", &state.state)],
                state,
            );
        }
    }
}

fn gauges(all: &mut Exposition, volumes: &[Export]) {
    let gauges: [Gauge; 5] = [
        (
            "hcablk_volume_enabled",
            "Whether clients can connect to a volume.",
            |volume| u64::from(volume.enabled),
        ),
        (
            "hcablk_volume_size_bytes",
            "The size of a volume.",
            |volume| volume.size_bytes,
        ),
        (
            "hcablk_volume_sessions",
            "Sessions of clients; at most as many as the kernel shows, about 50.",
            |volume| volume.clients.len() as u64,
        ),
        (
            "hcablk_volume_evicted_hosts",
            "Hosts that are refused until they are admitted.",
            |volume| volume.evicted.len() as u64,
        ),
        (
            "hcablk_volume_draining_hosts",
            "Evicted hosts whose requests the drive has not finished.",
            |volume| volume.evicted.iter().filter(|host| host.draining).count() as u64,
        ),
    ];
    for (name, help, value) in gauges {
        all.family(name, Type::Gauge, help);
        for Export { volume, .. } in volumes {
            all.sample(&[("volume", &volume.name)], value(volume));
        }
    }
}

fn of_ports(all: &mut Exposition, ports: &[Listening]) {
    all.family(
        "hcablk_port_enabled",
        Type::Gauge,
        "Whether a port listens.",
    );
    for Listening { port, .. } in ports {
        let address = Endpoint {
            address: port.address.clone(),
            port: port.port,
        };
        all.sample(
            &[("port", &port.id), ("address", &address.to_string())],
            u64::from(port.enabled),
        );
    }
    all.family(
        "hcablk_port_sessions",
        Type::Gauge,
        "Sessions that began at a port; at most as many as the kernel shows, about 50.",
    );
    for Listening { port, .. } in ports {
        all.sample(&[("port", &port.id)], port.sessions.len());
    }
    for (line, name, help) in [
        (
            "limit",
            "hcablk_port_memory_limit_bytes",
            "Memory limit of all sessions of a port.",
        ),
        (
            "used",
            "hcablk_port_memory_used_bytes",
            "Memory in use by all sessions of a port.",
        ),
        (
            "reserved",
            "hcablk_port_memory_reserved_bytes",
            "Memory that is reserved for single sessions.",
        ),
        (
            "waiting",
            "hcablk_port_waiting_queues",
            "Queue pairs that wait for transfer buffers.",
        ),
    ] {
        all.family(name, Type::Gauge, help);
        for Listening { port, memory } in ports {
            let mut lines = memory.lines();
            let value = lines.find_map(|text| text.strip_prefix(line)?.strip_prefix(' '));
            if let Some(value) = value.and_then(|value| value.trim().parse::<u64>().ok()) {
                all.sample(&[("port", &port.id)], value);
            }
        }
    }
}
