// SPDX-License-Identifier: GPL-2.0

//! A recording as events: a heading, lines of `# NAME: VALUE`, and lines of tracefs.

use serde::Serialize;

use crate::error::{Error, Kind, Result};

/// The first line of a recording.
pub(super) const HEADING: &str = "# hcablk trace 1";

/// The kind of an event of a request or a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    Queued,
    Sent,
    Answered,
    Completed,
    TargetReceived,
    TargetDriveStart,
    TargetDriveEnd,
    TargetAnswered,
    TargetCompleted,
    ChunkDriveStart,
    ChunkDriveEnd,
    ChunkPosted,
    ChunkCompleted,
}

/// The tracepoints that are recorded: system, name, and the kind of event.
pub(super) const TRACEPOINTS: [(&str, &str, EventKind); 13] = [
    ("hcablk", "hcablk_queued", EventKind::Queued),
    ("hcablk", "hcablk_sent", EventKind::Sent),
    ("hcablk", "hcablk_answered", EventKind::Answered),
    ("hcablk", "hcablk_completed", EventKind::Completed),
    (
        "hcablk_target",
        "hcablk_target_received",
        EventKind::TargetReceived,
    ),
    (
        "hcablk_target",
        "hcablk_target_drive_start",
        EventKind::TargetDriveStart,
    ),
    (
        "hcablk_target",
        "hcablk_target_drive_end",
        EventKind::TargetDriveEnd,
    ),
    (
        "hcablk_target",
        "hcablk_target_answered",
        EventKind::TargetAnswered,
    ),
    (
        "hcablk_target",
        "hcablk_target_completed",
        EventKind::TargetCompleted,
    ),
    (
        "hcablk_target",
        "hcablk_target_chunk_drive_start",
        EventKind::ChunkDriveStart,
    ),
    (
        "hcablk_target",
        "hcablk_target_chunk_drive_end",
        EventKind::ChunkDriveEnd,
    ),
    (
        "hcablk_target",
        "hcablk_target_chunk_posted",
        EventKind::ChunkPosted,
    ),
    (
        "hcablk_target",
        "hcablk_target_chunk_completed",
        EventKind::ChunkCompleted,
    ),
];

/// The memory in which the target holds data while it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Memory {
    /// No memory, or it is not known.
    #[default]
    None,
    /// In RAM.
    Ram,
    /// In the memory of a PCI device, which drive and HCA reach.
    Peer,
    /// In peer memory for the drive, and in RAM for the HCA: a processor copies the data.
    Bounced,
}

impl Memory {
    /// Returns the name of the memory, as in traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ram => "ram",
            Self::Peer => "peer",
            Self::Bounced => "bounced",
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Nanoseconds, by the clock of its machine.
    pub(super) at: i64,
    pub(super) point: EventKind,
    pub(super) session: u64,
    pub(super) queue: u16,
    pub(super) tag: u16,
    pub(super) generation: u16,
    pub(super) number: u16,
    pub(super) op: String,
    pub(super) way: String,
    pub(super) sector: u64,
    /// For a chunk: bytes from the beginning of the request's data.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) memory: Memory,
    pub(super) status: i32,
}

/// The recording of one machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Recording {
    pub(super) file: String,
    pub(super) host: String,
    pub(super) lost: u64,
    pub(super) events: Vec<Event>,
}

/// Parses a recording; leaves out lines of other events.
pub(super) fn parse(file: &str, text: &str) -> Result<Recording> {
    let wrong = |why: String| {
        Error::new(Kind::Usage, format!("{file}: {why}"))
            .advise("Give files that this wrote: hcablk trace record -o FILE")
    };
    let mut lines = text.lines().zip(1..);
    if lines.next().is_none_or(|(line, _)| line != HEADING) {
        return Err(wrong("this is not a recording of hcablk trace".to_owned()));
    }
    let mut recording = Recording {
        file: file.to_owned(),
        ..Recording::default()
    };
    for (line, number) in lines {
        if let Some(remark) = line.strip_prefix("# ") {
            match remark.split_once(": ") {
                Some(("host", host)) => host.clone_into(&mut recording.host),
                Some(("lost", lost)) => {
                    recording.lost = lost.parse().map_err(|_| {
                        wrong(format!("line {number} does not say how many were lost"))
                    })?;
                }
                _ => (),
            }
            continue;
        }
        if let Some(event) = event(line) {
            let event = event.understand();
            let not = || wrong(format!("line {number} is not understood: {line}"));
            recording.events.push(event.ok_or_else(not)?);
        }
    }
    recording.events.sort_by_key(|event| event.at);
    Ok(recording)
}

