// SPDX-License-Identifier: GPL-2.0

//! `hcablk-vhost-user`: serves a volume as the disk of a virtual machine. The machine's monitor (QEMU, Cloud
//! Hypervisor), or any other frontend of vhost-user, connects to a socket of this program, which moves data between the
//! volume and the machine's memory without a copy. The host has no block device for it.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`saved`] | the state that a killed program leaves for the next one |
//! | [`socket`] | the socket's file |
//! | [`server`] | the program's life: it waits for a frontend, serves it, and ends |
//! | [`device`] | the messages of a frontend: features, memory, rings |
//! | [`memory`] | a guest's memory, mapped and registered |
//! | [`worker`] | the thread of a queue, which serves one ring |
//! | [`ring`] | the requests of a running ring |
//! | [`block`] | a virtio block device: features, configuration, requests |

mod block;
mod cli;
mod device;
mod memory;
mod ring;
mod saved;
mod server;
mod socket;
mod worker;

use clap::Parser as _;
use cli::{Cli, Command};
use hcablk_volume_args::Error;
use libhcablk::Failure;
use std::process::ExitCode;

/// The exit code after a failure when running the program again would not help.
const FOR_GOOD: u8 = 2;

/// The reason why the volume cannot be served, which is permanent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ForGood(pub(crate) String);

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A thread that unwinds would free memory that the target may write to.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
    let result = match cli.command {
        Command::Serve(serve) => server::serve(&serve),
        Command::Forget { socket } => saved::forget(&socket),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("hcablk-vhost-user: {error}");
    match is_for_good(&error) {
        true => ExitCode::from(FOR_GOOD),
        false => ExitCode::FAILURE,
    }
}

/// Returns whether running the program again would not help.
fn is_for_good(error: &Error) -> bool {
    let failure = error.downcast_ref::<Failure>();
    let failure = failure.or(error.downcast_ref::<server::Ended>().map(|ended| &ended.0));
    error.is::<ForGood>()
        || matches!(
            failure,
            Some(Failure::OtherVolume | Failure::OtherLimits | Failure::HalfProof)
        )
}
