// SPDX-License-Identifier: GPL-2.0

//! Sends entries of the audit log to the journal of systemd, or to syslog, and finds out who runs the command.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{getppid, getuid};

use super::{selves, System};
use crate::audit::{Caller, Entry};

/// The socket of the journal, and that of syslog.
pub(super) const JOURNAL: &str = "/run/systemd/journal/socket";
pub(super) const SYSLOG: &str = "/dev/log";
/// The longest wait for a log whose socket is full.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The kernel's login uid of a process that was not started from a login.
const NO_LOGIN: u32 = u32::MAX;

/// Sends a datagram to the socket at `path`.
pub(super) fn send(path: &Path, text: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(TIME_LIMIT))?;
    socket.send_to(text.as_bytes(), path).map(drop)
}

/// Writes an entry to the log of this machine: the journal, or else syslog.
pub(super) fn write(entry: &Entry, at: impl Fn(&Path) -> std::path::PathBuf) -> io::Result<()> {
    let pid = std::process::id();
    let (journal, syslog) = (at(Path::new(JOURNAL)), at(Path::new(SYSLOG)));
    if journal.exists() {
        send(&journal, &entry.to_journal(pid))
    } else if syslog.exists() {
        send(&syslog, &entry.to_syslog(pid))
    } else {
        Ok(())
    }
}

/// Returns the process that runs this command, and its user.
pub(super) fn caller(system: &dyn System) -> Caller {
    let value = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let line = |path: &str| {
        let text = system.read(Path::new(path)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let words = std::env::args_os().skip(1);
    Caller {
        words: words
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        uid: getuid().as_raw(),
        login_uid: line("/proc/self/loginuid")
            .and_then(|text| text.parse().ok())
            .filter(|uid| *uid != NO_LOGIN),
        sudo_user: value("SUDO_USER"),
        ssh_client: value("SSH_CONNECTION")
            .and_then(|text| text.split(' ').next().map(str::to_owned)),
        parent: line(&format!("/proc/{}/comm", getppid())),
        is_helper: selves::is_helper(),
    }
}
