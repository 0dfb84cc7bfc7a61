// SPDX-License-Identifier: GPL-2.0

//! Tests of the program itself (exit codes, streams, files), on a machine that a folder imitates.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;

fn hcablk(root: &Path) -> Command {
    let mut command = Command::cargo_bin("hcablk").unwrap();
    command.env("HCABLK_SYSROOT", root);
    command
}

fn machine() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("etc")).unwrap();
    fs::write(
        root.path().join("etc/machine-id"),
        "0123456789abcdef0123456789abcdef\n",
    )
    .unwrap();
    root
}

#[test]
fn a_file_of_the_configuration_that_is_not_utf8_is_not_written_back() {
    let root = machine();
    let file = root.path().join("etc/hcablk/hcablk.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, b"# B\xfcro\n").unwrap();
    let output = hcablk(root.path())
        .args(["connect", "10.0.0.1", "data", "--persist"])
        .assert()
        .code(2);
    let error = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(error.contains("hcablk.toml is not UTF-8"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"# B\xfcro\n");
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A device as the kernel shows it. In a plain folder `mkdir` creates no attributes, so this
/// creates them all.
fn put_device(root: &Path, name: &str, state: &str, device: &str) {
    for (attribute, value) in [
        ("address", "10.0.0.1"),
        ("port", "7744"),
        ("volume", "data"),
        ("host_id", "2c76c224-38b3-5f2d-b27d-4051ae2d4024"),
        ("expect_wwid", ""),
        ("wwid", ""),
        ("queues", "0"),
        ("poll_queues", "0"),
        ("queue_depth", "128"),
        ("io_timeout", "30"),
        ("connect_timeout", "10"),
        ("reconnect_delay", "1"),
        ("ctrl_loss_tmo", "600"),
        ("fast_io_fail_tmo", "-1"),
        ("keep_alive_tmo", "5"),
        ("remote_invalidate", "1"),
        ("insecure", "0"),
        ("small_read", "8192"),
        ("small_write", "4096"),
        ("eager_write", "32768"),
        ("max_io_kib", "1024"),
        ("message_requests", "8"),
        ("batch_upper", "32"),
        ("batch_lower", "16"),
        ("policy", "queue-depth"),
        ("enable", "0"),
        ("state", state),
        ("device", device),
        ("error", ""),
        ("session", "00000000deadbeef 1"),
        ("timing", "0"),
        ("times", "sent 0 0"),
        ("stats", "reads 1"),
    ] {
        put(
            root,
            &format!("sys/kernel/config/hcablk/{name}/{attribute}"),
            &format!("{value}\n"),
        );
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn list_as_text_and_json() {
    let root = machine();
    put_device(root.path(), "data", "live", "hcablk0");
    let output = hcablk(root.path())
        .arg("list")
        .assert()
        .success()
        .get_output()
        .clone();
    assert!(
        text(&output.stdout).contains("data  /dev/hcablk0  live"),
        "{output:?}"
    );
    assert!(output.stderr.is_empty(), "{output:?}");
    let output = hcablk(root.path())
        .args(["--json", "list"])
        .assert()
        .success()
        .get_output()
        .clone();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["devices"][0]["device"], "/dev/hcablk0");
    assert_eq!(json["devices"][0]["session"]["epoch"], 1);
}

#[test]
fn connect_finds_a_live_device() {
    let root = machine();
    put_device(root.path(), "data", "live", "hcablk0");
    put(root.path(), "dev/hcablk0", "");
    let output = hcablk(root.path())
        .args(["connect", "10.0.0.1", "data"])
        .assert()
        .success()
        .get_output()
        .clone();
    assert_eq!(text(&output.stdout), "/dev/hcablk0\n");
    assert_eq!(text(&output.stderr), "hcablk: data is connected already\n");
}

/// A command that waits for the node of a device, and the node.
fn waiting_command(root: &Path) -> (Child, PathBuf) {
    put_device(root, "data", "live", "hcablk0");
    fs::create_dir(root.join("dev")).unwrap();
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("hcablk"))
        .env("HCABLK_SYSROOT", root)
        .args(["connect", "10.0.0.1", "data"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command waits as soon as it watches the folder.
    let watches = |file: fs::DirEntry| {
        fs::read_to_string(file.path()).is_ok_and(|info| info.contains("inotify wd"))
    };
    let info = PathBuf::from(format!("/proc/{}/fdinfo", child.id()));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !fs::read_dir(&info).is_ok_and(|files| files.flatten().any(watches)) {
        assert!(
            Instant::now() < deadline,
            "the command does not watch the folder"
        );
        std::thread::yield_now();
    }
    (child, root.join("dev/hcablk0"))
}

#[test]
fn connect_waits_for_the_node() {
    let root = machine();
    let (child, node) = waiting_command(root.path());
    fs::write(node, "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout), "/dev/hcablk0\n");
}

#[test]
fn a_signal_ends_the_wait() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let root = machine();
        let (child, _) = waiting_command(root.path());
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert!(text(&output.stderr).starts_with("hcablk: interrupted\n  "));
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_path_and_undoes_it() {
    let root = machine();
    put_device(root.path(), "data", "degraded", "hcablk0");
    let path = "sys/kernel/config/hcablk/data/paths/1";
    for (attribute, value) in [
        ("address", "10.0.1.1"),
        ("port", "7744"),
        ("enable", "0"),
        ("state", "connecting"),
        ("error", ""),
    ] {
        put(
            root.path(),
            &format!("{path}/{attribute}"),
            &format!("{value}\n"),
        );
    }
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("hcablk"))
        .env("HCABLK_SYSROOT", root.path())
        .args(["path", "add", "data", "10.0.1.1", "--timeout", "60"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let enabled = || fs::read_to_string(root.path().join(path).join("enable")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while enabled() != "1\n" {
        assert!(Instant::now() < deadline, "the path is not enabled");
        std::thread::yield_now();
    }
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(enabled(), "0\n");
}

const HOST: &str = "5f2c1d6e-8a0b-4c3d-9e7f-001122334455";

/// The parts of a volume that `evict` needs, and the file that records a host.
fn put_volume(root: &Path) -> PathBuf {
    for attribute in ["evicted", "admit"] {
        let path = format!("sys/kernel/config/hcablk_target/volumes/data/{attribute}");
        put(root, &path, "");
    }
    root.join("var/lib/hcablk/evicted/data").join(HOST)
}

#[test]
fn evicted_hosts_are_recorded_in_files() {
    let root = machine();
    let record = put_volume(root.path());
    let told = |attribute: &str| {
        let volume = root
            .path()
            .join("sys/kernel/config/hcablk_target/volumes/data");
        fs::read_to_string(volume.join(attribute)).unwrap()
    };
    for stderr in ["", "hcablk: evicted already\n"] {
        let output = hcablk(root.path())
            .args(["target", "evict", "data", HOST])
            .assert()
            .success()
            .get_output()
            .clone();
        assert_eq!(text(&output.stdout), format!("data has evicted {HOST}\n"));
        assert_eq!(text(&output.stderr), stderr);
        assert_eq!(fs::read(&record).unwrap(), b"");
        assert_eq!(told("evicted"), format!("{HOST}\n"));
    }
    hcablk(root.path())
        .args(["target", "admit", "data", HOST, "--json"])
        .assert()
        .success();
    assert!(!record.exists());
    assert_eq!(told("admit"), format!("{HOST}\n"));
    hcablk(root.path())
        .args(["target", "evict", "date", HOST])
        .assert()
        .code(3);
    assert!(!root.path().join("var/lib/hcablk/evicted/date").exists());
}

#[test]
fn a_wait_for_another_command_can_be_interrupted() {
    let root = machine();
    let record = put_volume(root.path());
    let folder = record.parent().unwrap();
    fs::create_dir_all(folder).unwrap();
    let locks = root.path().join("run/hcablk/lock");
    fs::create_dir_all(&locks).unwrap();
    let file = fs::File::create(locks.join("var:lib:hcablk:evicted:data")).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("hcablk"))
        .env("HCABLK_SYSROOT", root.path())
        .args(["target", "evict", "data", HOST])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command blocks signals before anything else.
    let status = format!("/proc/{}/status", child.id());
    let holds = || {
        fs::read_to_string(&status).is_ok_and(|text| {
            text.lines()
                .any(|line| line.starts_with("SigBlk:") && !line.ends_with("0000000000000000"))
        })
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "it does not hold signals");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "it does not wait");
    assert!(!record.exists());
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(text(&output.stderr).starts_with("hcablk: interrupted\n  "));
    drop(lock);
}

#[test]
fn exit_codes() {
    let root = machine();
    put_device(root.path(), "data", "connecting", "");
    for (line, code) in [
        ("list", 0),
        ("", 2),
        ("connect", 2),
        ("no-such-command", 2),
        ("disconnect none", 3),
        ("connect 10.0.0.1 data", 4),
        ("connect 10.0.0.2 data", 5),
        ("connect no-such-host.invalid data", 6),
        ("target export data /dev/null", 7),
    ] {
        hcablk(root.path())
            .args(line.split_whitespace())
            .assert()
            .code(code);
    }
}

#[test]
fn errors_go_to_standard_error() {
    let root = machine();
    let output = hcablk(root.path())
        .args(["disconnect", "none"])
        .assert()
        .failure()
        .get_output()
        .clone();
    assert!(output.stdout.is_empty());
    assert!(
        text(&output.stderr).starts_with("hcablk: there is no device none\n"),
        "{output:?}"
    );
    let output = hcablk(root.path())
        .args(["disconnect", "none", "--json"])
        .assert()
        .failure()
        .get_output()
        .clone();
    assert!(output.stdout.is_empty());
    let json: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(json["version"], 1);
    assert_eq!(json["error"]["kind"], "not-found");
}

/// A rule of sudo that allows a command with any options must not let its user choose the files that root writes.
#[test]
fn the_root_of_the_file_tree_is_no_option() {
    let root = machine();
    for line in [
        ["--sysroot", "/", "list", ""],
        ["target", "list", "--sysroot", "/"],
    ] {
        let line = line.iter().filter(|word| !word.is_empty());
        hcablk(root.path()).args(line).assert().code(2);
    }
}

#[test]
fn wrong_usage_is_reported_as_all_failures() {
    let root = machine();
    for (line, message) in [
        (
            "connect",
            "the following required arguments were not provided: <ADDRESS|DISK>",
        ),
        ("lst", "unrecognized subcommand 'lst'"),
        ("list --jsn", "unexpected argument '--jsn' found"),
    ] {
        let run = |more: &[&str]| {
            let words = line.split_whitespace().chain(more.iter().copied());
            let output = hcablk(root.path()).args(words).assert().code(2);
            let output = output.get_output().clone();
            assert!(output.stdout.is_empty());
            text(&output.stderr)
        };
        let stderr = run(&[]);
        assert!(
            stderr.starts_with(&format!("hcablk: {message}\n  ")),
            "{stderr}"
        );
        let json: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
        assert_eq!(json["error"]["kind"], "usage");
        assert_eq!(json["error"]["message"], message);
        assert!(json["error"]["advice"].as_str().unwrap().len() > 10);
    }
    // Without any word the help says more.
    let output = hcablk(root.path()).assert().code(2);
    assert!(text(&output.get_output().stderr).contains("Usage: hcablk "));
    let output = hcablk(root.path()).arg("--json").assert().code(2);
    let json: serde_json::Value = serde_json::from_slice(&output.get_output().stderr).unwrap();
    assert_eq!(json["error"]["message"], "a command is missing");
    let output = hcablk(root.path())
        .arg("list")
        .arg("--help")
        .assert()
        .success();
    assert!(text(&output.get_output().stdout).contains("Usage: hcablk list"));
}

#[test]
fn a_stream_ends_with_its_reader() {
    let root = machine();
    put_device(root.path(), "data", "live", "hcablk0");
    let line = format!(
        "'{}' stats 0.1 --json | head -n 2",
        assert_cmd::cargo::cargo_bin("hcablk").display()
    );
    let output = std::process::Command::new("bash")
        .args(["-c", &format!("set -o pipefail; {line}")])
        .env("HCABLK_SYSROOT", root.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for line in text(&output.stdout).lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(json["devices"][0]["name"], "data");
    }
}

#[test]
fn top_needs_a_terminal() {
    let root = machine();
    hcablk(root.path()).arg("top").assert().code(2);
}

#[test]
fn metrics_are_put_into_a_file_at_once() {
    let root = machine();
    put_device(root.path(), "data", "live", "hcablk0");
    let file = "/var/lib/prometheus/node-exporter/hcablk.prom";
    let output = hcablk(root.path())
        .args(["metrics", "--output", file])
        .assert()
        .success();
    assert!(output.get_output().stdout.is_empty());
    let file = root.path().join(&file[1..]);
    assert!(fs::read_to_string(&file).unwrap().ends_with("# EOF\n"));
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn host_id_comes_from_the_machine_id_until_there_is_a_file() {
    let root = machine();
    let file = root.path().join("etc/hcablk/host_id");
    let print = || {
        text(
            &hcablk(root.path())
                .arg("host-id")
                .assert()
                .success()
                .get_output()
                .stdout
                .clone(),
        )
    };
    let derived = print();
    assert_eq!(derived, "2c76c224-38b3-5f2d-b27d-4051ae2d4024\n");
    hcablk(root.path())
        .args(["host-id", "--generate"])
        .assert()
        .success();
    let generated = print();
    assert_ne!(generated, derived);
    assert_eq!(fs::read_to_string(&file).unwrap(), generated);

    hcablk(root.path())
        .args(["host-id", "--generate"])
        .assert()
        .code(5);
    assert_eq!(print(), generated);
    hcablk(root.path())
        .args(["host-id", "--generate", "--force"])
        .assert()
        .success();
    assert_ne!(print(), generated);

    let chosen = "5f2c1d6e-8a0b-4c3d-9e7f-001122334455";
    hcablk(root.path())
        .args(["host-id", "--set", chosen])
        .assert()
        .code(5);
    assert_ne!(print().trim(), chosen);
    for _ in 0..2 {
        hcablk(root.path())
            .args(["host-id", "--set", chosen, "--force"])
            .assert()
            .success();
    }
    // A setting that already matches needs no force.
    hcablk(root.path())
        .args(["host-id", "--set", chosen])
        .assert()
        .success();
    assert_eq!(print().trim(), chosen);
    assert_eq!(
        fs::read_dir(file.parent().unwrap()).unwrap().count(),
        1,
        "nothing else is left"
    );

    fs::write(&file, "rubbish\n").unwrap();
    hcablk(root.path()).arg("host-id").assert().code(7);
}

#[test]
fn host_id_of_an_image_that_has_none() {
    let root = tempfile::tempdir().unwrap();
    let output = hcablk(root.path())
        .arg("host-id")
        .assert()
        .code(7)
        .get_output()
        .clone();
    assert!(
        text(&output.stderr).contains("hcablk host-id --generate"),
        "{output:?}"
    );
}

#[test]
fn completions_for_every_shell() {
    let root = machine();
    for (shell, word) in [
        (
            "bash",
            "complete -o bashdefault -o default -F _hcablk hcablk",
        ),
        ("zsh", "#compdef hcablk"),
        ("fish", "complete -c hcablk"),
        ("elvish", "unexport"),
        ("powershell", "unexport"),
    ] {
        let output = hcablk(root.path())
            .args(["completions", shell])
            .assert()
            .success()
            .get_output()
            .clone();
        assert!(text(&output.stdout).contains(word), "{shell}");
    }
}

#[test]
fn man_pages_for_every_command() {
    let root = machine();
    let folder = root.path().join("man");
    hcablk(root.path())
        .arg("man")
        .arg(&folder)
        .assert()
        .success();
    for page in [
        "hcablk.8",
        "hcablk-connect.8",
        "hcablk-path-add.8",
        "hcablk-target.8",
        "hcablk-target-export.8",
    ] {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
        assert_eq!(text.contains("EXIT STATUS"), page != "hcablk.8", "{page}");
    }
    assert!(fs::read_to_string(folder.join("hcablk.8"))
        .unwrap()
        .contains("Exit codes"));
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    let root = machine();
    let line = format!(
        "'{}' completions bash | head -n 1",
        assert_cmd::cargo::cargo_bin("hcablk").display()
    );
    let script = format!("set -o pipefail; {line}");
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    drop(root);
}
