// SPDX-License-Identifier: GPL-2.0

//! `hcablk enroll`: the target is an imitation of the kernel; the host is a folder, in which the program itself runs. A
//! script between them stands for ssh.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use clap::Parser as _;
use hcablk::error::{Error, Kind};
use hcablk::output::Outcome;
use kernel::{key, ok, Kernel};
use tempfile::TempDir;

/// The id of the host: derived from its machine id.
const HOST: &str = "2c76c224-38b3-5f2d-b27d-4051ae2d4024";
const KEY_OF_HOST: &str = "/etc/hcablk/keys/hosts/2c76c224-38b3-5f2d-b27d-4051ae2d4024";
const ALLOWED: &str =
    "/sys/kernel/config/hcablk_target/volumes/data/hosts/2c76c224-38b3-5f2d-b27d-4051ae2d4024";
const MAIN: &str = "/etc/hcablk/hcablk.toml";

/// Runs a command in the folder of the host, as a shell on the host does, and logs its words.
const SSH: &str = "\
here=${0%/*}
while [ \"$1\" != -- ]; do shift; done
client=$2
shift 2
echo \"$client: $*\" >> \"$here/log\"
if [ -e \"$here/before\" ]; then . \"$here/before\"; fi
PATH=$here/bin:/usr/bin:/bin HCABLK_SYSROOT=$here/root exec sh -c \"$*\"
";

/// The machine of the host.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for folder in ["bin", "root/etc"] {
            fs::create_dir_all(host.at(folder)).unwrap();
        }
        let machine_id = "0123456789abcdef0123456789abcdef\n";
        fs::write(host.at("root/etc/machine-id"), machine_id).unwrap();
        fs::write(host.at("ssh"), SSH).unwrap();
        let program = Command::cargo_bin("hcablk").unwrap();
        symlink(program.get_program(), host.at("bin/hcablk")).unwrap();
        host
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Makes the script run this text before each command.
    fn before(&self, script: &str) {
        fs::write(self.at("before"), script).unwrap();
    }

    /// The commands since the last call.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.at("log")).unwrap_or_default();
        let _ = fs::remove_file(self.at("log"));
        text.lines().map(str::to_owned).collect()
    }

    fn key_of_target(&self) -> String {
        fs::read_to_string(self.at("root/etc/hcablk/keys/targets/10.0.0.1")).unwrap()
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.at("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Returns all files of the host, with their texts.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        fn look(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    look(&path, found);
                } else {
                    found.insert(path.clone(), fs::read_to_string(&path).unwrap());
                }
            }
        }
        let mut found = BTreeMap::new();
        look(&self.at("root/etc"), &mut found);
        found
    }

    /// Runs `hcablk enroll` with these words at the target.
    fn enroll(&self, target: &Kernel, words: &[&str]) -> Result<Outcome, Error> {
        let ssh = format!("sh {} -p 2222", self.at("ssh").display());
        let mut all = vec!["hcablk", "enroll", "client1", "--ssh", &ssh];
        all.extend(words);
        let cli = hcablk::cli::Cli::try_parse_from(&all).unwrap_or_else(|e| panic!("{all:?}: {e}"));
        hcablk::run(&cli.command, target, &mut |_| Ok(true))
    }
}

/// A target that exports nothing.
fn idle_target() -> Kernel {
    let kernel = Kernel::loaded();
    for attribute in ["key", "key2"] {
        let file = format!("/sys/kernel/config/hcablk_target/{attribute}");
        kernel.file(file, "\n");
    }
    kernel
}

/// A target that listens at 10.0.0.1 and exports `data`.
fn target() -> Kernel {
    let kernel = idle_target();
    kernel.folder("/etc/hcablk");
    kernel.folder("/etc/hcablk/hcablk.d");
    ok(&kernel, "target listen --address 10.0.0.1");
    ok(&kernel, "target export data /dev/sdb");
    kernel
}

/// Returns the key in the first line of a file of keys, in the kernel's format.
fn digits(keys: &str) -> String {
    let line = keys.lines().next().unwrap();
    line.split([':', '-']).nth(3).unwrap().to_owned()
}

/// Checks that both sides have both keys, and the host may use the volume.
fn is_enrolled(target: &Kernel, host: &Host) {
    assert_eq!(
        target.text("/etc/hcablk/keys/target") + "\n",
        host.key_of_target()
    );
    let own = fs::read_to_string(host.at("root/etc/hcablk/keys/host")).unwrap();
    assert_eq!(target.text(KEY_OF_HOST) + "\n", own);
    assert_eq!(target.text(format!("{ALLOWED}/key")), digits(&own));
    let volume = "/sys/kernel/config/hcablk_target/key";
    assert_eq!(target.text(volume), digits(&host.key_of_target()));
}

