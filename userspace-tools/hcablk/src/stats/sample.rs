// SPDX-License-Identifier: GPL-2.0

//! Reading the kernel's values of disks and volumes at one moment.

use std::path::Path;
use std::time::Duration;

use crate::configfs::{parse_counters, unless_gone, Group};
use crate::error::Result;
use crate::initiator;
use crate::names::VolumeName;
use crate::system::System;
use crate::target;
use crate::times::{StateTimes, Times};

/// The values of a disk or volume at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The name of the disk or volume.
    pub name: String,
    /// The state of a disk; of a volume `enabled` or `disabled`.
    pub state: String,
    /// The disk's requests in flight.
    pub in_flight: Option<u64>,
    /// The counters, in the driver's order.
    pub counters: Vec<(String, u64)>,
    /// The durations of requests, if they are being measured.
    pub times: Option<Vec<StateTimes>>,
}

impl Sample {
    /// Returns the value of a counter.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let mut all = self.counters.iter();
        all.find(|(counter, _)| counter == name)
            .map(|(_, value)| *value)
    }

    /// Returns the durations of requests in a state.
    pub(super) fn state_times(&self, state: &str) -> Option<&StateTimes> {
        let mut all = self.times.iter().flatten();
        all.find(|times| times.state == state)
    }

    fn read(group: &Group<'_>, state: String, in_flight: Option<u64>) -> Result<Self> {
        let measuring = group.flag("timing")?;
        let times = measuring.then(|| Times::read(group, None)).transpose()?;
        Ok(Self {
            name: group.name(),
            state,
            in_flight,
            counters: parse_counters(&group.get("stats")?),
            times: times.map(|times| times.states),
        })
    }
}

/// The values of all disks or volumes at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The time of the sample, by the machine's clock.
    pub at: Duration,
    /// Each disk or volume.
    pub samples: Vec<Sample>,
}

impl Snapshot {
    /// Returns the time that has passed since `before`.
    pub fn nanoseconds_since(&self, before: &Self) -> u64 {
        let passed = self.at.saturating_sub(before.at);
        passed.as_nanos().try_into().unwrap_or(u64::MAX)
    }
}

/// Samples the disk `only`, or all disks; none if the module is not loaded.
pub fn disks(system: &dyn System, only: Option<&str>) -> Result<Snapshot> {
    let mut samples = Vec::new();
    for group in initiator::selected(system, only, "counters")?
        .into_iter()
        .flatten()
    {
        let read = || {
            let in_flight = in_flight(system, &group.get("device")?);
            Sample::read(&group, group.get("state")?, in_flight)
        };
        samples.extend(unless_gone(&group, read())?);
    }
    Ok(Snapshot {
        at: system.now(),
        samples,
    })
}

/// Samples the volume `only`, or all volumes; none if the module is not loaded.
pub fn volumes(system: &dyn System, only: Option<&VolumeName>) -> Result<Snapshot> {
    let mut samples = Vec::new();
    for group in target::selected(system, only)?.into_iter().flatten() {
        let read = || {
            let enabled = group.flag("enable")?;
            let state = if enabled { "enabled" } else { "disabled" };
            Sample::read(&group, state.to_owned(), None)
        };
        samples.extend(unless_gone(&group, read())?);
    }
    Ok(Snapshot {
        at: system.now(),
        samples,
    })
}

/// Returns the number of a disk's requests in flight, reads and writes together.
pub fn in_flight(system: &dyn System, device: &str) -> Option<u64> {
    if device.is_empty() {
        return None;
    }
    let file = Path::new("/sys/block").join(device).join("inflight");
    let text = system.read(&file).ok()?;
    text.split_whitespace()
        .map(|word| word.parse::<u64>().ok())
        .sum()
}
