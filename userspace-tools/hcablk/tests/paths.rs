// SPDX-License-Identifier: GPL-2.0

//! Disks of several paths: `connect`, `disconnect` and `list` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use kernel::{each_failure_is_undone, fails, golden, hcablk, notes, ok, steps_of, Kernel};

/// A machine with a disk of two paths.
fn two_paths() -> Kernel {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    kernel
}

/// Disables a path of a disk.
fn disable(kernel: &Kernel, number: u8) {
    let path = format!("/sys/kernel/config/hcablk/data/paths/{number}/enable");
    hcablk::system::System::write(kernel, path.as_ref(), "0\n").unwrap();
}

#[test]
fn connect_makes_paths_before_the_disk() {
    let kernel = Kernel::loaded();
    let steps = steps_of(
        &kernel,
        "connect 10.0.0.1 data --path 10.0.1.1 --path [fd00::1]:7745 --policy numa",
    );
    assert_eq!(
        steps[steps.len() - 10..],
        [
            "write policy numa",
            "mkdir 1",
            "write address 10.0.1.1",
            "write port 7744",
            "write enable 1",
            "mkdir 2",
            "write address fd00::1",
            "write port 7745",
            "write enable 1",
            "write enable 1",
        ]
    );
    assert_eq!(kernel.path("data", 1, "state"), "live");
    assert_eq!(kernel.path("data", 2, "state"), "live");
    assert_eq!(kernel.device("data", "state"), "live");
}

#[test]
fn a_disk_is_made_by_another_path() {
    let kernel = Kernel::loaded();
    kernel.silence("10.0.0.1", "took too long");
    assert_eq!(
        ok(&kernel, "connect 10.0.0.1 data --path 10.0.1.1 --name db"),
        "/dev/hcablk0\n"
    );
    assert_eq!(kernel.device("db", "state"), "degraded");
    // The disk is found with its name and without.
    for line in [
        "connect 10.0.0.1 data --path 10.0.1.1",
        "connect 10.0.0.1 data --name db",
    ] {
        assert_eq!(notes(&kernel, line), ["db is connected already"]);
    }
}

