// SPDX-License-Identifier: GPL-2.0

//! The commands of the target's units: `target apply --record`, `--retry` and `target unapply`, and ending several
//! exports.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::cell::Cell;

use hcablk::error::Kind;
use kernel::{fails, hcablk, notes, ok, steps_of, Kernel};
use nix::errno::Errno;

const MAIN: &str = "/etc/hcablk/hcablk.toml";
const A: &str = "7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44";
const UNIT: &str = "hcablk-target.service";
const NOTHING: [&str; 0] = [];

fn text() -> String {
    ["data", "gone"]
        .map(|name| format!("[export.{name}]\ndevice = \"/dev/{name}\"\nallow = [\"{A}\"]\n"))
        .concat()
        + "[port.1]\naddress = \"10.0.0.1\"\n"
}

/// A machine with two exports in its configuration; one of them has no drive yet; the service was started.
fn started() -> Kernel {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.file(MAIN, &text());
    kernel.refuse("gone", Errno::ENOENT, "no such drive");
    let outcome = hcablk(&kernel, "target apply --keep-going --record").unwrap();
    assert_eq!(outcome.exit, Some(Kind::NotFound));
    assert!(is_exported(&kernel, "data") && !is_exported(&kernel, "gone"));
    kernel
}

fn is_exported(kernel: &Kernel, volume: &str) -> bool {
    kernel.has(&format!(
        "/sys/kernel/config/hcablk_target/volumes/{volume}/enable"
    )) && kernel.volume(volume, "enable") == "1"
}

fn listens(kernel: &Kernel) -> bool {
    kernel.has("/sys/kernel/config/hcablk_target/ports/1/enable")
        && kernel.port("1", "enable") == "1"
}

#[test]
fn only_failed_objects_are_retried() {
    let kernel = started();
    // The administrator changes the export and the port that could be made.
    ok(&kernel, &format!("target forbid data {A}"));
    ok(&kernel, "target unlisten 1");
    let outcome = hcablk(&kernel, "target apply --retry").unwrap();
    assert_eq!(outcome.exit, Some(Kind::NotFound));
    assert!(outcome.report.to_string().contains("export gone"));
    kernel.refuse.borrow_mut().clear();
    ok(&kernel, "target apply --retry");
    assert!(is_exported(&kernel, "gone"));
    assert_eq!(kernel.volume("data", "enable"), "1");
    assert!(!kernel.has(&format!(
        "/sys/kernel/config/hcablk_target/volumes/data/hosts/{A}"
    )));
    assert!(!listens(&kernel));
    assert_eq!(steps_of(&kernel, "target apply --retry"), NOTHING);
    ok(&kernel, "target unexport gone");
    assert_eq!(steps_of(&kernel, "target apply --retry"), NOTHING);
}

#[test]
fn objects_removed_from_the_configuration_are_not_retried() {
    let kernel = started();
    kernel.refuse.borrow_mut().clear();
    kernel.file(MAIN, "[port.1]\naddress = \"10.0.0.1\"\n");
    let before = hcablk(&kernel, "target apply --retry").unwrap();
    assert_eq!(before.exit, None);
    assert!(!is_exported(&kernel, "gone"));
}

#[test]
fn objects_created_by_hand_are_not_changed() {
    let kernel = started();
    kernel.refuse.borrow_mut().clear();
    ok(&kernel, "target export gone /dev/gone --no-port");
    ok(&kernel, "target apply --retry");
    assert!(!kernel.has(&format!(
        "/sys/kernel/config/hcablk_target/volumes/gone/hosts/{A}"
    )));
    ok(&kernel, "target unapply");
    assert!(is_exported(&kernel, "gone") && !is_exported(&kernel, "data"));
}

