// SPDX-License-Identifier: GPL-2.0

//! Reports as text for people: sentences and tables.

use std::fmt;

use super::table::table;
use super::{
    columns, configuration, discovered, health, rates, trace, Counters, Device, DiskKind, Done,
    PathRef, Port, Report, SyncedDisk, Volume,
};
use crate::endpoint::Endpoint;
use crate::host_names::HostNames;
use crate::names::CHUNK_KIB;
use crate::times;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices { columns, .. } | Self::Exports { columns, .. }
                if !columns.is_empty() =>
            {
                f.write_str(&self.in_columns(columns))
            }
            Self::Devices { devices, .. } => f.write_str(&device_tables(devices)),
            Self::DeviceStats { devices } => f.write_str(&counter_table(devices)),
            Self::DeviceTimes { devices: times } | Self::ExportTimes { volumes: times } => {
                f.write_str(&table(&times::rows(times), |column| column > 1))
            }
            Self::Exports {
                volumes,
                ports,
                host_names,
                ..
            } => {
                f.write_str(&volume_table(volumes, host_names))?;
                f.write_str("\n")?;
                if volumes.iter().any(|volume| !volume.evicted.is_empty()) {
                    f.write_str(&evicted_table(volumes, host_names))?;
                    f.write_str("\n")?;
                }
                f.write_str(&port_table(ports))
            }
            Self::ExportStats { volumes, ports } => {
                let named: Vec<_> = ports
                    .iter()
                    .map(|port| Counters {
                        name: format!("port {}", port.name),
                        ..port.clone()
                    })
                    .collect();
                f.write_str(&counter_table(volumes))?;
                if !named.is_empty() {
                    f.write_str("\n")?;
                    f.write_str(&counter_table(&named))?;
                }
                Ok(())
            }
            Self::Applied {
                dry_run,
                steps,
                pending,
                ..
            } => configuration::applied(f, *dry_run, steps, pending),
            Self::Difference {
                steps,
                not_configured,
                ..
            } => configuration::differences(f, steps, not_configured),
            Self::Checked { files, .. } if files.is_empty() => Ok(()),
            Self::Checked {
                files,
                exports,
                ports,
                disks,
            } => {
                let counted = configuration::counted(*exports, *ports, *disks);
                writeln!(f, "{}: {counted}", files.join(", "))
            }
            Self::Configuration { toml, .. } => f.write_str(toml),
            Self::DeviceRates {
                devices: all,
                heading,
                ..
            }
            | Self::VolumeRates {
                volumes: all,
                heading,
                ..
            } => f.write_str(&rates::lines(all, *heading)),
            Self::Event(event) => writeln!(f, "{event}"),
            Self::Trace {
                machines,
                requests,
                written,
                one,
            } => {
                trace::write(f, machines, requests, *one)?;
                written
                    .iter()
                    .try_for_each(|file| writeln!(f, "{file} is written"))
            }
            Self::Metrics { metrics } => f.write_str(metrics),
            Self::Health {
                failures,
                warnings,
                findings,
            } => health::write(f, findings, *failures, *warnings),
            Self::Printed => Ok(()),
            Self::Discovered { volumes, portals } => {
                f.write_str(&discovered::text(volumes, portals))
            }
            Self::Key { key } => writeln!(f, "{key}"),
            Self::HostId { host_id, .. } => writeln!(f, "{host_id}"),
            Self::Script { script } => f.write_str(script),
            Self::Done { result } => write!(f, "{result}"),
        }
    }
}

impl Report {
    /// Returns a list of disks or volumes with these columns.
    fn in_columns(&self, names: &[String]) -> String {
        match self {
            Self::Devices { devices, .. } => columns::of(devices, names),
            Self::Exports { volumes, .. } => columns::of(volumes, names),
            _ => String::new(),
        }
    }
}

impl Done {
    fn write_export(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Export {
            volume,
            path,
            read_only,
            insecure,
            mode,
            write_cache,
            cache_mib,
            chunk_kib,
            port,
            ..
        } = self
        else {
            return Ok(());
        };

        write!(f, "{path} is exported as {volume}")?;
        if *read_only {
            f.write_str(", read-only")?;
        }
        if *insecure {
            f.write_str(", INSECURE")?;
        }
        if mode != "direct" {
            write!(f, ", {mode}")?;
        }
        if write_cache == "through" {
            f.write_str(", write-through")?;
        }
        if *cache_mib != 0 {
            write!(f, ", with a cache of {cache_mib} MiB")?;
        }
        match *chunk_kib {
            CHUNK_KIB => {}
            0 => f.write_str(", large requests whole")?,
            kib => write!(f, ", large requests in chunks of {kib} KiB")?,
        }
        match port {
            Some(port) => writeln!(f, ", at {}", endpoint(&port.address, port.port)),
            None => f.write_str("\n"),
        }
    }

