// SPDX-License-Identifier: GPL-2.0

//! The configuration: reading, checking, saving, and making the kernel hold it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use kernel::{each_failure_is_undone, fails, golden, hcablk, key, notes, ok, steps_of, Kernel};
use nix::errno::Errno;

const MAIN: &str = "/etc/hcablk/hcablk.toml";
const HOST: &str = "7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44";
const OTHER: &str = "0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11";

const BOTH: &str = r#"
[export.data]
device = "/dev/sdb"
mode = "cached"
allow = ["7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44"]

[port.1]
address = "10.0.0.1"
memory = "2 GiB"

[disk.db]
address = "10.0.0.2"
volume = "data"
queue_depth = 64
io_timeout = "1 min"
paths = { 1 = "10.0.1.2", 3 = "10.0.2.2:7745" }
"#;

/// A machine with this main file.
fn with(text: &str) -> Kernel {
    let kernel = Kernel::loaded();
    kernel.folder("/etc/hcablk");
    kernel.file(MAIN, text);
    kernel
}

fn both() -> Kernel {
    with(BOTH)
}

/// A second file of the configuration.
fn add_file(kernel: &Kernel, name: &str, text: &str) {
    kernel.folder("/etc/hcablk/hcablk.d");
    kernel.file(format!("/etc/hcablk/hcablk.d/{name}"), text);
}

fn exit(kernel: &Kernel, line: &str) -> Option<Kind> {
    hcablk(kernel, line).unwrap().exit
}

#[test]
fn apply_creates_the_configured_objects() {
    let kernel = both();
    ok(&kernel, "apply");
    assert_eq!(kernel.volume("data", "path"), "/dev/sdb");
    assert_eq!(kernel.volume("data", "mode"), "cached");
    assert_eq!(kernel.volume("data", "enable"), "1");
    assert!(kernel.has(&format!(
        "/sys/kernel/config/hcablk_target/volumes/data/hosts/{HOST}"
    )));
    assert_eq!(kernel.port("1", "address"), "10.0.0.1");
    assert_eq!(kernel.port("1", "memory_mib"), "2048");
    assert_eq!(kernel.port("1", "enable"), "1");
    assert_eq!(kernel.device("db", "queue_depth"), "64");
    assert_eq!(kernel.device("db", "io_timeout"), "60");
    assert_eq!(kernel.device("db", "state"), "live");
    assert_eq!(kernel.path("db", 1, "port"), "7744");
    assert_eq!(kernel.path("db", 3, "address"), "10.0.2.2");
    assert_eq!(kernel.path("db", 3, "state"), "live");
}

#[test]
fn applying_again_changes_nothing() {
    let kernel = both();
    ok(&kernel, "apply");
    assert_eq!(steps_of(&kernel, "apply"), [""; 0]);
    assert_eq!(
        notes(&kernel, "apply"),
        ["everything already matches the configuration"]
    );
    assert_eq!(exit(&kernel, "config diff"), None);
}

#[test]
fn each_failure_of_apply_is_undone() {
    each_failure_is_undone(both, "apply");
}

#[test]
fn each_failure_of_a_change_is_undone() {
    let prepare = || {
        let kernel = both();
        // A host that was forbidden, and whose change was undone, has its key again.
        for (host, byte) in [(HOST, 1), (OTHER, 2)] {
            kernel.file(format!("/etc/hcablk/keys/hosts/{host}"), &key(byte).0);
        }
        ok(&kernel, "apply");
        let text = BOTH
            .replace("queue_depth = 64", "queue_depth = 32\npolicy = \"numa\"")
            .replace("3 = \"10.0.2.2:7745\"", "2 = \"10.0.3.2\"")
            .replace("mode = \"cached\"", "mode = \"mixed\"")
            .replace(HOST, OTHER);
        kernel.file(MAIN, &text);
        kernel
    };
    each_failure_is_undone(prepare, "apply --force");
}

