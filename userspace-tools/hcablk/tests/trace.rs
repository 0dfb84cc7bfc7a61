// SPDX-License-Identifier: GPL-2.0

//! `trace` against an imitation of the kernel, and against recordings that `make pictures` has made in guests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hcablk::error::Kind;
use hcablk::output::Report;
use hcablk::system::KernelEvent;
use hcablk::trace::MergedRequest;
use kernel::{fails, golden, hcablk, ok, Kernel};

const SHOW: &str = "trace show /target.trace /c1.trace";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn recording(name: &str) -> String {
    std::fs::read_to_string(folder().join("tests/recordings").join(name)).unwrap()
}

/// A machine with both recordings.
fn recorded() -> Kernel {
    let kernel = Kernel::bare();
    kernel.file("/target.trace", &recording("target.trace"));
    kernel.file("/c1.trace", &recording("c1.trace"));
    kernel
}

/// Runs a program of `tests/harness` on a file or on standard input; returns its output.
fn checked(program: &str, file: Option<&Path>, input: &str) -> String {
    let mut child = Command::new("python3")
        .arg(folder().join("../../tests/harness").join(program))
        .args(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{complaints}");
    said
}

fn requests(kernel: &Kernel, line: &str) -> Vec<MergedRequest> {
    match hcablk(kernel, line).unwrap().report {
        Report::Trace { requests, .. } => requests,
        other => panic!("{other:?}"),
    }
}

/// Returns the number of the first read of 1 MiB that moves in chunks, or whole.
fn read_of(kernel: &Kernel, is_chunked: bool) -> usize {
    let all = requests(kernel, SHOW);
    let is_it = |one: &&MergedRequest| one.bytes == 1 << 20 && one.is_chunked == is_chunked;
    all.iter().find(is_it).unwrap().number
}

/// Shifts the clock of a recording by `by` microseconds, and by `ppm` more for each million.
fn moved(text: &str, by: i64, ppm: i64) -> String {
    let line = |line: &str| {
        let Some((before, after)) = line.split_once(": hcablk_") else {
            return line.to_owned();
        };
        let (start, time) = before.rsplit_once(' ').unwrap();
        let (seconds, micros) = time.split_once('.').unwrap();
        let at = seconds.parse::<i64>().unwrap() * 1_000_000 + micros.parse::<i64>().unwrap();
        let at = at + by + at * ppm / 1_000_000;
        format!(
            "{start} {}.{:06}: hcablk_{after}",
            at / 1_000_000,
            at % 1_000_000
        )
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn show_prints_the_recorded_requests() {
    let kernel = recorded();
    golden("trace-show.txt", &ok(&kernel, SHOW));
    let json = hcablk(&kernel, SHOW).unwrap().to_json();
    golden("trace-show.json", &json);
    let said = checked("moved.py", None, &json);
    assert!(said.starts_with("2 ") && said.ends_with(" 1\n"), "{said}");
    for (is_chunked, name) in [(true, "chunked"), (false, "whole")] {
        let number = read_of(&kernel, is_chunked);
        let text = ok(&kernel, &format!("{SHOW} --request {number}"));
        golden(&format!("trace-{name}.txt"), &text);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}

#[test]
fn pictures() {
    let kernel = recorded();
    let number = read_of(&kernel, true);
    let line = format!("{SHOW} --request {number} --svg /one.svg --perfetto /all.json");
    assert!(ok(&kernel, &line).contains("/one.svg is written"));
    let svg = kernel.text("/one.svg");
    golden("trace-chunked.svg", &svg);
    // Drive, memory and wire of 16 chunks, and both sides.
    assert!((34..=50).contains(&svg.matches("<title>").count()), "{svg}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.json");
    std::fs::write(&file, kernel.text("/all.json")).unwrap();
    let said = checked("traceevent.py", Some(&file), "");
    assert!(said.contains(" 0 problems"), "{said}");
    ok(&kernel, &format!("{SHOW} --svg /largest.svg"));
    assert!(kernel.text("/largest.svg").contains("of 1 MiB"));
}

#[test]
fn violations_of_the_format_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.json");
    let slice = |ts: u32, dur: u32| {
        format!("{{\"ph\":\"X\",\"name\":\"a\",\"cat\":\"a\",\"pid\":1,\"tid\":1,\"ts\":{ts},\"dur\":{dur},\"args\":{{}}}}")
    };
    for events in [
        format!("{},{}", slice(0, 10), slice(5, 10)),
        slice(0, 10),
        "{\"ph\":\"s\",\"name\":\"a\",\"cat\":\"a\",\"pid\":1,\"tid\":1,\"ts\":0,\"id\":1}"
            .to_owned(),
        "{\"ph\":\"X\",\"name\":\"a\"}".to_owned(),
    ] {
        std::fs::write(&file, format!("{{\"traceEvents\":[{events}]}}")).unwrap();
        let program = self::folder().join("../../tests/harness/traceevent.py");
        let status = Command::new("python3")
            .arg(program)
            .arg(&file)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(!status.success(), "{events}");
    }
}

/// A different clock changes the times by no more than the reported uncertainty.
#[test]
fn clocks_of_any_kind() {
    let usual = requests(&recorded(), SHOW);
    for (by, ppm) in [(5_000_000_000, 0), (-900_000, 0), (77, 150), (0, -150)] {
        let kernel = recorded();
        kernel.file("/c1.trace", &moved(&recording("c1.trace"), by, ppm));
        let other = requests(&kernel, SHOW);
        assert_eq!(other.len(), usual.len());
        for (one, other) in usual.iter().zip(&other) {
            assert_eq!(one.chunks.len(), other.chunks.len());
            let (Some(ours), Some(theirs)) = (one.times.sent_ns, other.times.sent_ns) else {
                assert_eq!((one.times.sent_ns, other.times.sent_ns), (None, None));
                continue;
            };
            // Relative to the receipt at the target: times are relative to the first event of all, which is the
            // client's.
            let since = |moved: &MergedRequest, at: i64| at - moved.times.received_ns.unwrap();
            let off = since(one, ours) - since(other, theirs);
            let may = one.uncertainty_ns.unwrap() + other.uncertainty_ns.unwrap();
            assert!(off.abs() <= may + 2000, "{by} {ppm}: {off} {may}");
        }
    }
}

#[test]
fn unrelated_recordings_are_refused() {
    let kernel = recorded();
    for (line, says) in [
        (
            "trace show /c1.trace",
            "none of the recordings has a target's side",
        ),
        (
            "trace show /target.trace /target.trace",
            "both have a target's side",
        ),
        (
            "trace show /target.trace /etc/machine-id",
            "not a recording of hcablk trace",
        ),
    ] {
        let error = fails(&kernel, line);
        assert_eq!(error.kind, Kind::Usage);
        assert!(error.message.contains(says), "{}", error.message);
    }
    let error = fails(&kernel, &format!("{SHOW} --request 9999"));
    assert_eq!(error.kind, Kind::NotFound);
    // One of the clocks runs a tenth faster.
    kernel.file("/c1.trace", &moved(&recording("c1.trace"), 0, 100_000));
    let error = fails(&kernel, SHOW);
    assert!(
        error.message.contains("cannot be aligned"),
        "{}",
        error.message
    );
    kernel.file("/c1.trace", "# hcablk trace 1\n# host: c1\n");
    let error = fails(&kernel, SHOW);
    assert!(
        error.message.contains("no request in common"),
        "{}",
        error.message
    );
}

#[test]
fn one_side_alone() {
    let kernel = recorded();
    let all = requests(&kernel, "trace show /target.trace");
    assert!(all.iter().all(|one| one.client.is_none()));
    assert!(all
        .iter()
        .any(|one| one.is_chunked && one.chunks.len() == 16));
}

#[test]
fn recording_writes_the_received_events() {
    let text = recording("c1.trace");
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let kernel = Kernel::bare();
    let mut heard = kernel.heard.borrow_mut();
    heard.extend(
        lines
            .iter()
            .map(|line| KernelEvent::Trace((*line).to_owned())),
    );
    heard.push_back(KernelEvent::LostTraces(7));
    drop(heard);
    let said = ok(&kernel, "trace record -o /dev/out.trace");
    assert!(said.starts_with("/dev/out.trace has "), "{said}");
    let written = kernel.text("/dev/out.trace");
    assert!(written.contains("\n# lost: 7\n"), "{written}");
    assert_eq!(written.lines().count(), lines.len() + 3);
    let listened = kernel.listened.take().unwrap();
    assert!(listened.raw_clock && !listened.uevents);
    assert_eq!(listened.tracepoints.len(), 13);
    // A recording also ends at a limit.
    kernel.heard.borrow_mut().extend(
        lines
            .iter()
            .map(|line| KernelEvent::Trace((*line).to_owned())),
    );
    let outcome = hcablk(&kernel, "trace record --requests 2 -o /dev/two.trace").unwrap();
    let json = outcome.to_json();
    golden("trace-record.json", &json);
    assert!(json.contains("\"requests\": 2"), "{json}");
    let error = fails(&kernel, "trace record -o /none/out.trace");
    assert_eq!(error.kind, Kind::NotFound);
}
