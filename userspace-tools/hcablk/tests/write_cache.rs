// SPDX-License-Identifier: GPL-2.0

//! A volume's write cache: `target export --write-cache`, the configuration, and advice, against an imitation of the
//! kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use hcablk::output::{Finding, Level, Report};
use kernel::{each_failure_is_undone, fails, hcablk, notes, ok, steps_of, Kernel};

const A: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const B: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b";
const MAIN: &str = "/etc/hcablk/hcablk.toml";

#[test]
fn export_write_through() {
    let kernel = Kernel::loaded();
    let line = "target export data /dev/sdb --write-cache through";
    let outcome = hcablk(&kernel, line).unwrap();
    assert_eq!(
        outcome.report.to_string(),
        "/dev/sdb is exported as data, write-through, at 0.0.0.0:7744\n"
    );
    assert!(outcome.to_json().contains("\"write_cache\": \"through\""));
    assert_eq!(kernel.volume("data", "write_cache"), "through");
    assert_eq!(steps_of(&kernel, line), [""; 0]);
    let list = hcablk(&kernel, "target list").unwrap();
    assert!(list.to_json().contains("\"write_cache\": \"through\""));
    assert!(list.report.to_string().contains(" through "));
}

#[test]
fn another_write_cache_is_another_setting() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb --write-cache through");
    for line in [
        "target export data /dev/sdb",
        "target export data /dev/sdb --write-cache back",
    ] {
        let error = fails(&kernel, line);
        assert_eq!(error.kind, Kind::Exists);
        assert!(
            error
                .message
                .contains("its write cache is through, not back"),
            "{error:?}"
        );
    }
    ok(&kernel, "target export log /dev/sdc");
    let error = fails(&kernel, "target export log /dev/sdc --write-cache through");
    assert!(
        error
            .message
            .contains("its write cache is back, not through"),
        "{error:?}"
    );
}

#[test]
fn a_write_through_export_that_fails_is_undone() {
    each_failure_is_undone(
        Kernel::loaded,
        &format!("target export data /dev/sdb --write-cache through --allow {A}"),
    );
}

#[test]
fn a_module_without_the_setting() {
    let kernel = Kernel::loaded();
    kernel.old.set(true);
    kernel.drive("sda", "write back");
    let line = format!("target export data /dev/sda --allow {A} --allow {B}");
    let older = "the kernel module cannot report whether reservations are kept: it is older than this command";
    assert_eq!(notes(&kernel, &line), [older]);
    assert_eq!(notes(&kernel, &line), ["data is exported already", older]);
    let list = hcablk(&kernel, "target list").unwrap();
    assert!(list.to_json().contains("\"write_cache\": null"));
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, "target export log /dev/sdc --write-cache through");
    assert_eq!(error.kind, Kind::Setup);
    assert!(error.message.contains("write_cache = through"), "{error:?}");
    assert_eq!(kernel.snapshot(), snapshot);
    ok(&kernel, "config save");
    assert_eq!(hcablk(&kernel, "config diff").unwrap().exit, None);
}

#[test]
fn the_configuration_has_the_write_cache() {
    let text = "[export.data]\ndevice = \"/dev/sdb\"\nallow = []\nwrite_cache = \"through\"\n";
    let kernel = Kernel::loaded();
    kernel.file(MAIN, text);
    let plan = hcablk(&kernel, "apply --dry-run").unwrap();
    assert_eq!(
        plan.report.to_string().lines().next(),
        Some("would make export data (path /dev/sdb, write_cache through)")
    );
    ok(&kernel, "apply");
    assert_eq!(kernel.volume("data", "write_cache"), "through");
    assert_eq!(hcablk(&kernel, "config diff").unwrap().exit, None);
    let shown = ok(&kernel, "config show --running");
    assert!(shown.contains("write_cache = \"through\"\n"), "{shown}");

    kernel.file(MAIN, &text.replace("through", "back"));
    let different = ok(&kernel, "config diff");
    assert!(
        different.contains("~ export data: write_cache is through, not back"),
        "{different}"
    );
    // The volume is not in use, so it is disabled for the change.
    let steps = steps_of(&kernel, "apply");
    let at = |step: &str| steps.iter().position(|one| one == step).unwrap();
    assert!(at("write enable 0") < at("write write_cache back"));
    assert!(at("write write_cache back") < at("write enable 1"));
    // A setting that is left out has its default.
    let shown = ok(&kernel, "config show --running");
    assert!(!shown.contains("write_cache"), "{shown}");
}

