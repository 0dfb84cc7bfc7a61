// SPDX-License-Identifier: GPL-2.0

//! Tests of `check` on a machine that a folder imitates.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt as _};
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

const RELEASE: &str = "7.3.0-test";
const HCA: &str = "sys/class/infiniband/mlx5_0";
/// A switch with three ports: the HCA, the drive, and a device that lends memory are below one each.
const SWITCH: &str = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";

fn put(root: &Path, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    path
}

/// Makes a relative link, as sysfs has them.
fn link(root: &Path, path: &str, to: &str) {
    let up = "../".repeat(Path::new(path).components().count() - 1);
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(format!("{up}{to}"), path).unwrap();
}

/// A bridge's or device's configuration space, with ACS set to `control`.
fn config(control: u16) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0x100..0x104].copy_from_slice(&[0x0d, 0, 1, 0]);
    config[0x106..0x108].copy_from_slice(&control.to_le_bytes());
    config
}

fn pci(root: &Path, place: &str, acs: u16) {
    let address = place.rsplit('/').next().unwrap();
    put(root, &format!("{place}/config"), config(acs));
    link(root, &format!("sys/bus/pci/devices/{address}"), place);
}

/// A file that only its owner can read.
fn secret(root: &Path, path: &str, text: &str) {
    let path = put(root, path, text);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A key as `hcablk key show` prints it.
fn key_text(byte: u8) -> String {
    let checksum = crc32fast::hash(&[byte; 32]);
    format!(
        "hcablk-key-1:{}-{checksum:08x}\n",
        format!("{byte:02x}").repeat(32)
    )
}

/// A machine without problems.
fn machine() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    put(at, "etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    put(at, "proc/sys/kernel/osrelease", format!("{RELEASE}\n"));
    put(
        at,
        "etc/hcablk/host_id",
        "5f2c1d6e-8a0b-4c3d-9e7f-001122334455\n",
    );
    put(
        at,
        "etc/hcablk/hcablk.toml",
        "[disk.data]\naddress = \"10.0.0.1\"\n",
    );
    let dep = "updates/hcablk/hcablk.ko.xz: updates/hcablk/hcablk_core.ko.xz\n\
               updates/hcablk/hcablk_target.ko.xz:\n";
    put(at, &format!("lib/modules/{RELEASE}/modules.dep"), dep);
    let options = "CONFIG_RUST=y\nCONFIG_CONFIGFS_FS=m\nCONFIG_INFINIBAND=m\n\
                   CONFIG_INFINIBAND_ADDR_TRANS=y\nCONFIG_PCI_P2PDMA=y\n";
    put(at, &format!("boot/config-{RELEASE}"), options);
    put(at, "run/systemd/timesync/synchronized", "");
    for (name, text) in [
        ("node_type", "1: CA"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/gid_attrs/ndevs/0", "eth0"),
        ("ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001"),
        ("ports/1/gid_attrs/types/0", "IB/RoCE v1"),
        ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        ("ports/1/gid_attrs/types/1", "RoCE v2"),
        ("ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
    ] {
        put(at, &format!("{HCA}/{name}"), format!("{text}\n"));
    }
    put(at, "sys/class/net/eth0/mtu", "9000\n");
    for (port, device) in [("02:00", "03:00"), ("02:01", "04:00"), ("02:02", "05:00")] {
        let bridge = format!("{SWITCH}/0000:{port}.0");
        pci(at, &bridge, 0);
        pci(at, &format!("{bridge}/0000:{device}.0"), 0);
    }
    let hca = format!("{SWITCH}/0000:02:00.0/0000:03:00.0");
    link(at, &format!("{HCA}/device"), &hca);
    put(at, &format!("{hca}/iommu_group/type"), "DMA-FQ\n");
    let drive = format!("{SWITCH}/0000:02:01.0/0000:04:00.0/nvme/nvme0/nvme0n1");
    fs::create_dir_all(at.join(&drive)).unwrap();
    link(at, "sys/class/block/nvme0n1", &drive);
    put(at, "dev/nvme0n1", "");
    for key in ["host", "targets/default"] {
        secret(at, &format!("etc/hcablk/keys/{key}"), &key_text(1));
    }
    let lender = format!("{SWITCH}/0000:02:02.0/0000:05:00.0");
    put(at, &format!("{lender}/p2pmem/size"), "2097152\n");
    root
}

/// A volume of mode p2p, and a port.
fn export(root: &Path) {
    for (name, text) in [
        ("path", "/dev/nvme0n1"),
        ("read_only", "0"),
        ("insecure", "0"),
        ("mode", "p2p"),
        ("write_cache", "back"),
        ("cache_mib", "0"),
        ("chunk_kib", "128"),
        ("provider", "auto"),
        ("wwid", ""),
        ("enable", "1"),
        ("size", "65536"),
        ("clients", ""),
        ("evicted", ""),
        ("timing", "0"),
        ("times", ""),
        ("stats", "reads 1\nprotocol_errors 2"),
        ("error", ""),
        ("hosts/5f2c1d6e-8a0b-4c3d-9e7f-001122334455/x", ""),
    ] {
        let file = format!("sys/kernel/config/hcablk_target/volumes/data/{name}");
        put(root, &file, format!("{text}\n"));
    }
    let ports = root.join("sys/kernel/config/hcablk_target/ports");
    fs::create_dir_all(ports).unwrap();
}

/// Runs the command, which exits with `code`.
fn run(root: &Path, line: &str, code: i32) -> String {
    let mut command = Command::cargo_bin("hcablk").unwrap();
    command.env("HCABLK_SYSROOT", root);
    let output = command.args(line.split_whitespace()).assert().code(code);
    String::from_utf8_lossy(&output.get_output().stdout).into_owned()
}

/// Returns the findings of `check --quiet` other than notes, each as `CHECK LEVEL`.
fn found(root: &Path, code: i32) -> Vec<String> {
    let json: Value = serde_json::from_str(&run(root, "check --quiet --json", code)).unwrap();
    let findings = json["findings"].as_array().unwrap();
    for finding in findings {
        let level = finding["level"].as_str().unwrap();
        let advice = finding["advice"].as_str().unwrap_or_default();
        assert!(level == "note" || !advice.is_empty(), "{finding}");
    }
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    findings
        .iter()
        .filter(|finding| finding["level"] != "note")
        .map(|finding| format!("{} {}", text(&finding["check"]), text(&finding["level"])))
        .collect()
}

fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("HCABLK_UPDATE_GOLDEN").is_some() {
        fs::write(&file, text).unwrap();
    }
    assert_eq!(
        text,
        fs::read_to_string(&file).unwrap_or_default(),
        "{name}"
    );
}

#[test]
fn nothing_is_wrong() {
    let root = machine();
    golden("check-well.txt", &run(root.path(), "check", 0));
    assert_eq!(
        run(root.path(), "check --quiet --strict", 0),
        "nothing is wrong\n"
    );
}

#[test]
fn much_is_wrong() {
    let root = machine();
    let at = root.path();
    export(at);
    put(at, "sys/class/net/eth0/mtu", "1500\n");
    put(at, &format!("{HCA}/ports/2/state"), "1: DOWN\n");
    put(at, &format!("{SWITCH}/0000:02:02.0/config"), config(0x1d));
    put(
        at,
        "etc/hcablk/hcablk.d/more.toml",
        "[disk.x]\nadress = \"10.0.0.1\"\n",
    );
    fs::remove_file(at.join("run/systemd/timesync/synchronized")).unwrap();
    fs::create_dir_all(at.join("run/systemd/system")).unwrap();
    fs::write(at.join(format!("lib/modules/{RELEASE}/modules.dep")), "").unwrap();
    put(at, "etc/hcablk/keys/data.key", "secret\n");
    let shared = put(at, "etc/hcablk/hcablk.toml", "");
    fs::set_permissions(shared, fs::Permissions::from_mode(0o666)).unwrap();
    golden("check.txt", &run(at, "check", 7));
    golden("check.json", &run(at, "check --json", 7));
}

#[test]
fn each_fault_is_found() {
    type Break = fn(&Path);
    let faults: [(&str, Break); 10] = [
        ("rdma-device failure", |at| {
            fs::remove_dir_all(at.join(HCA)).unwrap();
        }),
        ("rdma-device warning", |at| {
            put(at, &format!("{HCA}/ports/1/state"), "1: DOWN\n");
        }),
        ("roce-gid failure", |at| {
            put(
                at,
                &format!("{HCA}/ports/1/gid_attrs/types/1"),
                "IB/RoCE v1\n",
            );
        }),
        ("roce-gid failure", |at| {
            put(
                at,
                &format!("{HCA}/ports/1/gids/1"),
                "fe80:0000:0000:0000:0000:0000:0000:0001\n",
            );
        }),
        ("roce-mtu warning", |at| {
            put(at, "sys/class/net/eth0/mtu", "4191\n");
        }),
        ("roce-mtu failure", |at| {
            put(at, "sys/class/net/eth0/mtu", "300\n");
        }),
        ("kernel-option failure", |at| {
            put(
                at,
                &format!("boot/config-{RELEASE}"),
                "CONFIG_RUST=y\nCONFIG_CONFIGFS_FS=y\nCONFIG_INFINIBAND=y\n",
            );
        }),
        ("host-id failure", |at| {
            put(at, "etc/hcablk/host_id", "rubbish\n");
        }),
        ("file-rights failure", |at| {
            // Deeper than the keys of this machine.
            let key = "etc/hcablk/keys/hosts/7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44";
            put(at, key, key_text(1));
            fs::set_permissions(at.join(key), fs::Permissions::from_mode(0o644)).unwrap();
        }),
        ("file-rights failure", |at| {
            let folder = at.join("etc/hcablk");
            fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
        }),
    ];
    for (wanted, fault) in faults {
        let root = machine();
        fault(root.path());
        let code = if wanted.ends_with("failure") { 7 } else { 0 };
        assert_eq!(found(root.path(), code), [wanted]);
        run(root.path(), "check --strict", 7);
    }
}

#[test]
fn keys_that_root_alone_reads_are_well() {
    let root = machine();
    secret(
        root.path(),
        "etc/hcablk/keys/hosts/7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44",
        &key_text(1),
    );
    assert_eq!(found(root.path(), 0), [""; 0]);
}

#[test]
fn the_write_cache_of_a_partition_is_that_of_its_drive() {
    let root = machine();
    let at = root.path();
    export(at);
    let volume = "sys/kernel/config/hcablk_target/volumes/data";
    put(
        at,
        &format!(
            "{volume}/hosts/{}/x",
            "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11"
        ),
        "",
    );
    put(
        at,
        &format!("{volume}/path"),
        "/dev/disk/by-id/nvme-part1\n",
    );
    let drive = format!("{SWITCH}/0000:02:01.0/0000:04:00.0/nvme/nvme0/nvme0n1");
    put(at, &format!("{drive}/nvme0n1p1/partition"), "1\n");
    link(
        at,
        "sys/class/block/nvme0n1p1",
        &format!("{drive}/nvme0n1p1"),
    );
    put(at, "dev/nvme0n1p1", "");
    link(at, "dev/disk/by-id/nvme-part1", "dev/nvme0n1p1");
    for (kind, count) in [("write back", 1), ("write through", 0)] {
        put(
            at,
            &format!("{drive}/queue/write_cache"),
            format!("{kind}\n"),
        );
        // The exit code is 7 because no port listens.
        let text = run(at, "check --quiet", 7);
        let found = text
            .matches("note    write-cache: data: several hosts")
            .count();
        assert_eq!(found, count, "{kind}: {text}");
    }
}

#[test]
fn peer_to_peer_gets_through_or_not() {
    let p2p = |at: &Path| -> Vec<String> {
        let json: Value = serde_json::from_str(&run(at, "check --json", 7)).unwrap();
        let findings = json["findings"].as_array().unwrap().iter();
        findings
            .filter(|finding| finding["check"] == "peer-to-peer")
            .map(|finding| {
                format!(
                    "{} {}",
                    finding["subject"].as_str().unwrap(),
                    finding["level"].as_str().unwrap()
                )
            })
            .collect()
    };
    let root = machine();
    let at = root.path();
    // The exit code is 7 because no port listens.
    export(at);
    let (drive, hca) = (
        "volume data, drive nvme0n1 to 0000:05:00.0",
        "volume data, mlx5_0 to 0000:05:00.0",
    );
    assert_eq!(p2p(at), [format!("{drive} ok"), format!("{hca} ok")]);
    // Redirection at the drive's port of the switch; only the first 64 bytes of the HCA's port are seen.
    put(at, &format!("{SWITCH}/0000:02:01.0/config"), config(0x04));
    put(at, &format!("{SWITCH}/0000:02:00.0/config"), [0; 64]);
    assert_eq!(p2p(at), [format!("{drive} warning"), format!("{hca} note")]);
    fs::remove_file(at.join(format!("{SWITCH}/0000:02:02.0/0000:05:00.0/p2pmem/size"))).unwrap();
    assert_eq!(p2p(at), ["volume data warning"]);
}

#[test]
fn a_kernel_without_modules_is_found_before_it_is_booted() {
    let root = machine();
    let at = root.path();
    let next = "7.4.1-test";
    for release in [RELEASE, next] {
        put(at, &format!("boot/vmlinuz-{release}"), "");
    }
    let dep = "kernel/fs/ext4/ext4.ko:\nupdates/hcablk/hcablk.ko: updates/hcablk/hcablk_core.ko\n";
    put(at, &format!("lib/modules/{next}/modules.dep"), dep);
    let output = Command::cargo_bin("hcablk")
        .unwrap()
        .env("HCABLK_SYSROOT", at)
        .args(["check", "--strict"])
        .assert()
        .code(7)
        .get_output()
        .clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("has no module hcablk_target: after booting it"),
        "{text}"
    );
    assert!(text.contains("hcablk-modules-7.4.1-test"), "{text}");
    let dep = format!("{dep}updates/dkms/hcablk_target.ko.xz:\n");
    put(at, &format!("lib/modules/{next}/modules.dep"), dep);
    Command::cargo_bin("hcablk")
        .unwrap()
        .env("HCABLK_SYSROOT", at)
        .args(["check", "--strict"])
        .assert()
        .success();
}

#[test]
fn a_loaded_module_that_is_not_the_installed_one_is_reported() {
    let root = machine();
    let at = root.path();
    let dep = "updates/hcablk/hcablk.ko:\nupdates/hcablk/hcablk_target.ko:\n";
    put(at, &format!("lib/modules/{RELEASE}/modules.dep"), dep);
    let note = |id: u8| {
        [
            &[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0][..],
            &[id; 20],
        ]
        .concat()
    };
    let module = |id: u8| [b"\x7fELF....", &note(id)[..], b"...."].concat();
    put(at, "sys/module/hcablk/notes/.note.gnu.build-id", note(1));
    let file = format!("lib/modules/{RELEASE}/updates/hcablk/hcablk.ko");
    let check = || {
        let output = Command::cargo_bin("hcablk")
            .unwrap()
            .env("HCABLK_SYSROOT", at)
            .args(["check", "--quiet"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    put(at, &file, module(1));
    assert!(!check().contains("a different build"), "{}", check());
    put(at, &file, module(2));
    assert!(
        check().contains("it is of a different build"),
        "{}",
        check()
    );
    // The build id of a compressed module is not visible.
    put(at, &file, "xz");
    assert!(!check().contains("a different build"));
}

const DATA: &str = "sys/kernel/config/hcablk/data";
const MOUNT: &str = "/dev/hcablk0 /srv/shared ocfs2 rw,relatime,_netdev,heartbeat=local 0 0\n";

/// Adds a connected disk with these timeouts.
fn connect(root: &Path, ctrl_loss_tmo: &str, fast_io_fail_tmo: &str) {
    for (name, text) in [
        ("address", "10.0.0.1"),
        ("port", "7744"),
        ("volume", "data"),
        ("host_id", "5f2c1d6e-8a0b-4c3d-9e7f-001122334455"),
        ("wwid", "3f1c0f52-6c1e-4e0b-9a52-6f0f2f9d7c10"),
        ("queues", "0"),
        ("poll_queues", "0"),
        ("queue_depth", "128"),
        ("io_timeout", "30"),
        ("connect_timeout", "10"),
        ("reconnect_delay", "1"),
        ("ctrl_loss_tmo", ctrl_loss_tmo),
        ("fast_io_fail_tmo", fast_io_fail_tmo),
        ("keep_alive_tmo", "5"),
        ("remote_invalidate", "1"),
        ("insecure", "0"),
        ("small_read", "8192"),
        ("small_write", "4096"),
        ("eager_write", "32768"),
        ("max_io_kib", "1024"),
        ("message_requests", "8"),
        ("batch_upper", "32"),
        ("batch_lower", "16"),
        ("policy", "queue-depth"),
        ("paths_auto", "0"),
        ("state", "live"),
        ("device", "hcablk0"),
        ("error", ""),
        ("lost_writes", "0"),
        ("session", "00000000deadbeef 1"),
        ("keys", "2"),
        ("timing", "0"),
        ("times", ""),
        ("stats", "reads 1"),
    ] {
        put(root, &format!("{DATA}/{name}"), format!("{text}\n"));
    }
    fs::create_dir_all(root.join(DATA).join("paths")).unwrap();
    put(root, "sys/class/block/hcablk0/dev", "252:0\n");
    put(root, "dev/hcablk0", "");
}

/// The level, the message and the advice of each finding of a check.
fn findings_of(root: &Path, check: &str) -> Vec<[String; 3]> {
    let json: Value = serde_json::from_str(&run(root, "check --json", 0)).unwrap();
    let findings = json["findings"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = findings.filter(|finding| finding["check"] == check);
    all.map(|finding| ["level", "message", "advice"].map(|member| text(&finding[member])))
        .collect()
}

/// The heartbeat of OCFS2 restarts a node sooner than its disk gives up.
#[test]
fn a_heartbeat_that_waits_less_than_its_disk_is_found() {
    const KERNEL: &str = "sys/kernel/config/cluster/c/heartbeat/dead_threshold";
    const FILE: &str = "etc/default/o2cb";
    let root = machine();
    let at = root.path();
    connect(at, "600", "-1");
    put(at, "proc/mounts", MOUNT);
    let none: [[String; 3]; 0] = [];
    assert_eq!(findings_of(at, "o2cb"), none, "o2cb is not installed");

    // Neither the file nor the kernel has a threshold: it is 31.
    put(at, FILE, "O2CB_ENABLED=true\nO2CB_HEARTBEAT_THRESHOLD=\n");
    let [level, message, advice] = findings_of(at, "o2cb").remove(0);
    assert_eq!(level, "warning");
    assert!(
        message.contains("waits 600 s for its target, but o2cb restarts this node 60 s after"),
        "{message}"
    );
    assert!(
        advice.contains("O2CB_HEARTBEAT_THRESHOLD=321 into"),
        "{advice}"
    );

    put(at, FILE, "O2CB_HEARTBEAT_THRESHOLD=321\n");
    assert_eq!(findings_of(at, "o2cb")[0][0], "ok");
    // The kernel's threshold holds until o2cb is restarted.
    put(at, KERNEL, "31\n");
    let levels = |found: Vec<[String; 3]>| found.into_iter().map(|one| one[0].clone());
    assert_eq!(
        levels(findings_of(at, "o2cb")).collect::<Vec<_>>(),
        ["warning", "warning"]
    );
    assert!(findings_of(at, "o2cb")[1][1].contains("THRESHOLD=321, and the kernel uses 31"));
    put(at, KERNEL, "321\n");
    assert_eq!(levels(findings_of(at, "o2cb")).collect::<Vec<_>>(), ["ok"]);

    for (ctrl_loss_tmo, fast_io_fail_tmo, level) in [
        ("601", "-1", "warning"),
        ("-1", "-1", "warning"),
        ("-1", "600", "ok"),
        ("0", "-1", "ok"),
    ] {
        connect(at, ctrl_loss_tmo, fast_io_fail_tmo);
        assert_eq!(findings_of(at, "o2cb")[0][0], level, "{ctrl_loss_tmo}");
    }
}

/// Only disks whose OCFS2 uses the heartbeat matter, also on a partition or above LVM.
#[test]
fn the_disks_of_ocfs2_are_found() {
    let root = machine();
    let at = root.path();
    connect(at, "600", "-1");
    put(at, "etc/default/o2cb", "");
    let warnings = || {
        let found = findings_of(at, "o2cb").into_iter();
        found.filter(|[level, ..]| level == "warning").count()
    };
    let mounts = |text: &str| put(at, "proc/mounts", text);
    assert_eq!(warnings(), 0, "no file system");
    mounts(&MOUNT.replace("ocfs2", "ext4"));
    assert_eq!(warnings(), 0, "another file system");
    mounts(&MOUNT.replace("hcablk0", "sda"));
    assert_eq!(warnings(), 0, "another disk");
    mounts(&MOUNT.replace("heartbeat=local", "heartbeat=none"));
    assert_eq!(warnings(), 0, "mounted by one node alone");
    mounts(MOUNT);
    assert_eq!(warnings(), 1, "mounted");
    put(at, "sys/class/block/hcablk0/hcablk0p1/partition", "1\n");
    mounts(&MOUNT.replace("hcablk0", "hcablk0p1"));
    assert_eq!(warnings(), 1, "mounted from a partition");
    fs::create_dir_all(at.join("sys/class/block/hcablk0p1/holders/dm-3")).unwrap();
    put(at, "dev/dm-3", "");
    link(at, "dev/mapper/vg-lv", "dev/dm-3");
    mounts(&MOUNT.replace("/dev/hcablk0", "/dev/mapper/vg-lv"));
    assert_eq!(warnings(), 1, "mounted from LVM on a partition");
    mounts("");
    put(at, "run/udev/data/b252:0", "S:disk\nE:ID_FS_TYPE=ocfs2\n");
    assert_eq!(warnings(), 1, "not mounted");
    put(at, "sys/fs/ocfs2/cluster_stack", "pcmk\n");
    assert_eq!(warnings(), 0, "another cluster stack");
}

/// A leg of an md array that can come back with old data, or that holds up the array, is found.
#[test]
fn legs_of_mirrors_are_found() {
    const MD: &str = "sys/class/block/md0/md";
    const CACHE: &str = "sys/class/block/hcablk0/queue/write_cache";
    let root = machine();
    let at = root.path();
    connect(at, "-1", "2");
    put(at, CACHE, "write back\n");
    let found = || -> Vec<[String; 2]> {
        let all = findings_of(at, "mirror").into_iter();
        all.map(|[level, message, _]| [level, message]).collect()
    };
    let none: [[String; 2]; 0] = [];
    assert_eq!(found(), none, "a disk of its own");

    fs::create_dir_all(at.join("sys/class/block/hcablk0/holders/md0")).unwrap();
    put(at, &format!("{MD}/level"), "raid0\n");
    put(at, &format!("{MD}/dev-hcablk0/state"), "in_sync\n");
    assert_eq!(found(), none, "an array that loses all with a leg");

    put(at, &format!("{MD}/level"), "raid1\n");
    let [level, message, advice] = findings_of(at, "mirror").remove(0);
    assert_eq!(level, "warning");
    assert!(
        message.contains("hcablk0 is a leg of md0 and has a volatile write cache"),
        "{message}"
    );
    assert!(
        advice.contains("the volume data with --write-cache through"),
        "{advice}"
    );
    put(at, CACHE, "write through\n");
    assert_eq!(found(), [["ok", "a leg of md0"]]);

    connect(at, "-1", "-1");
    let [level, message] = found().remove(0);
    assert_eq!(level, "warning");
    assert!(
        message.contains("all writes to md0 wait for it without a limit"),
        "{message}"
    );
    // md sends requests that fail at once.
    put(at, &format!("{MD}/dev-hcablk0/state"), "in_sync,failfast\n");
    assert_eq!(found(), [["ok", "a leg of md0"]]);
    connect(at, "600", "2");
    assert_eq!(found()[0][0], "note", "the disk of a leg ends");

    connect(at, "-1", "2");
    put(at, &format!("{MD}/dev-hcablk0/state"), "faulty\n");
    let [level, message, advice] = findings_of(at, "mirror").remove(0);
    assert_eq!(level, "warning");
    assert!(
        message.contains("md0 continues without hcablk0"),
        "{message}"
    );
    assert!(
        advice.contains("mdadm /dev/md0 --re-add /dev/hcablk0"),
        "{advice}"
    );

    // A re-add of a leg with a volatile cache would leave old data on it.
    put(at, CACHE, "write back\n");
    for [_, _, advice] in findings_of(at, "mirror") {
        assert!(!advice.contains("re-add"), "{advice}");
        assert!(advice.contains("--zero-superblock"), "{advice}");
    }
    put(at, CACHE, "write through\n");

    put(at, &format!("{MD}/dev-hcablk0/state"), "spare\n");
    put(at, &format!("{MD}/dev-hcablk0/slot"), "0\n");
    put(at, &format!("{MD}/sync_completed"), "none\n");
    let waiting = "md0 has not begun to copy to hcablk0 what it lacks";
    assert_eq!(found(), [["note", waiting]]);
    put(at, &format!("{MD}/sync_completed"), "65536 / 262144\n");
    let copying = "md0 copies to hcablk0 what it lacks: 25 % of the leg is done";
    assert_eq!(found(), [["note", copying]]);
    put(at, &format!("{MD}/dev-hcablk0/slot"), "none\n");
    assert_eq!(found(), [["ok", "a leg of md0"]], "a spare");

    // The array is above a partition.
    fs::remove_dir(at.join("sys/class/block/hcablk0/holders/md0")).unwrap();
    put(at, "sys/class/block/hcablk0/hcablk0p1/partition", "1\n");
    fs::create_dir_all(at.join("sys/class/block/hcablk0p1/holders/md0")).unwrap();
    put(at, &format!("{MD}/dev-hcablk0p1/state"), "in_sync\n");
    put(at, CACHE, "write back\n");
    assert!(found()[0][1].contains("hcablk0p1 is a leg of md0"));
}

/// Findings about a host have its name.
#[test]
fn hosts_in_findings_have_their_names() {
    let root = machine();
    let at = root.path();
    export(at);
    let host = "5f2c1d6e-8a0b-4c3d-9e7f-001122334455";
    let tree = "sys/kernel/config/hcablk_target";
    put(
        at,
        &format!("{tree}/volumes/data/evicted"),
        format!("{host}\n"),
    );
    put(at, &format!("{tree}/volumes/data/hosts/{host}/keys"), "0\n");
    secret(at, &format!("etc/hcablk/keys/hosts/{host}"), &key_text(4));
    let messages = |check: &str| -> Vec<String> {
        let json: Value = serde_json::from_str(&run(at, "check --json", 7)).unwrap();
        let findings = json["findings"].as_array().unwrap().iter();
        let here = findings.filter(|one| one["check"] == check);
        here.map(|one| one["message"].as_str().unwrap().to_owned())
            .collect()
    };
    let has = |check: &str, message: String| {
        let all = messages(check);
        assert!(all.contains(&message), "{message} is not in {all:?}");
    };
    let unheld = "the kernel does not have the key of";
    has(
        "export",
        "the host is evicted, so the target refuses it".to_owned(),
    );
    has("keys", format!("{unheld} {host}"));
    put(
        at,
        "etc/hcablk/hcablk.d/names.toml",
        format!("[host_names]\nclient1 = \"{host}\"\n"),
    );
    has(
        "export",
        "the host client1 is evicted, so the target refuses it".to_owned(),
    );
    has("keys", format!("{unheld} {host} (client1)"));
}

/// The check finds keys that are missing, unknown to the kernel, or not used yet.
#[test]
fn keys_that_are_missing_are_found() {
    let root = machine();
    let at = root.path();
    let keys = |level: &str| -> Vec<String> {
        let code = if at.join("sys/kernel/config/hcablk_target").exists() {
            7
        } else {
            0
        };
        let json: Value = serde_json::from_str(&run(at, "check --json", code)).unwrap();
        let findings = json["findings"].as_array().unwrap().iter();
        let here = findings.filter(|one| one["check"] == "keys" && one["level"] == level);
        here.map(|one| one["message"].as_str().unwrap().to_owned())
            .collect()
    };
    let none: [String; 0] = [];
    assert_eq!(keys("warning"), none);
    assert_eq!(
        keys("ok"),
        ["this host has its key and that of the target 10.0.0.1"]
    );

    connect(at, "600", "-1");
    put(at, &format!("{DATA}/keys"), "0\n");
    assert_eq!(
        keys("warning"),
        ["the kernel does not have the keys of the disk"]
    );
    put(at, &format!("{DATA}/keys"), "2\n");

    secret(at, "etc/hcablk/keys/host.pending", &key_text(2));
    assert!(
        keys("warning")[0].contains("is pending"),
        "{:?}",
        keys("warning")
    );
    fs::remove_file(at.join("etc/hcablk/keys/host.pending")).unwrap();

    secret(at, "etc/hcablk/keys/targets/default", "");
    secret(at, "etc/hcablk/keys/host", "");
    assert!(
        keys("note")[0].contains("exported with --insecure"),
        "{:?}",
        keys("note")
    );
    assert_eq!(keys("warning"), none);
    let enroll = |command: &str| {
        let text = run(
            at,
            "check",
            if at.join("sys/kernel/config/hcablk_target").exists() {
                7
            } else {
                0
            },
        );
        assert!(text.contains(&format!("          {command}\n")), "{text}");
    };
    enroll("on the target: hcablk enroll CLIENT data --address 10.0.0.1");

    // The exit code is 7 because no port listens.
    export(at);
    let host = "5f2c1d6e-8a0b-4c3d-9e7f-001122334455";
    assert_eq!(keys("warning").len(), 2, "{:?}", keys("warning"));
    assert!(keys("warning")[0].contains("no key as a target"));
    assert!(keys("warning")[1].starts_with(&format!("data refuses {host}")));
    enroll("hcablk enroll CLIENT VOLUME");
    enroll("hcablk enroll CLIENT data");
    secret(at, "etc/hcablk/keys/target", &key_text(3));
    secret(at, &format!("etc/hcablk/keys/hosts/{host}"), &key_text(4));
    let tree = "sys/kernel/config/hcablk_target";
    put(at, &format!("{tree}/keys"), "0\n");
    put(at, &format!("{tree}/volumes/data/hosts/{host}/keys"), "0\n");
    let unknown = |whose: &str| format!("the kernel does not have the key of {whose}");
    assert_eq!(
        keys("warning"),
        [unknown("this machine as a target"), unknown(host)]
    );
    put(at, &format!("{tree}/keys"), "1\n");
    put(at, &format!("{tree}/volumes/data/hosts/{host}/keys"), "1\n");
    assert_eq!(keys("warning"), none);
    put(at, &format!("{tree}/volumes/data/insecure"), "1\n");
    secret(at, "etc/hcablk/keys/target", "");
    assert_eq!(keys("warning"), none, "an INSECURE volume needs no keys");
}
