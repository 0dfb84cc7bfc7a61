// SPDX-License-Identifier: GPL-2.0

//! Disks in user space (`connect --user`) against an imitation of the kernel and of systemd.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::path::Path;

use hcablk::error::Kind;
use hcablk::user::files::{self, Phase, Wanted};
use kernel::{each_failure_is_undone, fails, golden, hcablk, ok, steps_of, Kernel};
use nix::errno::Errno;

const CONNECT: &str = "connect --user 10.0.0.1 data";

fn wanted(kernel: &Kernel, name: &str) -> Wanted {
    files::read(kernel, &files::wanted(name)).unwrap().unwrap()
}

/// Ends a disk's session, for good or not.
fn lose(kernel: &Kernel, phase: Phase) {
    let mut state = kernel.state_of(0);
    state.phase = phase;
    state.error = Some("the target has not responded to a keep-alive for 5 s".to_owned());
    kernel.publish(0, &state);
}

#[test]
fn connect_starts_the_unit_and_prints_the_device() {
    let kernel = Kernel::for_user_space();
    let steps = steps_of(&kernel, CONNECT);
    assert_eq!(
        steps,
        [
            "replace data.wanted",
            "run systemctl start --no-block hcablk-ublk@data.service"
        ]
    );
    assert_eq!(ok(&kernel, CONNECT), "/dev/ublkb0\n");
    let wanted = wanted(&kernel, "data");
    assert_eq!(wanted.address.to_string(), "10.0.0.1");
    assert_eq!(wanted.volume, "data");
    assert_eq!(wanted.host, "2c76c224-38b3-5f2d-b27d-4051ae2d4024");
    assert!(!wanted.keys && wanted.options.is_empty());
}

#[test]
fn connect_hands_on_every_setting() {
    let kernel = Kernel::for_user_space();
    ok(
        &kernel,
        "connect --user fd00::1 data --name db --port 7745 --queues 2 --queue-depth 32 --connect-timeout 3 --ctrl-loss-tmo -1 \
         --keep-alive-tmo 4 --reconnect-delay 2 --small-read 512 --eager-write 8192 --no-remote-invalidate \
         --wwid 0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11 --host-id 5f2c1d6e-8a0b-4c3d-9e7f-001122334455",
    );
    let wanted = wanted(&kernel, "db");
    for (name, value) in [
        ("port", "7745"),
        ("queues", "2"),
        ("queue-depth", "32"),
        ("connect-timeout", "3"),
        ("ctrl-loss-tmo", "4294967295"),
        ("keep-alive-tmo", "4"),
        ("reconnect-delay", "2"),
        ("small-read", "512"),
        ("eager-write", "8192"),
        ("remote-invalidate", "0"),
    ] {
        assert_eq!(wanted.option(name), Some(value), "{name}");
    }
    assert_eq!(wanted.options.len(), 10);
    assert!(wanted.wwid.is_some());
    assert_eq!(wanted.host, "5f2c1d6e-8a0b-4c3d-9e7f-001122334455");
}

#[test]
fn settings_that_a_disk_in_user_space_lacks_are_refused() {
    let kernel = Kernel::for_user_space();
    for option in [
        "--path 10.0.1.1",
        "--paths auto",
        "--policy numa",
        "--io-timeout 5",
        "--poll-queues 1",
        "--max-io-kib 64",
        "--queues 0",
        "--small-read 16384",
    ] {
        let error = fails(&kernel, &format!("{CONNECT} {option}"));
        assert_eq!(error.kind, Kind::Usage, "{option}");
        assert!(error.message.contains("in user space"), "{error:?}");
    }
    assert_eq!(
        fails(&kernel, "connect --user 10.0.0.1 --all").kind,
        Kind::Usage
    );
    assert_eq!(fails(&kernel, "connect --user data").kind, Kind::Usage);
    assert_eq!(kernel.changes(), 0);
}

#[test]
fn each_step_is_undone() {
    each_failure_is_undone(Kernel::for_user_space, CONNECT);
}

