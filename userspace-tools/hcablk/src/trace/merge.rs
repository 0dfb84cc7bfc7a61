// SPDX-License-Identifier: GPL-2.0

//! The requests of both sides, by the target's clock.

use std::collections::HashMap;

use serde::Serialize;

use super::chunks::{self, Chunk};
use super::clocks::{Bound, ClockError, Clocks};
use super::parse::{EventKind, Memory, Recording};
use super::sides::{issued, served, Issued, Key, Name, Served};
use crate::error::{Error, Kind, Result};

/// A recording, and how its clock was aligned with the target's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(rename = "TraceMachine")
)]
pub struct Machine {
    /// The file.
    pub file: String,
    /// The machine's name.
    pub host: String,
    /// The number of events in the recording.
    pub events: usize,
    /// Events that were lost.
    pub lost: u64,
    /// The number of the machine's requests that the target's recording has as well.
    pub matched: usize,
    /// How far the machine's clock is ahead of the target's, at the first request in the target's recording; null: this
    /// is the target's recording.
    pub ahead_ns: Option<i64>,
    /// The largest uncertainty of the machine's times, relative to the target's, in these requests.
    pub uncertainty_ns: Option<i64>,
}

/// The times of the events of a request, in nanoseconds since the first event of all recordings, by the target's clock;
/// null: the event was not recorded, or does not happen to such requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(rename = "TraceTimes")
)]
pub struct Times {
    /// The block layer passed the request to the driver.
    pub queued_ns: Option<i64>,
    /// The client posted the request to the HCA.
    pub sent_ns: Option<i64>,
    /// The target received the request.
    pub received_ns: Option<i64>,
    /// The target submitted the request to its drive.
    pub drive_start_ns: Option<i64>,
    /// The drive finished.
    pub drive_end_ns: Option<i64>,
    /// The target posted the response to the HCA.
    pub target_answered_ns: Option<i64>,
    /// The target found the completion of the response's send.
    pub target_completed_ns: Option<i64>,
    /// The client received the response.
    pub answered_ns: Option<i64>,
    /// The client ended the request.
    pub completed_ns: Option<i64>,
}

/// A request as both sides saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schemars",
    derive(schemars::JsonSchema),
    schemars(rename = "TraceRequest")
)]
pub struct MergedRequest {
    /// The number of the request, from 1, in the order of the first events.
    pub number: usize,
    /// The client's name; null: the client's side was not recorded.
    pub client: Option<String>,
    /// The session's id.
    pub session: String,
    /// The queue pair's number within the session.
    pub queue: u16,
    /// The operation, as in traces.
    pub op: String,
    /// The data path, as in traces.
    pub way: String,
    /// First sector of 512 bytes.
    pub sector: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The result at the client: 0, or a negative errno.
    pub status: i32,
    /// Whether the data moved in chunks.
    pub is_chunked: bool,
    /// The times of its events.
    pub times: Times,
    /// The uncertainty of the client's times, relative to the target's.
    pub uncertainty_ns: Option<i64>,
    /// The parts of its data: one if the data was not split, none without data.
    pub chunks: Vec<Chunk>,
    /// The time for which the drive was busy with the request.
    pub drive_ns: i64,
    /// The time for which the wire was busy with the request.
    pub wire_ns: i64,
    /// The time for which drive and wire were busy at once.
    pub both_ns: i64,
}

impl MergedRequest {
    /// Returns the times of its first and last recorded event.
    pub fn span(&self) -> (i64, i64) {
        let times = &self.times;
        let all = [
            times.queued_ns,
            times.sent_ns,
            times.received_ns,
            times.drive_start_ns,
            times.drive_end_ns,
            times.target_answered_ns,
            times.target_completed_ns,
            times.answered_ns,
            times.completed_ns,
        ];
        let begin = all.iter().flatten().min().copied().unwrap_or(0);
        let end = all.iter().flatten().max().copied().unwrap_or(begin);
        (begin, end)
    }
}

/// All recordings, merged.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The recordings: the target's, then the others.
    pub machines: Vec<Machine>,
    /// The requests of all recordings.
    pub requests: Vec<MergedRequest>,
}

impl Merged {
    /// Returns the first of the largest requests.
    pub fn largest(&self) -> Option<&MergedRequest> {
        let with_data = self.requests.iter().filter(|one| !one.chunks.is_empty());
        // `max_by_key` returns the last of equal elements.
        with_data.rev().max_by_key(|request| request.bytes)
    }
}