#[test]
fn one_command_makes_and_exchanges_keys_and_allows_the_host() {
    let (target, host) = (target(), Host::new());
    let outcome = host.enroll(&target, &["data"]).unwrap();
    assert_eq!(
        outcome.report.to_string(),
        format!(
            "done: here: make the key of this target\n\
             done: there: make the key of the host\n\
             done: there: store the key of the target at 10.0.0.1\n\
             done: here: store the key of the host {HOST}\n\
             done: here: allow the host to use data\n\
             client1 is the host {HOST}\n"
        )
    );
    assert_eq!(outcome.report.is_changed(), Some(true));
    is_enrolled(&target, &host);
    assert_eq!(
        host.log(),
        [
            "client1: hcablk --json host-id",
            "client1: hcablk --json key show host",
            "client1: hcablk --json key generate host",
            "client1: hcablk --json key show host",
            "client1: hcablk --json key add target 10.0.0.1 --no-replace",
        ]
    );

    let (before, files) = (target.snapshot(), host.files());
    let outcome = host.enroll(&target, &["data"]).unwrap();
    assert_eq!(outcome.report.is_changed(), Some(false));
    assert!(outcome.notes.contains(&"enrolled already".to_owned()));
    assert_eq!(target.snapshot(), before);
    assert_eq!(host.files(), files);
    // A second volume needs no keys.
    ok(&target, "target export log /dev/sdc");
    let outcome = host.enroll(&target, &["data", "log"]).unwrap();
    assert!(
        outcome
            .report
            .to_string()
            .starts_with("done: here: allow the host to use log\nclient1 "),
        "{outcome:?}"
    );
}

#[test]
fn no_key_is_shown_or_on_a_command_line() {
    let (target, host) = (target(), Host::new());
    let outcome = host.enroll(&target, &["data"]).unwrap();
    let log = host.log().concat();
    let shown = [
        outcome.to_json(),
        outcome.report.to_string(),
        log,
        target.progress.borrow().concat(),
        format!("{:?}", target.audited.borrow()),
    ];
    for text in shown {
        for key in [host.key_of_target(), target.text(KEY_OF_HOST)] {
            assert!(!text.contains(&digits(&key)), "{text}");
        }
        assert!(!text.contains("hcablk-key"), "{text}");
    }
}

#[test]
fn a_dry_run_shows_the_steps_and_changes_nothing() {
    let (target, host) = (target(), Host::new());
    let (before, files) = (target.snapshot(), host.files());
    let outcome = host.enroll(&target, &["data", "--dry-run"]).unwrap();
    let text = outcome.report.to_string();
    assert_eq!(text.matches("would do: ").count(), 5, "{text}");
    assert_eq!(outcome.report.is_changed(), Some(false));
    assert_eq!(target.snapshot(), before);
    assert_eq!(host.files(), files);

    host.enroll(&target, &["data"]).unwrap();
    let outcome = host.enroll(&target, &["data", "--dry-run"]).unwrap();
    assert_eq!(
        outcome.report.to_string(),
        format!("client1 is the host {HOST}\n")
    );
    // A new key of the target, which the host does not have.
    ok(&target, "key generate target --rotate");
    let (before, files) = (target.snapshot(), host.files());
    let outcome = host.enroll(&target, &["data", "--dry-run", "--replace"]);
    assert_eq!(
        outcome.unwrap().report.to_string(),
        format!(
            "would do: there: store the key of the target at 10.0.0.1\nclient1 is the host {HOST}\n"
        )
    );
    assert_eq!(target.snapshot(), before);
    assert_eq!(host.files(), files);
}

