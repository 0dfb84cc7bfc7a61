// SPDX-License-Identifier: GPL-2.0

//! The audit log: one line for each command that changes something, even if it failed, and for each command that shows
//! a key.
//!
//! The line is sent to the journal of systemd, with fields of its own, or to syslog, facility authpriv. The line never
//! contains a key: no command takes a key as an argument, and text that looks like a key is replaced.

use crate::cli::{Command, ConfigCommand, KeyCommand, PathCommand, TargetCommand};
use crate::error::{Error, Kind};
use crate::output::{Outcome, Report};
use crate::report::without_keys;
use crate::system::System;

/// The id of these entries in the journal: `journalctl MESSAGE_ID=…`. It is an interface and stays.
pub const MESSAGE_ID: &str = "b2ce5f3eb2b94d0a9a3e1d8f0c7a4e15";
/// The name of the program in the logs.
pub const IDENTIFIER: &str = "hcablk";
/// The facility authpriv, and the priority notice.
pub const FACILITY: u8 = 10;
/// See [`FACILITY`].
pub const PRIORITY: u8 = 5;
/// The most characters of the details in a line.
const LONGEST: usize = 3000;
/// The most characters of the command in a line: it may name many hosts.
const LONGEST_COMMAND: usize = 1000;
/// The most characters of the command in its field: the journal refuses a datagram that its socket has no room for.
const LONGEST_FIELD: usize = 30_000;

/// The process that runs a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The words of the command line, without the program's name.
    pub words: Vec<String>,
    /// The process's user.
    pub uid: u32,
    /// The user who logged in, which neither `su` nor `sudo` changes; `None` for a service.
    pub login_uid: Option<u32>,
    /// The user who called `sudo`, as `sudo` reports it.
    pub sudo_user: Option<String>,
    /// The address from which the user logged in through ssh, as sshd reports it.
    pub ssh_client: Option<String>,
    /// The name of the parent process.
    pub parent: Option<String>,
    /// Whether the parent process runs this program, too, as the same user.
    pub is_helper: bool,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The line.
    pub message: String,
    /// The fields in the journal besides the line, each without a line break.
    pub fields: Vec<(&'static str, String)>,
}

/// Returns the name of a command whose runs are recorded.
fn action(command: &Command) -> Option<&'static str> {
    Some(match command {
        Command::Connect(_) => "connect",
        Command::Disconnect(_) => "disconnect",
        Command::AcknowledgeLoss(_) => "acknowledge-loss",
        Command::Path(PathCommand::Add(_)) => "path add",
        Command::Path(PathCommand::Remove(_)) => "path remove",
        Command::Path(PathCommand::Sync(_)) => "path sync",
        Command::Path(PathCommand::Policy(_)) => "path policy",
        Command::Config(ConfigCommand::Save(_)) => "config save",
        Command::Apply(args) if !args.how.dry_run => "apply",
        Command::Enroll(args) if !args.dry_run => "enroll",
        Command::Times(args) if args.measure.is_some() => "times",
        Command::HostId(args) if args.set.is_some() || args.generate => "host-id",
        Command::Key(KeyCommand::Generate(_)) => "key generate",
        Command::Key(KeyCommand::Show(_)) => "key show",
        Command::Key(KeyCommand::Add(args)) if !args.dry_run => "key add",
        Command::Key(KeyCommand::Retire(_)) => "key retire",
        Command::Key(KeyCommand::Apply(_)) => "key apply",
        Command::Target(command) => return target_action(command),
        _ => return None,
    })
}

fn target_action(command: &TargetCommand) -> Option<&'static str> {
    Some(match command {
        TargetCommand::Export(_) => "target export",
        TargetCommand::Unexport(_) => "target unexport",
        TargetCommand::Allow(_) => "target allow",
        TargetCommand::NameHost(_) => "target name-host",
        TargetCommand::Forbid(_) => "target forbid",
        TargetCommand::Evict(_) => "target evict",
        TargetCommand::Admit(_) => "target admit",
        TargetCommand::Listen(_) => "target listen",
        TargetCommand::Unlisten(_) => "target unlisten",
        TargetCommand::Apply(args) if !args.how.dry_run => "target apply",
        TargetCommand::Unapply(_) => "target unapply",
        TargetCommand::Times(args) if args.measure.is_some() => "target times",
        _ => return None,
    })
}