#[test]
fn missing_parts_of_a_machine_are_reported() {
    for (lacks, message, advice) in [
        (
            "/usr/sbin/hcablk-ublk",
            "is not installed",
            "package hcablk-ublk",
        ),
        (
            "/run/systemd/system",
            "systemd does not run this machine",
            "hcablk-ublk add --host-id 2c76c224-38b3-5f2d-b27d-4051ae2d4024 -o queues=2 10.0.0.1 data",
        ),
        (
            "/dev/ublk-control",
            "kernel module ublk_drv",
            "BLK_DEV_UBLK",
        ),
        (
            "/dev/infiniband/rdma_cm",
            "kernel module rdma_ucm",
            "BLK_DEV_UBLK",
        ),
    ] {
        let kernel = Kernel::for_user_space();
        kernel.modules.set(false);
        kernel.tree.borrow_mut().remove(Path::new(lacks));
        let snapshot = kernel.snapshot();
        let error = fails(&kernel, &format!("{CONNECT} --queues 2"));
        assert_eq!(error.kind, Kind::Setup, "{lacks}");
        assert!(error.message.contains(message), "{error:?}");
        assert!(error.advice.unwrap().contains(advice), "{lacks}");
        assert_eq!(kernel.snapshot(), snapshot, "{lacks}");
    }
}

#[test]
fn modules_are_loaded_if_need_be() {
    let kernel = Kernel::for_user_space();
    kernel
        .tree
        .borrow_mut()
        .remove(Path::new("/dev/ublk-control"));
    kernel
        .tree
        .borrow_mut()
        .remove(Path::new("/dev/infiniband/rdma_cm"));
    assert_eq!(
        steps_of(&kernel, CONNECT)[..2],
        ["load ublk_drv", "load rdma_ucm"]
    );
}

#[test]
fn a_failed_start_is_reported_as_for_other_disks() {
    for (errno, kind, advice) in [
        (
            Errno::ECONNREFUSED,
            Kind::Connection,
            "hcablk target listen",
        ),
        (Errno::ENOENT, Kind::Connection, "hcablk target export data"),
        (Errno::ENODEV, Kind::Setup, "rdma link"),
        (Errno::EACCES, Kind::Connection, "hcablk target allow data"),
    ] {
        let kernel = Kernel::for_user_space();
        let snapshot = kernel.snapshot();
        let why = (Some(errno), "the reason".to_owned());
        kernel.unserved.borrow_mut().insert("data".to_owned(), why);
        let error = fails(&kernel, CONNECT);
        assert_eq!(
            (error.kind, error.errno.unwrap()),
            (kind, format!("{errno:?}"))
        );
        assert!(
            error
                .message
                .starts_with("cannot connect to volume data at 10.0.0.1 port 7744: "),
            "{}",
            error.message
        );
        assert!(error.message.ends_with(": the reason"), "{}", error.message);
        assert!(error.advice.unwrap().contains(advice), "{errno}");
        assert_eq!(kernel.snapshot(), snapshot, "{errno}");
        assert!(
            kernel.units.borrow().is_empty(),
            "no unit is left as failed"
        );
    }
    let kernel = Kernel::for_user_space();
    let why = (None, "the volume has no wwid".to_owned());
    kernel.unserved.borrow_mut().insert("data".to_owned(), why);
    let error = fails(&kernel, CONNECT);
    assert_eq!(error.kind, Kind::Failed);
    assert!(error
        .advice
        .unwrap()
        .contains("journalctl -u hcablk-ublk@data"));
}

#[test]
fn a_program_that_takes_its_time_is_waited_for() {
    let kernel = Kernel::for_user_space();
    kernel.slow_programs.set(true);
    *kernel.meanwhile.borrow_mut() = Some((
        60,
        Box::new(|kernel| kernel.serve("hcablk-ublk@data.service")),
    ));
    assert_eq!(ok(&kernel, CONNECT), "/dev/ublkb0\n");
    let told = kernel.progress.borrow();
    assert!(told[0].starts_with("waiting for the disk data"), "{told:?}");
    assert_eq!(told.len(), 1);
}

