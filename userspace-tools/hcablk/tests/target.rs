// SPDX-License-Identifier: GPL-2.0

//! `target …` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use kernel::{
    each_failure_is_undone, fails, golden, hcablk, notes, ok, steps_of, without_keys, Kernel,
};
use nix::errno::Errno;

const A: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const B: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b";

fn allows(kernel: &Kernel, volume: &str, host: &str) -> bool {
    kernel.has(&format!(
        "/sys/kernel/config/hcablk_target/volumes/{volume}/hosts/{host}"
    ))
}

#[test]
fn export_sets_everything_up() {
    let kernel = Kernel::bare();
    let output = ok(
        &kernel,
        &format!("target export data /dev/sdb --allow {A} --allow {B}"),
    );
    assert_eq!(output, "/dev/sdb is exported as data, at 0.0.0.0:7744\n",);
    assert_eq!(kernel.volume("data", "path"), "/dev/sdb");
    assert_eq!(kernel.volume("data", "read_only"), "0");
    assert_eq!(kernel.volume("data", "enable"), "1");
    assert!(allows(&kernel, "data", A) && allows(&kernel, "data", B));
    assert_eq!(kernel.port("1", "enable"), "1");
    assert!(kernel
        .log
        .borrow()
        .contains(&"load hcablk_target".to_owned()));
}

