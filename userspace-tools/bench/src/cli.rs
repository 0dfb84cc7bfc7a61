// SPDX-License-Identifier: GPL-2.0

//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{value_parser, Args, Parser, Subcommand, ValueEnum};

/// Measure hcablk on your own machines, and check that an HCA works with it
///
/// An experiment runs on the client, and starts its other part on the target over ssh. Without --ssh and --through this
/// machine runs both parts. The experiment exports the target's drive --drive as a volume of its own, connects,
/// measures or verifies, and restores both machines, also after ^C or an error.
///
/// Each experiment leaves a folder with one self-contained page (index.html), its numbers (result.json), and a
/// description of both machines. The first line of the page says whether its times are real, or an emulator's.
#[derive(Debug, Parser)]
#[command(name = "hcablk-bench", version, max_term_width = 100, after_long_help = EXAMPLES)]
pub(crate) struct Cli {
    /// The experiment to run
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  hcablk bench selftest --ssh target --address 10.0.0.1 --drive /dev/nvme1n1
  hcablk bench selftest --ssh target --address 10.0.0.1 --drive /dev/nvme1n1 --minutes 60 --disruptive
  hcablk bench local-remote --ssh target --address 10.0.0.1 --drive /dev/nvme0n1 --read-only
  hcablk bench interference --ssh target --address 10.0.0.1 --drive /dev/nvme1n1

Exit codes: 0 done, and for selftest no check failed; 1 failed; 2 wrong usage, or the drive cannot be used; 5 another run is
under way, or the output is there already; 6 the target's part was not reached; 130 interrupted.";

/// An experiment.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure bandwidth and latency by request size and depth: hcablk in its modes, nvme-rdma, NBD and the local drive
    LocalRemote(LocalRemoteArgs),
    /// Measure how much serving requests and a computation on the target slow each other down
    Interference(InterferenceArgs),
    /// Divide the latency of requests, one at a time, into the times of drive, wire and processors, by size
    ///
    /// hcablk trace records requests on both machines. The recordings stay in the folder.
    Overlap(OverlapArgs),
    /// Measure the I/O of a transaction database, with optimizations switched off one by one, by kinds of clients
    ///
    /// Random reads and writes of 8 KiB, and a sequential log with FUA. No database runs.
    Database(DatabaseArgs),
    /// Measure how one volume serves more and more clients, and how one client uses more and more volumes
    Scale(ScaleArgs),
    /// Measure file I/O on OCFS2, by one client and by all: iozone's patterns, a web farm, and MPI-Tile-IO's pattern
    ///
    /// The clients become a cluster for the time of the experiment. Machines that already use OCFS2 are refused.
    Ocfs2(Ocfs2Args),
    /// Check on two machines everything that hcablk needs from an HCA, and propose settings for it
    ///
    /// One line for each check: pass, fail, or not possible here, with the reason. Checks write to the drive and read
    /// the data again, in every shape and over every data path; counters prove which path was used.
    Selftest(SelftestArgs),
    /// Write the man pages
    #[command(hide = true)]
    Man {
        /// The folder to write to; created if it does not exist
        folder: PathBuf,
    },
}

/// The part of a machine in an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Connects, coordinates and reports.
    Client,
    /// Serves the client's part over standard input and output.
    Target,
}

/// The options that all experiments share.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// The part of this machine: client, or target, which serves the client's requests over standard input and output and is what
    /// --ssh and --through start; the parts of further clients are started in the same way
    #[arg(long, value_enum, default_value_t = Role::Client)]
    pub(crate) role: Role,

    /// Start the target's part on this host over ssh, without a password
    #[arg(long, value_name = "HOST", conflicts_with = "through")]
    pub(crate) ssh: Option<String>,

    /// Start the target's part with this command, whose words are separated by blanks: its standard input and output
    /// must be those of `hcablk-bench selftest --role target` on the target
    #[arg(long, value_name = "COMMAND")]
    pub(crate) through: Option<String>,

    /// The target's address in the RDMA network
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<IpAddr>,

    /// The scratch drive on the target: its content is lost. A drive that is in use, or on which blkid finds a
    /// signature, is refused
    #[arg(long, value_name = "PATH")]
    pub(crate) drive: Option<String>,

    /// The folder to create for the page and the numbers [default: hcablk-EXPERIMENT]
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Print the numbers as JSON in place of text
    #[arg(long)]
    pub(crate) json: bool,

    /// Use this many bytes of the drive, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = value_parser!(u64).range(32..))]
    pub(crate) span: u64,

    /// The PCI device whose memory mode p2p uses, as `lspci -D` names it
    #[arg(long, value_name = "ADDRESS", default_value = "auto")]
    pub(crate) provider: String,
}

/// The clients of an experiment besides this machine.
#[derive(Args, Debug)]
pub(crate) struct Further {
    /// Start the parts of further clients on these hosts over ssh, without a password
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) clients: Vec<String>,

    /// Start the part of a further client with this command, as --through does for the target; may be repeated
    #[arg(long, value_name = "COMMAND")]
    pub(crate) client_through: Vec<String>,
}

/// Arguments of `local-remote`.
#[derive(Args, Debug)]
pub(crate) struct LocalRemoteArgs {
    /// The common options
    #[command(flatten)]
    pub(crate) common: Common,

    /// Measure reads only; the drive may have a signature then
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Sizes of requests in bytes
    #[arg(long, value_delimiter = ',', default_value = "4096,16384,65536,262144,1048576,4194304",
        value_parser = value_parser!(u64).range(512..=16_777_216))]
    pub(crate) sizes: Vec<u64>,

    /// Concurrent requests
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) depths: Vec<u32>,

    /// Measure each point for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,

    /// Measure only these: local, direct, whole, cached, p2p, nvme-rdma, nbd
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