#[test]
fn a_different_key_is_not_replaced_by_accident() {
    // The host has another target's key.
    let (target, host) = (target(), Host::new());
    ok(&target, "key generate target");
    host.put("etc/hcablk/keys/targets/10.0.0.1", &key(0xa5).0);
    let (before, files) = (target.snapshot(), host.files());
    let error = host.enroll(&target, &["data"]).unwrap_err();
    assert_eq!(error.kind, Kind::Exists);
    assert_eq!(
        error.message,
        "client1 has a different key of the target at 10.0.0.1 than this target"
    );
    assert!(error.advice_or_usual().contains("--replace"));
    assert_eq!(target.snapshot(), before);
    assert_eq!(host.files(), files);
    host.enroll(&target, &["data", "--replace"]).unwrap();
    assert_eq!(host.key_of_target().lines().count(), 2);

    // This target has another key of the host.
    target.file(KEY_OF_HOST, &key(0x5a).0);
    let before = target.snapshot();
    let error = host.enroll(&target, &["data"]).unwrap_err();
    assert_eq!(error.kind, Kind::Exists);
    assert_eq!(
        error.message,
        format!("the host client1 ({HOST}) has a different key than the one that this target has stored for it")
    );
    assert_eq!(target.snapshot(), before);
    host.enroll(&target, &["data", "--replace"]).unwrap();
    assert_eq!(target.text(KEY_OF_HOST).lines().count(), 2);
    let own = fs::read_to_string(host.at("root/etc/hcablk/keys/host")).unwrap();
    assert_eq!(target.text(format!("{ALLOWED}/key")), digits(&own));

    // The host was installed again: it has no key.
    fs::remove_file(host.at("root/etc/hcablk/keys/host")).unwrap();
    let error = host.enroll(&target, &["data"]).unwrap_err();
    assert_eq!(
        error.message,
        format!("the host client1 ({HOST}) has no key, but this target has stored one for it")
    );
}

#[test]
fn a_failure_of_ssh_or_the_remote_command_has_advice() {
    for (before, kind, message, advice) in [
        (
            "echo 'ssh: connect to host client1 port 22: Connection refused.' >&2; exit 255",
            Kind::Connection,
            "cannot log in to client1 through ssh: ssh: connect to host client1 port 22: Connection refused",
            "ssh client1 true",
        ),
        (
            "rm -f \"$here/bin/hcablk\"",
            Kind::Setup,
            "client1 has no command hcablk",
            "Install the package",
        ),
        (
            "echo '{\"version\":1,\"error\":{\"kind\":\"setup\",\"message\":\"no rights\"}}' >&2; exit 7",
            Kind::Setup,
            "client1: hcablk host-id: no rights",
            "--sudo",
        ),
        (
            "echo 'sudo: a password is required' >&2; exit 1",
            Kind::Failed,
            "client1: hcablk host-id: sudo: a password is required",
            "--sudo",
        ),
        (
            "echo 'error: unexpected argument' >&2; exit 2",
            Kind::Usage,
            "client1: hcablk host-id: error: unexpected argument",
            "older",
        ),
        (
            "echo welcome; exit 0",
            Kind::Failed,
            "client1: hcablk host-id: its output is not the expected one",
            "host-id",
        ),
    ] {
        let (target, host) = (target(), Host::new());
        host.before(before);
        let snapshot = target.snapshot();
        let error = host.enroll(&target, &["data"]).unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (kind, message));
        assert!(error.advice_or_usual().contains(advice), "{error:?}");
        assert_eq!(target.snapshot(), snapshot);
    }
    // A greeting before the answer does not matter.
    let (target, host) = (target(), Host::new());
    host.before("echo welcome");
    host.enroll(&target, &["data"]).unwrap();
    is_enrolled(&target, &host);
}

#[test]
fn a_failed_command_reports_its_changes_and_can_be_repeated() {
    let (target, host) = (target(), Host::new());
    host.before("case $* in *' key add '*) echo full >&2; exit 1;; esac");
    let error = host.enroll(&target, &["data"]).unwrap_err();
    assert_eq!(
        error.message,
        "client1: hcablk key add target 10.0.0.1 --no-replace: full"
    );
    assert_eq!(
        *error.done,
        [
            "here: make the key of this target",
            "there: make the key of the host"
        ]
    );
    assert!(!target.has(ALLOWED));
    host.before("");
    host.enroll(&target, &["data"]).unwrap();
    is_enrolled(&target, &host);
}

#[test]
fn a_target_that_listens_everywhere_needs_the_address() {
    let (target, host) = (idle_target(), Host::new());
    let error = host.enroll(&target, &[]).unwrap_err();
    assert_eq!(error.kind, Kind::Usage);
    assert!(error.message.starts_with("this target does not listen yet"));
    ok(&target, "target export data /dev/sdb");
    let error = host.enroll(&target, &["data"]).unwrap_err();
    assert_eq!(
        error.message,
        "this target listens at all its addresses, so it is not known which of its addresses client1 uses"
    );
    assert!(error.advice_or_usual().contains("--address"));
    assert_eq!(host.log(), [""; 0]);
    let words = ["data", "--address", "10.0.0.1", "--address", "10.0.1.1"];
    host.enroll(&target, &words).unwrap();
    is_enrolled(&target, &host);
    let other = host.at("root/etc/hcablk/keys/targets/10.0.1.1");
    assert_eq!(fs::read_to_string(other).unwrap(), host.key_of_target());
}

