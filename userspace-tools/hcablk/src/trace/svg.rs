// SPDX-License-Identifier: GPL-2.0

//! A picture of one request: time from left to right, offset from top to bottom, and for each chunk three bars: drive,
//! memory and wire. The bars above show the request at the client and at the target.
//!
//! Coordinates are computed in tenths of a pixel, as whole numbers.

use std::fmt::Write as _;

use super::chunks::{Chunk, Span};
use super::list::{duration, size};
use super::merge::{Merged, MergedRequest};
use super::parse::Memory;

/// Widths in pixels: of the picture, left of the plot, and right of it.
const WIDTH: i64 = 960;
const LEFT: i64 = 116;
const RIGHT: i64 = 24;
/// Pixels above the bars of the request, and their height, with the gap below.
const TOP: i64 = 92;
const LANE: i64 = 20;
/// Pixels of all chunks together, unless a chunk would get fewer than [`ROW_MIN`].
const ROWS: i64 = 416;
const ROW_MIN: i64 = 14;
/// Pixels below the plot.
const BOTTOM: i64 = 56;

const DRIVE: &str = "#2f6db3";
const WAITS: &str = "#e0a030";
const PEER: &str = "#6a9f3a";
const WIRE: &str = "#c0453a";
const CLIENT: &str = "#8a8f98";
const TARGET: &str = "#5d6673";

/// The elements of the picture so far, and the times that it spans.
struct Canvas {
    text: String,
    begin: i64,
    all: i64,
}

/// Makes text safe for XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Formats tenths.
fn tenths(number: i64) -> String {
    format!("{}.{}", number / 10, number % 10)
}

impl Canvas {
    /// Returns the horizontal position of a time, in tenths of pixels.
    fn x(&self, at: i64) -> i64 {
        let width = i128::from((WIDTH - LEFT - RIGHT) * 10);
        let scaled = i128::from(at - self.begin) * width / i128::from(self.all);
        LEFT * 10 + i64::try_from(scaled).unwrap_or(0)
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Draws a bar; `y` and `height` are tenths. A short bar is drawn wide enough to be visible.
    fn bar(&mut self, span: Span, y: i64, height: i64, fill: &str, title: &str) {
        let (from, to) = (self.x(span.0), self.x(span.1));
        let line = format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"><title>{}</title></rect>",
            tenths(from),
            tenths(y),
            tenths((to - from).max(10)),
            tenths(height),
            escape(title)
        );
        self.line(&line);
    }

    /// Writes text; `y` is the base line in tenths.
    fn write(&mut self, x: i64, y: i64, anchor: &str, class: &str, text: &str) {
        let line = format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            tenths(x),
            tenths(y),
            escape(text)
        );
        self.line(&line);
    }

    fn stroke(&mut self, from: (i64, i64), to: (i64, i64), class: &str) {
        let line = format!(
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{class}\"/>",
            tenths(from.0),
            tenths(from.1),
            tenths(to.0),
            tenths(to.1)
        );
        self.line(&line);
    }
}

/// Draws a request.
pub(super) fn draw(merged: &Merged, request: &MergedRequest) -> String {
    let (begin, end) = request.span();
    let count = i64::try_from(request.chunks.len().max(1)).unwrap_or(1);
    let row = (ROWS / count).max(ROW_MIN);
    let top = TOP + 2 * LANE + 14;
    let bottom = top + row * count;
    let mut canvas = Canvas {
        text: String::new(),
        begin,
        all: (end - begin).max(1),
    };
    heading(&mut canvas, bottom + BOTTOM, request);
    time_axis(&mut canvas, TOP - 6, bottom);
    sides(&mut canvas, request);
    for (chunk, index) in request.chunks.iter().zip(0..) {
        let y = top + index * row;
        if index % 2 == 0 {
            let line = format!(
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"{row}\" class=\"row\"/>",
                WIDTH - LEFT - RIGHT
            );
            canvas.line(&line);
        }
        let base = y * 10 + row * 5 + 40;
        canvas.write(LEFT * 10 - 80, base, "end", "tick", &size(chunk.offset));
        bars(&mut canvas, chunk, y, row);
    }
    let middle = (top + bottom) / 2;
    let line = format!(
        "<text transform=\"translate(22 {middle}) rotate(-90)\" text-anchor=\"middle\" class=\"axis\">offset in the data</text>"
    );
    canvas.line(&line);
    canvas.stroke((LEFT * 10, top * 10), (LEFT * 10, bottom * 10), "frame");
    foot(&mut canvas, merged, request, bottom);
    canvas.text.push_str("</svg>\n");
    canvas.text
}

