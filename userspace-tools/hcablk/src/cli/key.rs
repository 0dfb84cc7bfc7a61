// SPDX-License-Identifier: GPL-2.0

//! `hcablk key …`: by what hosts and targets prove who they are.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::hostid;
use crate::keys::Whose;

/// `hcablk key …`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key for this machine, as a host or as a target
    ///
    /// It is kept in /etc/hcablk/keys, where only root can read it. Another key of a host (--rotate) is pending at first: it is used
    /// from the `hcablk key apply` on by which all targets of this host have it.
    #[command(after_help = "\
Examples:
  hcablk key generate host
  hcablk key generate target
  hcablk key generate target --rotate && hcablk key apply")]
    Generate(GenerateArgs),

    /// Print a key of this machine, for `hcablk key add` on the other side: of a host the one that is pending, if there is one
    ///
    /// Whoever knows a host's key and a target's can be either of them: take it over by a way that
    /// nobody else sees, such as ssh.
    #[command(after_help = "\
Example:
  target# ssh client hcablk key show host | hcablk key add host UUID")]
    Show(OwnArgs),

    /// Take over the key of another machine
    ///
    /// The key is read from standard input. The one that was there stays valid beside it until
    /// `hcablk key retire`.
    #[command(after_help = "\
Examples:
  target# ssh client hcablk key show host | hcablk key add host UUID
  client# ssh target hcablk key show target | hcablk key add target 10.0.0.1
  client# hcablk key add target default --file key-of-all-targets")]
    Add(AddArgs),

    /// Have the newest key alone be valid
    #[command(after_help = "\
Example:
  hcablk key retire host 7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44 && hcablk key apply")]
    Retire(OthersArgs),

    /// Hand the keys to what is exported and connected; `export` and `connect` do so by themselves
    ///
    /// A key of this host that is pending since `hcablk key generate host --rotate` becomes the current one if each target that a disk
    /// here is connected to, or configured for, believes this host by it. Else it stays pending (exit code 5), and the former one
    /// goes on to be used.
    Apply(ApplyKeysArgs),
}

/// Which of this machine's keys.
#[derive(Args, Debug)]
pub struct OwnArgs {
    /// As what this machine has it
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
    /// Returns the key of this machine on that side.
    pub fn own(self) -> Whose {
        match self {
            Self::Host => Whose::Host,
            Self::Target => Whose::Target,
        }
    }
}

/// Arguments of `key apply`.
#[derive(Args, Debug)]
pub struct ApplyKeysArgs {
    /// Use the pending key of this host even if a target does not have it, such as one that is gone for good
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `key generate`.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// As what this machine has it
    #[arg(value_enum)]
    pub side: Side,

    /// Make another one although there is one, which stays valid
    #[arg(long)]
    pub rotate: bool,
}

/// Whose key it is.
#[derive(Args, Debug)]
pub struct OthersArgs {
    /// What the machine is to this one
    #[arg(value_enum)]
    pub side: Side,

    /// The host's id, or the target's address, `default` for all others; this machine's own if left out
    #[arg(value_name = "UUID|ADDRESS")]
    pub name: Option<String>,
}

impl OthersArgs {
    /// Returns whose key it is, or what is wrong with the name.
    pub fn whose(&self) -> Result<Whose, String> {
        match (self.side, &self.name) {
            (side, None) => Ok(side.own()),
            (Side::Host, Some(id)) => hostid::parse(id).map(Whose::OfHost),
            (Side::Target, Some(address)) => target(address).map(Whose::OfTarget),
        }
    }
}

/// Returns a target's address as the kernel modules show it: it is a file's name, too.
fn target(address: &str) -> Result<String, String> {
    if address == "default" {
        return Ok(address.to_owned());
    }
    let parsed = address.parse::<std::net::IpAddr>();
    parsed
        .map(|ip| ip.to_string())
        .map_err(|_| format!("{address:?} is no IP address, nor `default`"))
}

/// Arguments of `key add`.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// Whose key it is
    #[command(flatten)]
    pub whose: OthersArgs,

    /// Read it from this file
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}
