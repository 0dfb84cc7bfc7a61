// SPDX-License-Identifier: GPL-2.0

//! `stats` with an interval, `events`, `metrics` and `top` against an imitation of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hcablk::error::Kind;
use hcablk::output::Report;
use hcablk::system::KernelEvent;
use hcablk::top::{draw, KeyCode, KeyEvent, KeyModifiers, Model};
use kernel::{fails, golden, hcablk, ok, Kernel};
use ratatui::backend::TestBackend;
use ratatui::Terminal;

const HOST: &str = "5f2c1d6e-8a0b-4c3d-9e7f-001122334455";

/// A machine with a disk of two paths, a second disk, and an export.
fn busy() -> Kernel {
    let kernel = Kernel::loaded();
    ok(&kernel, "connect 10.0.0.1 data --path 10.0.1.1");
    ok(&kernel, "connect fd00::1 backup");
    kernel.file("/dev/nvme0n1", "");
    ok(
        &kernel,
        &format!("target export vol1 /dev/nvme0n1 --allow {HOST}"),
    );
    count(&kernel, 0);
    kernel
}

/// Adds `step` to every counter and measurement.
fn count(kernel: &Kernel, step: u64) {
    let stats = format!(
        "reads {}\nwrites {}\nflushes {}\nread_bytes {}\nwritten_bytes {}\nerrors {}\nprotocol_errors 0\n",
        10 + step * 2500,
        5 + step * 100,
        step,
        40_960 + step * 2500 * 4096,
        step * 100 * 65_536,
        step / 2
    );
    kernel.set_device("data", "stats", &stats);
    kernel.set_volume("vol1", "stats", &stats);
    let times = |names: &[&str]| {
        let line = |name| {
            let count = 4 + step * 2600;
            let total = 4000 + step * 2600 * 50_000;
            format!("{name} {count} {total} 65536:{count}\n")
        };
        names.iter().map(line).collect::<String>()
    };
    kernel.set_device("data", "timing", "1\n");
    kernel.set_device("data", "times", &times(&["queued", "sent", "ending"]));
    kernel.set_volume("vol1", "timing", "1\n");
    let of_target = ["waiting", "fetching", "drive", "sending"];
    kernel.set_volume("vol1", "times", &times(&of_target));
    kernel.file("/sys/block/hcablk0/inflight", "       3        4\n");
}

/// Makes the counters grow while the command waits for the second time.
fn count_meanwhile(kernel: &Kernel) {
    let later = |kernel: &Kernel| count(kernel, 1);
    let pauses = kernel.pauses.get() + 2;
    *kernel.meanwhile.borrow_mut() = Some((pauses, Box::new(later)));
}

fn said(kernel: &Kernel) -> Vec<Report> {
    kernel.said.take()
}

#[test]
fn rates_of_disks() {
    let kernel = busy();
    count_meanwhile(&kernel);
    assert_eq!(ok(&kernel, "stats 2 3"), "");
    let all = said(&kernel);
    assert_eq!(all.len(), 3);
    let text: String = all.iter().map(ToString::to_string).collect();
    golden("stats-rates.txt", &text);
    golden("stats-rates.json", &all[1].to_json_line());
}

#[test]
fn rates_of_one_disk_or_volume() {
    let kernel = busy();
    for (line, name) in [
        ("stats data 0.5 1", "data"),
        ("stats /dev/hcablk1 1 1", "backup"),
        ("target stats vol1 1 1", "vol1"),
    ] {
        ok(&kernel, line);
        let text = said(&kernel)[0].to_string();
        assert_eq!(text.lines().count(), 2, "{line}");
        assert!(text.lines().nth(1).unwrap().starts_with(name), "{line}");
    }
    assert_eq!(fails(&kernel, "stats none 1").kind, Kind::NotFound);
    assert_eq!(fails(&kernel, "target stats none 1").kind, Kind::NotFound);
}

#[test]
fn rates_of_volumes() {
    let kernel = busy();
    count_meanwhile(&kernel);
    ok(&kernel, "target stats 1 2");
    golden("target-stats-rates.json", &said(&kernel)[1].to_json_line());
}

