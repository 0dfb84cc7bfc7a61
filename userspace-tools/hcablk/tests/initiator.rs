// SPDX-License-Identifier: GPL-2.0

//! `connect`, `disconnect`, `list`, `stats` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use hcablk::system::Process;
use kernel::{each_failure_is_undone, fails, golden, hcablk, ok, Kernel};
use nix::errno::Errno;

const HOST: &str = "2c76c224-38b3-5f2d-b27d-4051ae2d4024";

#[test]
fn connect_prints_the_device() {
    let kernel = Kernel::loaded();
    assert_eq!(ok(&kernel, "connect 10.0.0.1 data"), "/dev/hcablk0\n",);
    assert_eq!(kernel.device("data", "address"), "10.0.0.1");
    assert_eq!(kernel.device("data", "volume"), "data");
    assert_eq!(kernel.device("data", "host_id"), HOST);
    assert_eq!(kernel.device("data", "enable"), "1");
}

#[test]
fn connect_writes_every_option() {
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        "connect fd00::1 data --port 7745 --name db --queues 2 --poll-queues 1 --wwid 0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11 --queue-depth 64 --io-timeout 5 \
         --connect-timeout 3 --reconnect-delay 2 --ctrl-loss-tmo -1 --fast-io-fail-tmo 5 --keep-alive-tmo 4 \
         --host-id 5f2c1d6e-8a0b-4c3d-9e7f-001122334455 --no-remote-invalidate \
         --small-read 512 --small-write 1024 --eager-write 8192 --max-io-kib 4096 --message-requests 2 --batch-upper 8 --batch-lower 0 \
         --policy round-robin --insecure",
    );
    for (attribute, value) in [
        ("address", "fd00::1"),
        ("port", "7745"),
        ("volume", "data"),
        ("queues", "2"),
        ("poll_queues", "1"),
        ("expect_wwid", "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11"),
        ("queue_depth", "64"),
        ("io_timeout", "5"),
        ("connect_timeout", "3"),
        ("reconnect_delay", "2"),
        ("ctrl_loss_tmo", "-1"),
        ("fast_io_fail_tmo", "5"),
        ("keep_alive_tmo", "4"),
        ("host_id", "5f2c1d6e-8a0b-4c3d-9e7f-001122334455"),
        ("remote_invalidate", "0"),
        ("insecure", "1"),
        ("small_read", "512"),
        ("small_write", "1024"),
        ("eager_write", "8192"),
        ("max_io_kib", "4096"),
        ("message_requests", "2"),
        ("batch_upper", "8"),
        ("batch_lower", "0"),
        ("policy", "round-robin"),
    ] {
        assert_eq!(kernel.device("db", attribute), value, "{attribute}");
    }
}

#[test]
fn connect_loads_the_module_and_mounts_configfs() {
    let kernel = Kernel::bare();
    ok(&kernel, "connect 10.0.0.1 data");
    let log = kernel.log.borrow();
    assert_eq!(
        log[..3],
        ["load configfs", "mount /sys/kernel/config", "load hcablk"]
    );
}

#[test]
fn connect_without_the_module() {
    let kernel = Kernel::bare();
    kernel.modules.set(false);
    let error = fails(&kernel, "connect 10.0.0.1 data");
    assert_eq!(error.kind, Kind::Setup);
    assert!(error.message.contains("hcablk not found"), "{error:?}");
}

#[test]
fn connect_without_rights() {
    let kernel = Kernel::loaded();
    kernel.unprivileged.set(true);
    let error = fails(&kernel, "connect 10.0.0.1 data");
    assert_eq!(error.kind, Kind::Setup);
    assert!(error.advice.unwrap().contains("sudo"));
}

#[test]
fn connect_without_a_host_id() {
    let kernel = Kernel::loaded();
    kernel.file("/etc/machine-id", "uninitialized\n");
    let error = fails(&kernel, "connect 10.0.0.1 data");
    assert_eq!(error.kind, Kind::Setup);
    assert!(error.advice.unwrap().contains("hcablk host-id --generate"));
    assert_eq!(kernel.changes(), 0);
}

