// SPDX-License-Identifier: GPL-2.0

//! RDMA devices: ports, GIDs, MTU.

use std::path::Path;

use super::{line, Findings};
use crate::error::NO_RDMA_DEVICE;
use crate::system::System;

const CLASS: &str = "/sys/class/infiniband";

/// Bytes of headers in a packet of `RoCE`, as the kernel counts them (`iboe_get_mtu()`).
const ROCE_HEADERS: u32 = 96;

/// Maximum number of bytes of data in a packet.
const LARGEST: u32 = 4096;

/// Lists the RDMA devices of this machine.
pub(super) fn devices(system: &dyn System) -> Vec<String> {
    system.folders(Path::new(CLASS)).unwrap_or_default()
}

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    findings.begin("rdma-device");
    let devices = devices(system);
    if devices.is_empty() {
        findings.fail("RDMA", "there is no RDMA device", NO_RDMA_DEVICE);
        return;
    }
    for device in &devices {
        let ports = Path::new(CLASS).join(device).join("ports");
        for port in system.folders(&ports).unwrap_or_default() {
            Port::read(system, device, &port).look(findings);
        }
    }
}

/// A port of a device.
struct Port {
    subject: String,
    state: String,
    is_iwarp: bool,
    is_infiniband: bool,
    /// The network interface, and its MTU.
    interface: Option<(String, u32)>,
    gids: Vec<Gid>,
}

/// An address of a port.
struct Gid {
    is_v2: bool,
    text: String,
}

impl Gid {
    /// Returns whether the entry belongs to an IP address other than the link's own.
    fn is_routed(&self) -> bool {
        !self.text.starts_with("fe80:")
    }
}

impl Port {
    fn read(system: &dyn System, device: &str, port: &str) -> Self {
        let folder = format!("{CLASS}/{device}/ports/{port}");
        let get = |name: &str| line(system, &format!("{folder}/{name}"));
        let interface = get("gid_attrs/ndevs/0").and_then(|name| {
            let mtu = line(system, &format!("/sys/class/net/{name}/mtu"))?;
            Some((name, mtu.parse().ok()?))
        });
        let numbers = system.entries(Path::new(&format!("{folder}/gids")));
        let gids = numbers
            .unwrap_or_default()
            .iter()
            .filter_map(|number| {
                let text = get(&format!("gids/{number}"))?;
                let is_set = text.chars().any(|c| c != '0' && c != ':');
                // An unset entry has no type.
                let kind = get(&format!("gid_attrs/types/{number}")).unwrap_or_default();
                is_set.then(|| Gid {
                    is_v2: kind == "RoCE v2",
                    text,
                })
            })
            .collect();
        let kind = line(system, &format!("{CLASS}/{device}/node_type")).unwrap_or_default();
        Self {
            subject: format!("{device} port {port}"),
            state: get("state").unwrap_or_default(),
            is_iwarp: kind.contains("RNIC"),
            is_infiniband: get("link_layer").as_deref() == Some("InfiniBand"),
            interface,
            gids,
        }
    }

    fn look(&self, findings: &mut Findings) {
        findings.begin("rdma-device");
        let state = self.state.split(": ").last().unwrap_or_default();
        if state != "ACTIVE" {
            findings.warn(
                &self.subject,
                format!("the port is {state}, not ACTIVE: it reaches no host"),
                "Look at its cable and switch, and bring its interface up: ip link set DEVICE up (InfiniBand needs a subnet manager).",
            );
            return;
        }
        findings.ok(&self.subject, "the port is active");
        if self.is_iwarp || self.is_infiniband {
            return;
        }
        self.look_at_gids(findings);
        self.look_at_mtu(findings);
    }

    fn look_at_gids(&self, findings: &mut Findings) {
        findings.begin("roce-gid");
        let name = self.interface.as_ref().map_or("DEVICE", |(name, _)| name);
        let v2 = self.gids.iter().filter(|gid| gid.is_v2);
        if let Some(gid) = v2.clone().find(|gid| gid.is_routed()) {
            findings.ok(&self.subject, format!("it has RoCE v2 with {}", gid.text));
        } else if v2.count() > 0 {
            findings.fail(
                &self.subject,
                format!("its interface {name} has no IP address: its only GID is the link's own"),
                format!("Give it one: ip address add 10.0.0.1/24 dev {name}"),
            );
        } else if self.gids.is_empty() {
            findings.fail(
                &self.subject,
                format!("it has no GID: its interface {name} is down, or has no address"),
                format!("ip link set {name} up && ip address add 10.0.0.1/24 dev {name}"),
            );
        } else {
            findings.fail(
                &self.subject,
                "it supports only RoCE v1, which cannot be routed and is incompatible with RoCE v2",
                "Switch on RoCE v2 in the adapter's settings (Mellanox: mlxconfig, ROCE_NEXT_PROTOCOL), or use a different adapter.",
            );
        }
    }

    fn look_at_mtu(&self, findings: &mut Findings) {
        findings.begin("roce-mtu");
        let Some((name, mtu)) = &self.interface else {
            findings.note(&self.subject, "its network interface is not known", "");
            return;
        };
        let room = mtu.saturating_sub(ROCE_HEADERS);
        let sizes = [256, 512, 1024, 2048, LARGEST];
        let Some(data) = sizes.into_iter().rev().find(|size| *size <= room) else {
            findings.fail(
                &self.subject,
                format!("an MTU of {mtu} of {name} is too small for RoCE"),
                format!("ip link set {name} mtu 9000"),
            );
            return;
        };
        if data == LARGEST {
            findings.ok(
                &self.subject,
                format!("{name} has an MTU of {mtu}: packets with {data} bytes of data"),
            );
        } else {
            findings.warn(
                &self.subject,
                format!(
                    "{name} has an MTU of {mtu}: packets have {data} bytes of data, and could have {LARGEST}"
                ),
                format!(
                    "At every host and switch of this network: ip link set {name} mtu 9000 (4192 are enough)"
                ),
            );
        }
    }
}
