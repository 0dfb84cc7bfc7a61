// SPDX-License-Identifier: GPL-2.0

//! `hcablk events`: reports the events of disks, paths and sessions as they happen.
//!
//! | module | holds |
//! |---|---|
//! | `follow` | the command: the initial states, then the events |
//! | `trace` | lines of tracefs |
//! | `uevent` | messages of the kernel's uevent socket |

mod follow;
mod trace;
mod uevent;

use std::fmt;

use serde::Serialize;

use crate::endpoint::Endpoint;
use crate::initiator::LOST;

pub use follow::{follow, Wanted};
pub use trace::parse as parse_trace;
pub use uevent::parse as parse_uevent;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum What {
    /// A disk has appeared.
    DiskAdded,
    /// A disk was removed.
    DiskRemoved,
    /// The size of a disk has changed.
    DiskResized,
    /// The state of a disk has changed.
    DiskState,
    /// The target lost acknowledged writes of a disk, and every flush of the disk fails from now on; or this state has
    /// ended.
    LostWrites,
    /// The state of a path has changed.
    PathState,
    /// The target of a disk has started or stopped listening at an address: see `hcablk path sync`.
    PortalsChanged,
    /// The state of a session of a disk of this machine has changed.
    Session,
    /// The state of a queue pair of such a session has changed.
    Queue,
    /// The state of a session of a client of this machine's target has changed.
    TargetSession,
    /// The state of a queue pair of such a session has changed.
    TargetQueue,
    /// From here on every event is reported; the earlier ones are the initial states.
    Listening,
    /// Events were lost, since they arrived faster than they were read: look at `hcablk list`.
    Lost,
}

impl What {
    /// Returns the kind's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::DiskAdded => "disk-added",
            Self::DiskRemoved => "disk-removed",
            Self::DiskResized => "disk-resized",
            Self::DiskState => "disk-state",
            Self::LostWrites => "lost-writes",
            Self::PathState => "path-state",
            Self::PortalsChanged => "portals-changed",
            Self::Session => "session",
            Self::Queue => "queue",
            Self::TargetSession => "target-session",
            Self::TargetQueue => "target-queue",
            Self::Listening => "listening",
            Self::Lost => "lost",
        }
    }
}

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(rename = "EventSource")
)]
pub enum Source {
    /// The state at the start of the command.
    Now,
    /// A uevent.
    Uevent,
    /// A tracepoint.
    Tracepoint,
}

/// An event. Members that do not apply are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Event {
    /// The time in UTC, to the microsecond: `2026-11-25T10:00:00.000001Z`.
    pub time: String,
    /// The kind of the event.
    pub event: What,
    /// The source of the report.
    pub source: Source,
    /// The disk's name in configfs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// `/dev/hcablkN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The number of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<u8>,
    /// The address and port of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The session's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The session's epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The number of the queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
    /// The new state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The reason, if something is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The name of the kernel's error code, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<String>,
}

impl Event {
    /// Makes an event without further members.
    pub fn new(time: String, event: What, source: Source) -> Self {
        Self {
            time,
            event,
            source,
            disk: None,
            device: None,
            path: None,
            address: None,
            session: None,
            epoch: None,
            queue: None,
            state: None,
            error: None,
            errno: None,
        }
    }

    /// Sets the state and the error of an event on lost writes.
    fn lost(&mut self, is_lost: bool) {
        let state = if is_lost { "begun" } else { "ended" };
        self.state = Some(state.to_owned());
        self.error = is_lost.then(|| LOST.to_owned());
    }

    /// Adds the address and port of the path.
    fn at(&mut self, address: &str, port: u16) {
        let address = address.to_owned();
        self.address = Some(Endpoint { address, port }.to_string());
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.time, self.event.name())?;
        for word in [&self.disk, &self.device].into_iter().flatten() {
            write!(f, " {word}")?;
        }
        if let Some(path) = self.path {
            write!(f, " path {path}")?;
        }
        if let Some(address) = &self.address {
            write!(f, " {address}")?;
        }
        if let Some(session) = &self.session {
            write!(f, " {session}")?;
        }
        if let Some(epoch) = self.epoch {
            write!(f, " epoch {epoch}")?;
        }
        if let Some(queue) = self.queue {
            write!(f, " queue {queue}")?;
        }
        if let Some(state) = &self.state {
            write!(f, " {state}")?;
        }
        match (&self.error, &self.errno) {
            (Some(error), _) => write!(f, ": {error}"),
            (None, Some(errno)) => write!(f, ": {errno}"),
            (None, None) => Ok(()),
        }
    }
}

/// Parses the kernel's number for whether writes are lost.
fn is_lost(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Formats a time since 1970 as UTC.
pub fn utc(time: std::time::Duration) -> String {
    let seconds = time.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        time.subsec_micros()
    )
}

/// Returns year, month and day of the date `days` after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have their leap day at the end: 146097 days are 400 of them.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), text);
        }
        assert_eq!(
            utc(Duration::from_micros(1_000_001)),
            "1970-01-01T00:00:01.000001Z"
        );
    }

    #[test]
    fn text() {
        let mut event = Event::new("T".to_owned(), What::PathState, Source::Uevent);
        event.disk = Some("data".to_owned());
        event.path = Some(1);
        event.state = Some("lost".to_owned());
        event.error = Some("no answer".to_owned());
        assert_eq!(
            event.to_string(),
            "T path-state data path 1 lost: no answer"
        );
    }
}
