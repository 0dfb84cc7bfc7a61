// SPDX-License-Identifier: GPL-2.0

//! `report` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use hcablk::error::Kind;
use kernel::{fails, golden, hcablk, key, ok, Kernel};

const HOST: &str = "7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44";
const FILE: &str = "hcablk-report-client1-20251125T000000Z.tar.gz";

/// The files of an archive, by their names in its folder.
fn unpacked(bytes: &[u8]) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(bytes));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        assert_eq!(entry.header().mode().unwrap(), 0o600);
        let path = entry.path().unwrap().into_owned();
        let folder = FILE.strip_suffix(".tar.gz").unwrap();
        let name = path.strip_prefix(folder).unwrap().to_str().unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        files.insert(name.to_owned(), text);
    }
    files
}

fn report(kernel: &Kernel) -> BTreeMap<String, String> {
    let output = ok(kernel, "report");
    assert_eq!(output, format!("{FILE}\n"));
    unpacked(&kernel.made.borrow_mut().remove(Path::new(FILE)).unwrap())
}

/// A machine with an export and a disk, and with keys in all places where keys can be.
fn machine() -> Kernel {
    let kernel = Kernel::loaded();
    let own = key(0xa1).0;
    for folder in [
        "/etc",
        "/etc/hcablk",
        "/etc/hcablk/keys",
        "/etc/hcablk/keys/hosts",
        "/etc/hcablk/keys/targets",
        "/etc/hcablk/hcablk.d",
        "/run/systemd/system",
    ] {
        kernel.folder(folder);
    }
    kernel.file("/etc/hcablk/keys/host", &own);
    kernel.file("/etc/hcablk/keys/target", &key(0xa2).0);
    kernel.file(format!("/etc/hcablk/keys/hosts/{HOST}"), &key(0xa3).0);
    kernel.file("/etc/hcablk/keys/targets/default", &key(0xa4).0);
    let toml = format!("# {own}[disk.data]\naddress = \"10.0.0.1\"\npassword = \"open sesame\"\n");
    kernel.file("/etc/hcablk/hcablk.toml", &toml);
    kernel.file(
        "/etc/hcablk/hcablk.d/more.toml",
        "[port.1]\naddress = \"10.0.0.9\"\n",
    );
    kernel.file("/etc/default/o2cb", "O2CB_HEARTBEAT_THRESHOLD=321\n");
    kernel.file("/etc/fstab", "/dev/sda1 / ext4\n/dev/hcablk0 /srv ocfs2\n");
    kernel.file(
        "/proc/diskstats",
        "   8 0 sda 1 2 3\n 252 0 hcablk0 4 5 6\n",
    );
    kernel.file(
        "/var/lib/dpkg/status",
        "Package: hcablk\nStatus: install ok installed\nVersion: 0.1.0-7\n\n\
         Package: nano\nStatus: install ok installed\nVersion: 8.1\n\n\
         Package: rdma-core\nStatus: deinstall ok config-files\nVersion: 56\n",
    );
    kernel.file("/run/systemd/journal/socket", "");
    let log = format!(
        "1 kernel: hcablk: disk data: path 0 lost\n2 kernel: usb 1-1: new device\n3 kernel: hcablk: {}\n",
        key(0xa1).1
    );
    let mut printed = kernel.printed.borrow_mut();
    printed.insert("journalctl --dmesg", log);
    printed.insert(
        "systemctl list-units",
        "hcablk.target loaded active\n".to_owned(),
    );
    printed.insert("rdma link show", "link rxe0/1 state ACTIVE\n".to_owned());
    drop(printed);
    for attribute in ["key", "key2"] {
        kernel.file(
            format!("/sys/kernel/config/hcablk_target/{attribute}"),
            "\n",
        );
    }
    ok(
        &kernel,
        &format!("target export vol /dev/sdb --allow {HOST}"),
    );
    ok(&kernel, "connect 10.0.0.1 data");
    kernel
}

