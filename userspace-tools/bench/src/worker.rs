// SPDX-License-Identifier: GPL-2.0

//! The steps of an experiment on a machine, and how they are undone.
//!
//! Every change has steps that undo it, which are noted *before* the change is made and also succeed without the
//! change. They run in reverse order at the end, on success and on failure.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hcablk::error::{Error, Kind, Result};
use nix::sys::signal::{killpg, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::drive;
use crate::facts;
use crate::memory_load::MemoryLoad;
use crate::stop::Stop;

/// The time limit of an ordinary command.
pub(crate) const COMMAND_SECONDS: u64 = 120;

/// A request to a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub(crate) enum Ask {
    /// The facts of the machine.
    Facts,
    /// Checks a drive; with `overwrite` also that it has no valuable content.
    Drive { path: String, overwrite: bool },
    /// Notes the steps that undo a change, and makes the change.
    Do {
        step: WorkerStep,
        undo: Vec<WorkerStep>,
    },
    /// Undoes the last changes, until this many notes are left.
    Undo { down_to: usize },
    /// Returns the number of notes.
    Noted,
    /// Reads a small text file: one of the kernel, or a recording.
    Read { path: String },
    /// The checksum of a part of a drive.
    Digest {
        path: String,
        offset: u64,
        length: u64,
    },
    /// Kernel messages since the last time.
    Log,
    /// Begins a memory-bound computation on this many threads.
    LoadMemory { threads: usize },
    /// The rate of the computation since its start or the last call, in bytes per second.
    MemoryRate,
    /// Ends the memory-bound computation.
    UnloadMemory,
}

/// One change of a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub(crate) enum WorkerStep {
    /// Runs a program to its end.
    Run { argv: Vec<String>, seconds: u64 },
    /// Starts a program that keeps running.
    Start { argv: Vec<String> },
    /// Ends the program that was started last.
    EndStarted,
    /// Writes to a file of the kernel.
    Write { path: String, text: String },
    /// Makes a directory.
    Mkdir { path: String },
    /// Removes a directory, if it exists.
    Rmdir { path: String },
    /// Makes a symbolic link.
    Link { to: String, path: String },
    /// Removes a link or file, if it exists.
    Unlink { path: String },
}

impl WorkerStep {
    /// Makes a step that runs a program.
    pub(crate) fn run(argv: &[&str]) -> Self {
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        Self::Run {
            argv,
            seconds: COMMAND_SECONDS,
        }
    }
}

/// Returns the step that unloads a module, if it is loaded.
pub(crate) fn unload(module: &str) -> WorkerStep {
    WorkerStep::run(&[
        "sh",
        "-c",
        &format!("[ ! -d /sys/module/{module} ] || modprobe -r {module}"),
    ])
}

/// The result and the output of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Output {
    /// The exit code; 128 + N after signal N.
    pub(crate) status: i32,
    /// The program's standard output.
    pub(crate) stdout: String,
    /// The program's standard error.
    pub(crate) stderr: String,
}

/// Carries out the steps of an experiment on its own machine.
pub(crate) struct Worker {
    stop: Stop,
    undo: Vec<WorkerStep>,
    started: Vec<Child>,
    memory: Option<MemoryLoad>,
    log: facts::KernelLog,
}

impl Worker {
    /// Starts to work on this machine, until `stop` is set.
    pub(crate) fn new(stop: &Stop) -> Self {
        Self {
            stop: stop.clone(),
            undo: Vec::new(),
            started: Vec::new(),
            memory: None,
            log: facts::KernelLog::open(),
        }
    }

    /// Carries out a request.
    pub(crate) fn ask(&mut self, ask: Ask) -> Result<Value> {
        match ask {
            Ask::Facts => to_value(&facts::of_this_machine(&self.stop)),
            Ask::Drive { path, overwrite } => {
                to_value(&drive::check(&path, overwrite, &self.stop)?)
            }
            Ask::Do { step, undo } => {
                self.undo.extend(undo.into_iter().rev());
                self.step(&step, &self.stop.clone())
            }
            Ask::Undo { down_to } => {
                self.undo(down_to)?;
                Ok(Value::Null)
            }
            Ask::Noted => Ok(json!(self.undo.len())),
            Ask::Read { path } => Ok(json!(read(&path)?)),
            Ask::Digest {
                path,
                offset,
                length,
            } => Ok(json!(drive::digest(&path, offset, length)?)),
            Ask::Log => Ok(json!(self.log.new_lines())),
            Ask::LoadMemory { threads } => {
                self.memory = Some(MemoryLoad::start(threads));
                Ok(Value::Null)
            }
            Ask::MemoryRate => match &mut self.memory {
                Some(load) => Ok(json!(load.rate())),
                None => Err(Error::new(Kind::Failed, "no memory-bound computation runs")),
            },
            Ask::UnloadMemory => {
                self.memory = None;
                Ok(Value::Null)
            }
        }
    }

