// SPDX-License-Identifier: GPL-2.0

//! Checks the IOMMU, and whether peer-to-peer DMA reaches its destination.

use std::path::{Path, PathBuf};

use super::{line, rdma, Findings};
use crate::configfs::{Group, TARGET};
use crate::system::System;

/// The extended capability ACS, and the bits of its control register that send peer-to-peer requests up to the root
/// complex: request redirect, completion redirect, egress control.
const ACS: u16 = 0x000d;
const REDIRECTS: u16 = 0x0004 | 0x0008 | 0x0020;

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    iommu(system, findings);
    let Some(tree) = TARGET.tree(system) else {
        return;
    };
    for group in tree.child("volumes").children().unwrap_or_default() {
        if group.get("mode").is_ok_and(|mode| mode == "p2p") {
            peer_to_peer(system, &group, findings);
        }
    }
}

fn iommu(system: &dyn System, findings: &mut Findings) {
    findings.begin("iommu");
    for device in rdma::devices(system) {
        let folder = format!("/sys/class/infiniband/{device}/device");
        if !system.exists(Path::new(&folder)) {
            findings.ok(&device, "it is a software device: no IOMMU affects it");
            continue;
        }
        match line(system, &format!("{folder}/iommu_group/type")).as_deref() {
            None => findings.ok(&device, "no IOMMU translates its DMA"),
            Some("identity") => findings.ok(&device, "the IOMMU lets its DMA pass untranslated"),
            Some("DMA-FQ") => findings.ok(&device, "the IOMMU translates its DMA, and invalidates addresses in batches"),
            Some("DMA") => findings.note(
                &device,
                "the IOMMU translates its DMA, and invalidates each address at once, which costs time for each request",
                "If this device may access all memory, set iommu=pt on the kernel's command line. Otherwise set iommu.strict=0, for a smaller gain",
            ),
            Some(other) => findings.note(&device, format!("its IOMMU domain is of type {other}"), ""),
        }
    }
}

/// A device's position: the PCI addresses of the bridges above it, and its own.
fn place(system: &dyn System, path: &Path) -> Vec<String> {
    let Some(real) = system.real_path(path) else {
        return Vec::new();
    };
    let is_address = |name: &&str| {
        let parts: Vec<_> = name.split([':', '.']).collect();
        parts.len() == 4
            && parts.iter().map(|part| part.len()).eq([4, 2, 2, 1])
            && parts
                .iter()
                .all(|part| u32::from_str_radix(part, 16).is_ok())
    };
    let names = real.iter().filter_map(|part| part.to_str());
    names.filter(is_address).map(str::to_owned).collect()
}

fn peer_to_peer(system: &dyn System, volume: &Group<'_>, findings: &mut Findings) {
    findings.begin("peer-to-peer");
    let name = format!("volume {}", volume.name());
    let drive = volume.get("path").unwrap_or_default();
    let drive = system
        .real_path(Path::new(&drive))
        .unwrap_or(PathBuf::from(drive));
    let drive_name = drive.file_name().unwrap_or_default().to_string_lossy();
    let drive_place = place(
        system,
        &Path::new("/sys/class/block").join(drive_name.as_ref()),
    );
    if drive_place.is_empty() {
        findings.warn(
            &name,
            format!(
                "{} is not a PCI device: the volume works in RAM",
                drive.display()
            ),
            "Export an NVMe drive itself, or use --mode direct.",
        );
        return;
    }
    let providers = providers(system, &volume.get("provider").unwrap_or_default());
    if providers.is_empty() {
        findings.warn(
            &name,
            "no PCI device lends memory: the volume works in RAM",
            "Bind hcablk_pcimem to a device with memory: docs/user/operate.md, Peer-to-peer.",
        );
        return;
    }
    let mut others = vec![(format!("drive {drive_name}"), drive_place)];
    for device in rdma::devices(system) {
        let place = place(
            system,
            &Path::new("/sys/class/infiniband")
                .join(&device)
                .join("device"),
        );
        if place.is_empty() {
            findings.note(
                &format!("{name}, {device}"),
                "it is a software device: a CPU copies between peer memory and RAM",
                "",
            );
        } else {
            others.push((device, place));
        }
    }
    for provider in &providers {
        for (other, place) in &others {
            let subject = format!("{name}, {other} to {}", provider.last().map_or("", |p| p));
            reach(system, &subject, provider, place, findings);
        }
    }
}

