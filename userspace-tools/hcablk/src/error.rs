// SPDX-License-Identifier: GPL-2.0

//! The one error type: what went wrong, what to do about it, and the exit code that goes with it.
//!
//! All failures have one form: what failed and why, in one sentence; then the advice. The sentence begins with a small
//! letter, since it follows `hcablk: `, and has no full stop.

use nix::errno::Errno;
use serde::Serialize;

/// The class of a failure: decides the exit code, and is `kind` in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A failure without a class of its own.
    Failed,
    /// The options contradict each other, in a way that the parser does not find; or the configuration has a mistake.
    Usage,
    /// The named device, volume, host or port does not exist.
    NotFound,
    /// The object is in use, or in the middle of a change.
    Busy,
    /// The object exists, with other settings.
    Exists,
    /// The target was not reached, or turned the connection down.
    Connection,
    /// This machine lacks something: module, configfs, rights, host id.
    Setup,
    /// A signal arrived before the command was done.
    Interrupted,
}

impl Kind {
    /// Returns the process's exit code. Most wrong usage is found by the parser.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Busy => 4,
            Self::Exists => 5,
            Self::Connection => 6,
            Self::Setup => 7,
            Self::Interrupted => 130,
        }
    }

    /// Returns the class of failure that an exit code of this command stands for.
    pub fn of_exit_code(code: i32) -> Self {
        let all = [
            Self::Usage,
            Self::NotFound,
            Self::Busy,
            Self::Exists,
            Self::Connection,
            Self::Setup,
            Self::Interrupted,
        ];
        let is_it = |kind: &Self| i32::from(kind.exit_code()) == code;
        all.into_iter().find(is_it).unwrap_or(Self::Failed)
    }

    /// Returns the advice for failures that carry none of their own.
    const fn usual_advice(self) -> &'static str {
        match self {
            Self::Failed => SEE_THE_LOG,
            Self::Usage => "`hcablk --help` lists the commands; with --help each describes its arguments.",
            Self::NotFound => "`hcablk list` and `hcablk target list` show the existing objects.",
            Self::Busy => "Try again when it is not in use; `hcablk list` and `hcablk target list` show the existing objects.",
            Self::Exists => "`hcablk list --json` and `hcablk target list --json` show its settings.",
            Self::Connection => "Is the target up, and does it listen? There: hcablk target list. Here: hcablk check.",
            Self::Setup => "`hcablk check` says what this machine lacks.",
            Self::Interrupted => "Its changes are undone, unless its help says otherwise: run the command again.",
        }
    }
}

/// A failed command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct Error {
    /// The class of the failure.
    pub kind: Kind,
    /// One sentence: what failed and why.
    pub message: String,
    /// The advice: what the user can do now. Every failure that is shown has some; see `advice_or_usual()`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The name of the kernel's error code (`ECONNREFUSED`), if the kernel returned one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<String>,
    /// Changes of this command that it could not undo.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(default))]
    pub not_undone: Vec<String>,
    /// Completed parts of a command for several objects, which stay although others failed.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    #[cfg_attr(feature = "schemars", schemars(default))]
    pub done: Box<[String]>,
}

/// The result of every function of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes a failure without advice.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            advice: None,
            errno: None,
            not_undone: Vec::new(),
            done: Box::default(),
        }
    }

    /// Adds advice.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Adds the kernel's error code.
    #[must_use]
    pub fn with_errno(mut self, errno: Errno) -> Self {
        self.errno = Some(format!("{errno:?}"));
        self
    }

    /// Makes the failure of a command that a signal stopped.
    pub fn interrupted() -> Self {
        Self::new(Kind::Interrupted, "interrupted")
    }

    /// Merges the failures of several objects into one; its class is that of the first. Returns `None` without
    /// failures.
    pub fn together(failures: Vec<Self>) -> Option<Self> {
        let messages: Vec<_> = failures.iter().map(|one| one.message.clone()).collect();
        let mut advice: Vec<String> = Vec::new();
        for one in failures.iter().filter_map(|one| one.advice.as_ref()) {
            if !advice.contains(one) {
                advice.push(one.clone());
            }
        }
        let not_undone = failures
            .iter()
            .flat_map(|one| one.not_undone.clone())
            .collect();
        let first = failures.into_iter().next()?;
        Some(Self {
            message: messages.join("; "),
            advice: (!advice.is_empty()).then(|| advice.join("\n")),
            not_undone,
            ..first
        })
    }

    /// Returns the advice, or the usual advice for the failure's class.
    pub fn advice_or_usual(&self) -> String {
        let advice = self.advice.clone();
        advice.unwrap_or_else(|| self.kind.usual_advice().to_owned())
    }

    /// Returns the text for a terminal: what failed and why, what was not undone, what was done nevertheless, the
    /// advice.
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!("hcablk: {}", self.message)];
        lines.extend(
            self.not_undone
                .iter()
                .map(|what| format!("  could not undo: {what}")),
        );
        lines.extend(self.done.iter().map(|what| format!("  done: {what}")));
        lines.extend(
            self.advice_or_usual()
                .lines()
                .map(|line| format!("  {line}")),
        );
        lines.join("\n") + "\n"
    }
}

/// The advice when there is no RDMA device, on either side.
pub const NO_RDMA_DEVICE: &str = "\
This host has no RDMA device with a route to the address (`rdma link show`).
Over plain Ethernet, soft-RoCE makes one: rdma link add rxe0 type rxe netdev eth0";

/// The advice for a failure for which there is no better one.
pub const SEE_THE_LOG: &str = "The kernel's log may say more: dmesg | grep hcablk";

/// Adds the driver's reason to a message, if there is one.
pub fn with_reason(message: String, reason: Option<String>) -> String {
    match reason {
        Some(reason) => format!("{message}: {reason}"),
        None => message,
    }
}

/// Describes an error as `connection refused (ECONNREFUSED)`: the C library's words, and the name
/// to search for.
pub fn describe(errno: Errno) -> String {
    format!("{} ({errno:?})", errno.desc())
}