    /// Carries out the noted steps, the last first, until this many are left. Continues after a failure.
    pub(crate) fn undo(&mut self, down_to: usize) -> Result<()> {
        let mut failed = Vec::new();
        while self.undo.len() > down_to {
            let Some(step) = self.undo.pop() else { break };
            // Undoing is not stopped half-way.
            let done = self.step(&step, &Stop::default()).and_then(|value| {
                match serde_json::from_value::<Output>(value) {
                    Ok(output) if output.status != 0 => Err(failure(&describe(&step), &output)),
                    _ => Ok(()),
                }
            });
            if let Err(error) = done {
                failed.push(format!("{}: {}", describe(&step), error.message));
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        let mut error = Error::new(Kind::Failed, "cannot undo all that was changed");
        error.not_undone = failed;
        Err(error)
    }

    fn step(&mut self, step: &WorkerStep, until: &Stop) -> Result<Value> {
        let changed = |what: &str, path: &str, done: std::io::Result<()>| match done {
            Ok(()) => Ok(Value::Null),
            Err(error) => Err(Error::new(
                Kind::Failed,
                format!("cannot {what} {path}: {error}"),
            )),
        };
        let gone = |done: std::io::Result<()>| match done {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done,
        };
        match step {
            WorkerStep::Run { argv, seconds } => {
                to_value(&run(argv, Duration::from_secs(*seconds), until)?)
            }
            WorkerStep::Start { argv } => {
                let child = command(argv)?.stdout(Stdio::null()).spawn();
                self.started
                    .push(child.map_err(|error| cannot_start(argv, &error))?);
                Ok(Value::Null)
            }
            WorkerStep::EndStarted => {
                if let Some(mut child) = self.started.pop() {
                    end(&mut child);
                }
                Ok(Value::Null)
            }
            WorkerStep::Write { path, text } => changed("write to", path, fs::write(path, text)),
            WorkerStep::Mkdir { path } => changed("make", path, fs::create_dir(path)),
            WorkerStep::Rmdir { path } => changed("remove", path, gone(fs::remove_dir(path))),
            WorkerStep::Link { to, path } => changed("make", path, symlink(to, path)),
            WorkerStep::Unlink { path } => changed("remove", path, gone(fs::remove_file(path))),
        }
    }
}

/// Returns the failure of a program.
pub(crate) fn failure(what: &str, output: &Output) -> Error {
    // `hcablk` reports the reason as a JSON object.
    let said = serde_json::from_str::<Value>(&output.stderr).ok();
    let said = said
        .as_ref()
        .and_then(|value| value["error"]["message"].as_str());
    let lines: Vec<&str> = output
        .stderr
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let why = said.map_or_else(
        || lines.last().map_or("it says nothing", |line| *line),
        |said| said,
    );
    Error::new(
        Kind::Failed,
        format!("{what} failed ({}): {}", output.status, why.trim()),
    )
}

fn describe(step: &WorkerStep) -> String {
    match step {
        WorkerStep::Run { argv, .. } | WorkerStep::Start { argv } => argv.join(" "),
        WorkerStep::EndStarted => "end a program".to_owned(),
        WorkerStep::Write { path, .. } => format!("write to {path}"),
        WorkerStep::Mkdir { path } => format!("make {path}"),
        WorkerStep::Rmdir { path } | WorkerStep::Unlink { path } => format!("remove {path}"),
        WorkerStep::Link { path, .. } => format!("link {path}"),
    }
}

fn to_value<T: Serialize>(what: &T) -> Result<Value> {
    serde_json::to_value(what)
        .map_err(|error| Error::new(Kind::Failed, format!("cannot encode an answer: {error}")))
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path)
        .map_err(|error| Error::new(Kind::Failed, format!("cannot read {path}: {error}")))
}

/// Returns the path of a program: those of hcablk are first looked for in the folder of this one.
fn program(name: &str) -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join(name)));
    beside
        .filter(|path| name.starts_with("hcablk") && path.exists())
        .unwrap_or_else(|| Path::new(name).to_path_buf())
}

/// Makes a command in a process group of its own, which a ^C does not reach and which can be ended as a whole.
fn command(argv: &[String]) -> Result<Command> {
    let (name, arguments) = argv
        .split_first()
        .ok_or_else(|| Error::new(Kind::Failed, "no program is named"))?;
    let mut command = Command::new(program(name));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0);
    Ok(command)
}

fn cannot_start(argv: &[String], error: &std::io::Error) -> Error {
    let name = argv.first().map_or("", String::as_str);
    Error::new(Kind::Failed, format!("cannot start {name}: {error}"))
}

/// Runs a program to its end; kills it and its children after `limit`, or when `stop` is set.
pub(crate) fn run(argv: &[String], limit: Duration, stop: &Stop) -> Result<Output> {
    let child = command(argv)?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| cannot_start(argv, &error))?;
    let texts = [
        child
            .stdout
            .take()
            .map(|pipe| thread::spawn(move || text_of(pipe))),
        child
            .stderr
            .take()
            .map(|pipe| thread::spawn(move || text_of(pipe))),
    ];
    let begun = Instant::now();
    let status = loop {
        let ended = child.try_wait();
        let ended = ended.map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("cannot wait for {}: {error}", argv.join(" ")),
            )
        });
        let late = begun.elapsed() > limit;
        match ended {
            Ok(Some(status)) => break status,
            Ok(None) if !late && !stop.is_set() => thread::sleep(Duration::from_millis(10)),
            other => {
                end(&mut child);
                other?;
                stop.check()?;
                let message = format!("{} did not end in {} s", argv.join(" "), limit.as_secs());
                return Err(Error::new(Kind::Failed, message));
            }
        }
    };
    let [stdout, stderr] =
        texts.map(|text| text.and_then(|text| text.join().ok()).unwrap_or_default());
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    let status = status.code().unwrap_or(128 + signal.unwrap_or(0));
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

fn text_of(mut pipe: impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    // Output that cannot be read is ignored.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Kills a program and its children, and waits for it.
fn end(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = child.wait();
}
