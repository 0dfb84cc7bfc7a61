// SPDX-License-Identifier: GPL-2.0

//! `hcablk list`, `stats` and `times`.

use std::path::Path;

use super::disconnect::{find, not_in_kernel};
use super::{loss, not_loaded, paths};
use crate::configfs::{parse_counters, unless_gone, Group, INITIATOR};
use crate::error::{Error, Result};
use crate::output::{Counters, Device, DiskKind, Outcome, Report, Session};
use crate::system::System;
use crate::times::Times;
use crate::user;

/// Runs `hcablk list`.
pub fn list(system: &dyn System) -> Result<Outcome> {
    let in_kernel = devices(system)?;
    let loaded = in_kernel.is_some();
    let mut devices = in_kernel.unwrap_or_default();
    let mut advice: Vec<_> = devices.iter().filter_map(loss::advice).collect();
    let in_user_space = user::devices(system);
    advice.extend(in_user_space.iter().filter_map(user::loss_advice));
    // Disks in user space need no module: if there are any, its absence needs no remark.
    let is_odd = !loaded && in_user_space.is_empty();
    devices.extend(in_user_space);
    let mut outcome = Outcome::new(Report::Devices {
        devices,
        columns: Vec::new(),
    });
    if is_odd {
        outcome.note(not_loaded());
    }
    for line in advice {
        outcome.note(line);
    }
    Ok(outcome)
}

/// Reads all devices of the kernel's driver; `None` if the module is not loaded.
pub fn devices(system: &dyn System) -> Result<Option<Vec<Device>>> {
    let Some(groups) = selected(system, None, "")? else {
        return Ok(None);
    };
    let mut devices = Vec::new();
    for group in groups {
        // A device may be removed while it is read.
        devices.extend(unless_gone(&group, read_device(&group))?);
    }
    Ok(Some(devices))
}

fn read_device(group: &Group<'_>) -> Result<Device> {
    let system = group.system();
    let device = group.get("device")?;
    let disk = Path::new("/sys/block").join(&device);
    let present = !device.is_empty();
    // The block layer counts in sectors of 512 bytes, for any sector size of the disk.
    let sectors = || {
        system
            .read(&disk.join("size"))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    let state = group.get("state")?;
    let hardware_queues = || system.folders(&disk.join("mq")).ok()?.len().try_into().ok();
    Ok(Device {
        name: group.name(),
        kind: DiskKind::Kernel,
        device: present.then(|| format!("/dev/{device}")),
        paths: paths::show(group, &state)?,
        state,
        address: group.get("address")?,
        port: group.value("port")?,
        volume: group.get("volume")?,
        host_id: group.get("host_id")?,
        wwid: Some(group.get("wwid")?).filter(|wwid| !wwid.is_empty()),
        size_bytes: present
            .then(sectors)
            .flatten()
            .map(|sectors| sectors.saturating_mul(512)),
        queues: present.then(hardware_queues).flatten(),
        poll_queues: group.value("poll_queues")?,
        queue_depth: group.value("queue_depth")?,
        io_timeout: group.value("io_timeout")?,
        connect_timeout: group.value("connect_timeout")?,
        reconnect_delay: group.value("reconnect_delay")?,
        ctrl_loss_tmo: group.value("ctrl_loss_tmo")?,
        fast_io_fail_tmo: group.value("fast_io_fail_tmo")?,
        keep_alive_tmo: group.value("keep_alive_tmo")?,
        remote_invalidate: group.flag("remote_invalidate")?,
        small_read: group.value("small_read")?,
        small_write: group.value("small_write")?,
        eager_write: group.value("eager_write")?,
        max_io_kib: group.value("max_io_kib")?,
        message_requests: group.value("message_requests")?,
        batch_upper: group.value("batch_upper")?,
        batch_lower: group.value("batch_lower")?,
        policy: group.get("policy")?,
        paths_auto: paths::auto(group)?,
        session: Session::parse(&group.get_as_root("session")?),
        error: group.reason(),
        lost_writes: loss::has_lost_writes(group)?,
    })
}

/// Returns the groups of one device, or of all; `None` if the module is not loaded. `lacks` names the requested
/// feature, which disks in user space do not have.
pub(crate) fn selected<'a>(
    system: &'a dyn System,
    only: Option<&str>,
    lacks: &str,
) -> Result<Option<Vec<Group<'a>>>> {
    match (INITIATOR.tree(system), only) {
        (None, None) => Ok(None),
        (None, Some(name)) => Err(not_in_kernel(system, name, lacks)),
        (Some(tree), None) => Ok(Some(tree.children()?)),
        (Some(tree), Some(name)) => {
            let group = find(&tree, name)?.ok_or_else(|| not_in_kernel(system, name, lacks))?;
            Ok(Some(vec![group]))
        }
    }
}

/// Runs `hcablk times`.
pub fn times(system: &dyn System, only: Option<&str>, measure: Option<bool>) -> Result<Outcome> {
    let groups = selected(system, only, "times")?;
    let loaded = groups.is_some();
    let mut devices = Vec::new();
    for group in groups.into_iter().flatten() {
        devices.extend(unless_gone(&group, Times::read(&group, measure))?);
    }
    let idle = !devices.is_empty() && devices.iter().all(Times::is_idle);
    let mut outcome = Outcome::new(Report::DeviceTimes { devices });
    if !loaded {
        outcome.note(not_loaded());
    } else if idle {
        outcome.note("nothing was measured: `hcablk times --measure on` starts measuring");
    }
    Ok(outcome)
}

/// Runs `hcablk stats`.
pub fn stats(system: &dyn System, only: Option<&str>) -> Result<Outcome> {
    let Some(groups) = selected(system, only, "counters")? else {
        let mut outcome = Outcome::new(Report::DeviceStats {
            devices: Vec::new(),
        });
        outcome.note(not_loaded());
        return Ok(outcome);
    };
    let mut stats = Vec::new();
    for group in groups {
        if let Some(text) = unless_gone(&group, group.get("stats").map_err(Error::from))? {
            stats.push(Counters {
                name: group.name(),
                counters: parse_counters(&text),
            });
        }
    }
    Ok(Outcome::new(Report::DeviceStats { devices: stats }))
}
