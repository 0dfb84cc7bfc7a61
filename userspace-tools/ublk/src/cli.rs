// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::{Parser, Subcommand};
use hcablk_volume_args::VolumeArgs;

/// Disks of hcablk volumes, served in user space by the kernel's ublk driver
///
/// A disk needs the kernel modules `ublk_drv` and `rdma_ucm`, but none of hcablk. This program
/// serves it; if the program is killed, requests wait until `recover` takes the disk over.
#[derive(Parser, Debug)]
#[command(version, name = "hcablk-ublk")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a disk of a volume, and serve it until this program is stopped (SIGTERM, SIGINT)
    ///
    /// Prints the disk's name when the disk exists.
    Add(VolumeArgs),
    /// Take over a disk whose program was killed, and serve it
    ///
    /// Requests of the disk wait until then. Those that were under way are issued again, after the target has ended the
    /// session of the killed program.
    Recover {
        /// The number of the disk, N of /dev/ublkbN
        disk: u32,
    },
    /// Remove a disk; the program that serves it ends
    Remove {
        /// The number of the disk, N of /dev/ublkbN
        disk: u32,
        /// Remove the disk even if it is in use; its pending requests fail
        #[arg(long)]
        force: bool,
        /// Remove the disk only if it has this mark: numbers are reused
        #[arg(long, value_name = "NUMBER")]
        mark: Option<u64>,
    },
    /// Serve the disk of `hcablk connect --user`: make it, or take it over if it exists
    ///
    /// Its settings are in /run/hcablk/ublk/NAME.wanted. The unit hcablk-ublk@NAME.service runs this. Exit code 2:
    /// there is no disk, or no program can take it over; running this again would not help.
    Serve {
        /// The disk's name in `hcablk list`
        name: String,
    },
    /// List the disks, and whether a program serves each
    List,
    /// Print the properties of a disk for udev; nothing for a disk of another program
    Udev {
        /// The disk's name, such as ublkb0
        device: String,
    },
}