    /// Writes the results of commands on hosts.
    fn write_hosts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enroll {
                client,
                host,
                dry_run,
                steps,
                ..
            } => {
                let what = if *dry_run { "would do" } else { "done" };
                for step in steps {
                    writeln!(f, "{what}: {step}")?;
                }
                writeln!(f, "{client} is the host {host}")
            }
            Self::Allow {
                volume,
                hosts,
                host_names,
                ..
            } => writeln!(f, "{volume} allows {}", host_names.join(hosts)),
            Self::Forbid {
                volume,
                hosts,
                host_names,
                ..
            } => writeln!(f, "{volume} no longer allows {}", host_names.join(hosts)),
            Self::Evict {
                volume,
                hosts,
                host_names,
                ..
            } => {
                writeln!(f, "{volume} has evicted {}", host_names.join(hosts))
            }
            Self::Admit {
                volume,
                hosts,
                host_names,
                ..
            } => writeln!(f, "{volume} admits {} again", host_names.join(hosts)),
            Self::NameHost {
                host,
                name: Some(name),
                ..
            } => writeln!(f, "{host} has the name {name}"),
            Self::NameHost { host, .. } => writeln!(f, "{host} has no name"),
            _ => Ok(()),
        }
    }
}

fn write_path(f: &mut fmt::Formatter<'_>, name: &str, has: &str, path: &PathRef) -> fmt::Result {
    let at = endpoint(&path.address, path.port);
    writeln!(f, "{name} {has} path {}: {at}", path.number)
}

/// Writes the paths that a disk got and lost.
fn write_synced(f: &mut fmt::Formatter<'_>, disk: &SyncedDisk) -> fmt::Result {
    let name = &disk.name;
    for path in &disk.added {
        write_path(f, name, "has", path)?;
    }
    let mut removed = disk.removed.iter();
    removed.try_for_each(|path| write_path(f, name, "no longer has", path))
}

fn ended_volumes(f: &mut fmt::Formatter<'_>, volumes: &[String]) -> fmt::Result {
    let mut volumes = volumes.iter();
    volumes.try_for_each(|volume| writeln!(f, "{volume} is no longer exported"))
}

fn ended_ports(f: &mut fmt::Formatter<'_>, ports: &[String]) -> fmt::Result {
    let mut ports = ports.iter();
    ports.try_for_each(|id| writeln!(f, "port {id} no longer listens"))
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Only the device, so that scripts can use it directly.
            Self::Connect { device, .. } => writeln!(f, "{device}"),
            Self::ConnectAll { disks, .. } => disks
                .iter()
                .try_for_each(|disk| writeln!(f, "{} {}", disk.name, disk.device)),
            Self::Save {
                file,
                exports,
                ports,
                disks,
                ..
            } => {
                let counted = configuration::counted(*exports, *ports, *disks);
                writeln!(f, "{file} has {counted}")
            }
            Self::Disconnect { devices, .. } => devices
                .iter()
                .try_for_each(|name| writeln!(f, "disconnected {name}")),
            Self::AcknowledgeLoss {
                name,
                changed: true,
            } => writeln!(
                f,
                "{name}: the loss is acknowledged, and flushes succeed again; what was lost stays lost"
            ),
            Self::PathAdd { name, path, .. } => write_path(f, name, "has", path),
            Self::PathRemove {
                name,
                path: Some(path),
                ..
            } => write_path(f, name, "no longer has", path),
            Self::PathSync { disks, .. } => {
                disks.iter().try_for_each(|disk| write_synced(f, disk))
            }
            Self::PathPolicy { name, policy, .. } => {
                writeln!(f, "{name} has the policy {policy}")
            }
            Self::Key(stored) => {
                let count = match stored.keys {
                    1 => "one key",
                    _ => "two keys, the newer one first",
                };
                writeln!(f, "{} holds {count}", stored.file.display())
            }
            Self::Keys {} => writeln!(f, "the kernel modules have the keys"),
            Self::Export { .. } => self.write_export(f),
            Self::Unapply { volumes, ports, .. } => {
                ended_ports(f, ports)?;
                ended_volumes(f, volumes)
            }
            Self::UnexportAll { volumes, .. } => ended_volumes(f, volumes),
            Self::Unexport {
                volume,
                changed: true,
            } => writeln!(f, "{volume} is no longer exported"),
            Self::Enroll { .. }
            | Self::Allow { .. }
            | Self::Forbid { changed: true, .. }
            | Self::Evict { .. }
            | Self::Admit { changed: true, .. }
            | Self::NameHost { .. } => self.write_hosts(f),
            Self::Listen { port, .. } => {
                writeln!(
                    f,
                    "port {} listens at {}",
                    port.id,
                    endpoint(&port.address, port.port)
                )
            }
            Self::Unlisten { ports, .. } => ended_ports(f, ports),
            Self::Man { files } => files.iter().try_for_each(|file| writeln!(f, "{file}")),
            Self::Report { file, .. } => writeln!(f, "{file}"),
            Self::TraceRecord {
                file,
                events,
                requests,
                ..
            } => writeln!(f, "{file} has {events} events, of {requests} requests"),
            // A caller that writes the metrics every few seconds needs only failures.
            Self::Metrics { .. }
            | Self::AcknowledgeLoss { changed: false, .. }
            | Self::PathRemove { path: None, .. }
            | Self::Unexport { changed: false, .. }
            | Self::Forbid { changed: false, .. }
            | Self::Admit { changed: false, .. } => Ok(()),
        }
    }
}

