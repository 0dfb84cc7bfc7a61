// SPDX-License-Identifier: GPL-2.0

//! The machine as this command sees it.
//!
//! Every change of the machine, and every question to it, goes through [`System`]. [`Machine`] is the real one; tests
//! replace it with an imitation of the kernel.

mod audit;
mod converse;
mod durable;
mod listen;
mod machine;
mod programs;
mod replace;
mod selves;

use std::any::Any;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use crate::audit::{Caller, Entry};
use crate::error::{describe, Error, Kind};

pub use converse::{converse, Answer};
pub use listen::{Clock, KernelEvent, Listen, Listener, Tracepoint};
pub use machine::Machine;
pub use selves::SYSROOT;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Open a file, for reading or writing.
    Open,
    /// Read an open file.
    Read,
    /// Write to an open file: the error is the driver's own.
    Write,
    /// Make a folder.
    Mkdir,
    /// Remove a folder.
    Rmdir,
    /// List a folder.
    List,
    /// Remove a file.
    Remove,
    /// Write changes to the drive.
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
    /// The operation.
    pub op: Op,
    /// The file or folder.
    pub path: PathBuf,
    /// The kernel's error code.
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

    /// Returns whether the caller lacks rights. A refused *write* is the driver's decision and does not count.
    pub fn lacks_rights(&self) -> bool {
        self.op != Op::Write && matches!(self.errno, Errno::EACCES | Errno::EPERM)
    }

    /// Returns whether the file or folder does not exist (any more).
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
    /// The id of the process.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
}

/// A lock, held until this is dropped.
pub type Lock = Box<dyn Any>;

/// All calls of the command to the machine. Paths are absolute, as on the running system.
pub trait System {
    /// Reads a whole text file.
    fn read(&self, path: &Path) -> Result<String, OpError>;

    /// Writes `text` to an existing file with one system call.
    fn write(&self, path: &Path, text: &str) -> Result<(), OpError>;

    /// Creates a folder.
    fn mkdir(&self, path: &Path) -> Result<(), OpError>;

    /// Removes an empty folder, or a folder of configfs that holds only attributes.
    fn rmdir(&self, path: &Path) -> Result<(), OpError>;

    /// Lists the names of the folders, and links to folders, inside `path`, sorted.
    fn folders(&self, path: &Path) -> Result<Vec<String>, OpError>;

    /// Lists the names of everything inside `path`, sorted.
    fn entries(&self, path: &Path) -> Result<Vec<String>, OpError>;

    /// Returns whether a file or folder exists at `path`.
    fn exists(&self, path: &Path) -> bool;

    /// Makes a folder, and its parents below `top`, unless they exist. A power failure does not lose them once this has
    /// returned.
    fn make_durable_folder(&self, path: &Path, top: &Path) -> Result<(), OpError>;

    /// Makes an empty file, unless it exists. A power failure does not lose it once this has returned.
    fn make_durable_file(&self, path: &Path) -> Result<(), OpError>;

    /// Removes a file, if it exists. A power failure does not restore it once this has returned.
    fn remove_durable_file(&self, path: &Path) -> Result<(), OpError>;

    /// Locks a folder against other processes that lock it; returns `None` if one of them holds the lock.
    fn try_lock(&self, path: &Path) -> Result<Option<Lock>, OpError>;

    /// Replaces a regular file as a whole or not at all, and makes its folder if need be. The new file has the owner
    /// and the mode of the former one. Fails at a symbolic link that a different user made.
    fn replace(&self, path: &Path, text: &str) -> Result<(), OpError>;

    /// Like [`Self::replace`], with a file that only the caller can read.
    fn replace_secret(&self, path: &Path, text: &str) -> Result<(), OpError>;

    /// Makes a file that only the caller can read. Fails if it exists.
    fn create(&self, path: &Path, bytes: &[u8]) -> Result<(), OpError>;

    /// Lists the processes that have one of `devices` open, as far as the caller may see them.
    fn openers(&self, devices: &[PathBuf]) -> Vec<Process>;

    /// Mounts configfs at `path`.
    fn mount_configfs(&self, path: &Path) -> Result<(), String>;

    /// Runs a program and waits for its end; returns what it has printed. The error is a reason to print.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String>;

    /// Runs a program for at most `limit`, then kills it and waits some seconds for its end; returns what it has
    /// printed. A program that the kernel does not let end is left behind. The error is a reason to print.
    fn run_within(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<String, String>;

    /// Runs a program that reads `input`, and may ask the user at the terminal; returns how it has ended and what it
    /// has printed. Input and output may contain secrets, the arguments must not. The error is a reason to print.
    fn converse(&self, program: &str, arguments: &[&str], input: &str) -> Result<Answer, String>;

    /// Runs this program in parallel, once with each of these lists of arguments, for at most `timeout`, or until the
    /// user stops the command. Returns how each process has ended; `None` for one that continues because the kernel
    /// does not let it end.
    fn run_selves(
        &self,
        lines: &[Vec<String>],
        timeout: Option<Duration>,
    ) -> Vec<Option<Result<(), Error>>>;

    /// Loads a kernel module and its dependencies. The error is a reason to print.
    fn load_module(&self, name: &str) -> Result<(), String>;

    /// Waits until `path` exists, a signal arrives or the time is over; returns whether `path` exists then.
    fn wait_for(&self, path: &Path, timeout: Duration) -> bool;

    /// Waits for this time; for callers that have no event to wait for.
    fn pause(&self, time: Duration);

    /// Returns the time since an arbitrary moment.
    fn now(&self) -> Duration;

    /// Shows the user what a slow command is waiting for.
    fn progress(&self, text: &str);

    /// Shows the user a remark of a running command, in addition to its output.
    fn remark(&self, text: &str);

    /// Returns whether the user wants to stop the command (interrupt, termination, hang-up).
    fn interrupted(&self) -> bool;

    /// Returns the current time on both clocks.
    fn clock(&self) -> Clock;

    /// Starts to listen to the kernel's events; also returns notes on the sources that are not available.
    fn listen(&self, wanted: &Listen) -> Result<(Box<dyn Listener>, Vec<String>), Error>;

    /// Reads a file that is not text, or not only text.
    fn read_bytes(&self, path: &Path) -> Result<Vec<u8>, OpError>;

    /// Follows all links in `path`; `None` if it does not exist.
    fn real_path(&self, path: &Path) -> Option<PathBuf>;

    /// Returns the access rights of the file at `path`, and the id of its owner.
    fn rights(&self, path: &Path) -> Option<Rights>;

    /// Returns the process that runs the command, and its user.
    fn caller(&self) -> Caller;

    /// Adds an entry to the audit log, if this machine has a journal or syslog.
    fn audit(&self, entry: &Entry);

    /// Returns the release of the running kernel.
    fn kernel_release(&self) -> String;

    /// Returns the name of this machine.
    fn host_name(&self) -> String;
}

/// The access rights of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The lower twelve bits of the file's mode.
    pub mode: u32,
    /// The id of the owner.
    pub owner: u32,
}