/// Returns the positions of the devices that lend memory, or of the configured one.
fn providers(system: &dyn System, wanted: &str) -> Vec<Vec<String>> {
    let all = Path::new("/sys/bus/pci/devices");
    let names = system.folders(all).unwrap_or_default();
    names
        .iter()
        .filter(|name| wanted == "auto" || wanted.is_empty() || *name == wanted)
        .filter(|name| system.exists(&all.join(name).join("p2pmem/size")))
        .map(|name| place(system, &all.join(name)))
        .filter(|place| !place.is_empty())
        .collect()
}

/// Reports whether one device reaches the other without passing the root complex.
fn reach(
    system: &dyn System,
    subject: &str,
    one: &[String],
    other: &[String],
    findings: &mut Findings,
) {
    if one == other {
        findings.ok(subject, "it is the device itself");
        return;
    }
    let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    if common == 0 {
        findings.note(
            subject,
            "they meet only at the root complex: the kernel's list decides whether it forwards DMA",
            "The kernel's log reports if it does not. To be certain: put both below one PCIe switch.",
        );
        return;
    }
    // On each side, the bridges below the common one; the devices themselves are not bridges.
    let between =
        |place: &[String]| place[common..place.len().saturating_sub(1).max(common)].to_vec();
    let mut unseen = false;
    for bridge in between(one).into_iter().chain(between(other)) {
        match acs_control(system, &bridge) {
            None => unseen = true,
            Some(control) if control & REDIRECTS != 0 => {
                findings.warn(
                    subject,
                    format!("ACS of the bridge {bridge} sends their DMA up to the root complex"),
                    format!(
                        "On the kernel's command line: pci=disable_acs_redir={bridge} (the devices below it are then not isolated from each other)"
                    ),
                );
                return;
            }
            Some(_) => (),
        }
    }
    if unseen {
        findings.note(
            subject,
            "they are below one bridge; the state of its ACS is not known",
            "Run this as root: only root may read the settings of bridges.",
        );
    } else {
        findings.ok(
            subject,
            "they are below one bridge, and ACS does not redirect their DMA",
        );
    }
}

/// Reads a bridge's ACS control register, 0 if it has none; `None` if it cannot be read.
fn acs_control(system: &dyn System, address: &str) -> Option<u16> {
    let file = Path::new("/sys/bus/pci/devices")
        .join(address)
        .join("config");
    let config = system.read_bytes(&file).ok()?;
    if config.len() <= 64 {
        return None;
    }
    Some(find_acs(&config).unwrap_or(0))
}

/// Finds the ACS control register in a device's configuration space.
fn find_acs(config: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_le_bytes(config.get(at..at + 2)?.try_into().ok()?));
    let mut at = 0x100;
    // The largest possible number of capabilities, in case the list is circular.
    for _ in 0..(4096 - 256) / 8 {
        if word(at)? == ACS {
            return word(at + 6);
        }
        at = usize::from(word(at + 2)? >> 4);
        if at < 0x100 {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(capabilities: &[(usize, u16, usize)], control: u16) -> Vec<u8> {
        let mut config = vec![0; 4096];
        for (at, id, next) in capabilities {
            let next = u16::try_from(next << 4).unwrap() | 1;
            config[*at..at + 2].copy_from_slice(&id.to_le_bytes());
            config[at + 2..at + 4].copy_from_slice(&next.to_le_bytes());
            if *id == ACS {
                config[at + 6..at + 8].copy_from_slice(&control.to_le_bytes());
            }
        }
        config
    }

    #[test]
    fn acs_is_found() {
        let found = config(&[(0x100, 1, 0x140), (0x140, ACS, 0)], 0x1d);
        assert_eq!(find_acs(&found), Some(0x1d));
        assert_eq!(find_acs(&config(&[(0x100, 1, 0)], 0)), None);
        assert_eq!(find_acs(&config(&[], 0)), None);
        assert_eq!(find_acs(&[0; 256]), None);
    }

    #[test]
    fn a_circle_ends() {
        let circle = config(&[(0x100, 1, 0x140), (0x140, 2, 0x100)], 0);
        assert_eq!(find_acs(&circle), None);
    }
}
