// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connection set-up: request, reply and reject, each in the private data of
//! the connection manager's message of that name.

use super::{
    grant::Grant,
    message,
    name::{HostId, VolumeId, VolumeName},
    wire::{prefix, Reader, Writer},
    DEPTH_MAX, DEPTH_MIN, INLINE_MAX, MAGIC, QUEUES_MAX, TRANSFER_MAX, TRANSFER_USUAL, VERSION_MAX,
    VERSION_MIN,
};
use core::num::NonZeroU64;

/// Bytes of a request: all that InfiniBand leaves of the 92 bytes of a
/// connection request after the 36 of the IP addressing header.
pub const REQUEST_LEN: usize = 56;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 88;
/// Bytes of a reply at least: what is missing behind them counts as 0.
pub const REPLY_MIN_LEN: usize = 64;
/// Bytes of a reject.
pub const REJECT_LEN: usize = 16;

/// A session: chosen at random by the initiator, unchanged over reconnections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(pub u64);

/// How often a session was connected. As long as a target knows a session it
/// lets no older epoch of it in, and a newer one only when nothing of the older
/// one can reach the drive any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u32);

/// A target's memory of what it acknowledged to one session id and has not made durable, and of the
/// errors of write-backs that are still to be told; a random number, not 0. It is another one whenever
/// that memory is gone: the export began anew, or the target had no room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInstance(NonZeroU64);

impl ExportInstance {
    /// Returns the instance of this number, `None` for 0.
    pub fn of(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// The request makes no sense to this target.
    Malformed = 1,
    /// No version in common; the reject names the target's range.
    Version = 2,
    /// The target exports no volume of this name.
    UnknownVolume = 3,
    /// The volume exists but this host is not among those allowed.
    Forbidden = 4,
    /// Memory, queue pairs or sessions have run out.
    NoResources = 5,
    /// A newer epoch of this session has been seen, or this one is in use.
    StaleEpoch = 6,
    /// A queue other than the first one came before its session.
    NoSession = 7,
    /// The volume is being withdrawn.
    Withdrawn = 8,
    /// The session's buffers would pass the memory that the target may use for all sessions.
    NoMemory = 9,
}

impl Reason {
    /// Reads a reason off the wire.
    pub fn from_wire(value: u16) -> Option<Self> {
        Some(match value {
            1 => Self::Malformed,
            2 => Self::Version,
            3 => Self::UnknownVolume,
            4 => Self::Forbidden,
            5 => Self::NoResources,
            6 => Self::StaleEpoch,
            7 => Self::NoSession,
            8 => Self::Withdrawn,
            9 => Self::NoMemory,
            _ => return None,
        })
    }
}

/// What the largest data length is a multiple of.
const TRANSFER_UNIT: u32 = 4096;

/// Beside the number of a queue pair: it comes in place of the one with this number.
const REPLACE: u8 = 0x80;
const _: () = assert!(QUEUES_MAX <= REPLACE);

/// Beside the largest data length: the session goes on with what its former epochs wrote.
const RESUME: u16 = 0x8000;
const _: () = assert!(TRANSFER_MAX / TRANSFER_UNIT < RESUME as u32);

/// An initiator's request to connect one queue pair of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Lowest version spoken.
    pub version_min: u8,
    /// Highest version spoken.
    pub version_max: u8,
    /// Requests that may be in flight on this queue pair.
    pub depth: u16,
    /// Which of the session's queue pairs this is, from 0.
    pub queue: u8,
    /// It comes in place of the one that the live session may have there.
    pub replace: bool,
    /// How many queue pairs the session has.
    pub queues: u8,
    /// A flush is to cover what the session wrote in former epochs, and to end with errors of that
    /// which were not told. Otherwise the session begins with nothing written.
    pub resume: bool,
    /// Largest data length in bytes that it would like to ask for, a multiple of 4096:
    /// [`TRANSFER_USUAL`] to [`TRANSFER_MAX`].
    pub largest: u32,
    /// The session.
    pub session: SessionId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Who asks.
    pub host: HostId,
    /// For what.
    pub volume: VolumeName,
}

