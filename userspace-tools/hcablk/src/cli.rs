// SPDX-License-Identifier: GPL-2.0

//! The parser. The help texts are the manual: completions and man pages are generated from them.
//!
//! | module | holds |
//! |---|---|
//! | `config` | `config`, the arguments of its commands, and those of `apply` |
//! | `enroll` | the arguments of `enroll` |
//! | `initiator` | the arguments of the commands for devices of this machine |
//! | `key` | `key` and the arguments of its commands |
//! | `path` | `path` and the arguments of its commands |
//! | `target` | `target` and the arguments of its commands |
//! | `trace` | `trace` and the arguments of its commands |
//! | `watch` | the arguments of the commands that show current activity |

#![expect(clippy::doc_markdown, reason = "help texts are read in terminals")]

mod config;
mod enroll;
mod initiator;
mod key;
mod path;
mod target;
#[cfg(test)]
mod tests;
mod trace;
mod usage;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use uuid::Uuid;

use crate::hostid;

pub use config::{ApplyArgs, CheckArgs, ConfigCommand, HowArgs, SaveArgs, ScopeArgs, ShowArgs};
pub use enroll::EnrollArgs;
pub use initiator::{
    AcknowledgeLossArgs, ConnectArgs, DisconnectArgs, DiscoverArgs, ListDisksArgs, PathsFrom,
    TimesArgs, Wanted,
};
pub use key::{AddArgs, ApplyKeysArgs, GenerateArgs, KeyCommand, OthersArgs, OwnArgs};
pub use path::{PathAddArgs, PathCommand, PathPolicyArgs, PathRemoveArgs, PathSyncArgs};
pub use target::{
    AdmitArgs, AllowArgs, EvictArgs, ExportArgs, ForbidArgs, ListVolumesArgs, ListenArgs,
    NameHostArgs, TargetApplyArgs, TargetCommand, TargetTimesArgs, UnapplyArgs, UnexportArgs,
    UnlistenArgs,
};
pub use trace::{RecordArgs, ShowTraceArgs, TraceCommand};
pub use usage::explain;
pub use watch::{
    DoctorArgs, EventSource, EventsArgs, MetricsArgs, ReportArgs, StatsArgs, StatsWanted, TopArgs,
};

/// Set up hcablk: a shared block device over RDMA
///
/// A target exports its block devices as volumes; a host that the target allows connects to a volume and sees it as
/// /dev/hcablkN. Several hosts may use one volume at the same time, with a file system made for that (OCFS2, GFS2) or
/// with an application that orders its own accesses.
///
/// Every command can be repeated: it does not change objects that already have the requested state. A command that
/// fails undoes its changes, except those that it reports as done or that its help names.
#[derive(Debug, Parser)]
#[command(name = "hcablk", version, max_term_width = 100, after_long_help = MAIN_HELP)]
pub struct Cli {
    /// Print JSON: one object with "version": 1; errors, too, on standard error
    #[arg(long, global = true)]
    pub json: bool,

    /// The command to run
    #[command(subcommand)]
    pub command: Command,
}

const MAIN_HELP: &str = "\
Example:
  target# hcablk target export data /dev/nvme0n1
  target# hcablk enroll client data --address 10.0.0.1
  client# hcablk connect 10.0.0.1 data
  /dev/hcablk0
  client# hcablk list

Times and sizes are numbers in the unit that the option names, or numbers with a unit, as in the
configuration: s, min, h, d; B, KiB, MiB, GiB, TiB:
  hcablk connect 10.0.0.1 data --ctrl-loss-tmo never --io-timeout 2min
  hcablk target export db /dev/nvme1n1 --cache-mib 4GiB

Exit codes:
  0    done, or no change needed; `check`: no failure
  1    failed
  2    wrong usage, or a mistake in the configuration
  3    no such disk, path, volume, host, port, key, drive to export, or request of a
       recording
  4    in use; `path remove`: the last live path; `target evict`, `target unexport`, `target
       unapply`: the drive has not finished in time
  5    exists already, with other settings, or is a key or host id that only `--force`,
       `--rotate` or `--replace` replaces; `config save`: the file was written by hand, or hcablk.d has other
       files; `apply`, `key apply`: something is pending; `config diff`: something differs
  6    the target was not reached, or refused the connection or path; `enroll`: ssh failed
  7    this machine is not ready: rights, kernel module, RDMA device, host id; `check`:
       something does not work
  130  interrupted, and undone, except: a host stays evicted or forbidden (`target evict`,
       `target forbid`); the path of `path add --keep` stays; the disk of `connect --paths
       auto` stays if its paths were being added; disks that `connect --all` or `disconnect
       --all` had finished stay connected or disconnected; steps that `enroll` had finished
       stay

