// SPDX-License-Identifier: GPL-2.0

//! Events that the kernel sends: uevents through a netlink socket, tracepoints through an instance of tracefs.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    bind, recvfrom, setsockopt, socket, sockopt, AddressFamily, NetlinkAddr, SockFlag,
    SockProtocol, SockType,
};

use crate::error::{describe, Error, Kind, Result};

/// A tracepoint: its system, and its name.
pub type Tracepoint = (&'static str, &'static str);

/// The events to listen to.
#[derive(Clone, Debug, Default)]
pub struct Listen {
    /// Uevents of all devices.
    pub uevents: bool,
    /// These tracepoints.
    pub tracepoints: Vec<Tracepoint>,
    /// Tracepoints to listen to if the kernel has them.
    pub optional: Vec<Tracepoint>,
    /// Whether tracepoints have the time of the clock `mono_raw`, which is never set or slewed, instead of `mono`.
    pub raw_clock: bool,
    /// KiB of tracefs's buffer for each CPU; `None`: 256.
    pub buffer_kib: Option<u32>,
}

/// The events that were received.
#[derive(Clone, Debug)]
pub enum KernelEvent {
    /// A message of the kernel's uevent socket.
    Uevent(Vec<u8>),
    /// A line of tracefs.
    Trace(String),
    /// Uevents were lost, since too many arrived.
    LostUevents,
    /// Tracepoints that were lost; 0: their number is not known.
    LostTraces(u64),
    /// The user wants to stop the command.
    End,
}

/// A source of events.
pub trait Listener {
    /// Waits for the next event, for at most `limit` if it is set. Returns `None` when that time is over.
    fn next_within(&mut self, limit: Option<Duration>) -> Result<Option<KernelEvent>>;

    /// Waits for the next event.
    fn next(&mut self) -> Result<KernelEvent> {
        Ok(self.next_within(None)?.unwrap_or(KernelEvent::End))
    }
}

/// The same moment on two clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The time since 1970.
    pub real: Duration,
    /// The kernel's `CLOCK_MONOTONIC`.
    pub mono: Duration,
}

impl Clock {
    /// Returns the time since 1970 of a moment by the monotonic clock.
    pub fn real_of(&self, mono: Duration) -> Duration {
        if mono > self.mono {
            self.real + (mono - self.mono)
        } else {
            self.real.saturating_sub(self.mono - mono)
        }
    }
}

const TRACING: &str = "sys/kernel/tracing";

/// The size of the uevent socket's receive buffer, in bytes; root may exceed the system's limit.
const UEVENT_BUFFER: usize = 4 << 20;

/// An instance of tracefs, which is removed when this is dropped.
struct Instance {
    folder: PathBuf,
    pipe: File,
    text: Vec<u8>,
}