impl Request {
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
                } | if self.resume { RESUME } else { 0 },
            )
            .u64(self.session.0)
            .u32(self.epoch.0)
            .bytes(self.host.to_wire())
            .bytes(self.volume.to_wire())
            .finish()
    }

    /// Reads a request. Bytes after the request are the transport's padding.
    ///
    /// The version comes first: a peer that shares none is refused for that,
    /// whatever the rest of its message looks like.
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
            queue: queue & !REPLACE,
            replace: queue & REPLACE != 0,
            queues,
            resume: largest & RESUME != 0,
            largest: match u32::from(largest & !RESUME) * TRANSFER_UNIT {
                0 => TRANSFER_USUAL,
                1..=TRANSFER_USUAL => return Err(Reason::Malformed),
                largest => largest,
            },
            session: SessionId(r.u64()),
            epoch: Epoch(r.u32()),
            host: HostId::from_wire(r.bytes()).map_err(|_| Reason::Malformed)?,
            volume: VolumeName::from_wire(r.bytes()).map_err(|_| Reason::Malformed)?,
        };
        if !(DEPTH_MIN..=DEPTH_MAX).contains(&request.depth)
            || !(1..=QUEUES_MAX).contains(&request.queues)
            || request.queue >= request.queues
            || request.largest > TRANSFER_MAX
            || request.session.0 == 0
            || request.epoch.0 == 0
        {
            return Err(Reason::Malformed);
        }
        Ok(request)
    }

    /// Returns the version to use: the highest that both sides know.
    pub fn version(&self) -> u8 {
        self.version_max.min(VERSION_MAX)
    }
}

/// What a volume can do, as its target tells the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes.
    pub capacity: u64,
    /// log2 of the logical block size in bytes, 9 to 12.
    pub logical_block_shift: u8,
    /// log2 of the physical block size in bytes.
    pub physical_block_shift: u8,
    /// Writes are refused.
    pub read_only: bool,
    /// There is a volatile write cache: flush before relying on a write.
    pub write_cache: bool,
    /// Forced unit access is known.
    pub fua: bool,
    /// Largest data length of one request in bytes.
    pub max_transfer: u32,
    /// Largest discard in bytes; 0: there is none.
    pub max_discard: u32,
    /// Unit of discards in bytes, if there are any.
    pub discard_granularity: u32,
    /// Largest write of zeroes in bytes; 0: there is none.
    pub max_zeroes: u32,
}

impl Geometry {
    /// Returns whether the numbers fit each other, and a request whose largest transfer is
    /// `largest` bytes.
    fn is_sound(&self, largest: u32) -> bool {
        if !(9..=12).contains(&self.logical_block_shift) {
            return false;
        }
        let block = 1u32 << self.logical_block_shift;
        (self.logical_block_shift..=24).contains(&self.physical_block_shift)
            && (TRANSFER_UNIT..=largest).contains(&self.max_transfer)
            && self.max_transfer % TRANSFER_UNIT == 0
            && self.max_discard % block == 0
            && self.max_zeroes % block == 0
            && (self.max_discard == 0
                || self.discard_granularity >= block && self.discard_granularity % block == 0)
            && self.capacity > 0
            && self.capacity % u64::from(block) == 0
            && self.capacity <= i64::MAX as u64
    }
}

/// What a target can do: a bit of byte 5.
const QUIET: u8 = 1 << 0;
/// What a target does not do: a bit of byte 5.
const NO_READ: u8 = 1 << 1;
/// What a target can do: a bit of byte 5.
const MESSAGE_BATCHES: u8 = 1 << 2;

const READ_ONLY: u16 = 1 << 0;
const WRITE_CACHE: u16 = 1 << 1;
const FUA: u16 = 1 << 2;

/// A target's answer to a request it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The version that will be spoken.
    pub version: u8,
    /// Receive buffers posted: the initiator's first credits.
    pub credits: u16,
    /// The session and its epoch, repeated.
    pub session: SessionId,
    /// See `session`.
    pub epoch: Epoch,
    /// The volume.
    pub geometry: Geometry,
    /// Bytes of the largest write whose data may follow its request in the
    /// message; 0: none may.
    pub inline: u32,
    /// Requests may say that their answer need not wake up who sent them.
    pub quiet: bool,
    /// The target fetches no data by RDMA READ: writes come with their request,
    /// or in the eager ring.
    pub no_read: bool,
    /// A message may have several requests, as many as are no longer than what may
    /// follow the first.
    pub message_batches: bool,
    /// Memory for the data of writes.
    pub grant: Option<Grant>,
    /// Which volume it is, whatever its name, if the target has an id for it.
    pub id: Option<VolumeId>,
    /// What the target remembers of the session id's writes; `None` if it does not tell.
    pub instance: Option<ExportInstance>,
}

impl Reply {
    /// Returns how many requests a message to this target may carry.
    pub fn requests_per_message(&self) -> usize {
        match self.message_batches {
            true => {
                (1 + self.inline as usize / message::REQUEST_LEN).min(message::MESSAGE_REQUESTS_MAX)
            }
            false => 1,
        }
    }

