// SPDX-License-Identifier: GPL-2.0

//! Completions, as bash asks for them.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use kernel::{ok, Kernel};

const A: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const B: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b";

/// A machine with disks, volumes, hosts and ports.
fn machine() -> Kernel {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.folder("/etc/hcablk/hcablk.d");
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        &format!("[host_names]\nclient1 = \"{A}\"\n\n[disk.log]\naddress = \"10.0.0.1\"\n"),
    );
    ok(&kernel, "connect 10.0.0.1 data");
    ok(&kernel, &format!("target export vol /dev/sdb --allow {B}"));
    ok(&kernel, "target export db /dev/sdc");
    kernel
}

/// The candidates for the last of these words, each with its description.
fn with_help(kernel: &Kernel, words: &[&str]) -> Vec<String> {
    let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
    let text = hcablk::complete::complete(kernel, words.len(), &words);
    text.lines().map(str::to_owned).collect()
}

/// The candidates for the last of these words.
fn after(kernel: &Kernel, words: &[&str]) -> Vec<String> {
    let lines = with_help(kernel, words);
    let word = |line: &String| line.split('\t').next().unwrap().to_owned();
    lines.iter().map(word).collect()
}

#[test]
fn names_are_completed() {
    let kernel = machine();
    let before = kernel.snapshot();
    for (words, found) in [
        (&["disconnect", ""][..], &["data", "log"][..]),
        (&["disconnect", "l"], &["log"]),
        (&["connect", ""], &["data", "log"]),
        (&["path", "add", ""], &["data", "log"]),
        (&["times", "--measure", "on", "d"], &["data"]),
        (&["stats", ""], &["data", "log"]),
        (&["target", "stats", ""], &["db", "vol"]),
        (&["target", "unexport", "--force", ""], &["db", "vol"]),
        (&["target", "unexport", "v"], &["vol"]),
        (&["enroll", "client1", "vol", ""], &["db", "vol"]),
        (&["target", "allow", "vol", ""], &[A, B]),
        (&["target", "evict", "vol", A, ""], &[A, B]),
        (
            &["target", "export", "x", "/dev/sdd", "--allow", ""],
            &[A, B],
        ),
        (
            &["target", "export", "x", "/dev/sdd", "--allow", "=", ""],
            &[A, B],
        ),
        (&["target", "name-host", ""], &[A, B]),
        (&["target", "unlisten", ""], &["1"]),
    ] {
        assert_eq!(after(&kernel, words), found, "{words:?}");
    }
    assert_eq!(
        with_help(&kernel, &["target", "allow", "vol", ""]),
        [format!("{A}\tclient1"), B.to_owned()]
    );
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn commands_options_and_values_are_completed() {
    let kernel = machine();
    for (words, found) in [
        (&["disc"][..], &["discover", "disconnect"][..]),
        (
            &["--json", "target", "un"],
            &["unexport", "unlisten", "unapply"],
        ),
        (&["target", "unexport", "--a"], &["--all"]),
        (
            &["target", "export", "x", "/dev/sdd", "--mode", ""],
            &["direct", "cached", "mixed", "p2p"],
        ),
        (
            &["target", "export", "x", "/dev/sdd", "--mode=c"],
            &["--mode=cached"],
        ),
        (&["completions", "b"], &["bash"]),
        (&["target", "export", "x", ""], &[":files"]),
        (&["key", "add", "host", A, "--file", ""], &[":files"]),
        (&["target", "unexport", "--here", "--h"], &["--help"]),
        (&["complete", "x"], &[":files"]),
        (
            &["nonsense", "target", ""],
            &["--json", "--help", "--version"],
        ),
    ] {
        assert_eq!(after(&kernel, words), found, "{words:?}");
    }
    // Hidden commands are not completed.
    let all = after(&kernel, &[""]);
    assert!(
        all.len() > 20 && !all.contains(&"complete".to_owned()),
        "{all:?}"
    );
    let help = with_help(&kernel, &["disconn"]);
    assert_eq!(
        help,
        ["disconnect\tDisconnect a disk; refused while it is mounted or open"]
    );
}

#[test]
fn a_machine_without_modules_has_no_names() {
    let kernel = Kernel::bare();
    let before = kernel.snapshot();
    assert_eq!(after(&kernel, &["disconnect", ""]), [""; 0]);
    assert_eq!(after(&kernel, &["target", "allow", ""]), [""; 0]);
    assert_eq!(kernel.snapshot(), before);
}

/// The script and the program, with the variables that bash sets.
#[test]
fn bash_completes_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    for volume in ["vol", "db"] {
        fs::create_dir_all(at("root/sys/kernel/config/hcablk_target/volumes").join(volume))
            .unwrap();
    }
    fs::create_dir_all(at("bin")).unwrap();
    symlink(assert_cmd::cargo::cargo_bin("hcablk"), at("bin/hcablk")).unwrap();
    let script = "eval \"$(hcablk completions bash)\"
        COMP_WORDS=(\"$@\")
        COMP_CWORD=$(($# - 1))
        _hcablk
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    for (words, found) in [
        (&["hcablk", "target", "unexport", ""][..], "db\nvol\n"),
        (&["hcablk", "target", "allow", "v"], "vol\n"),
        (&["hcablk", "target", "unexp"], "unexport\n"),
        (
            &[
                "hcablk", "target", "export", "x", "/dev/sdb", "--mode", "=", "m",
            ],
            "mixed\n",
        ),
        (&["/usr/sbin/hcablk", "target", "export", "x", "/de"], "\n"),
    ] {
        let output = Command::new("bash")
            .args(["-c", script, "bash"])
            .args(words)
            .env("HCABLK_SYSROOT", at("root"))
            .env("PATH", format!("{}:/usr/bin:/bin", at("bin").display()))
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            found,
            "{words:?}: {output:?}"
        );
    }
}
