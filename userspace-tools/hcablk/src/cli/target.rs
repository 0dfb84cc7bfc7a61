// SPDX-License-Identifier: GPL-2.0

//! `hcablk target …`: the exports of this machine.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{value_parser, Args, Subcommand};
use uuid::Uuid;

use super::{HowArgs, StatsArgs, Switch};
use crate::apply::plan::Scope;
use crate::apply::{Apply, Recording};
use crate::config::value::{options, StatePath, MIB};
use crate::hostid;
use crate::names::{parse_provider, HostName, VolumeName, CHUNK_KIB};
use crate::output::columns;
use crate::target::{Export, Listen, Mode, Unexport, WriteCache, DEFAULT_PORT};

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
  hcablk target export shared /dev/nvme2n1 --write-cache through --allow UUID --allow UUID
  hcablk target export iso /dev/loop0 --read-only --port 7745")]
    Export(ExportArgs),

    /// End an export; refused while clients are connected, unless forced
    ///
    /// Several exports end at the same time. If a drive hangs, its export ends when the drive has finished its current
    /// requests: no other export waits for that, and the command can be interrupted.
    Unexport(UnexportArgs),

    /// Allow hosts to connect to a volume
    #[command(after_help = "\
Example:
  hcablk target allow data 5f2c1d6e-8a0b-4c3d-9e7f-001122334455")]
    Allow(AllowArgs),

    /// Forbid hosts to connect to a volume, and end their sessions
    Forbid(ForbidArgs),

    /// Give a host a name, which is shown next to its id
    ///
    /// Targets know hosts by their ids only. The names are in the table [host_names] of the configuration of this
    /// machine. They are for people: no command and no target accepts a name instead of an id.
    #[command(after_help = "\
Examples:
  hcablk target name-host 5f2c1d6e-8a0b-4c3d-9e7f-001122334455 client1
  hcablk target name-host 5f2c1d6e-8a0b-4c3d-9e7f-001122334455 --remove")]
    NameHost(NameHostArgs),

    /// Evict hosts from a volume: fence them off its drive until they are admitted
    ///
    /// For cluster managers: before a cluster releases the locks and mounts of a host, it must be certain that no more
    /// writes of this host reach the drive.
    ///
    /// On success, these hosts cannot reach the volume's drive through this target any more: their sessions are ended,
    /// the drive has finished the requests that it had begun for them, and the target refuses them from now on. Their
    /// requests fail, and `hcablk list` there reports that they are evicted. This remains true when they connect again,
    /// when the volume is exported again, when the module or this machine is restarted, and when this command is
    /// repeated, until `hcablk target admit`. To ensure this, the command records each evicted host as an empty file
    /// /var/lib/hcablk/evicted/VOLUME/UUID.
    ///
    /// If the command fails, it is not certain that the hosts are fenced: repeat it. It cannot succeed while the drive
    /// hangs. Even then the target refuses an evicted host, which stays evicted when the time limit is over (exit code
    /// 4) or the command is interrupted (130).
    ///
    /// An evicted host stays allowed, and can connect again once it is admitted. `forbid` instead withdraws the
    /// permission to use the volume.
    ///
    /// Not covered are other target machines that export the same drive, and other volumes of this machine with the
    /// same drive: run the command for each of them. Writes of this machine's own programs to the drive are not covered
    /// either.
    #[command(after_help = "\
Examples:
  hcablk target evict data 5f2c1d6e-8a0b-4c3d-9e7f-001122334455
  hcablk target evict data UUID UUID --timeout 60 --json

In a fence agent, for each machine that exports the drive (action \"off\", and later \"on\"):
  ssh target1 hcablk target evict data \"$uuid\" --timeout 60 || exit 1
  ssh target1 hcablk target admit data \"$uuid\" --if-exists || exit 1")]
    Evict(EvictArgs),

    /// Admit evicted hosts to a volume again
    ///
    /// They may connect again if they are allowed. Admit a host only when it has dropped its pending writes: after it
    /// was restarted, or its devices were disconnected.
    #[command(after_help = "\
