// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages on a session's admin queue pair, whose opcodes differ from those of the others. A
//! message that cannot be decoded ends the session: there is no response for it.

use super::{
    super::{
        connect::{Epoch, Reason, PATHS_MAX},
        wire::{prefix, Reader, Writer},
    },
    attach::{self, Attach, Attached, ATTACH},
    limits::{VolumeLimits, LIMITS_LEN},
    reservation::{is_reservation, ReservationInfo, ReservationOp, READ_KEY, READ_RESERVATION},
    Handle, Status, Tag, BUFFER_LEN, REQUEST_LEN,
};

/// Bytes of a response on the admin queue pair.
pub const ADMIN_RESPONSE_LEN: usize = 24;
/// Bytes of a response that has the volume's limits.
pub const LIMITS_RESPONSE_LEN: usize = ADMIN_RESPONSE_LEN + LIMITS_LEN;
/// The longest timeout that a keep-alive may name, in seconds.
pub const KEEP_ALIVE_TMO_MAX: u16 = 600;

pub(super) const KEEP_ALIVE: u8 = 0x21;
pub(super) const FENCE: u8 = 0x22;
pub(super) const WATCH: u8 = 0x23;
pub(super) const DURABLE: u8 = 0x24;
pub(super) const PORTALS: u8 = 0x25;
pub(super) const DETACH: u8 = 0x27;
pub(super) const RESPONSE: u8 = 0x82;
/// A response with reservations.
pub(super) const RESERVATION_RESPONSE: u8 = 0x83;
/// A response to a watch that follows the limits.
pub(super) const LIMITS_RESPONSE: u8 = 0x84;

/// Flags of a watch, and of its response.
pub(super) const READ_ONLY: u32 = 1 << 0;
pub(super) const WRITE_CACHE: u32 = 1 << 1;
/// The initiator follows the write cache: [`WRITE_CACHE`] says whether there is one.
pub(super) const FOLLOWS_CACHE: u32 = 1 << 2;
/// A flag of a watch: the initiator's disk sends flushes.
pub(super) const FLUSHES: u32 = 1 << 3;
/// A flag of a watch: the limits are followed.
pub(super) const FOLLOWS_LIMITS: u32 = 1 << 4;
const STATE_FLAGS: u32 = READ_ONLY | WRITE_CACHE | FOLLOWS_CACHE;

/// The place of a path's number in the field of an epoch.
const PATH_SHIFT: u32 = 32;

/// Returns whether a request of this opcode is for the admin queue pair.
#[inline]
pub(super) fn is_admin(opcode: u8) -> bool {
    matches!(
        opcode,
        KEEP_ALIVE | FENCE | WATCH | DURABLE | PORTALS | ATTACH | DETACH
    ) || is_reservation(opcode)
}

/// The state of a volume that may change during a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// Units of 512 bytes, more than 0.
    pub sectors: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// There is a volatile write cache. `None`: the initiator does not follow the cache, and knows
    /// its state at the start of the session.
    pub write_cache: Option<bool>,
}

impl VolumeState {
    fn flags(&self) -> u32 {
        let read_only = if self.read_only { READ_ONLY } else { 0 };
        let cache = match self.write_cache {
            None => 0,
            Some(false) => FOLLOWS_CACHE,
            Some(true) => FOLLOWS_CACHE | WRITE_CACHE,
        };
        read_only | cache
    }

    /// Decodes a state; `None` if the values contradict each other.
    fn from_flags(sectors: u64, flags: u32) -> Option<Self> {
        let (cache, follows) = (flags & WRITE_CACHE != 0, flags & FOLLOWS_CACHE != 0);
        let good = sectors != 0 && flags & !STATE_FLAGS == 0 && (follows || !cache);
        good.then_some(Self {
            sectors,
            read_only: flags & READ_ONLY != 0,
            write_cache: follows.then_some(cache),
        })
    }
}

