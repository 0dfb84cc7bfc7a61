// SPDX-License-Identifier: GPL-2.0

//! Runs other programs, which may hang, each with a time limit.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two checks whether a program has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The time in which a killed program must end. A program that the kernel does not let end is left behind.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a program for at most `limit`, and returns its output; see [`super::System::run_within`].
pub(super) fn run(program: &str, arguments: &[&str], limit: Duration) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let stdout = child.stdout.take().map(read);
    let stderr = child.stderr.take().map(read);
    // If this fails, the program is left behind, too.
    let kill = |child: &mut Child| drop(child.kill());
    let status = wait(&mut child, limit, GRACE, kill).map_err(|why| format!("{program}: {why}"))?;
    // A descendant may still have the pipe.
    let text = |pipe: Option<Receiver<Vec<u8>>>| {
        let bytes = pipe.and_then(|pipe| pipe.recv_timeout(GRACE).ok());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    if status.success() {
        return Ok(text(stdout));
    }
    let why = text(stderr).trim().replace('\n', "; ");
    Err(if why.is_empty() {
        format!("{program}: {status}")
    } else {
        why
    })
}

/// Reads a pipe to its end, in a thread of its own, since the pipe may never end.
fn read(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // The beginning of an output is better than none.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = send.send(bytes);
    });
    receive
}

/// Waits for the end of a program, and calls `kill` after `limit`. The error says why it has no exit status.
fn wait(
    child: &mut Child,
    limit: Duration,
    grace: Duration,
    kill: impl Fn(&mut Child),
) -> Result<ExitStatus, String> {
    if let Some(status) = ended(child, limit)? {
        return Ok(status);
    }
    kill(child);
    let seconds = limit.as_secs();
    Err(match ended(child, grace)? {
        Some(_) => format!("it did not end within {seconds} s, and was killed"),
        None => format!(
            "it did not end within {seconds} s, nor when it was killed: process {} is left",
            child.id()
        ),
    })
}

/// Returns how a program has ended; `None` if it has not after `limit`.
fn ended(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, String> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < end => thread::sleep(CHECK_INTERVAL),
            result => return result.map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_that_ends_in_time_has_its_output_or_its_reason() {
        assert_eq!(run("echo", &["a", "b"], LONG).unwrap(), "a b\n");
        let error = run("sh", &["-c", "echo x; echo why >&2; exit 1"], LONG);
        assert_eq!(error.unwrap_err(), "why");
        let error = run("/nonexistent", &[], LONG).unwrap_err();
        assert!(error.starts_with("/nonexistent: "), "{error}");
    }

    #[test]
    fn an_output_that_fills_the_pipe_is_read() {
        let text = run("head", &["-c", "300000", "/dev/zero"], LONG).unwrap();
        assert_eq!(text.len(), 300_000);
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let error = run("sleep", &["1000"], SHORT).unwrap_err();
        assert_eq!(error, "sleep: it did not end within 0 s, and was killed");
    }

    /// A process that nobody kills stands for one in uninterruptible sleep.
    #[test]
    fn a_program_that_cannot_be_killed_is_left() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let error = wait(&mut child, SHORT, SHORT, |_| ()).unwrap_err();
        let id = child.id();
        assert_eq!(
            error,
            format!("it did not end within 0 s, nor when it was killed: process {id} is left")
        );
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
