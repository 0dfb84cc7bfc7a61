// SPDX-License-Identifier: GPL-2.0

//! The machine as this command sees it.
//!
//! Everything the command does to the machine, or asks it, goes through [`System`]. [`Machine`] is
//! the real one; tests put an imitation of the kernel in its place.

mod durable;

use std::any::Any;
use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{describe, Error, Kind};

/// What was tried when an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Open a file, for reading or writing.
    Open,
    /// Read an open file.
    Read,
    /// Write to an open file: the answer is the driver's own.
    Write,
    /// Make a folder.
    Mkdir,
    /// Remove a folder.
    Rmdir,
    /// List a folder.
    List,
    /// Remove a file.
    Remove,
    /// Write to the drive what was changed.
    Sync,
    /// Lock a folder.
    Lock,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mkdir => "create",
            Self::Rmdir | Self::Remove => "remove",
            Self::List => "list",
            Self::Sync => "sync",
            Self::Lock => "lock",
        })
    }
}

/// A failed operation on a file or folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {op} {}: {}", path.display(), describe(*errno))]
pub struct OpError {
    /// What was tried.
    pub op: Op,
    /// On what.
    pub path: PathBuf,
    /// The kernel's answer.
    pub errno: Errno,
}

impl OpError {
    /// Describes the failure of `op` on `path`.
    pub fn new(op: Op, path: &Path, errno: Errno) -> Self {
        Self {
            op,
            path: path.to_owned(),
            errno,
        }
    }

    fn io(op: Op, path: &Path, error: &io::Error) -> Self {
        Self::new(
            op,
            path,
            Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32)),
        )
    }

    /// Returns whether the caller lacks rights. A refused *write* is the driver's answer and does
    /// not count.
    pub fn lacks_rights(&self) -> bool {
        self.op != Op::Write && matches!(self.errno, Errno::EACCES | Errno::EPERM)
    }

    /// Returns whether the file or folder is not there (any more).
    pub fn is_gone(&self) -> bool {
        self.op != Op::Write && matches!(self.errno, Errno::ENOENT | Errno::ENODEV)
    }
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        let failure = |kind| Self::new(kind, error.to_string()).with_errno(error.errno);
        if error.lacks_rights() {
            failure(Kind::Setup).advise("This needs root: run it with sudo.")
        } else if error.errno == Errno::EBUSY {
            failure(Kind::Busy)
        } else {
            failure(Kind::Failed)
        }
    }
}

/// A process that has a device open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// A lock that somebody holds as long as this lives.
pub type Lock = Box<dyn Any>;

/// Where this machine's programs keep what outlasts a restart.
const STATE: &str = "/var/lib";

/// Everything the command asks of the machine. Paths are absolute, as on the running system.
pub trait System {
    /// Reads a whole text file.
    fn read(&self, path: &Path) -> Result<String, OpError>;

    /// Writes `text` to an existing file by one system call.
    fn write(&self, path: &Path, text: &str) -> Result<(), OpError>;

    /// Creates a folder.
    fn mkdir(&self, path: &Path) -> Result<(), OpError>;

    /// Removes a folder (one of configfs may hold attributes).
    fn rmdir(&self, path: &Path) -> Result<(), OpError>;

    /// Lists the names of the folders, and links to folders, inside `path`, sorted.
    fn folders(&self, path: &Path) -> Result<Vec<String>, OpError>;

    /// Lists the names of everything inside `path`, sorted.
    fn entries(&self, path: &Path) -> Result<Vec<String>, OpError>;

    /// Returns whether there is anything at `path`.
    fn exists(&self, path: &Path) -> bool;

    /// Makes a folder below `/var/lib`, and those above it, unless they are there. A power failure
    /// does not lose them once this has returned.
    fn make_durable_folder(&self, path: &Path) -> Result<(), OpError>;

    /// Makes an empty file, unless it is there. A power failure does not lose it once this has
    /// returned.
    fn make_durable_file(&self, path: &Path) -> Result<(), OpError>;

    /// Removes a file, if it is there. A power failure does not bring it back once this has
    /// returned.
    fn remove_durable_file(&self, path: &Path) -> Result<(), OpError>;

