// SPDX-License-Identifier: GPL-2.0

//! Volumes whose records are in a directory that moves with them, against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use kernel::{each_failure_is_undone, fails, hcablk, ok, steps, Kernel};

const A: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const B: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b";
const WWID: &str = "3f1c0f52-6c1e-4e0b-9a52-6f0f2f9d7c10";
const MARKER: &str = "/srv/state/.hcablk-state";
const EXPORT: &str = "target export data /dev/sdb --no-port --insecure --state /srv/state \
                      --allow 5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";

/// A machine whose module takes keys of the target.
fn loaded() -> Kernel {
    let kernel = Kernel::loaded();
    for attribute in ["key", "key2"] {
        kernel.file(format!("/sys/kernel/config/hcablk_target/{attribute}"), "");
    }
    kernel
}

/// A machine with the state directory mounted; `marker` is the text of its marker.
fn machine(marker: &str) -> Kernel {
    let kernel = loaded();
    kernel.folder("/srv");
    kernel.folder("/srv/state");
    kernel.file(MARKER, marker);
    kernel
}

/// Mounts the state directory of `from` on another machine.
fn moved(from: &Kernel) -> Kernel {
    let to = loaded();
    to.file("/etc/machine-id", "fedcba9876543210fedcba9876543210\n");
    let state = from.snapshot();
    let state = state
        .into_iter()
        .filter(|(path, _)| path.starts_with("/srv"));
    to.tree.borrow_mut().extend(state);
    to
}

#[test]
fn a_new_state_directory_gets_the_wwid_of_its_volume() {
    let kernel = machine("");
    ok(&kernel, EXPORT);
    assert_eq!(kernel.volume("data", "state"), "/srv/state");
    let first = format!("{}\n1", kernel.volume("data", "wwid"));
    assert_eq!(kernel.text(MARKER), first);
    assert!(kernel.has("/srv/state/reservations/.hcablk-reservations"));

    let kernel = machine("");
    ok(&kernel, &format!("{EXPORT} --wwid {WWID}"));
    assert_eq!(kernel.text(MARKER), format!("{WWID}\n1"));
    // Again, with the same settings.
    ok(&kernel, EXPORT);
    assert_eq!(
        kernel.text(MARKER),
        format!("{WWID}\n1"),
        "no further export"
    );
}

#[test]
fn the_wwid_and_the_evicted_hosts_move_with_the_volume() {
    let first = machine("");
    ok(&first, EXPORT);
    ok(&first, &format!("target evict data {A} {B}"));
    assert!(first.has(&format!("/srv/state/evicted/{A}")));
    assert!(!first.is_recorded("data", A), "not on this machine");
    ok(&first, &format!("target admit data {B}"));

    let second = moved(&first);
    let from = second.changes();
    let outcome = hcablk(&second, EXPORT).unwrap();
    assert!(
        outcome
            .notes
            .iter()
            .any(|note| note.contains("evicted") && note.contains(A)),
        "{outcome:?}"
    );
    assert_eq!(second.volume("data", "wwid"), first.volume("data", "wwid"));
    assert_eq!(second.volume("data", "evicted"), A);
    let steps = steps(&second, from);
    let at = |what: &str| steps.iter().position(|step| step == what).unwrap();
    assert!(at(&format!("write evicted {A}")) < at("write enable 1"));
}

#[test]
fn a_volume_is_not_exported_without_its_state() {
    let kernel = Kernel::loaded();
    kernel.folder("/srv");
    // Not there; an empty mount point; a marker that somebody else wrote.
    for prepare in [
        |_: &Kernel| (),
        |kernel: &Kernel| kernel.folder("/srv/state"),
        |kernel: &Kernel| kernel.file(MARKER, "hello\n"),
    ] {
        prepare(&kernel);
        let snapshot = kernel.snapshot();
        let error = fails(&kernel, EXPORT);
        assert!(error.message.contains("/srv/state"), "{error:?}");
        assert_eq!(kernel.snapshot(), snapshot);
    }
}

#[test]
fn a_state_directory_belongs_to_one_volume() {
    let kernel = machine(&format!("{WWID}\n3\n"));
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, &format!("{EXPORT} --wwid {A}"));
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains(WWID), "{error:?}");
    assert_eq!(kernel.snapshot(), snapshot);
    ok(&kernel, EXPORT);
    assert_eq!(kernel.volume("data", "wwid"), WWID);
}

