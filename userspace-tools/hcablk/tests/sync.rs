// SPDX-License-Identifier: GPL-2.0

//! `connect --paths auto` and `path sync` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use clap::Parser as _;
use hcablk::error::Kind;
use kernel::{fails, golden, hcablk, notes, ok, Kernel};
use nix::errno::Errno;

/// A machine with a disk that gets a path for each portal; its target has these in addition to 10.0.0.1.
fn auto(portals: &[&'static str]) -> Kernel {
    let kernel = Kernel::loaded();
    kernel.list_volume("data", "", "");
    kernel.portals.borrow_mut().extend(portals);
    ok(&kernel, "connect 10.0.0.1 data --paths auto");
    kernel
}

fn json(kernel: &Kernel, line: &str) -> String {
    hcablk(kernel, line).unwrap().to_json()
}

#[test]
fn connect_adds_a_path_for_each_further_portal() {
    let kernel = auto(&["10.0.1.1", "fd00::1"]);
    assert_eq!(kernel.device("data", "paths_auto"), "1");
    assert_eq!(kernel.path("data", 1, "address"), "10.0.1.1");
    assert_eq!(kernel.path("data", 2, "address"), "fd00::1");
    assert_eq!(kernel.path("data", 2, "state"), "live");
    assert!(json(&kernel, "list --json").contains("\"paths_auto\": true"));
    let changes = kernel.snapshot();
    let again = hcablk(&kernel, "connect 10.0.0.1 data --paths auto").unwrap();
    assert_eq!(again.notes, ["data is connected already"]);
    assert_eq!(kernel.snapshot(), changes);
}

#[test]
fn a_disk_that_is_connected_gets_them_too() {
    let kernel = Kernel::loaded();
    kernel.list_volume("data", "", "");
    kernel.portals.borrow_mut().push("10.0.1.1");
    ok(&kernel, "connect 10.0.0.1 data");
    let before = kernel.snapshot();
    // A disk whose paths were given explicitly is left as it is.
    assert_eq!(ok(&kernel, "path sync"), "");
    assert!(notes(&kernel, "path sync data")[0].contains("has explicit paths"));
    assert_eq!(kernel.snapshot(), before);
    let outcome = json(&kernel, "connect 10.0.0.1 data --paths auto --json");
    assert!(outcome.contains("\"changed\": true"));
    assert_eq!(kernel.path("data", 1, "state"), "live");
}

#[test]
fn sync_follows_the_portals_and_repeats_itself() {
    let kernel = auto(&[]);
    assert!(!kernel.has_path("data", 1));
    kernel.portals.borrow_mut().push("10.0.1.1");
    golden("path-sync.json", &json(&kernel, "paths sync data --json"));
    let before = kernel.snapshot();
    assert!(json(&kernel, "path sync --json").contains("\"changed\": false"));
    assert_eq!(kernel.snapshot(), before);
    // A path without a portal stays, unless the user asks for its removal.
    kernel.portals.borrow_mut().clear();
    ok(&kernel, "path sync");
    assert_eq!(kernel.snapshot(), before);
    assert_eq!(
        ok(&kernel, "path sync --prune"),
        "data no longer has path 1: 10.0.1.1:7744\n"
    );
    assert!(!kernel.has_path("data", 1));
    assert_eq!(kernel.device("data", "state"), "live");
}

#[test]
fn an_unreachable_portal_is_reported_and_left_out() {
    let kernel = auto(&[]);
    kernel.silence("10.0.1.1", "took too long");
    kernel.turn_down("10.0.2.1", "another volume");
    kernel.silence("10.0.4.1", "took too long");
    let portals = ["10.0.1.1", "10.0.2.1", "10.0.3.1", "10.0.4.1"];
    kernel.portals.borrow_mut().extend(portals);
    let began = kernel.time.get();
    let outcome = hcablk(&kernel, "path sync data").unwrap();
    assert_eq!(
        outcome.report.to_string(),
        "data has path 3: 10.0.3.1:7744\n"
    );
    assert_eq!(outcome.notes.len(), 3, "{:?}", outcome.notes);
    assert!(outcome.notes[0].contains("no path to the portal 10.0.1.1:7744"));
    assert!(outcome.notes[1].contains("refused: another volume"));
    assert!(outcome.notes[2].contains("is not live after 10 s: took too long"));
    // The command waits for all paths at the same time.
    assert_eq!((kernel.time.get() - began).as_secs(), 10);
    assert!(!kernel.has_path("data", 1) && !kernel.has_path("data", 2));
    assert_eq!(kernel.device("data", "state"), "live");
}

#[test]
fn a_target_that_does_not_offer_the_volume_changes_nothing() {
    let kernel = auto(&["10.0.1.1"]);
    let before = kernel.snapshot();
    kernel.refuse("discovery", Errno::ETIMEDOUT, "waiting took too long");
    let said = notes(&kernel, "path sync --prune");
    assert!(
        said[0].starts_with("data keeps the paths that it has: "),
        "{said:?}"
    );
    // A target that has a different volume of that name changes nothing either.
    kernel.refuse.borrow_mut().clear();
    kernel.listed_volumes.borrow_mut().clear();
    kernel.list_volume("data", "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11", "");
    let said = notes(&kernel, "path sync --prune");
    assert!(
        said[0].contains("does not offer this host the disk's volume data"),
        "{said:?}"
    );
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn another_command_that_does_the_same_is_waited_for() {
    let kernel = auto(&[]);
    kernel.locked.set(true);
    kernel.portals.borrow_mut().push("10.0.1.1");
    *kernel.meanwhile.borrow_mut() = Some((3, Box::new(|kernel| kernel.locked.set(false))));
    assert_eq!(ok(&kernel, "path sync"), "data has path 1: 10.0.1.1:7744\n");
}

#[test]
fn a_disk_has_sixteen_paths_at_most() {
    let kernel = auto(&[]);
    for number in 1..=16 {
        let address: &'static str = format!("10.0.{number}.1").leak();
        kernel.portals.borrow_mut().push(address);
    }
    let said = notes(&kernel, "path sync");
    assert_eq!(
        said,
        ["data already has the maximum of 16 paths, so it gets no path to 10.0.16.1:7744"]
    );
    assert!(kernel.has_path("data", 15));
}

#[test]
fn paths_auto_is_configured_with_one_word() {
    let kernel = Kernel::loaded();
    kernel.list_volume("data", "", "");
    kernel.portals.borrow_mut().push("10.0.1.1");
    let text = "[disk.data]\naddress = \"10.0.0.1\"\npaths = \"auto\"\n";
    kernel.file("/etc/hcablk/hcablk.toml", text);
    ok(&kernel, "apply");
    assert_eq!(kernel.device("data", "paths_auto"), "1");
    assert_eq!(kernel.path("data", 1, "state"), "live");
    assert_eq!(
        notes(&kernel, "apply")[0],
        "everything already matches the configuration"
    );
    ok(&kernel, "config diff");
    kernel.portals.borrow_mut().push("10.0.2.1");
    ok(&kernel, "connect data");
    assert_eq!(kernel.path("data", 2, "state"), "live");
    assert_eq!(ok(&kernel, "config show --running"), text);
    // Remarks are part of the output.
    kernel.portals.borrow_mut().push("10.0.3.1");
    kernel.silence("10.0.3.1", "took too long");
    let said = notes(&kernel, "connect data");
    assert_eq!(said[0], "data is connected already");
    assert!(said[1].contains("no path to the portal 10.0.3.1:7744"));
    // Without `paths = "auto"` the disk has the configured paths.
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        "[disk.data]\naddress = \"10.0.0.1\"\n",
    );
    ok(&kernel, "apply");
    assert_eq!(kernel.device("data", "paths_auto"), "0");
    assert!(!kernel.has_path("data", 1) && !kernel.has_path("data", 2));
}

#[test]
fn options_that_do_not_go_together() {
    let kernel = auto(&[]);
    assert_eq!(fails(&kernel, "path sync other").kind, Kind::NotFound);
    let line = "hcablk connect 10.0.0.1 data --paths auto --path 10.0.1.1";
    assert!(hcablk::cli::Cli::try_parse_from(line.split(' ')).is_err());
}
