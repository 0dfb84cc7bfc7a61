// SPDX-License-Identifier: GPL-2.0

//! The output of commands: as text for people, as JSON for programs.
//!
//! The JSON is one object with `"version": 1`. Within a version, members are added but never renamed or removed, and
//! their meaning stays; sizes are bytes, times are seconds, unknown or inapplicable values are `null`.

pub mod columns;
mod configuration;
mod device;
mod discovered;
mod done;
mod evicted;
mod health;
pub(crate) mod numbers;
mod rates;
mod table;
pub(crate) mod text;
mod trace;

use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::apply::step::{Pending, PlanStep};
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::events::Event;
use crate::host_names::HostNames;
use crate::system::System;
use crate::times::Times;
use crate::trace::merge::{Machine, MergedRequest};

pub use device::{Device, DiskKind, DiskPath, PathRef, Session};
pub use discovered::{Discovered, Portal};
pub use done::{ConnectedDisk, Done, ReportPart, SyncedDisk};
pub use evicted::Evicted;
pub use health::{Finding, Level};
pub use rates::{PerSecond, Rates, StateRates};

/// The version of the JSON output.
pub const VERSION: u32 = 1;

/// Returns whether the kernel has cut off a list in an attribute: then its last line is dots.
pub fn is_cut(text: &str) -> bool {
    text.lines().next_back() == Some("...")
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// A volume of this machine's target.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a member of the JSON"
)]
pub struct Volume {
    /// The name of the volume for clients.
    pub name: String,
    /// The block device or file.
    pub path: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether hosts without a key may connect.
    pub insecure: bool,
    /// How the data moves.
    pub mode: String,
    /// When writes are acknowledged: `back` (before the data is on stable media) or `through`; `null` if the kernel
    /// module has no such setting.
    pub write_cache: Option<String>,
    /// Whether the export fails when its reservations cannot be kept; `null` if the kernel module has no such
    /// setting.
    pub keep_reservations: Option<bool>,
    /// MiB of the volume's cache; 0: none.
    pub cache_mib: u32,
    /// KiB of the chunks that large requests move in; 0: they move as a whole.
    pub chunk_kib: u32,
    /// The id of the volume, independent of its name.
    pub wwid: Option<String>,
    /// Whether clients can connect.
    pub enabled: bool,
    /// The volume's size; 0 while it is not enabled.
    pub size_bytes: u64,
    /// The hosts that may connect.
    pub hosts: Vec<Uuid>,
    /// The volume's sessions.
    pub clients: Vec<Client>,
    /// Whether there are more sessions than the kernel shows.
    #[serde(skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schemars", schemars(default))]
    pub clients_cut: bool,
    /// The hosts that are refused until they are admitted.
    pub evicted: Vec<Evicted>,
    /// Whether there are more evicted hosts than the kernel shows.
    #[serde(skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schemars", schemars(default))]
    pub evicted_cut: bool,
    /// The reason why the volume is not enabled.
    pub error: Option<String>,
}

/// A client's session at a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Client {
    /// The client's host id.
    pub host: String,
    /// The session's id.
    pub session: String,
    /// The session's epoch.
    pub epoch: u64,
    /// The session's queue pairs.
    pub queues: u32,
}

impl Client {
    /// Reads lines of `<host> <session> <epoch> <queues>`.
    pub fn parse_all(text: &str) -> Vec<Self> {
        let parse = |line: &str| {
            let mut fields = line.split_whitespace();
            Some(Self {
                host: fields.next()?.to_owned(),
                session: fields.next()?.to_owned(),
                epoch: fields.next()?.parse().ok()?,
                queues: fields.next()?.parse().ok()?,
            })
        };
        text.lines().filter_map(parse).collect()
    }
}

/// A port of this machine's target.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Port {
    /// The port's name in configfs.
    pub id: String,
    /// The address at which the port listens.
    pub address: String,
    /// The port number.
    pub port: u16,
    /// Whether the port listens.
    pub enabled: bool,
    /// MiB for the transfer buffers and the eager ring of a session; 0: the size follows the session's request.
    pub buffer_mib: u32,
    /// The memory limit of all sessions together, in MiB.
    pub memory_mib: u32,
    /// Receive buffers per queue; 0: the depth that the client requests.
    pub queue_credits: u32,
    /// The sessions of the port's clients.
    pub sessions: Vec<PortSession>,
    /// Whether there are more sessions than the kernel shows.
    #[serde(skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schemars", schemars(default))]
    pub sessions_cut: bool,
    /// The reason why the port does not listen.
    pub error: Option<String>,
}