#[test]
fn the_time_of_samples_does_not_lengthen_intervals() {
    let kernel = busy();
    let before = kernel.time.get();
    ok(&kernel, "stats 10 3");
    assert_eq!(kernel.time.get() - before, Duration::from_secs(30));
}

#[test]
fn rates_without_the_module() {
    let kernel = Kernel::bare();
    let outcome = hcablk(&kernel, "stats 1").unwrap();
    assert_eq!(
        outcome.notes,
        ["the kernel module hcablk is not loaded: no disks"]
    );
}

#[test]
fn a_disk_with_a_number_for_a_name() {
    let kernel = busy();
    ok(&kernel, "connect 10.0.0.1 other --name 7");
    assert!(ok(&kernel, "stats --name 7").contains('7'));
    ok(&kernel, "stats --name 7 1 1");
    assert!(said(&kernel)[0].to_string().contains("\n7 "));
}

#[test]
fn wrong_intervals() {
    let kernel = busy();
    for line in [
        "stats 0",
        "stats data 0.01",
        "stats data x",
        "stats 1 0",
        "stats 1 2 3",
        "stats 1 x",
        "stats inf",
        "target stats a/b 1",
    ] {
        assert_eq!(fails(&kernel, line).kind, Kind::Usage, "{line}");
    }
}

fn uevent(more: &[&str]) -> KernelEvent {
    let mut words = vec![
        "change@/devices/virtual/block/hcablk0",
        "ACTION=change",
        "SUBSYSTEM=block",
        "DEVNAME=hcablk0",
        "DEVTYPE=disk",
        "HCABLK_DISK=data",
    ];
    words.extend(more);
    KernelEvent::Uevent(words.join("\0").into_bytes())
}

fn trace(text: &str) -> KernelEvent {
    KernelEvent::Trace(format!("  kworker/0:1-9  [000] .....  1000.000001: {text}"))
}

fn a_loss(kernel: &Kernel) {
    let path = "hcablk_path: disk=data path=1";
    kernel.heard.borrow_mut().extend([
        uevent(&[
            "HCABLK_PATH=1",
            "HCABLK_STATE=lost",
            "HCABLK_ERROR=no answer",
        ]),
        trace(&format!("{path} state=lost error=-110")),
        trace(&format!("{path} state=waiting error=-110")),
        uevent(&["HCABLK_STATE=degraded", "HCABLK_ERROR=no answer"]),
        trace("hcablk_session: session=00000000deadbeef epoch=1 queue=-1 state=ended error=-110"),
        KernelEvent::LostTraces(3),
        KernelEvent::LostUevents,
    ]);
}

#[test]
fn events_as_they_come() {
    let kernel = busy();
    a_loss(&kernel);
    assert_eq!(ok(&kernel, "events"), "");
    let all = said(&kernel);
    let text: String = all.iter().map(ToString::to_string).collect();
    golden("events.txt", &text);
    let lines: String = all.iter().map(Report::to_json_line).collect();
    golden("events.jsonl", &lines);
    let listened = kernel.listened.take().unwrap();
    assert!(listened.uevents);
    assert_eq!(
        listened.tracepoints,
        [
            ("hcablk", "hcablk_session"),
            ("hcablk_target", "hcablk_target_session")
        ]
    );
}

#[test]
fn each_change_is_reported_once() {
    for (line, states) in [
        ("events", &["lost", "degraded"][..]),
        ("events --all", &["lost", "waiting", "degraded"]),
        ("events --only tracepoints", &["lost"]),
        ("events --only tracepoints --all", &["lost", "waiting"]),
    ] {
        let kernel = busy();
        a_loss(&kernel);
        if line.contains("only") {
            kernel
                .heard
                .borrow_mut()
                .retain(|heard| !matches!(heard, KernelEvent::Uevent(_)));
        }
        ok(&kernel, line);
        let told: Vec<_> = said(&kernel)
            .into_iter()
            .filter_map(|report| match report {
                Report::Event(event) if event.source != hcablk::events::Source::Now => Some(event),
                _ => None,
            })
            .filter(|event| event.disk.is_some())
            .map(|event| event.state.unwrap())
            .collect();
        assert_eq!(told, states, "{line}");
    }
}