/// The operation of a request on the admin queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminOp {
    /// Respond at once. The initiator ends the session if it gets no response for this many
    /// seconds, 1 to [`KEEP_ALIVE_TMO_MAX`], and sends a keep-alive at least as often.
    KeepAlive {
        /// The timeout in seconds.
        tmo_s: u16,
    },
    /// Let no request of a session of this disk on another path, up to an epoch, reach the volume
    /// any more.
    Fence {
        /// The path to fence, not that of this session.
        path: u8,
        /// The last epoch to fence, more than 0.
        epoch: Epoch,
    },
    /// Respond when the volume differs from the known state, or its export ends; not before.
    Watch {
        /// The state that the initiator knows.
        known: VolumeState,
        /// Its disk sends flushes, if the initiator follows the write cache.
        flushes: bool,
        /// The last generation of the volume's limits and state that the initiator received on this
        /// queue pair, 0 if none; `None`: it does not follow the limits. Sent only to a target that
        /// reports them ([`Reply::tells_limits`](super::super::connect::Reply::tells_limits)).
        generation: Option<u32>,
    },
    /// Return whether all acknowledged writes survive a loss of the drive's power. Sent when the
    /// export ends, after the session's other queue pairs were closed.
    Durable,
    /// Respond when the addresses at which the target listens have changed since its portals had
    /// this generation; not before. Only for a target that supports it
    /// ([`Reply::tells_portals`](super::super::connect::Reply::tells_portals)).
    Portals {
        /// The last generation that the initiator received; 0: none yet.
        known: u32,
    },
    /// Change the drive's reservations, for the host of the session.
    Reservation {
        /// The number of the change. A change that is repeated because its response was lost has
        /// the same number; any other has a later one, modulo 2^32, than all earlier changes of
        /// this disk.
        sequence: u32,
        /// The change.
        op: ReservationOp,
    },
    /// Return the key of a registrant, and the number of registrants.
    ReadKey {
        /// The index of the registrant, from 0.
        index: u32,
    },
    /// Return the reservation.
    ReadReservation,
    /// Attach a volume to the session. Version 3 only.
    Attach(Attach),
    /// Detach a volume: its disk sends no more requests, and all that it sent have their responses.
    /// After the response the handle may name another volume. Version 3 only.
    Detach,
}

/// An initiator's message on the admin queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminRequest {
    /// Names the request in the response.
    pub tag: Tag,
    /// The volume concerned; [`Handle::FIRST`] if none is.
    pub volume: Handle,
    /// The operation.
    pub op: AdminOp,
}