#[test]
fn connecting_twice_changes_nothing() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data --queues 2");
    let changes = kernel.changes();
    for line in [
        "connect 10.0.0.1 data",
        "connect 10.0.0.1 data --queues 2",
        "connect 10.0.0.1 data --name data",
    ] {
        let outcome = hcablk(&kernel, line).unwrap();
        assert_eq!(outcome.report.to_string(), "/dev/hcablk0\n");
        assert_eq!(outcome.notes, ["data is connected already"]);
    }
    assert_eq!(kernel.changes(), changes);
}

#[test]
fn a_volume_that_is_connected_under_another_name_is_found() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data --name db");
    assert_eq!(ok(&kernel, "connect 10.0.0.1 data"), "/dev/hcablk0\n");
    assert!(!kernel.has("/sys/kernel/config/hcablk/data"));
    // A name selects exactly that device.
    assert_eq!(
        ok(&kernel, "connect 10.0.0.1 data --name other"),
        "/dev/hcablk1\n"
    );
}

#[test]
fn connect_with_other_settings_is_refused() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data --queues 2");
    let snapshot = kernel.snapshot();
    for (line, difference) in [
        ("connect 10.0.0.2 data", "address is 10.0.0.1, not 10.0.0.2"),
        (
            "connect 10.0.0.1 data --port 7745",
            "port is 7744, not 7745",
        ),
        ("connect 10.0.0.1 data --queues 3", "queues is 2, not 3"),
        (
            "connect 10.0.0.1 other --name data",
            "volume is data, not other",
        ),
        (
            "connect 10.0.0.1 data --policy numa",
            "policy is queue-depth, not numa",
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
fn a_failed_device_is_connected_again() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel.set_device("data", "state", "failed");
    kernel.set_device("data", "enable", "0");
    let before = kernel.changes();
    assert_eq!(ok(&kernel, "connect 10.0.0.1 data"), "/dev/hcablk1\n");
    assert_eq!(kernel.device("data", "state"), "live");
    // One write of 1 to `enable`: a 0 before it would make the driver forget the volume.
    assert_eq!(kernel.changes(), before + 1);
}

#[test]
fn a_device_in_the_middle_of_a_change_is_left_alone() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    for state in ["connecting", "failing", "disconnecting"] {
        kernel.set_device("data", "state", state);
        let error = fails(&kernel, "connect 10.0.0.1 data");
        assert_eq!(error.kind, Kind::Busy);
        assert!(error.message.contains(state));
    }
}

#[test]
fn a_device_that_was_only_begun_is_finished() {
    let kernel = Kernel::loaded();
    hcablk::system::System::mkdir(&kernel, "/sys/kernel/config/hcablk/data".as_ref()).unwrap();
    assert_eq!(
        ok(&kernel, "connect 10.0.0.1 data --port 7745"),
        "/dev/hcablk0\n"
    );
}

#[test]
fn each_failure_of_connect_is_undone() {
    each_failure_is_undone(
        Kernel::loaded,
        "connect 10.0.0.1 data --queues 2 --io-timeout 5",
    );
}

#[test]
fn an_existing_device_stays_when_connect_fails() {
    let kernel = Kernel::loaded();
    hcablk::system::System::mkdir(&kernel, "/sys/kernel/config/hcablk/data".as_ref()).unwrap();
    kernel.refuse("data", Errno::ECONNREFUSED, "");
    fails(&kernel, "connect 10.0.0.1 data --port 7745");
    assert_eq!(kernel.device("data", "port"), "7744");
    assert_eq!(kernel.device("data", "enable"), "0");
}

