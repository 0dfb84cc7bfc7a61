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
            format!("configured already: [disk.data] in {MAIN}")
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

    // A second export uses the configured port.
    ok(&kernel, "target export log /dev/sdc --persist");
    assert_eq!(text(&kernel, MAIN).matches("[port.").count(), 1);
    ok(&kernel, "target export tmp /dev/sdd --no-port --persist");
    assert_eq!(text(&kernel, MAIN).matches("[export.").count(), 3);
    is_applied(&kernel);
    assert!(notes(&kernel, "target export tmp /dev/sdd --persist")
        .contains(&format!("configured already: [export.tmp] in {MAIN}")));
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

/// If the file cannot be written, the disk or the export is undone, and the other way round.
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

/// The commands that write a table.
const COMMANDS: [&str; 3] = [
    "connect 10.0.0.1 data --persist",
    "connect --user 10.0.0.1 data --persist",
    "target export data /dev/sdb --persist",
];

/// A machine with both modules, and with all that disks in user space need.
fn complete() -> Kernel {
    let kernel = machine();
    kernel.folder("/run/systemd/system");
    for file in [
        "/usr/sbin/hcablk-ublk",
        "/dev/ublk-control",
        "/dev/infiniband/rdma_cm",
    ] {
        kernel.file(file, "");
    }
    kernel
}

/// Connecting may take minutes, in which an editor or another command writes the files.
#[test]
fn a_change_of_the_files_while_the_disk_connects_stays() {
    let other = "# theirs\n[disk.log]\naddress = \"10.0.0.2\" # rack 7\n";
    for line in COMMANDS {
        for before in [None, Some("# mine\n")] {
            let kernel = complete();
            if let Some(text) = before {
                kernel.file(MAIN, text);
            }
            *kernel.while_enabling.borrow_mut() = Some(Box::new(move |kernel| {
                assert!(!kernel.applies.get(), "{line}: the files are locked");
                kernel.file(MAIN, other);
            }));
            ok(&kernel, line);
            assert!(kernel.while_enabling.borrow().is_none(), "{line}");
            let config = text(&kernel, MAIN);
            assert!(config.starts_with(other), "{line}: {config}");
            assert!(config.contains(".data]\n"), "{line}: {config}");
        }
    }
}

/// An editor does not respect the lock.
#[test]
fn a_change_of_the_files_while_they_are_locked_stays_and_the_command_fails() {
    let other = "# theirs\n[disk.log]\naddress = \"10.0.0.2\"\n";
    for line in COMMANDS {
        for before in [None, Some("# mine\n")] {
            let kernel = complete();
            if let Some(text) = before {
                kernel.file(MAIN, text);
            }
            *kernel.while_locked.borrow_mut() = Some(Box::new(move |kernel| {
                kernel.file(MAIN, other);
            }));
            let error = fails(&kernel, line);
            assert!(kernel.while_locked.borrow().is_none(), "{line}");
            assert_eq!(error.message, format!("{MAIN} was changed meanwhile"));
            assert_eq!(error.not_undone, [""; 0], "{line}");
            assert_eq!(text(&kernel, MAIN), other, "{line}");
            for gone in [
                "/sys/kernel/config/hcablk/data",
                "/sys/kernel/config/hcablk_target/volumes/data",
                "/dev/ublkb0",
            ] {
                assert!(!kernel.has(gone), "{line}: {gone}");
            }
        }
    }
}

/// The address of such a name was not looked up, and must not be looked up while others wait for the lock.
#[test]
fn a_name_that_the_files_get_before_the_lock_is_not_looked_up_with_it() {
    for line in &COMMANDS[..2] {
        let kernel = complete();
        kernel.applies.set(true);
        let edit = |kernel: &Kernel| {
            kernel.file(MAIN, "[disk.data]\naddress = \"localhost\"\n");
            kernel.applies.set(false);
        };
        *kernel.meanwhile.borrow_mut() = Some((1, Box::new(edit)));
        let error = fails(&kernel, line);
        assert_eq!(
            error.message,
            format!("{MAIN} was changed meanwhile: [disk.data] has the address localhost now")
        );
    }
}

#[test]
fn a_mistake_that_is_made_while_the_disk_connects_undoes_it() {
    for line in COMMANDS {
        let kernel = complete();
        *kernel.while_enabling.borrow_mut() = Some(Box::new(|kernel| {
            kernel.file(MAIN, "[disk.x]\nadress = \"10.0.0.1\"\n");
        }));
        let error = fails(&kernel, line);
        assert_eq!(error.kind, Kind::Usage, "{line}");
        assert_eq!(error.not_undone, [""; 0], "{line}");
        for gone in [
            "/sys/kernel/config/hcablk/data",
            "/sys/kernel/config/hcablk_target/volumes/data",
            "/dev/ublkb0",
        ] {
            assert!(!kernel.has(gone), "{line}: {gone}");
        }
    }
}