fn heading(canvas: &mut Canvas, height: i64, request: &MergedRequest) {
    let begin = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
         <style>text{{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#222}}.title{{font-size:17px;font-weight:bold}}\
         .tick{{font-size:11px;fill:#444}}.axis{{font-size:12px}}.note{{font-size:12px;fill:#444}}\
         .grid{{stroke:#d8dbe0;stroke-width:1}}.frame{{stroke:#555;stroke-width:1}}.row{{fill:#f4f5f7}}.off{{stroke:#222;stroke-width:1.5}}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>"
    );
    canvas.line(&begin);
    let how = if request.is_chunked {
        format!("in {} chunks", request.chunks.len())
    } else {
        "moved whole".to_owned()
    };
    let title = format!("A {} of {}, {how}", request.op, size(request.bytes));
    canvas.write(160, 270, "start", "title", &title);
    let memory = request
        .chunks
        .first()
        .map_or(Memory::None, |one| one.memory);
    let waits = match memory {
        Memory::Peer => "waits in peer memory",
        Memory::Bounced => "waits in peer memory and RAM",
        _ => "waits in RAM",
    };
    let fill = waits_fill(memory);
    let mut x = 160;
    for (fill, text, width) in [
        (DRIVE, "at the drive", 118),
        (
            fill,
            waits,
            88 + 7 * i64::try_from(waits.len()).unwrap_or(0) - 60,
        ),
        (WIRE, "on the wire", 118),
        (CLIENT, "the request at the client", 205),
        (TARGET, "at the target", 110),
    ] {
        let line = format!(
            "<rect x=\"{}\" y=\"44\" width=\"14\" height=\"12\" fill=\"{fill}\"/>",
            tenths(x)
        );
        canvas.line(&line);
        canvas.write(x + 200, 545, "start", "note", text);
        x += width * 10;
    }
}

fn waits_fill(memory: Memory) -> &'static str {
    match memory {
        Memory::Peer | Memory::Bounced => PEER,
        Memory::None | Memory::Ram => WAITS,
    }
}

/// Returns the smallest step of 1, 2 or 5 times a power of ten, at least 1000, of which at most nine are in `all`.
fn step(all: i64) -> i64 {
    let mut step = 1000;
    loop {
        for factor in [1, 2, 5] {
            if all / (step * factor) <= 9 {
                return step * factor;
            }
        }
        step *= 10;
    }
}

fn time_axis(canvas: &mut Canvas, top: i64, bottom: i64) {
    let step = step(canvas.all);
    let (unit, name) = if step >= 1_000_000 {
        (1_000_000, "ms")
    } else {
        (1000, "us")
    };
    let mut at = 0;
    while at <= canvas.all {
        let x = canvas.x(canvas.begin + at);
        canvas.stroke((x, top * 10), (x, bottom * 10 + 40), "grid");
        let label = (at / unit).to_string();
        canvas.write(x, bottom * 10 + 170, "middle", "tick", &label);
        at += step;
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2;
    let text = format!("time since the block layer handed the request over, {name}");
    canvas.write(middle * 10, bottom * 10 + 340, "middle", "axis", &text);
}

/// Draws the request as both sides saw it.
fn sides(canvas: &mut Canvas, request: &MergedRequest) {
    let times = &request.times;
    let client = request.client.as_deref().unwrap_or("client");
    let y = TOP;
    canvas.write(LEFT * 10 - 80, y * 10 + 120, "end", "tick", "client");
    canvas.write(
        LEFT * 10 - 80,
        (y + LANE) * 10 + 120,
        "end",
        "tick",
        "target",
    );
    let from = times.queued_ns.or(times.sent_ns);
    if let (Some(from), Some(to)) = (from, times.completed_ns) {
        let title = format!(
            "{client}: from queued to completed, {}",
            duration(to - from)
        );
        canvas.bar((from, to), y * 10, 140, CLIENT, &title);
        // The uncertainty of the client's times.
        if let Some(off) = request.uncertainty_ns {
            for (at, y) in [
                (times.sent_ns, y * 10 + 70),
                (times.answered_ns, y * 10 + 70),
            ] {
                let Some(at) = at else { continue };
                let first = canvas.x((at - off).max(canvas.begin));
                let last = canvas.x((at + off).min(canvas.begin + canvas.all));
                canvas.stroke((first, y), (last, y), "off");
                for x in [first, last] {
                    canvas.stroke((x, y - 35), (x, y + 35), "off");
                }
            }
        }
    }
    let to = times.target_completed_ns.or(times.target_answered_ns);
    if let (Some(from), Some(to)) = (times.received_ns, to) {
        let title = format!("target: from received to response, {}", duration(to - from));
        canvas.bar((from, to), (y + LANE) * 10, 140, TARGET, &title);
    }
}

fn bars(canvas: &mut Canvas, chunk: &Chunk, y: i64, row: i64) {
    // Three bars, and a tenth of the row above and below them.
    let (margin, height) = (row, row * 8 / 3);
    let place = format!("{} at {}", size(chunk.bytes), size(chunk.offset));
    let all = [
        (chunk.drive(), DRIVE, "drive"),
        (chunk.waits(), waits_fill(chunk.memory), "memory"),
        (chunk.wire(), WIRE, "wire"),
    ];
    for ((span, fill, name), index) in all.into_iter().zip(0..) {
        if let Some(span) = span {
            let title = format!("{place}: {name}, {}", duration(span.1 - span.0));
            let y = y * 10 + margin + index * height;
            canvas.bar(span, y, height, fill, &title);
        }
    }
}

fn foot(canvas: &mut Canvas, merged: &Merged, request: &MergedRequest, bottom: i64) {
    let mut text = format!(
        "Drive busy {}, wire busy {}, both at once {}.",
        duration(request.drive_ns),
        duration(request.wire_ns),
        duration(request.both_ns)
    );
    if let Some(off) = request.uncertainty_ns {
        let hosts: Vec<_> = merged
            .machines
            .iter()
            .map(|one| one.host.as_str())
            .collect();
        let _ = write!(
            text,
            " Clocks of {} are within {} of each other (error bars).",
            hosts.join(" and "),
            duration(off)
        );
    }
    canvas.write(160, (bottom + BOTTOM) * 10 - 70, "start", "note", &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (all, expected) in [
            (1, 1000),
            (9_000, 1000),
            (10_000, 2000),
            (45_000, 5000),
            (123_456_789, 20_000_000),
        ] {
            assert_eq!(step(all), expected, "{all}");
        }
    }
}
