// SPDX-License-Identifier: GPL-2.0

//! Lost writes of a disk: `acknowledge-loss`, `list` and `check` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use hcablk::output::{Level, Report};
use kernel::{fails, golden, hcablk, notes, ok, steps_of, Kernel};

/// A machine with two disks.
fn machine(is_old: bool) -> Kernel {
    let kernel = Kernel::loaded();
    kernel.old.set(is_old);
    ok(&kernel, "connect 10.0.0.1 data");
    ok(&kernel, "connect 10.0.0.1 log");
    kernel
}

#[test]
fn a_loss_is_acknowledged() {
    for disk in ["data", "/dev/hcablk0", "hcablk0"] {
        let kernel = machine(false);
        kernel.lose_writes("data");
        let line = format!("acknowledge-loss {disk}");
        let outcome = hcablk(&kernel, &line).unwrap();
        assert_eq!(
            outcome.report.to_string(),
            "data: the loss is acknowledged, and flushes succeed again; what was lost stays lost\n"
        );
        assert_eq!(outcome.notes, [""; 0]);
        assert_eq!(kernel.device("data", "lost_writes"), "0");
        golden("acknowledge-loss.json", &outcome.to_json());
    }
}

#[test]
fn acknowledging_no_loss_changes_nothing() {
    let kernel = machine(false);
    kernel.lose_writes("log");
    assert_eq!(steps_of(&kernel, "acknowledge-loss data"), [""; 0]);
    assert_eq!(ok(&kernel, "acknowledge-loss data"), "");
    assert_eq!(
        notes(&kernel, "acknowledge-loss data"),
        ["data has no loss to acknowledge"]
    );
    assert_eq!(kernel.device("log", "lost_writes"), "1");
    assert_eq!(
        steps_of(&kernel, "acknowledge-loss log"),
        ["write lost_writes 0"]
    );
    assert_eq!(steps_of(&kernel, "acknowledge-loss log"), [""; 0]);
}

#[test]
fn a_module_that_reports_no_loss_has_none() {
    let kernel = machine(true);
    assert_eq!(
        notes(&kernel, "acknowledge-loss data"),
        ["data has no loss to acknowledge: the kernel module does not report lost writes"]
    );
    let outcome = hcablk(&kernel, "list").unwrap();
    assert_eq!(outcome.notes, [""; 0]);
    assert!(outcome.to_json().contains("\"lost_writes\": null"));
    assert!(!outcome.report.to_string().contains("lost-writes"));
}

#[test]
fn a_loss_that_cannot_be_acknowledged() {
    let kernel = machine(false);
    let error = fails(&kernel, "acknowledge-loss none");
    assert_eq!(error.kind, Kind::NotFound);
    let error = fails(&Kernel::bare(), "acknowledge-loss data");
    assert_eq!(error.kind, Kind::NotFound);
    kernel.lose_writes("data");
    kernel.unprivileged.set(true);
    let error = fails(&kernel, "acknowledge-loss data");
    assert_eq!(error.kind, Kind::Setup);
    assert_eq!(kernel.device("data", "lost_writes"), "1");
}

#[test]
fn the_list_shows_a_loss_and_advice() {
    let kernel = machine(false);
    kernel.lose_writes("data");
    let outcome = hcablk(&kernel, "list").unwrap();
    golden("list-lost-writes.txt", &outcome.report.to_string());
    golden("list-lost-writes.json", &outcome.to_json());
    assert_eq!(outcome.notes.len(), 1);
    let note = &outcome.notes[0];
    assert!(note.starts_with("data: the target lost"), "{note}");
    assert!(note.contains("hcablk acknowledge-loss data"), "{note}");
    assert_eq!(note.lines().count(), 1);
}

#[test]
fn a_loss_is_a_failure_of_the_check() {
    let kernel = machine(false);
    let found = |kernel: &Kernel| {
        let Report::Health { findings, .. } = hcablk(kernel, "check").unwrap().report else {
            panic!("check does not report its findings");
        };
        let ours = findings.into_iter();
        ours.filter(|finding| finding.check == "lost-writes")
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&kernel), []);
    kernel.lose_writes("data");
    let findings = found(&kernel);
    assert_eq!(findings.len(), 1);
    let finding = &findings[0];
    assert_eq!(
        (finding.level, finding.subject.as_str()),
        (Level::Failure, "data")
    );
    let advice = finding.advice.as_deref().unwrap();
    for word in [
        "unmount",
        "check the file system",
        "hcablk acknowledge-loss data",
    ] {
        assert!(advice.contains(word), "{advice}");
    }
    assert_eq!(found(&machine(true)), []);
}

#[test]
fn the_help_names_the_risk() {
    use clap::CommandFactory as _;
    let mut command = hcablk::cli::Cli::command();
    let command = command.find_subcommand_mut("acknowledge-loss").unwrap();
    let help = command.render_long_help().to_string();
    for words in ["WHAT WAS LOST STAYS LOST", "fsync", "fsck", "swap"] {
        assert!(help.contains(words), "{help}");
    }
}