#[test]
fn commands_that_write_the_files_wait_for_each_other() {
    let lines = COMMANDS.into_iter().chain(["config save"]);
    for line in lines {
        let kernel = complete();
        kernel.applies.set(true);
        let free = |kernel: &Kernel| {
            assert!(!kernel.has(MAIN));
            kernel.applies.set(false);
        };
        *kernel.meanwhile.borrow_mut() = Some((3, Box::new(free)));
        ok(&kernel, line);
        assert!(kernel.has(MAIN), "{line}");
        assert!(kernel.pauses.get() >= 3, "{line}");
        assert!(!kernel.applies.get(), "{line}: the lock is still held");
    }
}

#[test]
fn a_machine_without_the_folder_gets_it_for_the_lock() {
    let kernel = Kernel::loaded();
    kernel.folder("/etc");
    ok(&kernel, "connect 10.0.0.1 data --persist");
    assert!(kernel
        .log
        .borrow()
        .contains(&"mkdir /etc/hcablk".to_owned()));
    assert!(kernel.has(MAIN));
}

/// Replacing a file can fail after the new one is in place.
#[test]
fn a_file_that_may_not_last_gets_its_former_text() {
    for line in COMMANDS {
        for before in [None, Some("# mine\n")] {
            let kernel = complete();
            if let Some(text) = before {
                kernel.file(MAIN, text);
            }
            *kernel.while_enabling.borrow_mut() =
                Some(Box::new(|kernel| kernel.not_synced.set(true)));
            let error = fails(&kernel, line);
            assert!(error.message.starts_with("cannot sync "), "{error:?}");
            assert_eq!(error.not_undone, [""; 0], "{line}");
            match before {
                Some(text) => assert_eq!(kernel.text(MAIN) + "\n", text, "{line}"),
                None => assert!(!kernel.has(MAIN), "{line}"),
            }
            assert!(!kernel.has("/sys/kernel/config/hcablk/data"), "{line}");
        }
    }
}

#[test]
fn keys_that_the_files_had_otherwise_are_named() {
    let other = "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11";
    let kernel = machine();
    kernel.file(
        MORE,
        &format!(
            "[disk.data]\naddress = \"10.0.0.9\"\nwwid = \"{other}\"\nqueues = 8\ntiming = true\n\
             [export.data]\ndevice = \"/dev/sdb\"\nallow = [\"{HOST}\", \"{other}\"]\n"
        ),
    );
    assert_eq!(
        notes(&kernel, "connect 10.0.0.1 data --ctrl-loss-tmo 60 --persist")[..2],
        [
            format!("configured now: [disk.data] in {MORE}"),
            "[disk.data] had values that differ from the running state: removed queues, wwid; changed address; added ctrl_loss_tmo"
                .to_owned(),
        ]
    );
    let line = format!("target export data /dev/sdb --allow {HOST} --no-port --persist");
    assert_eq!(
        notes(&kernel, &line)[..2],
        [
            format!("configured now: [export.data] in {MORE}"),
            "[export.data] had values that differ from the running state: changed allow".to_owned(),
        ]
    );
    // A new table replaces no values, so there is no remark on them.
    let said = notes(&kernel, "connect 10.0.0.1 data --name new --persist");
    assert!(
        !said.iter().any(|note| note.contains("values that differ")),
        "{said:?}"
    );
}

#[test]
fn a_measurement_that_runs_is_not_written() {
    let kernel = machine();
    ok(&kernel, "connect 10.0.0.1 data");
    ok(&kernel, "target export data /dev/sdb");
    ok(&kernel, "times data --measure on");
    ok(&kernel, "target times data --measure on");
    assert_eq!(kernel.device("data", "timing"), "1");
    ok(&kernel, "connect 10.0.0.1 data --persist");
    ok(&kernel, "target export data /dev/sdb --persist");
    assert!(!text(&kernel, MAIN).contains("timing"));
    // A configured measurement stays.
    let kernel = machine();
    let config = "[disk.data]\naddress = \"10.0.0.1\"\ntiming = true\n";
    kernel.file(MAIN, config);
    ok(&kernel, "connect 10.0.0.1 data --persist");
    assert_eq!(text(&kernel, MAIN), config);
}