    /// Locks a folder against other processes that do so; returns nothing if one of them has it.
    fn try_lock(&self, path: &Path) -> Result<Option<Lock>, OpError>;

    /// Puts a regular file in place of what was there, all or nothing, and makes its folder if need
    /// be.
    fn replace(&self, path: &Path, text: &str) -> Result<(), OpError>;

    /// Lists the processes that have one of `devices` open, as far as the caller may see them.
    fn openers(&self, devices: &[PathBuf]) -> Vec<Process>;

    /// Mounts configfs at `path`.
    fn mount_configfs(&self, path: &Path) -> Result<(), String>;

    /// Loads a kernel module and what it depends on. The error is a reason to print.
    fn load_module(&self, name: &str) -> Result<(), String>;

    /// Waits until `path` exists, a signal arrives or the time is over; whether `path` exists then.
    fn wait_for(&self, path: &Path, timeout: Duration) -> bool;

    /// Waits a moment for something that cannot be waited for otherwise.
    fn pause(&self, time: Duration);

    /// Returns the time, from an arbitrary beginning.
    fn now(&self) -> Duration;

    /// Tells the user what a command that takes long is waiting for.
    fn progress(&self, text: &str);

    /// Returns whether the user wants this to stop (interrupt, termination, hang-up).
    fn interrupted(&self) -> bool;
}

/// The real machine.
///
/// A changing command first calls [`Machine::hold_signals`]. From then on a signal does not end the
/// process in the middle of its work but is seen by [`System::interrupted`], so that the command
/// can undo what it made.
pub struct Machine {
    root: PathBuf,
    signals: Option<SignalFd>,
    signalled: Cell<bool>,
    started: Instant,
    tells_progress: bool,
}

impl Machine {
    /// Represents the machine whose file tree starts at `root`: `/`, or a folder that tests have
    /// prepared.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            signals: None,
            signalled: Cell::new(false),
            started: Instant::now(),
            tells_progress: false,
        }
    }

    /// Has long waits be told to standard error.
    pub fn tell_progress(&mut self) {
        self.tells_progress = true;
    }

    /// Keeps interrupt, termination and hang-up from ending the process.
    pub fn hold_signals(&mut self) -> Result<(), Error> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGHUP);
        let hold = || -> nix::Result<SignalFd> {
            set.thread_block()?;
            SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        };
        let signals = hold().map_err(|errno| {
            Error::new(
                Kind::Failed,
                format!("cannot hold signals: {}", describe(errno)),
            )
        })?;
        self.signals = Some(signals);
        Ok(())
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn is_whole_system(&self) -> bool {
        self.root == Path::new("/")
    }

    fn wait_for_inner(&self, path: &Path, timeout: Duration) -> nix::Result<bool> {
        let path = self.at(path);
        let deadline = Instant::now() + timeout;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        if let Some(folder) = path.parent() {
            inotify.add_watch(
                folder,
                AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO,
            )?;
        }
        // Looked at after the watch is set, so that nothing is missed in between.
        while !path.exists() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.interrupted() {
                return Ok(false);
            }
            let mut fds = vec![PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
            if let Some(signals) = &self.signals {
                fds.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
            }
            // Rounded up: a wait of less than a millisecond must not become a busy loop.
            let left =
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, left) {
                Ok(_) | Err(Errno::EINTR) => (),
                Err(errno) => return Err(errno),
            }
            match inotify.read_events() {
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => (),
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }
}