Example:
  hcablk target admit data 5f2c1d6e-8a0b-4c3d-9e7f-001122334455")]
    Admit(AdmitArgs),

    /// Listen for clients at an address and port
    #[command(after_help = "\
Examples:
  hcablk target listen
  hcablk target listen --address 10.0.0.1 --port 7745 --id 2")]
    Listen(ListenArgs),

    /// Stop listening
    Unlisten(UnlistenArgs),

    /// Make exports and ports match the configuration: `hcablk apply --target`
    ///
    /// hcablk-target.service runs this with --record, hcablk-target-retry.service with --retry. With --record it
    /// records in /run/hcablk/target which exports and ports it made, and which it could not make. `hcablk target
    /// export`, `unexport`, `listen` and `unlisten` remove what they change from the records: changes of an
    /// administrator or a cluster manager are neither repeated nor undone.
    #[command(after_help = "\
Examples:
  hcablk target apply --dry-run
  hcablk target apply
  hcablk target apply --keep-going")]
    Apply(TargetApplyArgs),

    /// End the exports and ports that `target apply --record` made, and no others
    ///
    /// Sessions end in order. hcablk-target.service runs this when it is stopped.
    #[command(after_help = "\
Examples:
  hcablk target unapply
  hcablk target unapply --timeout 60")]
    Unapply(UnapplyArgs),

    /// List volumes, the hosts they allow or have evicted, their clients, and ports
    #[command(after_help = "\
Examples:
  hcablk target list
  hcablk target list --columns name,path,wwid")]
    List(ListVolumesArgs),

    /// Show the counters of volumes and ports, or rates
    ///
    /// Works like `hcablk stats`.
    #[command(after_help = "\
Examples:
  hcablk target stats
  hcablk target stats data 5 --json")]
    Stats(StatsArgs),

    /// Show how long requests to volumes take, by state
    ///
    /// Like `hcablk times`. The states are the parts of the client's state "sent" that the target sees.
    ///
    ///   waiting    for transfer buffers
    ///
    ///   fetching   writes: until the data has arrived
    ///
    ///   drive      with the drive or a cache
    ///
    ///   sending    until the completion of the response's send was found
    #[command(after_help = "\
Examples:
  hcablk target times data --measure on
  hcablk target times --json")]
    Times(TargetTimesArgs),
}

/// Arguments of `target list`.
#[derive(Args, Debug)]
pub struct ListVolumesArgs {
    /// Show only volumes, with these columns, which are members of the JSON; sizes are bytes
    #[arg(long, value_name = "NAMES", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(columns::VOLUMES))]
    pub columns: Vec<String>,
}

/// Arguments of `target export`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The name that clients use
    pub name: VolumeName,

    /// The block device, or a regular file
    pub path: PathBuf,

    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,

    /// Let hosts without a key connect with an id that is not verified: any machine that reaches this one can claim any
    /// id. Hosts whose key is known must still prove who they are
    #[arg(long)]
    pub insecure: bool,

    /// How data moves on this machine
    #[arg(long, value_enum, default_value_t = Mode::Direct)]
    pub mode: Mode,

    /// When a write is acknowledged. With `through` clients see a disk without a volatile write cache. Use `through`
    /// for volumes that several hosts write to
    #[arg(long, value_enum, default_value_t = WriteCache::Back)]
    pub write_cache: WriteCache,

    /// Export the volume even if reservations cannot be kept because their directory /var/lib/hcablk/reservations is
    /// missing. While the directory is missing, no host can register, and a host whose registration was preempted
    /// earlier can write again
    #[arg(long)]
    pub no_reservations: bool,

    /// Size in MiB of a cache for data that clients read repeatedly, in this machine's memory or, with --mode p2p, in
    /// that of the PCI device; 0: no cache. Only with the modes direct and p2p, and only for a device or file that no
    /// other volume exports
    #[arg(long, value_name = "MIB", default_value_t = 0,
        value_parser = options::size::<MIB, 0, 1_048_576, 1>)]
    pub cache_mib: u32,

    /// Move large requests in chunks of this many KiB, so that drive and network work at the same time: 64, 128, 256 or
    /// 512; 0: do not split requests. No effect on files, or on data in the page cache
    #[arg(long, value_name = "KIB", default_value_t = CHUNK_KIB, value_parser = options::chunk_kib)]
    pub chunk_kib: u32,

    /// With --mode p2p: the PCI device whose memory is used, as `lspci -D` names it, or `auto` for the nearest device
    /// that lends memory; the kernel's log reports when a volume gets none [default: auto]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_provider)]
    pub provider: Option<String>,

    /// The id of the volume, independent of its name [default: derived from this host's id, the name and the drive]
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub wwid: Option<Uuid>,

    /// Keep the evicted hosts, reservations, wwid and keys of the volume in this directory, which moves with the volume
    /// to another machine. It must have a file .hcablk-state: make that once, when the file system is new and mounted
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<StatePath>,

    /// Allow this host, with the id that `hcablk host-id` prints there; can be repeated
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub allow: Vec<Uuid>,

    /// Ensure that a port listens at this address [default: 0.0.0.0, or any port that listens]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "no_port")]
    pub port_address: Option<IpAddr>,

    /// Ensure that a port listens with this number [default: 7744, or any port that listens]
    #[arg(long, value_parser = value_parser!(u16).range(1..), conflicts_with = "no_port")]
    pub port: Option<u16>,

    /// Also write the export, and the port that listens for it, into the configuration, which is applied at each start:
    /// into the file that has the table [export.NAME], or else into /etc/hcablk/hcablk.toml. If that fails, nothing is
    /// exported
    #[arg(long)]
    pub persist: bool,

    /// Do not check or add ports
    #[arg(long)]
    pub no_port: bool,
}