fn wrong(message: String, advice: &str) -> Error {
    Error::new(Kind::Usage, message).advise(advice)
}

/// Merges recordings; `drift`: see [`super::Show::drift`].
pub(super) fn merge(recordings: &[Recording], drift: u32) -> Result<Merged> {
    let is_of_target = |recording: &&Recording| {
        let mut events = recording.events.iter();
        events.any(|event| event.point == EventKind::TargetReceived)
    };
    let targets: Vec<_> = recordings.iter().filter(is_of_target).collect();
    let target = match targets[..] {
        [target] => target,
        [] => {
            return Err(wrong(
                "none of the recordings has a target's side".to_owned(),
                "Record on the target at the same time, and give that file, too.",
            ))
        }
        [one, other, ..] => {
            return Err(wrong(
                format!("{} and {} both have a target's side", one.file, other.file),
                "Give the file of one target, with those of its clients.",
            ))
        }
    };
    let there = served(&target.events);
    let mut taken = vec![None; there.len()];
    let mut machines = vec![Machine {
        file: target.file.clone(),
        host: target.host.clone(),
        events: target.events.len(),
        lost: target.lost,
        matched: 0,
        ahead_ns: None,
        uncertainty_ns: None,
    }];
    for recording in recordings {
        let here = issued(&recording.events);
        let is_target = std::ptr::eq(recording, target);
        if is_target && here.is_empty() {
            continue;
        }
        let clocks = if is_target {
            Clocks::same()
        } else {
            Clocks::new(bounds(&here, &there), drift)
                .map_err(|apart| not_together(recording, target, apart))?
        };
        let matched = pair(&here, &there, &clocks, &mut taken, &recording.host);
        if is_target {
            machines[0].matched = matched;
            continue;
        }
        let pairs = taken.iter().flatten();
        let of_it = pairs.filter(|pair| pair.host == recording.host);
        machines.push(Machine {
            file: recording.file.clone(),
            host: recording.host.clone(),
            events: recording.events.len(),
            lost: recording.lost,
            matched,
            ahead_ns: there.first().map(|one| clocks.ahead(one.received).0),
            uncertainty_ns: of_it.map(|pair| pair.uncertainty).max(),
        });
    }
    let mut requests: Vec<_> = there
        .iter()
        .zip(taken)
        .map(|(served, pair)| moved(served, pair))
        .collect();
    requests.retain(|request| request.op != "nop");
    let first = requests.iter().map(|request| request.span().0).min();
    for request in &mut requests {
        shift(request, first.unwrap_or(0));
    }
    requests.sort_by_key(|request| request.span().0);
    for (request, number) in requests.iter_mut().zip(1..) {
        request.number = number;
    }
    Ok(Merged { machines, requests })
}

fn not_together(recording: &Recording, target: &Recording, apart: ClockError) -> Error {
    let files = format!("{} and {}", target.file, recording.file);
    match apart {
        ClockError::Unknown => wrong(
            format!("{files} have no request in common that has a response"),
            "Record on both sides at the same time, for some seconds, while there is I/O.",
        ),
        ClockError::Contradiction(by) => wrong(
            format!(
                "the clocks of {files} cannot be aligned: messages contradict each other by {} us",
                by / 1000
            ),
            "One of the clocks was set, or drifts more than is allowed: see --drift.",
        ),
    }
}

/// A request of the initiator that was matched with one of the target, with its times by the target's clock.
#[derive(Clone, Debug)]
struct Pair {
    host: String,
    queued: Option<i64>,
    sent: i64,
    answered: Option<i64>,
    completed: Option<i64>,
    status: i32,
    uncertainty: i64,
}

/// Returns the content of a request without its name: if it differs, the requests are different ones.
fn content(op: &str, sector: u64, bytes: u64) -> (&str, u64, u64) {
    (op, sector, bytes)
}

