// SPDX-License-Identifier: GPL-2.0

//! `hcablk trace`: records how data moves, and shows it as text and as pictures.
//!
//! | module | holds |
//! |---|---|
//! | `record` | the recording, through tracefs |
//! | `parse` | a recording as events |
//! | `sides` | the events of one side as requests |
//! | `clocks` | the difference between the clocks of two machines |
//! | `merge` | the requests of both sides, on one clock |
//! | `chunks` | when the parts of a request were at the drive, in memory and on the wire |
//! | `list`, `text` | tables, and one request, for a terminal |
//! | `svg` | a picture of one request |
//! | `perfetto` | a file for <https://ui.perfetto.dev> |
//!
//! All modules except `record` only compute: their tests run without a kernel.

mod chunks;
mod clocks;
pub mod list;
pub mod merge;
mod parse;
mod perfetto;
mod record;
mod sides;
mod svg;
pub mod text;

use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::output::{Outcome, Report};
use crate::system::System;

pub use chunks::Chunk;
pub use clocks::DRIFT_PPM;
pub use merge::{Merged, MergedRequest};
pub use record::{record, Until};

/// The arguments of `trace show`.
#[derive(Clone, Debug)]
pub struct Show<'a> {
    /// The recordings; exactly one has a target's side.
    pub files: &'a [PathBuf],
    /// Only this request.
    pub request: Option<usize>,
    /// The file for a picture of it, or of the largest request.
    pub svg: Option<&'a Path>,
    /// The file for Perfetto.
    pub perfetto: Option<&'a Path>,
    /// The largest difference between the rates of two clocks, in millionths.
    pub drift: u32,
}

/// Runs `hcablk trace show`.
pub fn show(system: &dyn System, wanted: &Show<'_>) -> Result<Outcome> {
    let mut recordings = Vec::new();
    for file in wanted.files {
        let text = system.read(file)?;
        recordings.push(parse::parse(&file.display().to_string(), &text)?);
    }
    let mut merged = merge::merge(&recordings, wanted.drift)?;
    let mut notes = Vec::new();
    for machine in &merged.machines {
        if machine.lost > 0 {
            notes.push(format!(
                "{}: {} events were lost, and with them parts of requests",
                machine.file, machine.lost
            ));
        }
    }
    let mut written = Vec::new();
    if let Some(file) = wanted.perfetto {
        let json = perfetto::json(&merged);
        write(system, file, &json)?;
        written.push(file.display().to_string());
    }
    if let Some(file) = wanted.svg {
        let request = match wanted.request {
            Some(number) => find(&merged, number)?,
            None => merged.largest().ok_or_else(nothing)?,
        };
        write(system, file, &svg::draw(&merged, request))?;
        written.push(file.display().to_string());
    }
    if let Some(number) = wanted.request {
        let request = find(&merged, number)?.clone();
        merged.requests = vec![request];
    }
    let mut outcome = Outcome::new(Report::Trace {
        machines: merged.machines,
        requests: merged.requests,
        written,
        one: wanted.request.is_some(),
    });
    outcome.notes = notes;
    Ok(outcome)
}

fn write(system: &dyn System, file: &Path, text: &str) -> Result<()> {
    system.replace(file, text).map_err(|error| {
        Error::new(Kind::Failed, format!("cannot write the picture: {error}"))
            .with_errno(error.errno)
            .advise("Name a file in a folder that you may write to.")
    })
}

fn find(merged: &Merged, number: usize) -> Result<&MergedRequest> {
    let found = merged
        .requests
        .iter()
        .find(|request| request.number == number);
    found.ok_or_else(|| {
        Error::new(
            Kind::NotFound,
            format!(
                "there is no request {number}: the recordings have {}",
                merged.requests.len()
            ),
        )
        .advise("Without --request they are listed, with their numbers from 1 on.")
    })
}

fn nothing() -> Error {
    Error::new(
        Kind::NotFound,
        "no request with data was recorded".to_owned(),
    )
    .advise(
        "Record while there is I/O, on both sides at the same time: hcablk trace record -o FILE",
    )
}
