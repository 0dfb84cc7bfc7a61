// SPDX-License-Identifier: GPL-2.0

//! The rates between two samples.

use std::collections::BTreeMap;

use super::sample::{Sample, Snapshot};
use crate::output::{PerSecond, Rates, StateRates};
use crate::times::{Class, StateTimes};

impl Snapshot {
    /// Returns the rates since `before` of the objects that both samples have.
    pub fn since(&self, before: &Self) -> Vec<Rates> {
        let passed = self.nanoseconds_since(before);
        let former = |name: &str| before.samples.iter().find(|sample| sample.name == name);
        self.samples
            .iter()
            .filter_map(|sample| former(&sample.name).map(|former| between(former, sample, passed)))
            .collect()
    }
}

/// Compares two samples of one disk or volume. If a counter is smaller than before, its object was
/// removed and made again, and the counter began at 0.
fn between(before: &Sample, after: &Sample, nanoseconds: u64) -> Rates {
    let grown: BTreeMap<_, _> = after
        .counters
        .iter()
        .map(|(name, value)| {
            let former = before.counter(name).filter(|former| former <= value);
            (name.clone(), value - former.unwrap_or(0))
        })
        .collect();
    let rate = |names: &[&str]| {
        let sum: u64 = names.iter().filter_map(|name| grown.get(*name)).sum();
        per_second(sum, nanoseconds)
    };
    let states: Vec<_> = after
        .times
        .iter()
        .flatten()
        .map(|state| difference(before.state_times(&state.state), state))
        .collect();
    Rates {
        name: after.name.clone(),
        state: after.state.clone(),
        in_flight: after.in_flight,
        per_second: PerSecond {
            reads: rate(&["reads"]),
            writes: rate(&["writes"]),
            others: rate(&["flushes", "discards", "zeroes"]),
            read_bytes: rate(&["read_bytes"]),
            written_bytes: rate(&["written_bytes"]),
            errors: rate(&["errors"]),
        },
        mean_ns: mean(&states),
        states,
        grown,
    }
}

fn per_second(count: u64, nanoseconds: u64) -> u64 {
    let rate = (u128::from(count) * 1_000_000_000 + u128::from(nanoseconds / 2))
        .checked_div(u128::from(nanoseconds));
    rate.map_or(0, |rate| rate.try_into().unwrap_or(u64::MAX))
}

/// Returns the mean duration of a request through all states: the state with the most requests
/// counts each request once.
fn mean(states: &[StateRates]) -> Option<u64> {
    let requests = states.iter().map(|state| state.count).max()?;
    let total: u64 = states.iter().map(|state| state.total_ns).sum();
    total.checked_div(requests)
}

fn difference(before: Option<&StateTimes>, after: &StateTimes) -> StateRates {
    let before = before.filter(|before| before.count <= after.count);
    let former = |below| {
        let classes = before.map(|state| state.classes.as_slice());
        let found = classes.unwrap_or_default().iter();
        let mut found = found.filter(|class| class.below_ns == below);
        found.next().map_or(0, |class| class.count)
    };
    StateRates {
        state: after.state.clone(),
        count: after.count - before.map_or(0, |before| before.count),
        total_ns: after
            .total_ns
            .saturating_sub(before.map_or(0, |before| before.total_ns)),
        classes: after
            .classes
            .iter()
            .map(|class| Class {
                below_ns: class.below_ns,
                count: class.count.saturating_sub(former(class.below_ns)),
            })
            .filter(|class| class.count > 0)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(reads: u64, times: Option<&str>) -> Sample {
        Sample {
            name: "data".to_owned(),
            state: "live".to_owned(),
            in_flight: Some(3),
            counters: vec![
                ("reads".to_owned(), reads),
                ("read_bytes".to_owned(), reads * 4096),
                ("flushes".to_owned(), reads / 10),
                ("zeroes".to_owned(), reads / 10),
            ],
            times: times.map(|lines| lines.lines().filter_map(StateTimes::parse).collect()),
        }
    }

    #[test]
    fn rates_are_by_the_second() {
        let rates = between(&sample(100, None), &sample(350, None), 2_000_000_000);
        assert_eq!(rates.per_second.reads, 125);
        assert_eq!(rates.per_second.read_bytes, 512_000);
        assert_eq!(rates.per_second.others, 25);
        assert_eq!(rates.per_second.writes, 0);
        assert_eq!((rates.mean_ns, rates.grown["reads"]), (None, 250));
    }

    #[test]
    fn counters_of_a_recreated_object_begin_at_0() {
        let rates = between(&sample(1000, None), &sample(10, None), 1_000_000_000);
        assert_eq!(rates.per_second.reads, 10);
    }

    #[test]
    fn no_time_has_no_rates() {
        let rates = between(&sample(1, None), &sample(2, None), 0);
        assert_eq!(rates.per_second, PerSecond::default());
    }

    #[test]
    fn rates_of_long_intervals_do_not_overflow() {
        assert_eq!(per_second(u64::MAX, 1), u64::MAX);
        assert_eq!(per_second(u64::MAX, 1_000_000_000), u64::MAX);
    }

    #[test]
    fn times_are_those_of_the_interval() {
        let before = sample(
            1,
            Some("queued 10 1000 1024:10\nsent 10 9000 1024:9 2048:1"),
        );
        let after = sample(
            2,
            Some("queued 14 1400 1024:14\nsent 14 17600 1024:9 2048:1 4096:4"),
        );
        let rates = between(&before, &after, 1_000_000_000);
        assert_eq!(rates.mean_ns, Some((400 + 8600) / 4));
        assert_eq!(rates.states[1].count, 4);
        assert_eq!(
            rates.states[1].classes,
            [Class {
                below_ns: Some(4096),
                count: 4
            }]
        );
    }
}