impl From<&ExportArgs> for Export {
    fn from(args: &ExportArgs) -> Self {
        Self {
            volume: args.name.clone(),
            path: args.path.clone(),
            read_only: args.read_only,
            insecure: args.insecure,
            mode: args.mode,
            write_cache: args.write_cache,
            keep_reservations: !args.no_reservations,
            cache_mib: args.cache_mib,
            chunk_kib: args.chunk_kib,
            provider: args.provider.clone(),
            wwid: args.wwid,
            state: args.state.clone(),
            allow: args.allow.clone(),
            persist: args.persist,
            listen: (!args.no_port).then(|| Listen {
                address: args.port_address,
                port: args.port,
                ..Listen::default()
            }),
        }
    }
}

/// Arguments of `target unexport`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
#[derive(Args, Debug)]
pub struct UnexportArgs {
    /// The volume's name
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub name: Option<VolumeName>,

    /// Every volume
    #[arg(long)]
    pub all: bool,

    /// End the export even while clients are connected: their requests wait until the volume is exported again, and
    /// fail when their --ctrl-loss-tmo is over
    #[arg(long)]
    pub force: bool,

    /// Do not fail when there is no such volume
    #[arg(long)]
    pub if_exists: bool,

    /// Fail when a drive has not finished its current requests within this time; the export then ends as
    /// soon as the drive has finished [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds::<1, 604_800>)]
    pub timeout: Option<u32>,

    /// Unexport in this process; the command uses this internally
    #[arg(long, hide = true, conflicts_with_all = ["all", "timeout"])]
    pub here: bool,
}

impl From<&UnexportArgs> for Unexport {
    fn from(args: &UnexportArgs) -> Self {
        Self {
            force: args.force,
            if_exists: args.if_exists,
            timeout: seconds(args.timeout),
        }
    }
}

/// Arguments of `target apply`.
#[derive(Args, Clone, Copy, Debug)]
pub struct TargetApplyArgs {
    /// The manner of applying
    #[command(flatten)]
    pub how: HowArgs,

    /// Record what was made and what failed, for --retry and `target unapply`
    #[arg(long, requires = "keep_going", conflicts_with = "dry_run")]
    pub record: bool,

    /// Try only what failed according to the records; --record and --keep-going are implied
    #[arg(long, conflicts_with_all = ["dry_run", "record"])]
    pub retry: bool,
}

