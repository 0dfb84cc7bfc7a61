// SPDX-License-Identifier: GPL-2.0

//! The arguments of the commands for disks of this machine: `connect`, `disconnect` and `times`.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{value_parser, Args, ValueEnum};
use uuid::Uuid;

use super::Switch;
use crate::config::value::options;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Result};
use crate::hostid;
use crate::initiator::{Connect, Discover, Which};
use crate::names::{DeviceName, VolumeName};
use crate::output::columns;
use crate::target::DEFAULT_PORT;
use crate::tuning::Tuning;

/// Arguments of `connect`.
#[derive(Args, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of the command"
)]
pub struct ConnectArgs {
    /// The target's address or host name; without VOLUME: a disk of the configuration
    #[arg(value_name = "ADDRESS|DISK", required_unless_present = "all")]
    pub address: Option<String>,

    /// The volume's name at the target
    #[arg(conflicts_with = "all")]
    pub volume: Option<VolumeName>,

    /// Every enabled disk of the configuration; with ADDRESS: every volume that the target offers this host
    #[arg(long)]
    pub all: bool,

    /// For disks of the configuration: if the target is down or does not allow this host, retry for this time
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true,
        value_parser = options::seconds::<0, 604_800>)]
    pub wait: u32,

    /// The target's port
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = value_parser!(u16).range(1..))]
    pub port: u16,

    /// The disk's name in `hcablk list` [default: the volume's name]
    #[arg(long)]
    pub name: Option<DeviceName>,

    /// The address of a further path, which is another address of the same target machine; may be repeated. The first
    /// path that can be connected creates the disk
    #[arg(long = "path", value_name = "ADDRESS[:PORT]")]
    pub paths: Vec<Endpoint>,

    /// Add a path for each portal that the target reports, now and whenever they change: see `hcablk path sync`
    #[arg(long = "paths", value_name = "auto", conflicts_with = "paths")]
    pub paths_auto: Option<PathsFrom>,

    /// Serve the disk in user space, through the program hcablk-ublk and the kernel's ublk driver, as /dev/ublkbN: for
    /// kernels without the modules of hcablk. A unit of systemd keeps the program running. Such a disk has one path,
    /// and supports only these settings: --queues, --queue-depth, --connect-timeout, --ctrl-loss-tmo,
    /// --fast-io-fail-tmo, --keep-alive-tmo, --reconnect-delay, --small-read, --eager-write and --no-remote-invalidate
    #[arg(long)]
    pub user: bool,

    /// Also write the disk into the configuration: into the file that has the table [disk.NAME], or else into
    /// /etc/hcablk/hcablk.toml. If that fails, the disk is not connected. With `systemctl enable hcablk@NAME` it is
    /// connected at each start
    #[arg(long)]
    pub persist: bool,

    /// Connect only if the volume is the one with this wwid
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub wwid: Option<Uuid>,

    /// This host's id, if not the one of `hcablk host-id`
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub host_id: Option<Uuid>,

    /// Invalidate memory registrations on this host, and do not ask the target to invalidate them with its response
    #[arg(long)]
    pub no_remote_invalidate: bool,

    /// Connect even if this host has a key and the target's key is not known: the target's identity is not verified.
    /// For volumes that are exported with --insecure
    #[arg(long)]
    pub insecure: bool,

    /// The settings of the disk
    #[command(flatten)]
    pub tuning: Tuning,
}

/// The source of a disk's further paths.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PathsFrom {
    /// The portals that the target reports.
    Auto,
}

/// The kind of connection that `connect` makes.
pub enum Wanted<'a> {
    /// A volume at an address.
    Volume(Box<Connect>),
    /// A volume at an address, as a disk in user space.
    User(Box<Connect>),
    /// All volumes of the target at an address; the volume's name is ignored.
    Discovered(Box<Connect>),
    /// A disk of the configuration, or all.
    Configured(Option<&'a str>, Duration),
}