/// A client's session as a port shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PortSession {
    /// The volume of the session.
    pub volume: String,
    /// The session.
    #[serde(flatten)]
    pub client: Client,
}

impl PortSession {
    /// Reads lines of `<volume> <host> <session> <epoch> <queues>`.
    pub fn parse_all(text: &str) -> Vec<Self> {
        let parse = |line: &str| {
            let (volume, client) = line.split_once(' ')?;
            Some(Self {
                volume: volume.to_owned(),
                client: Client::parse_all(client).pop()?,
            })
        };
        text.lines().filter_map(parse).collect()
    }
}

/// A port with its id, address and number.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PortRef {
    /// The port's name in configfs.
    pub id: String,
    /// The address at which the port listens.
    pub address: String,
    /// The port number.
    pub port: u16,
}

/// The counters of one device, volume or port.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Counters {
    /// The name of the device, volume or port.
    pub name: String,
    /// Name and value, in the driver's order.
    #[serde(serialize_with = "as_map")]
    #[cfg_attr(
        feature = "schemars",
        schemars(with = "std::collections::BTreeMap<String, u64>")
    )]
    pub counters: Vec<(String, u64)>,
}

fn as_map<S: Serializer>(pairs: &[(String, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// The output of a command. The members are those of the JSON, in addition to `version` and `notes`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(untagged)]
#[expect(
    missing_docs,
    reason = "the members are named as in JSON and documented in their types"
)]
pub enum Report {
    /// `list`.
    Devices {
        devices: Vec<Device>,
        /// The columns of the text; empty: the usual ones.
        #[serde(skip)]
        columns: Vec<String>,
    },
    /// `stats`.
    DeviceStats { devices: Vec<Counters> },
    /// `stats` with an interval, each time.
    DeviceRates {
        interval_ns: u64,
        devices: Vec<Rates>,
        #[serde(skip)]
        heading: bool,
    },
    /// `target stats` with an interval, each time.
    VolumeRates {
        interval_ns: u64,
        volumes: Vec<Rates>,
        #[serde(skip)]
        heading: bool,
    },
    /// `events`, each of them.
    Event(Box<Event>),
    /// `trace show`.
    Trace {
        machines: Vec<Machine>,
        requests: Vec<MergedRequest>,
        /// The files that were written.
        written: Vec<String>,
        #[serde(skip)]
        one: bool,
    },
    /// `metrics`.
    Metrics { metrics: String },
    /// `check`.
    Health {
        failures: usize,
        warnings: usize,
        findings: Vec<Finding>,
    },
    /// The output of a command that has printed all of it while it ran.
    #[serde(skip)]
    Printed,
    /// `times`.
    DeviceTimes { devices: Vec<Times> },
    /// `target times`.
    ExportTimes { volumes: Vec<Times> },
    /// `target list`.
    Exports {
        volumes: Vec<Volume>,
        ports: Vec<Port>,
        /// The names of these hosts in the configuration, by their ids; left out without names.
        #[serde(skip_serializing_if = "HostNames::is_empty")]
        #[cfg_attr(feature = "schemars", schemars(default))]
        host_names: HostNames,
        /// The columns of the text; empty: the usual ones.
        #[serde(skip)]
        columns: Vec<String>,
    },
    /// `target stats`.
    ExportStats {
        volumes: Vec<Counters>,
        ports: Vec<Counters>,
    },
    /// `discover`.
    Discovered {
        volumes: Vec<Discovered>,
        portals: Vec<Portal>,
    },
    /// `key show`.
    Key { key: String },
    /// `host-id`.
    HostId {
        host_id: Uuid,
        source: crate::hostid::Source,
    },
    /// `apply`.
    Applied {
        dry_run: bool,
        steps: Vec<PlanStep>,
        pending: Vec<Pending>,
        not_configured: Vec<String>,
    },
    /// `config diff`.
    Difference {
        same: bool,
        steps: Vec<PlanStep>,
        not_configured: Vec<String>,
    },
    /// `config check`.
    Checked {
        files: Vec<String>,
        exports: usize,
        ports: usize,
        disks: usize,
    },
    /// `config show`.
    Configuration {
        #[cfg_attr(
            feature = "schemars",
            schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")
        )]
        config: Config,
        #[serde(skip)]
        toml: String,
    },
    /// `completions`.
    Script { script: String },
    /// Every command that changes something.
    Done { result: Done },
}

impl From<Done> for Report {
    fn from(result: Done) -> Self {
        Self::Done { result }
    }
}