#[test]
fn the_wait_for_a_program_that_ends_without_a_reason_is_limited() {
    let kernel = Kernel::for_user_space();
    kernel.slow_programs.set(true);
    kernel.ended.set((3, "exit-code", 127));
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, CONNECT);
    assert_eq!(error.kind, Kind::Failed);
    assert!(
        error.message.contains("has exited with 127: a library"),
        "{error:?}"
    );
    assert_eq!(kernel.snapshot(), snapshot);
    // A program that gives a reason waits for its target, and the command waits for the program.
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    kernel.kill_program(0);
    kernel.slow_programs.set(true);
    kernel.ended.set((9, "exit-code", 1));
    kernel.file(
        files::failed("data"),
        "{\"message\":\"later\",\"errno\":null}",
    );
    *kernel.meanwhile.borrow_mut() = Some((
        kernel.pauses.get() + 60,
        Box::new(|kernel| kernel.serve("hcablk-ublk@data.service")),
    ));
    assert_eq!(ok(&kernel, CONNECT), "/dev/ublkb0\n");
}

#[test]
fn connecting_twice_changes_nothing() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, &format!("{CONNECT} --name db --queues 2"));
    let changes = kernel.changes();
    for line in [
        CONNECT,
        "connect --user 10.0.0.1 data --queues 2",
        "connect --user 10.0.0.1 data --name db --queue-depth 128",
    ] {
        let outcome = hcablk(&kernel, line).unwrap();
        assert_eq!(outcome.report.to_string(), "/dev/ublkb0\n");
        assert_eq!(outcome.notes, ["db is connected already"]);
    }
    lose(&kernel, Phase::Queueing);
    assert_eq!(ok(&kernel, CONNECT), "/dev/ublkb0\n");
    assert_eq!(kernel.changes(), changes);
}

#[test]
fn connect_with_other_settings_is_refused() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    let snapshot = kernel.snapshot();
    for (line, difference) in [
        (
            "connect --user 10.0.0.2 data",
            "address is 10.0.0.1, not 10.0.0.2",
        ),
        (
            "connect --user 10.0.0.1 data --port 7745",
            "port is 7744, not 7745",
        ),
        (
            "connect --user 10.0.0.1 data --queues 3",
            "queues is 1, not 3",
        ),
        (
            "connect --user 10.0.0.1 other --name data",
            "volume is data, not other",
        ),
    ] {
        let error = fails(&kernel, line);
        assert_eq!(error.kind, Kind::Exists);
        assert!(error.message.contains(difference), "{error:?}");
        assert!(error.advice.unwrap().contains("hcablk disconnect data"));
    }
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn a_name_is_for_one_disk_of_either_kind() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    let error = fails(&kernel, "connect 10.0.0.1 data");
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains("in user space"));
    ok(&kernel, "connect 10.0.0.1 data --name db");
    let error = fails(&kernel, "connect --user 10.0.0.2 other --name db");
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains("kernel's driver"));
}

#[test]
fn a_disk_whose_unit_was_given_up_is_gone_on_with() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    kernel.kill_program(0);
    assert!(ok(&kernel, "list").contains(" left "));
    assert_eq!(
        steps_of(&kernel, CONNECT),
        ["run systemctl start --no-block hcablk-ublk@data.service"]
    );
    assert!(ok(&kernel, "list").contains(" live "));
    // If that fails, the disk and its requests stay.
    kernel.kill_program(0);
    let why = (Some(Errno::ETIMEDOUT), "too long".to_owned());
    kernel.unserved.borrow_mut().insert("data".to_owned(), why);
    assert_eq!(fails(&kernel, CONNECT).kind, Kind::Connection);
    assert!(kernel.has("/sys/block/ublkb0") && kernel.has("/run/hcablk/ublk/data.wanted"));
}

#[test]
fn a_disk_that_is_lost_for_good_is_not_taken_for_one_that_is_there() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    lose(&kernel, Phase::Failed);
    let error = fails(&kernel, CONNECT);
    assert!(error.message.contains("keep-alive"), "{error:?}");
    assert!(error.advice.unwrap().contains("hcablk disconnect data"));
}