#[test]
fn the_host_is_written_into_the_configuration() {
    let (target, host) = (target(), Host::new());
    let config = "[export.data] # mine\ndevice = \"/dev/sdb\"\n";
    target.file(MAIN, config);
    let outcome = host.enroll(&target, &["data"]).unwrap();
    assert!(
        outcome.notes.iter().any(|note| note.contains("--persist")),
        "{outcome:?}"
    );
    ok(&target, "target export log /dev/sdc");
    let outcome = host.enroll(&target, &["data", "log", "--persist"]).unwrap();
    assert_eq!(
        target.text(MAIN),
        format!("[export.data] # mine\ndevice = \"/dev/sdb\"\nallow = [\"{HOST}\"]")
    );
    assert!(
        outcome
            .notes
            .contains(&"log is not configured: hcablk target export log PATH --persist".to_owned()),
        "{outcome:?}"
    );
    let outcome = host.enroll(&target, &["data", "--persist"]).unwrap();
    assert_eq!(outcome.report.is_changed(), Some(false));
}

#[test]
fn the_host_gets_a_name() {
    let (target, host) = (target(), Host::new());
    let outcome = host.enroll(&target, &["data", "--name", "c1"]).unwrap();
    assert!(outcome
        .report
        .to_string()
        .contains("done: here: name the host c1\n"));
    assert!(ok(&target, "target list").contains(&format!("{HOST} (c1)")));
    let outcome = host.enroll(&target, &["data", "--name", "c1"]).unwrap();
    assert_eq!(outcome.report.is_changed(), Some(false));
    // The host gets a different name.
    target.file(MAIN, "[export.data]\ndevice = \"/dev/sdb\"\n");
    let words = ["data", "--name", "c2", "--persist"];
    host.enroll(&target, &words).unwrap();
    assert_eq!(
        target.text(MAIN),
        format!(
            "[export.data]\ndevice = \"/dev/sdb\"\nallow = [\"{HOST}\"]\n\n[host_names]\nc2 = \"{HOST}\""
        )
    );
    let other = "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11";
    ok(&target, &format!("target name-host {other} c3"));
    let error = host.enroll(&target, &["data", "--name", "c3"]).unwrap_err();
    assert_eq!(error.message, format!("c3 is the name of the host {other}"));
}

#[test]
fn wrong_names_are_found_before_a_login() {
    let (target, host) = (target(), Host::new());
    let error = host.enroll(&target, &["date"]).unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    assert_eq!(host.log(), [""; 0]);
    for line in [
        &["hcablk", "enroll"][..],
        &["hcablk", "enroll", "--", "-oProxyCommand=x"],
        &["hcablk", "enroll", "a b"],
        &["hcablk", "enroll", "a", "--ssh", " "],
        &["hcablk", "enroll", "a", "--address", "target"],
    ] {
        assert!(hcablk::cli::Cli::try_parse_from(line).is_err(), "{line:?}");
    }
}

#[test]
fn sudo_runs_the_command_there() {
    let (target, host) = (target(), Host::new());
    fs::write(
        host.at("bin/sudo"),
        "#!/bin/sh\n[ \"$1\" = -n ] && shift && exec \"$@\"\n",
    )
    .unwrap();
    fs::set_permissions(
        host.at("bin/sudo"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    host.enroll(&target, &["data", "--sudo"]).unwrap();
    is_enrolled(&target, &host);
    assert!(host
        .log()
        .iter()
        .all(|line| line.starts_with("client1: sudo -n hcablk --json ")),);
}

/// Runs the program itself also as the target, on a folder: keys are exchanged before anything is exported.
#[test]
fn the_program_exchanges_keys_before_there_is_an_export() {
    let (host, root) = (Host::new(), tempfile::tempdir().unwrap());
    let output = Command::cargo_bin("hcablk")
        .unwrap()
        .env("HCABLK_SYSROOT", root.path())
        .args([
            "--json",
            "enroll",
            "client1",
            "--address",
            "10.0.0.1",
            "--ssh",
        ])
        .arg(format!("sh {}", host.at("ssh").display()))
        .assert()
        .success();
    let json: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(json["result"]["host"], HOST);
    assert_eq!(json["result"]["changed"], true);
    assert_eq!(json["result"]["steps"][2]["step"], "store-target-key");
    let own = fs::read_to_string(root.path().join("etc/hcablk/keys/target")).unwrap();
    assert_eq!(own, host.key_of_target());
    let of_host = root.path().join(format!("etc/hcablk/keys/hosts/{HOST}"));
    assert_eq!(
        fs::read_to_string(of_host).unwrap(),
        fs::read_to_string(host.at("root/etc/hcablk/keys/host")).unwrap()
    );
}
