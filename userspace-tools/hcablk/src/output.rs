// SPDX-License-Identifier: GPL-2.0

//! What commands have to say: as text for people, as JSON for programs.
//!
//! The JSON is one object with `"version": 1`. Within a version, members are added but never
//! renamed or removed, and their meaning stays; sizes are bytes, times are seconds, what is unknown
//! or does not apply is `null`.

mod configuration;
mod done;
mod evicted;
mod text;

use serde::{Serialize, Serializer};
use uuid::Uuid;

use crate::apply::plan::Pending;
use crate::apply::step::Step;
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::times::Times;

pub use done::{ConnectedDisk, Done};
pub use evicted::Evicted;

/// The version of the JSON output.
pub const VERSION: u32 = 1;

/// A device of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Its name in configfs.
    pub name: String,
    /// `/dev/hcablkN`, while there is a disk.
    pub device: Option<String>,
    /// `new`, `connecting`, `live`, `degraded`, `queueing`, `failing-fast`, `failing`, `failed` or
    /// `disconnecting`.
    pub state: String,
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
    /// The volume's name at the target.
    pub volume: String,
    /// The id that the target knows this host by.
    pub host_id: String,
    /// Which volume it is, while there is a disk.
    pub wwid: Option<String>,
    /// The disk's size.
    pub size_bytes: Option<u64>,
    /// Hardware queues in use.
    pub queues: Option<u32>,
    /// Queue pairs for polled I/O that were asked for.
    pub poll_queues: u32,
    /// Requests per queue.
    pub queue_depth: u32,
    /// Seconds until an unanswered request fails the connection.
    pub io_timeout: u32,
    /// Seconds to wait for the target when connecting.
    pub connect_timeout: u32,
    /// Seconds between two attempts to connect a lost disk again.
    pub reconnect_delay: u32,
    /// Seconds for which a lost disk is connected again; -1: for ever; 0: it is not.
    pub ctrl_loss_tmo: i64,
    /// Seconds for which requests of a lost disk wait; -1: as long as it is connected again.
    pub fast_io_fail_tmo: i64,
    /// Seconds for which the target may leave a keep-alive unanswered.
    pub keep_alive_tmo: u32,
    /// Whether the target may invalidate memory registrations.
    pub remote_invalidate: bool,
    /// Bytes of the largest read whose data is copied instead of registering memory for it.
    pub small_read: u32,
    /// Bytes of the largest write whose data goes with the request.
    pub small_write: u32,
    /// Bytes of the largest write whose data is put into memory that the target has granted.
    pub eager_write: u32,
    /// KiB of the largest request that is asked for.
    pub max_io_kib: u32,
    /// Requests that one message may have.
    pub message_requests: u32,
    /// Requests outstanding on a queue from which its interrupts are batched; 0: never.
    pub batch_upper: u32,
    /// Requests outstanding below which they are batched no more.
    pub batch_lower: u32,
    /// By which live path requests go.
    pub policy: String,
    /// The paths, if there are several.
    pub paths: Vec<DiskPath>,
    /// The session at the target.
    pub session: Option<Session>,
    /// Why the last connection failed or was lost.
    pub error: Option<String>,
}

/// A path of a disk that has several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskPath {
    /// Its number; 0 is the path by the device's own address.
    pub number: u8,
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
    /// `new`, `connecting`, `live`, `waiting` or `refused`. Of path 0 only what the disk's state
    /// tells: `live`, `lost` (not live), `new`, or nothing.
    pub state: Option<String>,
    /// Why it is not live.
    pub error: Option<String>,
}

/// A path by its number and where it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathRef {
    /// Its number.
    pub number: u8,
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
}

/// A session: an id, and the epoch that grows with each reconnection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Session {
    /// 16 hexadecimal digits.
    pub id: String,
    /// The epoch.
    pub epoch: u64,
}

impl Session {
    /// Reads `<id> <epoch>`; nothing if there is no session.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, epoch) = text.split_once(' ')?;
        let session = Self {
            id: id.to_owned(),
            epoch: epoch.trim().parse().ok()?,
        };
        // The id 0 is that of a device that has not connected yet.
        (!session.id.bytes().all(|digit| digit == b'0')).then_some(session)
    }
}

