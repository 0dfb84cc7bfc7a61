// SPDX-License-Identifier: GPL-2.0

//! Lines of tracefs: `TASK-PID [CPU] FLAGS SECONDS: EVENT: NAME=VALUE…`.

use std::time::Duration;

use nix::errno::Errno;

use super::{is_lost, utc, Event, Source, What};
use crate::system::Clock;

/// Parses a line, if it reports a state; `clock` has the times of both clocks at the reading, and the line has the time
/// of `mono`.
pub fn parse(line: &str, clock: Clock) -> Option<Event> {
    let (before, after) = line.split_once(": hcablk_")?;
    let (name, fields) = after.split_once(": ")?;
    let what = match name {
        "disk" => What::DiskState,
        "lost_writes" => What::LostWrites,
        "path" => What::PathState,
        "session" => What::Session,
        "queue" => What::Queue,
        "target_session" => What::TargetSession,
        "target_queue" => What::TargetQueue,
        _ => return None,
    };
    let value = |name: &str| {
        let mut words = fields.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let at = parse_seconds(before.split_whitespace().next_back()?)?;
    let mut event = Event::new(utc(clock.real_of(at)), what, Source::Tracepoint);
    event.disk = value("disk").map(str::to_owned);
    // -1: the event has no such member.
    event.path = value("path").and_then(|number| number.parse().ok());
    event.queue = value("queue").and_then(|number| number.parse().ok());
    event.session = value("session").map(str::to_owned);
    event.epoch = value("epoch").and_then(|epoch| epoch.parse().ok());
    if what == What::LostWrites {
        event.lost(is_lost(value("lost")?)?);
        return Some(event);
    }
    event.state = Some(value("state")?.to_owned());
    let error: i32 = value("error")?.parse().ok()?;
    event.errno = (error < 0).then(|| format!("{:?}", Errno::from_raw(error.saturating_neg())));
    Some(event)
}

/// Reads `SECONDS.MICROSECONDS`.
fn parse_seconds(text: &str) -> Option<Duration> {
    let (seconds, rest) = text.split_once('.')?;
    let micros: u64 = rest.parse().ok().filter(|_| rest.len() == 6)?;
    Some(Duration::from_secs(seconds.parse().ok()?) + Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: Clock = Clock {
        real: Duration::from_secs(1_000_100),
        mono: Duration::from_secs(100),
    };

    #[test]
    fn a_session_ends() {
        let line = "     kworker/u9:1-88      [001] .....    99.500001: hcablk_session: \
                    session=5d2b000000000001 epoch=3 queue=-1 state=ended error=-104";
        let event = parse(line, CLOCK).unwrap();
        assert_eq!(
            (event.event, event.queue, event.epoch),
            (What::Session, None, Some(3))
        );
        assert_eq!(
            event.to_string(),
            "1970-01-12T13:48:19.500001Z session 5d2b000000000001 epoch 3 ended: ECONNRESET"
        );
    }

    #[test]
    fn a_path_waits() {
        let line = "  a: b-88 [001] ..... 1.000002: hcablk_path: disk=data path=1 state=waiting error=-110";
        let event = parse(line, CLOCK).unwrap();
        assert_eq!(
            (event.path, event.errno.as_deref()),
            (Some(1), Some("ETIMEDOUT"))
        );
    }

    #[test]
    fn other_lines_are_left_out() {
        for line in [
            "",
            "CPU:0 [LOST 12 EVENTS]",
            "x-1 [000] ..... 1.000000: hcablk_sent: session=1 queue=0",
            "x-1 [000] ..... 1.000000: hcablk_session: session=1",
            "x-1 [000] ..... 1: hcablk_session: session=1 epoch=1 queue=-1 state=live error=0",
        ] {
            assert_eq!(parse(line, CLOCK), None, "{line}");
        }
    }
}
