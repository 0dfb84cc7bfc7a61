// SPDX-License-Identifier: GPL-2.0

//! Checks the disks, volumes and ports.

use super::Findings;
use crate::error::SEE_THE_LOG;
use crate::host_names::HostNames;
use crate::initiator;
use crate::output::{Device, Port, Volume};
use crate::stats;
use crate::system::System;
use crate::target;

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    findings.begin("disk");
    match initiator::devices(system) {
        Err(error) => findings.error("disks", &error),
        Ok(devices) => {
            let devices = devices.unwrap_or_default();
            for device in &devices {
                disk(device, findings);
            }
            findings.begin("lost-writes");
            for device in devices.iter().filter(|device| device.has_lost_writes()) {
                let name = &device.name;
                findings.fail(name, initiator::LOST, initiator::loss_remedy(name));
            }
        }
    }
    findings.begin("export");
    match target::exports(system) {
        Err(error) => findings.error("exports", &error),
        Ok(None) => (),
        Ok(Some((volumes, ports))) => {
            let names = HostNames::read(system);
            for one in &volumes {
                volume(one, &names, findings);
            }
            write_caches(system, findings);
            listening(&volumes, &ports, findings);
        }
    }
    counters(system, findings);
}

fn disk(device: &Device, findings: &mut Findings) {
    let name = &device.name;
    let why = device.error.as_deref();
    let because = why.map_or_else(String::new, |why| format!(": {why}"));
    match device.state.as_str() {
        "live" => findings.ok(name, "the disk is live"),
        "new" => findings.note(name, format!("the disk is not connected{because}"), ""),
        "connecting" | "disconnecting" => {
            findings.note(name, format!("the disk is {}", device.state), "");
        }
        "degraded" => findings.warn(
            name,
            format!("the disk has lost a path{because}"),
            "hcablk list shows the path and the reason; the path is reconnected automatically unless it is refused.",
        ),
        state => findings.fail(
            name,
            format!("the disk is {state}{because}"),
            "hcablk list shows its paths. Look at the target (hcablk target list there) and the network; reconnect a failed disk with hcablk connect.",
        ),
    }
    for path in &device.paths {
        if path.state.as_deref() == Some("refused") {
            let why = path.error.as_deref().unwrap_or("no reason is known");
            findings.warn(
                &format!("{name} path {}", path.number),
                format!("the target refuses the path: {why}"),
                format!(
                    "When the cause is repaired: hcablk path add {name} {}",
                    path.address
                ),
            );
        }
    }
}

fn volume(volume: &Volume, names: &HostNames, findings: &mut Findings) {
    let name = &volume.name;
    if let (false, Some(why)) = (volume.enabled, &volume.error) {
        findings.fail(
            name,
            format!("the volume is not exported: {why}"),
            format!("{SEE_THE_LOG}. Then run hcablk target export, or hcablk apply, again."),
        );
    } else if !volume.enabled {
        findings.note(name, "the volume is not enabled", "");
    } else if volume.hosts.is_empty() {
        findings.warn(
            name,
            "the volume allows no host",
            format!(
                "hcablk target allow {name} UUID, with the id that hcablk host-id prints on the client"
            ),
        );
    } else {
        findings.ok(
            name,
            format!(
                "the volume is exported; hosts that it allows: {}",
                volume.hosts.len()
            ),
        );
    }
    for host in &volume.evicted {
        let called = names.get(&host.host);
        let called = called.map_or_else(String::new, |known| format!(" {known}"));
        findings.note(
            &format!("{name}, host {}", host.host),
            format!("the host{called} is evicted, so the target refuses it"),
            &format!(
                "After its restart: hcablk target admit {name} {}",
                host.host
            ),
        );
    }
}

/// Advises against volumes that can lose acknowledged writes of several hosts.
fn write_caches(system: &dyn System, findings: &mut Findings) {
    findings.begin("write-cache");
    let groups = target::selected(system, None).ok().flatten();
    for group in groups.unwrap_or_default() {
        if let Some(risk) = target::risk(&group) {
            let name = group.name();
            findings.note(&name, risk, &target::remedy(&name));
        }
    }
}

fn listening(volumes: &[Volume], ports: &[Port], findings: &mut Findings) {
    findings.begin("port");
    for port in ports {
        let name = format!("port {}", port.id);
        match (port.enabled, &port.error) {
            (true, _) => findings.ok(&name, format!("it listens at {} {}", port.address, port.port)),
            (false, Some(why)) => findings.fail(
                &name,
                format!("it does not listen: {why}"),
                "Check that the address belongs to this machine and to an RDMA device (`ip address`, `rdma link show`), then run hcablk apply or hcablk target listen.",
            ),
            (false, None) => findings.note(&name, "it does not listen", ""),
        }
    }
    if volumes.iter().any(|volume| volume.enabled) && !ports.iter().any(|port| port.enabled) {
        findings.fail(
            "ports",
            "volumes are exported, and no port listens",
            "hcablk target listen",
        );
    }
}

fn counters(system: &dyn System, findings: &mut Findings) {
    findings.begin("counters");
    let looked = [stats::disks(system, None), stats::volumes(system, None)];
    for sample in looked.into_iter().flatten().flat_map(|found| found.samples) {
        if let Some(errors @ 1..) = sample.counter("protocol_errors") {
            findings.warn(
                &sample.name,
                format!("{errors} messages of its peers broke the protocol"),
                format!("Compare the versions of both sides (hcablk --version). {SEE_THE_LOG}"),
            );
        }
    }
}