impl ConnectArgs {
    /// Returns the requested kind of connection.
    pub fn wanted(&self) -> Result<Wanted<'_>> {
        match (&self.address, &self.volume) {
            (Some(address), Some(volume)) => {
                if self.wait != 0 {
                    return Err(misused("--wait is for disks of the configuration"));
                }
                let connect = Box::new(self.connect(address, volume));
                Ok(if self.user {
                    Wanted::User(connect)
                } else {
                    Wanted::Volume(connect)
                })
            }
            (Some(address), None) if self.all => {
                if self.user {
                    return Err(misused("--user is for one volume"));
                }
                if self.wait != 0 || self.name.is_some() || self.wwid.is_some() {
                    return Err(misused("--wait, --name and --wwid are for one disk"));
                }
                // The name of each discovered volume replaces this one.
                let any = "any".parse().map_err(|why: String| misused(&why))?;
                Ok(Wanted::Discovered(Box::new(self.connect(address, &any))))
            }
            (disk, _) => {
                if self.has_options() {
                    return Err(misused(
                        "a disk of the configuration has its settings from there",
                    ));
                }
                let wait = Duration::from_secs(self.wait.into());
                Ok(Wanted::Configured(disk.as_deref(), wait))
            }
        }
    }

    /// Returns whether the arguments set any option of the disk.
    fn has_options(&self) -> bool {
        self.port != DEFAULT_PORT
            || self.name.is_some()
            || !self.paths.is_empty()
            || self.paths_auto.is_some()
            || self.wwid.is_some()
            || self.host_id.is_some()
            || self.no_remote_invalidate
            || self.insecure
            || self.user
            || self.persist
            || !self.tuning.attributes().is_empty()
    }

    fn connect(&self, address: &str, volume: &VolumeName) -> Connect {
        Connect {
            address: address.to_owned(),
            port: self.port,
            paths: self.paths.clone(),
            paths_auto: self.paths_auto.is_some(),
            volume: volume.clone(),
            name: self.name.clone(),
            host_id: self.host_id,
            expect_wwid: self.wwid,
            remote_invalidate: self.no_remote_invalidate.then_some(false),
            insecure: self.insecure,
            persist: self.persist,
            tuning: self.tuning.clone(),
        }
    }
}

fn misused(why: &str) -> Error {
    Error::new(Kind::Usage, why).advise("hcablk connect --help")
}

/// Arguments of `discover`.
#[derive(Args, Debug)]
pub struct DiscoverArgs {
    /// The target's address or host name
    pub address: String,

    /// The target's port
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = value_parser!(u16).range(1..))]
    pub port: u16,

    /// This host's id, if not the one of `hcablk host-id`
    #[arg(long, value_name = "UUID", value_parser = hostid::parse)]
    pub host_id: Option<Uuid>,

    /// Ask even if this host has a key and the target's key is not known: the target's identity is not verified
    #[arg(long)]
    pub insecure: bool,

    /// Fail when the target does not reply to a question within this time [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds::<1, 600>)]
    pub connect_timeout: Option<u32>,
}

impl DiscoverArgs {
    /// Converts the arguments to a discovery request.
    pub fn wanted(&self) -> Discover {
        Discover {
            key_of: None,
            pending_key: false,
            address: self.address.clone(),
            port: self.port,
            host_id: self.host_id,
            insecure: self.insecure,
            connect_timeout: self.connect_timeout,
        }
    }
}

/// Arguments of `disconnect`.
#[derive(Args, Debug)]
pub struct DisconnectArgs {
    /// The disk's name, or /dev/hcablkN or /dev/ublkbN
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub device: Option<String>,

    /// Disconnect every disk
    #[arg(long)]
    pub all: bool,

    /// Disconnect a disk even if it is in use or its requests hang: its requests fail. When the command returns, the
    /// disk is removed
    #[arg(long)]
    pub force: bool,

    /// While the disk is mounted or open, retry for this time
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_default_value = true,
        value_parser = options::seconds::<0, 604_800>)]
    pub wait: u32,

    /// Do not fail when there is no such disk
    #[arg(long)]
    pub if_exists: bool,
}

impl DisconnectArgs {
    /// Returns the devices that the arguments name. The parser ensures that exactly one of the two is given.
    pub fn which(&self) -> Which {
        self.device.clone().map_or(Which::All, Which::One)
    }
}

/// Arguments of `list`.
#[derive(Args, Debug)]
pub struct ListDisksArgs {
    /// Show only disks, with these columns, which are members of the JSON; sizes are bytes, times are seconds
    #[arg(long, value_name = "NAMES", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(columns::DISKS))]
    pub columns: Vec<String>,
}

/// Arguments of `acknowledge-loss`.
#[derive(Args, Debug)]
pub struct AcknowledgeLossArgs {
    /// The disk's name, or /dev/hcablkN
    pub disk: String,
}

/// Arguments of `times`.
#[derive(Args, Debug)]
pub struct TimesArgs {
    /// Only this disk: its name, or /dev/hcablkN
    pub name: Option<String>,

    /// Start or stop measuring before printing; earlier measurements stay
    #[arg(long, value_name = "on|off")]
    pub measure: Option<Switch>,
}
