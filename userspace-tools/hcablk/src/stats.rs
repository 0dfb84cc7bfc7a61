// SPDX-License-Identifier: GPL-2.0

//! The counters and measurements of disks and volumes, at one moment and between two.
//!
//! | module | holds |
//! |---|---|
//! | `rates` | the rates between two samples, by arithmetic alone |
//! | `sample` | reading the kernel's values of one moment |

mod rates;
mod sample;

use std::time::Duration;

pub use sample::{disks, in_flight, volumes, Sample, Snapshot};

use crate::error::Result;
use crate::initiator;
use crate::names::VolumeName;
use crate::output::{Outcome, Rates, Report, Say};
use crate::system::System;
use crate::target;

/// The interval and count of rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Every {
    /// The time over which each rate is computed.
    pub interval: Duration,
    /// The number of intervals; `None` for no limit.
    pub count: Option<u32>,
}

/// Runs `hcablk stats`.
pub fn of_disks(
    system: &dyn System,
    only: Option<&str>,
    every: Option<Every>,
    say: &mut Say<'_>,
) -> Result<Outcome> {
    match every {
        Some(every) if initiator::is_loaded(system) || only.is_some() => {
            let look = || disks(system, only);
            watch(system, look, every, |interval_ns, devices, heading| {
                say(&Report::DeviceRates {
                    interval_ns,
                    devices,
                    heading,
                })
            })
        }
        _ => initiator::stats(system, only),
    }
}

/// Runs `hcablk target stats`.
pub fn of_volumes(
    system: &dyn System,
    only: Option<&VolumeName>,
    every: Option<Every>,
    say: &mut Say<'_>,
) -> Result<Outcome> {
    match every {
        Some(every) if target::is_loaded(system) || only.is_some() => {
            let look = || volumes(system, only);
            watch(system, look, every, |interval_ns, volumes, heading| {
                say(&Report::VolumeRates {
                    interval_ns,
                    volumes,
                    heading,
                })
            })
        }
        _ => target::stats(system, only),
    }
}

/// The number of lines after which the heading is repeated.
const PAGE: usize = 20;

/// Prints the rates of each interval.
fn watch(
    system: &dyn System,
    look: impl Fn() -> Result<Snapshot>,
    every: Every,
    mut show: impl FnMut(u64, Vec<Rates>, bool) -> Result<bool>,
) -> Result<Outcome> {
    let mut before = look()?;
    let mut due = before.at;
    let mut lines = 0;
    let mut shown = 0;
    while every.count.is_none_or(|count| shown < count) {
        // Each interval ends relative to the one before, so that the time that samples take does
        // not add up.
        due += every.interval;
        let left = due.saturating_sub(system.now());
        system.pause(left);
        if left.is_zero() {
            due = system.now();
        }
        let after = look()?;
        let rates = after.since(&before);
        let heading = lines == 0;
        lines += rates.len().max(1);
        if lines >= PAGE {
            lines = 0;
        }
        if !show(after.nanoseconds_since(&before), rates, heading)? {
            break;
        }
        before = after;
        shown += 1;
    }
    Ok(Outcome::new(Report::Printed))
}
