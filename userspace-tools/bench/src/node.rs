// SPDX-License-Identifier: GPL-2.0

//! A machine that takes part in an experiment: this one, or one behind a pipe.
//!
//! The pipe carries a JSON object in each line: `{"ask": …}` in one direction, `{"ok": …}` or `{"error": …}` in the
//! other, one answer for each line. When the pipe ends, the part behind it stops its work and undoes its changes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use hcablk::error::{Error, Kind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::stop::Stop;
use crate::worker::{failure, Ask, Output, Worker, WorkerStep, COMMAND_SECONDS};

/// The time limit for the transfer to the other part and back, in addition to the work itself.
const TRANSFER_LIMIT: Duration = Duration::from_secs(60);
/// The time limit of the other part for undoing its changes.
const END: Duration = Duration::from_secs(300);

/// The answer to a request.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Ok(Value),
    Error {
        message: String,
        advice: Option<String>,
        usage: bool,
        not_undone: Vec<String>,
    },
}

impl Answer {
    fn new(done: Result<Value>) -> Self {
        match done {
            Ok(value) => Self::Ok(value),
            Err(error) => Self::Error {
                usage: error.kind == Kind::Usage,
                message: error.message,
                advice: error.advice,
                not_undone: error.not_undone,
            },
        }
    }

    fn result(self) -> Result<Value> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Error {
                message,
                advice,
                usage,
                not_undone,
            } => {
                let mut error = Error::new(if usage { Kind::Usage } else { Kind::Failed }, message);
                error.advice = advice;
                error.not_undone = not_undone;
                Err(error)
            }
        }
    }
}

/// Serves requests from standard input until it ends, and then undoes the changes of these requests.
pub(crate) fn serve(stop: &Stop) -> Result<()> {
    let (sender, lines) = channel();
    let ended = stop.clone();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        ended.set();
    });
    let mut worker = Worker::new(stop);
    while !stop.is_set() {
        let line = match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let done = serde_json::from_str(&line)
            .map_err(|error| Error::new(Kind::Usage, format!("this is not a request: {error}")))
            .and_then(|ask| worker.ask(ask));
        let text = serde_json::to_string(&Answer::new(done)).unwrap_or_default();
        let mut out = std::io::stdout();
        if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    worker.undo(0)
}

/// A machine that takes part.
pub(crate) struct Node {
    how: How,
    stop: Stop,
}

enum How {
    Local(Box<Worker>),
    Remote(Pipe),
}