#[test]
fn names_of_further_paths_stay_names() {
    let kernel = machine();
    let line = "connect 10.0.0.1 data --path localhost:7745 --path 10.0.1.1 --persist";
    ok(&kernel, line);
    let config = text(&kernel, MAIN);
    assert!(
        config.contains("paths = { 1 = \"localhost:7745\", 2 = \"10.0.1.1:7744\" }\n"),
        "{config}"
    );
    let address = kernel.path("data", 1, "address");
    assert_ne!(address, "localhost");
    is_applied(&kernel);
    // This also holds if the command line has addresses.
    let line = format!("connect 10.0.0.1 data --path [{address}]:7745 --path 10.0.1.1 --persist");
    let line = if address.contains(':') {
        line
    } else {
        line.replace(['[', ']'], "")
    };
    ok(&kernel, &line);
    assert_eq!(text(&kernel, MAIN), config);
}

#[test]
fn a_device_under_a_name_that_may_change_is_named_with_one_that_stays() {
    let kernel = machine();
    kernel.file("/dev/sdb", "");
    kernel.folder("/dev/disk/by-id");
    let warning = |device: &str, name: &str| {
        let line = format!("target export {name} {device} --persist");
        let mut said = notes(&kernel, &line);
        said.retain(|note| note.contains("after a restart"));
        said
    };
    assert_eq!(
        warning("/dev/sdb", "a"),
        ["after a restart /dev/sdb may be another drive, which would be exported instead; /dev/disk/by-id has no \
          other name for it"]
    );
    for link in ["scsi-3600", "wwn-0x600", "other"] {
        let link = format!("/dev/disk/by-id/{link}");
        kernel.file(&link, "");
        let device = if link.ends_with("other") {
            "/dev/sdc"
        } else {
            "/dev/sdb"
        };
        kernel.link(&link, device);
    }
    assert_eq!(
        warning("/dev/sdb", "b"),
        ["after a restart /dev/sdb may be another drive, which would be exported instead; this drive always has the \
          name /dev/disk/by-id/wwn-0x600: set that as `device` in the configuration"]
    );
    assert_eq!(warning("/dev/disk/by-id/wwn-0x600", "c"), [""; 0]);
    kernel.file("/srv/image", "");
    assert_eq!(warning("/srv/image", "d"), [""; 0]);
    // Nothing is written.
    let said = notes(&kernel, "target export e /dev/sdb");
    assert!(
        !said.iter().any(|note| note.contains("after a restart")),
        "{said:?}"
    );
}

/// The command reads the hosts of the volume when it has been exported.
#[test]
fn an_export_whose_hosts_cannot_be_read_is_undone() {
    let hosts = "/sys/kernel/config/hcablk_target/volumes/data/hosts";
    for line in ["target export data /dev/sdb", COMMANDS[2]] {
        let kernel = complete();
        ok(&kernel, "target apply --keep-going --record");
        let before = kernel.snapshot();
        *kernel.while_enabling.borrow_mut() = Some(Box::new(move |kernel| {
            kernel.tree.borrow_mut().remove(std::path::Path::new(hosts));
        }));
        let error = fails(&kernel, line);
        assert!(error.message.contains(hosts), "{error:?}");
        assert_eq!(error.not_undone, [""; 0], "{line}");
        assert_eq!(kernel.snapshot(), before, "{line}");
    }
}

/// The target's service ends what the configuration has, so that acknowledged data is written before a shutdown.
#[test]
fn the_service_ends_an_export_that_was_persisted() {
    let export = "/sys/kernel/config/hcablk_target/volumes/data";
    let port = "/sys/kernel/config/hcablk_target/ports/1";
    let kernel = machine();
    let said = notes(&kernel, "target export data /dev/sdb --persist");
    assert!(
        said.iter()
            .any(|note| note.ends_with("systemctl start hcablk-target")),
        "{said:?}"
    );
    ok(&kernel, "target apply --keep-going --record");
    ok(&kernel, "target unapply");
    assert!(!kernel.has(export) && !kernel.has(port));

    let kernel = machine();
    kernel.file(MAIN, "[export.log]\ndevice = \"/dev/sdc\"\n");
    ok(&kernel, "target apply --keep-going --record");
    ok(&kernel, "target export data /dev/sdb");
    ok(&kernel, "target unapply");
    assert!(kernel.has(export), "by hand, and not configured");
    let said = notes(&kernel, "target export data /dev/sdb --persist");
    assert!(
        !said.iter().any(|note| note.contains("hcablk-target")),
        "{said:?}"
    );
    ok(&kernel, "target unapply");
    assert!(!kernel.has(export) && !kernel.has(port));
}

#[test]
fn wrong_usage() {
    let kernel = machine();
    for line in ["connect data --persist", "connect --all --persist"] {
        assert_eq!(fails(&kernel, line).kind, Kind::Usage, "{line}");
    }
}