#[test]
fn a_command_that_was_killed_leaves_nothing_in_the_way() {
    let kernel = Kernel::for_user_space();
    kernel.slow_programs.set(true);
    let other = "10.0.0.9".parse().unwrap();
    ok(&Kernel::for_user_space(), CONNECT);
    let begun = Wanted {
        address: other,
        volume: "data".to_owned(),
        host: "5f2c1d6e-8a0b-4c3d-9e7f-001122334455".to_owned(),
        keys: false,
        wwid: None,
        options: Vec::new(),
    };
    kernel.file(files::wanted("data"), &files::text(&begun).unwrap());
    kernel
        .units
        .borrow_mut()
        .insert("hcablk-ublk@data.service".to_owned(), "activating");
    let error = fails(&kernel, CONNECT);
    assert_eq!(error.kind, Kind::Busy);
    kernel.units.borrow_mut().clear();
    kernel.slow_programs.set(false);
    ok(&kernel, CONNECT);
    assert_eq!(wanted(&kernel, "data").address.to_string(), "10.0.0.1");
}

#[test]
fn another_command_is_waited_for() {
    let kernel = Kernel::for_user_space();
    kernel.locked.set(true);
    let error = fails(&kernel, CONNECT);
    assert_eq!(error.kind, Kind::Busy);
    assert_eq!(kernel.changes(), 0);
    *kernel.meanwhile.borrow_mut() = Some((
        kernel.pauses.get() + 2,
        Box::new(|kernel| kernel.locked.set(false)),
    ));
    ok(&kernel, CONNECT);
}

#[test]
fn both_keys_are_used_or_none() {
    let key = kernel::key(1).0;
    let kernel = Kernel::for_user_space();
    kernel.file("/etc/hcablk/keys/host", &key);
    let error = fails(&kernel, CONNECT);
    assert_eq!(error.kind, Kind::Setup);
    assert!(error
        .advice
        .unwrap()
        .contains("hcablk key add target 10.0.0.1"));
    ok(&kernel, &format!("{CONNECT} --insecure"));
    assert!(!wanted(&kernel, "data").keys);
    ok(&kernel, "disconnect data");
    kernel.file("/etc/hcablk/keys/targets/10.0.0.1", &key);
    ok(&kernel, CONNECT);
    assert!(wanted(&kernel, "data").keys);
    let text = kernel.text(files::wanted("data"));
    assert!(!text.contains("hcablk-key"), "no key is written down");
}

#[test]
fn a_disk_without_keys_is_not_one_with_keys() {
    let key = kernel::key(1).0;
    let kernel = configured(CONFIG);
    ok(&kernel, "apply");
    kernel.file("/etc/hcablk/keys/host", &key);
    kernel.file("/etc/hcablk/keys/targets/10.0.0.1", &key);
    let error = fails(&kernel, CONNECT);
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains("keys is no, not yes"), "{error:?}");
    let outcome = hcablk(&kernel, "apply").unwrap();
    assert_eq!(outcome.exit, Some(Kind::Exists));
    let told = outcome.report.to_string();
    assert!(
        told.contains("set keys of disk data from no to yes"),
        "{told}"
    );
    ok(&kernel, "apply --force");
    assert!(wanted(&kernel, "data").keys);
    assert!(steps_of(&kernel, "apply").is_empty());
}

#[test]
fn disconnect_ends_the_unit_and_leaves_nothing() {
    for which in ["data", "ublkb0", "/dev/ublkb0", "--all"] {
        let kernel = Kernel::for_user_space();
        let snapshot = kernel.snapshot();
        ok(&kernel, CONNECT);
        assert_eq!(
            ok(&kernel, &format!("disconnect {which}")),
            "disconnected data\n"
        );
        assert_eq!(kernel.snapshot(), snapshot, "{which}");
        assert_eq!(fails(&kernel, "disconnect data").kind, Kind::NotFound);
        ok(&kernel, "disconnect data --if-exists");
    }
}

