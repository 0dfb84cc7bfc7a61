// SPDX-License-Identifier: GPL-2.0

//! `target evict` and `target admit` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::time::Duration;

use hcablk::error::Kind;
use kernel::{fails, hcablk, notes, ok, steps, steps_of, Kernel};

const A: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const B: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b";
const VOLUME: &str = "/sys/kernel/config/hcablk_target/volumes/data";
const EXPORT: &str =
    "target export data /dev/sdb --no-port --allow 5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";

/// A machine that exports `data` to A.
fn exporting() -> Kernel {
    let kernel = Kernel::loaded();
    ok(&kernel, EXPORT);
    kernel
}

fn is_allowed(kernel: &Kernel, host: &str) -> bool {
    kernel.has(&format!("{VOLUME}/hosts/{host}"))
}

#[test]
fn a_host_is_recorded_before_the_kernel_is_asked() {
    let kernel = exporting();
    assert_eq!(
        steps_of(&kernel, &format!("target evict data {A}")),
        [format!("record {A}"), format!("write evicted {A}")]
    );
    assert_eq!(kernel.volume("data", "evicted"), A);
    assert_eq!(kernel.text(Kernel::record_of("data", A)), "");
    assert!(is_allowed(&kernel, A), "evicting is not forbidding");
}

#[test]
fn the_output_of_evict_and_admit() {
    let kernel = exporting();
    let line = format!("target evict data {A} {} {B}", A.to_uppercase());
    let outcome = hcablk(&kernel, &line).unwrap();
    assert_eq!(
        outcome.report.to_string(),
        format!("data has evicted {A}, {B}\n")
    );
    assert_eq!(outcome.notes, [""; 0]);
    let json: serde_json::Value = serde_json::from_str(&outcome.to_json()).unwrap();
    assert_eq!(
        json["result"],
        serde_json::json!({"action": "evict", "volume": "data", "hosts": [A, B], "changed": true})
    );
    let outcome = hcablk(&kernel, &format!("target admit data {A}")).unwrap();
    assert_eq!(
        outcome.report.to_string(),
        format!("data admits {A} again\n")
    );
    let json: serde_json::Value = serde_json::from_str(&outcome.to_json()).unwrap();
    assert_eq!(
        json["result"],
        serde_json::json!({"action": "admit", "volume": "data", "hosts": [A], "changed": true})
    );
}

#[test]
fn all_hosts_are_evicted_before_any_is_waited_for() {
    let kernel = exporting();
    kernel.drain(A, 2);
    assert_eq!(
        steps_of(&kernel, &format!("target evict data {A} {B}")),
        [
            format!("record {A}"),
            format!("record {B}"),
            format!("write evicted {A}"),
            format!("write evicted {B}"),
            format!("write evicted {A}"),
            format!("write evicted {A}"),
        ]
    );
    assert_eq!(kernel.volume("data", "evicted"), format!("{A}\n{B}"));
    assert!(!kernel.locked.get(), "the records stay locked");
}

#[test]
fn evict_waits_without_limit_and_reports_the_reason() {
    let kernel = exporting();
    kernel.drain(A, 1);
    ok(&kernel, &format!("target evict data {A}"));
    assert_eq!(
        *kernel.progress.borrow(),
        [""; 0],
        "a short wait is not reported"
    );

    kernel.drain(B, 30);
    ok(&kernel, &format!("target evict data {B}"));
    let progress = kernel.progress.borrow();
    assert_eq!(progress.len(), 3, "{progress:?}");
    for (text, seconds) in progress.iter().zip(["for 2 s", "for 13 s", "for 24 s"]) {
        assert!(text.contains("data") && text.contains(B), "{text}");
        assert!(text.contains(seconds), "{text}");
        assert!(!text.contains(A), "{text}");
    }
    assert_eq!(kernel.volume("data", "evicted"), format!("{A}\n{B}"));
}

#[test]
fn a_wait_has_an_end_if_one_is_given_and_the_host_stays_evicted() {
    let kernel = exporting();
    kernel.drain(A, 100);
    let line = format!("target evict data {A} {B} --timeout 5");
    let error = fails(&kernel, &line);
    assert_eq!(error.kind, Kind::Busy);
    assert_eq!(error.errno.as_deref(), Some("EAGAIN"));
    assert!(error.message.contains("data has evicted"), "{error:?}");
    assert!(error.message.contains("within 5 s"), "{error:?}");
    assert!(error.message.contains("may still land"), "{error:?}");
    assert!(error.message.contains(A), "{error:?}");
    assert!(!error.message.contains(B), "{error:?}");
    let advice = error.advice.unwrap();
    assert!(
        advice.contains(&format!("hcablk target evict data {A}")),
        "{advice}"
    );
    let time = kernel.time.get();
    assert!(
        (Duration::from_secs(5)..Duration::from_secs(7)).contains(&time),
        "{time:?}"
    );
    assert!(kernel.is_recorded("data", A));
    assert_eq!(
        kernel.volume("data", "evicted"),
        format!("{A} draining\n{B}")
    );

    kernel.drain(A, 2);
    assert_eq!(notes(&kernel, &line), ["evicted already"]);
    assert_eq!(kernel.volume("data", "evicted"), format!("{A}\n{B}"));
}

