// SPDX-License-Identifier: GPL-2.0

//! The kernel: modules, options, the clock.

use std::path::Path;

use super::{line, Findings};
use crate::configfs::{INITIATOR, TARGET};
use crate::system::System;

/// Options without which the modules do not load, and their purpose.
const NEEDED: [(&str, &str); 4] = [
    ("CONFIG_RUST", "modules in Rust"),
    (
        "CONFIG_CONFIGFS_FS",
        "configfs, which configures the modules",
    ),
    ("CONFIG_INFINIBAND", "RDMA"),
    (
        "CONFIG_INFINIBAND_ADDR_TRANS",
        "RDMA connections to IP addresses",
    ),
];

pub(super) fn look(system: &dyn System, findings: &mut Findings) {
    let release = system.kernel_release();
    modules(system, &release, findings);
    options(system, &release, findings);
    clock(system, findings);
}

/// Returns the file of a module for a kernel, below the folder of its modules.
fn installed(system: &dyn System, release: &str, name: &str) -> Option<String> {
    let index = line(system, &format!("/lib/modules/{release}/modules.dep")).unwrap_or_default();
    let file = format!("/{name}.ko");
    let paths = index.lines().filter_map(|line| line.split(':').next());
    paths
        .map(str::trim)
        .find(|path| path.contains(&file))
        .map(str::to_owned)
}

fn install(release: &str) -> String {
    format!(
        "Install the package hcablk-modules-{release}, or hcablk-dkms; from the sources: make all && make install"
    )
}

fn modules(system: &dyn System, release: &str, findings: &mut Findings) {
    findings.begin("module");
    for name in [INITIATOR.name, TARGET.name] {
        let installed = installed(system, release, name);
        if system.exists(&Path::new("/sys/module").join(name)) {
            findings.ok(name, "the kernel module is loaded");
            if let Some(path) = installed {
                same_build(system, release, name, &path, findings);
            }
        } else if installed.is_some() {
            findings.ok(
                name,
                format!("the kernel module is installed for kernel {release}"),
            );
            signed_only(system, name, findings);
        } else {
            findings.fail(
                name,
                format!("the kernel module is not installed for kernel {release}"),
                install(release),
            );
        }
    }
    other_kernels(system, release, findings);
}

/// Bytes before the id in a note of a build's id: the lengths of name and id, the type, and the name.
const NOTE_HEADER: usize = 16;

/// Reports a running module that differs from the installed one: an upgrade takes effect at the next load only.
fn same_build(system: &dyn System, release: &str, name: &str, path: &str, findings: &mut Findings) {
    let note = Path::new("/sys/module")
        .join(name)
        .join("notes/.note.gnu.build-id");
    let file = Path::new("/lib/modules").join(release).join(path);
    let (Ok(note), Ok(file)) = (system.read_bytes(&note), system.read_bytes(&file)) else {
        return;
    };
    let Some(id) = note.get(NOTE_HEADER..).filter(|id| !id.is_empty()) else {
        return;
    };
    // The build id of a compressed module is not visible in the file.
    if file.starts_with(b"\x7fELF") && !file.windows(id.len()).any(|bytes| bytes == id) {
        findings.warn(
            name,
            format!("the loaded module differs from the installed one, {path}: it is of a different build"),
            "The installed one is used after a restart of the machine, or when all modules of hcablk are loaded again. \
             Until then the command may be newer than the module.",
        );
    }
}

/// Reports installed kernels without modules, which may be booted next.
fn other_kernels(system: &dyn System, running: &str, findings: &mut Findings) {
    let names = system.entries(Path::new("/boot")).unwrap_or_default();
    let releases = names
        .iter()
        .filter_map(|name| name.strip_prefix("vmlinuz-"));
    for release in releases.filter(|release| *release != running) {
        let missing: Vec<_> = [INITIATOR.name, TARGET.name]
            .into_iter()
            .filter(|name| installed(system, release, name).is_none())
            .collect();
        if missing.is_empty() {
            findings.ok(
                release,
                "the kernel modules are also installed for this kernel",
            );
        } else {
            findings.warn(
                release,
                format!(
                    "this installed kernel has no module {}: after booting it there are no disks and exports",
                    missing.join(" and ")
                ),
                install(release),
            );
        }
    }
}

/// Reports a kernel that loads only signed modules.
fn signed_only(system: &dyn System, name: &str, findings: &mut Findings) {
    let enforced =
        line(system, "/sys/module/module/parameters/sig_enforce").as_deref() == Some("Y");
    let lockdown = line(system, "/sys/kernel/security/lockdown").unwrap_or_default();
    if enforced || lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]") {
        findings.note(
            name,
            "this kernel loads signed modules only",
            "If loading fails (`dmesg`): sign the module with your own key, and enroll the key with mokutil --import.",
        );
    }
}

fn options(system: &dyn System, release: &str, findings: &mut Findings) {
    findings.begin("kernel-option");
    let file = format!("/boot/config-{release}");
    let Some(config) = line(system, &file) else {
        findings.note(
            release,
            format!("the kernel's options are not known: no file {file}"),
            "",
        );
        return;
    };
    let is_set = |option: &str| {
        config.lines().any(|line| {
            let value = line.strip_prefix(option);
            value.is_some_and(|value| value == "=y" || value == "=m")
        })
    };
    for (option, what) in NEEDED {
        if is_set(option) {
            findings.ok(option, "is set");
        } else {
            findings.fail(
                option,
                format!("is not set: this kernel has no {what}"),
                "Boot one of Debian's kernels that the documents name: docs/user/install.md.",
            );
        }
    }
    if is_set("CONFIG_PCI_P2PDMA") {
        findings.ok("CONFIG_PCI_P2PDMA", "is set");
    } else {
        findings.note(
            "CONFIG_PCI_P2PDMA",
            "is not set: volumes of mode p2p work in RAM",
            "",
        );
    }
}

/// Files that exist while a program synchronizes the clock.
const KEEPERS: [&str; 4] = [
    "/run/systemd/timesync/synchronized",
    "/run/chrony/chronyd.pid",
    "/run/ntpd.pid",
    "/run/ntpsec/ntpd.pid",
];

fn clock(system: &dyn System, findings: &mut Findings) {
    findings.begin("clock");
    let subject = "NTP";
    if let Some(keeper) = KEEPERS.iter().find(|file| system.exists(Path::new(file))) {
        findings.ok(subject, format!("the clock is synchronized ({keeper})"));
    } else if system.exists(Path::new("/run/systemd/system")) {
        findings.warn(
            subject,
            "this machine's clock is not synchronized: times in the logs of several hosts cannot be compared",
            "Install chrony, or: timedatectl set-ntp true",
        );
    } else {
        findings.note(subject, "cannot find out what synchronizes the clock", "");
    }
}
