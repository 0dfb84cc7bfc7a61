// SPDX-License-Identifier: GPL-2.0

//! A conversation with a program that gets secrets and returns secrets, such as ssh.

use std::io::{Read, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use zeroize::{Zeroize as _, Zeroizing};

/// The longest output. The buffer never grows, since a former one would keep a copy of the secrets.
const LONGEST: usize = 64 << 10;

/// How a program has ended, and what it has printed.
pub struct Answer {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output, which may have secrets.
    pub output: Zeroizing<String>,
    /// Its standard error.
    pub errors: String,
}

/// Runs a program that reads `input`; see [`super::System::converse`]. It may ask the user questions at the terminal.
pub fn converse(program: &str, arguments: &[&str], input: &str) -> Result<Answer, String> {
    let failed = |error| format!("cannot run {program}: {error}");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let stderr = child.stderr.take();
    let errors = thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stderr) = stderr {
            // The beginning of the messages is better than none.
            let _ = stderr.take(LONGEST as u64).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST));
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(LONGEST as u64 - 1).read_to_end(&mut bytes),
        None => Ok(0),
    };
    let status = child.wait().map_err(failed)?;
    read.map_err(failed)?;
    let output = String::from_utf8(std::mem::take(&mut *bytes)).map_err(|wrong| {
        wrong.into_bytes().zeroize();
        format!("the output of {program} is not UTF-8")
    })?;
    Ok(Answer {
        code: status.code(),
        output: Zeroizing::new(output),
        errors: errors.join().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_reads_the_input_and_all_it_prints_is_returned() {
        let script = "read line; echo \"got $line\"; echo why >&2; exit 3";
        let answer = converse("sh", &["-c", script], "a key\n").unwrap();
        assert_eq!(answer.code, Some(3));
        assert_eq!(*answer.output, "got a key\n");
        assert_eq!(answer.errors, "why\n");
    }

    #[test]
    fn a_program_may_end_without_reading() {
        let answer = converse("sh", &["-c", "exit 255"], &"x".repeat(1 << 20)).unwrap();
        assert_eq!(answer.code, Some(255));
        let error = converse("/nonexistent", &[], "").err().unwrap();
        assert!(error.starts_with("cannot run /nonexistent: "), "{error}");
        assert!(converse("printf", &["\\377"], "").is_err());
    }
}
