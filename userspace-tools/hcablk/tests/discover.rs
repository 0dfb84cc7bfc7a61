// SPDX-License-Identifier: GPL-2.0

//! `discover`, and `connect ADDRESS --all`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use kernel::{fails, golden, hcablk, ok, Kernel};
use nix::errno::Errno;

const DATA: &str = "ed50dbf5-f8c6-5399-909b-1584a5e28766";
const ISO: &str = "a829fdc7-36d2-5314-add1-35a4c1d38a51";
const OLD: &str = "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11";

/// A target that has three volumes for this host, from one of which it is evicted.
fn asked() -> Kernel {
    let kernel = Kernel::loaded();
    kernel.list_volume("data", DATA, "");
    kernel.list_volume("iso", ISO, "read_only 1\ninsecure 1\n");
    kernel.list_volume("old", OLD, "evicted 1\nmode cached\n");
    kernel
}

fn json(kernel: &Kernel, line: &str) -> String {
    hcablk(kernel, line).unwrap().to_json()
}

#[test]
fn the_lists_of_a_target_are_shown() {
    let kernel = asked();
    ok(&kernel, "connect 10.0.0.1 data --name db");
    kernel.set_device("db", "wwid", DATA);
    let before = kernel.snapshot();
    golden("discover.txt", &ok(&kernel, "discover 10.0.0.1"));
    golden("discover.json", &json(&kernel, "discover 10.0.0.1 --json"));
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn a_target_without_volumes_for_this_host() {
    let outcome = hcablk(&Kernel::loaded(), "discover 10.0.0.1").unwrap();
    assert!(outcome.notes[0].contains("no volume for this host"));
}

#[test]
fn a_list_that_changes_is_asked_for_again() {
    let kernel = asked();
    // In the second try all replies have the same revision.
    kernel.list_changes.set(2);
    assert_eq!(
        ok(&kernel, "discover 10.0.0.1"),
        ok(&asked(), "discover 10.0.0.1")
    );
    kernel.list_changes.set(1000);
    let error = fails(&kernel, "discover 10.0.0.1");
    assert_eq!(error.kind, Kind::Connection);
    assert!(error.message.contains("keep changing"), "{error}");
}

#[test]
fn an_endless_list_is_refused() {
    let kernel = asked();
    let before = kernel.snapshot();
    kernel.lie.set(Some(1));
    // Each response contains one more entry, at the same revision.
    let error = fails(&kernel, "discover 10.0.0.1");
    assert_eq!(error.kind, Kind::Connection);
    assert!(error.message.contains("keep changing"), "{error}");
    kernel.lie.set(Some(5000));
    kernel.asked.set(0);
    let error = fails(&kernel, "connect 10.0.0.1 --all");
    assert!(error.message.contains("more than 4096 volumes"), "{error}");
    // The list is not read beyond its largest length.
    assert_eq!(kernel.asked.get(), 1);
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn a_list_with_a_duplicate_is_refused() {
    let kernel = asked();
    let before = kernel.snapshot();
    kernel.list_volume("data", DATA, "");
    for line in ["discover 10.0.0.1", "connect 10.0.0.1 --all"] {
        let error = fails(&kernel, line);
        assert_eq!(error.kind, Kind::Connection);
        assert!(error.message.contains("volume data twice"), "{error}");
    }
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn a_target_that_does_not_answer() {
    let kernel = asked();
    let before = kernel.snapshot();
    kernel.refuse("discovery", Errno::ETIMEDOUT, "waiting took too long");
    let error = fails(&kernel, "discover 10.0.0.1 --connect-timeout 3");
    assert_eq!(error.kind, Kind::Connection);
    assert!(error
        .message
        .contains("cannot ask the target at 10.0.0.1 port 7744"));
    assert!(error.message.contains("waiting took too long"));
    assert_eq!(kernel.snapshot(), before);
    kernel.refuse("discovery", Errno::EKEYREJECTED, "no");
    let advice = fails(&kernel, "discover 10.0.0.1").advice.unwrap();
    assert!(advice.contains("hcablk key add"));
}

#[test]
fn all_are_connected_once() {
    let kernel = asked();
    ok(&kernel, "connect 10.0.0.1 data --name db");
    kernel.set_device("db", "wwid", DATA);
    let outcome = hcablk(&kernel, "connect 10.0.0.1 --all").unwrap();
    assert_eq!(
        outcome.report.to_string(),
        "db /dev/hcablk0\niso /dev/hcablk1\n"
    );
    assert!(outcome.notes[0].contains("evicted from old"));
    kernel.set_device("iso", "wwid", ISO);
    let again = json(&kernel, "connect 10.0.0.1 --all --json");
    assert!(again.contains("\"changed\": false") && !again.contains("\"changed\": true"));
}

#[test]
fn one_that_cannot_be_connected_does_not_keep_the_others_out() {
    let kernel = asked();
    kernel.refuse("data", Errno::ENOBUFS, "no memory");
    let error = fails(&kernel, "connect 10.0.0.1 --all");
    assert!(error.message.contains("volume data"), "{error}");
    assert!(error.message.contains("(connected: iso)"), "{error}");
    assert_eq!(kernel.device("iso", "state"), "live");
}

#[test]
fn all_volumes_that_cannot_be_connected_are_reported() {
    let kernel = asked();
    kernel.refuse("data", Errno::ENOBUFS, "no memory");
    kernel.refuse("iso", Errno::ECONNREFUSED, "not exported");
    let error = fails(&kernel, "connect 10.0.0.1 --all");
    assert!(error.message.contains("volume data"), "{error}");
    assert!(error.message.contains("volume iso"), "{error}");
}

#[test]
fn remarks_on_each_volume_are_reported() {
    let kernel = asked();
    for disk in ["hcablk0", "hcablk1"] {
        kernel.file(
            format!("/sys/block/{disk}/queue/max_hw_sectors_kb"),
            "256\n",
        );
    }
    let outcome = hcablk(&kernel, "connect 10.0.0.1 --all --max-io-kib 1024").unwrap();
    let small = |name: &str| format!("{name}: requests have 256 KiB at most");
    for name in ["data", "iso"] {
        let told = |note: &String| note.starts_with(&small(name));
        assert!(outcome.notes.iter().any(told), "{:?}", outcome.notes);
    }
}

#[test]
fn options_that_are_for_one_disk() {
    for line in ["--name db", "--wait 3"] {
        let error = fails(&asked(), &format!("connect 10.0.0.1 --all {line}"));
        assert_eq!(error.kind, Kind::Usage, "{line}");
    }
}
