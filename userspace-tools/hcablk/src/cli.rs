// SPDX-License-Identifier: GPL-2.0

//! The parser. The help texts are the manual: completions and man pages are made from them.

#![expect(clippy::doc_markdown, reason = "help texts are read in terminals")]

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{value_parser, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use uuid::Uuid;

use crate::hostid;
use crate::initiator::{Connect, Which};
use crate::names::{parse_chunk_kib, parse_provider, DeviceName, VolumeName, CHUNK_KIB};
use crate::target::{Export, Listen, Mode, DEFAULT_PORT};
use crate::tuning::Tuning;

/// Set up hcablk: a shared block device over RDMA
///
/// A target exports its block devices as volumes; hosts that it allows connect to a volume and see
/// it as /dev/hcablkN. Several hosts may use one volume at the same time, with a file system made
/// for that (OCFS2, GFS2) or with an application that keeps its own order.
///
/// Every command can be repeated: what is as asked for already is left alone. A command that fails
/// undoes what it had begun.
#[derive(Debug, Parser)]
#[command(name = "hcablk", version, max_term_width = 100, after_long_help = MAIN_HELP)]
pub struct Cli {
    /// Print JSON: one object with "version": 1; errors too, to standard error
    #[arg(long, global = true)]
    pub json: bool,

    /// Where the file tree of the machine starts, for tests
    #[arg(
        long,
        global = true,
        hide = true,
        env = "HCABLK_SYSROOT",
        default_value = "/"
    )]
    pub sysroot: PathBuf,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const MAIN_HELP: &str = "\
Example:
  client# hcablk host-id
  7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44
  target# hcablk target export data /dev/nvme0n1 --allow 7c0f6a0e-1b52-5d5e-8f0e-2f3b7c1d9a44
  client# hcablk connect 10.0.0.1 data
  /dev/hcablk0
  client# hcablk list

Exit codes:
  0    done, or nothing to do
  1    failed
  2    wrong usage
  3    no such device, volume, host or port
  4    in use
  5    there already, with other settings
  6    the target was not reached or turned the connection down
  7    this machine is not ready: rights, kernel module, RDMA device, host id
  130  interrupted; what had begun was undone";

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Connect to a volume of a target and print its device
    #[command(after_help = "\
Examples:
  hcablk connect 10.0.0.1 data
  hcablk connect fd00::1 data --name db --queues 4
  mount \"$(hcablk connect 10.0.0.1 data)\" /mnt")]
    Connect(ConnectArgs),

    /// Disconnect a device; refused while it is mounted or open
    #[command(after_help = "\
Examples:
  hcablk disconnect data
  hcablk disconnect /dev/hcablk0
  hcablk disconnect --all")]
    Disconnect(DisconnectArgs),

    /// List the devices of this machine
    List,

    /// Show the counters of this machine's devices
    Stats(StatsArgs),

    /// Show how long requests of this machine's devices take, by state
    ///
    /// Nothing is measured unless it is switched on; then each request reads the clock a few
    /// times. Of the columns, HALF, "99 %" and ALL say below what so many of the requests were.
    ///
    ///   queued   from the block layer's making the request to its being sent
    ///
    ///   sent     from there to the target's answer
    ///
    ///   ending   from the answer to the request's end
    #[command(after_help = "\
Examples:
  hcablk times data --measure on
  hcablk times
  hcablk times --measure off --json")]
    Times(TimesArgs),

    /// Print the id by which targets know this host, or choose it
    ///
    /// The id is read from /etc/hcablk/host_id. Without that file it is derived from
    /// /etc/machine-id, in a way that does not give the machine id away. Machines cloned from one
    /// image may share their machine id: give each an id of its own by --generate.
    #[command(after_help = "\
Examples:
  hcablk host-id
  hcablk host-id --generate
  hcablk host-id --set 5f2c1d6e-8a0b-4c3d-9e7f-001122334455")]
    HostId(HostIdArgs),

    /// Export block devices of this machine
    #[command(subcommand)]
    Target(TargetCommand),

    /// Print the completion script for a shell
    #[command(after_help = "\
Example:
  hcablk completions bash > /usr/share/bash-completion/completions/hcablk")]
    Completions(CompletionsArgs),

    /// Write the man pages
    #[command(after_help = "\
Example:
  hcablk man /usr/local/share/man/man8")]
    Man(ManArgs),
}