#[test]
fn hosts_are_allowed_before_the_volume_is_enabled() {
    let kernel = Kernel::loaded();
    ok(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    let log = kernel.log.borrow();
    let at = |words: &str| log.iter().position(|line| line.contains(words)).unwrap();
    assert!(at("/hosts/") < at("volumes/data/enable"));
}

#[test]
fn export_read_only_without_a_port() {
    let kernel = Kernel::loaded();
    let outcome = hcablk(&kernel, "target export data /dev/sdb --read-only --no-port").unwrap();
    assert_eq!(
        outcome.report.to_string(),
        "/dev/sdb is exported as data, read-only\n"
    );
    assert!(
        outcome.notes[0].contains("hcablk target allow data"),
        "{:?}",
        outcome.notes
    );
    assert_eq!(kernel.volume("data", "read_only"), "1");
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/ports/1"));
}

#[test]
fn export_in_a_mode() {
    let kernel = Kernel::loaded();
    let output = ok(&kernel, "target export data /srv/disk.img --mode cached");
    assert_eq!(
        output,
        "/srv/disk.img is exported as data, cached, at 0.0.0.0:7744\n"
    );
    assert_eq!(kernel.volume("data", "mode"), "cached");
}

#[test]
fn export_with_a_cache() {
    let kernel = Kernel::loaded();
    let output = ok(&kernel, "target export data /dev/sdb --cache-mib 64");
    assert_eq!(
        output,
        "/dev/sdb is exported as data, with a cache of 64 MiB, at 0.0.0.0:7744\n"
    );
    assert_eq!(kernel.volume("data", "cache_mib"), "64");
    let error = fails(&kernel, "target export data /dev/sdb");
    assert!(
        error.message.contains("its cache has 64 MiB, not 0"),
        "{error:?}"
    );
}

#[test]
fn export_in_chunks() {
    let kernel = Kernel::loaded();
    let output = ok(&kernel, "target export data /dev/sdb --chunk-kib 256");
    assert_eq!(
        output,
        "/dev/sdb is exported as data, large requests in chunks of 256 KiB, at 0.0.0.0:7744\n"
    );
    assert_eq!(kernel.volume("data", "chunk_kib"), "256");
    let error = fails(&kernel, "target export data /dev/sdb");
    assert!(
        error.message.contains("its chunks have 256 KiB, not 128"),
        "{error:?}"
    );
    let output = ok(&kernel, "target export whole /dev/sdc --chunk-kib 0");
    assert!(output.contains("large requests whole"), "{output}");
}

#[test]
fn export_by_the_memory_of_a_pci_device() {
    let kernel = Kernel::loaded();
    let error = fails(&kernel, "target export data /dev/sdb --provider 81:00.0");
    assert!(error.message.contains("mode direct uses no"), "{error:?}");
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/volumes/data"));
    let line = "target export data /dev/sdb --mode p2p --provider 81:1F.0";
    assert_eq!(
        ok(&kernel, line),
        "/dev/sdb is exported as data, p2p, at 0.0.0.0:7744\n"
    );
    assert_eq!(kernel.volume("data", "provider"), "0000:81:1f.0");
    let again = hcablk(&kernel, line).unwrap();
    assert_eq!(again.notes[0], "data is exported already");
    let error = fails(&kernel, "target export data /dev/sdb --mode p2p");
    assert!(
        error.message.contains("provider is 0000:81:1f.0, not auto"),
        "{error:?}"
    );
}

#[test]
fn a_volume_has_the_same_wwid_each_time_and_another_for_another_drive() {
    let wwid = |line: &str, drive: Option<&str>| {
        let kernel = Kernel::loaded();
        if let Some(drive) = drive {
            kernel.file("/sys/class/block/sdb/device/wwid", drive);
        }
        ok(&kernel, line);
        kernel.volume("data", "wwid")
    };
    let line = "target export data /dev/sdb";
    // If this value changes, every client takes its volumes for different ones.
    assert_eq!(wwid(line, None), "ed50dbf5-f8c6-5399-909b-1584a5e28766");
    assert_eq!(
        wwid(line, Some("naa.1\n")),
        "01033932-9833-5bec-9aa2-ad5a2c98ab85"
    );
    assert_ne!(wwid(line, Some("naa.2\n")), wwid(line, Some("naa.1\n")));
    assert_ne!(wwid("target export data /dev/sdc", None), wwid(line, None));
    let given = "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11";
    assert_eq!(wwid(&format!("{line} --wwid {given}"), None), given);
}

#[test]
fn a_volume_keeps_its_wwid_when_the_host_s_id_changes() {
    let kernel = Kernel::loaded();
    let line = format!("target export data /dev/sdb --no-port --allow {A}");
    let wwid = |kernel: &Kernel| {
        ok(kernel, &line);
        let wwid = kernel.volume("data", "wwid");
        ok(kernel, "target unexport data");
        wwid
    };
    let first = wwid(&kernel);
    ok(&kernel, &format!("host-id --set {A}"));
    assert_eq!(wwid(&kernel), first);
    kernel.folder("/etc/hcablk");
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        "[export.data]\ndevice = \"/dev/sdb\"\n",
    );
    ok(&kernel, "apply --target");
    assert_eq!(kernel.volume("data", "wwid"), first);
    ok(&kernel, "target unexport data");
    // Another drive is another volume, also when the first one comes back.
    let other = line.replace("sdb", "sdc");
    ok(&kernel, &other);
    assert_ne!(kernel.volume("data", "wwid"), first);
    ok(&kernel, "target unexport data");
    assert_ne!(wwid(&kernel), first);
    // A wwid that `apply` derives is stored, too.
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        "[export.log]\ndevice = \"/dev/sdd\"\n",
    );
    ok(&kernel, "apply --target");
    let of_log = kernel.volume("log", "wwid");
    ok(&kernel, "target unexport log");
    ok(&kernel, &format!("host-id --set {B} --force"));
    ok(&kernel, "apply --target");
    assert_eq!(kernel.volume("log", "wwid"), of_log);
}

#[test]
fn a_relative_path_is_made_absolute() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data disk.img");
    assert!(kernel.volume("data", "path").starts_with('/'));
    assert!(kernel.volume("data", "path").ends_with("/disk.img"));
}

#[test]
fn exporting_twice_changes_nothing() {
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        &format!("target export data /dev/sdb --allow {A} --allow {B}"),
    );
    let changes = kernel.changes();
    for line in [
        "target export data /dev/sdb".to_owned(),
        format!("target export data /dev/sdb --allow {A}"),
    ] {
        assert_eq!(notes(&kernel, &line), ["data is exported already"]);
    }
    assert_eq!(kernel.changes(), changes);
}

