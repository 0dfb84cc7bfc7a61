// SPDX-License-Identifier: GPL-2.0

//! What happened between two samples.

use std::collections::BTreeMap;

use serde::Serialize;

use super::sample::Sample;
use crate::times::{Class, StateTimes};

/// How often in a second, rounded to whole numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PerSecond {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes, discards and writes of zeroes.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that ended with an error.
    pub errors: u64,
}

/// How long the requests that were measured were in one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct StateRates {
    /// The state.
    pub state: String,
    /// How many requests were in it.
    pub count: u64,
    /// Nanoseconds, all of them together.
    pub total_ns: u64,
    /// The classes that have any, in ascending order.
    pub classes: Vec<Class>,
}

/// What happened to one disk or volume between two looks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Rates {
    /// Whose it is.
    pub name: String,
    /// The state of a disk; of a volume `enabled` or `disabled`.
    pub state: String,
    /// Requests that the disk has not ended; of a volume nobody counts them.
    pub in_flight: Option<u64>,
    /// How often in a second.
    pub per_second: PerSecond,
    /// Nanoseconds that a request took on the whole, on average; `null` unless times are measured.
    pub mean_ns: Option<u64>,
    /// By state, if times are measured.
    pub states: Vec<StateRates>,
    /// By how much each counter grew.
    pub grown: BTreeMap<String, u64>,
}

impl Rates {
    /// Compares two samples of one disk or volume. What has counted less than before was made anew.
    pub fn between(before: &Sample, after: &Sample, nanoseconds: u64) -> Self {
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
        Self {
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
}

fn per_second(count: u64, nanoseconds: u64) -> u64 {
    let rate = (u128::from(count) * 1_000_000_000 + u128::from(nanoseconds / 2))
        .checked_div(u128::from(nanoseconds));
    rate.map_or(0, |rate| rate.try_into().unwrap_or(u64::MAX))
}

/// Returns what a request took through all states: each goes through the state that most were in.
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

impl From<&StateRates> for StateTimes {
    fn from(rates: &StateRates) -> Self {
        Self {
            state: rates.state.clone(),
            count: rates.count,
            total_ns: rates.total_ns,
            classes: rates.classes.clone(),
        }
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
        let rates = Rates::between(&sample(100, None), &sample(350, None), 2_000_000_000);
        assert_eq!(rates.per_second.reads, 125);
        assert_eq!(rates.per_second.read_bytes, 512_000);
        assert_eq!(rates.per_second.others, 25);
        assert_eq!(rates.per_second.writes, 0);
        assert_eq!((rates.mean_ns, rates.grown["reads"]), (None, 250));
    }

    #[test]
    fn what_was_made_anew_begins_at_nothing() {
        let rates = Rates::between(&sample(1000, None), &sample(10, None), 1_000_000_000);
        assert_eq!(rates.per_second.reads, 10);
    }

    #[test]
    fn no_time_has_no_rates() {
        let rates = Rates::between(&sample(1, None), &sample(2, None), 0);
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
        let rates = Rates::between(&before, &after, 1_000_000_000);
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