impl Instance {
    fn new(root: &Path, wanted: &Listen) -> io::Result<Self> {
        let instances = root.join(TRACING).join("instances");
        remove_left_over(&instances, root);
        let folder = instances.join(format!("hcablk-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let set_up = || {
            let clock = if wanted.raw_clock {
                "mono_raw\n"
            } else {
                "mono\n"
            };
            fs::write(folder.join("trace_clock"), clock)?;
            let size = wanted.buffer_kib.unwrap_or(256);
            fs::write(folder.join("buffer_size_kb"), format!("{size}\n"))?;
            enable(&folder.join("events"), wanted)?;
            let mut options = OpenOptions::new();
            options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_CLOEXEC).bits());
            options.read(true).open(folder.join("trace_pipe"))
        };
        match set_up() {
            Ok(pipe) => Ok(Self {
                folder,
                pipe,
                text: Vec::new(),
            }),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    /// Reads the available lines.
    fn read(&mut self, heard: &mut VecDeque<KernelEvent>) -> io::Result<()> {
        let mut buffer = [0; 16384];
        let length = match self.pipe.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            read => read?,
        };
        self.text.extend_from_slice(&buffer[..length]);
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<_> = self.text.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            heard.push_back(if line.starts_with("CPU:") && line.contains("LOST") {
                // `CPU:0 [LOST 12 EVENTS]`
                let mut words = line.split_whitespace();
                KernelEvent::LostTraces(words.find_map(|word| word.parse().ok()).unwrap_or(0))
            } else {
                KernelEvent::Trace(line)
            });
        }
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The instance can be removed only when its pipe is closed.
        if let Ok(other) = File::open("/dev/null") {
            self.pipe = other;
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Enables the tracepoints that are wanted.
fn enable(events: &Path, wanted: &Listen) -> io::Result<()> {
    let enable = |(system, name): &Tracepoint| {
        let file = events.join(system).join(name).join("enable");
        fs::write(file, "1\n")
    };
    wanted.tracepoints.iter().try_for_each(enable)?;
    for tracepoint in &wanted.optional {
        match enable(tracepoint) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            written => written?,
        }
    }
    Ok(())
}

/// Removes instances of commands that were killed.
fn remove_left_over(instances: &Path, root: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let pid = name.strip_prefix("hcablk-");
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !root.join("proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The sources of events on this machine.
pub(super) struct EventSources {
    uevents: Option<OwnedFd>,
    instance: Option<Instance>,
    signals: Option<OwnedFd>,
    heard: VecDeque<KernelEvent>,
}

impl EventSources {
    /// Starts to listen. Fails if uevents are wanted and not available. If tracepoints are not available, returns a
    /// note, or fails if no uevents are wanted. A signal from `signals` is reported as [`KernelEvent::End`].
    pub(super) fn new(
        root: &Path,
        wanted: &Listen,
        signals: Option<OwnedFd>,
    ) -> Result<(Self, Vec<String>)> {
        let mut notes = Vec::new();
        let uevents = if wanted.uevents {
            Some(netlink().map_err(|errno| {
                Error::new(
                    Kind::Failed,
                    format!("cannot listen to uevents: {}", describe(errno)),
                )
                .advise("Listen to tracepoints only: hcablk events --only tracepoints")
            })?)
        } else {
            None
        };
        let instance = if wanted.tracepoints.is_empty() {
            None
        } else {
            match Instance::new(root, wanted) {
                Ok(instance) => Some(instance),
                Err(error) => {
                    let (why, advice) = explain(root, &error);
                    let message = format!("cannot listen to tracepoints: {why}");
                    if uevents.is_none() {
                        return Err(Error::new(Kind::Setup, message).advise(advice));
                    }
                    notes.push(format!("{message}; sessions are not reported. {advice}"));
                    None
                }
            }
        };
        let ears = Self {
            uevents,
            instance,
            signals,
            heard: VecDeque::new(),
        };
        Ok((ears, notes))
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<()> {
        let fds = [
            self.uevents.as_ref().map(AsFd::as_fd),
            self.instance.as_ref().map(|instance| instance.pipe.as_fd()),
            self.signals.as_ref().map(AsFd::as_fd),
        ];
        let ready = ready(&fds, limit).map_err(|errno| {
            Error::new(
                Kind::Failed,
                format!("cannot wait for events: {}", describe(errno)),
            )
        })?;
        if let (true, Some(socket)) = (ready[0], &self.uevents) {
            self.heard.extend(receive(socket));
        }
        if let (true, Some(instance)) = (ready[1], &mut self.instance) {
            instance.read(&mut self.heard).map_err(|error| {
                Error::new(Kind::Failed, format!("cannot read tracepoints: {error}"))
            })?;
        }
        if ready[2] {
            self.heard.push_back(KernelEvent::End);
        }
        Ok(())
    }
}

impl Listener for EventSources {
    fn next_within(&mut self, limit: Option<Duration>) -> Result<Option<KernelEvent>> {
        let end = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return Ok(Some(heard));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            self.wait(left)?;
            if left.is_some_and(|left| left.is_zero()) && self.heard.is_empty() {
                return Ok(None);
            }
        }
    }
}

/// Waits until some descriptors are readable, or the time is over, and returns which.
fn ready(fds: &[Option<BorrowedFd<'_>>; 3], limit: Option<Duration>) -> nix::Result<[bool; 3]> {
    let mut polled: Vec<_> = fds
        .iter()
        .flatten()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    // Rounded up, so that the rest of a wait does not become a busy loop.
    let limit = limit.map_or(PollTimeout::NONE, |limit| {
        let limit = if limit.is_zero() {
            limit
        } else {
            limit + Duration::from_millis(1)
        };
        PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut polled, limit) {
        Ok(_) | Err(Errno::EINTR) => (),
        Err(errno) => return Err(errno),
    }
    let mut answers = polled.iter().map(|fd| fd.any().unwrap_or(false));
    Ok((*fds).map(|fd| fd.is_some() && answers.next().unwrap_or(false)))
}

fn netlink() -> nix::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkKObjectUEvent,
    )?;
    // Only root may exceed the limit; otherwise the buffer has the system's limit.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &UEVENT_BUFFER);
    // Group 1 carries the kernel's own messages.
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1))?;
    Ok(socket)
}

fn receive(socket: &OwnedFd) -> Option<KernelEvent> {
    let mut buffer = [0; 8192];
    match recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut buffer) {
        // The sender is not the kernel, but a program that imitates it.
        Ok((_, Some(from))) if from.pid() != 0 => None,
        Ok((length, _)) => Some(KernelEvent::Uevent(buffer[..length].to_vec())),
        Err(Errno::ENOBUFS) => Some(KernelEvent::LostUevents),
        Err(_) => None,
    }
}

/// Explains why tracefs cannot be used, and what to do.
fn explain(root: &Path, error: &io::Error) -> (String, &'static str) {
    let tracing = root.join(TRACING);
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES | Errno::EPERM) => ("it needs root".to_owned(), "Run it with sudo."),
        Some(Errno::ENOENT) if !tracing.join("instances").exists() => (
            format!("/{TRACING} is not mounted"),
            "Run as root: mount -t tracefs tracefs /sys/kernel/tracing",
        ),
        Some(Errno::ENOENT) if !tracing.join("events/hcablk").exists() => (
            "the kernel module hcablk_core is not loaded".to_owned(),
            "Connect a disk or export a volume first, or: modprobe hcablk_core",
        ),
        Some(errno) => (
            format!("/{TRACING}: {}", describe(errno)),
            "Is another instance in the way? ls /sys/kernel/tracing/instances; without tracepoints: hcablk events --only uevents",
        ),
        None => (
            error.to_string(),
            "Leave them out: hcablk events --only uevents",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_tracepoints_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("hcablk/there")).unwrap();
        let mut wanted = Listen {
            tracepoints: vec![("hcablk", "there")],
            optional: vec![("hcablk", "new"), ("hcablk", "there")],
            ..Listen::default()
        };
        enable(folder.path(), &wanted).unwrap();
        wanted.tracepoints.push(("hcablk", "new"));
        assert!(enable(folder.path(), &wanted).is_err());
    }
}