#[test]
fn disconnect_leaves_a_disk_in_use_alone() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    kernel.file(
        "/proc/self/mountinfo",
        "40 22 259:7 / /mnt/a rw,noatime shared:1 - ext4 /dev/ublkb0 rw\n",
    );
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, "disconnect data");
    assert_eq!(error.kind, Kind::Busy);
    assert_eq!(error.message, "data (/dev/ublkb0) is in use");
    assert!(error.advice.unwrap().contains("umount /mnt/a"));
    assert_eq!(kernel.snapshot(), snapshot);
    assert_eq!(
        steps_of(&kernel, "disconnect --force data"),
        [
            "run hcablk-ublk remove --force --mark 700 0",
            "run systemctl stop hcablk-ublk@data.service",
            "forget data.wanted"
        ]
    );
}

#[test]
fn a_disk_that_no_program_serves_is_removed() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    kernel.kill_program(0);
    assert_eq!(
        steps_of(&kernel, "disconnect data"),
        [
            "run systemctl stop hcablk-ublk@data.service",
            "run hcablk-ublk remove --mark 700 0",
            "forget data.wanted"
        ]
    );
    assert!(!kernel.has("/sys/block/ublkb0"));
}

#[test]
fn a_number_that_is_another_disks_by_now_is_left_alone() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    kernel.locked.set(true);
    *kernel.meanwhile.borrow_mut() = Some((
        kernel.pauses.get() + 2,
        Box::new(|kernel| {
            let mut state = kernel.state_of(0);
            state.mark = Some(1);
            kernel.publish(0, &state);
            kernel.locked.set(false);
        }),
    ));
    let changes = kernel.changes();
    let error = fails(&kernel, "disconnect ublkb0");
    assert_eq!(error.kind, Kind::Busy);
    assert!(
        error.message.contains("belongs to another disk"),
        "{error:?}"
    );
    assert_eq!(kernel.changes(), changes);
}

#[test]
fn a_disk_that_was_made_by_hand_is_known_by_its_device() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    let mut state = kernel.state_of(0);
    state.name = None;
    kernel.publish(0, &state);
    kernel
        .tree
        .borrow_mut()
        .remove(Path::new("/run/hcablk/ublk/data.wanted"));
    assert!(ok(&kernel, "list").contains("ublkb0 "));
    assert_eq!(
        steps_of(&kernel, "disconnect ublkb0"),
        ["run hcablk-ublk remove --mark 700 0"]
    );
}

#[test]
fn another_programs_process_of_the_same_number_serves_nothing() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    kernel.file("/proc/1000/comm", "bash\n");
    assert!(ok(&kernel, "list").contains(" left "));
}

#[test]
fn inapplicable_commands_fail_with_one_message() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    for (line, lacks) in [
        ("stats data", "counters"),
        ("times data", "times"),
        ("path add data 10.0.1.1", "paths"),
        ("path remove data 10.0.1.1", "paths"),
        ("path policy data numa", "paths"),
        ("path sync data", "paths"),
        ("acknowledge-loss data", "way to acknowledge a loss"),
    ] {
        for loaded in [false, true] {
            if loaded {
                kernel.folder("/sys/kernel/config/hcablk");
            }
            let error = fails(&kernel, line);
            assert_eq!(error.kind, Kind::Failed, "{line}");
            assert!(error.message.contains("in user space"), "{line}: {error:?}");
            assert!(error.message.contains(lacks), "{line}: {error:?}");
            kernel
                .tree
                .borrow_mut()
                .remove(Path::new("/sys/kernel/config/hcablk"));
        }
    }
}

