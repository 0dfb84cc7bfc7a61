// SPDX-License-Identifier: GPL-2.0

//! All requests in the trace event format, which <https://ui.perfetto.dev> and `chrome://tracing` open.
//!
//! Each machine is a process. Its tracks are threads: slices of a track must not overlap, so overlapping slices are put
//! on several tracks. Arrows lead from the sending of a message to its receipt.

use serde_json::{json, Value};

use super::chunks::Span;
use super::list::size;
use super::merge::{Merged, MergedRequest};

/// The number of thread ids for the tracks of one kind in a process.
const TRACKS_MAX: usize = 1000;

/// The tracks of one kind of slices, of one process.
struct Tracks {
    pid: usize,
    base: usize,
    name: &'static str,
    /// The time until which each track is taken.
    taken: Vec<i64>,
}

impl Tracks {
    fn new(pid: usize, kind: usize, name: &'static str) -> Self {
        Self {
            pid,
            base: kind * TRACKS_MAX,
            name,
            taken: Vec::new(),
        }
    }

    /// Returns a track that is free for `span`; spans arrive in the order of their beginnings.
    fn take(&mut self, span: Span) -> usize {
        let free = self.taken.iter().position(|taken| *taken <= span.0);
        let index = free.unwrap_or_else(|| {
            self.taken.push(i64::MIN);
            self.taken.len() - 1
        });
        self.taken[index] = span.1;
        self.base + index + 1
    }

    fn slice(&mut self, name: &str, span: Span, args: &Value) -> Value {
        let tid = self.take(span);
        json!({
            "ph": "X", "cat": self.name, "name": name, "pid": self.pid, "tid": tid,
            "ts": micros(span.0), "dur": micros(span.1 - span.0), "args": args,
        })
    }

    /// Returns the events that name the tracks.
    fn names(&self) -> Vec<Value> {
        let all = 1..=self.taken.len();
        all.flat_map(|number| {
            let tid = self.base + number;
            let name = format!("{} {number}", self.name);
            [
                metadata("thread_name", self.pid, tid, &json!({ "name": name })),
                metadata(
                    "thread_sort_index",
                    self.pid,
                    tid,
                    &json!({ "sort_index": tid }),
                ),
            ]
        })
        .collect()
    }
}

fn metadata(what: &str, pid: usize, tid: usize, args: &Value) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": args })
}

/// Returns microseconds, the unit of the format.
fn micros(ns: i64) -> Value {
    let text = format!("{}.{:03}", ns / 1000, ns % 1000);
    text.parse::<serde_json::Number>()
        .map_or(Value::Null, Value::Number)
}

/// Writes all requests.
pub(super) fn json(merged: &Merged) -> String {
    let mut events = Vec::new();
    let hosts: Vec<_> = merged
        .machines
        .iter()
        .map(|one| one.host.as_str())
        .collect();
    for (host, index) in hosts.iter().zip(0..) {
        let side = if index == 0 { "target" } else { "client" };
        let name = json!({ "name": format!("{side} {host}") });
        events.push(metadata("process_name", index + 1, 0, &name));
    }
    let mut requests = Tracks::new(1, 0, "request");
    let [mut drive, mut memory, mut wire] = [
        Tracks::new(1, 1, "drive"),
        Tracks::new(1, 2, "memory"),
        Tracks::new(1, 3, "wire"),
    ];
    let mut clients: Vec<_> = (0..hosts.len())
        .map(|index| Tracks::new(index + 1, 4, "issued"))
        .collect();
    // Sorted by their beginnings below, as `Tracks::take` needs them.
    let mut slices = Vec::new();
    for request in &merged.requests {
        slices.extend(of_client(request, &hosts));
        slices.extend(of_target(request));
        for chunk in &request.chunks {
            let name = format!(
                "{} {} at {}",
                request.op,
                size(chunk.bytes),
                size(chunk.offset)
            );
            let args = json!({
                "request": request.number, "offset": chunk.offset, "bytes": chunk.bytes,
                "memory": chunk.memory, "status": chunk.status,
            });
            let kinds = [
                (Kind::Drive, chunk.drive()),
                (Kind::Memory, chunk.waits()),
                (Kind::Wire, chunk.wire()),
            ];
            for (kind, span) in kinds {
                slices.extend(span.map(|span| Slice::new(kind, span, &name, &args)));
            }
        }
    }
    slices.sort_by_key(|slice| slice.span);
    for slice in slices {
        let tracks = match slice.kind {
            Kind::Client(index) => &mut clients[index],
            Kind::Target => &mut requests,
            Kind::Drive => &mut drive,
            Kind::Memory => &mut memory,
            Kind::Wire => &mut wire,
        };
        let event = tracks.slice(&slice.name, slice.span, &slice.args);
        events.extend(slice.flows(&event));
        events.push(event);
    }
    let all = [&requests, &drive, &memory, &wire];
    for tracks in all.into_iter().chain(&clients) {
        events.extend(tracks.names());
    }
    let all = json!({
        "displayTimeUnit": "ns",
        "otherData": { "machines": merged.machines },
        "traceEvents": events,
    });
    all.to_string() + "\n"
}

