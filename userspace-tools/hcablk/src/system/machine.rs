// SPDX-License-Identifier: GPL-2.0

//! The machine that the command runs on, or a folder that represents it.

use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::time::{clock_gettime, ClockId};

use super::{
    audit, converse, durable, listen, programs, replace, selves, Answer, Clock, Listen, Listener,
    Lock, Op, OpError, Process, Rights, System,
};
use crate::audit::{Caller, Entry};
use crate::error::{describe, Error, Kind};

/// The folder of the files that hold the locks of folders.
const LOCKS: &str = "/run/hcablk/lock";

/// The real machine.
///
/// A changing command first calls [`Machine::hold_signals`]. From then on a signal does not end the
/// process in the middle of its work: [`System::interrupted`] reports it, so that the command can
/// undo its changes.
pub struct Machine {
    root: PathBuf,
    signals: Option<SignalFd>,
    signalled: Cell<bool>,
    started: Instant,
    reports_progress: bool,
}

impl Machine {
    /// Creates the machine whose file tree starts at `root`: `/`, or a folder that tests have
    /// prepared.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            signals: None,
            signalled: Cell::new(false),
            started: Instant::now(),
            reports_progress: false,
        }
    }

    /// Reports long waits on standard error from now on.
    pub fn report_progress(&mut self) {
        self.reports_progress = true;
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
        // A path from the user may be relative.
        if self.is_whole_system() {
            return path.to_owned();
        }
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
        // The check follows the start of the watch, so that no change is missed in between.
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

    fn make_durable_folder(&self, path: &Path, top: &Path) -> Result<(), OpError> {
        durable::make_folder(&self.at(path), &self.at(top))
            .map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn make_durable_file(&self, path: &Path) -> Result<(), OpError> {
        durable::make_file(&self.at(path)).map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn remove_durable_file(&self, path: &Path) -> Result<(), OpError> {
        durable::remove_file(&self.at(path)).map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn try_lock(&self, path: &Path) -> Result<Option<Lock>, OpError> {
        // The names of lock files are unique: no name that the command makes has a colon.
        let relative = path.strip_prefix("/").unwrap_or(path);
        let name = relative.to_string_lossy().replace('/', ":");
        let file = Path::new(LOCKS).join(name);
        match durable::try_lock(&self.at(path), &self.at(&file)) {
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
        replace::replace(&self.at(path), text, replace::Mode::Keep)
            .map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn replace_secret(&self, path: &Path, text: &str) -> Result<(), OpError> {
        replace::replace(&self.at(path), text, replace::Mode::Secret)
            .map_err(|(op, e)| OpError::io(op, path, &e))
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> Result<(), OpError> {
        replace::create(&self.at(path), bytes).map_err(|(op, e)| OpError::io(op, path, &e))
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

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        if !self.is_whole_system() {
            return Err("this is not the running system".to_owned());
        }
        match Command::new(program).args(arguments).output() {
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr)
                    .trim()
                    .replace('\n', "; ");
                Err(if stderr.is_empty() {
                    format!("{program}: {}", output.status)
                } else {
                    stderr
                })
            }
            Err(error) => Err(format!("{program}: {error}")),
        }
    }

    fn run_within(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<String, String> {
        if !self.is_whole_system() {
            return Err("this is not the running system".to_owned());
        }
        programs::run(program, arguments, limit)
    }

    fn converse(&self, program: &str, arguments: &[&str], input: &str) -> Result<Answer, String> {
        converse::converse(program, arguments, input)
    }

    fn run_selves(
        &self,
        lines: &[Vec<String>],
        timeout: Option<Duration>,
    ) -> Vec<Option<Result<(), Error>>> {
        selves::run(&self.root, lines, timeout, || self.interrupted())
    }

    fn load_module(&self, name: &str) -> Result<(), String> {
        self.run("modprobe", &["--", name]).map(drop)
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
        if self.reports_progress {
            // A closed standard error is not an error.
            let _ = writeln!(io::stderr(), "hcablk: {text}");
        }
    }

    fn remark(&self, text: &str) {
        let _ = writeln!(io::stderr(), "hcablk: {text}");
    }

    fn clock(&self) -> Clock {
        let read = |id| clock_gettime(id).map(Duration::from).unwrap_or_default();
        Clock {
            real: read(ClockId::CLOCK_REALTIME),
            mono: read(ClockId::CLOCK_MONOTONIC),
        }
    }

    fn listen(&self, wanted: &Listen) -> Result<(Box<dyn Listener>, Vec<String>), Error> {
        let signals = self
            .signals
            .as_ref()
            .and_then(|signals| signals.as_fd().try_clone_to_owned().ok());
        let (ears, notes) = listen::EventSources::new(&self.root, wanted, signals)?;
        Ok((Box::new(ears), notes))
    }

    fn read_bytes(&self, path: &Path) -> Result<Vec<u8>, OpError> {
        fs::read(self.at(path)).map_err(|e| OpError::io(Op::Open, path, &e))
    }

    fn real_path(&self, path: &Path) -> Option<PathBuf> {
        let real = fs::canonicalize(self.at(path)).ok()?;
        let root = fs::canonicalize(&self.root).ok()?;
        let inside = real.strip_prefix(root).ok()?;
        Some(Path::new("/").join(inside))
    }

    fn rights(&self, path: &Path) -> Option<Rights> {
        let metadata = fs::metadata(self.at(path)).ok()?;
        Some(Rights {
            mode: metadata.mode() & 0o7777,
            owner: metadata.uid(),
        })
    }

    fn caller(&self) -> Caller {
        audit::caller(self)
    }

    fn audit(&self, entry: &Entry) {
        if let Err(error) = audit::write(entry, |path| self.at(path)) {
            self.remark(&format!(
                "the audit log does not record this command: {error}"
            ));
        }
    }

    fn kernel_release(&self) -> String {
        let text = self.read(Path::new("/proc/sys/kernel/osrelease"));
        text.unwrap_or_default().trim().to_owned()
    }

    fn host_name(&self) -> String {
        let text = self.read(Path::new("/proc/sys/kernel/hostname"));
        text.unwrap_or_default().trim().to_owned()
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
