// SPDX-License-Identifier: GPL-2.0

//! `hcablk-cachesim`: simulates a target's second-level cache with a trace.
//!
//! | module | holds |
//! |---|---|
//! | [`cli`] | the parser and its help |
//! | [`trace`] | requests: read from text, written as text |
//! | [`workload`] | streams of requests made from a seed |
//! | [`policy`] | the algorithms for comparison: LRU, ARC, and the best possible one |
//! | [`simulate`] | the run of a trace through the caches, and its results |
//!
//! The algorithm itself is the kernel module's own, from the crate `hcablk_core`.

mod cli;
mod policy;
mod simulate;
mod trace;
mod workload;

use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command, Format, RunArgs};
use trace::{Error, Request};

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the pipe.
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // If this fails, no channel is left to report it.
            let _ = writeln!(io::stderr(), "hcablk-cachesim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match &cli.command {
        Command::Run(args) => {
            let requests = requests(args)?;
            let report = simulate::report(&requests, &args.cache.slots());
            if args.json {
                serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
                writeln!(out)?;
            } else {
                write!(out, "{report}")?;
            }
        }
        Command::Generate(args) => {
            let requests = workload::generate(&args.workload);
            match args.format {
                Format::Csv => trace::write_csv(&mut out, &requests)?,
                Format::Fio => trace::write_fio(&mut out, &requests, &args.file)?,
            }
        }
    }
    Ok(out.flush()?)
}

fn requests(args: &RunArgs) -> Result<Vec<Request>, Error> {
    match args.trace.as_deref() {
        None => Ok(workload::generate(&args.workload)),
        Some(path) if path.as_os_str() == "-" => trace::read(io::stdin().lock()),
        Some(path) => {
            let file = File::open(path).map_err(|error| Error::Open {
                path: path.to_owned(),
                error,
            })?;
            trace::read(BufReader::new(file))
        }
    }
}