/// A line with a known event.
struct Line<'a> {
    /// The text before the event's name: the thread, and the time.
    before: &'a str,
    point: EventKind,
    fields: &'a str,
}

/// Finds a known event in a line.
fn event(line: &str) -> Option<Line<'_>> {
    let (before, after) = line.split_once(": hcablk_")?;
    let (name, fields) = after.split_once(": ")?;
    let (.., point) = TRACEPOINTS
        .iter()
        .find(|(_, known, _)| known.strip_prefix("hcablk_") == Some(name))?;
    Some(Line {
        before,
        point: *point,
        fields,
    })
}

impl Line<'_> {
    /// Parses the fields; `None` if one is missing or not understood.
    fn understand(&self) -> Option<Event> {
        let Self {
            before,
            point,
            fields,
        } = *self;
        let value = |name: &str| {
            let mut words = fields.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        };
        let number = |name: &str| value(name)?.parse::<u64>().ok();
        let small = |name: &str| number(name)?.try_into().ok();
        let is_of_chunk = matches!(
            point,
            EventKind::ChunkDriveStart
                | EventKind::ChunkDriveEnd
                | EventKind::ChunkPosted
                | EventKind::ChunkCompleted
        );
        Some(Event {
            at: nanoseconds(before.split_whitespace().next_back()?)?,
            point,
            session: u64::from_str_radix(value("session")?, 16).ok()?,
            queue: small("queue")?,
            tag: small("tag")?,
            generation: small("generation")?,
            number: if is_of_chunk { 0 } else { small("number")? },
            op: value("op")?.to_owned(),
            way: if is_of_chunk {
                String::new()
            } else {
                value("way")?.to_owned()
            },
            sector: number("sector")?,
            offset: if is_of_chunk { number("offset")? } else { 0 },
            bytes: number("bytes")?,
            memory: match value("memory") {
                // Recordings of older kernel modules do not have this field.
                None | Some("none") => Memory::None,
                Some("ram") => Memory::Ram,
                Some("peer") => Memory::Peer,
                Some("bounced") => Memory::Bounced,
                Some(_) => return None,
            },
            status: value("status")?.parse().ok()?,
        })
    }
}

/// Reads `SECONDS.MICROSECONDS`.
fn nanoseconds(text: &str) -> Option<i64> {
    let (seconds, rest) = text.split_once('.')?;
    if rest.len() != 6 {
        return None;
    }
    let (seconds, micros): (i64, i64) = (seconds.parse().ok()?, rest.parse().ok()?);
    seconds
        .checked_mul(1_000_000)?
        .checked_add(micros)?
        .checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = " kworker/0:1-9 [000] ..... 12.000345: hcablk_target_chunk_posted: session=5d2b0000000000ff queue=1 tag=7 \
                        generation=31 op=read sector=128 offset=65536 bytes=65536 memory=peer status=0";

    #[test]
    fn a_chunk() {
        let event = event(LINE).unwrap().understand().unwrap();
        assert_eq!(event.at, 12_000_345_000);
        assert_eq!(event.session, 0x5d2b_0000_0000_00ff);
        assert_eq!((event.tag, event.generation), (7, 31));
        assert_eq!((event.offset, event.memory), (65_536, Memory::Peer));
    }

    #[test]
    fn a_file_that_is_no_recording_is_refused() {
        for text in ["", "TAP version 14\n", "# hcablk trace 2\n"] {
            let error = parse("f", text).unwrap_err();
            assert!(error.message.contains("not a recording"), "{text:?}");
        }
        let cut = format!("{HEADING}\n{}\n", LINE.split(" offset").next().unwrap());
        let error = parse("f", &cut).unwrap_err();
        assert!(error.message.starts_with("f: line 2 "), "{}", error.message);
    }

    #[test]
    fn other_lines_are_left_out() {
        let text = format!(
            "{HEADING}\n# host: h\n# lost: 3\n# later: x\n\nCPU:0 [LOST 1 EVENTS]\n{LINE}\n"
        );
        let recording = parse("f", &text).unwrap();
        assert_eq!(
            (
                recording.host.as_str(),
                recording.lost,
                recording.events.len()
            ),
            ("h", 3, 1)
        );
    }
}
