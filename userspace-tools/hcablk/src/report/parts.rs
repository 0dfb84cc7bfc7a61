// SPDX-License-Identifier: GPL-2.0

//! The parts of a report: the files of the archive, and their sources.

use std::path::{Path, PathBuf};

use super::gather::Gather;
use crate::check::check;
use crate::config;
use crate::configfs::{CONFIGFS, DISCOVERY, INITIATOR, TARGET};
use crate::hostid;
use crate::initiator;
use crate::system::System;
use crate::target;

/// A file of the archive.
pub(super) struct Part {
    /// The file's path in the archive.
    pub(super) name: String,
    /// The file's content in a few words.
    pub(super) about: &'static str,
    /// The file's text.
    pub(super) text: String,
    /// The sources that could not be read, each with the reason.
    pub(super) missing: Vec<String>,
}

/// The kernel modules.
const MODULES: [&str; 4] = ["hcablk_core", INITIATOR.name, TARGET.name, "ublk_drv"];

/// The beginnings of the names of packages whose versions matter.
const PACKAGES: [&str; 14] = [
    "hcablk",
    "libhcablk",
    "linux-image-",
    "rdma-core",
    "ibverbs-providers",
    "libibverbs1",
    "librdmacm1",
    "ocfs2-tools",
    "gfs2-utils",
    "dlm-controld",
    "pacemaker",
    "corosync",
    "lvm2",
    "systemd",
];

/// Words, in lower case, of lines of the kernel's log that are about hcablk or about drivers and file systems used with
/// it.
const LOG: [&str; 16] = [
    "hcablk",
    "infiniband",
    "rdma",
    "mlx4",
    "mlx5",
    "rdma_rxe",
    "rxe",
    "siw",
    "irdma",
    "bnxt_re",
    "ublk",
    "nvme",
    "ocfs2",
    "o2net",
    "o2hb",
    "dlm",
];

/// Words, in lower case, of lines that contain the command line of the kernel or of a program, where passwords may be.
const FOREIGN: [&str; 3] = ["ommand line:", "audit:", "audit("];

/// Patterns of units whose states matter.
const UNITS: [&str; 7] = [
    "hcablk*",
    "o2cb*",
    "ocfs2*",
    "pacemaker*",
    "corosync*",
    "dlm*",
    "lvmlockd*",
];

/// Gathers all parts.
pub(super) fn all(system: &dyn System) -> Vec<Part> {
    let mut parts = vec![versions(system)];
    parts.extend(answers(system));
    parts.extend(trees(system));
    parts.extend([
        kernel_log(system),
        units(system),
        journal(system),
        rdma(system),
        devices(system),
        cluster(system),
    ]);
    parts.extend(configuration(system));
    parts
}

fn versions(system: &dyn System) -> Part {
    let about = "versions of hcablk, the kernel, its modules and packages";
    let mut part = Gather::new(system, "versions.txt", about);
    part.line(&format!("hcablk {}", env!("CARGO_PKG_VERSION")));
    match hostid::current(system) {
        Ok((id, _)) => part.line(&format!("host id: {id}")),
        Err(error) => part.line(&format!("host id: {}", error.message)),
    }
    part.value("/proc/version");
    part.value("/proc/sys/kernel/tainted");
    part.value("/proc/uptime");
    for module in MODULES {
        let folder = format!("/sys/module/{module}");
        if !system.exists(Path::new(&folder)) {
            part.line(&format!("{folder}: not loaded"));
            continue;
        }
        for value in ["initstate", "refcnt", "version", "srcversion", "taint"] {
            part.value(&format!("{folder}/{value}"));
        }
    }
    part.lines("/etc/os-release", |_| true);
    packages(&mut part);
    part.finish()
}

/// Adds the installed packages of Debian that matter.
fn packages(part: &mut Gather<'_>) {
    const STATUS: &str = "/var/lib/dpkg/status";
    let Ok(text) = part.system().read(Path::new(STATUS)) else {
        return;
    };
    part.line(&format!("\n== installed packages, from {STATUS}"));
    for paragraph in text.split("\n\n") {
        let field = |name: &str| {
            let mut fields = paragraph.lines().filter_map(|line| line.split_once(": "));
            fields
                .find(|(field, _)| *field == name)
                .map(|(_, value)| value)
        };
        let (Some(name), Some(version)) = (field("Package"), field("Version")) else {
            continue;
        };
        let is_installed = field("Status").is_some_and(|status| status.ends_with(" installed"));
        if is_installed && PACKAGES.iter().any(|package| name.starts_with(package)) {
            part.line(&format!("{name} {version}"));
        }
    }
}

