// SPDX-License-Identifier: GPL-2.0

//! `key apply` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use hcablk::user::files::{self, Wanted};
use kernel::{fails, hcablk as outcome, key, key_notes, ok, steps_of, Kernel};
use nix::errno::Errno;

const A: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const B: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b";
const TARGET: &str = "/sys/kernel/config/hcablk_target";
const HOST: &str =
    "/sys/kernel/config/hcablk_target/volumes/data/hosts/5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const DEVICE: &str = "/sys/kernel/config/hcablk/data";

fn outcome_of(kernel: &Kernel, line: &str) -> hcablk::output::Outcome {
    outcome(kernel, line).unwrap()
}

/// When a key is rotated, the former first key becomes the second; the kernel has it as one of the two at any moment.
#[test]
fn the_older_key_of_a_host_is_set_before_the_newer_one_takes_its_place() {
    let kernel = Kernel::loaded();
    ok(
        &kernel,
        &format!("target export data /dev/sdb --no-port --allow {A} --insecure"),
    );
    let (older, older_digits) = key(1);
    let (newer, newer_digits) = key(2);
    for (attribute, value) in [("key", older_digits.as_str()), ("key2", ""), ("keys", "1")] {
        kernel.file(format!("{HOST}/{attribute}"), &format!("{value}\n"));
    }
    kernel.file(format!("/etc/hcablk/keys/hosts/{A}"), &(newer + &older));
    assert_eq!(
        steps_of(&kernel, "key apply"),
        [
            format!("write key2 {older_digits}"),
            format!("write key {newer_digits}")
        ]
    );
}

/// A disk with a proof of identity does not continue without it when files are missing.
#[test]
fn keys_that_are_gone_are_not_taken_from_a_disk() {
    let kernel = Kernel::loaded();
    let (own, _) = key(1);
    let (target, target_digits) = key(2);
    ok(&kernel, "connect 10.0.0.1 data");
    for attribute in ["host_key", "target_key"] {
        kernel.file(format!("{DEVICE}/{attribute}"), "\n");
    }
    kernel.file(format!("{DEVICE}/keys"), "0\n");
    let nothing: [String; 0] = [];
    assert_eq!(steps_of(&kernel, "key apply"), nothing, "it has none");
    kernel.file("/etc/hcablk/keys/host", &own);
    kernel.file("/etc/hcablk/keys/targets/10.0.0.1", &target);
    ok(&kernel, "key apply");
    assert_eq!(kernel.device("data", "target_key"), target_digits);
    kernel.file(format!("{DEVICE}/keys"), "2\n");

    for file in ["host", "targets/10.0.0.1"] {
        kernel.file(format!("/etc/hcablk/keys/{file}"), "");
    }
    let before = kernel.snapshot();
    let error = fails(&kernel, "key apply");
    assert_eq!(error.kind, Kind::Setup);
    assert!(
        error
            .to_string()
            .contains("none in /etc/hcablk/keys any more"),
        "{error}"
    );
    assert_eq!(kernel.snapshot(), before);
}

/// Hosts know a target by one of two keys: no third key replaces the one that they know.
#[test]
fn a_target_does_not_rotate_twice() {
    let kernel = Kernel::loaded();
    ok(&kernel, "key generate target");
    ok(&kernel, "key generate target --rotate");
    let before = kernel.snapshot();
    let error = fails(&kernel, "key generate target --rotate");
    assert_eq!(error.kind, Kind::Exists);
    assert!(error.to_string().contains("two valid keys"), "{error}");
    assert_eq!(kernel.snapshot(), before);
    ok(&kernel, "key retire target");
    ok(&kernel, "key generate target --rotate");
}