#[test]
fn a_dry_run_changes_nothing_and_lists_the_steps() {
    let kernel = both();
    let before = kernel.snapshot();
    let text = ok(&kernel, "apply --dry-run");
    assert_eq!(kernel.snapshot(), before);
    assert_eq!(
        text,
        "would make export data (path /dev/sdb, mode cached)\n\
         would allow 7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44 to use export data\n\
         would enable export data\n\
         would make port 1 (address 10.0.0.1, memory_mib 2048)\n\
         would enable port 1\n\
         would make disk db (address 10.0.0.2, volume data, queue_depth 64, io_timeout 60)\n\
         would add path 1 (10.0.1.2:7744) to disk db\n\
         would add path 3 (10.0.2.2:7745) to disk db\n\
         would connect disk db\n"
    );
    assert_eq!(ok(&kernel, "apply"), text.replace("would", "done:"));
}

#[test]
fn a_dry_run_loads_no_module() {
    let kernel = Kernel::bare();
    kernel.file(MAIN, BOTH);
    ok(&kernel, "apply --dry-run");
    ok(&kernel, "config diff");
    assert_eq!(kernel.changes(), 0);
}

#[test]
fn one_side_can_be_applied_alone() {
    let kernel = both();
    ok(&kernel, "target apply");
    assert_eq!(kernel.volume("data", "enable"), "1");
    assert!(!kernel.has("/sys/kernel/config/hcablk/db"));
    ok(&kernel, "apply --disks");
    assert_eq!(kernel.device("db", "state"), "live");
}

#[test]
fn a_saved_configuration_restores_the_same_state() {
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        &format!("target export data /dev/sdb --mode cached --chunk-kib 64 --allow {HOST}"),
    );
    ok(&kernel, "target export iso /dev/sdc --read-only --no-port");
    ok(
        &kernel,
        "target listen --address fd00::1 --port 7745 --memory-mib 100 --buffer-mib 16 --id 12",
    );
    ok(
        &kernel,
        "connect 10.0.0.2 data --name db --path 10.0.1.2 --path 10.0.2.2:7745 --policy numa",
    );
    ok(
        &kernel,
        "connect 10.0.0.2 log --ctrl-loss-tmo -1 --small-read 0 --max-io-kib 2048",
    );
    ok(&kernel, "path remove db 1");
    ok(&kernel, "times log --measure on");
    ok(&kernel, "config save");
    let tree = |kernel: &Kernel| -> Vec<_> {
        let all = kernel.snapshot().into_iter();
        all.filter(|(path, _)| path.starts_with("/sys/kernel/config"))
            .collect()
    };
    let fresh = Kernel::loaded();
    fresh.file(MAIN, &kernel.text(MAIN));
    ok(&fresh, "apply");
    assert_eq!(tree(&fresh), tree(&kernel));
    assert_eq!(exit(&fresh, "config diff"), None);
    // Saving the applied state gives the same file again.
    assert_eq!(
        ok(&fresh, "config show --running"),
        ok(&kernel, "config show")
    );
}