/// Gathers the output of the commands that show the state of this machine.
fn answers(system: &dyn System) -> [Part; 8] {
    let begin = |name: &str, about| Gather::new(system, name, about);
    let mut check_text = begin("check.txt", "problems of this machine: hcablk check");
    check_text.text(check(system, false, false));
    let mut check_json = begin("check.json", "the same as JSON");
    check_json.json(check(system, false, false));
    let mut list_text = begin("list.txt", "disks and their paths: hcablk list");
    list_text.text(initiator::list(system));
    let mut list_json = begin("list.json", "the same as JSON, with all settings");
    list_json.json(initiator::list(system));
    let mut target_text = begin(
        "target-list.txt",
        "volumes, hosts and ports: hcablk target list",
    );
    target_text.text(target::list(system));
    let mut target_json = begin("target-list.json", "the same as JSON, with all settings");
    target_json.json(target::list(system));
    let mut stats = begin("stats.json", "counters of disks: hcablk stats");
    stats.json(initiator::stats(system, None));
    let mut target_stats = begin(
        "target-stats.json",
        "counters of volumes and ports: hcablk target stats",
    );
    target_stats.json(target::stats(system, None));
    [
        check_text,
        check_json,
        list_text,
        list_json,
        target_text,
        target_json,
        stats,
        target_stats,
    ]
    .map(Gather::finish)
}

fn trees(system: &dyn System) -> [Part; 2] {
    let mut initiator = Gather::new(
        system,
        "configfs-initiator.txt",
        "all attributes of disks and discoveries, except keys",
    );
    initiator.tree(&Path::new(CONFIGFS).join(INITIATOR.folder));
    initiator.tree(&Path::new(CONFIGFS).join(DISCOVERY.folder));
    let mut target = Gather::new(
        system,
        "configfs-target.txt",
        "all attributes of volumes, hosts and ports, except keys",
    );
    target.tree(&Path::new(CONFIGFS).join(TARGET.folder));
    [initiator.finish(), target.finish()]
}

fn kernel_log(system: &dyn System) -> Part {
    let about = "lines of the kernel's log of this boot on hcablk, RDMA, drives, OCFS2 and dlm";
    let mut part = Gather::new(system, "kernel-log.txt", about);
    let wanted = |line: &str| {
        let line = line.to_ascii_lowercase();
        LOG.iter().any(|word| line.contains(word))
            && !FOREIGN.iter().any(|word| line.contains(word))
    };
    let options = [
        "--dmesg",
        "--boot",
        "--no-pager",
        "--output=short-iso-precise",
    ];
    // A journal that keeps nothing, or that this user cannot read, is empty without an error.
    let journal = [&["journalctl"], &options[..]].concat();
    let has_journal = system.exists(Path::new("/run/systemd/journal/socket"))
        && part.lines_of_program(&journal, wanted);
    if !has_journal {
        part.lines_of_program(&["dmesg"], wanted);
    }
    part.finish()
}

fn units(system: &dyn System) -> Part {
    let about = "states of the units of hcablk and of the cluster";
    let mut part = Gather::new(system, "units.txt", about);
    if !system.exists(Path::new("/run/systemd/system")) {
        part.line("systemd does not run this machine");
        return part.finish();
    }
    let list = ["systemctl", "list-units", "--all", "--no-pager", "--plain"];
    part.program(&[&list[..], &UNITS].concat());
    let list = ["systemctl", "list-unit-files", "--no-pager"];
    part.program(&[&list[..], &UNITS].concat());
    let show = [
        "systemctl",
        "show",
        "--property=Id,LoadState,ActiveState,SubState,Result,NRestarts,ExecMainStatus,StateChangeTimestamp",
    ];
    part.program(&[&show[..], &UNITS].concat());
    part.finish()
}

fn journal(system: &dyn System) -> Part {
    let about = "lines of the journal of the last 7 days: units, and the audit log of the command";
    let mut part = Gather::new(system, "journal.txt", about);
    if !system.exists(Path::new("/run/systemd/journal/socket")) {
        part.line("there is no journal of systemd");
        return part.finish();
    }
    let journal = [
        "journalctl",
        "--no-pager",
        "--output=short-iso",
        "--since=-7days",
        "--lines=2000",
    ];
    let units = ["--unit=hcablk*", "--unit=o2cb*", "--unit=ocfs2*"];
    part.program(&[&journal[..], &units].concat());
    part.program(&[&journal[..], &["--identifier=hcablk"]].concat());
    part.finish()
}

