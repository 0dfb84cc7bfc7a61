// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replies: the messages with which a target grants a connection request.

use super::{
    super::{
        message,
        name::VolumeId,
        wire::{
            prefix,
            Reader,
            Writer, //
        },
        ADMIN_DEPTH,
        INLINE_MAX,
        MAGIC, //
    },
    ConnectRequest,
    Epoch,
    ExportInstance,
    SessionId,
    REPLY_LEN,
    REPLY_MIN_LEN,
    TRANSFER_UNIT, //
};
use crate::proto::eager_ring::EagerRingGrant;

/// The properties of a volume, as its target reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The size of the volume in bytes.
    pub capacity: u64,
    /// log2 of the logical block size in bytes, 9 to 12.
    pub logical_block_shift: u8,
    /// log2 of the physical block size in bytes.
    pub physical_block_shift: u8,
    /// Writes are refused.
    pub read_only: bool,
    /// There is a volatile write cache: flush before relying on a write.
    pub write_cache: bool,
    /// Writes with FUA (forced unit access) are supported.
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
    /// Returns the properties in replies to a session whose volumes are attached later: only the
    /// largest data length.
    pub fn of_session(max_transfer: u32) -> Self {
        Self {
            capacity: 0,
            logical_block_shift: 0,
            physical_block_shift: 0,
            read_only: false,
            write_cache: false,
            fua: false,
            max_transfer,
            max_discard: 0,
            discard_granularity: 0,
            max_zeroes: 0,
        }
    }

    /// Returns whether `bytes` can be the largest data length where `largest` was asked for.
    fn can_be_largest(bytes: u32, largest: u32) -> bool {
        (TRANSFER_UNIT..=largest).contains(&bytes) && bytes % TRANSFER_UNIT == 0
    }

    /// Returns whether the numbers fit each other, and a request whose largest transfer is
    /// `largest` bytes.
    pub(in super::super) fn is_sound(&self, largest: u32) -> bool {
        if !(9..=12).contains(&self.logical_block_shift) {
            return false;
        }
        let block = 1u32 << self.logical_block_shift;
        (self.logical_block_shift..=24).contains(&self.physical_block_shift)
            && Self::can_be_largest(self.max_transfer, largest)
            && self.max_discard % block == 0
            && self.max_zeroes % block == 0
            && (self.max_discard == 0
                || self.discard_granularity >= block && self.discard_granularity % block == 0)
            && self.capacity > 0
            && self.capacity % u64::from(block) == 0
            && self.capacity <= i64::MAX as u64
    }
}

/// A capability of the target: a bit of byte 5.
pub(super) const QUIET: u8 = 1 << 0;
/// A limitation of the target: a bit of byte 5.
pub(super) const NO_READ: u8 = 1 << 1;
/// A capability of the target: a bit of byte 5.
pub(super) const MESSAGE_BATCHES: u8 = 1 << 2;
/// A capability of the target: a bit of byte 5.
pub(super) const PORTALS: u8 = 1 << 3;
/// A capability of the target: a bit of byte 5.
pub(super) const FOLLOWS_CACHE: u8 = 1 << 4;
/// A capability of the target: a bit of byte 5.
pub(super) const LIMITS: u8 = 1 << 5;

const READ_ONLY: u16 = 1 << 0;
const WRITE_CACHE: u16 = 1 << 1;
const FUA: u16 = 1 << 2;

/// A target's reply to a request that it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The version of the protocol that the session uses.
    pub version: u8,
    /// Receive buffers posted: the initiator's first credits. [`ADMIN_DEPTH`] on the admin queue
    /// pair.
    pub credits: u16,
    /// The session of the request.
    pub session: SessionId,
    /// The session's epoch in the request.
    pub epoch: Epoch,
    /// The volume.
    pub geometry: Geometry,
    /// Bytes of the largest write whose data may follow its request in the
    /// message; 0: none may.
    pub inline: u32,
    /// Requests may announce that their response need not interrupt.
    pub quiet: bool,
    /// The target posts no RDMA READ: writes come with their request, or in the eager ring.
    pub no_read: bool,
    /// A message may carry several requests; those after the first may take up to `inline` bytes.
    pub message_batches: bool,
    /// On the admin queue pair: a watch may ask for the portals' generation.
    pub tells_portals: bool,
    /// On the admin queue pair: a watch may follow the write cache, and report whether the disk
    /// sends flushes.
    pub tells_cache: bool,
    /// On the admin queue pair: a watch may follow the volume's limits; the target responds to the
    /// first one at once.
    pub tells_limits: bool,
    /// Memory for the data of writes.
    pub grant: Option<EagerRingGrant>,
    /// Identity of the volume, independent of its name, if the target has one for it.
    pub id: Option<VolumeId>,
    /// Identifies what the target remembers of the writes of this session id; `None` if it does not
    /// report that.
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
        let grant = self.grant.unwrap_or(EagerRingGrant {
            bytes: 0,
            key: 0,
            base: 0,
        });
        let mut abilities = 0;
        for (set, bit) in [
            (self.quiet, QUIET),
            (self.no_read, NO_READ),
            (self.message_batches, MESSAGE_BATCHES),
            (self.tells_portals, PORTALS),
            (self.tells_cache, FOLLOWS_CACHE),
            (self.tells_limits, LIMITS),
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

    /// Decodes the reply to `request`; `None` if `bytes` are not one.
    pub fn decode(bytes: &[u8], request: &ConnectRequest) -> Option<Self> {
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
        let granted = EagerRingGrant {
            bytes: r.u32(),
            key: r.u32(),
            base: r.u32(),
        };
        let grant = granted.checked();
        let no_read = abilities & NO_READ != 0;
        let id = VolumeId::from_wire(r.bytes()).ok();
        let instance = ExportInstance::from_number(r.u64());
        let reply = Self {
            version,
            credits,
            session,
            epoch,
            inline,
            quiet: abilities & QUIET != 0,
            no_read,
            message_batches: abilities & MESSAGE_BATCHES != 0,
            tells_portals: abilities & PORTALS != 0,
            tells_cache: abilities & FOLLOWS_CACHE != 0,
            tells_limits: abilities & LIMITS != 0,
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
        (grant.is_some() == (granted.bytes != 0) && reply.fits(request)).then_some(reply)
    }

    /// Returns whether the reply is to `request`, and its numbers fit that and each other.
    fn fits(&self, request: &ConnectRequest) -> bool {
        (request.version_min..=request.version_max).contains(&self.version)
            && match request.is_admin() {
                true => self.credits == ADMIN_DEPTH,
                false => (1..=request.depth).contains(&self.credits),
            }
            && match request.volume {
                Some(_) => self.geometry.is_sound(request.largest),
                None => {
                    self.geometry == Geometry::of_session(self.geometry.max_transfer)
                        && Geometry::can_be_largest(self.geometry.max_transfer, request.largest)
                }
            }
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