#[test]
fn a_stop_ends_only_objects_of_the_service() {
    let kernel = started();
    ok(&kernel, "target export mine /dev/sdc --no-port");
    ok(&kernel, "target listen --address 10.0.1.1 --id 7");
    // The export was ended by hand, and exported again by somebody else.
    let line = ok(&kernel, &format!("target unapply --unit {UNIT}"));
    assert_eq!(
        line,
        "port 1 no longer listens\ndata is no longer exported\n"
    );
    assert!(is_exported(&kernel, "mine") && !is_exported(&kernel, "data") && !listens(&kernel));
    assert_eq!(kernel.port("7", "enable"), "1");
    assert_eq!(
        notes(&kernel, "target unapply"),
        ["no export or port ended"]
    );
    // The service starts again.
    let outcome = hcablk(&kernel, "target apply --keep-going --record").unwrap();
    assert_eq!(outcome.exit, Some(Kind::NotFound));
    ok(&kernel, "target unexport data");
    ok(&kernel, "target export data /dev/data --no-port");
    ok(&kernel, "target unapply");
    assert!(is_exported(&kernel, "data"));
}

#[test]
fn a_restart_with_a_mistake_in_the_files_ends_nothing() {
    let kernel = started();
    let right = kernel.text(MAIN);
    kernel.file(MAIN, "[export.data]\ndevcie = \"/dev/data\"\n");
    *kernel.jobs.borrow_mut() = format!("123 {UNIT} restart running\n");
    let said = notes(&kernel, &format!("target unapply --unit {UNIT}"));
    assert!(
        said.iter()
            .any(|note| note.contains("unknown key `devcie`")),
        "{said:?}"
    );
    assert!(is_exported(&kernel, "data") && listens(&kernel));
    // The start then reports the mistake, and the unit does not fail, since its exports exist.
    let error = fails(&kernel, "target apply --keep-going --record");
    assert_eq!(error.kind, Kind::Exists);
    assert!(
        error.message.contains("existing exports continue"),
        "{error}"
    );
    // Systemd shows the failure until the configuration is applied, even after the mistake was mended.
    assert_eq!(fails(&kernel, "target apply --retry").kind, Kind::Usage);
    kernel.file(MAIN, &right);
    let error = fails(&kernel, "target apply --retry");
    assert_eq!(error.kind, Kind::Usage);
    assert!(error
        .advice
        .unwrap()
        .contains("systemctl restart hcablk-target"));
    ok(&kernel, &format!("target unapply --unit {UNIT}"));
    assert!(!is_exported(&kernel, "data"));
    kernel.refuse.borrow_mut().clear();
    ok(&kernel, "target apply --keep-going --record");
    assert_eq!(hcablk(&kernel, "target apply --retry").unwrap().exit, None);
}

#[test]
fn a_stop_is_no_restart() {
    let kernel = started();
    kernel.file(MAIN, "nonsense");
    *kernel.jobs.borrow_mut() =
        format!("123 {UNIT} stop running\n124 other.service restart waiting\n");
    ok(&kernel, &format!("target unapply --unit {UNIT}"));
    assert!(!is_exported(&kernel, "data"));
}

#[test]
fn a_first_start_with_a_mistake_fails() {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.file(MAIN, "[export.data]\ndevcie = \"/dev/data\"\n");
    let error = fails(&kernel, "target apply --keep-going --record");
    assert_eq!(error.kind, Kind::Usage);
    assert_eq!(
        hcablk(&kernel, "target apply --keep-going")
            .unwrap_err()
            .kind,
        Kind::Usage
    );
}

#[test]
fn two_that_apply_do_so_one_after_the_other() {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.file(MAIN, &text());
    kernel.applies.set(true);
    let unlock = |kernel: &Kernel| {
        assert!(!is_exported(kernel, "data"), "it did not wait");
        kernel.applies.set(false);
    };
    kernel.meanwhile.replace(Some((3, Box::new(unlock))));
    ok(&kernel, "apply");
    assert!(is_exported(&kernel, "data"));
    assert!(kernel.pauses.get() >= 3);
    assert!(kernel.progress.borrow()[0].contains("another command applies"));
    // A command that only reads does not wait.
    kernel.applies.set(true);
    ok(&kernel, "apply --dry-run");
    kernel.applies.set(false);
    let held = Cell::new(kernel.pauses.get());
    ok(&kernel, "apply");
    assert_eq!(kernel.pauses.get(), held.get(), "the lock was left behind");
}