/// Collects the bounds that messages give for the difference of two clocks, from requests whose name was seen once on
/// each side.
fn bounds(here: &[Issued], there: &[Served]) -> Vec<Bound> {
    fn once<'a, T>(all: &'a [T], key: impl Fn(&'a T) -> Key) -> HashMap<Key, Option<&'a T>> {
        let mut found: HashMap<_, Option<_>> = HashMap::new();
        for one in all {
            found
                .entry(key(one))
                .and_modify(|found| *found = None)
                .or_insert(Some(one));
        }
        found
    }
    let ours = once(here, |one| one.key);
    let theirs = once(there, |one| one.key);
    // Eager writes count only if there are no other requests, since their numbers are reused soon.
    let mut bounds = Vec::new();
    for eager in [false, true] {
        for (key, served) in &theirs {
            let (Some(served), Some(Some(issued))) = (served, ours.get(key)) else {
                continue;
            };
            let same = content(&issued.op, issued.sector, issued.bytes)
                == content(&served.op, served.sector, served.bytes);
            if !same || matches!(key.2, Name::Eager(_)) != eager {
                continue;
            }
            bounds.push(Bound::received(issued.sent, served.received));
            if let (Some(sent), Some(received)) = (served.answered, issued.answered) {
                bounds.push(Bound::sent(sent, received));
            }
        }
        if !bounds.is_empty() {
            break;
        }
    }
    bounds
}

/// Finds the target's request for each of the initiator's, by its name and time; returns the number of matches.
fn pair(
    here: &[Issued],
    there: &[Served],
    clocks: &Clocks,
    taken: &mut [Option<Pair>],
    host: &str,
) -> usize {
    let mut by_key: HashMap<Key, Vec<usize>> = HashMap::new();
    for (index, served) in there.iter().enumerate() {
        by_key.entry(served.key).or_default().push(index);
    }
    let mut matched = 0;
    for issued in here {
        let (sent, uncertainty) = clocks.ours(issued.sent);
        let ours = |at: Option<i64>| at.map(|at| clocks.ours(at).0);
        let answered = ours(issued.answered);
        let slack = uncertainty + 1000;
        let fits = |index: &&usize| {
            let served = &there[**index];
            taken[**index].is_none()
                && content(&issued.op, issued.sector, issued.bytes)
                    == content(&served.op, served.sector, served.bytes)
                && served.received + slack >= sent
                && answered.is_none_or(|answered| served.received <= answered + slack)
        };
        let found = by_key
            .get(&issued.key)
            .and_then(|all| all.iter().find(fits).copied());
        if let Some(index) = found {
            matched += 1;
            let of_answer = issued.answered.map_or(0, |at| clocks.ours(at).1);
            taken[index] = Some(Pair {
                host: host.to_owned(),
                queued: ours(issued.queued),
                sent,
                answered,
                completed: ours(issued.completed),
                status: issued.status,
                uncertainty: uncertainty.max(of_answer),
            });
        }
    }
    matched
}

fn moved(served: &Served, pair: Option<Pair>) -> MergedRequest {
    let chunks = chunks::of_request(served);
    let (drive_ns, wire_ns, both_ns) = chunks::busy(&chunks);
    let mut moved = MergedRequest {
        number: 0,
        client: None,
        session: format!("{:016x}", served.key.0),
        queue: served.key.1,
        op: served.op.clone(),
        way: served.way.clone(),
        sector: served.sector,
        bytes: served.bytes,
        status: 0,
        is_chunked: !served.chunks.is_empty(),
        times: Times {
            received_ns: Some(served.received),
            drive_start_ns: served.drive_start,
            drive_end_ns: served.drive_end,
            target_answered_ns: served.answered,
            target_completed_ns: served.completed,
            ..Times::default()
        },
        uncertainty_ns: None,
        chunks,
        drive_ns,
        wire_ns,
        both_ns,
    };
    if let Some(pair) = pair {
        moved.client = Some(pair.host);
        moved.status = pair.status;
        moved.uncertainty_ns = Some(pair.uncertainty);
        moved.times.queued_ns = pair.queued;
        moved.times.sent_ns = Some(pair.sent);
        moved.times.answered_ns = pair.answered;
        moved.times.completed_ns = pair.completed;
    }
    moved
}

/// Converts times to the time since `first`.
fn shift(request: &mut MergedRequest, first: i64) {
    let times = &mut request.times;
    let of_request = [
        &mut times.queued_ns,
        &mut times.sent_ns,
        &mut times.received_ns,
        &mut times.drive_start_ns,
        &mut times.drive_end_ns,
        &mut times.target_answered_ns,
        &mut times.target_completed_ns,
        &mut times.answered_ns,
        &mut times.completed_ns,
    ];
    let of_chunks = request.chunks.iter_mut().flat_map(Chunk::times_mut);
    for time in of_request.into_iter().chain(of_chunks).flatten() {
        *time -= first;
    }
}

/// Returns the kind of memory that the first chunk of a request was in.
pub(super) fn memory_of(request: &MergedRequest) -> Memory {
    request
        .chunks
        .first()
        .map_or(Memory::None, |chunk| chunk.memory)
}