#[test]
fn export_with_other_settings_is_refused() {
    let kernel = Kernel::loaded();
    ok(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    let snapshot = kernel.snapshot();
    for (options, difference, advice) in [
        (
            "/dev/sdc",
            "path is /dev/sdb, not /dev/sdc",
            "hcablk target unexport data",
        ),
        (
            "/dev/sdb --read-only",
            "writable, not read-only",
            "hcablk target unexport data",
        ),
        (
            "/dev/sdb --mode mixed",
            "mode is direct, not mixed",
            "hcablk target unexport data",
        ),
        (
            &format!("/dev/sdb --allow {B}"),
            "does not allow",
            &format!("hcablk target allow data {B}"),
        ),
    ] {
        let error = fails(&kernel, &format!("target export data {options}"));
        assert_eq!(error.kind, Kind::Exists);
        assert!(error.message.contains(difference), "{error:?}");
        assert!(error.advice.as_ref().unwrap().contains(advice), "{error:?}");
    }
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn a_volume_that_was_only_begun_is_finished() {
    let kernel = Kernel::loaded();
    let folder = "/sys/kernel/config/hcablk_target/volumes/data";
    hcablk::system::System::mkdir(&kernel, folder.as_ref()).unwrap();
    ok(&kernel, "target export data /dev/sdb --read-only");
    assert_eq!(kernel.volume("data", "enable"), "1");
    assert_eq!(kernel.volume("data", "read_only"), "1");
}

#[test]
fn each_failure_of_export_is_undone() {
    each_failure_is_undone(
        Kernel::loaded,
        &format!("target export data /dev/sdb --read-only --allow {A} --allow {B}"),
    );
}

#[test]
fn each_failure_of_finishing_an_export_is_undone() {
    let prepare = || {
        let kernel = Kernel::loaded();
        let folder = "/sys/kernel/config/hcablk_target/volumes/data";
        hcablk::system::System::mkdir(&kernel, folder.as_ref()).unwrap();
        kernel.set_volume("data", "path", "/dev/sdb\n");
        kernel.set_volume("data", "keep_reservations", "1\n");
        kernel
    };
    each_failure_is_undone(prepare, &format!("target export data /dev/sdb --allow {A}"));
}

#[test]
fn reservations_are_kept_if_nothing_else_is_asked_for() {
    let kernel = Kernel::loaded();
    ok(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    assert_eq!(kernel.volume("data", "keep_reservations"), "1");
    let line = format!("target export data /dev/sdb --no-reservations --allow {A}");
    let error = fails(&kernel, &line);
    assert_eq!(error.kind, Kind::Exists);
    assert!(
        error
            .message
            .contains("not exported without stored reservations"),
        "{error:?}"
    );
    ok(&kernel, "target unexport data");
    ok(&kernel, &line);
    assert_eq!(kernel.volume("data", "keep_reservations"), "0");
}

#[test]
fn a_volume_whose_reservations_cannot_be_kept() {
    let kernel = Kernel::loaded();
    let snapshot = kernel.snapshot();
    kernel.refuse(
        "data",
        Errno::ENOENT,
        "its reservations cannot be kept: their directory does not exist; is its file system mounted?",
    );
    let error = fails(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    let advice = error.advice.unwrap();
    assert!(advice.contains("--no-reservations"), "{advice}");
    assert!(advice.contains(".hcablk-reservations"), "{advice}");
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn refusals_of_a_volume_are_explained_and_undone() {
    for (errno, kind, advice) in [
        (Errno::ENOENT, Kind::NotFound, "lsblk -p"),
        (Errno::ENOTBLK, Kind::Failed, "regular files"),
        (Errno::EOPNOTSUPP, Kind::Failed, "--mode cached"),
        (Errno::EBUSY, Kind::Busy, "lsblk /dev/sdb"),
        (Errno::EROFS, Kind::Failed, "--read-only"),
        (Errno::EACCES, Kind::Failed, "--read-only"),
        (Errno::EIO, Kind::Failed, "dmesg"),
    ] {
        let kernel = Kernel::loaded();
        let snapshot = kernel.snapshot();
        kernel.refuse("data", errno, "words of the driver");
        let error = fails(&kernel, &format!("target export data /dev/sdb --allow {A}"));
        assert_eq!(error.kind, kind, "{errno:?}");
        assert!(error.message.contains("words of the driver"), "{error:?}");
        assert!(error.advice.as_ref().unwrap().contains(advice), "{error:?}");
        assert_eq!(kernel.snapshot(), snapshot, "{errno:?}");
    }
}

#[test]
fn a_port_that_cannot_listen_undoes_the_export() {
    for (errno, advice) in [
        (Errno::EADDRINUSE, "--port"),
        (Errno::EADDRNOTAVAIL, "ip addr"),
        (Errno::ENODEV, "rdma link add"),
    ] {
        let kernel = Kernel::loaded();
        let snapshot = kernel.snapshot();
        kernel.refuse("1", errno, "");
        let error = fails(&kernel, &format!("target export data /dev/sdb --allow {A}"));
        assert!(error.advice.as_ref().unwrap().contains(advice), "{error:?}");
        assert_eq!(kernel.snapshot(), snapshot);
    }
}

#[test]
fn export_takes_a_port_that_serves() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target listen --port 7750 --id 5");
    assert!(ok(&kernel, "target export a /dev/sdb").ends_with("at 0.0.0.0:7750\n"));
    // A port at every address also serves this one.
    ok(
        &kernel,
        "target export b /dev/sdc --port-address 10.0.0.1 --port 7750",
    );
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/ports/1"));
    // Another number is another port.
    ok(&kernel, "target export c /dev/sdd --port 7751");
    assert_eq!(kernel.port("1", "port"), "7751");
    ok(
        &kernel,
        "target export d /dev/sde --port-address :: --port 7750",
    );
    assert_eq!(kernel.port("2", "address"), "::");
}

#[test]
fn allow_and_forbid() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb");
    ok(&kernel, &format!("target allow data {A} {B} {A}"));
    assert!(allows(&kernel, "data", A) && allows(&kernel, "data", B));
    assert_eq!(
        notes(&kernel, &format!("target allow data {A}")),
        ["allowed already"]
    );
    ok(&kernel, &format!("target forbid data {}", A.to_uppercase()));
    assert!(!allows(&kernel, "data", A) && allows(&kernel, "data", B));
}

#[test]
fn each_failure_of_allow_is_undone() {
    let prepare = || {
        let kernel = Kernel::loaded();
        ok(&kernel, "target export data /dev/sdb");
        kernel
    };
    each_failure_is_undone(prepare, &format!("target allow data {A} {B}"));
}

#[test]
fn forbid_waits_for_requests_in_the_drive() {
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        &format!("target export data /dev/sdb --allow {A} --allow {B}"),
    );
    let others = format!("{B} 00000000deadbeee 1 2\n");
    let both = format!("{A} 00000000deadbeef 1 2\n{others}");
    kernel.set_volume("data", "clients", &others);
    ok(&kernel, &format!("target forbid data {A}"));
    assert_eq!(
        kernel.pauses.get(),
        0,
        "the others' sessions are not waited for"
    );
    kernel.set_volume("data", "clients", &both);
    kernel.clients_leave_after.set(Some(30));
    ok(&kernel, &format!("target forbid --if-exists data {A}"));
    assert_eq!(kernel.pauses.get(), 30, "also when it was forbidden before");
    let said = kernel.progress.borrow();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains(A), "{said:?}");
}

#[test]
fn forbidding_a_stranger_changes_nothing() {
    let kernel = Kernel::loaded();
    ok(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    let error = fails(&kernel, &format!("target forbid data {A} {B}"));
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.message.contains(B), "{error:?}");
    assert!(allows(&kernel, "data", A));
    ok(&kernel, &format!("target forbid --if-exists data {A} {B}"));
    assert!(!allows(&kernel, "data", A));
}

#[test]
fn a_volume_that_is_not_there() {
    for kernel in [Kernel::loaded(), Kernel::bare()] {
        for line in [
            format!("target allow data {A}"),
            format!("target forbid data {A}"),
            "target unexport data".to_owned(),
            "target stats data".to_owned(),
        ] {
            assert_eq!(fails(&kernel, &line).kind, Kind::NotFound, "{line}");
        }
        ok(&kernel, "target unexport --if-exists data");
        assert_eq!(kernel.changes(), 0);
    }
}

#[test]
fn unexport_removes_everything_but_the_port() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target listen");
    // The wwid is kept for the next export.
    let snapshot = |kernel: &Kernel| {
        let mut tree = kernel.snapshot();
        tree.retain(|path, _| !path.starts_with("/var/lib/hcablk/wwids"));
        tree
    };
    let before = snapshot(&kernel);
    ok(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    assert_eq!(
        ok(&kernel, "target unexport data"),
        "data is no longer exported\n"
    );
    assert_eq!(snapshot(&kernel), before);
}

#[test]
fn every_volume_that_is_not_in_use_is_unexported() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export a /dev/sdb");
    ok(&kernel, "target export b /dev/sdc");
    kernel.set_volume("a", "clients", "h 0123456789abcdef 1 4\n");
    assert_eq!(fails(&kernel, "target unexport --all").kind, Kind::Busy);
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/volumes/b"));
    let text = ok(&kernel, "target unexport --all --force");
    assert_eq!(text, "a is no longer exported\n");
    assert_eq!(steps_of(&kernel, "target unexport --all"), [""; 0]);
}

