// SPDX-License-Identifier: GPL-2.0

//! `path add`, `path remove` and `path policy` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use hcablk::output::error_json;
use kernel::{each_failure_is_undone, fails, golden, hcablk, notes, ok, steps_of, Kernel};
use nix::errno::Errno;

/// A machine with a disk of two paths.
fn two_paths() -> Kernel {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    kernel
}

/// A machine with a disk of one path.
fn one_path() -> Kernel {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel
}

#[test]
fn add_takes_the_lowest_free_number() {
    let kernel = one_path();
    for (address, number) in [("10.0.1.1", 1), ("10.0.2.1", 2), ("10.0.3.1:7745", 3)] {
        let text = ok(&kernel, &format!("path add data {address}"));
        assert!(
            text.starts_with(&format!("data has path {number}: 10.0.{number}.1:")),
            "{text}"
        );
    }
    ok(&kernel, "path remove data 2");
    assert_eq!(
        ok(&kernel, "path add /dev/hcablk0 10.0.4.1"),
        "data has path 2: 10.0.4.1:7744\n"
    );
    assert_eq!(kernel.path("data", 2, "state"), "live");
    assert_eq!(kernel.path("data", 3, "port"), "7745");
}

#[test]
fn adding_an_existing_path_changes_nothing() {
    let kernel = two_paths();
    let changes = kernel.changes();
    for (line, path) in [
        ("path add data 10.0.0.1", 0),
        ("path add data 10.0.1.1:7744", 1),
    ] {
        let outcome = hcablk(&kernel, line).unwrap();
        assert_eq!(outcome.notes, ["data has this path already"]);
        let text = outcome.report.to_string();
        assert!(text.starts_with(&format!("data has path {path}: ")));
        assert!(outcome.to_json().contains("\"changed\": false"));
    }
    kernel.set_path("data", 1, "state", "waiting");
    kernel.set_path("data", 1, "error", "took too long");
    assert_eq!(
        notes(&kernel, "path add data 10.0.1.1"),
        ["data has this path already; it is waiting: took too long"]
    );
    assert_eq!(kernel.changes(), changes);
}

#[test]
fn add_waits_and_reports_after_two_seconds() {
    let kernel = one_path();
    kernel.silence("10.0.1.1", "took too long");
    // 3 s.
    *kernel.meanwhile.borrow_mut() = Some((60, Box::new(|kernel| kernel.reach("10.0.1.1"))));
    ok(&kernel, "path add data 10.0.1.1");
    assert_eq!(
        *kernel.progress.borrow(),
        ["waiting for path 1 (10.0.1.1:7744) of data, for 2 s now: took too long"]
    );
    let kernel = one_path();
    kernel.silence("10.0.1.1", "");
    *kernel.meanwhile.borrow_mut() = Some((30, Box::new(|kernel| kernel.reach("10.0.1.1"))));
    ok(&kernel, "path add data 10.0.1.1");
    assert_eq!(*kernel.progress.borrow(), [""; 0]);
}

#[test]
fn a_path_that_is_not_live_in_time_is_removed_again() {
    for (options, seconds) in [("", 10), (" --timeout 3", 3)] {
        let kernel = one_path();
        kernel.silence("10.0.1.1", "took too long");
        let snapshot = kernel.snapshot();
        let began = kernel.time.get();
        let error = fails(&kernel, &format!("path add data 10.0.1.1{options}"));
        assert_eq!(error.kind, Kind::Connection);
        assert_eq!(
            error.message,
            format!("path 1 (10.0.1.1:7744) of data is not live after {seconds} s: took too long")
        );
        assert!(error.advice.unwrap().contains("ping 10.0.1.1"));
        assert_eq!((kernel.time.get() - began).as_secs(), seconds);
        assert_eq!(kernel.snapshot(), snapshot);
    }
}

#[test]
fn the_time_is_that_of_the_disk() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data --connect-timeout 4");
    kernel.silence("10.0.1.1", "");
    let error = fails(&kernel, "path add data 10.0.1.1");
    assert!(
        error
            .message
            .ends_with("is not live after 4 s: the target has not responded"),
        "{error:?}"
    );
}

