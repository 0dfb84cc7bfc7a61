// SPDX-License-Identifier: GPL-2.0

//! The hosts that a volume has evicted, and the command's records of them.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;

use super::Kernel;

/// The largest number of evicted hosts of a volume.
const MOST: usize = 64;

impl Kernel {
    /// Returns the file that records a host as evicted.
    pub fn record_of(volume: &str, host: &str) -> String {
        format!("/var/lib/hcablk/evicted/{volume}/{host}")
    }

    pub fn is_recorded(&self, volume: &str, host: &str) -> bool {
        self.has(&Self::record_of(volume, host))
    }

    /// Restarts the target's module, or its machine: the module forgets everything.
    pub fn restart_target(&self) {
        self.forget("/sys/kernel/config/hcablk_target");
        self.load_target();
    }

    /// Makes the drive need this many seconds for the requests of `host`.
    pub fn drain(&self, host: &str, seconds: u32) {
        self.drains.borrow_mut().insert(host.to_owned(), seconds);
    }

    pub(super) fn evict_or_admit(
        &self,
        volume: &Path,
        attribute: &str,
        host: &str,
    ) -> Result<(), Errno> {
        assert!(self.locked.get(), "the records are not locked");
        if host.len() != 36 {
            return Err(Errno::EINVAL);
        }
        let text = self.text(volume.join("evicted"));
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        let at = lines.iter().position(|line| line.starts_with(host));
        if attribute == "admit" {
            lines.remove(at.ok_or(Errno::ENOENT)?);
            self.set(volume, "evicted", &lines.join("\n"));
            return Ok(());
        }
        let at = match at {
            Some(at) => at,
            None if lines.len() >= MOST => return Err(Errno::ENOSPC),
            None => {
                lines.push(String::new());
                lines.len() - 1
            }
        };
        let mut drains = self.drains.borrow_mut();
        let left = drains.get(host).copied().unwrap_or(0);
        lines[at] = if left > 0 {
            format!("{host} draining")
        } else {
            host.to_owned()
        };
        self.set(volume, "evicted", &lines.join("\n"));
        if left > 0 {
            drains.insert(host.to_owned(), left - 1);
            self.time.set(self.time.get() + Duration::from_secs(1));
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }
}

/// A lock that is held.
pub(super) struct Held(Rc<Cell<bool>>);

impl Held {
    pub(super) fn new(locked: &Rc<Cell<bool>>) -> Option<Self> {
        (!locked.replace(true)).then(|| Self(Rc::clone(locked)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