#[test]
fn events_end_by_their_number() {
    let kernel = busy();
    a_loss(&kernel);
    ok(&kernel, "events --count 1");
    let all = said(&kernel);
    assert!(all.last().unwrap().to_string().contains("path 1 lost"));
}

#[test]
fn missing_event_sources_are_reported() {
    let kernel = busy();
    *kernel.listen_note.borrow_mut() = Some("cannot listen to tracepoints".to_owned());
    ok(&kernel, "events");
    assert_eq!(kernel.progress.take(), ["cannot listen to tracepoints"]);
}

/// Queues the kernel's reports on the beginning and the end of lost writes.
fn lost_writes(kernel: &Kernel) {
    kernel.heard.borrow_mut().extend([
        uevent(&["HCABLK_LOST_WRITES=1"]),
        trace("hcablk_lost_writes: disk=data lost=1"),
        uevent(&["HCABLK_LOST_WRITES=0"]),
        trace("hcablk_lost_writes: disk=data lost=0"),
        uevent(&["HCABLK_LOST_WRITES=x"]),
        trace("hcablk_lost_writes: disk=data lost=x"),
    ]);
}

/// Returns the events that a command line prints after `listening`, as text.
fn reported(kernel: &Kernel, line: &str) -> Vec<String> {
    ok(kernel, line);
    let all = said(kernel).into_iter().map(|report| report.to_string());
    all.skip_while(|line| !line.ends_with("listening\n"))
        .skip(1)
        .collect()
}

#[test]
fn lost_writes_are_reported_once_and_so_is_their_end() {
    let (begun, ended) = (
        "lost-writes data /dev/hcablk0 begun: the target lost acknowledged writes",
        "lost-writes data /dev/hcablk0 ended\n",
    );
    for line in ["events", "events --all"] {
        let kernel = busy();
        lost_writes(&kernel);
        let events = reported(&kernel, line);
        assert_eq!(events.len(), 2, "{line}: {events:?}");
        assert!(events[0].contains(begun), "{line}: {events:?}");
        assert!(events[1].ends_with(ended), "{line}: {events:?}");
    }
    let kernel = busy();
    lost_writes(&kernel);
    kernel
        .heard
        .borrow_mut()
        .retain(|heard| matches!(heard, KernelEvent::Trace(_)));
    let events = reported(&kernel, "events --only tracepoints");
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].contains("lost-writes data begun: "), "{events:?}");
    assert!(
        events[1].ends_with("lost-writes data ended\n"),
        "{events:?}"
    );
    // The tracepoint is optional: the command also listens to the others if the module lacks it.
    let listened = kernel.listened.take().unwrap();
    let lost = ("hcablk", "hcablk_lost_writes");
    assert_eq!(listened.optional, [lost]);
    assert!(!listened.tracepoints.contains(&lost));
}

#[test]
fn lost_writes_are_reported_from_the_beginning() {
    let kernel = busy();
    kernel.lose_writes("data");
    ok(&kernel, "events");
    let lines: String = said(&kernel).iter().map(Report::to_json_line).collect();
    golden("events-lost-writes.jsonl", &lines);
}

/// Runs the validator of the tests on a file; returns its output.
fn is_open_metrics(file: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/harness/openmetrics.py");
    let output = Command::new("python3").arg(script).arg(file).output();
    let output = output.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn golden_file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(name)
}

#[test]
fn metrics_of_everything() {
    let kernel = busy();
    count(&kernel, 1);
    let file =
        "[export.vol1]\ndevice = \"/dev/nvme0n1\"\n[port.1]\n[disk.data]\naddress = \"10.0.0.1\"\n";
    kernel.file("/etc/hcablk/hcablk.toml", file);
    golden("metrics.prom", &ok(&kernel, "metrics"));
    let samples = is_open_metrics(&golden_file("metrics.prom"));
    assert!(samples.contains("samples of"), "{samples}");
}