#[test]
fn a_volume_in_use_keeps_its_write_cache() {
    let kernel = Kernel::loaded();
    ok(&kernel, &format!("target export data /dev/sdb --allow {A}"));
    kernel.set_volume("data", "clients", &format!("{A} 00000000deadbeef 1 4\n"));
    let text = format!(
        "[export.data]\ndevice = \"/dev/sdb\"\nallow = [\"{A}\"]\nwrite_cache = \"through\"\n"
    );
    kernel.file(MAIN, &text);
    let outcome = hcablk(&kernel, "apply").unwrap();
    assert_eq!(outcome.exit, Some(Kind::Exists));
    assert_eq!(kernel.volume("data", "write_cache"), "back");
    ok(&kernel, "apply --force");
    assert_eq!(kernel.volume("data", "write_cache"), "through");
}

#[test]
fn another_word_is_a_mistake() {
    let kernel = Kernel::loaded();
    kernel.file(
        MAIN,
        "[export.data]\ndevice = \"/dev/sdb\"\nwrite_cache = \"none\"\n",
    );
    let error = fails(&kernel, "config check");
    assert!(error.message.contains("hcablk.toml:3"), "{error}");
    assert!(error.message.contains("back, through"), "{error}");
}

/// The advice about a volume that commands give; each is one line.
fn advice(notes: &[String]) -> Vec<&String> {
    let advice = notes.iter().filter(|note| note.contains("--write-cache"));
    advice
        .inspect(|note| assert_eq!(note.lines().count(), 1, "{note}"))
        .collect()
}

/// A machine with drives of both kinds, a link to one, and a file.
fn drives() -> Kernel {
    let kernel = Kernel::loaded();
    kernel.drive("sda", "write back");
    kernel.drive("sdb", "write through");
    kernel.link("/dev/disk/by-id/volatile", "/dev/sda1");
    kernel.link("/dev/disk/by-id/safe", "/dev/sdb1");
    kernel.file("/srv/disk.img", "");
    kernel
}

#[test]
fn advice_on_lost_writes_of_several_hosts() {
    let two = format!("--allow {A} --allow {B}");
    for (line, is_advised) in [
        (format!("/dev/sda {two}"), true),
        (format!("/dev/sda1 {two}"), true),
        (format!("/dev/disk/by-id/volatile {two}"), true),
        (format!("/srv/disk.img {two}"), true),
        (format!("/dev/sdb {two} --mode cached"), true),
        (format!("/dev/sdb {two} --mode mixed"), true),
        (format!("/dev/sda --allow {A}"), false),
        ("/dev/sda".to_owned(), false),
        (format!("/dev/sda {two} --read-only"), false),
        (format!("/dev/sda {two} --write-cache through"), false),
        (format!("/srv/disk.img {two} --write-cache through"), false),
        (format!("/dev/sdb {two}"), false),
        (format!("/dev/sdb1 {two}"), false),
        (format!("/dev/disk/by-id/safe {two}"), false),
        // A drive that is not in sysfs.
        (format!("/dev/sdz {two}"), false),
    ] {
        let kernel = drives();
        let line = format!("target export data {line}");
        let outcome = hcablk(&kernel, &line).unwrap();
        assert_eq!(outcome.exit, None);
        let given = advice(&outcome.notes);
        assert_eq!(given.len(), usize::from(is_advised), "{line}: {given:?}");
    }
}

#[test]
fn advice_when_another_host_is_allowed() {
    let kernel = drives();
    ok(&kernel, "target export data /dev/sda");
    let allow = |host| notes(&kernel, &format!("target allow data {host}"));
    assert_eq!(allow(A), [""; 0]);
    let given = allow(B);
    assert_eq!(advice(&given).len(), 1, "{given:?}");
    assert!(
        given[0].starts_with("data: several hosts share"),
        "{given:?}"
    );
}

#[test]
fn the_check_advises_and_does_not_fail() {
    let found = |kernel: &Kernel| -> Vec<Finding> {
        let Report::Health { findings, .. } = hcablk(kernel, "check").unwrap().report else {
            panic!("check does not report its findings");
        };
        let ours = findings.into_iter();
        ours.filter(|finding| finding.check == "write-cache")
            .collect()
    };
    let kernel = drives();
    ok(&kernel, &format!("target export data /dev/sda --allow {A}"));
    assert_eq!(found(&kernel), []);
    ok(&kernel, &format!("target allow data {B}"));
    let findings = found(&kernel);
    assert_eq!(findings.len(), 1);
    assert_eq!(
        (findings[0].level, findings[0].subject.as_str()),
        (Level::Note, "data")
    );
    let advice = findings[0].advice.as_deref().unwrap();
    assert!(advice.contains("--write-cache through"), "{advice}");
}
