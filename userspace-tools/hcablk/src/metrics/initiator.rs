// SPDX-License-Identifier: GPL-2.0

//! The metrics of disks.

use super::exposition::{Exposition, Type};
use crate::configfs::unless_gone;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::initiator;
use crate::output::Device;
use crate::stats::{disks, Sample};
use crate::system::System;
use crate::times::Times;

/// The states of a disk.
const STATES: [&str; 9] = [
    "new",
    "connecting",
    "live",
    "degraded",
    "queueing",
    "failing-fast",
    "failing",
    "failed",
    "disconnecting",
];

/// The states of a path; for a path 0 that is not live, the kernel reports only `lost`.
const PATH_STATES: [&str; 6] = ["new", "connecting", "live", "waiting", "refused", "lost"];

/// A disk.
pub(super) struct Disk {
    device: Device,
    sample: Sample,
    times: Times,
}

/// Reads all disks; `None` if the module is not loaded.
pub(super) fn read(system: &dyn System) -> Result<Option<Vec<Disk>>> {
    let Some(devices) = initiator::devices(system)? else {
        return Ok(None);
    };
    let samples = disks(system, None)?.samples;
    let mut found = Vec::new();
    for group in initiator::selected(system, None, "counters")?
        .into_iter()
        .flatten()
    {
        let name = group.name();
        let device = devices.iter().find(|device| device.name == name);
        let sample = samples.iter().find(|sample| sample.name == name);
        // A disk that was added or removed between the readings is left out this time.
        if let (Some(device), Some(sample), Some(times)) = (
            device,
            sample,
            unless_gone(&group, Times::read(&group, None))?,
        ) {
            found.push(Disk {
                device: device.clone(),
                sample: sample.clone(),
                times,
            });
        }
    }
    Ok(Some(found))
}

/// Writes the metrics of all disks.
pub(super) fn write(all: &mut Exposition, disks: &[Disk]) {
    if disks.is_empty() {
        return;
    }
    about(all, disks);
    paths(all, disks);
    let counted: Vec<_> = disks
        .iter()
        .map(|disk| {
            let labels = vec![("disk", disk.device.name.as_str())];
            (labels, disk.sample.counters.as_slice())
        })
        .collect();
    all.counters("hcablk_disk", &counted, |name| {
        format!("Counter {name} of disks: docs/reference/counters.md.")
    });
    all.family(
        "hcablk_disk_request_seconds",
        Type::Histogram,
        "Durations of a disk's requests by state; measured after hcablk times --measure on.",
    );
    for disk in disks {
        for state in &disk.times.states {
            all.times(
                &[("disk", &disk.device.name), ("state", &state.state)],
                state,
            );
        }
    }
}

fn about(all: &mut Exposition, disks: &[Disk]) {
    all.family("hcablk_disk_info", Type::Gauge, "A disk: always 1.");
    for Disk { device, .. } in disks {
        let address = Endpoint {
            address: device.address.clone(),
            port: device.port,
        };
        all.sample(
            &[
                ("disk", &device.name),
                ("device", device.device.as_deref().unwrap_or_default()),
                ("volume", &device.volume),
                ("address", &address.to_string()),
                ("wwid", device.wwid.as_deref().unwrap_or_default()),
                ("policy", &device.policy),
            ],
            1,
        );
    }
    all.family(
        "hcablk_disk_state",
        Type::Gauge,
        "1 for the state that a disk is in.",
    );
    for Disk { device, .. } in disks {
        all.states(&[("disk", &device.name)], &STATES, &device.state);
    }
    all.family(
        "hcablk_disk_lost_writes",
        Type::Gauge,
        "1 if the target lost acknowledged writes, and every flush of the disk fails.",
    );
    for Disk { device, .. } in disks {
        if let Some(is_lost) = device.lost_writes {
            all.sample(&[("disk", &device.name)], u64::from(is_lost));
        }
    }
    all.family("hcablk_disk_size_bytes", Type::Gauge, "The size of a disk.");
    for Disk { device, .. } in disks {
        if let Some(size) = device.size_bytes {
            all.sample(&[("disk", &device.name)], size);
        }
    }
    all.family(
        "hcablk_disk_in_flight",
        Type::Gauge,
        "Requests of a disk in flight.",
    );
    for disk in disks {
        if let Some(in_flight) = disk.sample.in_flight {
            all.sample(&[("disk", &disk.device.name)], in_flight);
        }
    }
    all.family(
        "hcablk_disk_measuring",
        Type::Gauge,
        "Whether the durations of requests are measured.",
    );
    for disk in disks {
        all.sample(
            &[("disk", &disk.device.name)],
            u64::from(disk.times.measuring),
        );
    }
}

/// Writes the metrics of the paths. A disk with one path has none here, and the path's state is
/// that of the disk.
fn paths(all: &mut Exposition, disks: &[Disk]) {
    all.family(
        "hcablk_path_state",
        Type::Gauge,
        "1 for the state that a path is in; for disks with several paths.",
    );
    for Disk { device, .. } in disks {
        for path in &device.paths {
            let address = Endpoint {
                address: path.address.clone(),
                port: path.port,
            };
            let Some(state) = &path.state else {
                continue;
            };
            all.states(
                &[
                    ("disk", &device.name),
                    ("path", &path.number.to_string()),
                    ("address", &address.to_string()),
                ],
                &PATH_STATES,
                state,
            );
        }
    }
}