A failure is reported on standard error in one form: `hcablk:`, what failed and why; then, in lines that begin
with blanks, what could not be undone and what to do.";

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Connect to a volume of a target and print its device
    ///
    /// With the name of a disk, or --all alone, this connects disks as configured in /etc/hcablk/hcablk.toml; see
    /// `hcablk apply`. With an address and --all it connects every volume that `hcablk discover` finds there and that
    /// is not yet connected.
    #[command(after_help = "\
Examples:
  hcablk connect 10.0.0.1 data
  hcablk connect data --wait 300
  hcablk connect --all
  hcablk connect 10.0.0.1 --all
  hcablk connect fd00::1 data --name db --queues 4
  hcablk connect 10.0.0.1 data --path 10.0.1.1 --path '[fd00::1]:7745'
  hcablk connect 10.0.0.1 data --paths auto
  hcablk connect --user 10.0.0.1 data
  hcablk connect 10.0.0.1 data --persist
  mount \"$(hcablk connect 10.0.0.1 data)\" /mnt")]
    Connect(ConnectArgs),

    /// Ask a target which volumes this host may use, and where it listens
    ///
    /// Nothing is connected. With keys, both sides prove who they are first. A host without a key sees only volumes
    /// that are exported with --insecure.
    #[command(after_help = "\
Examples:
  hcablk discover 10.0.0.1
  hcablk discover 10.0.0.1 --json | jq -r '.volumes[].name'
  hcablk connect 10.0.0.1 --all")]
    Discover(DiscoverArgs),

    /// Disconnect a disk; refused while it is mounted or open
    #[command(after_help = "\
Examples:
  hcablk disconnect data
  hcablk disconnect /dev/hcablk0
  hcablk disconnect --all")]
    Disconnect(DisconnectArgs),

    /// Acknowledge that a target lost writes of a disk, so that flushes succeed again
    ///
    /// A target that crashes loses the writes that it had acknowledged from a volatile write cache and that
    /// no flush covered. From then on every flush and every FUA write of the disk fails with EIO, and
    /// `hcablk list` shows lost-writes. The failures stop writers that would otherwise build on data that
    /// is gone. The state ends by itself when the last user closes the disk and its partitions, if one of
    /// the users had opened it for writing, and a flush or FUA write has failed since the loss.
    ///
    /// This command ends the state at once. It restores nothing: WHAT WAS LOST STAYS LOST. An application that has not
    /// yet called fsync will not learn of the loss: its next fsync succeeds, although data that it wrote before the
    /// loss is gone. A file system that is still mounted continues with metadata that may not match the drive's
    /// content.
    ///
    /// Prefer to stop the applications or unmount the file system, check it (fsck) and mount it again. Use
    /// this command only if the user of the disk never closes it (device mapper, swap, a root file system),
    /// and only after you have checked the data.
    ///
    /// A volume that is exported with --write-cache through loses no writes.
    #[command(after_help = "\
Examples:
  hcablk acknowledge-loss data
  hcablk acknowledge-loss /dev/hcablk0")]
    AcknowledgeLoss(AcknowledgeLossArgs),

    /// Add and remove paths of a disk, and choose among them
    ///
    /// A path is an address of the target over which a disk is reached. Path 0 is the address that the disk was
    /// connected to; a disk may have 15 others. Requests use the live paths; if one is lost, they move to the others.
    #[command(subcommand, visible_alias = "paths")]
    Path(PathCommand),

    /// Check, show, compare and save the configuration
    ///
    /// The configuration is /etc/hcablk/hcablk.toml and, in the order of their names, /etc/hcablk/hcablk.d/*.toml. It
    /// says what this machine exports and connects after each start. docs/reference/configuration.md lists all keys.
    #[command(
        subcommand,
        after_help = "\
Example of /etc/hcablk/hcablk.toml:
  [export.data]                       # on a target
  device = \"/dev/nvme0n1\"
  allow = [\"7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44\"]

  [port.1]
  address = \"10.0.0.1\"

  [disk.db]                           # on a client
  address = \"10.0.0.2\"
  volume = \"data\"
  paths = { 1 = \"10.0.1.2\" }
  io_timeout = \"60 s\""
    )]
    Config(ConfigCommand),

    /// Make exports, ports and disks match the configuration
    ///
    /// Exports, ports and disks that already match, or are not configured, are not changed. If a step fails, the steps
    /// before it are undone; with --keep-going only the steps for the same export, port or disk. A change that would
    /// end a disk or session in use is not made, but reported as pending (exit code 5), unless --force is given.
    #[command(after_help = "\
