// SPDX-License-Identifier: GPL-2.0

//! The metrics of this machine's configuration and keys.
//!
//! An object that does not exist has no metric of its own, so an alert on a missing object needs these.

use super::exposition::{Exposition, Type};
use crate::config::{self, Config, Disk};
use crate::keys;
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
    // Disks in user space have no metrics.
    let is_ours = |disk: &Disk| disk.enabled && !disk.user;
    let disks = config.disk.iter().filter(|(_, disk)| is_ours(disk));
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
            "A disk that this machine should have: always 1.",
            disks.map(|(name, _)| name.as_str()).collect(),
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