/// A host whose target does not have the new key yet continues with the old one.
#[test]
fn a_host_s_new_key_is_pending_until_its_targets_have_it() {
    const FOLDER: &str = "/etc/hcablk/keys";
    let kernel = Kernel::loaded();
    ok(&kernel, "key generate host");
    let old = ok(&kernel, "key show host");
    let (target, _) = key(2);
    kernel.file(format!("{FOLDER}/targets/default"), &target);
    ok(&kernel, "connect 10.0.0.1 data");
    let digits = |key: &str| key.split('-').nth(2).unwrap()[2..].to_owned();
    kernel.accepted_key.replace(Some(digits(&old)));

    ok(&kernel, "key generate host --rotate");
    let new = ok(&kernel, "key show host");
    assert_ne!(new, old);
    // A second rotation returns the same pending key, since the target may have it by now.
    assert_eq!(kernel.text(format!("{FOLDER}/host")), old.trim_end());
    ok(&kernel, "key generate host --rotate");
    assert_eq!(ok(&kernel, "key show host"), new);

    let outcome = outcome_of(&kernel, "key apply");
    assert_eq!(outcome.exit, Some(Kind::Exists));
    assert!(
        outcome
            .notes
            .iter()
            .any(|note| note.contains("10.0.0.1 does not have the pending key")),
        "{:?}",
        outcome.notes
    );
    assert_eq!(kernel.device("data", "host_key"), digits(&old));
    ok(&kernel, "disconnect data");
    ok(&kernel, "connect 10.0.0.1 data");
    assert_eq!(kernel.device("data", "host_key"), digits(&old));

    kernel.accepted_key.replace(Some(digits(&new)));
    let outcome = outcome_of(&kernel, "key apply");
    assert_eq!(outcome.exit, None);
    assert_eq!(kernel.device("data", "host_key"), digits(&new));
    assert_eq!(
        kernel.text(format!("{FOLDER}/host")),
        format!("{new}{}", old.trim_end())
    );
    assert!(!kernel.has(&format!("{FOLDER}/host.pending")));
    assert_eq!(ok(&kernel, "key show host"), new);

    // With --force a target that never returns does not keep the key pending.
    ok(&kernel, "key generate host --rotate");
    assert_eq!(outcome_of(&kernel, "key apply").exit, Some(Kind::Exists));
    assert_eq!(outcome_of(&kernel, "key apply --force").exit, None);
}

/// A disk in user space uses the host's key when it reconnects, so its target is asked, too.
#[test]
fn the_target_of_a_disk_in_user_space_is_asked_for_the_pending_key() {
    let kernel = Kernel::loaded();
    ok(&kernel, "key generate host");
    let old = ok(&kernel, "key show host");
    let (target, _) = key(2);
    kernel.file("/etc/hcablk/keys/targets/default", &target);
    let wanted = Wanted {
        address: "10.0.0.9".parse().unwrap(),
        volume: "data".to_owned(),
        host: A.to_owned(),
        keys: true,
        wwid: None,
        options: vec![("port".to_owned(), "7745".to_owned())],
    };
    kernel.folder(files::FOLDER);
    kernel.file(files::wanted("mine"), &files::text(&wanted).unwrap());
    let digits = old.split('-').nth(2).unwrap()[2..].to_owned();
    kernel.accepted_key.replace(Some(digits));
    ok(&kernel, "key generate host --rotate");
    let outcome = outcome_of(&kernel, "key apply");
    assert_eq!(outcome.exit, Some(Kind::Exists));
    let says = |word: &str| outcome.notes.iter().any(|note| note.contains(word));
    assert!(
        says("10.0.0.9 does not have the pending key"),
        "{:?}",
        outcome.notes
    );
    assert!(says("key apply --force"), "{:?}", outcome.notes);
    assert_eq!(kernel.text("/etc/hcablk/keys/host"), old.trim_end());
}

/// `key show` prints the key that a host without a key makes, not one that was pending when the former key was removed.
#[test]
fn the_first_key_of_a_host_ends_a_pending_one() {
    let kernel = Kernel::loaded();
    ok(&kernel, "key generate host");
    ok(&kernel, "key generate host --rotate");
    let pending = ok(&kernel, "key show host");
    kernel.file("/etc/hcablk/keys/host", "");
    ok(&kernel, "key generate host");
    let shown = ok(&kernel, "key show host");
    assert_ne!(shown, pending);
    assert_eq!(shown.trim_end(), kernel.text("/etc/hcablk/keys/host"));
    assert!(!kernel.has("/etc/hcablk/keys/host.pending"));
}

/// A disk whose key is missing does not prevent other disks from getting theirs.
#[test]
fn keys_are_applied_to_all_that_have_theirs() {
    let kernel = Kernel::loaded();
    let (own, _) = key(1);
    let (target, target_digits) = key(2);
    for (disk, address) in [("data", "10.0.0.1"), ("other", "10.0.0.2")] {
        ok(&kernel, &format!("connect {address} {disk} --insecure"));
        let device = format!("/sys/kernel/config/hcablk/{disk}");
        for attribute in ["host_key", "target_key"] {
            kernel.file(format!("{device}/{attribute}"), "\n");
        }
        kernel.file(format!("{device}/keys"), "0\n");
        kernel.file(format!("{device}/insecure"), "0\n");
    }
    kernel.file("/etc/hcablk/keys/host", &own);
    kernel.file("/etc/hcablk/keys/targets/10.0.0.2", &target);
    let error = fails(&kernel, "key apply");
    assert!(
        error.to_string().contains("none of the target 10.0.0.1"),
        "{error}"
    );
    assert_eq!(kernel.device("other", "target_key"), target_digits);
}