#[test]
fn a_device_that_was_only_begun_has_the_paths_asked_for() {
    let kernel = Kernel::loaded();
    for folder in ["data", "data/paths/1"] {
        let folder = format!("/sys/kernel/config/hcablk/{folder}");
        hcablk::system::System::mkdir(&kernel, folder.as_ref()).unwrap();
    }
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    assert_eq!(error.kind, Kind::Exists);
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn without_any_path_each_reason_is_reported_and_all_is_undone() {
    let kernel = Kernel::loaded();
    let snapshot = kernel.snapshot();
    kernel.silence("10.0.0.1", "took too long");
    kernel.turn_down("10.0.1.1", "not allowed");
    let error = fails(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    assert_eq!(error.kind, Kind::Connection);
    assert_eq!(error.errno.as_deref(), Some("ETIMEDOUT"));
    assert!(
        error
            .message
            .ends_with(": took too long; path 1 (10.0.1.1:7744): not allowed"),
        "{error:?}"
    );
    assert_eq!(error.not_undone, [""; 0]);
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn each_failure_of_connect_with_paths_is_undone() {
    each_failure_is_undone(
        Kernel::loaded,
        "connect 10.0.0.1 data --path 10.0.1.1 --path 10.0.2.1 --policy round-robin",
    );
}

#[test]
fn connecting_twice_with_paths_changes_nothing() {
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        "connect 10.0.0.1 data --path 10.0.1.1 --path fd00::1 --policy numa",
    );
    let changes = kernel.changes();
    for line in [
        "connect 10.0.0.1 data",
        "connect 10.0.0.1 data --path 10.0.1.1 --path fd00::1",
        "connect 10.0.0.1 data --path [fd00:0::1]:7744 --path 10.0.1.1:7744 --policy numa",
    ] {
        assert_eq!(notes(&kernel, line), ["data is connected already"]);
    }
    assert_eq!(kernel.changes(), changes);
}

#[test]
fn other_paths_or_another_policy_are_refused() {
    let kernel = two_paths();
    let snapshot = kernel.snapshot();
    for (options, difference, advice) in [
        (
            "--path 10.0.2.1",
            "further paths are 10.0.1.1:7744, not 10.0.2.1:7744",
            "hcablk path add data",
        ),
        (
            "--path 10.0.1.1 --path 10.0.2.1",
            "further paths are 10.0.1.1:7744, not 10.0.1.1:7744 and 10.0.2.1:7744",
            "hcablk path remove data",
        ),
        (
            "--path 10.0.1.1:7745",
            "further paths are 10.0.1.1:7744, not 10.0.1.1:7745",
            "hcablk disconnect data",
        ),
        (
            "--policy numa",
            "policy is queue-depth, not numa",
            "hcablk path policy data",
        ),
    ] {
        let error = fails(&kernel, &format!("connect 10.0.0.1 data {options}"));
        assert_eq!(error.kind, Kind::Exists);
        assert!(error.message.ends_with(difference), "{error:?}");
        assert!(error.advice.as_ref().unwrap().contains(advice), "{error:?}");
    }
    assert_eq!(kernel.snapshot(), snapshot);
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        "connect 10.0.0.1 data --path 10.0.1.1 --path 10.0.2.1",
    );
    let error = fails(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    assert!(
        error.message.ends_with("10.0.2.1:7744, not 10.0.1.1:7744"),
        "{error:?}"
    );
    // A disabled path does not count.
    disable(&kernel, 2);
    ok(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    disable(&kernel, 1);
    let error = fails(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    assert!(
        error.message.ends_with("are none, not 10.0.1.1:7744"),
        "{error:?}"
    );
}

#[test]
fn a_lost_disk_is_connected_again_with_its_paths() {
    let kernel = two_paths();
    kernel.set_device("data", "state", "failed");
    kernel.set_device("data", "enable", "0");
    let steps = steps_of(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    assert_eq!(steps, ["write enable 1"]);
}

#[test]
fn a_path_is_given_once_and_there_are_16_at_most() {
    let kernel = Kernel::loaded();
    for line in [
        "connect 10.0.0.1 data --path 10.0.0.1",
        "connect 10.0.0.1 data --path 10.0.1.1 --path 10.0.1.1:7744",
    ] {
        let error = fails(&kernel, line);
        assert!(error.message.ends_with("is given twice"), "{error:?}");
    }
    let mut line = "connect 10.0.0.1 data".to_owned();
    for number in 1..=15 {
        line.push_str(&format!(" --path 10.0.{number}.1"));
    }
    let error = fails(&kernel, &format!("{line} --path 10.0.16.1"));
    assert_eq!(error.message, "a disk has 16 paths at most");
    assert_eq!(kernel.changes(), 0);
    ok(&kernel, &line);
}

#[test]
fn a_module_without_paths_is_reported() {
    let kernel = Kernel::loaded();
    let device = std::path::Path::new("/sys/kernel/config/hcablk/data");
    hcablk::system::System::mkdir(&kernel, device).unwrap();
    kernel.tree.borrow_mut().remove(&device.join("paths"));
    let error = fails(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    assert_eq!(error.kind, Kind::Setup);
    assert!(error.advice.unwrap().contains("different versions"));
    ok(&kernel, "connect 10.0.0.1 data");
    ok(&kernel, "list");
    ok(&kernel, "disconnect data");
}

#[test]
fn disconnect_removes_paths() {
    for line in ["disconnect data", "disconnect --all"] {
        let kernel = Kernel::loaded();
        let snapshot = kernel.snapshot();
        ok(
            &kernel,
            "connect 10.0.0.1 data --path 10.0.1.1 --path 10.0.2.1",
        );
        let steps = steps_of(&kernel, line);
        assert_eq!(
            steps,
            [
                "write enable 0",
                "write enable 0",
                "rmdir 1",
                "write enable 0",
                "rmdir 2",
                "rmdir data",
            ]
        );
        assert_eq!(kernel.snapshot(), snapshot);
    }
}

#[test]
fn disconnect_by_force_removes_paths() {
    let kernel = Kernel::loaded();
    let snapshot = kernel.snapshot();
    ok(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    kernel.busy.set(u32::MAX);
    fails(&kernel, "disconnect data");
    ok(&kernel, "disconnect data --force");
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn a_disk_in_use_keeps_its_paths() {
    let kernel = two_paths();
    kernel.busy.set(u32::MAX);
    assert_eq!(fails(&kernel, "disconnect data").kind, Kind::Busy);
    assert_eq!(kernel.path("data", 1, "state"), "live");
}

#[test]
fn list_shows_the_paths_of_disks_that_have_several() {
    let kernel = Kernel::loaded();
    kernel.silence("10.0.2.1", "the target's answer took too long");
    ok(
        &kernel,
        "connect 10.0.0.1 data --path 10.0.1.1 --path 10.0.2.1:7745 --path fd00::1 \
         --policy round-robin",
    );
    ok(&kernel, "connect 10.0.0.1 other");
    let outcome = hcablk(&kernel, "list").unwrap();
    golden("list-paths.txt", &outcome.report.to_string());
    golden("list-paths.json", &outcome.to_json());
    // The state of path 0 follows from those of the other enabled paths.
    disable(&kernel, 3);
    kernel.reach("10.0.2.1");
    kernel.set_device("data", "state", "degraded");
    let text = ok(&kernel, "list");
    assert!(text.contains("10.0.0.1:7744   lost"), "{text}");
}

#[test]
fn paths_are_listed_by_number() {
    let kernel = Kernel::loaded();
    let mut line = "connect 10.0.0.1 data".to_owned();
    for number in 1..=10 {
        line.push_str(&format!(" --path 10.0.{number}.1"));
    }
    ok(&kernel, &line);
    let text = ok(&kernel, "list");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[lines.len() - 1].contains("10.0.10.1:7744"), "{text}");
    assert!(lines[lines.len() - 9].contains("10.0.2.1:7744"), "{text}");
}