fn rdma(system: &dyn System) -> Part {
    const CLASS: &str = "/sys/class/infiniband";
    let about = "RDMA devices, their links, and the addresses of network interfaces";
    let mut part = Gather::new(system, "rdma.txt", about);
    for device in system.folders(Path::new(CLASS)).unwrap_or_default() {
        for value in ["node_type", "hca_type", "board_id", "fw_ver", "node_guid"] {
            part.value(&format!("{CLASS}/{device}/{value}"));
        }
        let ports = Path::new(CLASS).join(&device).join("ports");
        for port in system.folders(&ports).unwrap_or_default() {
            for value in ["state", "phys_state", "rate", "link_layer"] {
                part.value(&format!("{CLASS}/{device}/ports/{port}/{value}"));
            }
        }
    }
    for words in [
        ["rdma", "link", "show"].as_slice(),
        &["rdma", "resource", "show"],
        &["ip", "-brief", "link", "show"],
        &["ip", "-brief", "address", "show"],
    ] {
        part.program(words);
    }
    part.finish()
}

/// Returns whether a line of mounts or of counters is about a disk of hcablk or a file system of clusters.
fn is_ours(line: &str) -> bool {
    ["hcablk", "ublkb", "ocfs2", "gfs2"]
        .iter()
        .any(|word| line.contains(word))
}

fn devices(system: &dyn System) -> Part {
    const BLOCK: &str = "/sys/block";
    let about = "block devices of hcablk, their queues, counters and mounts";
    let mut part = Gather::new(system, "devices.txt", about);
    let names = system.entries(Path::new(BLOCK)).unwrap_or_default();
    for name in names
        .iter()
        .filter(|name| name.starts_with("hcablk") || name.starts_with("ublkb"))
    {
        for value in [
            "dev",
            "size",
            "ro",
            "inflight",
            "queue/logical_block_size",
            "queue/physical_block_size",
            "queue/write_cache",
            "queue/max_hw_sectors_kb",
            "queue/max_sectors_kb",
            "queue/nr_requests",
            "queue/scheduler",
            "queue/rotational",
        ] {
            part.value(&format!("{BLOCK}/{name}/{value}"));
        }
    }
    for file in ["/proc/mounts", "/proc/swaps", "/proc/diskstats"] {
        part.lines(file, is_ours);
    }
    part.finish()
}

fn cluster(system: &dyn System) -> Part {
    let about = "OCFS2 and its cluster stack: settings and state";
    let mut part = Gather::new(system, "cluster.txt", about);
    for value in [
        "/sys/fs/ocfs2/cluster_stack",
        "/sys/fs/ocfs2/active_cluster_plugin",
        "/sys/fs/ocfs2/max_locking_protocol",
    ] {
        part.value(value);
    }
    // The groups of o2cb: nodes, heartbeat, timeouts.
    part.tree(&Path::new(CONFIGFS).join("cluster"));
    part.finish()
}

/// Gathers the files of the configuration, each as a part of its own.
fn configuration(system: &dyn System) -> Vec<Part> {
    let mut files = vec![
        PathBuf::from(hostid::FILE),
        PathBuf::from("/etc/default/o2cb"),
        PathBuf::from("/etc/ocfs2/cluster.conf"),
    ];
    files.extend(config::files::files(system).unwrap_or_default());
    for folder in ["/etc/modprobe.d", "/etc/modules-load.d"] {
        let folder = Path::new(folder);
        let names = system.entries(folder).unwrap_or_default();
        let ours = names.iter().filter(|name| name.contains("hcablk"));
        files.extend(ours.map(|name| folder.join(name)));
    }
    let mut parts = Vec::new();
    for file in files.iter().filter(|file| system.exists(file)) {
        let name = file.strip_prefix("/").unwrap_or(file).to_string_lossy();
        let mut part = Gather::new(system, &name, "a file of the configuration");
        part.configuration(file);
        parts.push(part.finish());
    }
    let mut part = Gather::new(
        system,
        "etc/fstab",
        "its lines on disks of hcablk and file systems of clusters",
    );
    part.lines("/etc/fstab", is_ours);
    parts.push(part.finish());
    parts
}