impl AdminRequest {
    /// Encodes the request.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let (mut sequence, mut second) = (0, 0);
        let (opcode, value, flags) = match self.op {
            AdminOp::KeepAlive { tmo_s } => (KEEP_ALIVE, tmo_s.into(), 0),
            AdminOp::Fence { path, epoch } => {
                let value = u64::from(path) << PATH_SHIFT | u64::from(epoch.0);
                (FENCE, value, 0)
            }
            AdminOp::Watch {
                known,
                flushes,
                generation,
            } => {
                let flushes = if flushes { FLUSHES } else { 0 };
                let limits = generation.map_or(0, |_| FOLLOWS_LIMITS);
                sequence = generation.unwrap_or(0);
                (WATCH, known.sectors, known.flags() | flushes | limits)
            }
            AdminOp::Durable => (DURABLE, 0, 0),
            AdminOp::Portals { known } => (PORTALS, known.into(), 0),
            AdminOp::Reservation {
                sequence: number,
                op,
            } => {
                let (opcode, key, flags, other) = op.encode();
                (sequence, second) = (number, other);
                (opcode, key, flags)
            }
            AdminOp::ReadKey { index } => (READ_KEY, index.into(), 0),
            AdminOp::ReadReservation => (READ_RESERVATION, 0, 0),
            AdminOp::Attach(attach) => return attach.encode(self.tag),
            AdminOp::Detach => (DETACH, 0, 0),
        };
        Writer::new()
            .u8(opcode)
            .u8(0)
            .u16(self.volume.0)
            .u16(self.tag.index)
            .u16(self.tag.generation)
            .u64(value)
            .u32(flags)
            .u32(sequence)
            .u64(second)
            .u64(0)
            .finish()
    }

    /// Decodes a message of `bytes.len()` bytes; `None`: it is not such a request, and the session
    /// ends.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != REQUEST_LEN {
            return None;
        }
        let bytes: &[u8; REQUEST_LEN] = prefix(bytes)?;
        let mut r = Reader::new(bytes);
        let (opcode, reserved, volume) = (r.u8(), r.u8(), Handle(r.u16()));
        if opcode == ATTACH {
            let (tag, attach) = Attach::decode(bytes)?;
            let op = AdminOp::Attach(attach);
            return Some(Self { tag, volume, op });
        }
        let of_session = matches!(opcode, KEEP_ALIVE | PORTALS);
        if reserved != 0 || (of_session && volume != Handle::FIRST) {
            return None;
        }
        let tag = Tag {
            index: r.u16(),
            generation: r.u16(),
        };
        let (value, flags) = (r.u64(), r.u32());
        let (sequence, second) = (r.u32(), r.u64());
        if r.u64() != 0 {
            return None;
        }
        if let Some(op) = ReservationOp::decode(opcode, value, flags, second) {
            let op = AdminOp::Reservation { sequence, op };
            return Some(Self { tag, volume, op });
        }
        let follows = opcode == WATCH && flags & FOLLOWS_LIMITS != 0;
        if second != 0 || (sequence != 0 && !follows) {
            return None;
        }
        let op = match (opcode, flags) {
            (KEEP_ALIVE, 0) => {
                let tmo_s = u16::try_from(value).ok()?;
                let good = (1..=KEEP_ALIVE_TMO_MAX).contains(&tmo_s);
                good.then_some(AdminOp::KeepAlive { tmo_s })?
            }
            (FENCE, 0) => {
                let (path, epoch) = (value >> PATH_SHIFT, Epoch(value as u32));
                let good = path < PATHS_MAX.into() && epoch.0 != 0;
                let path = path as u8;
                good.then_some(AdminOp::Fence { path, epoch })?
            }
            (WATCH, _) => {
                let known = VolumeState::from_flags(value, flags & !(FLUSHES | FOLLOWS_LIMITS))?;
                let flushes = flags & FLUSHES != 0;
                let good = !flushes || known.write_cache.is_some();
                good.then_some(AdminOp::Watch {
                    known,
                    flushes,
                    generation: follows.then_some(sequence),
                })?
            }
            (DURABLE, 0) if value == 0 => AdminOp::Durable,
            (PORTALS, 0) => AdminOp::Portals {
                known: u32::try_from(value).ok()?,
            },
            (READ_KEY, 0) => AdminOp::ReadKey {
                index: u32::try_from(value).ok()?,
            },
            (READ_RESERVATION, 0) if value == 0 => AdminOp::ReadReservation,
            (DETACH, 0) if value == 0 => AdminOp::Detach,
            _ => return None,
        };
        Some(Self { tag, volume, op })
    }
}

/// A target's message on the admin queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminResponse {
    /// The request.
    pub tag: Tag,
    /// How it ended.
    pub status: Status,
    /// The current state of the volume: in the response to a watch after a change.
    pub volume: Option<VolumeState>,
    /// The volume's limits, with the generation of both, not 0: a later one, modulo 2^32, is newer.
    /// In the response to a watch that follows the limits.
    pub limits: Option<(u32, VolumeLimits)>,
    /// The generation of the target's portals, not 0: in the response to [`AdminOp::Portals`],
    /// which has no volume.
    pub portals: Option<u32>,
    /// The drive's reservations, as requested. Such a response has no volume.
    pub reservation: Option<ReservationInfo>,
    /// The result of [`AdminOp::Attach`]. Such a response has nothing else, and its status is
    /// [`Status::Ok`].
    pub attached: Option<Result<Attached, Reason>>,
}

/// An encoded response.
pub struct EncodedAdminResponse {
    bytes: [u8; LONGEST],
    len: usize,
}

/// Bytes of the longest response.
const LONGEST: usize = BUFFER_LEN;
const _: () = assert!(LIMITS_RESPONSE_LEN <= LONGEST && attach::RESPONSE_LEN <= LONGEST);