impl Command {
    /// Returns whether the command changes devices or exports, and so must not be stopped half-way.
    pub fn changes_devices(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Disconnect(_) => true,
            Self::Target(command) => !matches!(
                command,
                TargetCommand::List | TargetCommand::Stats(_) | TargetCommand::Times(_)
            ),
            Self::List
            | Self::Stats(_)
            | Self::Times(_)
            | Self::HostId(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

/// `hcablk target …`.
#[derive(Debug, Subcommand)]
pub enum TargetCommand {
    /// Export a block device or a file as a volume, to the hosts that are allowed
    #[command(after_help = "\
Examples:
  hcablk target export data /dev/nvme0n1 --allow \"$(ssh client hcablk host-id)\"
  hcablk target export vm /srv/vm.img --mode cached --allow UUID
  hcablk target export db /dev/nvme1n1 --cache-mib 4096 --allow UUID
  hcablk target export fast /dev/nvme1n1 --mode p2p --provider 0000:81:00.0 --allow UUID
  hcablk target export iso /dev/loop0 --read-only --port 7745")]
    Export(ExportArgs),

    /// End an export; refused while clients are connected, unless forced
    Unexport(UnexportArgs),

    /// Allow hosts to connect to a volume
    #[command(after_help = "\
Example:
  hcablk target allow data 5f2c1d6e-8a0b-4c3d-9e7f-001122334455")]
    Allow(AllowArgs),

    /// Forbid hosts to connect to a volume, and end their sessions
    Forbid(ForbidArgs),

    /// Listen for clients at an address and port
    #[command(after_help = "\
Examples:
  hcablk target listen
  hcablk target listen --address 10.0.0.1 --port 7745 --id 2")]
    Listen(ListenArgs),

    /// Stop listening
    Unlisten(UnlistenArgs),

    /// List volumes, the hosts they allow, their clients, and ports
    List,

    /// Show the counters of volumes and ports
    Stats(TargetStatsArgs),

    /// Show how long requests to volumes take, by state
    ///
    /// As `hcablk times`, of which these are the parts of the state "sent" that the target sees.
    ///
    ///   waiting    for transfer buffers
    ///
    ///   fetching   writes: until the data is here
    ///
    ///   drive      with the drive or a cache
    ///
    ///   sending    until the completion of its answer was found
    #[command(after_help = "\
Examples:
  hcablk target times data --measure on
  hcablk target times --json")]
    Times(TargetTimesArgs),
}

/// Arguments of `connect`.
#[derive(Args, Debug)]
pub struct ConnectArgs {
    /// The target's address or host name
    pub address: String,

    /// The volume's name at the target
    pub volume: VolumeName,

    /// The target's port
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = value_parser!(u16).range(1..))]
    pub port: u16,

    /// The device's name in `hcablk list` [default: the volume's name]
    #[arg(long)]
    pub name: Option<DeviceName>,

    /// Connect only if the volume is the one with this wwid
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub wwid: Option<Uuid>,

    /// This host's id, if not the one of `hcablk host-id`
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub host_id: Option<Uuid>,

    /// Invalidate memory registrations here, never by the target's answer
    #[arg(long)]
    pub no_remote_invalidate: bool,

    /// The rest
    #[command(flatten)]
    pub tuning: Tuning,
}

impl From<&ConnectArgs> for Connect {
    fn from(args: &ConnectArgs) -> Self {
        Self {
            address: args.address.clone(),
            port: args.port,
            volume: args.volume.clone(),
            name: args.name.clone(),
            host_id: args.host_id,
            expect_wwid: args.wwid,
            remote_invalidate: args.no_remote_invalidate.then_some(false),
            tuning: args.tuning.clone(),
        }
    }
}

/// Arguments of `disconnect`.
#[derive(Args, Debug)]
pub struct DisconnectArgs {
    /// The device's name, or /dev/hcablkN
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub device: Option<String>,

    /// Disconnect every device
    #[arg(long)]
    pub all: bool,

    /// End it even while the disk is in use or its requests hang: they fail. The disk is gone when this returns
    #[arg(long)]
    pub force: bool,

    /// Do not fail when there is no such device
    #[arg(long)]
    pub if_exists: bool,
}

impl DisconnectArgs {
    /// Returns which devices are meant. The parser has made sure that exactly one of the two is
    /// given.
    pub fn which(&self) -> Which {
        self.device.clone().map_or(Which::All, Which::One)
    }
}

/// Arguments of `stats`.
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Only this device: its name, or /dev/hcablkN
    pub name: Option<String>,
}

/// A switch.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Switch {
    /// From now on.
    On,
    /// Not any more.
    Off,
}

