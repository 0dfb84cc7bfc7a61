// SPDX-License-Identifier: GPL-2.0

//! The audit log: what is recorded, and how it reaches the logs of a machine.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use kernel::{fails, hcablk, key, ok, Kernel};
use nix::errno::Errno;

const HOST: &str = "7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44";
const WHO: &str = " (uid 0, login uid 1000, sudo user alice, called by sudo)";

/// The lines since the last call, without the caller.
fn lines(kernel: &Kernel) -> Vec<String> {
    let entries = kernel.audited.borrow_mut().split_off(0);
    let line = |entry: &hcablk::audit::Entry| {
        let line = entry.message.strip_suffix(WHO);
        line.unwrap_or_else(|| panic!("{entry:?}")).to_owned()
    };
    entries.iter().map(line).collect()
}

#[test]
fn each_change_is_one_line_with_its_outcome() {
    let kernel = Kernel::loaded();
    for (command, outcome) in [
        (
            format!("target export data /dev/sdb --allow {HOST}"),
            "done: /dev/sdb is exported as data, at 0.0.0.0:7744".to_owned(),
        ),
        (
            format!("target allow data {HOST}"),
            format!("unchanged: data allows {HOST}"),
        ),
        (
            format!("target evict data {HOST}"),
            format!("done: data has evicted {HOST}"),
        ),
        (
            format!("target admit data {HOST}"),
            format!("done: data admits {HOST} again"),
        ),
        (
            format!("target forbid data {HOST}"),
            format!("done: data no longer allows {HOST}"),
        ),
        (
            "target unexport data".to_owned(),
            "done: data is no longer exported".to_owned(),
        ),
        (
            "target unlisten 1".to_owned(),
            "done: port 1 no longer listens".to_owned(),
        ),
    ] {
        ok(&kernel, &command);
        assert_eq!(lines(&kernel), [format!("{command}: {outcome}")]);
    }
    ok(&kernel, "connect 10.0.0.1 data");
    ok(&kernel, "disconnect data");
    assert_eq!(
        lines(&kernel),
        [
            "connect 10.0.0.1 data: done: /dev/hcablk0",
            "disconnect data: done: disconnected data"
        ]
    );
}

#[test]
fn a_failure_is_recorded_with_its_reason_and_exit_code() {
    let kernel = Kernel::loaded();
    let refusal = (Errno::ENODEV, "no drive".to_owned());
    kernel
        .refuse
        .borrow_mut()
        .insert("data".to_owned(), refusal);
    let error = fails(&kernel, "target export data /dev/sdb");
    let entries = kernel.audited.borrow_mut().split_off(0);
    let [entry] = &entries[..] else {
        panic!("{entries:?}");
    };
    assert!(entry.message.contains("failed: "), "{entry:?}");
    assert!(entry.message.contains(&error.message), "{entry:?}");
    for field in [
        ("HCABLK_ACTION", "target export".to_owned()),
        ("HCABLK_COMMAND", "target export data /dev/sdb".to_owned()),
        ("HCABLK_OUTCOME", "failed".to_owned()),
        ("HCABLK_EXIT_CODE", error.kind.exit_code().to_string()),
        ("HCABLK_UID", "0".to_owned()),
        ("HCABLK_LOGIN_UID", "1000".to_owned()),
        ("HCABLK_SUDO_USER", "alice".to_owned()),
        ("HCABLK_PARENT", "sudo".to_owned()),
    ] {
        assert!(entry.fields.contains(&field), "{field:?}: {entry:?}");
    }
}

#[test]
fn a_process_that_is_part_of_a_command_is_not_recorded_and_its_option_hides_nothing() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb");
    ok(&kernel, "target export log /dev/sdc");
    lines(&kernel);
    ok(&kernel, "target unexport data");
    assert_eq!(
        lines(&kernel),
        ["target unexport data: done: data is no longer exported"]
    );
    ok(&kernel, "target unexport log --here");
    assert_eq!(
        lines(&kernel),
        ["target unexport log --here: done: log is no longer exported"]
    );
}

#[test]
fn commands_that_only_show_are_not_recorded() {
    let kernel = Kernel::loaded();
    ok(&kernel, "target export data /dev/sdb");
    ok(&kernel, "connect 10.0.0.1 vol");
    lines(&kernel);
    for command in [
        "list",
        "stats",
        "times",
        "metrics",
        "check",
        "report",
        "host-id",
        "target list",
        "target stats",
        "target times",
        "apply --dry-run",
        "target apply --dry-run",
        "config show --running",
        "completions bash",
    ] {
        let _ = hcablk(&kernel, command);
        assert_eq!(lines(&kernel), [""; 0], "{command}");
    }
}

#[test]
fn an_applied_configuration_is_recorded_with_its_changes() {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        &format!("[export.data]\ndevice = \"/dev/sdb\"\nallow = [\"{HOST}\"]\n[port.1]\n"),
    );
    ok(&kernel, "apply");
    let [line] = &lines(&kernel)[..] else {
        panic!("one line");
    };
    assert!(line.starts_with("apply: done: done: make "), "{line}");
    assert!(
        line.contains(&format!("allow {HOST} to use export data")),
        "{line}"
    );
    ok(&kernel, "apply");
    assert_eq!(lines(&kernel), ["apply: unchanged"]);
    // A timer runs this command every minute.
    ok(&kernel, "target apply --keep-going --record");
    lines(&kernel);
    ok(&kernel, "target apply --retry");
    assert_eq!(lines(&kernel), [""; 0]);
}