Examples:
  hcablk apply --dry-run
  hcablk apply
  hcablk apply --disks --force")]
    Apply(ApplyArgs),

    /// List the disks of this machine, and the paths of those that have several
    #[command(after_help = "\
Examples:
  hcablk list
  hcablk list --columns name,state,policy")]
    List(ListDisksArgs),

    /// Show the counters of this machine's disks, or rates
    ///
    /// With an interval, one line for each disk is printed at the end of each interval: FLIGHT counts the requests in
    /// flight; reads, writes, others (flushes, discards, writes of zeroes) and bytes (READ-B, WRITE-B; K is 1024) are
    /// per second. MEAN is the mean latency of a request; it is measured after `hcablk times --measure on`.
    #[command(after_help = "\
Examples:
  hcablk stats
  hcablk stats data 1
  hcablk stats 5 12 --json")]
    Stats(StatsArgs),

    /// Show the activity of disks, paths and exports, on the whole screen
    ///
    /// Press ? for help, q to quit.
    #[command(after_help = "\
Example:
  hcablk top 2")]
    Top(TopArgs),

    /// Report the events of disks, paths and sessions as they happen
    ///
    /// The output begins with the state of each disk and path, and "listening". Then each line is one event; with
    /// --json each event is one object. The command continues until it is interrupted.
    #[command(after_help = "\
Examples:
  hcablk events
  hcablk events --json | jq 'select(.state == \"lost\")'
  hcablk events --only tracepoints --all")]
    Events(EventsArgs),

    /// Record how data moves, and show it as text and as pictures
    #[command(subcommand)]
    Trace(TraceCommand),

    /// Print all counters and measurements as OpenMetrics, for Prometheus
    ///
    /// For the textfile collector of node_exporter run this every few seconds; the package's hcablk-metrics.timer does
    /// this.
    #[command(after_help = "\
Example:
  hcablk metrics --output /var/lib/prometheus/node-exporter/hcablk.prom")]
    Metrics(MetricsArgs),

    /// Find problems of this machine and print their remedies; change nothing
    ///
    /// Exit code 7 if something does not work.
    #[command(after_help = "\
Examples:
  hcablk check
  hcablk check --quiet --json")]
    Check(DoctorArgs),

    /// Collect the state of this machine in one archive, without keys, for support
    ///
    /// The archive has the output of `check`, `list`, `stats` and `target list`, the attributes of configfs, versions,
    /// the configuration, RDMA links, settings of OCFS2, the states of units, and lines of the kernel's log and the
    /// journal; its README.txt describes each file. Keys and passwords are left out. Addresses, ids, and names of hosts
    /// and disks are not: look at it before you pass it on. Run it as root, on the hosts and on the target.
    #[command(after_help = "\
Examples:
  hcablk report
  hcablk report --output /tmp/client1.tar.gz")]
    Report(ReportArgs),

    /// Show how long requests of this machine's disks take, by state
    ///
    /// Durations are measured only after `--measure on`; then each request reads the clock a few times. HALF, 99 % and
    /// ALL are latency bounds: that share of the requests finished sooner.
    ///
    ///   queued   from the request's creation in the block layer to its sending
    ///
    ///   sent     from the sending to the target's response
    ///
    ///   ending   from the response to the request's end
    #[command(after_help = "\
Examples:
  hcablk times data --measure on
  hcablk times
  hcablk times --measure off --json")]
    Times(TimesArgs),

    /// Let a host use volumes of this target: exchange ids and keys with it over ssh, and allow it
    ///
    /// Run it on the target, as root. It logs in to CLIENT through ssh several times, with your own configuration: use
    /// ssh-agent, or a shared connection (ControlMaster), so that ssh does not ask for a password each time. On CLIENT
    /// hcablk must be installed, and the user must be root, or be allowed to use sudo (--sudo).
    ///
    /// It makes the keys that are missing, stores the key of each side on the opposite side, and allows the host to use the
    /// volumes. --dry-run shows these steps. Nothing is done twice: after a failure run it again. It fails if one side
    /// has a different key of the other, unless --replace is given.
    ///
    /// Keys go through ssh, from and to the standard input and output of `hcablk key`; no key is on a command line or
    /// shown. ssh must know the host key of CLIENT: another machine that answers in its place would get the target's
    /// key, and the volumes.
    #[command(after_help = "\
