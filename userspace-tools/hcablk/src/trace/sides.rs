// SPDX-License-Identifier: GPL-2.0

//! The events of one side as requests.

use std::collections::{BTreeMap, HashMap};

use super::parse::{Event, EventKind, Memory};

/// The name of a request on both sides, until it is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Name {
    /// Its tag, and how often that was used.
    Tag(u16, u16),
    /// An eager write's number.
    Eager(u16),
}

/// Session, queue and name.
pub(super) type Key = (u64, u16, Name);

/// A request as the initiator saw it, with times by the initiator's clock.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    pub(super) key: Key,
    pub(super) op: String,
    pub(super) sector: u64,
    pub(super) bytes: u64,
    pub(super) status: i32,
    pub(super) queued: Option<i64>,
    pub(super) sent: i64,
    pub(super) answered: Option<i64>,
    pub(super) completed: Option<i64>,
}

/// A part of a request's data at the target.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    pub(super) bytes: u64,
    pub(super) memory: Memory,
    pub(super) status: i32,
    pub(super) drive_start: Option<i64>,
    pub(super) drive_end: Option<i64>,
    pub(super) posted: Option<i64>,
    pub(super) completed: Option<i64>,
}

/// A request as the target saw it, with times by the target's clock.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) key: Key,
    pub(super) op: String,
    pub(super) way: String,
    pub(super) sector: u64,
    pub(super) bytes: u64,
    pub(super) memory: Memory,
    pub(super) received: i64,
    pub(super) drive_start: Option<i64>,
    pub(super) drive_end: Option<i64>,
    pub(super) answered: Option<i64>,
    pub(super) completed: Option<i64>,
    /// The chunks, by their offsets.
    pub(super) chunks: BTreeMap<u64, Part>,
}

/// Assembles the initiator's requests from its events, in the order in which they were sent. Omits requests whose
/// sending was not recorded, and nops.
pub(super) fn issued(events: &[Event]) -> Vec<Issued> {
    let mut queued = HashMap::new();
    let mut open: HashMap<_, usize> = HashMap::new();
    let mut all: Vec<Issued> = Vec::new();
    for event in events {
        let place = (event.session, event.queue, event.tag, event.generation);
        match event.point {
            EventKind::Queued => {
                // A request that had to wait is queued more than once; the first time counts.
                open.remove(&place);
                queued.entry(place).or_insert(event.at);
            }
            EventKind::Sent => {
                let name = if event.way == "eager" {
                    Name::Eager(event.number)
                } else {
                    Name::Tag(event.tag, event.generation)
                };
                open.insert(place, all.len());
                all.push(Issued {
                    key: (event.session, event.queue, name),
                    op: event.op.clone(),
                    sector: event.sector,
                    bytes: event.bytes,
                    status: 0,
                    queued: queued.remove(&place),
                    sent: event.at,
                    answered: None,
                    completed: None,
                });
            }
            EventKind::Answered => {
                if let Some(request) = open.get(&place).and_then(|index| all.get_mut(*index)) {
                    request.answered.get_or_insert(event.at);
                }
            }
            EventKind::Completed => {
                queued.remove(&place);
                if let Some(index) = open.remove(&place) {
                    all[index].completed = Some(event.at);
                    all[index].status = event.status;
                }
            }
            _ => (),
        }
    }
    all
}

/// Assembles the target's requests from its events, in the order in which they were received.
pub(super) fn served(events: &[Event]) -> Vec<Served> {
    let mut open: HashMap<Key, usize> = HashMap::new();
    let mut all: Vec<Served> = Vec::new();
    for event in events {
        let name = if event.way == "eager" {
            Name::Eager(event.number)
        } else {
            Name::Tag(event.tag, event.generation)
        };
        let key = (event.session, event.queue, name);
        if event.point == EventKind::TargetReceived {
            open.insert(key, all.len());
            all.push(Served {
                key,
                op: event.op.clone(),
                way: event.way.clone(),
                sector: event.sector,
                bytes: event.bytes,
                memory: Memory::None,
                received: event.at,
                drive_start: None,
                drive_end: None,
                answered: None,
                completed: None,
                chunks: BTreeMap::new(),
            });
            continue;
        }
        let request = open.get(&key).and_then(|index| all.get_mut(*index));
        let Some(request) = request else { continue };
        match event.point {
            EventKind::ChunkDriveStart => part(request, event).drive_start = Some(event.at),
            EventKind::ChunkDriveEnd => {
                let part = part(request, event);
                part.drive_end = Some(event.at);
                part.status = event.status;
            }
            EventKind::ChunkPosted => part(request, event).posted = Some(event.at),
            EventKind::ChunkCompleted => part(request, event).completed = Some(event.at),
            EventKind::TargetDriveStart => {
                request.drive_start = Some(event.at);
                request.memory = event.memory;
            }
            EventKind::TargetDriveEnd => request.drive_end = Some(event.at),
            EventKind::TargetAnswered => request.answered = Some(event.at),
            EventKind::TargetCompleted => {
                request.completed = Some(event.at);
                open.remove(&key);
            }
            _ => (),
        }
    }
    all
}

/// Returns the chunk of an event.
fn part<'a>(request: &'a mut Served, event: &Event) -> &'a mut Part {
    let part = request.chunks.entry(event.offset).or_default();
    part.bytes = event.bytes;
    part.memory = event.memory;
    part
}
