// SPDX-License-Identifier: GPL-2.0

//! The command: the initial states, then the events.

use super::{parse_trace, parse_uevent, utc, Event, Source, What};
use crate::error::Result;
use crate::initiator;
use crate::output::{Outcome, Report, Say};
use crate::system::{KernelEvent, Listen, System, Tracepoint};

/// The events to report.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Uevents.
    pub uevents: bool,
    /// Tracepoints.
    pub tracepoints: bool,
    /// Also queue pairs and brief states.
    pub all: bool,
    /// End after this many events.
    pub count: Option<u32>,
}

const SESSIONS: [Tracepoint; 2] = [
    ("hcablk", "hcablk_session"),
    ("hcablk_target", "hcablk_target_session"),
];
const QUEUES: [Tracepoint; 2] = [
    ("hcablk", "hcablk_queue"),
    ("hcablk_target", "hcablk_target_queue"),
];
const STATES: [Tracepoint; 2] = [("hcablk", "hcablk_disk"), ("hcablk", "hcablk_path")];
/// Older modules do not have these.
const OPTIONAL: [Tracepoint; 1] = [("hcablk", "hcablk_lost_writes")];

impl Wanted {
    fn listen(self) -> Listen {
        let mut tracepoints = Vec::new();
        let mut optional = Vec::new();
        if self.tracepoints {
            tracepoints.extend(SESSIONS);
            if self.all {
                tracepoints.extend(QUEUES);
            }
            if self.all || !self.uevents {
                tracepoints.extend(STATES);
                optional.extend(OPTIONAL);
            }
        }
        Listen {
            uevents: self.uevents,
            tracepoints,
            optional,
            ..Listen::default()
        }
    }

    /// Returns whether to report an event: a state that a uevent reports, too, is left out, and
    /// brief states are reported only on request.
    fn takes(self, event: &Event) -> bool {
        if event.source != Source::Tracepoint {
            return true;
        }
        let state = event.state.as_deref().unwrap_or_default();
        let passes = match event.event {
            What::PathState => matches!(state, "connecting" | "waiting"),
            What::DiskState => matches!(state, "connecting" | "disconnecting" | "new"),
            What::LostWrites => false,
            _ => return true,
        };
        if passes {
            self.all
        } else {
            // The uevent reports the same, with the reason in words.
            !self.uevents
        }
    }
}

/// Runs `hcablk events`, until it is interrupted or has reported `wanted.count` events.
pub fn follow(system: &dyn System, wanted: Wanted, say: &mut Say<'_>) -> Result<Outcome> {
    // Starts to listen first, so that no event is missed in between.
    let (mut listener, notes) = system.listen(&wanted.listen())?;
    for note in notes {
        system.remark(&note);
    }
    let now = || utc(system.clock().real);
    let mut go_on = true;
    for event in beginning(system, &now())? {
        go_on = go_on && say(&Report::Event(Box::new(event)))?;
    }
    let listening = Event::new(now(), What::Listening, Source::Now);
    go_on = go_on && say(&Report::Event(Box::new(listening)))?;
    let mut printed = 0;
    while go_on && wanted.count.is_none_or(|count| printed < count) {
        let event = match listener.next()? {
            KernelEvent::Uevent(message) => parse_uevent(&message, now()),
            KernelEvent::Trace(line) => parse_trace(&line, system.clock()),
            KernelEvent::LostUevents => Some(Event::new(now(), What::Lost, Source::Uevent)),
            KernelEvent::LostTraces(_) => Some(Event::new(now(), What::Lost, Source::Tracepoint)),
            KernelEvent::End => break,
        };
        if let Some(event) = event.filter(|event| wanted.takes(event)) {
            go_on = say(&Report::Event(Box::new(event)))?;
            printed += 1;
        }
    }
    Ok(Outcome::new(Report::Printed))
}

/// Returns the states of all disks and paths.
fn beginning(system: &dyn System, now: &str) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for device in initiator::devices(system)?.unwrap_or_default() {
        let event_of = |what| {
            let mut event = Event::new(now.to_owned(), what, Source::Now);
            event.disk = Some(device.name.clone());
            event.device.clone_from(&device.device);
            event
        };
        let mut disk = event_of(What::DiskState);
        disk.at(&device.address, device.port);
        disk.state = Some(device.state.clone());
        disk.error.clone_from(&device.error);
        events.push(disk);
        if device.has_lost_writes() {
            let mut event = event_of(What::LostWrites);
            event.lost(true);
            events.push(event);
        }
        for path in &device.paths {
            let mut event = event_of(What::PathState);
            event.path = Some(path.number);
            event.at(&path.address, path.port);
            event.state.clone_from(&path.state);
            event.error.clone_from(&path.error);
            events.push(event);
        }
    }
    Ok(events)
}