#[test]
fn a_missing_node_is_undone() {
    let kernel = Kernel::loaded();
    kernel.no_nodes.set(true);
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, "connect 10.0.0.1 data");
    assert!(
        error.message.contains("/dev/hcablk0 did not appear"),
        "{error:?}"
    );
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn refusals_are_explained_and_undone() {
    for (errno, kind, advice) in [
        (
            Errno::ECONNREFUSED,
            Kind::Connection,
            "hcablk target listen --port 7744",
        ),
        (Errno::ENOENT, Kind::Connection, "hcablk target list"),
        (
            Errno::EACCES,
            Kind::Connection,
            "hcablk target allow data 2c76c224-38b3-5f2d-b27d-4051ae2d4024",
        ),
        (Errno::EPROTONOSUPPORT, Kind::Connection, "same release"),
        (Errno::ECONNRESET, Kind::Connection, "target's log"),
        (Errno::EPROTO, Kind::Connection, "A program other"),
        (Errno::ESTALE, Kind::Connection, "the same host id"),
        (Errno::ETIMEDOUT, Kind::Connection, "--connect-timeout"),
        (
            Errno::EHOSTUNREACH,
            Kind::Connection,
            "ip route get 10.0.0.1",
        ),
        (Errno::ENETUNREACH, Kind::Connection, "rdma link show"),
        (Errno::EADDRNOTAVAIL, Kind::Connection, "rdma link show"),
        (Errno::ENODEV, Kind::Setup, "rdma link add rxe0 type rxe"),
        (Errno::ENOMEM, Kind::Failed, "--queues"),
        (Errno::EBUSY, Kind::Busy, "Try again"),
        (Errno::EINVAL, Kind::Failed, "settings"),
        (Errno::EIO, Kind::Connection, "dmesg"),
    ] {
        let kernel = Kernel::loaded();
        let snapshot = kernel.snapshot();
        kernel.refuse("data", errno, "words of the driver");
        let error = fails(&kernel, "connect 10.0.0.1 data");
        assert_eq!(error.kind, kind, "{errno:?}");
        assert_eq!(error.errno, Some(format!("{errno:?}")));
        assert!(error.message.contains("words of the driver"), "{error:?}");
        assert!(error.advice.as_ref().unwrap().contains(advice), "{error:?}");
        assert_eq!(kernel.snapshot(), snapshot, "{errno:?}");
    }
}

/// A target that is down, or whose RDMA device is down, does not answer ARP: the advice does not
/// blame a firewall.
#[test]
fn an_unused_address_is_distinguished_from_a_silent_target() {
    let kernel = Kernel::loaded();
    let why = "looking for an RDMA device that reaches the address took too long";
    kernel.refuse("data", Errno::ETIMEDOUT, why);
    let advice = fails(&kernel, "connect 10.0.0.1 data").advice.unwrap();
    for word in ["ip neigh show 10.0.0.1", "ip -br address", "ACTIVE"] {
        assert!(advice.contains(word), "{advice}");
    }
    assert!(!advice.contains("4791"), "{advice}");
}

#[test]
fn steps_that_could_not_be_undone_are_reported() {
    let kernel = Kernel::loaded();
    kernel.refuse("data", Errno::ECONNREFUSED, "");
    // mkdir, address, port, volume, host_id, enable, then the undoing rmdir.
    kernel.fail_at.set(Some(6));
    let error = fails(&kernel, "connect 10.0.0.1 data");
    assert_eq!(error.not_undone.len(), 1);
    assert!(
        error
            .to_text()
            .contains("could not undo: cannot remove /sys/kernel/config/hcablk/data"),
        "{error:?}"
    );
}

#[test]
fn disconnect_by_name_or_node() {
    for which in ["db", "/dev/hcablk0", "hcablk0"] {
        let kernel = Kernel::loaded();
        let snapshot = kernel.snapshot();
        ok(&kernel, "connect 10.0.0.1 data --name db");
        assert_eq!(
            ok(&kernel, &format!("disconnect {which}")),
            "disconnected db\n"
        );
        assert_eq!(kernel.snapshot(), snapshot);
    }
}

#[test]
fn disconnect_all() {
    let kernel = Kernel::loaded();
    let snapshot = kernel.snapshot();
    ok(&kernel, "connect 10.0.0.1 a");
    ok(&kernel, "connect 10.0.0.1 b");
    assert_eq!(
        ok(&kernel, "disconnect --all"),
        "disconnected a\ndisconnected b\n"
    );
    assert_eq!(kernel.snapshot(), snapshot);
    assert_eq!(
        hcablk(&kernel, "disconnect --all").unwrap().notes,
        ["nothing to disconnect"]
    );
    ok(&Kernel::bare(), "disconnect --all");
}

#[test]
fn disconnect_of_a_missing_disk_fails() {
    for kernel in [Kernel::loaded(), Kernel::bare()] {
        assert_eq!(fails(&kernel, "disconnect data").kind, Kind::NotFound);
        ok(&kernel, "disconnect data --if-exists");
        assert_eq!(kernel.changes(), 0);
    }
}