/// Returns whether a list that an attribute shows was cut off: then its last line is dots.
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
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a member of the JSON"
)]
pub struct Volume {
    /// The name that clients ask for.
    pub name: String,
    /// The block device or file.
    pub path: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// By what way data goes.
    pub mode: String,
    /// MiB of its cache; 0: none.
    pub cache_mib: u32,
    /// KiB of the chunks that large requests move in; 0: they move as a whole.
    pub chunk_kib: u32,
    /// Which volume it is, whatever its name.
    pub wwid: Option<String>,
    /// Whether clients can connect.
    pub enabled: bool,
    /// Its size; 0 while not enabled.
    pub size_bytes: u64,
    /// The hosts that may connect.
    pub hosts: Vec<Uuid>,
    /// The sessions there are.
    pub clients: Vec<Client>,
    /// There are more: the kernel shows no more text.
    #[serde(skip_serializing_if = "is_false")]
    pub clients_cut: bool,
    /// The hosts that are refused until they are admitted.
    pub evicted: Vec<Evicted>,
    /// There are more: the kernel shows no more text.
    #[serde(skip_serializing_if = "is_false")]
    pub evicted_cut: bool,
    /// Why it was not enabled.
    pub error: Option<String>,
}

/// A client's session at a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Client {
    /// The client's host id.
    pub host: String,
    /// The session's id.
    pub session: String,
    /// Its epoch.
    pub epoch: u64,
    /// Its queue pairs.
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
pub struct Port {
    /// Its name in configfs.
    pub id: String,
    /// The address it listens at.
    pub address: String,
    /// The port number.
    pub port: u16,
    /// Whether it listens.
    pub enabled: bool,
    /// Transfer buffers and the eager ring of a session; 0: by what it asks for.
    pub buffer_mib: u32,
    /// All memory of all sessions together.
    pub memory_mib: u32,
    /// Receive buffers per queue; 0 is the depth the client asks for.
    pub queue_credits: u32,
    /// The sessions of its clients.
    pub sessions: Vec<PortSession>,
    /// There are more: the kernel shows no more text.
    #[serde(skip_serializing_if = "is_false")]
    pub sessions_cut: bool,
    /// Why it does not listen.
    pub error: Option<String>,
}

/// A client's session as a port shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortSession {
    /// The volume it uses.
    pub volume: String,
    /// Whose it is.
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

/// A port by its id and where it listens.
#[derive(Clone, Debug, Serialize)]
pub struct PortRef {
    /// Its name in configfs.
    pub id: String,
    /// The address it listens at.
    pub address: String,
    /// The port number.
    pub port: u16,
}

/// The counters of one device, volume or port.
#[derive(Clone, Debug, Serialize)]
pub struct Counters {
    /// Whose they are.
    pub name: String,
    /// Name and value, in the driver's order.
    #[serde(serialize_with = "as_map")]
    pub counters: Vec<(String, u64)>,
}

fn as_map<S: Serializer>(pairs: &[(String, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

/// What a command has to say. The members are those of the JSON, beside `version` and `notes`.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
#[expect(
    missing_docs,
    reason = "the members are named as in JSON and documented in their types"
)]
pub enum Report {
    /// `list`.
    Devices { devices: Vec<Device> },
    /// `stats`.
    DeviceStats { devices: Vec<Counters> },
    /// `times`.
    DeviceTimes { devices: Vec<Times> },
    /// `target times`.
    ExportTimes { volumes: Vec<Times> },
    /// `target list`.
    Exports {
        volumes: Vec<Volume>,
        ports: Vec<Port>,
    },
    /// `target stats`.
    ExportStats {
        volumes: Vec<Counters>,
        ports: Vec<Counters>,
    },
    /// `host-id`.
    HostId {
        host_id: Uuid,
        source: crate::hostid::Source,
    },
    /// `apply`.
    Applied {
        dry_run: bool,
        steps: Vec<Step>,
        pending: Vec<Pending>,
        not_configured: Vec<String>,
    },
    /// `config diff`.
    Difference {
        same: bool,
        steps: Vec<Step>,
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

/// What a successful command has to say, and remarks beside it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The answer.
    pub report: Report,
    /// Remarks: to standard error as text, `notes` in JSON.
    pub notes: Vec<String>,
    /// The exit code is that of this failure, though there is an answer.
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
    /// Makes an answer without remarks.
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

    /// Returns the answer as JSON.
    pub fn to_json(&self) -> String {
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
    json(&Envelope {
        version: VERSION,
        content: &Content { error },
        notes: &[],
    })
}

fn json(value: &impl Serialize) -> String {
    // Only maps with keys that are no strings could fail, and there is none.
    let mut text = serde_json::to_string_pretty(value)
        .unwrap_or_else(|error| format!("{{\"bug\": \"{error}\"}}"));
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions() {
        assert_eq!(
            Session::parse("0123456789abcdef 3"),
            Some(Session {
                id: "0123456789abcdef".to_owned(),
                epoch: 3
            })
        );
        for none in ["", "0000000000000000 0", "x", "x y"] {
            assert_eq!(Session::parse(none), None, "{none:?}");
        }
    }

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