#[test]
fn a_path_that_is_refused_is_removed_at_once() {
    let kernel = one_path();
    kernel.turn_down("10.0.1.1", "it leads to another target");
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, "path add data 10.0.1.1");
    assert_eq!(
        error.message,
        "path 1 (10.0.1.1:7744) of data is refused: it leads to another target"
    );
    assert_eq!(kernel.pauses.get(), 0);
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn a_path_is_kept_if_asked_for() {
    let kernel = one_path();
    kernel.silence("10.0.1.1", "took too long");
    let error = fails(&kernel, "path add data 10.0.1.1 --keep");
    let advice = error.advice.unwrap();
    assert!(advice.contains("The path stays and is retried"), "{advice}");
    assert!(advice.contains("hcablk path remove data 1"), "{advice}");
    assert_eq!(kernel.path("data", 1, "enable"), "1");
    kernel.reach("10.0.1.1");
    assert_eq!(
        notes(&kernel, "path add data 10.0.1.1"),
        ["data has this path already"]
    );
    // A path is also kept if a signal ends the wait for it.
    let kernel = one_path();
    kernel.silence("10.0.1.1", "took too long");
    kernel.signal_at.set(Some(kernel.changes() + 4));
    let error = fails(&kernel, "path add data 10.0.1.1 --keep");
    assert_eq!(error.kind, Kind::Interrupted);
    assert!(error.advice.unwrap().contains("The path stays"));
    assert_eq!(kernel.path("data", 1, "enable"), "1");
    // A path that could not be made leaves nothing.
    let kernel = one_path();
    kernel.refuse("1", Errno::ENOMEM, "");
    let snapshot = kernel.snapshot();
    fails(&kernel, "path add data 10.0.1.1 --keep");
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn a_refused_path_is_tried_again() {
    let kernel = one_path();
    kernel.turn_down("10.0.1.1", "not allowed");
    let error = fails(&kernel, "path add data 10.0.1.1 --keep");
    let advice = error.advice.unwrap();
    assert!(
        advice.contains("is not retried automatically. To retry it: hcablk path add data 10.0.1.1"),
        "{advice}"
    );
    // This command did not make the path, so it does not remove it.
    let error = fails(&kernel, "path add data 10.0.1.1");
    assert!(error.advice.unwrap().contains("The path stays"));
    assert_eq!(kernel.path("data", 1, "state"), "refused");
    kernel.unreached.borrow_mut().clear();
    assert_eq!(
        steps_of(&kernel, "path add data 10.0.1.1"),
        ["write enable 1"]
    );
    assert_eq!(kernel.path("data", 1, "state"), "live");
}

#[test]
fn a_path_that_is_not_enabled_is_used_again() {
    let kernel = two_paths();
    let path = "/sys/kernel/config/hcablk/data/paths/1/enable";
    hcablk::system::System::write(&kernel, path.as_ref(), "0\n").unwrap();
    kernel.silence("10.0.1.1", "took too long");
    fails(&kernel, "path add data 10.0.1.1");
    assert_eq!(kernel.path("data", 1, "enable"), "0");
    kernel.unreached.borrow_mut().clear();
    ok(&kernel, "path add data 10.0.1.1");
    assert_eq!(kernel.path("data", 1, "state"), "live");
}

#[test]
fn a_path_that_is_added_to_a_lost_disk_stays() {
    let kernel = one_path();
    kernel.silence("10.0.0.1", "gone");
    kernel.silence("10.0.1.1", "gone, too");
    kernel.set_device("data", "state", "queueing");
    let error = fails(&kernel, "path add data 10.0.1.1");
    assert!(error
        .advice
        .unwrap()
        .contains("data has no live path, so this one stays and is retried"));
    assert_eq!(error.not_undone, [""; 0]);
    assert_eq!(kernel.path("data", 1, "enable"), "1");
}

#[test]
fn a_path_of_a_disk_that_is_not_connected_is_used_later() {
    let kernel = one_path();
    kernel.set_device("data", "enable", "0");
    kernel.set_device("data", "state", "failed");
    kernel.set_device("data", "device", "");
    assert_eq!(
        notes(&kernel, "path add data 10.0.1.1"),
        ["data is not connected now: the path will be used when it is"]
    );
    ok(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    assert_eq!(kernel.path("data", 1, "state"), "live");
}

#[test]
fn each_failure_of_add_is_undone() {
    each_failure_is_undone(two_paths, "path add data 10.0.2.1");
}

#[test]
fn an_interrupted_wait_is_undone() {
    let kernel = one_path();
    kernel.silence("10.0.1.1", "took too long");
    let snapshot = kernel.snapshot();
    // mkdir, address, port and enable are done by then.
    kernel.signal_at.set(Some(kernel.changes() + 4));
    assert_eq!(
        fails(&kernel, "path add data 10.0.1.1").kind,
        Kind::Interrupted
    );
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn a_17th_path_is_refused() {
    let kernel = one_path();
    for number in 1..=15 {
        ok(&kernel, &format!("path add data 10.0.{number}.1"));
    }
    let error = fails(&kernel, "path add data 10.0.16.1");
    assert_eq!(error.message, "data already has the maximum of 16 paths");
    assert!(error.advice.unwrap().contains("hcablk path remove data"));
}

#[test]
fn a_path_removed_by_another_command_is_reported() {
    let kernel = one_path();
    kernel.silence("10.0.1.1", "");
    let remove: kernel::Meanwhile = Box::new(|kernel| {
        ok(kernel, "path remove data 1");
    });
    *kernel.meanwhile.borrow_mut() = Some((3, remove));
    let error = fails(&kernel, "path add data 10.0.1.1");
    assert!(error.message.contains("another command has removed path 1"));
    assert_eq!(error.not_undone, [""; 0]);
}

#[test]
fn paths_are_removed_by_number_or_address() {
    for (which, endpoint) in [
        ("1", "10.0.1.1:7744"),
        ("10.0.1.1", "10.0.1.1:7744"),
        ("10.0.1.1:7744", "10.0.1.1:7744"),
    ] {
        let kernel = two_paths();
        assert_eq!(
            ok(&kernel, &format!("path remove data {which}")),
            format!("data no longer has path 1: {endpoint}\n")
        );
        assert!(!kernel.has_path("data", 1));
        assert_eq!(kernel.device("data", "state"), "live");
    }
}

#[test]
fn removing_a_missing_path_fails() {
    let kernel = two_paths();
    let changes = kernel.changes();
    for (line, words) in [
        ("path remove data 2", "data has no path 2"),
        (
            "path remove data 10.0.2.1",
            "data has no path 10.0.2.1:7744",
        ),
        (
            "path remove data 10.0.1.1:7745",
            "data has no path 10.0.1.1:7745",
        ),
        ("path remove other 1", "there is no device other"),
    ] {
        let error = fails(&kernel, line);
        assert_eq!(
            (error.kind, error.message.as_str()),
            (Kind::NotFound, words)
        );
        assert_eq!(
            notes(&kernel, &format!("{line} --if-exists")),
            ["nothing to remove"]
        );
    }
    assert_eq!(
        fails(&Kernel::bare(), "path remove data 1").kind,
        Kind::NotFound
    );
    assert_eq!(kernel.changes(), changes);
}

#[test]
fn path_0_is_not_removed() {
    let kernel = two_paths();
    for which in ["0", "10.0.0.1", "10.0.0.1 --if-exists"] {
        let error = fails(&kernel, &format!("path remove data {which}"));
        assert_eq!(error.kind, Kind::Usage);
        assert!(
            error.message.contains("path 0 (10.0.0.1:7744) of data"),
            "{error:?}"
        );
    }
}

#[test]
fn the_last_live_path_is_not_removed() {
    let kernel = two_paths();
    kernel.silence("10.0.0.1", "gone");
    let error = fails(&kernel, "path remove data 1");
    assert_eq!(error.kind, Kind::Busy);
    assert_eq!(error.errno.as_deref(), Some("EBUSY"));
    assert_eq!(
        error.message,
        "cannot remove path 1 (10.0.1.1:7744) of data: it is the last path that is live"
    );
    let advice = error.advice.unwrap();
    assert!(advice.contains("hcablk path add data"), "{advice}");
    assert!(kernel.has_path("data", 1));
    // A path is not removed either while no path is live.
    kernel.set_path("data", 1, "state", "waiting");
    let error = fails(&kernel, "path remove data 1");
    assert!(
        error.message.ends_with("no other path is live"),
        "{error:?}"
    );
}

#[test]
fn remove_waits_for_the_end_of_a_path() {
    let kernel = two_paths();
    kernel.busy_removals.set(3);
    ok(&kernel, "path remove data 1");
    assert!(!kernel.has_path("data", 1));
}

#[test]
fn the_policy_changes_while_the_disk_is_used() {
    let kernel = one_path();
    for policy in ["round-robin", "numa", "queue-depth"] {
        assert_eq!(
            ok(&kernel, &format!("path policy data {policy}")),
            format!("data has the policy {policy}\n")
        );
        assert_eq!(kernel.device("data", "policy"), policy);
    }
    let changes = kernel.changes();
    assert_eq!(
        notes(&kernel, "path policy data queue-depth"),
        ["nothing to change"]
    );
    assert_eq!(kernel.changes(), changes);
    assert_eq!(
        fails(&kernel, "path policy other numa").kind,
        Kind::NotFound
    );
}

#[test]
fn results_as_json() {
    let kernel = one_path();
    let added = hcablk(&kernel, "path add data 10.0.1.1").unwrap();
    golden("path-add.json", &added.to_json());
    let policy = hcablk(&kernel, "path policy data round-robin").unwrap();
    golden("path-policy.json", &policy.to_json());
    let removed = hcablk(&kernel, "path remove data 1").unwrap();
    golden("path-remove.json", &removed.to_json());
    kernel.turn_down("10.0.1.1", "the target does not allow this host");
    let error = fails(&kernel, "path add data 10.0.1.1");
    golden("path-error.json", &error_json(&error));
}