#[test]
fn metrics_of_lost_writes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lost.prom");
    let kernel = busy();
    kernel.lose_writes("data");
    let text = ok(&kernel, "metrics");
    assert!(
        text.contains("\nhcablk_disk_lost_writes{disk=\"data\"} 1\n"),
        "{text}"
    );
    let kernel = Kernel::loaded();
    kernel.old.set(true);
    ok(&kernel, "connect 10.0.0.1 data");
    let text = ok(&kernel, "metrics");
    assert!(!text.contains("\nhcablk_disk_lost_writes{"), "{text}");
    std::fs::write(&file, text).unwrap();
    is_open_metrics(&file);
}

#[test]
fn metrics_of_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none.prom");
    for kernel in [Kernel::bare(), Kernel::loaded()] {
        std::fs::write(&file, ok(&kernel, "metrics")).unwrap();
        assert_eq!(is_open_metrics(&file), "4 samples of 3 families\n");
    }
}

#[test]
fn metrics_go_into_a_file() {
    let kernel = busy();
    assert_eq!(ok(&kernel, "metrics --output /run/hcablk.prom"), "");
    let text = ok(&kernel, "metrics");
    assert_eq!(kernel.text("/run/hcablk.prom"), text.trim_end());
    kernel.unprivileged.set(true);
    let error = fails(&kernel, "metrics --output /run/hcablk.prom");
    assert_eq!(error.kind, Kind::Setup);
}

/// An object that is missing has no metric: its name comes from the configuration.
#[test]
fn metrics_of_the_configured_objects() {
    let kernel = Kernel::loaded();
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        "[export.data]\ndevice = \"/dev/sdb\"\n[export.off]\ndevice = \"/dev/sdc\"\nenabled = false\n\
         [port.1]\n[disk.db]\naddress = \"10.0.0.2\"\n[disk.mine]\naddress = \"10.0.0.2\"\nuser = true\n",
    );
    let has = |line: &str| {
        let text = ok(&kernel, "metrics");
        assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
    };
    has("hcablk_configuration_valid 1");
    has("hcablk_key_pending 0");
    has("hcablk_export_configured{volume=\"data\"} 1");
    has("hcablk_port_configured{port=\"1\"} 1");
    has("hcablk_disk_configured{disk=\"db\"} 1");
    has("hcablk_disk_at_start{disk=\"db\"} 1");
    let text = ok(&kernel, "metrics");
    assert!(
        !text.contains("\"off\"") && !text.contains("\"mine\""),
        "{text}"
    );

    ok(&kernel, "key generate host");
    ok(&kernel, "key generate host --rotate");
    has("hcablk_key_pending 1");
    kernel.file("/etc/hcablk/hcablk.toml", "[export.data]\n");
    has("hcablk_configuration_valid 0");
    assert!(!ok(&kernel, "metrics").contains("hcablk_export_configured"));
}

/// A cluster manager connects a disk on one of its nodes: the others have it configured, and no unit that connects it.
#[test]
fn a_disk_that_nothing_connects_at_the_start_is_not_missed() {
    let kernel = Kernel::loaded();
    kernel.file(
        "/etc/hcablk/hcablk.toml",
        "[disk.db]\naddress = \"10.0.0.2\"\n",
    );
    for folder in [
        "/run/systemd/system",
        "/etc/systemd/system",
        "/etc/systemd/system/hcablk.target.wants",
    ] {
        kernel.folder(folder);
    }
    let has = |value: u8| {
        let text = ok(&kernel, "metrics");
        let line = format!("\nhcablk_disk_at_start{{disk=\"db\"}} {value}\n");
        assert!(text.contains(&line), "{text}");
    };
    kernel.file(
        "/etc/systemd/system/hcablk.target.wants/hcablk@other.service",
        "",
    );
    has(0);
    kernel.file(
        "/etc/systemd/system/hcablk.target.wants/hcablk@db.service",
        "",
    );
    has(1);
    let rules = std::fs::read_to_string(rules_file()).unwrap();
    assert!(rules.contains(
        "expr: (hcablk_disk_at_start == 1) unless on (job, instance, disk) hcablk_disk_info\n"
    ));
}

