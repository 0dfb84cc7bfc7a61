// SPDX-License-Identifier: GPL-2.0

//! The `OpenMetrics` text format: families of samples, each with a type, a unit and a help text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::times::StateTimes;

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// A number that goes up and down.
    Gauge,
    /// A number that only grows.
    Counter,
    /// The number of values up to each bound.
    Histogram,
}

/// The labels of a sample.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// The labels and the counters of one object.
pub(super) type Counted<'a> = (Vec<(&'a str, &'a str)>, &'a [(String, u64)]);

/// The bounds of the classes of times, as powers of two: from 2^10 ns to 2^32 ns.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=32;

/// The text of the metrics, to which families are added.
pub(super) struct Exposition {
    text: String,
    name: String,
}

impl Exposition {
    pub(super) fn new() -> Self {
        Self {
            text: String::new(),
            name: String::new(),
        }
    }

    /// Begins a family. The name of a counter is without `_total`; a name that ends with a unit has that unit.
    pub(super) fn family(&mut self, name: &str, kind: Type, help: &str) {
        let kind_name = match kind {
            Type::Gauge => "gauge",
            Type::Counter => "counter",
            Type::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# TYPE {name} {kind_name}");
        for unit in ["bytes", "seconds"] {
            if name.ends_with(&format!("_{unit}")) {
                let _ = writeln!(self.text, "# UNIT {name} {unit}");
            }
        }
        let _ = writeln!(self.text, "# HELP {name} {}", escaped(help));
        name.clone_into(&mut self.name);
        if kind == Type::Counter {
            self.name.push_str("_total");
        }
    }

    /// Adds a sample to the family that was begun last.
    pub(super) fn sample(&mut self, labels: &Labels<'_>, value: impl std::fmt::Display) {
        let name = self.name.clone();
        self.line(&name, labels, value);
    }

    fn line(&mut self, name: &str, labels: &Labels<'_>, value: impl std::fmt::Display) {
        self.text.push_str(name);
        for (number, (label, text)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{label}=\"{}\"", escaped(text));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// Adds a gauge for each possible state: 1 for the current one, 0 for all others.
    pub(super) fn states(&mut self, labels: &Labels<'_>, all: &[&str], now: &str) {
        let other = (!all.contains(&now)).then_some(now);
        for state in all.iter().copied().chain(other) {
            let mut labels = labels.to_vec();
            labels.push(("state", state));
            self.sample(&labels, u64::from(state == now));
        }
    }

    /// Adds a histogram of times in seconds.
    pub(super) fn times(&mut self, labels: &Labels<'_>, times: &StateTimes) {
        let name = self.name.clone();
        let bucket = format!("{name}_bucket");
        let mut count = 0;
        for power in BOUNDS {
            let bound = 1_u64 << power;
            let class = times.classes.iter().find(|one| one.below_ns == Some(bound));
            count += class.map_or(0, |class| class.count);
            let mut labels = labels.to_vec();
            let le = seconds(bound);
            labels.push(("le", &le));
            self.line(&bucket, &labels, count);
        }
        let mut last = labels.to_vec();
        last.push(("le", "+Inf"));
        self.line(&bucket, &last, times.count);
        self.line(&format!("{name}_count"), labels, times.count);
        self.line(&format!("{name}_sum"), labels, seconds(times.total_ns));
    }

    /// Adds a family for each counter: `items` are the labels and the counters of each object.
    pub(super) fn counters(
        &mut self,
        prefix: &str,
        items: &[Counted<'_>],
        help: impl Fn(&str) -> String,
    ) {
        let mut names = BTreeMap::new();
        for (labels, counters) in items {
            for (name, value) in *counters {
                names
                    .entry(name.as_str())
                    .or_insert_with(Vec::new)
                    .push((labels, *value));
            }
        }
        for (name, samples) in names {
            self.family(&format!("{prefix}_{name}"), Type::Counter, &help(name));
            for (labels, value) in samples {
                self.sample(labels, value);
            }
        }
    }

    /// Returns the whole text.
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

/// Formats nanoseconds as seconds, exactly.
fn seconds(nanoseconds: u64) -> String {
    let (whole, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    let text = format!("{whole}.{rest:09}");
    let text = text.trim_end_matches('0');
    if text.ends_with('.') {
        format!("{text}0")
    } else {
        text.to_owned()
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (nanoseconds, text) in [
            (0, "0.0"),
            (1, "0.000000001"),
            (1024, "0.000001024"),
            (4_294_967_296, "4.294967296"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(seconds(nanoseconds), text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        let mut all = Exposition::new();
        all.family("a_bytes", Type::Gauge, "What it \"is\".");
        all.sample(&[("x", "a\"b\\c\nd"), ("y", "")], 1);
        assert_eq!(
            all.finish(),
            "# TYPE a_bytes gauge\n# UNIT a_bytes bytes\n# HELP a_bytes What it \\\"is\\\".\n\
             a_bytes{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 1\n# EOF\n"
        );
    }

    #[test]
    fn buckets_are_sums() {
        let times = StateTimes::parse("sent 7 9000 1024:2 4096:4 inf:1").unwrap();
        let mut all = Exposition::new();
        all.family("t_seconds", Type::Histogram, "T.");
        all.times(&[("state", "sent")], &times);
        let text = all.finish();
        let value = |le: &str| {
            let start = format!("t_seconds_bucket{{state=\"sent\",le=\"{le}\"}} ");
            text.lines()
                .find_map(|line| line.strip_prefix(&start))
                .map(str::to_owned)
        };
        assert_eq!(value("0.000001024").as_deref(), Some("2"));
        assert_eq!(value("0.000002048").as_deref(), Some("2"));
        assert_eq!(value("0.000004096").as_deref(), Some("6"));
        assert_eq!(value("4.294967296").as_deref(), Some("6"));
        assert_eq!(value("+Inf").as_deref(), Some("7"));
        assert!(text.contains("t_seconds_sum{state=\"sent\"} 0.000009\n"));
    }

    #[test]
    fn an_unknown_state_is_exported() {
        let mut all = Exposition::new();
        all.family("s", Type::Gauge, "S.");
        all.states(&[], &["live"], "odd");
        assert!(all
            .finish()
            .contains("s{state=\"live\"} 0\ns{state=\"odd\"} 1\n"));
    }
}
