// SPDX-License-Identifier: GPL-2.0

//! Parallel copies of this program: the kernel may not let a process continue that waits for a hanging drive.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::getppid;

use crate::error::{Error, Kind, Result};

/// The variable that names the root of the file tree. It is not an option: a rule of sudo that allows a command with any
/// options would allow it, too, and sudo does not pass on variables.
pub const SYSROOT: &str = "HCABLK_SYSROOT";

/// The time between two checks for processes that have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Runs this program once for each of `lines`; see [`super::System::run_selves`].
pub(super) fn run(
    root: &Path,
    lines: &[Vec<String>],
    timeout: Option<Duration>,
    interrupted: impl Fn() -> bool,
) -> Vec<Option<Result<()>>> {
    let end = timeout.map(|timeout| Instant::now() + timeout);
    let mut children: Vec<_> = lines.iter().map(|line| start(root, line)).collect();
    let mut results: Vec<_> = children.iter().map(|_| None).collect();
    loop {
        for (child, result) in children.iter_mut().zip(&mut results) {
            if result.is_none() {
                *result = ended(child);
            }
        }
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        if results.iter().all(Option::is_some) || is_over || interrupted() {
            return results;
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Returns whether a process of this program, and of the same user, has started this one. Asks the kernel, since a
/// caller could forge a variable or an option.
pub(super) fn is_helper() -> bool {
    let of = |process: &str| {
        let program = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        let user = std::fs::metadata(format!("/proc/{process}")).ok()?.uid();
        Some((program.dev(), program.ino(), user))
    };
    let own = of("self");
    own.is_some() && of(&getppid().to_string()) == own
}

fn start(root: &Path, line: &[String]) -> Result<Child> {
    let failed = |error| {
        Error::new(
            Kind::Failed,
            format!("cannot run this program again: {error}"),
        )
    };
    let program = std::env::current_exe().map_err(failed)?;
    Command::new(program)
        .env(SYSROOT, root)
        .arg("--json")
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)
}

/// Returns how a process has ended, if it has.
fn ended(child: &mut Result<Child>) -> Option<Result<()>> {
    let child = match child {
        Ok(child) => child,
        Err(error) => return Some(Err(error.clone())),
    };
    let failed = |kind, why: &str| Some(Err(Error::new(kind, why)));
    let status = match child.try_wait() {
        Ok(None) => return None,
        Ok(Some(status)) => status,
        Err(error) => return failed(Kind::Failed, &error.to_string()),
    };
    if status.success() {
        return Some(Ok(()));
    }
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // If its output cannot be read, only its exit status is reported.
        let _ = stderr.read_to_string(&mut text);
    }
    let kind = status.code().map_or(Kind::Failed, Kind::of_exit_code);
    let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let member = |name: &str| said["error"][name].as_str().map(str::to_owned);
    let Some(message) = member("message") else {
        return failed(
            kind,
            &format!("a process of this command ended with {status}"),
        );
    };
    let mut error = Error::new(kind, message);
    error.advice = member("advice");
    error.errno = member("errno");
    Some(Err(error))
}