#[test]
fn keys_are_used_under_their_names_and_never_written() {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk/keys");
    ok(&kernel, "key generate target");
    let shown = ok(&kernel, "key show target");
    let found = lines(&kernel);
    assert_eq!(
        found,
        [
            "key generate target: done: /etc/hcablk/keys/target holds one key",
            "key show target: done"
        ]
    );
    ok(&kernel, "key generate target --rotate");
    assert_eq!(
        lines(&kernel),
        ["key generate target --rotate: done: /etc/hcablk/keys/target holds two keys, the newer one first"]
    );
    assert!(shown.starts_with("hcablk-key-1:"));
    // A user may pass a key where a name is expected.
    let _ = hcablk(&kernel, &format!("disconnect {}", key(0xa5).0.trim()));
    let found = lines(&kernel);
    assert!(
        found[0].starts_with("disconnect [removed]: failed"),
        "{found:?}"
    );
    assert!(!found[0].contains("a5a5"), "{found:?}");
}

/// Runs a command on a machine that is a folder, and returns what it has sent to a socket there.
fn sent_to(socket: &str) -> String {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(socket);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::create_dir_all(root.path().join("proc/self")).unwrap();
    fs::write(root.path().join("proc/self/loginuid"), "1001").unwrap();
    let log = UnixDatagram::bind(&path).unwrap();
    log.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    run(root.path());
    let mut buffer = [0; 8192];
    let length = log.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

fn run(root: &Path) {
    Command::cargo_bin("hcablk")
        .unwrap()
        .env("HCABLK_SYSROOT", root)
        .env("SUDO_USER", "bob")
        .env("SSH_CONNECTION", "10.0.0.7 50000 10.0.0.1 22")
        .args(["host-id", "--set", HOST])
        .assert()
        .success();
}

#[test]
fn the_journal_gets_fields_and_syslog_a_line() {
    let uid = nix::unistd::getuid();
    let line = format!(
        "host-id --set {HOST}: done: {HOST} (uid {uid}, login uid 1001, sudo user bob, ssh from 10.0.0.7)"
    );
    let text = sent_to("run/systemd/journal/socket");
    for field in [
        format!("MESSAGE={line}"),
        format!("MESSAGE_ID={}", hcablk::audit::MESSAGE_ID),
        "PRIORITY=5".to_owned(),
        "SYSLOG_FACILITY=10".to_owned(),
        "SYSLOG_IDENTIFIER=hcablk".to_owned(),
        "HCABLK_ACTION=host-id".to_owned(),
        "HCABLK_SSH_CLIENT=10.0.0.7".to_owned(),
    ] {
        assert!(text.lines().any(|line| line == field), "{field}: {text}");
    }
    let text = sent_to("dev/log");
    assert!(text.starts_with("<85>hcablk["), "{text}");
    assert!(text.ends_with(&format!("]: {line}")), "{text}");
}

/// Runs `target unexport` with these options on a machine that is a folder, and returns the lines in the log.
fn unexported(options: &[&str]) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    let volume = root
        .path()
        .join("sys/kernel/config/hcablk_target/volumes/data");
    fs::create_dir_all(volume.join("hosts")).unwrap();
    for attribute in ["enable", "clients"] {
        fs::write(volume.join(attribute), "").unwrap();
    }
    let log = UnixDatagram::bind({
        fs::create_dir_all(root.path().join("dev")).unwrap();
        root.path().join("dev/log")
    });
    let log = log.unwrap();
    log.set_nonblocking(true).unwrap();
    // A folder that has files cannot be removed, unlike one of configfs, so the command fails at its end.
    Command::cargo_bin("hcablk")
        .unwrap()
        .env("HCABLK_SYSROOT", root.path())
        .env("HCABLK_HELPER", "1")
        .args(["target", "unexport", "data"])
        .args(options)
        .assert()
        .failure();
    let mut buffer = [0; 8192];
    let mut lines = Vec::new();
    while let Ok(length) = log.recv(&mut buffer) {
        lines.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    lines
}

#[test]
fn only_a_process_that_this_program_has_started_is_part_of_a_command() {
    for (options, command) in [
        (&[][..], "target unexport data: failed"),
        (&["--here"], "target unexport data --here: failed"),
    ] {
        let lines = unexported(options);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(command), "{lines:?}");
    }
}

#[test]
fn a_machine_without_logs_runs_commands_nevertheless() {
    let root = tempfile::tempdir().unwrap();
    run(root.path());
}

#[test]
fn the_documents_name_the_fields() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/command.md");
    let text = fs::read_to_string(docs).unwrap();
    assert!(text.contains(hcablk::audit::MESSAGE_ID));
    let kernel = Kernel::loaded();
    ok(&kernel, "target listen");
    for (field, _) in &kernel.audited.borrow()[0].fields {
        assert!(text.contains(&format!("`{field}`")), "{field}");
    }
}