impl core::ops::Deref for EncodedAdminResponse {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

impl AdminResponse {
    /// Makes a response that has nothing but a status.
    pub fn bare(tag: Tag, status: Status) -> Self {
        Self {
            tag,
            status,
            volume: None,
            limits: None,
            portals: None,
            reservation: None,
            attached: None,
        }
    }

    /// Encodes the response.
    pub fn encode(&self) -> EncodedAdminResponse {
        if let Some(outcome) = &self.attached {
            let bytes = attach::encode(self.tag, outcome);
            let len = bytes.len();
            return EncodedAdminResponse { bytes, len };
        }
        let mut bytes = [0; LONGEST];
        let mut len = ADMIN_RESPONSE_LEN;
        let (head, tail) = bytes.split_at_mut(ADMIN_RESPONSE_LEN);
        head.copy_from_slice(&self.head());
        if let (Some((_, limits)), Some(_)) = (&self.limits, &self.volume) {
            let places = tail.iter_mut();
            for (to, from) in places.zip(limits.encode()) {
                *to = from;
            }
            len = LIMITS_RESPONSE_LEN;
        }
        EncodedAdminResponse { bytes, len }
    }

    fn head(&self) -> [u8; ADMIN_RESPONSE_LEN] {
        if let Some(info) = self.reservation {
            return Writer::new()
                .u8(RESERVATION_RESPONSE)
                .u8(0)
                .u16(0)
                .u16(self.tag.index)
                .u16(self.tag.generation)
                .u16(self.status as u16)
                .u16(info.number)
                .u32(info.generation)
                .u64(info.key)
                .finish();
        }
        let (opcode, generation) = match (self.limits, self.volume) {
            (Some((generation, _)), Some(_)) => (LIMITS_RESPONSE, generation),
            _ => (RESPONSE, self.portals.unwrap_or(0)),
        };
        let flags = self.volume.map_or(0, |volume| volume.flags());
        Writer::new()
            .u8(opcode)
            .u8(flags as u8)
            .u16(0)
            .u16(self.tag.index)
            .u16(self.tag.generation)
            .u16(self.status as u16)
            .u16(0)
            .u32(generation)
            .u64(self.volume.map_or(0, |volume| volume.sectors))
            .finish()
    }

    /// Reads a message of `bytes.len()` bytes; `None`: the peer does not speak this protocol and
    /// the session ends.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.first() == Some(&attach::RESPONSE) {
            let (tag, outcome) = attach::decode(bytes)?;
            return Some(Self {
                attached: Some(outcome),
                ..Self::bare(tag, Status::Ok)
            });
        }
        let (head, tail) = bytes.split_at_checked(ADMIN_RESPONSE_LEN)?;
        let head: &[u8; ADMIN_RESPONSE_LEN] = prefix(head)?;
        let mut r = Reader::new(head);
        let (opcode, flags, reserved) = (r.u8(), u32::from(r.u8()), r.u16());
        let tag = Tag {
            index: r.u16(),
            generation: r.u16(),
        };
        let status = Status::from_wire(r.u16())?;
        let (number, generation) = (r.u16(), r.u32());
        let sectors = r.u64();
        if reserved != 0 {
            return None;
        }
        let bare = Self::bare(tag, status);
        match opcode {
            RESERVATION_RESPONSE if flags == 0 && tail.is_empty() => Some(Self {
                reservation: Some(ReservationInfo {
                    generation,
                    number,
                    key: sectors,
                }),
                ..bare
            }),
            LIMITS_RESPONSE if number == 0 && generation != 0 => {
                let limits = VolumeLimits::decode(tail.try_into().ok()?)?;
                Some(Self {
                    volume: Some(VolumeState::from_flags(sectors, flags)?),
                    limits: Some((generation, limits)),
                    ..bare
                })
            }
            RESPONSE if number == 0 && (generation == 0 || sectors == 0) && tail.is_empty() => {
                let volume = match (sectors, flags) {
                    (0, 0) => None,
                    _ => Some(VolumeState::from_flags(sectors, flags)?),
                };
                Some(Self {
                    volume,
                    portals: (generation != 0).then_some(generation),
                    ..bare
                })
            }
            _ => None,
        }
    }
}