#[test]
fn a_file_that_was_written_by_hand_is_kept() {
    let kernel = both();
    ok(&kernel, "apply");
    // The file has the same settings already, in a different form.
    assert_eq!(fails(&kernel, "config save").kind, Kind::Exists);
    assert_eq!(kernel.text(MAIN), BOTH.trim_end());
    ok(&kernel, "config save --force");
    assert_eq!(steps_of(&kernel, "config save"), [""; 0]);
    ok(&kernel, "disconnect db");
    // The command replaces a file that it wrote itself.
    ok(&kernel, "config save");
    add_file(&kernel, "a.toml", "[disk.x]\naddress = \"10.0.0.9\"\n");
    let error = fails(&kernel, "config save");
    assert!(error.message.contains("hcablk.d/a.toml"), "{error}");
    ok(&kernel, "config save --file /root/other.toml");
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    let kernel = with("[disk.a]\naddress = \"10.0.0.1\"\nqueue-depth = 64\n");
    add_file(&kernel, "10.toml", "[port.1]\n\n[port.2]\nport = 7744\n");
    add_file(
        &kernel,
        "20.toml",
        "\n[port.1]\nport = 7745\n[export.x]\ndevice = \"/dev/sdb\"\nprovider = \"auto\"\n",
    );
    add_file(&kernel, "30.toml.off", "nonsense");
    let before = kernel.snapshot();
    for line in ["config check", "apply", "connect --all", "config show"] {
        let error = fails(&kernel, line);
        assert_eq!(
            error.message,
            "the configuration has 4 mistakes\n  \
             /etc/hcablk/hcablk.toml:3: unknown key `queue-depth`: did you mean `queue_depth`?\n  \
             /etc/hcablk/hcablk.d/20.toml:2: [port.1] is configured already, at /etc/hcablk/hcablk.d/10.toml:1\n  \
             /etc/hcablk/hcablk.d/20.toml:4: `provider` is for mode p2p, not for mode direct\n  \
             /etc/hcablk/hcablk.d/10.toml:3: it has the address and port of [port.1]"
        );
    }
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn an_export_that_nobody_can_reach_is_found() {
    let export = "[export.data]\ndevice = \"/dev/sdb\"\n";
    for (text, reached) in [
        (export.to_owned(), false),
        (format!("{export}[port.1]\nenabled = false\n"), false),
        (format!("{export}[port.1]\n"), true),
        (format!("{export}enabled = false\n"), true),
    ] {
        let outcome = hcablk(&with(&text), "config check").unwrap();
        assert_eq!(outcome.exit, (!reached).then_some(Kind::Usage), "{text}");
        let told = outcome
            .notes
            .iter()
            .any(|note| note.contains(":1: there is no [port]"));
        assert_eq!(told, !reached, "{text}");
    }
    // `apply` exports the volume nevertheless.
    let kernel = with(export);
    ok(&kernel, "apply");
    assert_eq!(kernel.volume("data", "enable"), "1");
}

#[test]
fn invalid_settings_are_refused() {
    for (text, words) in [
        ("[export.a]\ndevice = \"/d\"\nmode = \"mixed\"\ncache = \"1 GiB\"", ":1: `cache` is for the modes direct and p2p"),
        ("[export.a]\ndevice = \"/d\"\nallow = [\"7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44\", \"7C0F6A0E-1B52-5D5E-8F0E-2F3B7C1D9A44\"]", "twice"),
        ("[disk.a]\naddress = \"10.0.0.1\"\npaths = { 2 = \"10.0.0.1\" }", "path 2 leads where path 0 does"),
        ("[disk.a]\naddress = \"10.0.0.1:7745\"", "the port is `port`"),
        ("[export.\".data\"]\ndevice = \"/d\"", "does not begin with '.'"),
        ("[disk.a]\naddress = \"10.0.0.1\"\nvolume = \".data\"", "does not begin with '.'"),
        ("[disk.abcdefghijklmnopq]\naddress = \"10.0.0.1\"", "`volume` is missing"),
    ] {
        let error = fails(&with(text), "config check");
        assert!(error.message.contains(words), "{text}: {error}");
    }
}

#[test]
fn a_running_disk_is_not_torn_down() {
    let kernel = both();
    ok(&kernel, "apply");
    let text = BOTH.replace("queue_depth = 64", "queue_depth = 32\npolicy = \"numa\"");
    kernel.file(MAIN, &text);
    let outcome = hcablk(&kernel, "apply").unwrap();
    assert_eq!(
        outcome.report.to_string(),
        "done: set policy of disk db from queue-depth to numa\n\
         pending: set queue_depth of disk db from 64 to 32: it is connected\n"
    );
    assert_eq!(outcome.exit, Some(Kind::Exists));
    assert_eq!(kernel.device("db", "queue_depth"), "64");
    assert_eq!(
        ok(&kernel, "config diff"),
        "~ disk db: queue_depth is 64, not 32\n"
    );
    ok(&kernel, "apply --force");
    assert_eq!(kernel.device("db", "queue_depth"), "32");
    assert_eq!(kernel.device("db", "state"), "live");
}

/// A machine whose configuration has an export, a port and a disk, and an export whose drive is
/// missing.
fn with_a_missing_drive() -> Kernel {
    let more = "\n[export.gone]\ndevice = \"/dev/sdc\"\nallow = [\"7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44\"]\n";
    let kernel = with(&format!("{BOTH}{more}"));
    kernel.refuse("gone", Errno::ENOENT, "no such drive");
    kernel
}

#[test]
fn a_missing_drive_keeps_the_others_away_unless_it_is_to_go_on() {
    let kernel = with_a_missing_drive();
    let before = kernel.snapshot();
    fails(&kernel, "apply");
    assert_eq!(kernel.snapshot(), before);
    let outcome = hcablk(&kernel, "apply --keep-going").unwrap();
    assert_eq!(outcome.exit, Some(Kind::NotFound));
    assert_eq!(kernel.volume("data", "enable"), "1");
    assert_eq!(kernel.port("1", "enable"), "1");
    assert_eq!(kernel.device("db", "state"), "live");
    let gone = "/sys/kernel/config/hcablk_target/volumes/gone";
    assert!(!kernel.has(gone));
    let text = outcome.report.to_string();
    assert!(!text.contains("done: make export gone"), "{text}");
    assert!(text.contains("pending: enable export gone: "), "{text}");
    assert!(text.contains("no such drive"), "{text}");
    let advice = &outcome.notes[0];
    assert!(advice.starts_with("export gone: "), "{advice}");
    // Applying again succeeds when the drive exists.
    kernel.refuse.borrow_mut().clear();
    let outcome = hcablk(&kernel, "apply --keep-going").unwrap();
    assert_eq!((outcome.exit, kernel.has(gone)), (None, true));
    assert_eq!(steps_of(&kernel, "apply"), [""; 0]);
}

#[test]
fn an_object_without_a_plan_does_not_stop_the_others() {
    let kernel = with(&BOTH.replace("\"10.0.0.2\"", "\"fe80::1\""));
    let before = kernel.snapshot();
    fails(&kernel, "apply");
    assert_eq!(kernel.snapshot(), before);
    let outcome = hcablk(&kernel, "apply --keep-going").unwrap();
    assert_eq!(outcome.exit, Some(Kind::Failed));
    assert!(outcome.notes[0].starts_with("disk db: fe80::1 is a link-local address"));
    assert_eq!(kernel.volume("data", "enable"), "1");
    assert!(!kernel.has("/sys/kernel/config/hcablk/db"));
}

#[test]
fn an_object_in_use_is_the_lesser_failure() {
    let kernel = with_a_missing_drive();
    hcablk(&kernel, "apply --keep-going").unwrap();
    let text = kernel.text(MAIN);
    kernel.file(MAIN, &text.replace("queue_depth = 64", "queue_depth = 32"));
    let outcome = hcablk(&kernel, "apply --keep-going").unwrap();
    assert_eq!(outcome.exit, Some(Kind::NotFound));
    kernel.refuse.borrow_mut().clear();
    let outcome = hcablk(&kernel, "apply --keep-going").unwrap();
    assert_eq!(outcome.exit, Some(Kind::Exists));
}

#[test]
fn a_mounted_disk_is_not_ended_by_force() {
    let kernel = both();
    ok(&kernel, "apply");
    kernel.file(MAIN, &BOTH.replace("queue_depth = 64", "queue_depth = 32"));
    kernel.busy.set(u32::MAX);
    kernel.file("/sys/block/hcablk0/dev", "252:0\n");
    kernel.file(
        "/proc/self/mountinfo",
        "40 22 252:0 / /mnt rw - ext4 /dev/hcablk0 rw\n",
    );
    let before = kernel.snapshot();
    let error = fails(&kernel, "apply --force");
    assert_eq!(error.kind, Kind::Busy);
    assert!(error.advice.unwrap().contains("umount /mnt"));
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn a_host_that_may_have_an_unlisted_session_is_not_forbidden() {
    let kernel = both();
    ok(&kernel, "apply");
    kernel.set_volume("data", "clients", "...\n");
    kernel.file(MAIN, &BOTH.replace(HOST, OTHER));
    assert_eq!(
        ok(&kernel, "apply"),
        format!(
            "done: allow {OTHER} to use export data\n\
             pending: forbid {HOST} to use export data: it may have a session: the kernel lists only the first ones\n"
        )
    );
}

#[test]
fn clients_keep_their_sessions() {
    let kernel = both();
    ok(&kernel, "apply");
    kernel.set_volume("data", "clients", &format!("{HOST} 0123456789abcdef 1 4\n"));
    let text = BOTH
        .replace("mode = \"cached\"", "mode = \"mixed\"")
        .replace(HOST, OTHER);
    kernel.file(MAIN, &text);
    let text = ok(&kernel, "apply");
    assert_eq!(
        text,
        format!(
            "done: allow {OTHER} to use export data\n\
             pending: forbid {HOST} to use export data: it has a session\n\
             pending: set mode of export data from cached to mixed: it has a session\n"
        )
    );
    ok(&kernel, "apply --force");
    assert_eq!(kernel.volume("data", "mode"), "mixed");
    assert!(!kernel.has(&format!(
        "/sys/kernel/config/hcablk_target/volumes/data/hosts/{HOST}"
    )));
}

/// `apply` and `config diff` show hosts with their names, in JSON as a member of its own.
#[test]
fn steps_have_the_names_of_hosts() {
    let names = format!("\n[host_names]\nclient1 = \"{HOST}\"\nclient2 = \"{OTHER}\"\n");
    let kernel = with(&format!("{BOTH}{names}"));
    ok(&kernel, "apply");
    kernel.set_volume("data", "clients", &format!("{HOST} 0123456789abcdef 1 4\n"));
    kernel.file(MAIN, &format!("{}{names}", BOTH.replace(HOST, OTHER)));
    let (allowed, forbidden) = (format!("{OTHER} (client2)"), format!("{HOST} (client1)"));
    let differences = ok(&kernel, "config diff");
    assert_eq!(
        differences,
        format!("~ export data: {allowed} is not allowed\n~ export data: {forbidden} is allowed\n")
    );
    let outcome = hcablk(&kernel, "target apply").unwrap();
    assert_eq!(
        outcome.report.to_string(),
        format!(
            "done: allow {allowed} to use export data\n\
             pending: forbid {forbidden} to use export data: it has a session\n"
        )
    );
    let json: serde_json::Value = serde_json::from_str(&outcome.to_json()).unwrap();
    for (step, host, name) in [
        (&json["steps"][0], OTHER, "client2"),
        (&json["pending"][0], HOST, "client1"),
    ] {
        assert_eq!(step["host"], host);
        assert_eq!(step["host_name"], name);
    }
}

#[test]
fn unconfigured_objects_stay() {
    let kernel = both();
    ok(&kernel, "connect 10.0.0.9 other");
    ok(&kernel, "apply");
    assert_eq!(kernel.device("other", "state"), "live");
    assert_eq!(
        ok(&kernel, "config diff"),
        "- disk other: it is not configured\n"
    );
    assert_eq!(exit(&kernel, "config diff"), Some(Kind::Exists));
}

#[test]
fn a_disabled_object_is_created_and_stays_disabled() {
    let kernel = with("[export.a]\ndevice = \"/dev/sdb\"\nenabled = false\n[disk.b]\naddress = \"10.0.0.1\"\nenabled = false\n");
    ok(&kernel, "apply");
    assert_eq!(kernel.volume("a", "enable"), "0");
    assert_eq!(kernel.device("b", "state"), "new");
    assert_eq!(exit(&kernel, "config diff"), None);
}

#[test]
fn an_evicted_host_stays_evicted() {
    let kernel = both();
    ok(&kernel, "apply --target");
    ok(&kernel, &format!("target evict data {HOST}"));
    ok(&kernel, "target unexport data --force");
    ok(&kernel, "apply --target");
    assert_eq!(kernel.volume("data", "evicted"), HOST);
}

#[test]
fn the_host_keeps_its_id() {
    let kernel = with(&format!("[host]\nid = \"{HOST}\"\n"));
    ok(&kernel, "apply");
    assert_eq!(kernel.text("/etc/hcablk/host_id"), HOST);
    assert_eq!(steps_of(&kernel, "apply"), [""; 0]);
    kernel.file("/etc/hcablk/host_id", OTHER);
    let error = fails(&kernel, "apply");
    assert!(error.message.contains(OTHER), "{error}");
}

#[test]
fn configured_disks_are_connected_each_by_itself() {
    let kernel = with("[disk.a]\naddress = \"10.0.0.1\"\n[disk.b]\naddress = \"10.0.0.2\"\n[disk.c]\naddress = \"10.0.0.3\"\nenabled = false\n");
    kernel.silence("10.0.0.1", "no answer");
    let error = fails(&kernel, "connect --all");
    assert_eq!(error.kind, Kind::Connection);
    assert!(!kernel.has("/sys/kernel/config/hcablk/a"));
    assert_eq!(kernel.device("b", "state"), "live");
    kernel.reach("10.0.0.1");
    assert_eq!(
        ok(&kernel, "connect --all"),
        "a /dev/hcablk1\nb /dev/hcablk0\n"
    );
    assert_eq!(ok(&kernel, "connect c"), "/dev/hcablk2\n");
    assert_eq!(notes(&kernel, "connect c"), ["c is connected already"]);
    assert_eq!(fails(&kernel, "connect d").kind, Kind::NotFound);
}

#[test]
fn a_target_that_is_not_up_is_waited_for() {
    let kernel = with("[disk.a]\naddress = \"10.0.0.1\"\n");
    kernel.silence("10.0.0.1", "no answer");
    *kernel.meanwhile.borrow_mut() =
        Some((20, Box::new(|kernel: &Kernel| kernel.reach("10.0.0.1"))));
    assert_eq!(ok(&kernel, "connect a --wait 60"), "/dev/hcablk0\n");
    let told = kernel.progress.borrow().clone();
    assert!(
        told.len() >= 2 && told[0].contains("the disk a is tried again for 60 s"),
        "{told:?}"
    );
}

#[test]
fn a_permanent_failure_is_not_waited_for() {
    let kernel = with("[disk.a]\naddress = \"10.0.0.1\"\n");
    kernel.refuse("a", Errno::EPROTONOSUPPORT, "another version");
    assert_eq!(fails(&kernel, "connect a --wait 60").kind, Kind::Connection);
    assert_eq!(kernel.pauses.get(), 0);
    kernel.refuse("a", Errno::EACCES, "not allowed");
    fails(&kernel, "connect a --wait 60");
    assert!(kernel.pauses.get() >= 59, "{}", kernel.pauses.get());
}

#[test]
fn without_a_configuration_nothing_is_done() {
    let kernel = Kernel::loaded();
    assert_eq!(steps_of(&kernel, "apply"), [""; 0]);
    assert_eq!(
        notes(&kernel, "apply"),
        ["nothing is configured in /etc/hcablk/hcablk.toml"]
    );
    ok(&kernel, "config check");
    assert_eq!(ok(&kernel, "connect --all"), "");
}

#[test]
fn results_as_json() {
    let kernel = both();
    let json = |line: &str| hcablk(&kernel, line).unwrap().to_json();
    golden("config-check.json", &json("config check"));
    golden("config-show.json", &json("config show"));
    golden("apply-dry-run.json", &json("apply --dry-run"));
    golden("connect-all.json", &json("connect --all"));
    kernel.file(
        MAIN,
        &BOTH.replace("queue_depth = 64", "queue_depth = 32\npolicy = \"numa\""),
    );
    golden("config-diff.json", &json("config diff --disks"));
    golden("apply.json", &json("apply --disks"));
    golden(
        "config-save.json",
        &json("config save --file /root/saved.toml"),
    );
}