Examples:
  hcablk enroll client1 data --dry-run
  hcablk enroll client1 data
  hcablk enroll client1 data --persist --name client1 --address 10.0.0.1
  hcablk enroll admin@client1 data log --sudo

By hand, without ssh from the target: see `hcablk key --help`.")]
    Enroll(EnrollArgs),

    /// Print or set the id that identifies this host to targets
    ///
    /// The id is read from /etc/hcablk/host_id. Without that file it is derived from /etc/machine-id, in a way that
    /// does not reveal the machine id. Machines cloned from one image may share their machine id: give each its own id
    /// with --generate.
    #[command(after_help = "\
Examples:
  hcablk host-id
  hcablk host-id --generate
  hcablk host-id --set 5f2c1d6e-8a0b-4c3d-9e7f-001122334455")]
    HostId(HostIdArgs),

    /// Make, show and exchange the keys with which hosts and targets prove who they are
    ///
    /// Each machine has its own key, as a host or as a target, and stores those of the machines on the other side. A
    /// connection is established after each side has proven that it has both keys.
    #[command(subcommand)]
    Key(KeyCommand),

    /// Export block devices of this machine
    #[command(subcommand)]
    Target(TargetCommand),

    /// Measure hcablk on your own machines, and check that an HCA works with it
    ///
    /// This starts the program hcablk-bench, a separate package, with the following arguments.
    #[command(
        disable_help_flag = true,
        after_help = "\
Examples:
  hcablk bench --help
  hcablk bench selftest --ssh target --address 10.0.0.1 --drive /dev/nvme1n1"
    )]
    Bench(BenchArgs),

    /// Print the completion script for a shell
    ///
    /// The scripts for bash, zsh and fish also complete the names of disks, volumes, hosts and ports: they run this program.
    #[command(after_help = "\
Example:
  hcablk completions bash > /usr/share/bash-completion/completions/hcablk")]
    Completions(CompletionsArgs),

    /// Print what may come next on a command line, for the scripts of completions
    #[command(hide = true)]
    Complete(CompleteArgs),

    /// Write the man pages
    #[command(after_help = "\
Example:
  hcablk man /usr/local/share/man/man8")]
    Man(ManArgs),
}

impl Command {
    /// Returns whether a signal must not stop the command half-way, since it would leave changes behind.
    pub fn holds_signals(&self) -> bool {
        match self {
            // `top` restores the terminal; `events` and a recording remove an instance of tracefs.
            Self::Connect(_)
            | Self::Discover(_)
            | Self::Disconnect(_)
            | Self::Path(_)
            | Self::Top(_)
            | Self::Events(_) => true,
            Self::Trace(command) => matches!(command, TraceCommand::Record(_)),
            Self::Apply(args) => !args.how.dry_run,
            Self::Enroll(args) => !args.dry_run,
            Self::Key(command) => matches!(command, KeyCommand::Apply(_)),
            Self::Target(command) => !matches!(
                command,
                TargetCommand::List(_) | TargetCommand::Stats(_) | TargetCommand::Times(_)
            ),
            Self::AcknowledgeLoss(_)
            | Self::List(_)
            | Self::Stats(_)
            | Self::Metrics(_)
            | Self::Check(_)
            | Self::Report(_)
            | Self::Times(_)
            | Self::HostId(_)
            | Self::Config(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Complete(_)
            | Self::Man(_) => false,
        }
    }
}

/// A switch.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Switch {
    /// Switch it on.
    On,
    /// Switch it off.
    Off,
}

impl Switch {
    /// Returns whether the switch is on.
    pub fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

/// Arguments of `host-id`.
#[derive(Args, Debug)]
pub struct HostIdArgs {
    /// Write this id to /etc/hcablk/host_id, unless the file holds a different one
    #[arg(long, value_name = "UUID", value_parser = hostid::parse, group = "new")]
    pub set: Option<Uuid>,

    /// Write a new random id to /etc/hcablk/host_id, unless there is one
    #[arg(long, group = "new")]
    pub generate: bool,

    /// With --set and --generate: replace the existing id
    #[arg(long, requires = "new")]
    pub force: bool,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// An experiment and its options: see `hcablk bench --help`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "EXPERIMENT"
    )]
    pub words: Vec<OsString>,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `complete`.
#[derive(Args, Debug)]
pub struct CompleteArgs {
    /// The number of the word with the cursor; that of the program's name is 0
    pub index: usize,

    /// The words after the program's name
    #[arg(last = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The folder to write to; created if it does not exist
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}