#[derive(Clone, Copy)]
enum Kind {
    /// At the client of this index.
    Client(usize),
    Target,
    Drive,
    Memory,
    Wire,
}

/// A slice, and the arrows that begin (`true`) or end in it, each with its number and its time.
struct Slice {
    kind: Kind,
    span: Span,
    name: String,
    args: Value,
    arrows: Vec<(bool, usize, i64)>,
}

impl Slice {
    fn new(kind: Kind, span: Span, name: &str, args: &Value) -> Self {
        Self {
            kind,
            span,
            name: name.to_owned(),
            args: args.clone(),
            arrows: Vec::new(),
        }
    }

    /// Returns the arrows' events; they are bound to this slice by its track and their times.
    fn flows(&self, event: &Value) -> Vec<Value> {
        let flow = |(begins, id, at): &(bool, usize, i64)| {
            let at = (*at).clamp(self.span.0, self.span.1);
            let mut flow = json!({
                "ph": if *begins { "s" } else { "f" }, "cat": "message", "name": "message", "id": id,
                "pid": event["pid"], "tid": event["tid"], "ts": micros(at),
            });
            if !begins {
                flow["bp"] = json!("e");
            }
            flow
        };
        self.arrows.iter().map(flow).collect()
    }
}

fn about(request: &MergedRequest) -> (String, Value) {
    let name = format!("{} {}", request.op, size(request.bytes));
    let args = json!({
        "request": request.number, "session": request.session, "queue": request.queue, "way": request.way,
        "sector": request.sector, "status": request.status, "clock_uncertainty_ns": request.uncertainty_ns,
    });
    (name, args)
}

/// Returns the numbers of the arrows of a request's two messages: there, and back. A message has an arrow if both sides
/// recorded it.
fn arrows(request: &MergedRequest) -> (Option<usize>, Option<usize>) {
    let times = &request.times;
    let there = times.sent_ns.and(times.received_ns);
    let back = times.target_answered_ns.and(times.answered_ns);
    // An arrow needs a slice on each side.
    let drawn = of_both(request);
    (
        there.filter(|_| drawn).map(|_| 2 * request.number),
        back.filter(|_| drawn).map(|_| 2 * request.number + 1),
    )
}

fn of_both(request: &MergedRequest) -> bool {
    client_span(request).is_some() && target_span(request).is_some()
}

fn client_span(request: &MergedRequest) -> Option<Span> {
    let times = &request.times;
    Some((times.queued_ns.or(times.sent_ns)?, times.completed_ns?))
}

fn target_span(request: &MergedRequest) -> Option<Span> {
    let times = &request.times;
    let end = times.target_completed_ns.or(times.target_answered_ns)?;
    Some((times.received_ns?, end))
}

fn of_client(request: &MergedRequest, hosts: &[&str]) -> Option<Slice> {
    let client = request.client.as_deref()?;
    // The target may be its own client.
    let index = hosts.iter().position(|host| *host == client)?;
    let (name, args) = about(request);
    let mut slice = Slice::new(Kind::Client(index), client_span(request)?, &name, &args);
    let (there, back) = arrows(request);
    let times = &request.times;
    slice
        .arrows
        .extend(there.zip(times.sent_ns).map(|(id, at)| (true, id, at)));
    slice
        .arrows
        .extend(back.zip(times.answered_ns).map(|(id, at)| (false, id, at)));
    Some(slice)
}

fn of_target(request: &MergedRequest) -> Option<Slice> {
    let (name, args) = about(request);
    let mut slice = Slice::new(Kind::Target, target_span(request)?, &name, &args);
    let (there, back) = arrows(request);
    let times = &request.times;
    slice
        .arrows
        .extend(there.zip(times.received_ns).map(|(id, at)| (false, id, at)));
    slice.arrows.extend(
        back.zip(times.target_answered_ns)
            .map(|(id, at)| (true, id, at)),
    );
    Some(slice)
}