#[test]
fn evicting_again_asks_the_kernel_again() {
    let kernel = exporting();
    let line = format!("target evict data {A}");
    ok(&kernel, &line);
    kernel.drain(A, 1);
    let from = kernel.changes();
    let outcome = hcablk(&kernel, &line).unwrap();
    assert_eq!(outcome.notes, ["evicted already"]);
    assert!(outcome.to_json().contains("\"changed\": false"));
    let told = format!("write evicted {A}");
    assert_eq!(
        steps(&kernel, from),
        [format!("record {A}"), told.clone(), told]
    );
}

/// Wherever the command is stopped: every host that the kernel has evicted is recorded, and the
/// command completes when it is repeated.
#[test]
fn an_interrupted_eviction_is_completed_by_a_second_one() {
    let line = format!("target evict data {A} {B}");
    let kernel = exporting();
    let before = kernel.changes();
    ok(&kernel, &line);
    let after = kernel.changes();
    assert_eq!(after - before, 4);
    for step in before..after {
        for signal in [false, true] {
            let kernel = exporting();
            let at = if signal {
                &kernel.signal_at
            } else {
                &kernel.fail_at
            };
            at.set(Some(step));
            let error = fails(&kernel, &line);
            assert_eq!(error.kind == Kind::Interrupted, signal, "{error:?}");
            assert_eq!(error.not_undone, [""; 0]);
            at.set(None);
            let told = kernel.volume("data", "evicted");
            for host in told.lines() {
                assert!(kernel.is_recorded("data", host), "step {step}");
            }
            // Before the first call to the kernel, nothing is left.
            let recorded = kernel.is_recorded("data", A) || kernel.is_recorded("data", B);
            assert_eq!(recorded, step >= before + 2, "step {step}, {signal}");
            ok(&kernel, &line);
            assert!(kernel.is_recorded("data", A) && kernel.is_recorded("data", B));
            let told = kernel.volume("data", "evicted");
            assert!(told.contains(A) && told.contains(B), "{told}");
        }
    }
}

#[test]
fn a_failure_names_the_hosts_that_are_not_fenced() {
    let kernel = exporting();
    kernel.signal_at.set(Some(kernel.changes() + 3));
    let error = fails(&kernel, &format!("target evict data {A} {B}"));
    assert!(
        error.message.contains(&format!(
            "{B} is recorded as evicted, but may still use data"
        )),
        "{error:?}"
    );

    let kernel = exporting();
    kernel.fail_at.set(Some(kernel.changes() + 1));
    let error = fails(&kernel, &format!("target evict data {A}"));
    assert!(
        error
            .message
            .starts_with(&format!("cannot evict {A} from data")),
        "{error:?}"
    );
    assert!(error.advice.unwrap().contains("may still use the volume"));
}

/// Every message about hosts has their names; commands in an advice have the ids only.
#[test]
fn messages_have_the_names_of_hosts() {
    let kernel = || {
        let kernel = exporting();
        kernel.folder("/etc/hcablk");
        let names = format!("[host_names]\nclient1 = \"{A}\"\nclient2 = \"{B}\"\n");
        kernel.file("/etc/hcablk/hcablk.toml", &names);
        kernel
    };
    let (a, b) = (format!("{A} (client1)"), format!("{B} (client2)"));
    let evict = format!("target evict data {A} {B}");

    let busy = kernel();
    busy.drain(A, 100);
    let error = fails(&busy, &format!("{evict} --timeout 5"));
    assert!(
        error
            .message
            .starts_with(&format!("data has evicted {a}, ")),
        "{error:?}"
    );
    let advice = error.advice.unwrap();
    assert!(
        advice.ends_with(&format!("hcablk target evict data {A}")),
        "{advice}"
    );
    assert!(busy.progress.borrow()[0].contains(&a));

    let failing = kernel();
    failing.fail_at.set(Some(failing.changes() + 2));
    let error = fails(&failing, &evict);
    let start = format!("cannot evict {a} from data");
    assert!(error.message.starts_with(&start), "{error:?}");

    let interrupted = kernel();
    interrupted.signal_at.set(Some(interrupted.changes() + 3));
    let error = fails(&interrupted, &evict);
    let left = format!("{b} is recorded as evicted, but may still use data");
    assert!(error.message.contains(&left), "{error:?}");

    let admitting = kernel();
    admitting.drain(A, 100);
    let admit: kernel::Meanwhile = Box::new(|kernel| {
        ok(kernel, &format!("target admit data {A}"));
    });
    admitting.meanwhile.replace(Some((3, admit)));
    let error = fails(&admitting, &format!("target evict data {A}"));
    let other = format!("another command has admitted {a} to data");
    assert!(error.message.starts_with(&other), "{error:?}");

    let plain = kernel();
    for (line, message) in [
        (
            format!("target admit data {B}"),
            format!("volume data has not evicted {b} anyway"),
        ),
        (
            format!("target forbid data {B}"),
            format!("volume data does not allow {b} anyway"),
        ),
        (
            format!("target export data /dev/sdb --no-port --allow {B}"),
            format!("volume data exists with other settings: it does not allow {b}"),
        ),
    ] {
        assert_eq!(fails(&plain, &line).message, message);
    }
}