impl TargetApplyArgs {
    /// Converts the options to the job that they describe.
    pub fn apply(self) -> Apply {
        let mut apply = self.how.apply(Scope::Target);
        apply.keep_going |= self.retry;
        apply.recording = match (self.record, self.retry) {
            (_, true) => Recording::Retry,
            (true, _) => Recording::Write,
            _ => Recording::No,
        };
        apply
    }
}

/// Arguments of `target unapply`.
#[derive(Args, Debug)]
pub struct UnapplyArgs {
    /// The unit of systemd that is stopping. If it is restarted and the configuration has mistakes, no export or port
    /// ends, since the configuration could not be applied again
    #[arg(long)]
    pub unit: Option<String>,

    /// Fail when a drive has not finished its current requests within this time; the export then ends as
    /// soon as the drive has finished [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds::<1, 604_800>)]
    pub timeout: Option<u32>,
}

impl UnapplyArgs {
    /// Returns the time limit, or `None` for no limit.
    pub fn timeout(&self) -> Option<Duration> {
        seconds(self.timeout)
    }
}

fn seconds(number: Option<u32>) -> Option<Duration> {
    number.map(|seconds| Duration::from_secs(seconds.into()))
}

/// Arguments of `target allow`.
#[derive(Args, Debug)]
pub struct AllowArgs {
    /// The volume's name
    pub name: VolumeName,

    /// The hosts, with the ids that `hcablk host-id` prints there
    #[arg(required = true, value_name = "UUID", value_parser = hostid::parse)]
    pub hosts: Vec<Uuid>,
}

/// Arguments of `target name-host`.
#[derive(Args, Debug)]
pub struct NameHostArgs {
    /// The host's id
    #[arg(value_name = "UUID", value_parser = hostid::parse)]
    pub host: Uuid,

    /// The name
    #[arg(
        value_name = "NAME",
        required_unless_present = "remove",
        conflicts_with = "remove"
    )]
    pub name: Option<HostName>,

    /// Remove the name of the host
    #[arg(long)]
    pub remove: bool,
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

/// Arguments of `target evict`.
#[derive(Args, Debug)]
pub struct EvictArgs {
    /// The volume's name
    pub name: VolumeName,

    /// The hosts, with the ids that `hcablk host-id` prints there; all are evicted before the command waits for any
    #[arg(required = true, value_name = "UUID", value_parser = hostid::parse)]
    pub hosts: Vec<Uuid>,

    /// Fail when the drive has not finished the requests of these hosts within this time; they stay evicted [default:
    /// no limit]
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds::<1, 604_800>)]
    pub timeout: Option<u32>,
}

impl EvictArgs {
    /// Returns the time limit, or `None` for no limit.
    pub fn timeout(&self) -> Option<Duration> {
        seconds(self.timeout)
    }
}

/// Arguments of `target admit`.
#[derive(Args, Debug)]
pub struct AdmitArgs {
    /// The volume's name
    pub name: VolumeName,

    /// The hosts' ids
    #[arg(required = true, value_name = "UUID", value_parser = hostid::parse)]
    pub hosts: Vec<Uuid>,

    /// Do not fail when a host was not evicted anyway
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

    /// Memory for the data of each session, in MiB; 0: 16 MiB or, if that is more, twice the largest request for each
    /// queue pair [default: 0]
    #[arg(long, value_name = "MIB", value_parser = options::size::<MIB, 0, 1024, 1>)]
    pub buffer_mib: Option<u32>,

    /// The memory limit of all sessions together, in MiB [default: half of the free memory, 1024 to 4096]
    #[arg(long, value_name = "MIB", value_parser = options::size::<MIB, 1, 1_048_576, 1>)]
    pub memory_mib: Option<u32>,

    /// Receive buffers for each queue; 0: as many as the client asks for [default: 0]
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
    pub ids: Vec<String>,

    /// Every port
    #[arg(long)]
    pub all: bool,

    /// Do not fail when there is no such port
    #[arg(long)]
    pub if_exists: bool,
}

/// Arguments of `target times`.
#[derive(Args, Debug)]
pub struct TargetTimesArgs {
    /// Only this volume
    pub name: Option<VolumeName>,

    /// Start or stop measuring before printing; earlier measurements stay
    #[arg(long, value_name = "on|off")]
    pub measure: Option<Switch>,
}