/// The names of metrics and the matchers of labels in an expression of Prometheus: each name with its labels.
fn selectors(expression: &str) -> Vec<(String, Vec<(String, String)>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("hcablk_") {
        rest = &rest[at..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        let inside = after
            .strip_prefix('{')
            .and_then(|text| text.split_once('}'));
        let matchers = inside.map_or("", |(inside, _)| inside).split(',');
        let matchers = matchers.filter_map(|matcher| {
            let (label, value) = matcher.split_once('=')?;
            let values = value.trim_start_matches('~').trim_matches('"').to_owned();
            Some((label.to_owned(), values))
        });
        found.push((name.to_owned(), matchers.collect()));
    }
    found
}

/// Returns whether `hcablk metrics` has this metric: in the example, or as a counter of the documents.
fn has_metric(name: &str) -> bool {
    let metrics = std::fs::read_to_string(golden_file("metrics.prom")).unwrap();
    let has = |end: &str| metrics.contains(&format!("\n{name}{end}"));
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/counters.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let counter = name
        .strip_prefix("hcablk_disk_")
        .or_else(|| name.strip_prefix("hcablk_volume_"))
        .and_then(|name| name.strip_suffix("_total"));
    has("{") || has(" ") || counter.is_some_and(|name| docs.contains(&format!("`{name}`")))
}

/// The file of rules, as Prometheus reads it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Alert>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    #[serde(rename = "alert")]
    name: String,
    expr: String,
    #[serde(rename = "for")]
    lasts: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn rules_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/hcablk.rules.yml")
}

/// An alert on a metric or a label that does not exist would never fire.
#[test]
fn the_alerts_fit_the_metrics() {
    let text = std::fs::read_to_string(rules_file()).unwrap();
    let rules: Rules = serde_norway::from_str(&text).unwrap();
    assert_eq!(rules.groups.len(), 1);
    assert_eq!(rules.groups[0].name, "hcablk");
    let metrics = std::fs::read_to_string(golden_file("metrics.prom")).unwrap();
    let mut names = BTreeSet::new();
    for rule in &rules.groups[0].rules {
        let alert = rule.name.as_str();
        assert!(names.insert(alert), "{alert} is there twice");
        let severity = rule.labels["severity"].as_str();
        assert!(["warning", "critical"].contains(&severity), "{alert}");
        for text in ["summary", "description"].map(|member| &rule.annotations[member]) {
            assert!(text.len() > 20, "{alert}: {text}");
        }
        let is_time = |text: &String| text.ends_with(['m', 'h', 'd']);
        assert!(rule.lasts.as_ref().is_none_or(is_time), "{alert}");
        let selectors = selectors(&rule.expr);
        assert!(
            !selectors.is_empty() || rule.expr.contains("node_textfile_mtime_seconds"),
            "{alert}: {}",
            rule.expr
        );
        for (name, matchers) in selectors {
            assert!(has_metric(&name), "{alert}: there is no metric {name}");
            for (label, values) in matchers {
                for value in values.split('|') {
                    let sample = metrics.lines().any(|line| {
                        line.starts_with(&format!("{name}{{"))
                            && line.contains(&format!("{label}=\"{value}\""))
                    });
                    assert!(sample, "{alert}: {name} never has {label} {value}");
                }
            }
        }
    }
    assert!(names.len() > 12, "{names:?}");
    // The documents name these alerts.
    for alert in [
        "HcablkExportMissing",
        "HcablkDiskLostWrites",
        "HcablkKeyPending",
    ] {
        assert!(names.contains(alert), "{alert}");
    }
}

/// Every metric that the dashboard uses must exist.
#[test]
fn the_dashboard_fits_the_metrics() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/hcablk.json");
    let text = std::fs::read_to_string(file).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut names = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            for (name, _) in selectors(expression) {
                names += 1;
                assert!(has_metric(&name), "{name} in {}", panel["title"]);
            }
        }
    }
    assert!(names > 15, "{names}");
}

