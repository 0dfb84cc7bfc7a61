// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rejects: the messages with which a target refuses a connection request.

use super::{
    super::{
        wire::{prefix, Reader, Writer},
        MAGIC, VERSION_MAX, VERSION_MIN,
    },
    REJECT_LEN,
};

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// The request is not valid.
    Malformed = 1,
    /// No version in common; the reject names the target's range.
    Version = 2,
    /// The target exports no volume of this name.
    UnknownVolume = 3,
    /// The volume exists but this host is not among those allowed.
    Forbidden = 4,
    /// The target lacks a resource for the connection, such as memory, queue pairs or sessions. Its
    /// log names the resource.
    NoResources = 5,
    /// A newer epoch of this session has been seen, or this one is in use.
    StaleEpoch = 6,
    /// The target has no session to which the requested queue pair could belong.
    NoSession = 7,
    /// The volume is being withdrawn.
    Withdrawn = 8,
    /// The session's buffers would exceed the memory limit of the port, or the share of one host.
    NoMemory = 9,
    /// The host may use the volume, but was evicted until it is admitted again.
    Evicted = 10,
    /// A later instance of the host has connected.
    Superseded = 11,
    /// It is a [challenge](super::super::auth), not a refusal.
    Challenge = 12,
    /// The host has not proven its identity, or has no rights here: the target does not reveal
    /// which.
    NotProven = 13,
    /// The reject has an entry of a [list](super::super::discovery); it is not a refusal.
    Entry = 14,
    /// The volume cannot share a session with others: connect it with a session of its own, of
    /// version 2.
    OwnSession = 15,
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
            10 => Self::Evicted,
            11 => Self::Superseded,
            12 => Self::Challenge,
            13 => Self::NotProven,
            14 => Self::Entry,
            15 => Self::OwnSession,
            _ => return None,
        })
    }
}

/// A target's refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The reason of the refusal.
    pub reason: Reason,
    /// Lowest version that the target speaks.
    pub version_min: u8,
    /// Highest version that the target speaks.
    pub version_max: u8,
}

impl Reject {
    /// Creates a reject with the versions of this implementation.
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

    /// Decodes a reject; `None`: the sender is not an hcablk target.
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
