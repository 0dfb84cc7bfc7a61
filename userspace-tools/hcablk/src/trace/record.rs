// SPDX-License-Identifier: GPL-2.0

//! `hcablk trace record`: writes the events of tracefs to a file.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::parse::{HEADING, TRACEPOINTS};
use crate::error::{Error, Kind, Result};
use crate::output::{Done, Outcome};
use crate::system::{KernelEvent, Listen, System};

/// Maximum number of events in a recording, of some 250 bytes each.
const EVENTS_MAX: usize = 400_000;

/// KiB of tracefs's buffer for each CPU.
const BUFFER_KIB: u32 = 4096;

/// The limit at which a recording ends; without a limit it ends when it is interrupted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until {
    /// End after this time.
    pub time: Option<Duration>,
    /// End when this many requests have ended on this machine, as a client or as a target.
    pub requests: Option<u64>,
}

/// Runs `hcablk trace record`.
pub fn record(system: &dyn System, until: Until, output: &Path) -> Result<Outcome> {
    if output
        .parent()
        .is_some_and(|folder| folder != Path::new("") && !system.exists(folder))
    {
        return Err(Error::new(
            Kind::NotFound,
            format!("{}: there is no such folder", output.display()),
        )
        .advise("Make the folder first, or name another file."));
    }
    let wanted = Listen {
        optional: Vec::new(),
        uevents: false,
        tracepoints: TRACEPOINTS.map(|(system, name, _)| (system, name)).to_vec(),
        raw_clock: true,
        buffer_kib: Some(BUFFER_KIB),
    };
    let (mut listener, notes) = system.listen(&wanted)?;
    system.progress("recording; to end it: Ctrl-C");
    let end = until.time.map(|time| system.now() + time);
    let (mut lines, mut lost) = (Vec::new(), 0_u64);
    let (mut as_client, mut as_target) = (0_u64, 0_u64);
    let mut is_full = false;
    loop {
        let left = end.map(|end| end.saturating_sub(system.now()));
        if left == Some(Duration::ZERO) {
            break;
        }
        match listener.next_within(left)? {
            None | Some(KernelEvent::End) => break,
            Some(KernelEvent::LostTraces(count)) => lost += count,
            Some(KernelEvent::Trace(line)) => {
                as_client += u64::from(line.contains(": hcablk_completed: "));
                as_target += u64::from(line.contains(": hcablk_target_completed: "));
                if line.contains(": hcablk_") {
                    lines.push(line);
                }
            }
            Some(KernelEvent::Uevent(_) | KernelEvent::LostUevents) => (),
        }
        let ended = as_client.max(as_target);
        if until.requests.is_some_and(|requests| ended >= requests) {
            break;
        }
        if lines.len() >= EVENTS_MAX {
            is_full = true;
            break;
        }
    }
    drop(listener);
    let mut text = format!(
        "{HEADING}\n# host: {}\n# lost: {lost}\n",
        system.host_name()
    );
    for line in &lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    system.replace(output, &text).map_err(|error| {
        Error::new(Kind::Failed, format!("cannot write the recording: {error}"))
            .with_errno(error.errno)
            .advise("Name a file in a folder that you may write to.")
    })?;
    let mut outcome = Outcome::new(Done::TraceRecord {
        file: output.display().to_string(),
        events: lines.len(),
        lost,
        requests: as_client.max(as_target),
    });
    outcome.notes = notes;
    if is_full {
        outcome.note(format!(
            "the recording ended early: it reached the limit of {EVENTS_MAX} events"
        ));
    }
    if lines.is_empty() {
        outcome.note("no event happened during the recording");
    }
    Ok(outcome)
}