#[test]
fn list_shows_both_kinds() {
    let kernel = Kernel::loaded();
    for path in [
        "/usr/sbin/hcablk-ublk",
        "/dev/ublk-control",
        "/dev/infiniband/rdma_cm",
    ] {
        kernel.file(path, "");
    }
    kernel.folder("/run/systemd/system");
    ok(&kernel, "connect 10.0.0.1 db");
    ok(
        &kernel,
        "connect --user 10.0.0.1 data --queues 1 --ctrl-loss-tmo -1",
    );
    ok(&kernel, "connect --user 10.0.0.1 logs");
    let mut state = kernel.state_of(1);
    state.lost_writes = true;
    kernel.publish(1, &state);
    let text = ok(&kernel, "list");
    golden("list-user.txt", &text);
    let outcome = hcablk(&kernel, "list").unwrap();
    assert!(
        outcome.notes[0].contains("hcablk disconnect logs"),
        "{:?}",
        outcome.notes
    );
    golden("list-user.json", &outcome.to_json());
    // A disk that is being made is shown, too.
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    let text = kernel.text(files::wanted("data"));
    ok(&kernel, "disconnect data");
    kernel.file(files::wanted("data"), &text);
    let unit = "hcablk-ublk@data.service".to_owned();
    kernel.units.borrow_mut().insert(unit, "activating");
    let line = ok(&kernel, "list");
    assert!(
        line.contains("connecting") && line.contains("10.0.0.1:7744"),
        "{line}"
    );
    assert!(hcablk(&kernel, "list").unwrap().notes.is_empty());
    // No unit makes the disk any more.
    kernel.units.borrow_mut().clear();
    let line = ok(&kernel, "list");
    assert!(
        line.contains("failed") && line.contains("hcablk-ublk@data.service is inactive"),
        "{line}"
    );
}

#[test]
fn a_state_that_cannot_be_read_hides_no_other_disk() {
    let kernel = Kernel::for_user_space();
    ok(&kernel, CONNECT);
    ok(&kernel, "connect --user 10.0.0.1 logs");
    kernel.file(files::state(0), "{\"pid\":");
    let list = ok(&kernel, "list");
    let shown = |name: &str, state: &str| {
        let is_it = |line: &str| line.starts_with(name) && line.contains(state);
        list.lines().any(is_it)
    };
    assert!(shown("logs", " live "), "{list}");
    assert!(shown("ublkb0", " unknown "), "{list}");
    assert!(list.contains("0.state cannot be understood"), "{list}");
    ok(&kernel, "disconnect logs");
}

const CONFIG: &str =
    "[disk.data]\naddress = \"10.0.0.1\"\nuser = true\nqueues = 2\nctrl_loss_tmo = \"never\"\n";

/// A machine whose configuration has this text.
fn configured(text: &str) -> Kernel {
    let kernel = Kernel::for_user_space();
    kernel.file("/etc/hcablk/hcablk.toml", text);
    kernel
}

#[test]
fn a_configured_disk_is_connected_by_name_and_by_apply() {
    for line in [
        "connect data",
        "connect --all",
        "apply",
        "apply --keep-going",
    ] {
        let kernel = configured(CONFIG);
        let steps = steps_of(&kernel, line);
        assert_eq!(
            steps,
            [
                "replace data.wanted",
                "run systemctl start --no-block hcablk-ublk@data.service"
            ],
            "{line}"
        );
        let wanted = wanted(&kernel, "data");
        assert_eq!(wanted.option("queues"), Some("2"));
        assert_eq!(wanted.option("ctrl-loss-tmo"), Some("4294967295"));
        assert!(steps_of(&kernel, line).is_empty(), "{line}");
        assert_eq!(ok(&kernel, "config diff"), "", "{line}");
        assert_eq!(ok(&kernel, "config show"), CONFIG);
        assert_eq!(ok(&kernel, "config show --running"), CONFIG);
    }
}

#[test]
fn a_dry_run_lists_the_steps_and_makes_none() {
    let kernel = configured(CONFIG);
    assert_eq!(
        ok(&kernel, "apply --dry-run"),
        "would make disk data (address 10.0.0.1, volume data, queues 2, ctrl_loss_tmo 4294967295)\n"
    );
    assert!(ok(&kernel, "config diff").contains("+ disk data: it is missing"));
    assert_eq!(kernel.changes(), 0);
}

