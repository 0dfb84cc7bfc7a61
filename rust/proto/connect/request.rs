// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connection requests, which an initiator sends.

use super::{
    super::{
        name::{HostId, VolumeName, VOLUME_NAME_LEN},
        wire::{prefix, Reader, Writer},
        ADMIN_QUEUE, ATTACHED_MAX, DEPTH_MAX, DEPTH_MIN, MAGIC, QUEUES_MAX, TRANSFER_MAX,
        TRANSFER_USUAL, VERSION_MAX, VERSION_MIN, VERSION_OF_HOST, VERSION_OF_VOLUME,
    },
    Epoch, Reason, SessionId, REQUEST_LEN, TRANSFER_UNIT,
};

/// Flag in the byte of the queue pair's number: the queue pair replaces the one with this number.
const REPLACE: u8 = 0x80;
// No number of a queue pair, replacing or not, is that of the admin queue pair.
const _: () = assert!(QUEUES_MAX <= ADMIN_QUEUE & !REPLACE);

/// Flag in the field of the largest data length: the session continues the writes of its former
/// epochs.
const RESUME: u16 = 0x8000;
/// Flag in the same field: at most one volume will be attached to the session.
const ALONE: u16 = 0x2000;
const _: () = assert!(TRANSFER_MAX / TRANSFER_UNIT < ALONE as u32);

/// An initiator's request to connect one queue pair of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Lowest version spoken.
    pub version_min: u8,
    /// Highest version spoken.
    pub version_max: u8,
    /// Requests that may be in flight on this queue pair; in the request of the admin queue pair,
    /// on each of the others.
    pub depth: u16,
    /// The number of the queue pair in its session, from 0, or [`ADMIN_QUEUE`].
    pub queue: u8,
    /// The queue pair replaces the one of this number that the live session may have. Never set for
    /// the admin queue pair.
    pub replace: bool,
    /// Number of queue pairs of the session, besides the admin queue pair.
    pub queues: u8,
    /// A flush must cover the writes of the session's former epochs, and end with their unreported
    /// errors. Otherwise the session starts without earlier writes.
    pub resume: bool,
    /// At most one volume will be attached to the session. Only for a session whose volumes are
    /// attached later; a session that names its volume has no other in any case.
    pub alone: bool,
    /// Largest data length in bytes that the initiator would like to request, a multiple of 4096:
    /// [`TRANSFER_USUAL`] to [`TRANSFER_MAX`].
    pub largest: u32,
    /// The session.
    pub session: SessionId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The requesting host.
    pub host: HostId,
    /// The volume; `None`: volumes are attached later.
    pub volume: Option<VolumeName>,
}

impl ConnectRequest {
    /// Returns whether the request is for the admin queue pair, which starts a session.
    pub fn is_admin(&self) -> bool {
        self.queue == ADMIN_QUEUE
    }

    /// Encodes the request.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        Writer::new()
            .u32(MAGIC)
            .u8(self.version_min)
            .u8(self.version_max)
            .u16(self.depth)
            .u8(self.queue | if self.replace { REPLACE } else { 0 })
            .u8(self.queues)
            .u16(
                match self.largest {
                    0..=TRANSFER_USUAL => 0,
                    largest => (largest / TRANSFER_UNIT) as u16,
                } | if self.resume { RESUME } else { 0 }
                    | if self.alone { ALONE } else { 0 },
            )
            .u64(self.session.0)
            .u32(self.epoch.0)
            .bytes(self.host.to_wire())
            .bytes(
                self.volume
                    .map_or([0; VOLUME_NAME_LEN], VolumeName::to_wire),
            )
            .finish()
    }

    /// Reads a request. Bytes after the request are the transport's padding.
    ///
    /// The version comes first: a peer without a common version is refused for that, regardless of
    /// the rest of its message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let bytes: &[u8; REQUEST_LEN] = prefix(bytes).ok_or(Reason::Malformed)?;
        let mut r = Reader::new(bytes);
        if r.u32() != MAGIC {
            return Err(Reason::Malformed);
        }
        let version_min = r.u8();
        let version_max = r.u8();
        if version_min > version_max {
            return Err(Reason::Malformed);
        }
        if version_min > VERSION_MAX || version_max < VERSION_MIN {
            return Err(Reason::Version);
        }
        let depth = r.u16();
        let queue = r.u8();
        let queues = r.u8();
        let largest = r.u16();
        let request = Self {
            version_min,
            version_max,
            depth,
            queue: match queue {
                ADMIN_QUEUE => queue,
                _ => queue & !REPLACE,
            },
            replace: queue != ADMIN_QUEUE && queue & REPLACE != 0,
            queues,
            resume: largest & RESUME != 0,
            alone: largest & ALONE != 0,
            largest: match u32::from(largest & !(RESUME | ALONE)) * TRANSFER_UNIT {
                0 => TRANSFER_USUAL,
                1..=TRANSFER_USUAL => return Err(Reason::Malformed),
                largest => largest,
            },
            session: SessionId(r.u64()),
            epoch: Epoch(r.u32()),
            host: HostId::from_wire(r.bytes()).map_err(|_| Reason::Malformed)?,
            volume: match r.bytes() {
                name if name == [0; VOLUME_NAME_LEN] => None,
                name => Some(VolumeName::from_wire(name).map_err(|_| Reason::Malformed)?),
            },
        };
        if !(DEPTH_MIN..=DEPTH_MAX).contains(&request.depth)
            || !(1..=QUEUES_MAX).contains(&request.queues)
            || (!request.is_admin() && request.queue >= request.queues)
            || request.largest > TRANSFER_MAX
            || request.session.0 == 0
            || request.epoch.0 == 0
            || (request.alone && request.volume.is_some())
            || version_max < request.version()
        {
            return Err(Reason::Malformed);
        }
        if version_min > request.version() {
            return Err(Reason::Version);
        }
        Ok(request)
    }

    /// Returns the version to use, which depends on whether the request names a volume.
    pub fn version(&self) -> u8 {
        match self.volume {
            Some(_) => VERSION_OF_VOLUME,
            None => VERSION_OF_HOST,
        }
    }

    /// Returns the maximum number of volumes of the session.
    pub fn volumes(&self) -> u16 {
        match self.volume.is_some() || self.alone {
            true => 1,
            false => ATTACHED_MAX,
        }
    }
}