#[test]
fn unexport_is_refused_while_clients_are_connected() {
    let kernel = Kernel::loaded();
    ok(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    kernel.set_volume("data", "clients", &format!("{A} 00000000deadbeef 1 2\n"));
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, "target unexport data");
    assert_eq!(error.kind, Kind::Busy);
    assert!(error.message.contains(A), "{error:?}");
    assert_eq!(kernel.snapshot(), snapshot);
    ok(&kernel, "target unexport --force data");
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/volumes/data"));
}

#[test]
fn unexport_waits_for_clients_that_are_leaving() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb");
    kernel.set_volume("data", "clients", &format!("{A} 00000000deadbeef 1 2\n"));
    kernel.clients_leave_after.set(Some(3));
    ok(&kernel, "target unexport data");
    assert_eq!(kernel.pauses.get(), 3);
}

#[test]
fn listen_and_unlisten() {
    let kernel = Kernel::loaded();
    let snapshot = kernel.snapshot();
    assert_eq!(
        ok(&kernel, "target listen"),
        "port 1 listens at 0.0.0.0:7744\n"
    );
    assert_eq!(
        hcablk(&kernel, "target listen").unwrap().notes,
        ["port 1 listens already"]
    );
    let output = ok(
        &kernel,
        "target listen --address :: --port 7745 --buffer-mib 4 --memory-mib 64 --queue-credits 32",
    );
    assert_eq!(output, "port 2 listens at [::]:7745\n");
    assert_eq!(kernel.port("2", "buffer_mib"), "4");
    assert_eq!(kernel.port("2", "memory_mib"), "64");
    assert_eq!(kernel.port("2", "queue_credits"), "32");
    let error = fails(&kernel, "target listen --id 1 --port 7746");
    assert_eq!(error.kind, Kind::Exists);
    assert!(
        error.message.contains("port is 7744, not 7746"),
        "{error:?}"
    );
    assert_eq!(
        fails(&kernel, "target listen --buffer-mib 8").kind,
        Kind::Exists
    );
    ok(&kernel, "target unlisten 1 2");
    assert_eq!(kernel.snapshot(), snapshot);
    assert_eq!(fails(&kernel, "target unlisten 1").kind, Kind::NotFound);
    ok(&kernel, "target unlisten 1 --if-exists");
    // A port that an administrator made by hand.
    let path = "/sys/kernel/config/hcablk_target/ports/storage";
    hcablk::system::System::mkdir(&kernel, path.as_ref()).unwrap();
    ok(&kernel, "target unlisten storage");
    assert!(!kernel.has(path));
    ok(&kernel, "target unlisten --all");
}