pub(super) fn cells(row: &[&str]) -> Vec<String> {
    row.iter()
        .map(|cell| if cell.is_empty() { "-" } else { cell }.to_owned())
        .collect()
}

/// Formats an address and port; empty if the address is not set.
fn endpoint(address: &str, port: u16) -> String {
    if address.is_empty() {
        return String::new();
    }
    let address = address.to_owned();
    Endpoint { address, port }.to_string()
}

/// Formats a size in the largest binary unit that it fills.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut whole, mut rest, mut unit) = (bytes, 0, "B");
    for next in UNITS {
        if whole < 1024 {
            break;
        }
        rest = whole % 1024;
        whole /= 1024;
        unit = next;
    }
    if unit == "B" || rest == 0 {
        format!("{whole} {unit}")
    } else {
        format!("{whole}.{} {unit}", rest * 10 / 1024)
    }
}

/// Makes a table of the disks, and one of the paths of those that have several.
fn device_tables(devices: &[Device]) -> String {
    let mut text = device_table(devices);
    if devices.iter().any(|device| !device.paths.is_empty()) {
        text.push('\n');
        text.push_str(&path_table(devices));
    }
    text
}

/// Makes a table with a row for each disk. It has a column for the server if any disk is served in user space.
fn device_table(devices: &[Device]) -> String {
    let has_kinds = devices.iter().any(|device| device.kind == DiskKind::User);
    let row = |head: [&str; 2], kind: &str, rest: [&str; 7]| {
        let kind = has_kinds.then_some(kind);
        let row: Vec<_> = head.into_iter().chain(kind).chain(rest).collect();
        cells(&row)
    };
    let rest = [
        "STATE", "ADDRESS", "VOLUME", "SIZE", "QUEUES", "SESSION", "ERROR",
    ];
    let mut rows = vec![row(["NAME", "DEVICE"], "KIND", rest)];
    for device in devices {
        let queues = device.queues.map(|queues| queues.to_string());
        let session = device
            .session
            .as_ref()
            .map(|session| format!("{} {}", session.id, session.epoch));
        rows.push(row(
            [&device.name, device.device.as_deref().unwrap_or_default()],
            &device.kind.to_string(),
            [
                &device.state_and_loss(),
                &endpoint(&device.address, device.port),
                &device.volume,
                &device.size_bytes.map(size).unwrap_or_default(),
                &queues.unwrap_or_default(),
                &session.unwrap_or_default(),
                device.error.as_deref().unwrap_or_default(),
            ],
        ));
    }
    let first = if has_kinds { 6 } else { 5 };
    table(&rows, |column| column == first || column == first + 1)
}

/// Makes a table with a row for each path of the disks that have several.
fn path_table(devices: &[Device]) -> String {
    let heading = [
        "NAME", "POLICY", "AUTO", "PATH", "ADDRESS", "STATE", "ERROR",
    ];
    let mut rows = vec![cells(&heading)];
    for device in devices {
        rows.extend(device.paths.iter().map(|path| {
            cells(&[
                &device.name,
                &device.policy,
                yes_no(device.paths_auto),
                &path.number.to_string(),
                &endpoint(&path.address, path.port),
                path.state.as_deref().unwrap_or_default(),
                path.error.as_deref().unwrap_or_default(),
            ])
        }));
    }
    table(&rows, |column| column == 3)
}