#[test]
fn hosts_that_this_machine_has_evicted_are_not_admitted_by_a_state_directory() {
    let kernel = machine("");
    let plain = EXPORT.replace("--state /srv/state", "");
    ok(&kernel, &plain);
    ok(&kernel, &format!("target evict data {A}"));
    ok(&kernel, "target unexport data");
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, EXPORT);
    assert!(error.message.contains(A), "{error:?}");
    assert!(error.advice.unwrap().contains("mv "));
    assert_eq!(kernel.snapshot(), snapshot);

    // The record is in both.
    kernel.folder("/srv/state/evicted");
    kernel.file(format!("/srv/state/evicted/{A}"), "");
    ok(&kernel, EXPORT);
    assert_eq!(kernel.volume("data", "evicted"), A);
}

#[test]
fn no_host_is_evicted_in_a_state_directory_that_is_gone() {
    let kernel = machine("");
    ok(&kernel, EXPORT);
    kernel.forget_file(MARKER);
    for line in [
        format!("target evict data {A}"),
        format!("target admit data {A}"),
    ] {
        let error = fails(&kernel, &line);
        assert!(
            error.message.contains("is its file system mounted?"),
            "{error:?}"
        );
    }
    assert!(!kernel.has("/srv/state/evicted"));
}

#[test]
fn a_volume_whose_state_is_elsewhere_cannot_be_fenced_here() {
    let kernel = machine("");
    ok(&kernel, EXPORT);
    ok(&kernel, &format!("target evict data {A}"));
    let notes = hcablk(&kernel, "target unexport data").unwrap().notes;
    assert!(
        notes.iter().any(|note| note.contains("stay evicted")),
        "{notes:?}"
    );
    let error = fails(&kernel, &format!("target evict data {A}"));
    assert_eq!(error.kind, Kind::NotFound);
}

#[test]
fn an_older_module_has_no_state_directories() {
    let kernel = machine("");
    kernel.old.set(true);
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, EXPORT);
    assert_eq!(error.kind, Kind::Setup);
    assert!(
        error.message.contains("older than this command"),
        "{error:?}"
    );
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn a_configured_volume_has_its_state_directory() {
    let kernel = machine(&format!("{WWID}\n3\n"));
    let text = format!(
        "[export.data]\ndevice = \"/dev/sdb\"\nstate = \"/srv/state\"\ninsecure = true\nallow = [\"{A}\"]\n"
    );
    kernel.file("/etc/hcablk/hcablk.toml", &text);
    ok(&kernel, "apply");
    assert_eq!(kernel.volume("data", "state"), "/srv/state");
    assert_eq!(kernel.volume("data", "wwid"), WWID);
    assert_eq!(kernel.volume("data", "enable"), "1");

    let kernel = Kernel::loaded();
    kernel.file("/etc/hcablk/hcablk.toml", &text);
    let error = fails(&kernel, "apply");
    assert!(
        format!("{error:?}").contains("is its file system mounted?"),
        "{error:?}"
    );
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/volumes/data"));
}

/// A machine that has exported the volume before, and on which it is not exported now.
fn former() -> Kernel {
    let kernel = machine("");
    ok(&kernel, EXPORT);
    ok(&kernel, "target unexport data");
    kernel
}

#[test]
fn each_failure_of_an_export_with_a_state_directory_is_undone() {
    each_failure_is_undone(former, EXPORT);
}

#[test]
fn a_volume_that_moves_is_not_exported_without_its_state_directory() {
    let kernel = former();
    let snapshot = kernel.snapshot();
    let plain = EXPORT.replace("--state /srv/state", "");
    let error = fails(&kernel, &plain);
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains("/srv/state"), "{error:?}");
    assert!(error.advice.unwrap().contains("--state /srv/state"));
    assert_eq!(kernel.snapshot(), snapshot);

    let text =
        format!("[export.data]\ndevice = \"/dev/sdb\"\ninsecure = true\nallow = [\"{A}\"]\n");
    kernel.file("/etc/hcablk/hcablk.toml", &text);
    let error = format!("{:?}", fails(&kernel, "apply"));
    assert!(error.contains("/srv/state"), "{error}");
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/volumes/data"));

    // As the message says.
    kernel.forget_file("/var/lib/hcablk/moving/data");
    ok(&kernel, &plain);
}