impl Switch {
    /// Returns whether it is on.
    pub fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

/// Arguments of `times`.
#[derive(Args, Debug)]
pub struct TimesArgs {
    /// Only this device: its name, or /dev/hcablkN
    pub name: Option<String>,

    /// First begin to measure, or end; what was measured stays
    #[arg(long, value_name = "on|off")]
    pub measure: Option<Switch>,
}

/// Arguments of `host-id`.
#[derive(Args, Debug)]
pub struct HostIdArgs {
    /// Write this id to /etc/hcablk/host_id
    #[arg(long, value_name = "UUID", value_parser = hostid::parse, conflicts_with = "generate")]
    pub set: Option<Uuid>,

    /// Write a new random id to /etc/hcablk/host_id, unless there is one
    #[arg(long)]
    pub generate: bool,

    /// With --generate: replace the id that is there
    #[arg(long, requires = "generate")]
    pub force: bool,
}

/// Arguments of `target export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The name that clients will ask for
    pub name: VolumeName,

    /// The block device, or a regular file
    pub path: PathBuf,

    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,

    /// By what way data goes on this machine
    #[arg(long, value_enum, default_value_t = Mode::Direct)]
    pub mode: Mode,

    /// Keep so many MiB of what clients read again and again in this machine's memory, or, with
    /// --mode p2p, in that of the PCI device; 0: none. With the modes direct and p2p only, and for
    /// a device or file that no other volume exports
    #[arg(long, value_name = "MIB", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=1_048_576))]
    pub cache_mib: u32,

    /// Move large requests in chunks of so many KiB, so that drive and network work at the same
    /// time: 64, 128, 256 or 512; 0: each as a whole. Without effect on what goes to a file or
    /// through the page cache
    #[arg(long, value_name = "KIB", default_value_t = CHUNK_KIB, value_parser = parse_chunk_kib)]
    pub chunk_kib: u32,

    /// With --mode p2p: the PCI device whose memory is used, as `lspci -D` names it, or `auto` for the
    /// nearest one that lends any; the kernel's log tells when a volume must do without [default: auto]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_provider)]
    pub provider: Option<String>,

    /// What the volume is known by, whatever its name [default: derived from this host's id, the name and the drive]
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub wwid: Option<Uuid>,

    /// Allow this host, by the id that `hcablk host-id` prints there; can be repeated
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub allow: Vec<Uuid>,

    /// Make sure that there is a port at this address [default: 0.0.0.0, or any port that listens]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_port")]
    pub port_address: Option<IpAddr>,

    /// Make sure that there is a port of this number [default: 7744, or any port that listens]
    #[arg(long, value_parser = value_parser!(u16).range(1..), conflicts_with = "no_port")]
    pub port: Option<u16>,

    /// Do not look after ports
    #[arg(long)]
    pub no_port: bool,
}

impl From<&ExportArgs> for Export {
    fn from(args: &ExportArgs) -> Self {
        Self {
            volume: args.name.clone(),
            path: args.path.clone(),
            read_only: args.read_only,
            mode: args.mode,
            cache_mib: args.cache_mib,
            chunk_kib: args.chunk_kib,
            provider: args.provider.clone(),
            wwid: args.wwid,
            allow: args.allow.clone(),
            listen: (!args.no_port).then(|| Listen {
                address: args.port_address,
                port: args.port,
                ..Listen::default()
            }),
        }
    }
}

/// Arguments of `target unexport`.
#[derive(Args, Debug)]
pub struct UnexportArgs {
    /// The volume's name
    pub name: VolumeName,

    /// End it even while clients are connected: their requests fail
    #[arg(long)]
    pub force: bool,

    /// Do not fail when there is no such volume
    #[arg(long)]
    pub if_exists: bool,
}

/// Arguments of `target allow`.
#[derive(Args, Debug)]
pub struct AllowArgs {
    /// The volume's name
    pub name: VolumeName,

    /// The hosts, by the ids that `hcablk host-id` prints there
    #[arg(required = true, value_name = "UUID", value_parser = hostid::parse)]
    pub hosts: Vec<Uuid>,
}

/// Arguments of `target forbid`.
#[derive(Args, Debug)]
pub struct ForbidArgs {
    /// The volume's name
    pub name: VolumeName,

    /// The hosts' ids
    #[arg(required = true, value_name = "UUID", value_parser = hostid::parse)]
    pub hosts: Vec<Uuid>,

    /// Do not fail when a host was not allowed anyway
    #[arg(long)]
    pub if_exists: bool,
}

/// Arguments of `target listen`.
#[derive(Args, Debug)]
pub struct ListenArgs {
    /// The address to listen at
    #[arg(long, default_value = "0.0.0.0")]
    pub address: IpAddr,

