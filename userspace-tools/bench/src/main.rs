// SPDX-License-Identifier: GPL-2.0

//! `hcablk-bench`: measures hcablk on the user's own machines, and checks that an HCA works with
//! it. `hcablk bench` starts it.
//!
//! One process coordinates an experiment: it runs on the client. The target's part is a second process of this program,
//! which serves requests on its standard input and output; the user chooses their transport (`--ssh`, `--through`). The
//! parts of further clients are the same (`--clients`, `--client-through`). Each part undoes its changes of its machine,
//! also when the other part or the connection is lost.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`stop`] | signals, and the end of the other part |
//! | [`worker`] | the steps on a machine, and how they are undone |
//! | [`drive`] | whether a drive may be overwritten; digests of its content |
//! | [`facts`] | the hardware and software of a machine, and whether its times are real |
//! | [`memory_load`] | a memory-bound computation |
//! | [`node`] | a machine that takes part: this one, or one behind a pipe |
//! | [`lab`] | clients and target together: exports, connections, counters |
//! | [`fio`] | loads that fio makes |
//! | [`pattern`] | I/O of every shape whose data can be checked |
//! | [`rivals`] | nvme-rdma and NBD over TCP on the same drive |
//! | [`local_remote`], [`interference`], [`overlap`], [`database`], [`scale`], [`ocfs2`], [`selftest`] | the experiments |
//! | [`page`] | self-contained HTML pages with plots |
//! | [`report`] | the folder that an experiment leaves |

mod cli;
mod database;
mod drive;
mod facts;
mod fio;
mod interference;
mod lab;
mod local_remote;
mod memory_load;
mod node;
mod ocfs2;
mod overlap;
mod page;
mod pattern;
mod report;
mod rivals;
mod scale;
mod selftest;
mod stop;
mod worker;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use hcablk::error::{Error, Kind, Result};

use cli::{Cli, Command, Role};
use stop::Stop;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => code,
        Err(error) => {
            eprint!("{}", error.to_text());
            ExitCode::from(error.kind.exit_code())
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let common = match &cli.command {
        Command::LocalRemote(args) => &args.common,
        Command::Interference(args) => &args.common,
        Command::Overlap(args) => &args.common,
        Command::Database(args) => &args.common,
        Command::Scale(args) => &args.common,
        Command::Ocfs2(args) => &args.common,
        Command::Selftest(args) => &args.common,
        Command::Man { folder } => return man(folder),
    };
    let stop = Stop::on_signals()?;
    if common.role == Role::Target {
        node::serve(&stop)?;
        return Ok(ExitCode::SUCCESS);
    }
    match &cli.command {
        Command::LocalRemote(args) => local_remote::run(args, &stop),
        Command::Interference(args) => interference::run(args, &stop),
        Command::Overlap(args) => overlap::run(args, &stop),
        Command::Database(args) => database::run(args, &stop),
        Command::Scale(args) => scale::run(args, &stop),
        Command::Ocfs2(args) => ocfs2::run(args, &stop),
        Command::Selftest(args) => selftest::run(args, &stop),
        Command::Man { folder } => man(folder),
    }
}

/// Writes the man pages of the command and of each experiment.
fn man(folder: &Path) -> Result<ExitCode> {
    let failed = |error: std::io::Error| {
        let message = format!("cannot write man pages to {}: {error}", folder.display());
        Error::new(Kind::Failed, message)
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, folder).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn write_pages(command: &clap::Command, folder: &Path) -> std::io::Result<()> {
    let page = clap_mangen::Man::new(command.clone())
        .section("8")
        .manual("hcablk");
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(folder.join(page.get_filename()), text)?;
    command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .try_for_each(|sub| write_pages(sub, folder))
}