    /// Encodes the reply.
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let g = &self.geometry;
        let grant = self.grant.unwrap_or(Grant {
            bytes: 0,
            key: 0,
            base: 0,
        });
        let mut abilities = 0;
        for (set, bit) in [
            (self.quiet, QUIET),
            (self.no_read, NO_READ),
            (self.message_batches, MESSAGE_BATCHES),
        ] {
            if set {
                abilities |= bit;
            }
        }
        let mut flags = 0;
        for (set, bit) in [
            (g.read_only, READ_ONLY),
            (g.write_cache, WRITE_CACHE),
            (g.fua, FUA),
        ] {
            if set {
                flags |= bit;
            }
        }
        Writer::new()
            .u32(MAGIC)
            .u8(self.version)
            .u8(abilities)
            .u16(self.credits)
            .u64(g.capacity)
            .u8(g.logical_block_shift)
            .u8(g.physical_block_shift)
            .u16(flags)
            .u32(g.max_transfer)
            .u64(self.session.0)
            .u32(self.epoch.0)
            .u32(self.inline)
            .u32(g.max_discard)
            .u32(g.discard_granularity)
            .u32(g.max_zeroes)
            .u32(grant.bytes)
            .u32(grant.key)
            .u32(grant.base)
            .bytes(self.id.map_or([0; 16], VolumeId::to_wire))
            .u64(self.instance.map_or(0, |instance| instance.0.get()))
            .finish()
    }

    /// Reads the reply to `request`; `None` when it is no such thing.
    pub fn decode(bytes: &[u8], request: &Request) -> Option<Self> {
        let _: &[u8; REPLY_MIN_LEN] = prefix(bytes)?;
        let mut whole = [0; REPLY_LEN];
        for (to, from) in whole.iter_mut().zip(bytes) {
            *to = *from;
        }
        let mut r = Reader::new(&whole);
        if r.u32() != MAGIC {
            return None;
        }
        let version = r.u8();
        let abilities = r.u8();
        let credits = r.u16();
        let capacity = r.u64();
        let logical_block_shift = r.u8();
        let physical_block_shift = r.u8();
        let flags = r.u16();
        let max_transfer = r.u32();
        let session = SessionId(r.u64());
        let epoch = Epoch(r.u32());
        let inline = r.u32();
        let max_discard = r.u32();
        let discard_granularity = r.u32();
        let max_zeroes = r.u32();
        let granted = Grant {
            bytes: r.u32(),
            key: r.u32(),
            base: r.u32(),
        };
        let grant = granted.checked();
        let no_read = abilities & NO_READ != 0;
        let id = VolumeId::from_wire(r.bytes()).ok();
        let instance = ExportInstance::of(r.u64());
        let reply = Self {
            version,
            credits,
            session,
            epoch,
            inline,
            quiet: abilities & QUIET != 0,
            no_read,
            message_batches: abilities & MESSAGE_BATCHES != 0,
            grant,
            id,
            instance,
            geometry: Geometry {
                capacity,
                logical_block_shift,
                physical_block_shift,
                read_only: flags & READ_ONLY != 0,
                write_cache: flags & WRITE_CACHE != 0,
                fua: flags & FUA != 0,
                max_transfer,
                max_discard,
                discard_granularity,
                max_zeroes,
            },
        };
        (grant.is_some() == (granted.bytes != 0) && reply.answers(request)).then_some(reply)
    }

    /// Returns whether the reply is to `request`, and its numbers fit that and each other.
    fn answers(&self, request: &Request) -> bool {
        (request.version_min..=request.version_max).contains(&self.version)
            && (1..=request.depth).contains(&self.credits)
            && self.geometry.is_sound(request.largest)
            && self.session == request.session
            && self.epoch == request.epoch
            && self.inline <= INLINE_MAX
            && (!self.no_read
                || self.geometry.read_only
                || self
                    .grant
                    .is_some_and(|grant| grant.bytes >= self.geometry.max_transfer))
    }
}

/// A target's refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub reason: Reason,
    /// Lowest version that the target speaks.
    pub version_min: u8,
    /// Highest version that the target speaks.
    pub version_max: u8,
}

impl Reject {
    /// Makes a reject by this implementation.
    pub fn new(reason: Reason) -> Self {
        Self {
            reason,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
        }
    }

    /// Encodes the reject.
    pub fn encode(&self) -> [u8; REJECT_LEN] {
        Writer::new()
            .u32(MAGIC)
            .u16(self.reason as u16)
            .u8(self.version_min)
            .u8(self.version_max)
            .u64(0)
            .finish()
    }

    /// Reads a reject; `None`: it comes from something that is no hcablk target.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REJECT_LEN] = prefix(bytes)?;
        let mut r = Reader::new(bytes);
        if r.u32() != MAGIC {
            return None;
        }
        Some(Self {
            reason: Reason::from_wire(r.u16())?,
            version_min: r.u8(),
            version_max: r.u8(),
        })
    }
}

#[cfg(test)]
mod tests;