#[test]
fn each_failure_of_listen_is_undone() {
    each_failure_is_undone(
        Kernel::loaded,
        "target listen --buffer-mib 4 --queue-credits 32",
    );
}

#[test]
fn list_shows_volumes_and_ports() {
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        &format!("target export data /dev/sdb --allow {A} --allow {B}"),
    );
    ok(&kernel, "target export iso /dev/loop0 --read-only");
    ok(
        &kernel,
        "target listen --address fd00::1 --port 7745 --id 10",
    );
    ok(&kernel, "target listen --port 7746 --id 2");
    kernel.set_port("1", "sessions", &format!("data {A} 00000000deadbeef 1 2\n"));
    kernel.set_volume("data", "clients", &format!("{A} 00000000deadbeef 1 2\n"));
    kernel.set_volume("data", "evicted", &format!("{B} draining\n"));
    let outcome = hcablk(&kernel, "target list").unwrap();
    golden("target-list.txt", &outcome.report.to_string());
    golden("target-list.json", &outcome.to_json());
}

#[test]
fn hosts_are_shown_with_their_names() {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.folder("/etc/hcablk/hcablk.d");
    let file = "/etc/hcablk/hcablk.toml";
    let line = format!("target name-host {A} client1");
    assert_eq!(ok(&kernel, &line), format!("{A} has the name client1\n"));
    let outcome = hcablk(&kernel, &line).unwrap();
    assert_eq!(outcome.report.is_changed(), Some(false));
    assert!(kernel
        .text(file)
        .ends_with(&format!("\n\n[host_names]\nclient1 = \"{A}\"")));
    assert_eq!(
        ok(&kernel, &format!("target export data /dev/sdb --allow {A}")),
        "/dev/sdb is exported as data, at 0.0.0.0:7744\n"
    );
    kernel.set_volume(
        "data",
        "clients",
        &format!("{A} 00000000deadbeef 1 2\n{B} 00000000deadbeee 1 2\n"),
    );
    let outcome = hcablk(&kernel, "target list").unwrap();
    golden("target-list-names.txt", &outcome.report.to_string());
    golden("target-list-names.json", &outcome.to_json());
    for (line, said) in [
        ("allow", "data allows A (client1), B\n"),
        ("evict", "data has evicted A (client1), B\n"),
        ("admit", "data admits A (client1), B again\n"),
    ] {
        let said = said.replace('A', A).replace('B', B);
        assert_eq!(ok(&kernel, &format!("target {line} data {A} {B}")), said);
    }
    let error = fails(&kernel, "target unexport data");
    let said = format!("volume data is in use by {A} (client1), {B}");
    assert_eq!(error.message, said);
    let error = fails(&kernel, &format!("target name-host {B} client1"));
    assert_eq!(error.kind, Kind::Exists);
    assert_eq!(
        error.message,
        format!("client1 is the name of the host {A}")
    );
    ok(&kernel, &format!("target name-host {A} other"));
    ok(&kernel, &format!("target name-host {B} client1"));
    let saved = "[host_names]\nclient1 = \"B\"\nother = \"A\"\n";
    ok(&kernel, "config save --force");
    let saved = saved.replace('A', A).replace('B', B);
    assert!(
        kernel.text(file).contains(saved.trim_end()),
        "{}",
        kernel.text(file)
    );
    ok(&kernel, &format!("target name-host {A} --remove"));
    let left = ok(&kernel, "target list");
    assert!(
        !left.contains("other") && left.contains("client1"),
        "{left}"
    );
    // Two names of one host: the lists have no names then.
    kernel.file(file, &format!("[host_names]\na = \"{A}\"\nb = \"{A}\"\n"));
    let error = fails(&kernel, "config check");
    assert_eq!(
        error.message,
        format!("{file}:1: a and b are the same host, {A}")
    );
    assert!(!ok(&kernel, "target list").contains(" ("));
}