#[test]
fn settings_that_such_a_disk_does_not_have_are_mistakes() {
    for (line, what) in [
        (
            "policy = \"numa\"",
            "`policy`: a disk in user space has no setting",
        ),
        (
            "max_io = \"64 KiB\"",
            "`max_io`: a disk in user space has no setting",
        ),
        (
            "timing = true",
            "`timing`: a disk in user space has no setting",
        ),
        (
            "paths = { 1 = \"10.0.1.1\" }",
            "`paths`: a disk in user space has one path",
        ),
        (
            "paths = \"auto\"",
            "`paths`: a disk in user space has one path",
        ),
        (
            "queues = 0",
            "`queues`: queues of a disk in user space is 1 to 127, not 0",
        ),
        ("small_read = \"64 KiB\"", "is 0 to 8192, not 65536"),
    ] {
        let kernel = configured(&format!(
            "[disk.data]\naddress = \"10.0.0.1\"\nuser = true\n{line}\n"
        ));
        let error = fails(&kernel, "config check");
        assert_eq!(error.kind, Kind::Usage, "{line}");
        assert!(error.message.contains(what), "{line}: {error:?}");
        let kernel = configured(&format!("[disk.data]\naddress = \"10.0.0.1\"\n{line}\n"));
        ok(&kernel, "config check");
    }
    for right in ["insecure = true", "keep_alive_tmo = \"3 s\"", "port = 7745"] {
        let kernel = configured(&format!(
            "[disk.data]\naddress = \"10.0.0.1\"\nuser = true\n{right}\n"
        ));
        ok(&kernel, "config check");
    }
}

#[test]
fn a_changed_setting_waits_until_the_disk_may_end() {
    let kernel = configured(CONFIG);
    ok(&kernel, "apply");
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        &CONFIG.replace("queues = 2", "queues = 3"),
    );
    let outcome = hcablk(&kernel, "apply").unwrap();
    assert_eq!(outcome.exit, Some(Kind::Exists));
    assert!(
        outcome
            .report
            .to_string()
            .contains("set queues of disk data from 2 to 3"),
        "{}",
        outcome.report
    );
    let error = fails(&kernel, "connect data");
    assert_eq!(error.kind, Kind::Exists);
    assert_eq!(
        steps_of(&kernel, "apply --force"),
        [
            "run systemctl stop hcablk-ublk@data.service",
            "forget data.wanted",
            "replace data.wanted",
            "run systemctl start --no-block hcablk-ublk@data.service"
        ]
    );
    assert_eq!(wanted(&kernel, "data").option("queues"), Some("3"));
    // A setting that is left out has its default again.
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        &CONFIG.replace("queues = 2\n", ""),
    );
    ok(&kernel, "apply --force");
    assert_eq!(wanted(&kernel, "data").option("queues"), None);
}

#[test]
fn a_disk_that_is_lost_for_good_is_made_anew_if_nobody_uses_it() {
    let kernel = configured(CONFIG);
    ok(&kernel, "apply");
    lose(&kernel, Phase::Failed);
    let mounts = "/proc/self/mountinfo";
    kernel.file(
        mounts,
        "40 22 259:7 / /mnt/a rw,noatime shared:1 - ext4 /dev/ublkb0 rw\n",
    );
    let outcome = hcablk(&kernel, "apply").unwrap();
    assert_eq!(outcome.exit, Some(Kind::Exists));
    let told = outcome.report.to_string();
    assert!(
        told.contains("its requests fail, and it is in use: ") && told.contains("umount /mnt/a"),
        "{told}"
    );
    assert!(ok(&kernel, "list").contains(" failed "));
    kernel.tree.borrow_mut().remove(Path::new(mounts));
    assert_eq!(
        steps_of(&kernel, "apply"),
        [
            "run systemctl stop hcablk-ublk@data.service",
            "forget data.wanted",
            "replace data.wanted",
            "run systemctl start --no-block hcablk-ublk@data.service"
        ]
    );
    assert!(ok(&kernel, "list").contains(" live "));
}