fn screen(model: &Model) -> String {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in 0..24 {
        let line: String = (0..80)
            .map(|column| buffer[(column, row)].symbol())
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[test]
fn the_whole_screen() {
    let kernel = busy();
    let mut model = Model::new(&kernel, Duration::from_secs(1));
    model.look(&kernel).unwrap();
    count(&kernel, 1);
    kernel.time.set(kernel.time.get() + Duration::from_secs(1));
    model.look(&kernel).unwrap();
    for (key, name) in [
        ('1', "top-disks.txt"),
        ('2', "top-paths.txt"),
        ('3', "top-target.txt"),
        ('4', "top-latency.txt"),
        ('?', "top-help.txt"),
    ] {
        let key = KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE);
        assert!(model.press(&kernel, key));
        golden(name, &screen(&model));
    }
}

#[test]
fn the_screen_shows_lost_writes() {
    let kernel = busy();
    kernel.lose_writes("data");
    let mut model = Model::new(&kernel, Duration::from_secs(1));
    model.look(&kernel).unwrap();
    // The disks are sorted by their names; the second one is selected.
    model.press(&kernel, KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
    golden("top-lost-writes.txt", &screen(&model));
    kernel.set_device("data", "state", "queueing\n");
    model.look(&kernel).unwrap();
    let text = screen(&model);
    assert!(text.contains("queueing"), "{text}");
    assert!(text.contains("hcablk check shows the remedy"), "{text}");
}

/// A client is shown with its name.
#[test]
fn the_screen_shows_the_names_of_hosts() {
    let kernel = busy();
    let (named, other) = (
        "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a",
        "5f2c1d6e-8a0b-4c3d-9e7f-00000000000b",
    );
    let clients = format!("{named} 00000000deadbeef 1 2\n{other} 00000000deadbeee 3 4\n");
    kernel.set_volume("vol1", "clients", &clients);
    kernel.folder("/etc/hcablk");
    let config = format!("[host_names]\nclient1 = \"{named}\"\n");
    kernel.file("/etc/hcablk/hcablk.toml", &config);
    let mut model = Model::new(&kernel, Duration::from_secs(1));
    model.look(&kernel).unwrap();
    model.press(
        &kernel,
        KeyEvent::new(KeyCode::Char('3'), KeyModifiers::NONE),
    );
    golden("top-names.txt", &screen(&model));
}

#[test]
fn keys_of_the_screen() {
    let kernel = busy();
    let mut model = Model::new(&kernel, Duration::from_secs(1));
    model.look(&kernel).unwrap();
    let mut press = |code| model.press(&kernel, KeyEvent::new(code, KeyModifiers::NONE));
    // The report is about the second disk; there is no third.
    press(KeyCode::Down);
    press(KeyCode::Down);
    press(KeyCode::Char('+'));
    assert!(!press(KeyCode::Char('q')));
    let text = screen(&model);
    assert!(text.contains("data: /dev/hcablk0"), "{text}");
    assert!(text.contains("every 2.0 s"), "{text}");
    model.press(
        &kernel,
        KeyEvent::new(KeyCode::Char('m'), KeyModifiers::NONE),
    );
    assert_eq!(kernel.device("data", "timing"), "0");
    assert_eq!(kernel.volume("vol1", "timing"), "0");
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!model.press(&kernel, interrupt));
}

#[test]
fn a_screen_of_nothing() {
    let kernel = Kernel::bare();
    let mut model = Model::new(&kernel, Duration::from_secs(1));
    model.look(&kernel).unwrap();
    assert!(screen(&model).contains("no module is loaded"));
}

#[test]
fn errors_of_a_sample_are_shown() {
    let kernel = busy();
    let mut model = Model::new(&kernel, Duration::from_secs(1));
    model.look(&kernel).unwrap();
    kernel.set_device("data", "timing", "rubbish\n");
    model.look_again(&kernel);
    let text = screen(&model);
    assert!(text.contains("holds") && text.contains("rubbish"), "{text}");
    kernel.set_device("data", "timing", "1\n");
    model.look_again(&kernel);
    assert!(!screen(&model).contains("rubbish"));
}