/// Records that a command has run, if it is one whose runs are recorded.
pub fn record(system: &dyn System, command: &Command, result: &Result<Outcome, Error>) {
    let Some(action) = action(command) else {
        return;
    };
    let caller = system.caller();
    // This process helps a command that is recorded. A helper itself is recorded only if that command has ended before.
    let is_part = matches!(command, Command::Target(TargetCommand::Unexport(args)) if args.here);
    if is_part && caller.is_helper {
        return;
    }
    let is_retry = matches!(command, Command::Target(TargetCommand::Apply(args)) if args.retry);
    let ended = Ended::of(result);
    // A timer retries every minute.
    let is_idle = match result {
        Ok(outcome) => outcome.report.is_changed() == Some(false),
        Err(error) => error.kind == Kind::Usage,
    };
    if is_retry && is_idle {
        return;
    }
    system.audit(&entry(action, ended, result, &caller));
}

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Done,
    Unchanged,
    /// With a result, but with an exit code other than 0.
    Incomplete(Kind),
    Failed(Kind),
}

impl Ended {
    fn of(result: &Result<Outcome, Error>) -> Self {
        match result {
            Err(error) => Self::Failed(error.kind),
            Ok(Outcome {
                exit: Some(kind), ..
            }) => Self::Incomplete(*kind),
            Ok(outcome) => match outcome.report.is_changed() {
                Some(false) => Self::Unchanged,
                _ => Self::Done,
            },
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unchanged => "unchanged",
            Self::Incomplete(_) => "incomplete",
            Self::Failed(_) => "failed",
        }
    }

    fn exit_code(self) -> u8 {
        match self {
            Self::Done | Self::Unchanged => 0,
            Self::Incomplete(kind) | Self::Failed(kind) => kind.exit_code(),
        }
    }
}

fn entry(action: &str, ended: Ended, result: &Result<Outcome, Error>, caller: &Caller) -> Entry {
    let words: Vec<_> = caller.words.iter().map(|word| quoted(word)).collect();
    let command = one_line(&words.join(" "));
    let mut message = format!("{}: {}", cut(&command, LONGEST_COMMAND), ended.word());
    let details = one_line(&details(result));
    if !details.is_empty() {
        message.push_str(&format!(": {}", cut(&details, LONGEST)));
    }
    let mut fields = vec![
        ("HCABLK_ACTION", action.to_owned()),
        ("HCABLK_COMMAND", cut(&command, LONGEST_FIELD)),
        ("HCABLK_OUTCOME", ended.word().to_owned()),
        ("HCABLK_EXIT_CODE", ended.exit_code().to_string()),
        ("HCABLK_UID", caller.uid.to_string()),
    ];
    let mut who = vec![format!("uid {}", caller.uid)];
    let mut add = |field, word: &str, value: Option<String>| {
        if let Some(value) = value.as_deref().map(one_line) {
            who.push(format!("{word} {value}"));
            fields.push((field, value));
        }
    };
    let login = caller.login_uid.map(|uid| uid.to_string());
    add("HCABLK_LOGIN_UID", "login uid", login);
    add("HCABLK_SUDO_USER", "sudo user", caller.sudo_user.clone());
    add("HCABLK_SSH_CLIENT", "ssh from", caller.ssh_client.clone());
    add("HCABLK_PARENT", "called by", caller.parent.clone());
    Entry {
        message: format!("{message} ({})", who.join(", ")),
        fields,
    }
}

/// Returns the changes that a command made, or why it failed. Results of commands that only show something are left
/// out: they may contain a key.
fn details(result: &Result<Outcome, Error>) -> String {
    match result {
        Err(error) => {
            let mut text = error.message.clone();
            for (what, changes) in [("done", &error.done[..]), ("not undone", &error.not_undone)] {
                if !changes.is_empty() {
                    text.push_str(&format!("; {what}: {}", changes.join(", ")));
                }
            }
            text
        }
        Ok(outcome) => match &outcome.report {
            Report::Done { .. } | Report::Applied { .. } | Report::HostId { .. } => {
                outcome.report.to_string()
            }
            _ => String::new(),
        },
    }
}

