// SPDX-License-Identifier: GPL-2.0

//! The lock on the configuration: its holder applies or changes it.

use std::path::Path;
use std::time::Duration;

use super::loaded::FOLDER;
use crate::error::{Error, Result};
use crate::system::{Lock, System};

/// The pause between two attempts to get the lock, and the time between two reports that the command waits for it.
const PAUSE: Duration = Duration::from_millis(100);
/// See [`PAUSE`].
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Waits until no other command applies or changes the configuration: two commands that apply it would make the same
/// objects, and each would undo changes that the other needs; of two that change it, one would restore the text that
/// the other replaced. After `limit` the command continues without the lock: the other may wait for a drive that hangs.
pub(crate) fn lock(system: &dyn System, limit: Option<Duration>) -> Result<Option<Lock>> {
    let folder = Path::new(FOLDER);
    // Without the folder nothing is configured.
    if !system.exists(folder) {
        return Ok(None);
    }
    let began = system.now();
    let mut next_report = began;
    loop {
        if let Some(lock) = system.try_lock(folder)? {
            return Ok(Some(lock));
        }
        if system.interrupted() {
            return Err(Error::interrupted());
        }
        let now = system.now();
        if limit.is_some_and(|limit| now >= began + limit) {
            system.progress(
                "another command still holds the lock on the configuration; continuing without it",
            );
            return Ok(None);
        }
        if now >= next_report {
            next_report = now + REPORT_INTERVAL;
            system.progress("another command applies or changes the configuration; waiting for it");
        }
        system.pause(PAUSE);
    }
}
