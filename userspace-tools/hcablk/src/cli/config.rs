// SPDX-License-Identifier: GPL-2.0

//! `config` and the arguments of its commands, and those of `apply`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::apply::plan::Scope;
use crate::apply::{Apply, Recording};

/// `hcablk config …`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report every mistake in the configuration, with file and line; change nothing
    #[command(after_help = "\
Examples:
  hcablk config check
  hcablk config check ./hcablk.toml")]
    Check(CheckArgs),

    /// Print the configuration, or the kernel's state in the form of a configuration
    #[command(after_help = "\
Examples:
  hcablk config show
  hcablk config show --running > hcablk.toml")]
    Show(ShowArgs),

    /// Report how the kernel's state differs from the configuration; exit code 5 if it does
    ///
    /// Each line is one difference: "+" is configured but missing, "~" exists with another setting, "-" exists but is
    /// not configured.
    #[command(after_help = "\
Examples:
  hcablk config diff
  hcablk config diff --disks --json")]
    Diff(ScopeArgs),

    /// Write the kernel's state into /etc/hcablk/hcablk.toml
    ///
    /// Settings at their defaults are left out. After a restart `hcablk apply` restores the same state. The hosts that
    /// `hcablk target evict` has evicted are recorded elsewhere, and stay evicted. A file that this command did not
    /// write is replaced only with --force, since its comments would be lost.
    #[command(after_help = "\
Examples:
  hcablk config save
  hcablk config save --file /root/before-upgrade.toml")]
    Save(SaveArgs),
}

/// Arguments of `config check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Check these files instead of /etc/hcablk/hcablk.toml and /etc/hcablk/hcablk.d/*.toml
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `config show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Show the kernel's state instead of the configuration
    #[arg(long)]
    pub running: bool,
}

/// Arguments of `config save`.
#[derive(Args, Debug)]
pub struct SaveArgs {
    /// Write to this file instead
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Replace a file that was written by hand
    #[arg(long)]
    pub force: bool,
}

/// The sides that a command applies to.
#[derive(Args, Clone, Copy, Debug)]
pub struct ScopeArgs {
    /// Only exports and ports
    #[arg(long, conflicts_with = "disks")]
    pub target: bool,

    /// Only disks
    #[arg(long)]
    pub disks: bool,
}

impl ScopeArgs {
    /// Returns the sides that the options select.
    pub fn scope(self) -> Scope {
        match (self.target, self.disks) {
            (true, _) => Scope::Target,
            (_, true) => Scope::Disks,
            _ => Scope::All,
        }
    }
}

/// The options that `apply` and `target apply` share.
#[derive(Args, Clone, Copy, Debug)]
pub struct HowArgs {
    /// Print the steps, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Also disconnect disks and end sessions where a setting cannot be changed otherwise. If one of these disks is
    /// mounted or open, nothing is changed
    #[arg(long)]
    pub force: bool,

    /// When an export, a port or a disk cannot be made as configured, undo only its own steps, and continue with the
    /// others. The exit code is that of the first failure
    #[arg(long)]
    pub keep_going: bool,
}

impl HowArgs {
    /// Converts the options to the job that they describe.
    pub fn apply(self, scope: Scope) -> Apply {
        Apply {
            scope,
            dry_run: self.dry_run,
            force: self.force,
            keep_going: self.keep_going,
            recording: Recording::No,
        }
    }
}

/// Arguments of `apply`.
#[derive(Args, Clone, Copy, Debug)]
pub struct ApplyArgs {
    /// The sides to apply
    #[command(flatten)]
    pub scope: ScopeArgs,

    /// The manner of applying
    #[command(flatten)]
    pub how: HowArgs,
}