/// Returns a text as one line, without keys and without control characters, which a terminal would obey.
fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let text = without_keys(&lines.join("; "));
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Returns at most `most` characters of a text, and marks the cut.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns a word of a command line, in quotes if it has other than plain characters.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("{word:?}")
    }
}

impl Entry {
    /// Returns the entry in the format of the journal's socket.
    pub fn to_journal(&self, pid: u32) -> String {
        let mut lines = vec![
            format!("MESSAGE={}", self.message),
            format!("MESSAGE_ID={MESSAGE_ID}"),
            format!("PRIORITY={PRIORITY}"),
            format!("SYSLOG_FACILITY={FACILITY}"),
            format!("SYSLOG_IDENTIFIER={IDENTIFIER}"),
            format!("SYSLOG_PID={pid}"),
        ];
        lines.extend(
            self.fields
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        lines.join("\n") + "\n"
    }

    /// Returns the entry in the format of syslog's socket.
    pub fn to_syslog(&self, pid: u32) -> String {
        let priority = FACILITY * 8 + PRIORITY;
        format!("<{priority}>{IDENTIFIER}[{pid}]: {}", self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(words: &[&str]) -> Caller {
        Caller {
            words: words.iter().map(ToString::to_string).collect(),
            ..Caller::default()
        }
    }

    #[test]
    fn an_entry_is_one_line_without_keys() {
        let key = format!("hcablk-key-1:{}-12345678", "a5".repeat(32));
        let error = Error::new(Kind::Failed, format!("two\nlines \x1b[31m {key}"));
        let failed = Err(error);
        let caller = Caller {
            sudo_user: Some("al\nHCABLK_UID=0".to_owned()),
            ..caller(&["key", "add", &key, "a b\n"])
        };
        let entry = entry("key add", Ended::of(&failed), &failed, &caller);
        assert_eq!(
            entry.message,
            "key add [removed] \"a b\\n\": failed: two; lines ?[31m [removed] \
             (uid 0, sudo user al; HCABLK_UID=0)"
        );
        for (name, value) in &entry.fields {
            assert!(!value.contains('\n') && !value.contains("a5a5"), "{name}");
        }
        assert_eq!(entry.to_journal(7).matches("\nHCABLK_UID=").count(), 1);
    }

    #[test]
    fn the_outcome_and_the_caller_are_never_cut_off() {
        let long = "x".repeat(10_000);
        let failed = Err(Error::new(Kind::Failed, long.clone()));
        let entry = entry("connect", Ended::of(&failed), &failed, &caller(&[&long]));
        assert!(entry.message.contains("x…: failed: x"));
        assert!(entry.message.ends_with("x… (uid 0)"));
        assert!(entry.message.len() < LONGEST + LONGEST_COMMAND + 40);
        assert!(entry.fields.contains(&("HCABLK_COMMAND", long)));
    }

    #[test]
    fn a_failure_names_the_changes_that_stay() {
        let failed = Err(Error {
            done: vec!["data is unexported".to_owned()].into(),
            not_undone: vec!["a".to_owned(), "b".to_owned()],
            ..Error::new(Kind::Failed, "log is busy")
        });
        let entry = entry(
            "target unexport",
            Ended::of(&failed),
            &failed,
            &caller(&["x"]),
        );
        assert_eq!(
            entry.message,
            "x: failed: log is busy; done: data is unexported; not undone: a, b (uid 0)"
        );
    }

    #[test]
    fn the_formats_of_both_logs() {
        let entry = Entry {
            message: "m".to_owned(),
            fields: vec![("HCABLK_UID", "0".to_owned())],
        };
        assert_eq!(entry.to_syslog(7), "<85>hcablk[7]: m");
        let text = entry.to_journal(7);
        assert!(text.starts_with("MESSAGE=m\nMESSAGE_ID="), "{text}");
        assert!(text.ends_with("SYSLOG_PID=7\nHCABLK_UID=0\n"), "{text}");
    }
}
