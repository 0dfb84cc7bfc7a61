// SPDX-License-Identifier: GPL-2.0

//! Durations of requests: the `timing` and `times` attributes of devices and volumes.

use std::fmt;

use serde::Serialize;

use crate::configfs::Group;
use crate::error::{Error, Kind, Result};

/// The number of durations in one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Class {
    /// The upper bound of the durations, in nanoseconds; absent for the highest class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below_ns: Option<u64>,
    /// The number of durations.
    pub count: u64,
}

/// The durations of requests in one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct StateTimes {
    /// The state.
    pub state: String,
    /// The number of requests that were in the state.
    pub count: u64,
    /// The sum of the durations, in nanoseconds.
    pub total_ns: u64,
    /// The classes that are not empty, in ascending order.
    pub classes: Vec<Class>,
}

impl StateTimes {
    /// Parses a line of `times`: `STATE COUNT TOTAL_NS [BELOW_NS:COUNT…]`.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            state: words.next()?.to_owned(),
            count: words.next()?.parse().ok()?,
            total_ns: words.next()?.parse().ok()?,
            classes: words
                .map(|word| {
                    let (below, count) = word.split_once(':')?;
                    Some(Class {
                        below_ns: match below {
                            "inf" => None,
                            below => Some(below.parse().ok()?),
                        },
                        count: count.parse().ok()?,
                    })
                })
                .collect::<Option<_>>()?,
        })
    }

    /// Returns the mean in nanoseconds.
    pub fn mean_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.count)
    }

    /// Returns the class of a percentile: at least `percent` of the requests are in this class or a
    /// faster one.
    pub fn percentile(&self, percent: u64) -> Option<&Class> {
        let rank = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        self.classes.iter().find(|class| {
            seen += class.count;
            seen >= rank
        })
    }
}

/// The durations of one device's or volume's requests, by state.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Times {
    /// The name of the device or volume.
    pub name: String,
    /// Whether requests are measured now.
    pub measuring: bool,
    /// The states, in the order in which requests pass through them.
    pub states: Vec<StateTimes>,
}

impl Times {
    /// Reads the times of a group. If `measure` is set, first switches measuring on or off.
    pub fn read(group: &Group<'_>, measure: Option<bool>) -> Result<Self> {
        if let Some(on) = measure {
            let path = group.path().join("timing");
            group
                .system()
                .write(&path, if on { "1\n" } else { "0\n" })?;
        }
        let text = group.get("times")?;
        let states: Option<Vec<_>> = text.lines().map(StateTimes::parse).collect();
        Ok(Self {
            name: group.name(),
            measuring: group.flag("timing")?,
            states: states.ok_or_else(|| {
                Error::new(
                    Kind::Failed,
                    format!("the times of {} cannot be understood", group.name()),
                )
                .advise("The command and the kernel modules may be of different versions.")
            })?,
        })
    }

    /// Returns whether nothing was ever measured, nor is being measured.
    pub fn is_idle(&self) -> bool {
        !self.measuring && self.states.iter().all(|state| state.count == 0)
    }
}

/// A duration in nanoseconds, for people, in the largest unit that it fills.
pub struct Duration(pub u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            ns if ns < 1_000_000 => (1_000, "us"),
            ns if ns < 1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        write!(f, "{}.{} {name}", self.0 / unit, self.0 % unit * 10 / unit)
    }
}

/// Makes the rows of a table for people. A percentile is shown as the upper bound of its class.
pub fn rows(all: &[Times]) -> Vec<Vec<String>> {
    let heading = ["NAME", "STATE", "REQUESTS", "MEAN", "HALF", "99 %", "ALL"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for one in all {
        for state in &one.states {
            let below = |class: Option<&Class>| match class {
                None => "-".to_owned(),
                Some(Class { below_ns: None, .. }) => "more".to_owned(),
                Some(Class {
                    below_ns: Some(ns), ..
                }) => format!("< {}", Duration(*ns)),
            };
            rows.push(vec![
                one.name.clone(),
                state.state.clone(),
                state.count.to_string(),
                state
                    .mean_ns()
                    .map_or_else(|| "-".to_owned(), |ns| Duration(ns).to_string()),
                below(state.percentile(50)),
                below(state.percentile(99)),
                below(state.classes.last()),
            ]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let state = StateTimes::parse("sent 100 4000000 1024:40 2048:59 inf:1").unwrap();
        assert_eq!((state.count, state.mean_ns()), (100, Some(40_000)));
        let below = |percent| state.percentile(percent).unwrap().below_ns;
        assert_eq!(
            [below(0), below(40), below(41), below(99), below(100)],
            [Some(1024), Some(1024), Some(2048), Some(2048), None]
        );
        let none = StateTimes::parse("sent 0 0").unwrap();
        assert_eq!((none.mean_ns(), none.percentile(50)), (None, None));
        for bad in [
            "",
            "sent",
            "sent 1",
            "sent x 1",
            "sent 1 1 2",
            "sent 1 1 x:1",
            "sent 1 1 1:x",
        ] {
            assert_eq!(StateTimes::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn durations() {
        for (ns, text) in [
            (0, "0.0 us"),
            (1024, "1.0 us"),
            (999_999, "999.9 us"),
            (4_250_000, "4.2 ms"),
            (4_294_967_296, "4.2 s"),
        ] {
            assert_eq!(Duration(ns).to_string(), text);
        }
    }
}
