// SPDX-License-Identifier: GPL-2.0

//! The metrics of this machine's configuration and keys.
//!
//! An object that does not exist has no metric of its own, so an alert on a missing object needs these.

use std::path::Path;

use super::exposition::{Exposition, Type};
use crate::config::{self, Config, Disk};
use crate::keys;
use crate::names::DeviceName;
use crate::system::System;

/// Writes the metrics of the configuration and of the keys, as far as this user can read them.
pub(super) fn write(all: &mut Exposition, system: &dyn System) {
    let loaded = config::load(system);
    // Files that this user cannot read are not a mistake.
    let is_read = loaded
        .as_ref()
        .map_or_else(|error| error.errno.is_none(), |_| true);
    if is_read {
        all.family(
            "hcablk_configuration_valid",
            Type::Gauge,
            "Whether the files of the configuration have no mistake.",
        );
        all.sample(&[], u64::from(loaded.is_ok()));
    }
    if let Ok(loaded) = loaded {
        of_tables(all, &loaded.config);
        at_start(all, system, &loaded.config);
    }
    if let Some(is_pending) = keys::is_pending(system) {
        all.family(
            "hcablk_key_pending",
            Type::Gauge,
            "Whether a new key of this host is pending, because not all its targets have it.",
        );
        all.sample(&[], u64::from(is_pending));
    }
}

/// Writes a sample for each export, port and disk that is configured and enabled.
fn of_tables(all: &mut Exposition, config: &Config) {
    let exports = config.export.iter().filter(|(_, export)| export.enabled);
    let ports = config.port.iter().filter(|(_, port)| port.enabled);
    let disks = disks(config);
    let tables: [(_, _, _, Vec<&str>); 3] = [
        (
            "hcablk_export_configured",
            "volume",
            "An export that this machine should have: always 1.",
            exports.map(|(name, _)| name.as_str()).collect(),
        ),
        (
            "hcablk_port_configured",
            "port",
            "A port at which this machine should listen: always 1.",
            ports.map(|(name, _)| name.as_str()).collect(),
        ),
        (
            "hcablk_disk_configured",
            "disk",
            "A disk that is configured and enabled: always 1.",
            disks.map(DeviceName::as_str).collect(),
        ),
    ];
    for (family, label, help, names) in tables {
        if names.is_empty() {
            continue;
        }
        all.family(family, Type::Gauge, help);
        for name in names {
            all.sample(&[(label, name)], 1);
        }
    }
}

/// Returns the disks that are configured and enabled, except those in user space, which have no metrics.
fn disks(config: &Config) -> impl Iterator<Item = &DeviceName> {
    let is_ours = |disk: &Disk| disk.enabled && !disk.user;
    let disks = config.disk.iter().filter(move |(_, disk)| is_ours(disk));
    disks.map(|(name, _)| name)
}

/// Writes for each disk whether this machine connects it at each start. The standby node of a cluster has a disk in its
/// configuration that the cluster manager connects elsewhere.
fn at_start(all: &mut Exposition, system: &dyn System, config: &Config) {
    let mut names = disks(config).peekable();
    if names.peek().is_none() {
        return;
    }
    let enabled = enabled_units(system);
    all.family(
        "hcablk_disk_at_start",
        Type::Gauge,
        "Whether hcablk@DISK.service connects a disk at each start; without systemd 1 for each.",
    );
    for name in names {
        let unit = format!("hcablk@{name}.service");
        let is_enabled = enabled.as_ref().is_none_or(|units| units.contains(&unit));
        all.sample(&[("disk", name.as_str())], u64::from(is_enabled));
    }
}

/// Lists the enabled units, for which `systemctl enable` has made links in folders `*.wants` or `*.requires`; `None` on
/// a machine without systemd.
fn enabled_units(system: &dyn System) -> Option<Vec<String>> {
    if !system.exists(Path::new("/run/systemd/system")) {
        return None;
    }
    let mut units = Vec::new();
    for folder in ["/etc/systemd/system", "/run/systemd/system"].map(Path::new) {
        let names = system.entries(folder).unwrap_or_default();
        let kind = |name: &String| Path::new(name).extension().map(ToOwned::to_owned);
        let wants =
            |name: &&String| kind(name).is_some_and(|kind| kind == "wants" || kind == "requires");
        for name in names.iter().filter(wants) {
            units.extend(system.entries(&folder.join(name)).unwrap_or_default());
        }
    }
    Some(units)
}