#[test]
fn a_report_has_the_state_of_the_machine() {
    let kernel = machine();
    let before = kernel.snapshot();
    let files = report(&kernel);
    assert_eq!(kernel.snapshot(), before, "a report changes nothing");
    for (file, words) in [
        ("README.txt", "on client1, 2025-11-25T00:00:00"),
        ("README.txt", "check.txt"),
        (
            "versions.txt",
            concat!("hcablk ", env!("CARGO_PKG_VERSION")),
        ),
        ("versions.txt", "hcablk 0.1.0-7"),
        ("check.txt", "FAILURE"),
        ("check.json", "\"findings\""),
        ("list.txt", "/dev/hcablk0"),
        ("list.json", "\"devices\""),
        ("target-list.txt", HOST),
        ("target-list.json", "\"volumes\""),
        ("stats.json", "\"counters\""),
        ("target-stats.json", "\"counters\""),
        (
            "configfs-initiator.txt",
            "/sys/kernel/config/hcablk/data/address: 10.0.0.1\n",
        ),
        (
            "configfs-target.txt",
            "/sys/kernel/config/hcablk_target/volumes/vol/path: /dev/sdb\n",
        ),
        ("kernel-log.txt", "path 0 lost"),
        ("units.txt", "hcablk.target loaded active"),
        ("rdma.txt", "link rxe0/1 state ACTIVE"),
        ("devices.txt", "hcablk0 4 5 6"),
        ("etc/hcablk/hcablk.toml", "address = \"10.0.0.1\""),
        ("etc/hcablk/hcablk.d/more.toml", "10.0.0.9"),
        ("etc/default/o2cb", "O2CB_HEARTBEAT_THRESHOLD=321"),
        ("etc/fstab", "/dev/hcablk0 /srv ocfs2"),
    ] {
        let text = &files[file];
        assert!(text.contains(words), "{file}: {words}: {text}");
    }
    for (file, words) in [
        ("versions.txt", "nano"),
        ("versions.txt", "rdma-core"),
        ("kernel-log.txt", "usb"),
        ("devices.txt", "sda"),
        ("etc/fstab", "ext4"),
    ] {
        assert!(!files[file].contains(words), "{file}: {words}");
    }
    for name in files.keys().filter(|name| *name != "README.txt") {
        assert!(files["README.txt"].contains(name), "{name}");
    }
}

#[test]
fn a_report_has_no_secret() {
    let kernel = machine();
    let key_of = |group: &str| kernel.text(format!("/sys/kernel/config/{group}"));
    assert_eq!(key_of("hcablk/data/host_key"), key(0xa1).1);
    let files = report(&kernel);
    for (name, text) in &files {
        for byte in [0xa1, 0xa2, 0xa3, 0xa4] {
            let digits = format!("{byte:02x}").repeat(8);
            assert!(!text.contains(&digits), "{name}: {text}");
        }
        assert!(!text.contains("sesame"), "{name}: {text}");
        assert!(!name.contains("keys"), "{name}");
    }
    assert!(files["etc/hcablk/hcablk.toml"].contains("password = [removed]"));
    assert!(files["kernel-log.txt"].contains("3 kernel: hcablk: [removed]"));
    let tree = &files["configfs-initiator.txt"];
    assert!(!tree.contains("host_key"), "{tree}");
    assert!(tree.contains("/data/volume: data"), "{tree}");
}

#[test]
fn a_source_that_cannot_be_read_is_named() {
    let kernel = machine();
    kernel.printed.borrow_mut().clear();
    let outcome = hcablk(&kernel, "report").unwrap();
    assert!(
        outcome.notes[0].contains("sources could not be read"),
        "{:?}",
        outcome.notes
    );
    let bytes = kernel.made.borrow_mut().remove(Path::new(FILE)).unwrap();
    let files = unpacked(&bytes);
    let readme = &files["README.txt"];
    assert!(
        readme.contains("  rdma.txt: rdma link show: No such file or directory\n"),
        "{readme}"
    );
    assert!(files["rdma.txt"].contains("== rdma link show\n(not available)\n"));
}

#[test]
fn the_kernels_own_log_is_read_where_the_journal_is_empty() {
    let kernel = machine();
    let log = |journal: &str| {
        let mut printed = kernel.printed.borrow_mut();
        printed.insert("journalctl --dmesg", journal.to_owned());
        printed.insert("dmesg", "[1.0] hcablk: from the buffer\n".to_owned());
        drop(printed);
        report(&kernel)["kernel-log.txt"].clone()
    };
    for empty in ["", "-- No entries --\n"] {
        let text = log(empty);
        assert!(
            text.contains("== dmesg\n[1.0] hcablk: from the buffer\n"),
            "{text}"
        );
    }
    let text = log("-- Boot 1 --\n1 kernel: usb 1-1: new device\n");
    assert!(!text.contains("dmesg\n"), "{text}");
}

#[test]
fn a_machine_without_anything_has_a_report() {
    let kernel = Kernel::bare();
    let files = report(&kernel);
    assert!(files["configfs-target.txt"].contains("does not exist"));
    assert!(files["units.txt"].contains("systemd does not run this machine"));
    assert!(kernel.log.borrow().is_empty(), "no module is loaded");
}

#[test]
fn a_report_replaces_no_file() {
    let kernel = Kernel::bare();
    ok(&kernel, "report --output /tmp/report.tar.gz");
    assert!(kernel
        .made
        .borrow()
        .contains_key(Path::new("/tmp/report.tar.gz")));
    let error = fails(&kernel, "report --output /tmp/report.tar.gz");
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains("/tmp/report.tar.gz"));
}

#[test]
fn the_answer_as_json() {
    let kernel = Kernel::bare();
    let mut json: serde_json::Value =
        serde_json::from_str(&hcablk(&kernel, "report").unwrap().to_json()).unwrap();
    // The size follows the compression.
    assert!(json["result"]["bytes"].as_u64().unwrap() > 500);
    json["result"]["bytes"] = 4000.into();
    golden(
        "report.json",
        &(serde_json::to_string_pretty(&json).unwrap() + "\n"),
    );
}