/// Arguments of `interference`.
#[derive(Args, Debug)]
pub(crate) struct InterferenceArgs {
    /// The common options
    #[command(flatten)]
    pub(crate) common: Common,

    /// The size of requests in bytes
    #[arg(long, default_value_t = 1_048_576, value_parser = value_parser!(u64).range(512..=16_777_216))]
    pub(crate) size: u64,

    /// Concurrent requests
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,

    /// Measure each case for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,

    /// Threads of the target's computation; 0: one for each processor
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
}

/// Arguments of `overlap`.
#[derive(Args, Debug)]
pub(crate) struct OverlapArgs {
    /// The common options
    #[command(flatten)]
    pub(crate) common: Common,

    /// Measure reads only; the drive may have a signature then
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Sizes of requests in bytes
    #[arg(long, value_delimiter = ',', default_value = "4096,65536,131072,262144,524288,1048576",
        value_parser = value_parser!(u64).range(512..=1_048_576))]
    pub(crate) sizes: Vec<u64>,

    /// Record at least this many requests of each size
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) requests: u32,

    /// Measure each latency for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,

    /// Measure only these: local, direct, whole, cached, p2p, nvme-rdma, nbd
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

/// Arguments of `database`.
#[derive(Args, Debug)]
pub(crate) struct DatabaseArgs {
    /// The common options
    #[command(flatten)]
    pub(crate) common: Common,

    /// The size of requests for data in bytes
    #[arg(long, default_value_t = 8192, value_parser = value_parser!(u64).range(512..=65536))]
    pub(crate) size: u64,

    /// Concurrent requests for data
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,

    /// The size of the log's writes in bytes
    #[arg(long, default_value_t = 4096, value_parser = value_parser!(u64).range(512..=65536))]
    pub(crate) log_size: u64,

    /// Measure each variant for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,

    /// Measure only these: full, registration, invalidation, interrupts, messages, locks, none, polling, library,
    /// library-events, ublk, local, nvme-rdma, nbd
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

/// Arguments of `scale`.
#[derive(Args, Debug)]
pub(crate) struct ScaleArgs {
    /// The common options
    #[command(flatten)]
    pub(crate) common: Common,

    /// The further clients
    #[command(flatten)]
    pub(crate) further: Further,

    /// Numbers of volumes; the experiment ends with the first that is not possible here
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256", value_parser = value_parser!(u16).range(1..=999))]
    pub(crate) volumes: Vec<u16>,

    /// The size of requests in bytes
    #[arg(long, default_value_t = 4096, value_parser = value_parser!(u64).range(512..=1_048_576))]
    pub(crate) size: u64,

    /// Concurrent requests of each client, or of all volumes together
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) depth: u32,

    /// Measure each point for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,

    /// Measure clients only with these: local, direct, cached, nvme-rdma, nbd
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

/// Arguments of `ocfs2`.
#[derive(Args, Debug)]
pub(crate) struct Ocfs2Args {
    /// The common options
    #[command(flatten)]
    pub(crate) common: Common,

    /// The further clients
    #[command(flatten)]
    pub(crate) further: Further,

    /// The IPv4 addresses at which the clients reach each other, this machine's first [default: their source addresses
    /// to the target]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) node_addresses: Vec<IpAddr>,

    /// Sizes of requests in bytes
    #[arg(long, value_delimiter = ',', default_value = "65536,262144,1048576,4194304",
        value_parser = value_parser!(u64).range(4096..=16_777_216))]
    pub(crate) sizes: Vec<u64>,

    /// Read-ahead of the disks in KiB
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_value = "128,512",
        value_parser = value_parser!(u64).range(0..=65536))]
    pub(crate) read_ahead: Vec<u64>,

    /// The size of the file that fits into the memory of a client
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = value_parser!(u64).range(1..))]
    pub(crate) small_mib: u64,

    /// The size of the file that does not
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = value_parser!(u64).range(1..))]
    pub(crate) large_mib: u64,

    /// The number of files of the web farm
    #[arg(long, default_value_t = 70, value_parser = value_parser!(u64).range(1..=1000))]
    pub(crate) web_files: u64,

    /// The size of each of them
    #[arg(long, value_name = "KIB", default_value_t = 1024, value_parser = value_parser!(u64).range(4..=65536))]
    pub(crate) web_file_kib: u64,

    /// Elements of a tile in each direction; 16 tiles of 32 bytes for each element make the frame
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = value_parser!(u64).range(16..=4096))]
    pub(crate) tile: u64,

    /// Let the web farm read for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,

    /// Measure only these: direct, cached, p2p, nvme-rdma, nbd
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
}

/// Arguments of `selftest`.
#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    /// The common options
    #[command(flatten)]
    pub(crate) common: Common,

    /// Run only these checks; --list shows their names
    #[arg(long, value_delimiter = ',', value_name = "CHECK")]
    pub(crate) only: Vec<String>,

    /// List the checks and end
    #[arg(long)]
    pub(crate) list: bool,

    /// Write and verify for this long at the end; 0: not at all
    #[arg(long, default_value_t = 0)]
    pub(crate) minutes: u64,

    /// Also run checks that disturb other users: take the client's network port down for some seconds
    #[arg(long)]
    pub(crate) disruptive: bool,

    /// The number of requests with which a check determines the data path
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u64).range(4..=4096))]
    pub(crate) requests: u64,

    /// The MiB that each load writes and verifies
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = value_parser!(u64).range(1..))]
    pub(crate) load: u64,

    /// The seed of the random shapes
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}