fn volume_table(volumes: &[Volume], names: &HostNames) -> String {
    let mut rows = vec![cells(&[
        "VOLUME",
        "PATH",
        "ENABLED",
        "ACCESS",
        "MODE",
        "WRITE-CACHE",
        "SIZE",
        "HOST",
        "SESSIONS",
        "ERROR",
    ])];
    for volume in volumes {
        // Each host on a line of its own, with the number of its sessions.
        let sessions_of = |host: &str| {
            let sessions = volume.clients.iter().filter(|client| client.host == host);
            sessions.count().to_string()
        };
        let allowed: Vec<_> = volume.hosts.iter().map(ToString::to_string).collect();
        let mut others: Vec<_> = volume
            .clients
            .iter()
            .map(|client| client.host.clone())
            .filter(|host| !allowed.contains(host))
            .collect();
        others.dedup();
        let allowed = allowed.iter().map(|host| {
            let sessions = sessions_of(host);
            (names.show_text(host), sessions)
        });
        let others = others.iter().map(|host| {
            let host_text = format!("{} (not allowed)", names.show_text(host));
            (host_text, sessions_of(host))
        });
        let mut hosts = allowed.chain(others);
        let (host, sessions) = hosts.next().unwrap_or_default();
        rows.push(cells(&[
            &volume.name,
            &volume.path,
            yes_no(volume.enabled),
            match (volume.read_only, volume.insecure) {
                (false, false) => "rw",
                (true, false) => "ro",
                (false, true) => "rw INSECURE",
                (true, true) => "ro INSECURE",
            },
            &volume.mode,
            volume.write_cache.as_deref().unwrap_or_default(),
            &size(volume.size_bytes),
            &host,
            &sessions,
            volume.error.as_deref().unwrap_or_default(),
        ]));
        for (host, sessions) in hosts {
            let mut row = vec![String::new(); 7];
            row.push(host);
            row.push(sessions);
            rows.push(row);
        }
    }
    table(&rows, |column| matches!(column, 6 | 8))
}

/// Makes a table with a row for each evicted host.
fn evicted_table(volumes: &[Volume], names: &HostNames) -> String {
    let mut rows = vec![cells(&["VOLUME", "EVICTED HOST", "DRAINING"])];
    for volume in volumes {
        rows.extend(
            volume
                .evicted
                .iter()
                .map(|one| cells(&[&volume.name, &names.show(&one.host), yes_no(one.draining)])),
        );
    }
    table(&rows, |_| false)
}

fn port_table(ports: &[Port]) -> String {
    let mut rows = vec![cells(&["PORT", "ADDRESS", "ENABLED", "SESSIONS", "ERROR"])];
    for port in ports {
        rows.push(cells(&[
            &port.id,
            &endpoint(&port.address, port.port),
            yes_no(port.enabled),
            &format!(
                "{}{}",
                port.sessions.len(),
                if port.sessions_cut { "+" } else { "" }
            ),
            port.error.as_deref().unwrap_or_default(),
        ]));
    }
    table(&rows, |column| column == 3)
}

fn yes_no(value: bool) -> &'static str {
    if value {
        "yes"
    } else {
        "no"
    }
}

/// Makes a table with a row for each counter and a column for each object.
fn counter_table(stats: &[Counters]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in stats.iter().flat_map(|one| &one.counters) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut heading = vec!["COUNTER".to_owned()];
    heading.extend(stats.iter().map(|one| one.name.clone()));
    let mut rows = vec![heading];
    for name in names {
        let mut row = vec![name.to_owned()];
        for one in stats {
            let value = one.counters.iter().find(|(counter, _)| counter == name);
            row.push(value.map_or_else(|| "-".to_owned(), |(_, value)| value.to_string()));
        }
        rows.push(row);
    }
    table(&rows, |column| column > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn counters_of_several() {
        let one = |name: &str, counters: &[(&str, u64)]| Counters {
            name: name.to_owned(),
            counters: counters
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        };
        let text = counter_table(&[
            one("a", &[("reads", 1), ("writes", 20)]),
            one("bb", &[("reads", 300)]),
        ]);
        assert_eq!(
            text,
            "COUNTER   a   bb\nreads     1  300\nwrites   20    -\n"
        );
    }
}