impl System for Machine {
    fn read(&self, path: &Path) -> Result<String, OpError> {
        let bytes = fs::read(self.at(path)).map_err(|e| OpError::io(Op::Open, path, &e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), OpError> {
        // Not `fs::write`: that would create the file where it is missing.
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(!self.is_whole_system())
            .open(self.at(path))
            .map_err(|e| OpError::io(Op::Open, path, &e))?;
        file.write_all(text.as_bytes())
            .map_err(|e| OpError::io(Op::Write, path, &e))
    }

    fn mkdir(&self, path: &Path) -> Result<(), OpError> {
        fs::create_dir(self.at(path)).map_err(|e| OpError::io(Op::Mkdir, path, &e))
    }

    fn rmdir(&self, path: &Path) -> Result<(), OpError> {
        fs::remove_dir(self.at(path)).map_err(|e| OpError::io(Op::Rmdir, path, &e))
    }

    fn entries(&self, path: &Path) -> Result<Vec<String>, OpError> {
        let fail = |e| OpError::io(Op::List, path, &e);
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(path)).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            names.push(name.to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn make_durable_folder(&self, path: &Path) -> Result<(), OpError> {
        durable::make_folder(&self.at(path), &self.at(Path::new(STATE)))
            .map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn make_durable_file(&self, path: &Path) -> Result<(), OpError> {
        durable::make_file(&self.at(path)).map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn remove_durable_file(&self, path: &Path) -> Result<(), OpError> {
        durable::remove_file(&self.at(path)).map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Lock>, OpError> {
        match durable::try_lock(&self.at(path)) {
            Ok(lock) => Ok(lock.map(|lock| Box::new(lock) as Lock)),
            Err((op, e)) => Err(OpError::io(op, path, &e)),
        }
    }

    fn folders(&self, path: &Path) -> Result<Vec<String>, OpError> {
        let fail = |e| OpError::io(Op::List, path, &e);
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(path)).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if fs::metadata(entry.path()).is_ok_and(|m| m.is_dir()) {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> bool {
        self.at(path).exists()
    }

    fn replace(&self, path: &Path, text: &str) -> Result<(), OpError> {
        let file = self.at(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(|e| OpError::io(Op::Mkdir, path, &e))?;
        }
        let mut name = file.file_name().unwrap_or(OsStr::new("file")).to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = file.with_file_name(name);
        let put = || -> io::Result<()> {
            let mut new = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&temporary)?;
            new.write_all(text.as_bytes())?;
            new.sync_all()?;
            fs::rename(&temporary, &file)
        };
        put().map_err(|e| {
            let _ = fs::remove_file(&temporary);
            // Of all steps the first is the one that fails for lack of rights.
            OpError::io(Op::Open, path, &e)
        })
    }

    fn openers(&self, devices: &[PathBuf]) -> Vec<Process> {
        let mut found = Vec::new();
        let Ok(processes) = fs::read_dir(self.at(Path::new("/proc"))) else {
            return found;
        };
        for process in processes.flatten() {
            let Some(pid) = process
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let Ok(files) = fs::read_dir(process.path().join("fd")) else {
                continue;
            };
            let opens = files
                .flatten()
                .any(|file| fs::read_link(file.path()).is_ok_and(|to| devices.contains(&to)));
            if opens {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                found.push(Process {
                    pid,
                    name: name.trim_end().to_owned(),
                });
            }
        }
        found.sort_by_key(|process| process.pid);
        found
    }

    fn mount_configfs(&self, path: &Path) -> Result<(), String> {
        if !self.is_whole_system() {
            return Err("this is not the running system".to_owned());
        }
        nix::mount::mount(
            Some("configfs"),
            path,
            Some("configfs"),
            nix::mount::MsFlags::empty(),
            None::<&str>,
        )
        .map_err(describe)
    }

    fn load_module(&self, name: &str) -> Result<(), String> {
        if !self.is_whole_system() {
            return Err("this is not the running system".to_owned());
        }
        match Command::new("modprobe").arg("--").arg(name).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr)
                    .trim()
                    .replace('\n', "; ");
                Err(if stderr.is_empty() {
                    format!("modprobe: {}", output.status)
                } else {
                    stderr
                })
            }
            Err(error) => Err(format!("modprobe: {error}")),
        }
    }

    fn wait_for(&self, path: &Path, timeout: Duration) -> bool {
        self.wait_for_inner(path, timeout)
            .unwrap_or_else(|_| self.exists(path))
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn progress(&self, text: &str) {
        if self.tells_progress {
            // Who does not listen is not told.
            let _ = writeln!(io::stderr(), "hcablk: {text}");
        }
    }

    fn interrupted(&self) -> bool {
        if let Some(signals) = &self.signals {
            if matches!(signals.read_signal(), Ok(Some(_))) {
                self.signalled.set(true);
            }
        }
        self.signalled.get()
    }
}