#[test]
fn a_signal_ends_the_wait_and_the_host_stays_evicted() {
    let kernel = exporting();
    kernel.drain(A, 100);
    kernel.signal_at.set(Some(kernel.changes() + 4));
    let error = fails(&kernel, &format!("target evict data {A}"));
    assert_eq!(error.kind, Kind::Interrupted);
    assert!(
        error
            .message
            .starts_with(&format!("interrupted: data has evicted {A}")),
        "{error:?}"
    );
    assert!(error.message.contains("may still land"), "{error:?}");
    assert!(kernel.is_recorded("data", A));
}

#[test]
fn a_host_that_was_only_recorded_is_evicted() {
    let kernel = exporting();
    kernel.folder("/var/lib/hcablk/evicted/data");
    kernel.file(Kernel::record_of("data", A), "");
    let outcome = hcablk(&kernel, &format!("target evict data {A}")).unwrap();
    assert_eq!(outcome.notes, [""; 0]);
    assert!(outcome.to_json().contains("\"changed\": true"));
    assert_eq!(kernel.volume("data", "evicted"), A);
}

#[test]
fn a_host_beyond_the_kernels_limit_is_not_recorded() {
    let kernel = exporting();
    let full: Vec<_> = (0..63)
        .map(|n| format!("5f2c1d6e-8a0b-4c3d-9e7f-1{n:011x}"))
        .collect();
    kernel.set_volume("data", "evicted", &full.join("\n"));
    let error = fails(&kernel, &format!("target evict data {A} {B}"));
    assert_eq!(error.errno.as_deref(), Some("ENOSPC"));
    assert!(error.message.contains(B), "{error:?}");
    assert!(error.advice.unwrap().contains("hcablk target forbid data"));
    assert!(kernel.is_recorded("data", A), "there was room for one");
    assert!(!kernel.is_recorded("data", B));
    ok(&kernel, EXPORT);
}

#[test]
fn a_volume_that_is_not_there() {
    for kernel in [Kernel::loaded(), Kernel::bare()] {
        let snapshot = kernel.snapshot();
        for line in [
            format!("target evict data {A}"),
            format!("target admit data {A}"),
            format!("target admit --if-exists data {A}"),
        ] {
            let error = fails(&kernel, &line);
            assert_eq!(error.kind, Kind::NotFound, "{line}");
            assert!(error.message.contains("no volume data"), "{error:?}");
        }
        assert_eq!(kernel.snapshot(), snapshot);
    }
}

#[test]
fn admit_asks_the_kernel_before_it_removes_the_record() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A} {B}"));
    assert_eq!(
        steps_of(&kernel, &format!("target admit data {A} {A}")),
        [format!("write admit {A}"), format!("forget {A}")]
    );
    assert_eq!(kernel.volume("data", "evicted"), B);
    assert!(!kernel.is_recorded("data", A) && kernel.is_recorded("data", B));
    assert!(is_allowed(&kernel, A));
    kernel.restart_target();
    ok(&kernel, EXPORT);
    assert_eq!(kernel.volume("data", "evicted"), B);
}

#[test]
fn admit_completes_a_partial_eviction() {
    let line = format!("target admit data {A}");
    // The command was stopped after its call to the kernel.
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A}"));
    kernel.fail_at.set(Some(kernel.changes() + 1));
    fails(&kernel, &line);
    kernel.fail_at.set(None);
    assert!(kernel.is_recorded("data", A));
    assert_eq!(kernel.volume("data", "evicted"), "");
    let outcome = hcablk(&kernel, &line).unwrap();
    assert!(outcome.to_json().contains("\"changed\": true"));
    assert!(!kernel.is_recorded("data", A));

    // The user evicted the host in the kernel by hand.
    let kernel = exporting();
    kernel.set_volume("data", "evicted", A);
    ok(&kernel, &line);
    assert_eq!(kernel.volume("data", "evicted"), "");
}