#[test]
fn an_old_copy_of_a_state_directory_is_refused() {
    let first = former();
    let second = moved(&first);
    ok(&second, EXPORT);
    ok(&second, "target unexport data");

    // Back on the first machine, with the newest state, and then with that of the first export.
    let old = first.text(MARKER);
    first.file(MARKER, &second.text(MARKER));
    ok(&first, EXPORT);
    ok(&first, "target unexport data");
    assert!(first.text(MARKER).ends_with("\n3"));
    let wwid = first.text(MARKER);
    let wwid = wwid.lines().next().unwrap();
    let other = format!("{B}\n9\n");
    for (marker, what) in [
        (old.as_str(), "is an old copy"),
        ("", "is new"),
        (other.as_str(), "belongs to"),
    ] {
        first.file(MARKER, marker);
        let snapshot = first.snapshot();
        let error = fails(&first, EXPORT);
        assert_eq!(error.kind, Kind::Exists);
        assert!(error.message.contains(what), "{error:?}");
        assert_eq!(first.snapshot(), snapshot);
    }
    first.file(MARKER, &format!("{wwid}\n4\n"));
    ok(&first, EXPORT);
}

const SECURE: &str = "target export data /dev/sdb --no-port --state /srv/state \
                      --allow 5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const TARGET_KEY: &str = "/etc/hcablk/keys/target";
const MOVED_TARGET_KEY: &str = "/srv/state/keys/target";

fn host_key() -> String {
    format!("/etc/hcablk/keys/hosts/{A}")
}

fn moved_host_key() -> String {
    format!("/srv/state/keys/hosts/{A}")
}

/// A machine that exports the volume, with the keys of the target and of the allowed host.
fn with_keys() -> Kernel {
    let kernel = machine("");
    ok(&kernel, "key generate target");
    let other = Kernel::loaded();
    ok(&other, "key generate host");
    kernel.folder("/etc/hcablk/keys/hosts");
    kernel.file(host_key(), &other.text("/etc/hcablk/keys/host"));
    ok(&kernel, SECURE);
    kernel
}

#[test]
fn keys_move_with_the_volume_and_only_root_can_read_them() {
    let first = with_keys();
    assert_eq!(first.text(MOVED_TARGET_KEY), first.text(TARGET_KEY));
    assert_eq!(first.text(moved_host_key()), first.text(host_key()));
    for file in [MOVED_TARGET_KEY, &moved_host_key()] {
        assert!(first.secrets.borrow().contains(std::path::Path::new(file)));
    }

    let second = moved(&first);
    ok(&second, SECURE);
    assert_eq!(second.text(TARGET_KEY), first.text(TARGET_KEY));
    assert_eq!(second.text(host_key()), first.text(host_key()));
    for file in [TARGET_KEY, &host_key()] {
        assert!(second.secrets.borrow().contains(std::path::Path::new(file)));
    }
    let host = format!("/sys/kernel/config/hcablk_target/volumes/data/hosts/{A}/key");
    assert_eq!(second.text(&host), first.text(&host));
}

#[test]
fn a_target_with_another_key_does_not_export_a_volume_that_moves() {
    let first = with_keys();
    let second = moved(&first);
    ok(&second, "key generate target");
    let snapshot = second.snapshot();
    let error = fails(&second, SECURE);
    assert!(error.message.contains("different keys"), "{error:?}");
    assert_eq!(second.snapshot(), snapshot);
    second.file(TARGET_KEY, &first.text(TARGET_KEY));
    ok(&second, SECURE);
}

#[test]
fn keys_that_change_on_one_machine_change_on_the_other() {
    let first = with_keys();
    let second = moved(&first);
    ok(&second, SECURE);
    ok(&second, "target unexport data");
    let old = second.text(TARGET_KEY);

    ok(&first, "key generate target --rotate");
    assert_eq!(first.text(MOVED_TARGET_KEY), old);
    ok(&first, "key apply");
    assert_eq!(first.text(MOVED_TARGET_KEY), first.text(TARGET_KEY));
    assert_eq!(first.text(TARGET_KEY).lines().count(), 2);
    second.file(MOVED_TARGET_KEY, &first.text(MOVED_TARGET_KEY));
    ok(&second, SECURE);
    assert_eq!(second.text(TARGET_KEY), first.text(TARGET_KEY));

    ok(&second, "key retire target");
    ok(&second, "key apply");
    ok(&first, "target unexport data");
    for file in [MARKER, MOVED_TARGET_KEY] {
        first.file(file, &second.text(file));
    }
    ok(&first, SECURE);
    assert_eq!(first.text(TARGET_KEY).lines().count(), 1);
    assert_eq!(first.text(TARGET_KEY), second.text(TARGET_KEY));
}