/// Volumes demand keys unless they are INSECURE: commands that set one up name the missing keys and the next command.
#[test]
fn a_target_reports_missing_keys() {
    let kernel = Kernel::loaded();
    for attribute in ["key", "key2"] {
        kernel.file(format!("{TARGET}/{attribute}"), "\n");
    }
    kernel.file(format!("{TARGET}/keys"), "0\n");
    let of_target =
        "this machine has no key as a target, so no host can use a volume that is not INSECURE: \
                     hcablk enroll CLIENT VOLUME, or by hand: hcablk key generate target && hcablk key apply";
    let of_host = |host: &str| {
        format!(
            "data refuses {host}, since this target does not have the key: hcablk enroll CLIENT data, or by \
             hand: ssh CLIENT hcablk key show host | hcablk key add host {host} && hcablk key apply"
        )
    };
    let export = format!("target export data /dev/sdb --allow {A}");
    let both = [of_target.to_owned(), of_host(A)];
    assert_eq!(key_notes(&kernel, &export), both);
    assert_eq!(key_notes(&kernel, "target list"), both);

    ok(&kernel, "key generate target");
    assert_eq!(key_notes(&kernel, "target list"), [of_host(A)]);
    kernel.file(format!("/etc/hcablk/keys/hosts/{A}"), &key(1).0);
    ok(&kernel, "key apply");
    let nothing: [String; 0] = [];
    assert_eq!(key_notes(&kernel, "target list"), nothing);
    assert_eq!(
        key_notes(&kernel, &format!("target allow data {B}")),
        [of_host(B)]
    );
    // The kernel has a key that somebody wrote by hand.
    kernel.file(format!("{TARGET}/volumes/data/hosts/{B}/keys"), "1\n");
    assert_eq!(key_notes(&kernel, "target list"), nothing);
}

/// A remark that holds for all volumes is printed once, and many hosts have one command.
#[test]
fn a_target_reports_a_key_that_all_volumes_lack_once() {
    let kernel = Kernel::loaded();
    for volume in ["data", "log"] {
        let line = format!("target export {volume} /dev/sdb --allow {A} --allow {B}");
        ok(&kernel, &line);
    }
    ok(
        &kernel,
        &format!("target export open /dev/sdc --insecure --allow {A}"),
    );
    let notes = key_notes(&kernel, "target list");
    assert_eq!(notes.len(), 3, "{notes:?}");
    for (note, volume) in notes[1..].iter().zip(["data", "log"]) {
        assert!(
            note.starts_with(&format!("{volume} refuses {A}, {B}, "))
                && note.contains(&format!(": hcablk enroll CLIENT {volume}, "))
                && note.contains("hcablk key add host UUID && hcablk key apply"),
            "{notes:?}"
        );
    }
}

/// A target does not show its volumes to a host without a key.
#[test]
fn a_host_that_is_refused_learns_which_keys_are_missing() {
    let kernel = Kernel::loaded();
    let refused = (
        Errno::ENOENT,
        "the target exports no volume of this name".to_owned(),
    );
    kernel
        .refuse
        .borrow_mut()
        .insert("data".to_owned(), refused);
    let connect = format!("connect 10.0.0.1 data --host-id {A}");
    let advice = || fails(&kernel, &connect).advice.unwrap();
    let enroll = "on the target: hcablk enroll CLIENT data --address 10.0.0.1\nor by hand:";
    let make = "here:          hcablk key generate host";
    let add_host = format!(
        "on the target: ssh CLIENT hcablk key show host | hcablk key add host {A} && hcablk key apply"
    );
    let add_target =
        "here:          ssh TARGET hcablk key show target | hcablk key add target 10.0.0.1";
    let wanted = format!("keys are missing here:\n{enroll}\n{make}\n{add_host}\n{add_target}");
    assert!(advice().ends_with(&wanted), "{}", advice());

    kernel.file("/etc/hcablk/keys/host", &key(1).0);
    let advice = fails(&kernel, &format!("{connect} --insecure"))
        .advice
        .unwrap();
    let wanted = format!("keys are missing here:\n{enroll}\n{add_host}\n{add_target}");
    assert!(advice.ends_with(&wanted), "{advice}");

    kernel.file("/etc/hcablk/keys/targets/default", &key(2).0);
    let advice = fails(&kernel, &connect).advice.unwrap();
    assert!(
        advice.ends_with("both sides need keys: hcablk key --help"),
        "{advice}"
    );
}