#[test]
fn a_host_that_the_kernel_does_not_admit_stays_recorded() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A}"));
    kernel.fail_at.set(Some(kernel.changes()));
    fails(&kernel, &format!("target admit data {A}"));
    assert!(kernel.is_recorded("data", A));
    assert_eq!(kernel.volume("data", "evicted"), A);
}

#[test]
fn admitting_a_stranger_changes_nothing() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A}"));
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, &format!("target admit data {A} {B}"));
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.message.contains(B), "{error:?}");
    assert_eq!(kernel.snapshot(), snapshot);
    ok(&kernel, &format!("target admit --if-exists data {A} {B}"));
    assert!(!kernel.is_recorded("data", A));
    let outcome = hcablk(&kernel, &format!("target admit --if-exists data {A}")).unwrap();
    assert_eq!(outcome.notes, ["none of these hosts was evicted"]);
    assert_eq!(outcome.report.to_string(), "");
}

#[test]
fn admit_of_an_unlisted_host_fails() {
    let kernel = exporting();
    // The list is cut off after the first host, so that the command cannot know.
    kernel.set_volume("data", "evicted", &format!("{B}\n...\n{A}\n"));
    let stranger = A.replace("000a", "000c");
    let error = fails(&kernel, &format!("target admit data {stranger}"));
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.message.contains(&stranger), "{error:?}");
}

#[test]
fn a_host_admitted_while_evict_waits_is_not_evicted_again() {
    let kernel = exporting();
    kernel.drain(A, 100);
    let admit: kernel::Meanwhile = Box::new(|kernel| {
        ok(kernel, &format!("target admit data {A}"));
    });
    kernel.meanwhile.replace(Some((3, admit)));
    let error = fails(&kernel, &format!("target evict data {A}"));
    assert!(
        error.message.contains("another command has admitted"),
        "{error:?}"
    );
    assert!(!kernel.is_recorded("data", A));
    assert_eq!(kernel.volume("data", "evicted"), "");
}

#[test]
fn a_volume_removed_while_evict_waits_has_no_client() {
    let kernel = exporting();
    kernel.drain(A, 100);
    let unexport: kernel::Meanwhile = Box::new(|kernel| {
        ok(kernel, "target unexport --force data");
    });
    kernel.meanwhile.replace(Some((3, unexport)));
    let notes = notes(&kernel, &format!("target evict data {A}"));
    assert!(notes[0].contains("data is not exported"), "{notes:?}");
    assert!(kernel.is_recorded("data", A));
}

#[test]
fn one_command_at_a_time_changes_the_records() {
    for line in [
        format!("target evict data {A}"),
        format!("target admit data {B}"),
        EXPORT.to_owned(),
    ] {
        let kernel = exporting();
        ok(&kernel, &format!("target evict data {B}"));
        let changes = kernel.changes();
        kernel.locked.set(true);
        let unlock: kernel::Meanwhile = Box::new(move |kernel| {
            assert_eq!(kernel.changes(), changes);
            kernel.locked.set(false);
        });
        kernel.meanwhile.replace(Some((5, unlock)));
        ok(&kernel, &line);
        assert_eq!(kernel.pauses.get(), 5, "{line}");
        assert!(kernel.changes() > changes, "{line}");
    }
}

#[test]
fn evicting_needs_rights_and_a_kernel_that_can() {
    let line = format!("target evict data {A}");
    let kernel = exporting();
    kernel.unprivileged.set(true);
    let error = fails(&kernel, &line);
    assert_eq!(error.kind, Kind::Setup);
    assert!(error.advice.unwrap().contains("sudo"));

    let kernel = exporting();
    for attribute in ["evicted", "admit"] {
        let path = format!("{VOLUME}/{attribute}");
        kernel.tree.borrow_mut().remove(std::path::Path::new(&path));
    }
    let error = fails(&kernel, &line);
    assert_eq!(error.kind, Kind::Setup);
    assert!(!kernel.is_recorded("data", A));
    assert_eq!(notes(&kernel, "target list"), [""; 0]);
    // Such a kernel cannot admit a recorded host either.
    kernel.folder("/var/lib/hcablk/evicted/data");
    kernel.file(Kernel::record_of("data", A), "");
    assert_eq!(fails(&kernel, EXPORT).kind, Kind::Setup);
}
