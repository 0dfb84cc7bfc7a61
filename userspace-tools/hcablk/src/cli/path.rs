// SPDX-License-Identifier: GPL-2.0

//! `path` and the arguments of its commands.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::config::value::options;
use crate::endpoint::Endpoint;
use crate::initiator::PathId;
use crate::tuning::Policy;

/// A command for the paths of a disk.
#[derive(Debug, Subcommand)]
pub enum PathCommand {
    /// Add a path to a disk and wait until it is live
    ///
    /// The address must belong to the target machine that the other paths lead to. A path to a different machine does
    /// not become live: two machines do not order their writes to a drive.
    #[command(after_help = "\
Examples:
  hcablk path add data 10.0.1.1
  hcablk path add /dev/hcablk0 '[fd00::1]:7745' --keep")]
    Add(PathAddArgs),

    /// Remove a path of a disk; refused if it is the last live one
    #[command(after_help = "\
Examples:
  hcablk path remove data 10.0.1.1
  hcablk path remove data 1 --if-exists")]
    Remove(PathRemoveArgs),

    /// Give disks of `connect --paths auto` a path for each portal that their target reports
    ///
    /// Existing paths stay, so the command can be repeated. A portal that cannot be reached is reported, and gets no
    /// path. The kernel reports changes of a target's portals (`hcablk events`), and a udev rule of the package then
    /// runs this command. A disk whose paths were given explicitly is not changed.
    #[command(after_help = "\
Examples:
  hcablk path sync
  hcablk path sync data --prune")]
    Sync(PathSyncArgs),

    /// Choose which live paths carry the requests of a disk
    #[command(after_help = "\
Example:
  hcablk path policy data round-robin")]
    Policy(PathPolicyArgs),
}

/// Arguments of `path add`.
#[derive(Args, Debug)]
pub struct PathAddArgs {
    /// The disk's name, or /dev/hcablkN
    pub device: String,

    /// The target's address or host name, and its port if that is not 7744
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub endpoint: Endpoint,

    /// Fail when the path is not live within this time [default: the disk's connect timeout]
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds::<1, 3600>)]
    pub timeout: Option<u32>,

    /// Keep the path when the first attempt fails; it is retried unless the target refused it
    #[arg(long)]
    pub keep: bool,
}

impl PathAddArgs {
    /// Returns the time limit, or `None` for the disk's own.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
            .map(|seconds| Duration::from_secs(seconds.into()))
    }
}

/// Arguments of `path remove`.
#[derive(Args, Debug)]
pub struct PathRemoveArgs {
    /// The disk's name, or /dev/hcablkN
    pub device: String,

    /// The path's number in `hcablk list`, or its address, and its port if that is not 7744
    #[arg(value_name = "NUMBER|ADDRESS[:PORT]")]
    pub path: PathId,

    /// Do not fail when there is no such path, or no such disk
    #[arg(long)]
    pub if_exists: bool,
}

/// Arguments of `path sync`.
#[derive(Args, Debug)]
pub struct PathSyncArgs {
    /// Only this disk: its name, or /dev/hcablkN
    pub device: Option<String>,

    /// Also remove paths that lead to no portal any more, except path 0 and the last live one
    #[arg(long)]
    pub prune: bool,
}

/// Arguments of `path policy`.
#[derive(Args, Debug)]
pub struct PathPolicyArgs {
    /// The disk's name, or /dev/hcablkN
    pub device: String,

    /// The rule that chooses the path of a request
    pub policy: Policy,
}
