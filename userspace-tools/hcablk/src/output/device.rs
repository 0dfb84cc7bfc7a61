// SPDX-License-Identifier: GPL-2.0

//! Devices of this machine, as `list` shows them.

use serde::Serialize;

/// The server of a disk: the kernel module or a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// The kernel's driver.
    Kernel,
    /// The program `hcablk-ublk`, in user space.
    User,
}

impl std::fmt::Display for DiskKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::User => "user",
        })
    }
}

/// A device of this machine.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Device {
    /// The disk's name in configfs; in user space, the name of the disk, or of its device if the disk has none.
    pub name: String,
    /// The server of the disk. For a disk in user space (`user`), settings that it lacks are 0 or empty.
    pub kind: DiskKind,
    /// `/dev/hcablkN`, in user space `/dev/ublkbN`, while the disk exists.
    pub device: Option<String>,
    /// `new`, `connecting`, `live`, `degraded`, `queueing`, `failing-fast`, `failing`, `failed` or `disconnecting`. For
    /// a disk in user space `connecting`, `live`, `queueing`, `failed`, `left` (no program serves it) or `unknown` (its
    /// state cannot be read).
    pub state: String,
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
    /// The volume's name at the target.
    pub volume: String,
    /// The id of this host at the target.
    pub host_id: String,
    /// The id of the volume, while the disk exists.
    pub wwid: Option<String>,
    /// The disk's size.
    pub size_bytes: Option<u64>,
    /// Hardware queues in use.
    pub queues: Option<u32>,
    /// Requested queue pairs for polled I/O.
    pub poll_queues: u32,
    /// Requests per queue.
    pub queue_depth: u32,
    /// Seconds without a response after which a new queue pair replaces that of the request.
    pub io_timeout: u32,
    /// Time limit of connecting, in seconds.
    pub connect_timeout: u32,
    /// Seconds between two attempts to connect a lost disk again.
    pub reconnect_delay: u32,
    /// Seconds for which a lost disk is reconnected; -1: for ever; 0: not at all.
    pub ctrl_loss_tmo: i64,
    /// Seconds for which requests of a lost disk wait; -1: until the attempts to reconnect end.
    pub fast_io_fail_tmo: i64,
    /// Seconds without a response to a keep-alive after which the path is lost.
    pub keep_alive_tmo: u32,
    /// Whether the target may invalidate memory registrations.
    pub remote_invalidate: bool,
    /// Bytes of the largest read whose data is copied instead of registering memory for it.
    pub small_read: u32,
    /// Bytes of the largest write whose data goes with the request.
    pub small_write: u32,
    /// Bytes of the largest write that uses the target's eager ring.
    pub eager_write: u32,
    /// KiB of the largest request for which the disk asks the target.
    pub max_io_kib: u32,
    /// Requests that one message may have.
    pub message_requests: u32,
    /// Interrupts of a queue are batched from this number of its requests in flight on; 0: never.
    pub batch_upper: u32,
    /// Interrupts of a queue are no longer batched below this number of its requests in flight.
    pub batch_lower: u32,
    /// The rule that chooses the path of a request.
    pub policy: String,
    /// Whether the disk gets a path for each portal that its target reports.
    pub paths_auto: bool,
    /// The paths, if there are several.
    pub paths: Vec<DiskPath>,
    /// The session at the target.
    pub session: Option<Session>,
    /// The reason why the last connection failed or was lost.
    pub error: Option<String>,
    /// Whether the target lost acknowledged writes that no flush covered, so that every flush of this disk fails; `null`
    /// if the kernel module does not report it.
    pub lost_writes: Option<bool>,
}

impl Device {
    /// Returns whether the disk is known to have lost writes.
    pub fn has_lost_writes(&self) -> bool {
        self.lost_writes == Some(true)
    }

    /// Returns the state for tables, with a mark if writes are lost.
    pub(crate) fn state_and_loss(&self) -> String {
        let mark = if self.has_lost_writes() {
            ",lost-writes"
        } else {
            ""
        };
        format!("{}{mark}", self.state)
    }
}

/// A path of a disk that has several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DiskPath {
    /// The path's number; 0 is the path to the device's own address.
    pub number: u8,
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
    /// `new`, `connecting`, `live`, `lost` (its session ends), `waiting` or `refused`. For path 0, if the kernel does
    /// not report its state, the state derived from the disk's: `live`, `lost` (not live), `new`, or nothing.
    pub state: Option<String>,
    /// The reason why the path is not live.
    pub error: Option<String>,
}

/// A path with its number, address and port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct PathRef {
    /// The path's number.
    pub number: u8,
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
}

/// A session: an id, and the epoch that grows with each reconnection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Session {
    /// 16 hexadecimal digits.
    pub id: String,
    /// The epoch.
    pub epoch: u64,
}

impl Session {
    /// Reads `<id> <epoch>`; `None` if there is no session.
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
}