struct Pipe {
    child: Child,
    to: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Node {
    /// Makes this machine take part.
    pub(crate) fn here(stop: &Stop) -> Self {
        Self {
            how: How::Local(Box::new(Worker::new(stop))),
            stop: stop.clone(),
        }
    }

    /// Starts the other part with a command that carries its standard input and output.
    pub(crate) fn there(argv: &[String], stop: &Stop) -> Result<Self> {
        let cannot = |why: String| {
            Error::new(
                Kind::Connection,
                format!("cannot start the target's part ({}): {why}", argv.join(" ")),
            )
            .advise("This must work without a password, and hcablk-bench must be installed there.")
        };
        let (name, arguments) = argv
            .split_first()
            .ok_or_else(|| cannot("no command".to_owned()))?;
        // ^C in the terminal must not end the transport of the requests that undo changes.
        let child = Command::new(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = child.map_err(|error| cannot(error.to_string()))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = channel();
        if let Some(from) = from {
            thread::spawn(move || {
                for line in BufReader::new(from)
                    .lines()
                    .map_while(std::result::Result::ok)
                {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self {
            how: How::Remote(Pipe { child, to, answers }),
            stop: stop.clone(),
        })
    }

    /// Sends a request, and returns the answer.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, ask: Ask) -> Result<T> {
        let value = match &mut self.how {
            How::Local(worker) => worker.ask(ask)?,
            How::Remote(pipe) => pipe.ask(&ask, &self.stop)?,
        };
        serde_json::from_value(value).map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("cannot understand an answer: {error}"),
            )
        })
    }

    /// Makes a change; the steps `undo` undo it.
    pub(crate) fn change(&mut self, step: WorkerStep, undo: Vec<WorkerStep>) -> Result<()> {
        let text = match &step {
            WorkerStep::Run { argv, .. } => argv.join(" "),
            _ => String::new(),
        };
        let done: Value = self.ask(Ask::Do { step, undo })?;
        match serde_json::from_value::<Output>(done) {
            Ok(output) if output.status != 0 => Err(failure(&text, &output)),
            _ => Ok(()),
        }
    }

    /// Runs a program to its end, successful or not.
    pub(crate) fn run(&mut self, argv: &[String], seconds: u64) -> Result<Output> {
        let step = WorkerStep::Run {
            argv: argv.to_vec(),
            seconds,
        };
        self.ask(Ask::Do {
            step,
            undo: Vec::new(),
        })
    }

    /// Runs `hcablk` with these words and returns its JSON; the steps `undo` undo it.
    pub(crate) fn hcablk(&mut self, words: &[&str], undo: Vec<WorkerStep>) -> Result<Value> {
        let argv: Vec<String> = ["hcablk"]
            .iter()
            .chain(words)
            .chain(&["--json"])
            .map(|&word| word.to_owned())
            .collect();
        let step = WorkerStep::Run {
            argv: argv.clone(),
            seconds: COMMAND_SECONDS,
        };
        let output: Output = self.ask(Ask::Do { step, undo })?;
        if output.status != 0 {
            return Err(failure(&argv.join(" "), &output));
        }
        serde_json::from_str(&output.stdout).map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("{} prints no JSON: {error}", argv.join(" ")),
            )
        })
    }

    /// Undoes the last changes, until this many notes are left.
    pub(crate) fn undo(&mut self, down_to: usize) -> Result<()> {
        self.ask(Ask::Undo { down_to })
    }

    /// Returns the number of notes.
    pub(crate) fn noted(&mut self) -> Result<usize> {
        self.ask(Ask::Noted)
    }

    /// Undoes everything, after success and failure, and ends the other part.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match &mut self.how {
            How::Local(worker) => worker.undo(0),
            How::Remote(pipe) => pipe.finish(),
        }
    }
}

impl Pipe {
    fn ask(&mut self, ask: &Ask, stop: &Stop) -> Result<Value> {
        let gone = || {
            Error::new(Kind::Connection, "the target's part has ended")
                .advise("It undoes its own changes. Its messages are above.")
        };
        stop.check()?;
        let limit = TRANSFER_LIMIT
            + match ask {
                Ask::Do {
                    step: WorkerStep::Run { seconds, .. },
                    ..
                } => Duration::from_secs(*seconds),
                Ask::Undo { .. } => END,
                _ => Duration::from_secs(COMMAND_SECONDS),
            };
        let text = serde_json::to_string(ask).map_err(|error| {
            Error::new(Kind::Failed, format!("cannot encode a request: {error}"))
        })?;
        let to = self.to.as_mut().ok_or_else(gone)?;
        writeln!(to, "{text}")
            .and_then(|()| to.flush())
            .map_err(|_| gone())?;
        let begun = Instant::now();
        loop {
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    let answer: Answer = serde_json::from_str(&line).map_err(|_| {
                        Error::new(
                            Kind::Connection,
                            format!(
                                "the command did not start the target's part; its output: {line}"
                            ),
                        )
                    })?;
                    return answer.result();
                }
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => stop.check()?,
            }
            if begun.elapsed() > limit {
                // A late answer would be taken for the answer to the next request.
                self.to = None;
                return Err(Error::new(
                    Kind::Connection,
                    "the target's part does not answer",
                ));
            }
        }
    }

    /// Ends the other part, which undoes its changes and reports those that it cannot undo.
    fn finish(&mut self) -> Result<()> {
        self.to = None;
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    let message = format!(
                        "the target's part could not undo all that it had changed ({status})"
                    );
                    return Err(Error::new(Kind::Failed, message).advise("Its messages are above."));
                }
                Ok(None) if begun.elapsed() < END => thread::sleep(Duration::from_millis(20)),
                _ => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    let message =
                        "the target's part has not ended; its changes may still be in place";
                    return Err(Error::new(Kind::Failed, message)
                        .advise("On the target: hcablk target list"));
                }
            }
        }
    }
}
