// SPDX-License-Identifier: GPL-2.0

//! `hcablk`: see the library.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use hcablk::cli::{explain, Cli};
use hcablk::error::{Error, Kind};
use hcablk::output::{error_json, Outcome};
use hcablk::system::{Machine, SYSROOT};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // The parser has failed, so that `cli.json` does not exist.
            let wants_json = std::env::args_os().any(|word| word == "--json");
            match explain(&error, wants_json) {
                Some(error) => return fail(&error, wants_json),
                None => error.exit(),
            }
        }
    };
    let done = run(&cli).and_then(|outcome| {
        print(&cli, &outcome)?;
        Ok(outcome.exit)
    });
    match done {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(kind)) => ExitCode::from(kind.exit_code()),
        Err(error) => fail(&error, cli.json),
    }
}

fn fail(error: &Error, wants_json: bool) -> ExitCode {
    let text = if wants_json {
        error_json(error)
    } else {
        error.to_text()
    };
    // If this fails, no channel is left to report it.
    let _ = io::stderr().write_all(text.as_bytes());
    ExitCode::from(error.kind.exit_code())
}

fn run(cli: &Cli) -> Result<Outcome, Error> {
    // The root of the machine's file tree, for tests.
    let root = std::env::var_os(SYSROOT).filter(|root| !root.is_empty());
    let mut machine = Machine::new(root.unwrap_or_else(|| "/".into()));
    if cli.command.holds_signals() {
        machine.hold_signals()?;
    }
    if !cli.json {
        machine.report_progress();
    }
    hcablk::run(&cli.command, &machine, &mut |report| {
        write(&if cli.json {
            report.to_json_line()
        } else {
            report.to_string()
        })
    })
}

fn print(cli: &Cli, outcome: &Outcome) -> Result<(), Error> {
    let text = if cli.json {
        outcome.to_json()
    } else {
        for note in &outcome.notes {
            let _ = writeln!(io::stderr(), "hcablk: {note}");
        }
        outcome.report.to_string()
    };
    write(&text).map(|_| ())
}

/// Writes to standard output; returns whether the output still has a reader.
fn write(text: &str) -> Result<bool, Error> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::new(
            Kind::Failed,
            format!("cannot write to standard output: {error}"),
        )
        .advise("Is its destination full?")),
        Ok(()) => Ok(true),
    }
}
