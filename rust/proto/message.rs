// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages on a connected queue pair: requests one way, responses the other.

mod admin;
mod attach;
mod limits;
mod request;
mod reservation;
mod response;

pub use self::{
    admin::{
        AdminOp, AdminRequest, AdminResponse, VolumeState, ADMIN_RESPONSE_LEN, KEEP_ALIVE_TMO_MAX,
        LIMITS_RESPONSE_LEN,
    },
    attach::{Attach, Attached},
    limits::{AtomicWrites, VolumeLimits},
    request::{BadRequest, IoRequest},
    reservation::{ReservationInfo, ReservationOp, ReservationType},
    response::IoResponse,
};

/// Bytes of a request.
pub const REQUEST_LEN: usize = 40;
/// Bytes of a response.
pub const RESPONSE_LEN: usize = 16;
/// Bytes of a receive buffer on either side; longer messages are not valid.
pub const BUFFER_LEN: usize = 64;
/// Maximum number of requests in one message.
pub const MESSAGE_REQUESTS_MAX: usize = 16;
/// The offset, in the first request of a message, of the number of further requests.
pub const MORE_OFFSET: usize = 2;

/// Names a request in flight: its tag, and how often the tag was used, so that a late or repeated
/// response is not mistaken for that of a different request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Index, below the queue's depth.
    pub index: u16,
    /// Use count, modulo 2^16.
    pub generation: u16,
}

impl Tag {
    /// Encodes the tag as an immediate value.
    #[inline]
    pub fn to_immediate(self) -> u32 {
        u32::from(self.generation) << 16 | u32::from(self.index)
    }

    /// Decodes the tag of an immediate value; every value is valid.
    #[inline]
    pub const fn from_immediate(value: u32) -> Self {
        Self {
            index: value as u16,
            generation: (value >> 16) as u16,
        }
    }
}

/// Names a volume that is attached to the session of a message. In version 2, in which a session
/// has only one volume, it is [`Self::FIRST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u16);

impl Handle {
    /// The handle of the first volume that was attached. Also the value in messages that concern no
    /// volume.
    pub const FIRST: Self = Self(0);
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Move data from the volume to the initiator's memory.
    Read(Extent, Remote),
    /// Move data from the initiator's memory to the volume.
    Write {
        /// The range of the volume.
        extent: Extent,
        /// The initiator's memory with the data.
        remote: Remote,
        /// Respond only when the data is on stable storage.
        fua: bool,
        /// Write all of the data or none of it, even if the drive loses its power
        /// ([`AtomicWrites`]).
        atomic: bool,
    },
    /// Move the data that follows in the message to the volume.
    WriteInline {
        /// The range of the volume.
        extent: Extent,
        /// Respond only when the data is on stable storage.
        fua: bool,
    },
    /// Move the data that was written to the next slot of the [eager ring](super::eager_ring) to
    /// the volume.
    WriteEager {
        /// The range of the volume.
        extent: Extent,
        /// Respond only when the data is on stable storage.
        fua: bool,
    },
    /// Make every write that has its response stable.
    Flush,
    /// The content of these blocks is not needed any more. Until they are written again, reads may
    /// return any data.
    Discard(Extent),
    /// Make these blocks read as zeroes.
    WriteZeroes {
        /// The range of the volume.
        extent: Extent,
        /// The blocks stay allocated.
        keep: bool,
    },
    /// Do nothing but respond.
    Nop,
}

/// A range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes from the start of the volume.
    pub offset: u64,
    /// Bytes, more than 0.
    pub length: u32,
}

/// Memory of the initiator that the target may access for one request, in
/// the direction of that request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address within the memory region. It does not reveal where the memory is on the initiator.
    pub address: u64,
    /// The region's key.
    pub key: u32,
    /// How the target must respond.
    pub response: ResponseKind,
}

/// The form of the response to a request with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// With a message.
    Message,
    /// With a message that invalidates the key.
    Invalidating,
    /// With the immediate value of the RDMA WRITE that ends the data: reads only.
    Immediate,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// It was done.
    Ok = 0,
    /// The request is not valid.
    Invalid = 1,
    /// The request is not known or not supported by this volume.
    Unsupported = 2,
    /// The extent exceeds the end of the volume, or is not on block boundaries.
    OutOfRange = 3,
    /// The volume is read-only for this host.
    ReadOnly = 4,
    /// The drive failed.
    IoError = 5,
    /// The drive has no space left.
    NoSpace = 6,
    /// The drive cannot read this block.
    Medium = 7,
    /// The volume is being withdrawn.
    Gone = 8,
    /// The session to fence has not ended yet: ask again. Only in responses to [`AdminOp::Fence`]
    /// and to changes of reservations.
    Draining = 9,
    /// The reservation of another host is in the way, or the host's key differs.
    Conflict = 10,
}

impl Status {
    /// Reads a status off the wire.
    pub fn from_wire(value: u16) -> Option<Self> {
        Some(match value {
            0 => Self::Ok,
            1 => Self::Invalid,
            2 => Self::Unsupported,
            3 => Self::OutOfRange,
            4 => Self::ReadOnly,
            5 => Self::IoError,
            6 => Self::NoSpace,
            7 => Self::Medium,
            8 => Self::Gone,
            9 => Self::Draining,
            10 => Self::Conflict,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