/// A host that lost its connection does not keep a volume from being ended, but its disk may wait for the volume.
#[test]
fn unexport_names_the_hosts_that_may_wait_for_the_volume() {
    let exporting = || {
        let kernel = Kernel::loaded();
        let line = format!("target export data /dev/sdb --allow {A} --allow {B}");
        ok(&kernel, &line);
        kernel.folder("/etc/hcablk");
        let names = format!("[host_names]\nclient1 = \"{A}\"\n");
        kernel.file("/etc/hcablk/hcablk.toml", &names);
        kernel
    };
    let remark = |hosts: &str| {
        format!(
            "disks of these hosts have lost their connections, and may wait for data until it is exported again or \
             their ctrl_loss_tmo is over: {hosts}"
        )
    };
    let both = format!("{A} 00000000deadbeef\n{B} 00000000deadbeee\n");
    let connected = format!("{B} 00000000deadbee0 1 2\n");
    for (clients, evicted, line, wanted) in [
        (
            "",
            "",
            "target unexport data",
            format!("{A} (client1), {B}"),
        ),
        ("", B, "target unexport --all", format!("{A} (client1)")),
        (
            connected.as_str(),
            "",
            "target unexport --force data",
            format!("{A} (client1)"),
        ),
    ] {
        let kernel = exporting();
        kernel.set_volume("data", "lost", &both);
        kernel.set_volume("data", "clients", clients);
        kernel.set_volume("data", "evicted", evicted);
        let said = notes(&kernel, line);
        assert_eq!(said, [remark(&wanted)], "{line}");
    }
    let kernel = exporting();
    ok(&kernel, &format!("target forbid data {B}"));
    kernel.set_volume("data", "lost", &format!("{B} 00000000deadbeee\n"));
    assert_eq!(notes(&kernel, "target unexport data"), [""; 0]);
}