impl Report {
    /// Records that the command changed something, if `is_changed`.
    pub(crate) fn set_changed(&mut self, is_changed: bool) {
        if let Self::Done {
            result: Done::Connect { changed, .. } | Done::Export { changed, .. },
        } = self
        {
            *changed |= is_changed;
        }
    }

    /// Adds the configured names of the hosts in the report.
    pub(crate) fn name_hosts(&mut self, system: &dyn System) {
        match self {
            Self::Exports {
                volumes,
                host_names,
                ..
            } => {
                let volumes = &*volumes;
                let is_shown = |id: &Uuid| {
                    volumes.iter().any(|volume| {
                        volume.hosts.contains(id)
                            || volume.evicted.iter().any(|one| one.host == *id)
                            || volume
                                .clients
                                .iter()
                                .any(|client| client.host == id.to_string())
                    })
                };
                *host_names = HostNames::read(system).only(is_shown);
            }
            Self::Done {
                result:
                    Done::Allow {
                        hosts, host_names, ..
                    }
                    | Done::Forbid {
                        hosts, host_names, ..
                    }
                    | Done::Evict {
                        hosts, host_names, ..
                    }
                    | Done::Admit {
                        hosts, host_names, ..
                    },
            } => *host_names = HostNames::read(system).only(|id| hosts.contains(id)),
            _ => (),
        }
    }

    /// Sets the columns of a list of disks or volumes.
    pub(crate) fn set_columns(&mut self, wanted: &[String]) {
        if let Self::Devices { columns, .. } | Self::Exports { columns, .. } = self {
            *columns = wanted.to_vec();
        }
    }

    /// Returns whether the command changed anything; `None` for a command that only shows something, or whose report
    /// does not say.
    pub fn is_changed(&self) -> Option<bool> {
        match self {
            Self::Done { result } => result.is_changed(),
            Self::Applied { steps, .. } => Some(!steps.is_empty()),
            _ => None,
        }
    }
}

/// Prints a part of the output while the command runs; returns whether the output still has a reader.
pub type Say<'a> = dyn FnMut(&Report) -> crate::error::Result<bool> + 'a;

impl Report {
    /// Formats a part of the output of a running command as a line of JSON.
    pub fn to_json_line(&self) -> String {
        let envelope = Envelope {
            version: VERSION,
            content: self,
            notes: &[],
        };
        let mut text = serde_json::to_string(&envelope).unwrap_or_else(|error| bug(&error));
        text.push('\n');
        text
    }
}

/// The output of a successful command, and its remarks.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The output.
    pub report: Report,
    /// Remarks: written to standard error, or `notes` in JSON.
    pub notes: Vec<String>,
    /// The class of failure whose exit code the command returns although it has output.
    pub exit: Option<Kind>,
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    version: u32,
    #[serde(flatten)]
    content: &'a T,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    notes: &'a [String],
}

impl Outcome {
    /// Makes an outcome without remarks.
    pub fn new(report: impl Into<Report>) -> Self {
        Self {
            report: report.into(),
            notes: Vec::new(),
            exit: None,
        }
    }

    /// Adds a remark.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Returns the output as JSON; empty if all of it was printed before.
    pub fn to_json(&self) -> String {
        if matches!(self.report, Report::Printed) {
            return String::new();
        }
        json(&Envelope {
            version: VERSION,
            content: &self.report,
            notes: &self.notes,
        })
    }
}

/// Returns a failure as JSON: `{"version": 1, "error": {…}}`.
pub fn error_json(error: &Error) -> String {
    #[derive(Serialize)]
    struct Content<'a> {
        error: &'a Error,
    }
    let mut error = error.clone();
    error.advice = Some(error.advice_or_usual());
    json(&Envelope {
        version: VERSION,
        content: &Content { error: &error },
        notes: &[],
    })
}

fn json(value: &impl Serialize) -> String {
    // Only a map whose keys are not strings could fail, and there is none.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_else(|error| bug(&error));
    text.push('\n');
    text
}

fn bug(error: &serde_json::Error) -> String {
    format!("{{\"bug\": \"{error}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_are_cut_off_are_skipped() {
        let clients = Client::parse_all("h1 s1 1 2\nh2 s2 1\n\n");
        assert_eq!(clients.len(), 1);
        assert_eq!(clients[0].queues, 2);
    }

    #[test]
    fn sessions_of_ports() {
        let sessions = PortSession::parse_all("data h1 s1 1 2\nshort\n");
        assert_eq!(sessions.len(), 1);
        assert_eq!(
            (sessions[0].volume.as_str(), sessions[0].client.queues),
            ("data", 2)
        );
    }
}
