// SPDX-License-Identifier: GPL-2.0

//! How exports and lists treat evicted hosts, against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use hcablk::error::Kind;
use kernel::{
    each_failure_is_undone, fails, hcablk, notes, ok, steps, steps_of, without_keys, Kernel,
};

const A: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";
const B: &str = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b";
const EXPORT: &str =
    "target export data /dev/sdb --no-port --allow 5f2c1d6e-8a0b-4c3d-9e7f-00000000000a";

/// A machine that exports `data` to A.
fn exporting() -> Kernel {
    let kernel = Kernel::loaded();
    ok(&kernel, EXPORT);
    kernel
}

#[test]
fn a_volume_that_is_not_exported_now() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A}"));
    let unexported = notes(&kernel, "target unexport data");
    assert_eq!(unexported.len(), 1);
    assert!(
        unexported[0].contains("stay evicted") && unexported[0].contains(A),
        "{unexported:?}"
    );
    assert!(kernel.is_recorded("data", A));

    let outcome = hcablk(&kernel, &format!("target evict data {A}")).unwrap();
    assert_eq!(outcome.notes[0], "evicted already");
    assert!(
        outcome.notes[1].contains("data is not exported on this machine now"),
        "{outcome:?}"
    );
    let snapshot = kernel.snapshot();
    let error = fails(&kernel, &format!("target evict data {A} {B}"));
    assert_eq!(error.kind, Kind::NotFound);
    assert_eq!(kernel.snapshot(), snapshot);

    ok(&kernel, &format!("target admit data {A}"));
    assert!(!kernel.is_recorded("data", A));
    ok(&kernel, EXPORT);
    assert_eq!(kernel.volume("data", "evicted"), "");
}

#[test]
fn export_evicts_recorded_hosts_before_it_enables_the_volume() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A} {B}"));
    kernel.restart_target();
    let from = kernel.changes();
    let outcome = hcablk(&kernel, EXPORT).unwrap();
    assert_eq!(
        without_keys(outcome.notes),
        [format!(
            "evicted, and refused until they are admitted: {A}, {B}"
        )]
    );
    let steps = steps(&kernel, from);
    let at = |what: &str| steps.iter().position(|step| step == what).unwrap();
    assert!(at(&format!("write evicted {A}")) < at("write enable 1"));
    assert!(at(&format!("write evicted {B}")) < at("write enable 1"));
    assert_eq!(kernel.volume("data", "evicted"), format!("{A}\n{B}"));
}

#[test]
fn export_repeats_evictions_if_the_volume_is_exported_already() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A}"));
    kernel.set_volume("data", "evicted", "");
    kernel.drain(A, 3);
    let outcome = hcablk(&kernel, EXPORT).unwrap();
    assert!(
        outcome
            .notes
            .contains(&"data is exported already".to_owned()),
        "{outcome:?}"
    );
    assert_eq!(kernel.volume("data", "evicted"), A);
    assert_eq!(kernel.progress.borrow().len(), 1);
}

#[test]
fn export_waits_for_requests_in_the_drive() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A}"));
    kernel.set_volume("data", "enable", "0");
    kernel.drain(A, 3);
    let told = format!("write evicted {A}");
    let steps = steps_of(&kernel, EXPORT);
    assert_eq!(steps.iter().filter(|step| **step == told).count(), 4);
    assert_eq!(steps.last().unwrap(), "write enable 1");
    assert!(steps.iter().rposition(|step| *step == told).unwrap() == steps.len() - 2);
}

#[test]
fn each_failure_of_an_export_with_evicted_hosts_is_undone() {
    let prepare = || {
        let kernel = exporting();
        ok(&kernel, &format!("target evict data {A} {B}"));
        kernel.restart_target();
        kernel
    };
    each_failure_is_undone(prepare, EXPORT);
}

#[test]
fn a_record_that_names_no_host_keeps_the_volume_from_being_exported() {
    let small = A.replace('-', "");
    for name in [
        "x",
        "00000000-0000-0000-0000-000000000000",
        &A.to_uppercase(),
        &small,
        &format!("{A}.tmp"),
    ] {
        let kernel = exporting();
        ok(&kernel, &format!("target evict data {B}"));
        let file = Kernel::record_of("data", name);
        kernel.file(&file, "");
        assert!(
            notes(&kernel, "target list")
                .iter()
                .any(|note| note.contains(&file)),
            "{name}"
        );
        let unexported = notes(&kernel, "target unexport data");
        assert!(unexported[0].contains(&file), "{unexported:?}");
        let snapshot = kernel.snapshot();
        let error = fails(&kernel, EXPORT);
        assert!(error.message.contains(&file), "{error:?}");
        assert!(error.advice.is_some());
        assert_eq!(kernel.snapshot(), snapshot, "{name}");
    }
}

#[test]
fn list_shows_evicted_hosts() {
    let kernel = exporting();
    kernel.drain(B, 100);
    ok(&kernel, &format!("target evict data {A}"));
    fails(&kernel, &format!("target evict data {B} --timeout 1"));
    let outcome = hcablk(&kernel, "target list").unwrap();
    assert_eq!(without_keys(outcome.notes.clone()), [""; 0]);
    let text = outcome.report.to_string();
    assert!(
        text.contains(&format!(
            "VOLUME  EVICTED HOST                          DRAINING\n\
             data    {A}  no\n\
             data    {B}  yes\n"
        )),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&outcome.to_json()).unwrap();
    assert_eq!(
        json["volumes"][0]["evicted"],
        serde_json::json!([{"host": A, "draining": false}, {"host": B, "draining": true}])
    );
    assert!(json["volumes"][0].get("evicted_cut").is_none());
}

#[test]
fn list_reports_differences_between_records_and_kernel() {
    let kernel = exporting();
    ok(&kernel, &format!("target evict data {A}"));
    kernel.set_volume("data", "evicted", "");
    let found = notes(&kernel, "target list");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains(&format!("{A} is recorded as evicted from data")),
        "{found:?}"
    );

    kernel.set_volume("data", "evicted", &format!("{B}\n...\n"));
    let outcome = hcablk(&kernel, "target list").unwrap();
    assert_eq!(
        without_keys(outcome.notes.clone()),
        ["volume data has evicted more hosts than the kernel shows: these are the first 1"]
    );
    assert!(outcome.to_json().contains("\"evicted_cut\": true"));

    kernel.restart_target();
    let expected = format!("data is not exported now, and has evicted {A}");
    assert_eq!(notes(&kernel, "target list"), [expected.clone()]);
    kernel
        .tree
        .borrow_mut()
        .retain(|path, _| !path.starts_with("/sys/kernel/config/hcablk_target"));
    assert_eq!(notes(&kernel, "target list")[1], expected);
}