#[test]
fn a_hung_drive_keeps_neither_the_other_exports_nor_the_command() {
    let kernel = Kernel::loaded();
    for volume in ["a", "b", "c"] {
        ok(
            &kernel,
            &format!("target export {volume} /dev/{volume} --no-port"),
        );
    }
    kernel.hung.borrow_mut().insert("a".to_owned());
    let error = fails(&kernel, "target unexport --all --force --timeout 5");
    assert_eq!(error.kind, Kind::Busy);
    assert_eq!(error.errno.as_deref(), Some("EAGAIN"));
    assert!(error.message.contains("volume a is being ended"), "{error}");
    assert_eq!(*error.done, ["ended b", "ended c"]);
    assert!(
        error.to_text().contains("  done: ended b\n"),
        "{}",
        error.to_text()
    );
    assert!(!is_exported(&kernel, "b") && !is_exported(&kernel, "c"));
    // Without a limit the command ends when the user interrupts it.
    let error = fails(&kernel, "target unexport a");
    assert_eq!(error.kind, Kind::Interrupted);
    kernel.signal_at.set(None);
    kernel.hung.borrow_mut().clear();
    ok(&kernel, "target unexport --all");
    assert!(!is_exported(&kernel, "a"));
}

/// An export that has not ended stays recorded: the next stop of the service ends it.
#[test]
fn a_later_stop_ends_the_remaining_objects() {
    let kernel = started();
    kernel.hung.borrow_mut().insert("data".to_owned());
    let error = fails(&kernel, "target unapply --timeout 5");
    assert_eq!(error.kind, Kind::Busy);
    assert_eq!(*error.done, ["ended port 1"]);
    assert!(is_exported(&kernel, "data") && !listens(&kernel));
    kernel.hung.borrow_mut().clear();
    ok(&kernel, "target unapply");
    assert!(!is_exported(&kernel, "data"));
    assert_eq!(
        notes(&kernel, "target unapply"),
        ["no export or port ended"]
    );
}

/// A command that was killed while it stored a record leaves a file that is not the record of an export.
#[test]
fn a_temporary_file_of_a_killed_command_is_no_record() {
    let kernel = started();
    kernel.file("/run/hcablk/target/made/export/.hcablk-Xy1", "");
    ok(&kernel, "target unapply");
    assert!(!is_exported(&kernel, "data"));
}

/// A port that cannot be ended does not prevent the orderly end of the exports.
#[test]
fn a_port_that_does_not_end_keeps_no_export() {
    let kernel = started();
    let from = kernel.changes();
    ok(&kernel, "target unapply");
    let is_port = |step: &String| step.contains("/ports/1");
    let step = kernel.log.borrow()[from..].iter().position(is_port);
    let kernel = started();
    kernel.fail_at.set(Some(kernel.changes() + step.unwrap()));
    fails(&kernel, "target unapply");
    assert!(!is_exported(&kernel, "data"));
}

/// A command that applies the configuration may wait for a drive that hangs: the machine shuts down nevertheless.
#[test]
fn a_stop_waits_for_another_command_for_ten_seconds() {
    let kernel = started();
    kernel.applies.set(true);
    let before = kernel.time.get();
    ok(&kernel, "target unapply");
    assert!(!is_exported(&kernel, "data"));
    let waited = kernel.time.get() - before;
    assert!((10..12).contains(&waited.as_secs()), "{waited:?}");
}

/// The package was upgraded while the service ran: the exports of the earlier version have no records, and end in order
/// nevertheless.
#[test]
fn a_stop_after_an_upgrade_ends_the_configured_objects() {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.file(MAIN, &text());
    ok(&kernel, "target apply");
    ok(&kernel, "target export mine /dev/sdc --no-port");
    // By hand, nothing was recorded: nothing ends.
    assert_eq!(
        notes(&kernel, "target unapply"),
        ["no export or port ended"]
    );
    ok(&kernel, &format!("target unapply --unit {UNIT}"));
    assert!(is_exported(&kernel, "mine") && !is_exported(&kernel, "data") && !listens(&kernel));
}