    /// The port number to listen at
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = value_parser!(u16).range(1..))]
    pub port: u16,

    /// The port's id in configfs [default: the first that is free]
    #[arg(long)]
    pub id: Option<u16>,

    /// Data of each session, in MiB; 0: 16 MiB, or twice the largest request for each queue pair if that is more [default: 0]
    #[arg(long, value_name = "MIB", value_parser = value_parser!(u32).range(0..=1024))]
    pub buffer_mib: Option<u32>,

    /// All memory of all sessions together, in MiB, at most [default: half of what is free, 1024 to 4096]
    #[arg(long, value_name = "MIB", value_parser = value_parser!(u32).range(1..=1_048_576))]
    pub memory_mib: Option<u32>,

    /// Receive buffers for each queue; 0 is as many as the client asks for [default: 0]
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(0..=1024))]
    pub queue_credits: Option<u32>,
}

impl From<&ListenArgs> for Listen {
    fn from(args: &ListenArgs) -> Self {
        Self {
            address: Some(args.address),
            port: Some(args.port),
            id: args.id,
            buffer_mib: args.buffer_mib,
            memory_mib: args.memory_mib,
            queue_credits: args.queue_credits,
        }
    }
}

/// Arguments of `target unlisten`.
#[derive(Args, Debug)]
pub struct UnlistenArgs {
    /// The ports' ids, as `hcablk target list` shows them
    #[arg(
        value_name = "ID",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub ids: Vec<u16>,

    /// Every port
    #[arg(long)]
    pub all: bool,

    /// Do not fail when there is no such port
    #[arg(long)]
    pub if_exists: bool,
}

/// Arguments of `target stats`.
#[derive(Args, Debug)]
pub struct TargetStatsArgs {
    /// Only this volume
    pub name: Option<VolumeName>,
}

/// Arguments of `target times`.
#[derive(Args, Debug)]
pub struct TargetTimesArgs {
    /// Only this volume
    pub name: Option<VolumeName>,

    /// First begin to measure, or end; what was measured stays
    #[arg(long, value_name = "on|off")]
    pub measure: Option<Switch>,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// The folder to write to; made if it is missing
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {}",
                    command.get_name(),
                    argument.get_id()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn what_is_not_given_is_not_set() {
        let cli = Cli::parse_from(["hcablk", "connect", "10.0.0.1", "data"]);
        let Command::Connect(args) = &cli.command else {
            panic!("{cli:?}");
        };
        let connect = Connect::from(args);
        assert_eq!(
            (
                connect.port,
                connect.tuning.queues,
                connect.remote_invalidate,
                connect.tuning.small_read
            ),
            (7744, None, None, None)
        );
    }

    #[test]
    fn wrong_usage() {
        for line in [
            "",
            "connect 10.0.0.1",
            "connect 10.0.0.1 a/b",
            "connect 10.0.0.1 data --queue-depth 0",
            "connect 10.0.0.1 data --queue-depth 1025",
            "connect 10.0.0.1 data --port 0",
            "connect 10.0.0.1 data --queues 129",
            "connect 10.0.0.1 data --poll-queues 128",
            "connect 10.0.0.1 data --wwid data",
            "connect 10.0.0.1 data --io-timeout 3601",
            "target export data /dev/sdb --mode p2p --provider 81:00.A",
            "target export data /dev/sdb --mode p2p --provider nearest",
            "target export data /dev/sdb --mode p2p --provider 81:20.0",
            "connect 10.0.0.1 data --connect-timeout 0",
            "connect 10.0.0.1 data --small-read 65537",
            "connect 10.0.0.1 data --small-read 4k",
            "connect 10.0.0.1 data --small-write 65537",
            "connect 10.0.0.1 data --eager-write 1048577",
            "connect 10.0.0.1 data --max-io-kib 0",
            "connect 10.0.0.1 data --max-io-kib 1022",
            "connect 10.0.0.1 data --max-io-kib 4100",
            "connect 10.0.0.1 data --message-requests 0",
            "connect 10.0.0.1 data --message-requests 9",
            "connect 10.0.0.1 data --batch-upper 1025",
            "connect 10.0.0.1 data --batch-lower -1",
            "connect 10.0.0.1 data --host-id 00000000-0000-0000-0000-000000000000",
            "disconnect",
            "disconnect data --all",
            "target",
            "target allow data",
            "target export data /dev/sda --no-port --port 7745",
            "target unlisten",
            "host-id --force",
        ] {
            let words = ["hcablk"].into_iter().chain(line.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }
}