#[test]
fn a_device_in_use_is_not_disconnected() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel.busy.set(u32::MAX);
    kernel.file(
        "/proc/self/mountinfo",
        "40 22 252:0 / /mnt/a\\040b rw - ocfs2 /dev/hcablk0 rw\n41 22 252:1 / /mnt/c rw - ext4 \
         /dev/hcablk0p1 rw\n",
    );
    kernel.folder("/sys/block/hcablk0/hcablk0p1");
    kernel.file("/sys/block/hcablk0/hcablk0p1/dev", "252:1\n");
    kernel.folder("/sys/block/hcablk0/holders");
    kernel.folder("/sys/block/hcablk0/holders/dm-0");
    let error = fails(&kernel, "disconnect data");
    assert_eq!(error.kind, Kind::Busy);
    assert_eq!(error.message, "data (/dev/hcablk0) is in use");
    let advice = error.advice.unwrap();
    for words in [
        "/dev/hcablk0 is mounted at /mnt/a b: umount /mnt/a b",
        "/dev/hcablk0p1 is mounted at /mnt/c",
        "part of /dev/dm-0",
    ] {
        assert!(advice.contains(words), "{advice}");
    }
    assert_eq!(kernel.pauses.get(), 0);
    assert_eq!(kernel.device("data", "state"), "live");
}

#[test]
fn a_process_that_has_it_open_is_named() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel.busy.set(u32::MAX);
    kernel.processes.borrow_mut().push(Process {
        pid: 42,
        name: "fio".to_owned(),
    });
    assert!(fails(&kernel, "disconnect data")
        .advice
        .unwrap()
        .contains("process 42 (fio)"));
}

#[test]
fn disconnect_outlasts_udev() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel.busy.set(3);
    kernel.processes.borrow_mut().push(Process {
        pid: 42,
        name: "(udev-worker)".to_owned(),
    });
    ok(&kernel, "disconnect data");
    assert_eq!(kernel.pauses.get(), 3);
}

#[test]
fn disconnect_waits_for_the_end_of_a_disk() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel.busy_removals.set(3);
    ok(&kernel, "disconnect data");
    assert!(!kernel.has("/sys/kernel/config/hcablk/data"));
}

#[test]
fn undoing_waits_for_the_end_of_a_disk() {
    let kernel = Kernel::loaded();
    let snapshot = kernel.snapshot();
    kernel.no_nodes.set(true);
    kernel.busy.set(2);
    kernel.busy_removals.set(2);
    let error = fails(&kernel, "connect 10.0.0.1 data");
    assert_eq!(error.not_undone, [""; 0]);
    assert_eq!(kernel.snapshot(), snapshot);
}

#[test]
fn disconnect_gives_up_on_an_unknown_user() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    kernel.busy.set(u32::MAX);
    let error = fails(&kernel, "disconnect data");
    assert_eq!(error.kind, Kind::Busy);
    assert!(error.advice.unwrap().contains("fuser -v /dev/hcablk0"));
}

#[test]
fn disconnect_all_removes_every_unused_disk() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 a");
    ok(&kernel, "connect 10.0.0.1 b");
    kernel.busy.set(1);
    kernel.processes.borrow_mut().push(Process {
        pid: 42,
        name: "fio".to_owned(),
    });
    let error = fails(&kernel, "disconnect --all");
    assert_eq!(error.message, "a (/dev/hcablk0) is in use");
    assert_eq!(*error.done, ["disconnected b"]);
    assert!(error.to_text().contains("  done: disconnected b\n"));
    assert!(kernel.has("/sys/kernel/config/hcablk/a"));
    assert!(!kernel.has("/sys/kernel/config/hcablk/b"));
}

#[test]
fn disconnect_waits_for_a_disk_that_is_being_unmounted() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    let in_use = |is_so: bool| {
        move |kernel: &Kernel| {
            kernel.busy.set(if is_so { u32::MAX } else { 0 });
            let process = Process {
                pid: 42,
                name: "fio".to_owned(),
            };
            kernel
                .processes
                .replace(Vec::from_iter(is_so.then_some(process)));
        }
    };
    in_use(true)(&kernel);
    assert_eq!(fails(&kernel, "disconnect data").kind, Kind::Busy);
    let began = kernel.time.get();
    assert_eq!(fails(&kernel, "disconnect data --wait 5").kind, Kind::Busy);
    assert!(kernel.time.get() - began >= std::time::Duration::from_secs(5));
    let pauses = kernel.pauses.get();
    kernel
        .meanwhile
        .replace(Some((pauses + 3, Box::new(in_use(false)))));
    ok(&kernel, "disconnect data --wait 60");
    assert!(!kernel.has("/sys/kernel/config/hcablk/data"));
    assert!(kernel
        .progress
        .borrow()
        .iter()
        .any(|line| line.contains("is in use; waiting")));
}

