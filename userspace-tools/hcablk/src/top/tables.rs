// SPDX-License-Identifier: GPL-2.0

//! The rows of the tables.

use super::seen::{rates_of, Seen};
use crate::endpoint::Endpoint;
use crate::initiator::LOST;
use crate::output::numbers::{bytes, count};
use crate::output::text::size;
use crate::output::{Device, Rates};
use crate::times::{Class, Duration, StateTimes};

/// A table: the widths of its columns, 0 for the rest of the line; its headings, of which those that begin with `>` are
/// aligned right; and its rows.
pub(super) struct Table {
    pub(super) widths: Vec<u16>,
    pub(super) heading: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

fn shown<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

fn address(address: &str, port: u16) -> String {
    let address = address.to_owned();
    Endpoint { address, port }.to_string()
}

/// Returns the cells of rates: reads, writes, the bytes of both, and the mean latency.
fn of_rates(rates: Option<&Rates>) -> Vec<String> {
    let rate = |value: fn(&Rates) -> String| shown(rates, value);
    vec![
        rate(|rates| count(rates.per_second.reads)),
        rate(|rates| count(rates.per_second.writes)),
        rate(|rates| bytes(rates.per_second.read_bytes)),
        rate(|rates| bytes(rates.per_second.written_bytes)),
        shown(rates.and_then(|rates| rates.mean_ns), |mean| {
            Duration(mean).to_string()
        }),
    ]
}

/// Returns the state of a disk. Lost writes are shown in place of a state in which requests are served.
fn state(device: &Device) -> String {
    let is_served = matches!(device.state.as_str(), "live" | "degraded");
    if is_served && device.has_lost_writes() {
        "lost-writes".to_owned()
    } else {
        device.state.clone()
    }
}

pub(super) fn disks(seen: &Seen) -> Table {
    let rows = seen.devices.iter().map(|device| {
        let rates = rates_of(&seen.disk_rates, &device.name);
        let in_flight = rates.and_then(|rates| rates.in_flight);
        let mut row = vec![device.name.clone(), state(device), shown(in_flight, count)];
        row.extend(of_rates(rates));
        row
    });
    Table {
        widths: vec![0, 13, 6, 6, 7, 8, 9, 8],
        heading: vec![
            "DISK",
            "STATE",
            ">FLIGHT",
            ">READ/s",
            ">WRITE/s",
            ">READ-B/s",
            ">WRITE-B/s",
            ">MEAN",
        ],
        rows: rows.collect(),
    }
}

pub(super) fn paths(seen: &Seen) -> Table {
    let mut rows = Vec::new();
    for device in &seen.devices {
        let mut add = |number: u8, place: String, state: &str, error: Option<&String>| {
            rows.push(vec![
                device.name.clone(),
                number.to_string(),
                place,
                state.to_owned(),
                error.cloned().unwrap_or_default(),
            ]);
        };
        if device.paths.is_empty() {
            let place = address(&device.address, device.port);
            add(0, place, &device.state, device.error.as_ref());
        }
        for path in &device.paths {
            let place = address(&path.address, path.port);
            let state = path.state.as_deref().unwrap_or("-");
            add(path.number, place, state, path.error.as_ref());
        }
    }
    Table {
        widths: vec![16, 4, 22, 12, 0],
        heading: vec!["DISK", ">PATH", "ADDRESS", "STATE", "ERROR"],
        rows,
    }
}

pub(super) fn volumes(seen: &Seen) -> Table {
    let rows = seen.volumes.iter().map(|volume| {
        let rates = rates_of(&seen.volume_rates, &volume.name);
        let state = if volume.enabled {
            "enabled"
        } else {
            "disabled"
        };
        let mut row = vec![
            volume.name.clone(),
            state.to_owned(),
            volume.mode.clone(),
            volume.clients.len().to_string(),
        ];
        row.extend(of_rates(rates));
        row
    });
    Table {
        widths: vec![0, 8, 6, 7, 6, 7, 8, 9, 8],
        heading: vec![
            "VOLUME",
            "STATE",
            "MODE",
            ">CLIENTS",
            ">READ/s",
            ">WRITE/s",
            ">READ-B/s",
            ">WRITE-B/s",
            ">MEAN",
        ],
        rows: rows.collect(),
    }
}

pub(super) fn ports(seen: &Seen) -> Table {
    let rows = seen.ports.iter().map(|port| {
        vec![
            port.id.clone(),
            address(&port.address, port.port),
            if port.enabled { "listens" } else { "off" }.to_owned(),
            port.sessions.len().to_string(),
            size(u64::from(port.memory_mib) << 20),
            port.error.clone().unwrap_or_default(),
        ]
    });
    Table {
        widths: vec![6, 22, 8, 8, 9, 0],
        heading: vec!["PORT", "ADDRESS", "STATE", ">SESSIONS", ">MEMORY", "ERROR"],
        rows: rows.collect(),
    }
}

pub(super) fn latency(seen: &Seen) -> Table {
    let below = |class: Option<&Class>| {
        shown(class, |class| match class.below_ns {
            Some(ns) => format!("< {}", Duration(ns)),
            None => "more".to_owned(),
        })
    };
    let mut rows = Vec::new();
    let disks = seen.disk_rates.iter().map(|rates| ("disk", rates));
    let volumes = seen.volume_rates.iter().map(|rates| ("volume", rates));
    for (kind, rates) in disks.chain(volumes) {
        for state in &rates.states {
            let times = StateTimes::from(state);
            rows.push(vec![
                format!("{kind} {}", rates.name),
                state.state.clone(),
                count(state.count),
                shown(times.mean_ns(), |mean| Duration(mean).to_string()),
                below(times.percentile(50)),
                below(times.percentile(99)),
                below(times.classes.last()),
            ]);
        }
    }
    Table {
        widths: vec![0, 9, 8, 9, 11, 11, 11],
        heading: vec![
            "OF",
            "STATE",
            ">REQUESTS",
            ">MEAN",
            ">HALF",
            ">99 %",
            ">ALL",
        ],
        rows,
    }
}

/// Returns lines about the selected disk.
pub(super) fn about_disk(seen: &Seen, selected: usize) -> Vec<String> {
    let Some(device) = seen.devices.get(selected) else {
        return Vec::new();
    };
    let mut lines = vec![
        format!(
            "{}: {} of {}, volume {}",
            device.name,
            device.device.as_deref().unwrap_or("no disk"),
            address(&device.address, device.port),
            device.volume
        ),
        format!(
            "size {}, queues {} of depth {}, paths {}, policy {}",
            shown(device.size_bytes, size),
            shown(device.queues, |queues| queues.to_string()),
            device.queue_depth,
            device.paths.len().max(1),
            device.policy
        ),
    ];
    if let Some(session) = &device.session {
        lines.push(format!("session {}, epoch {}", session.id, session.epoch));
    }
    if device.has_lost_writes() {
        lines.push(format!("lost writes: {LOST}"));
        lines.push("hcablk check shows the remedy".to_owned());
    }
    if let Some(error) = &device.error {
        lines.push(format!("error: {error}"));
    }
    lines
}

/// Returns lines about the selected path, with the whole reason why it is not live: the table may show only its
/// beginning.
pub(super) fn about_path(seen: &Seen, selected: usize) -> Vec<String> {
    let rows = paths(seen).rows;
    let row = rows.get(selected).map(Vec::as_slice);
    match row {
        Some([disk, number, place, state, error]) => {
            let mut lines = vec![format!("{disk} path {number}: {place}, {state}")];
            lines.extend((!error.is_empty()).then(|| format!("error: {error}")));
            lines
        }
        _ => Vec::new(),
    }
}

/// Returns lines about the selected volume and its clients.
pub(super) fn about_volume(seen: &Seen, selected: usize) -> Vec<String> {
    let Some(volume) = seen.volumes.get(selected) else {
        return Vec::new();
    };
    let mut lines = vec![format!(
        "{}: {}, {}, hosts allowed {}, evicted {}",
        volume.name,
        volume.path,
        size(volume.size_bytes),
        volume.hosts.len(),
        volume.evicted.len()
    )];
    lines.extend(volume.clients.iter().map(|client| {
        let host = seen.host_names.show_text(&client.host);
        format!(
            "  {host} {} epoch {}, {} queues",
            client.session, client.epoch, client.queues
        )
    }));
    if let Some(error) = &volume.error {
        lines.push(format!("error: {error}"));
    }
    lines
}
