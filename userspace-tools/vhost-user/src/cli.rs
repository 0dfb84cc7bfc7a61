// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::{Args, Parser, Subcommand};
use hcablk_volume_args::VolumeArgs;
use std::path::PathBuf;

/// Volumes of hcablk as disks of virtual machines, served in user space over vhost-user
///
/// The host needs the kernel module `rdma_ucm`, but none of hcablk, and has no block device of the volume. The virtual
/// machine's memory must be shared (QEMU: `-object memory-backend-memfd,share=on`).
#[derive(Parser, Debug)]
#[command(version, name = "hcablk-vhost-user")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Serve a volume at a socket until this program is stopped (SIGTERM, SIGINT)
    ///
    /// Prints the socket's path when it listens. Serves one frontend at a time. Exit code 2: running it again would not
    /// help.
    Serve(Serve),
    /// Forget the state that a killed program has left for a socket, and the writes that are lost
    ///
    /// Run this only after the virtual machine has ended: while it runs, it may believe that lost writes are durable.
    Forget {
        /// The socket's path
        socket: PathBuf,
    },
}

/// The volume to serve, and the socket.
#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// The socket's path; the socket of a killed program is replaced
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The permissions of the socket, in octal: they decide who may connect
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    pub(crate) mode: u32,
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("not permissions in octal, such as 660".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        assert_eq!(mode("660"), Ok(0o660));
        assert!(mode("888").is_err() && mode("1777").is_err());
    }
}