#[test]
fn a_disk_in_use_is_not_ended_by_force_either() {
    let kernel = configured(CONFIG);
    ok(&kernel, "apply");
    kernel.file(
        "/proc/self/mountinfo",
        "40 22 259:7 / /mnt/a rw,noatime shared:1 - ext4 /dev/ublkb0 rw\n",
    );
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        &format!("{CONFIG}enabled = false\n"),
    );
    assert_eq!(hcablk(&kernel, "apply").unwrap().exit, Some(Kind::Exists));
    assert_eq!(fails(&kernel, "apply --force").kind, Kind::Busy);
    kernel
        .tree
        .borrow_mut()
        .remove(Path::new("/proc/self/mountinfo"));
    ok(&kernel, "apply --force");
    assert!(!kernel.has("/dev/ublkb0"));
    assert!(steps_of(&kernel, "apply").is_empty());
}

#[test]
fn apply_undoes_earlier_steps_when_a_later_disk_fails() {
    let two = format!("{CONFIG}[disk.logs]\naddress = \"10.0.0.1\"\nuser = true\n");
    let kernel = configured(&two);
    let snapshot = kernel.snapshot();
    let why = (Some(Errno::ENOENT), "no volume".to_owned());
    kernel.unserved.borrow_mut().insert("logs".to_owned(), why);
    assert_eq!(fails(&kernel, "apply").kind, Kind::Connection);
    assert_eq!(kernel.snapshot(), snapshot);
    // A disk that was changed before the failure has its former settings.
    kernel.file("/etc/hcablk/hcablk.toml", CONFIG);
    ok(&kernel, "apply");
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        &two.replace("queues = 2", "queues = 3"),
    );
    fails(&kernel, "apply --force");
    assert_eq!(wanted(&kernel, "data").option("queues"), Some("2"));
    assert!(kernel.has("/dev/ublkb0"));
    let outcome = hcablk(&kernel, "apply --force --keep-going").unwrap();
    assert_eq!(outcome.exit, Some(Kind::Connection));
    assert_eq!(wanted(&kernel, "data").option("queues"), Some("3"));
}

#[test]
fn each_step_of_apply_is_undone() {
    each_failure_is_undone(|| configured(CONFIG), "apply");
}

#[test]
fn a_target_that_is_not_up_yet_is_waited_for() {
    let kernel = configured(CONFIG);
    let why = (Some(Errno::ECONNREFUSED), "nobody listens".to_owned());
    kernel.unserved.borrow_mut().insert("data".to_owned(), why);
    *kernel.meanwhile.borrow_mut() =
        Some((3, Box::new(|kernel| kernel.unserved.borrow_mut().clear())));
    assert_eq!(ok(&kernel, "connect data --wait 60"), "/dev/ublkb0\n");
}

#[test]
fn a_disk_of_the_other_kind_is_left_alone() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel.file("/etc/hcablk/hcablk.toml", CONFIG);
    let error = fails(&kernel, "apply");
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains("kernel's driver"), "{error:?}");
    let kernel = configured("[disk.data]\naddress = \"10.0.0.1\"\n");
    ok(&kernel, CONNECT);
    let error = fails(&kernel, "apply");
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.message.contains("in user space"), "{error:?}");
}

#[test]
fn unconfigured_disks_are_reported_and_saved() {
    let kernel = configured("");
    ok(&kernel, "connect --user 10.0.0.1 data --name db --port 7745 --wwid 0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11");
    let notes = hcablk(&kernel, "apply").unwrap().notes;
    assert!(
        notes.iter().any(|note| note.contains("disk db")),
        "{notes:?}"
    );
    ok(&kernel, "config save --force");
    let text = kernel.text("/etc/hcablk/hcablk.toml");
    assert!(
        text.ends_with(
            "[disk.db]\naddress = \"10.0.0.1\"\nvolume = \"data\"\nwwid = \"0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11\"\nuser = true\nport = 7745"
        ),
        "{text}"
    );
    assert!(steps_of(&kernel, "apply").is_empty());
}
