// SPDX-License-Identifier: GPL-2.0

//! `hcablk key …`: the keys with which hosts and targets prove who they are.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::hostid;
use crate::keys::KeyOwner;

/// `hcablk key …`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key for this machine, as a host or as a target
    ///
    /// The key is stored in /etc/hcablk/keys, which only root can read. A replacement key of a host (--rotate) is
    /// pending at first: it is used once `hcablk key apply` finds that all targets of this host have it.
    #[command(after_help = "\
Examples:
  hcablk key generate host
  hcablk key generate target
  hcablk key generate target --rotate && hcablk key apply")]
    Generate(GenerateArgs),

    /// Print a key of this machine, for `hcablk key add` on the other side; for a host, its pending key, if there is
    /// one
    ///
    /// An attacker who has the keys of a host and a target can act as either of them. Transfer a key over a channel
    /// that nobody else can read, such as ssh.
    #[command(after_help = "\
Example:
  target# ssh client hcablk key show host | hcablk key add host UUID")]
    Show(OwnArgs),

    /// Store the key of another machine
    ///
    /// The key is read from standard input, or from --file. The former key also stays valid until `hcablk key retire`.
    #[command(after_help = "\
Examples:
  target# ssh client hcablk key show host | hcablk key add host UUID
  client# ssh target hcablk key show target | hcablk key add target 10.0.0.1
  client# hcablk key add target default --file key-of-all-targets")]
    Add(AddArgs),

    /// Retire all keys of a host or target except the newest; without UUID or ADDRESS: of this machine
    #[command(after_help = "\
Example:
  hcablk key retire host 7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44 && hcablk key apply")]
    Retire(OthersArgs),

    /// Pass the keys to existing exports and connections; `export` and `connect` do this themselves
    ///
    /// A key of this host that is pending after `hcablk key generate host --rotate` becomes the current one if it
    /// proves this host to each target that a disk here is connected to, or configured for. Otherwise it stays pending
    /// (exit code 5), and the former key remains in use.
    Apply(ApplyKeysArgs),
}

/// Selects one of this machine's keys.
#[derive(Args, Debug)]
pub struct OwnArgs {
    /// The role in which this machine has the key
    #[arg(value_enum)]
    pub side: Side,
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Side {
    /// A host, which connects disks
    Host,
    /// A target, which exports volumes
    Target,
}

impl Side {
    /// Returns the key of this machine in that role.
    pub fn own(self) -> KeyOwner {
        match self {
            Self::Host => KeyOwner::Host,
            Self::Target => KeyOwner::Target,
        }
    }
}

/// Arguments of `key apply`.
#[derive(Args, Debug)]
pub struct ApplyKeysArgs {
    /// Use the pending key of this host even if a target does not have it, such as a target that will not return
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `key generate`.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The role in which this machine gets the key
    #[arg(value_enum)]
    pub side: Side,

    /// Make a new key even if there is one; the former key stays valid
    #[arg(long)]
    pub rotate: bool,
}

/// The owner of a key.
#[derive(Args, Debug)]
pub struct OthersArgs {
    /// The role of the other machine
    #[arg(value_enum)]
    pub side: Side,

    /// The id of the host, or the address of the target; `default`: all targets without a key of their own. Left out:
    /// the key of this machine
    #[arg(value_name = "UUID|ADDRESS")]
    pub name: Option<String>,
}

impl OthersArgs {
    /// Returns the owner of the key, or an error if the name is malformed.
    pub fn whose(&self) -> Result<KeyOwner, String> {
        match (self.side, &self.name) {
            (side, None) => Ok(side.own()),
            (Side::Host, Some(id)) => hostid::parse(id).map(KeyOwner::OfHost),
            (Side::Target, Some(address)) => target(address).map(KeyOwner::OfTarget),
        }
    }
}

/// Returns a target's address as the kernel modules show it: it is also the name of a file.
fn target(address: &str) -> Result<String, String> {
    if address == "default" {
        return Ok(address.to_owned());
    }
    let parsed = address.parse::<std::net::IpAddr>();
    parsed
        .map(|ip| ip.to_string())
        .map_err(|_| format!("{address:?} is neither an IP address nor `default`"))
}

/// Arguments of `key add`.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// The owner of the key
    #[command(flatten)]
    pub whose: OthersArgs,

    /// Read the key from this file
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Fail if a different key of that machine is stored (exit code 5)
    #[arg(long)]
    pub no_replace: bool,

    /// Only check the key, and whether it would be stored
    #[arg(long)]
    pub dry_run: bool,
}
