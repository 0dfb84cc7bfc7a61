// SPDX-License-Identifier: GPL-2.0

//! The arguments of `enroll`.

use std::net::IpAddr;

use clap::Args;

use crate::enroll::Enroll;
use crate::names::{HostName, VolumeName};

/// Parses the name or address of a host, with or without a user, in a form that ssh accepts.
fn parse_client(text: &str) -> Result<String, String> {
    if text.is_empty() || text.starts_with('-') || text.chars().any(char::is_whitespace) {
        return Err("it is not the name or address of a host".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses a command line of words separated by blanks.
fn parse_ssh(text: &str) -> Result<String, String> {
    match text.split_whitespace().next() {
        Some(_) => Ok(text.to_owned()),
        None => Err("it has no word".to_owned()),
    }
}

/// Arguments of `enroll`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
#[derive(Args, Debug)]
pub struct EnrollArgs {
    /// The host, in a form that ssh accepts: a name, an address, or USER@NAME
    #[arg(value_name = "CLIENT", value_parser = parse_client)]
    pub client: String,

    /// The volumes that the host may use
    #[arg(value_name = "VOLUME")]
    pub volumes: Vec<VolumeName>,

    /// An address of this target that the host connects to: the host stores this target's key for that address; can be
    /// repeated; required if this target listens at all its addresses [default: the addresses at which this target
    /// listens]
    #[arg(long, value_name = "ADDRESS")]
    pub address: Vec<IpAddr>,

    /// Also write the host into `allow` of these volumes in the configuration, which is applied at each start
    #[arg(long)]
    pub persist: bool,

    /// Show this name next to the id of the host: `hcablk target name-host`
    #[arg(long)]
    pub name: Option<HostName>,

    /// Replace a different key of the other side, on either side; the former one stays valid until `hcablk key retire`
    #[arg(long)]
    pub replace: bool,

    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,

    /// Use sudo to run hcablk on the host, if the user there is not root. sudo must not ask for a password
    #[arg(long)]
    pub sudo: bool,

    /// The command that runs hcablk on the host, and its options: words separated by blanks, such as "ssh -p 2222"
    /// [default: ssh]
    #[arg(long, value_name = "COMMAND", value_parser = parse_ssh)]
    pub ssh: Option<String>,
}

impl From<&EnrollArgs> for Enroll {
    fn from(args: &EnrollArgs) -> Self {
        Self {
            client: args.client.clone(),
            volumes: args.volumes.clone(),
            addresses: args.address.clone(),
            persist: args.persist,
            name: args.name.clone(),
            replace: args.replace,
            dry_run: args.dry_run,
            sudo: args.sudo,
            ssh: args.ssh.clone(),
        }
    }
}
