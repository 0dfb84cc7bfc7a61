// SPDX-License-Identifier: GPL-2.0

//! `hcablk-ublk`: a disk `/dev/ublkbN` of a volume, served by this program through the kernel's ublk driver. For kernels that
//! cannot load the modules of hcablk.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`saved`] | the settings of a disk, stored for a program that takes it over |
//! | [`control`] | the commands of the driver |
//! | [`driver`] | a disk in the driver's view, and whether it belongs to this program |
//! | [`disk`] | a disk's life: added, recovered, followed, removed |
//! | [`service`] | a disk as a unit of systemd serves it |
//! | [`queue`] | the requests of one queue |

mod cli;
mod control;
mod disk;
mod driver;
mod queue;
mod saved;
mod service;

use clap::Parser as _;
use cli::{Cli, Command};
use hcablk_volume_args::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A thread that unwinds would free the memory of requests while the kernel may copy to it.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
    let result = match cli.command {
        Command::Add(volume) => disk::add(&volume),
        Command::Recover { disk } => disk::recover(disk),
        Command::Remove { disk, force, mark } => disk::remove(disk, force, mark),
        Command::Serve { name } => return service::serve(&name),
        Command::List => disk::list(),
        Command::Udev { device } => driver::print_properties(&device),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hcablk-ublk: {error}");
            ExitCode::FAILURE
        }
    }
}