#[test]
fn a_list_that_the_kernel_cuts_is_said_to_be() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb");
    ok(&kernel, "target listen");
    kernel.set_port(
        "1",
        "sessions",
        &format!("data {A} 00000000deadbeef 1 2\n...\n"),
    );
    kernel.set_volume(
        "data",
        "clients",
        &format!("{A} 00000000deadbeef 1 2\n...\n"),
    );
    let outcome = hcablk(&kernel, "target list").unwrap();
    assert_eq!(
        without_keys(outcome.notes.clone()),
        [
            "volume data has more sessions than the kernel shows: these are the first 1",
            "port 1 has more sessions than the kernel shows: these are the first 1"
        ]
    );
    assert!(outcome.report.to_string().contains(" 1+"));
    assert!(outcome.to_json().contains("\"sessions_cut\": true"));
}

#[test]
fn list_without_the_module() {
    let outcome = hcablk(&Kernel::bare(), "target list").unwrap();
    assert_eq!(
        outcome.notes,
        ["the kernel module hcablk_target is not loaded: no exports"],
    );
}

#[test]
fn times_are_measured_when_asked_for() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sda");
    let outcome = hcablk(&kernel, "target times").unwrap();
    assert_eq!(
        outcome.notes,
        ["nothing was measured: `hcablk target times --measure on` starts measuring"]
    );
    assert!(ok(&kernel, "target times data --measure on").contains("fetching"));
    assert!(hcablk(&kernel, "target times").unwrap().notes.is_empty());
    assert_eq!(fails(&kernel, "target times none").kind, Kind::NotFound);
}

#[test]
fn stats_of_all_or_one() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb");
    ok(&kernel, "target export other /dev/sdc");
    let outcome = hcablk(&kernel, "target stats").unwrap();
    golden("target-stats.txt", &outcome.report.to_string());
    golden("target-stats.json", &outcome.to_json());
    assert!(ok(&kernel, "target stats other").starts_with("COUNTER       other\n"));
}

/// Every single value of a volume can be a column, and nothing else can.
#[test]
fn a_list_has_the_columns_that_are_asked_for() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb");
    assert_eq!(
        ok(&kernel, "target list --columns name,path,read_only,hosts"),
        "NAME  PATH      READ_ONLY  HOSTS\ndata  /dev/sdb  no         -\n"
    );
    let json: serde_json::Value = serde_json::from_str(
        &hcablk(&kernel, "target list --columns name")
            .unwrap()
            .to_json(),
    )
    .unwrap();
    let columns = hcablk::output::columns::VOLUMES;
    let members = json["volumes"][0].as_object().unwrap();
    for column in columns {
        assert!(members.contains_key(column), "{column}");
    }
    for (name, value) in members {
        let is_column = columns.contains(&name.as_str());
        let is_other =
            ["clients", "clients_cut", "evicted", "evicted_cut"].contains(&name.as_str());
        assert!(is_column || is_other, "{name}: {value}");
    }
}

#[test]
fn results_as_json() {
    let kernel = Kernel::loaded();
    let exported = hcablk(&kernel, &format!("target export data /dev/sdb --allow {A}")).unwrap();
    golden("export.json", &exported.to_json());
}