#[test]
fn list_shows_devices() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    hcablk::system::System::mkdir(&kernel, "/sys/kernel/config/hcablk/new".as_ref()).unwrap();
    kernel.set_device("new", "error", "connection refused");
    let outcome = hcablk(&kernel, "list").unwrap();
    golden("list.txt", &outcome.report.to_string());
    golden("list.json", &outcome.to_json());
}

#[test]
fn list_without_the_module() {
    let outcome = hcablk(&Kernel::bare(), "list").unwrap();
    assert_eq!(
        outcome.notes,
        ["the kernel module hcablk is not loaded: no disks"],
    );
}

#[test]
fn stats_of_all_or_one() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    ok(&kernel, "connect 10.0.0.1 other");
    kernel.set_device("data", "stats", "reads 12\nwrites 3\ncopied_bytes 0\n");
    let outcome = hcablk(&kernel, "stats").unwrap();
    golden("stats.txt", &outcome.report.to_string());
    golden("stats.json", &outcome.to_json());
    let one = ok(&kernel, "stats /dev/hcablk1");
    assert!(one.starts_with("COUNTER       other\n"), "{one}");
    assert_eq!(fails(&kernel, "stats none").kind, Kind::NotFound,);
}

#[test]
fn times_are_measured_when_asked_for() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    ok(&kernel, "connect 10.0.0.1 other");
    let outcome = hcablk(&kernel, "times").unwrap();
    assert_eq!(
        outcome.notes,
        ["nothing was measured: `hcablk times --measure on` starts measuring"]
    );
    hcablk(&kernel, "times data --measure on").unwrap();
    kernel.set_device(
        "data",
        "times",
        "queued 3 9000 1024:1 8192:2\nsent 3 6000000 2097152:1 4194304:2\nending 0 0\n",
    );
    let outcome = hcablk(&kernel, "times").unwrap();
    assert!(outcome.notes.is_empty());
    golden("times.txt", &outcome.report.to_string());
    golden("times.json", &outcome.to_json());
    ok(&kernel, "times --measure off");
    assert!(!hcablk(&kernel, "times data")
        .unwrap()
        .to_json()
        .contains("true"));
    kernel.set_device("data", "times", "queued three\n");
    assert_eq!(fails(&kernel, "times data").kind, Kind::Failed);
    assert_eq!(fails(&kernel, "times none").kind, Kind::NotFound);
    assert_eq!(
        hcablk(&Kernel::bare(), "times").unwrap().notes,
        ["the kernel module hcablk is not loaded: no disks"],
    );
}

/// Every single value of a disk can be a column, and nothing else can.
#[test]
fn a_list_has_the_columns_that_are_asked_for() {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data");
    assert_eq!(
        ok(&kernel, "list --columns state,name,queue_depth,error"),
        "STATE  NAME  QUEUE_DEPTH  ERROR\nlive   data          128      -\n"
    );
    let json: serde_json::Value =
        serde_json::from_str(&hcablk(&kernel, "list --columns name").unwrap().to_json()).unwrap();
    let columns = hcablk::output::columns::DISKS;
    let members = json["devices"][0].as_object().unwrap();
    for column in columns {
        assert!(members.contains_key(column), "{column}");
    }
    for (name, value) in members {
        let is_column = columns.contains(&name.as_str());
        assert!(
            is_column || ["paths", "session"].contains(&name.as_str()),
            "{name}: {value}"
        );
    }
}

#[test]
fn results_as_json() {
    let kernel = Kernel::loaded();
    let connected = hcablk(&kernel, "connect 10.0.0.1 data").unwrap();
    golden("connect.json", &connected.to_json());
    kernel.refuse("other", Errno::EACCES, "host not allowed");
    let error = fails(&kernel, "connect 10.0.0.1 other");
    golden("error.json", &hcablk::output::error_json(&error));
}
