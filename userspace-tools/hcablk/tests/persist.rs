// SPDX-License-Identifier: GPL-2.0

//! `connect --persist` and `target export --persist` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use kernel::{each_failure_is_undone, fails, hcablk, notes, ok, Kernel};

const HOST: &str = "7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44";
const MAIN: &str = "/etc/hcablk/hcablk.toml";
const MORE: &str = "/etc/hcablk/hcablk.d/more.toml";
const FIRST: &str = "# What this machine exports and connects: see `hcablk config --help`.\n\n";

fn machine() -> Kernel {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.folder("/etc/hcablk/hcablk.d");
    kernel
}

fn text(kernel: &Kernel, path: &str) -> String {
    kernel.text(path) + "\n"
}

/// Checks that the configuration matches the running state: `apply` changes nothing.
fn is_applied(kernel: &Kernel) {
    let from = kernel.changes();
    assert_eq!(ok(kernel, "apply"), "");
    assert_eq!(kernel.changes(), from);
}

#[test]
fn a_disk_is_connected_and_written_in_one_step() {
    let kernel = machine();
    let line = "connect 10.0.0.1 data --path 10.0.1.1 --ctrl-loss-tmo 60 --persist";
    assert_eq!(ok(&kernel, line), "/dev/hcablk0\n");
    let config = format!(
        "{FIRST}[disk.data]\naddress = \"10.0.0.1\"\nctrl_loss_tmo = \"1 min\"\npaths = {{ 1 = \"10.0.1.1:7744\" }}\n"
    );
    assert_eq!(text(&kernel, MAIN), config);
    is_applied(&kernel);

    let before = kernel.snapshot();
    let outcome = hcablk(&kernel, line).unwrap();
    assert_eq!(outcome.report.is_changed(), Some(false));
    assert_eq!(
        outcome.notes[..2],
        [
            "data is connected already".to_owned(),
            format!("the configuration has it already, in {MAIN}")
        ]
    );
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn a_disk_that_is_connected_is_only_written() {
    let kernel = machine();
    ok(&kernel, "connect 10.0.0.1 data");
    assert!(!kernel.has(MAIN));
    let outcome = hcablk(&kernel, "connect 10.0.0.1 data --persist").unwrap();
    assert_eq!(outcome.report.is_changed(), Some(true));
    assert_eq!(
        text(&kernel, MAIN),
        format!("{FIRST}[disk.data]\naddress = \"10.0.0.1\"\n")
    );
    ok(
        &kernel,
        "connect 10.0.0.1 data --name other --queues 2 --persist",
    );
    assert!(
        text(&kernel, MAIN)
            .ends_with("\n\n[disk.other]\naddress = \"10.0.0.1\"\nqueues = 2\nvolume = \"data\"\n"),
        "{}",
        text(&kernel, MAIN)
    );
    is_applied(&kernel);
}

#[test]
fn a_table_is_changed_where_it_is_and_comments_stay() {
    let kernel = machine();
    let main = "# mine\n[port.1] # all addresses\n";
    kernel.file(MAIN, main);
    kernel.file(
        MORE,
        "[disk.data]\n# the target\naddress = \"10.0.0.1\" # rack 7\nqueue_depth = 128\nqueues = 8\nenabled = false\n",
    );
    ok(&kernel, "connect 10.0.0.1 data --queue-depth 128 --persist");
    assert_eq!(text(&kernel, MAIN), main);
    assert_eq!(
        text(&kernel, MORE),
        "[disk.data]\n# the target\naddress = \"10.0.0.1\" # rack 7\nqueue_depth = 128\n"
    );
}

#[test]
fn an_address_that_is_a_name_stays_one() {
    let kernel = machine();
    ok(&kernel, "connect localhost data --persist");
    assert!(text(&kernel, MAIN).contains("address = \"localhost\"\n"));
    // The same address in another form.
    let config = text(&kernel, MAIN);
    let address = kernel.device("data", "address");
    ok(&kernel, &format!("connect {address} data --persist"));
    assert_eq!(text(&kernel, MAIN), config);
}

#[test]
fn an_export_is_made_and_written_with_its_port() {
    let kernel = machine();
    let line =
        format!("target export data /dev/sdb --allow {HOST} --write-cache through --persist");
    assert_eq!(
        ok(&kernel, &line),
        "/dev/sdb is exported as data, write-through, at 0.0.0.0:7744\n"
    );
    let config = format!(
        "{FIRST}[export.data]\nallow = [\"{HOST}\"]\ndevice = \"/dev/sdb\"\nwrite_cache = \"through\"\n\n[port.1]\n"
    );
    assert_eq!(text(&kernel, MAIN), config);
    is_applied(&kernel);

    let before = kernel.snapshot();
    let outcome = hcablk(&kernel, &line).unwrap();
    assert_eq!(outcome.report.is_changed(), Some(false));
    assert_eq!(kernel.snapshot(), before);

    // A second one has its port already.
    ok(&kernel, "target export log /dev/sdc --persist");
    assert_eq!(text(&kernel, MAIN).matches("[port.").count(), 1);
    ok(&kernel, "target export tmp /dev/sdd --no-port --persist");
    assert_eq!(text(&kernel, MAIN).matches("[export.").count(), 3);
    is_applied(&kernel);
    assert!(notes(&kernel, "target export tmp /dev/sdd --persist")
        .contains(&format!("the configuration has it already, in {MAIN}")));
}

#[test]
fn nothing_is_made_if_the_configuration_has_a_mistake() {
    let kernel = machine();
    kernel.file(MORE, "[disk.x]\nadress = \"10.0.0.1\"\n");
    let before = kernel.snapshot();
    for line in [
        "connect 10.0.0.1 data --persist",
        "target export data /dev/sdb --persist",
    ] {
        assert_eq!(fails(&kernel, line).kind, Kind::Usage, "{line}");
        assert_eq!(kernel.snapshot(), before, "{line}");
    }
}

#[test]
fn a_port_that_is_configured_elsewhere_is_not_replaced() {
    let kernel = machine();
    kernel.file(MAIN, "[port.1]\naddress = \"10.0.0.9\"\n");
    let error = fails(&kernel, "target export data /dev/sdb --persist");
    assert_eq!(error.kind, Kind::Exists);
    assert_eq!(kernel.text(MAIN), "[port.1]\naddress = \"10.0.0.9\"");
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/volumes/data"));
    assert!(!kernel.has("/sys/kernel/config/hcablk_target/ports/1"));
}

/// If the file cannot be written, the disk or the export is gone again, and the other way round.
#[test]
fn both_are_undone_if_one_fails() {
    for line in [
        "connect 10.0.0.1 data --path 10.0.1.1 --persist".to_owned(),
        format!("target export data /dev/sdb --wwid {HOST} --allow {HOST} --persist"),
    ] {
        each_failure_is_undone(
            || {
                let kernel = machine();
                kernel.file(MAIN, "# mine\n[disk.log]\naddress = \"10.0.0.2\"\n");
                kernel
            },
            &line,
        );
    }
}

#[test]
fn the_wwid_of_a_running_export_is_written_unless_it_is_the_derived_one() {
    for (given, is_written) in [(format!("--wwid {HOST}"), true), (String::new(), false)] {
        let kernel = machine();
        ok(
            &kernel,
            &format!("target export data /dev/sdb {given} --allow {HOST}"),
        );
        ok(
            &kernel,
            &format!("target export data /dev/sdb --allow {HOST} --persist"),
        );
        let line = format!("wwid = \"{HOST}\"\n");
        assert_eq!(text(&kernel, MAIN).contains(&line), is_written, "{given}");
        assert_eq!(text(&kernel, MAIN).contains("wwid"), is_written, "{given}");
    }
}

#[test]
fn a_disk_in_user_space_is_written_too() {
    let prepare = || {
        let kernel = Kernel::for_user_space();
        kernel.folder("/etc/hcablk");
        kernel.folder("/etc/hcablk/hcablk.d");
        kernel
    };
    let kernel = prepare();
    let line = "connect --user 10.0.0.1 data --queues 2 --persist";
    assert_eq!(ok(&kernel, line), "/dev/ublkb0\n");
    assert_eq!(
        text(&kernel, MAIN),
        format!("{FIRST}[disk.data]\naddress = \"10.0.0.1\"\nqueues = 2\nuser = true\n")
    );
    let outcome = hcablk(&kernel, line).unwrap();
    assert_eq!(outcome.report.is_changed(), Some(false));
    each_failure_is_undone(prepare, line);
}

#[test]
fn wrong_usage() {
    let kernel = machine();
    for line in ["connect data --persist", "connect --all --persist"] {
        assert_eq!(fails(&kernel, line).kind, Kind::Usage, "{line}");
    }
}
