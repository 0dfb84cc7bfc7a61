// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connection set-up: request, reply and reject, each in the private data of
//! the connection manager's message of that name.

mod reject;
mod reply;
mod request;

pub use self::{
    reject::{Reason, Reject},
    reply::{Geometry, Reply},
    request::ConnectRequest,
};

use core::num::NonZeroU64;

/// Bytes of a request: all that InfiniBand leaves of the 92 bytes of a
/// connection request after the 36 of the IP addressing header.
pub const REQUEST_LEN: usize = 56;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 88;
/// Minimum length of a reply in bytes: fields after these that are missing count as 0.
pub const REPLY_MIN_LEN: usize = 64;
/// Bytes of a reject.
pub const REJECT_LEN: usize = 16;

/// The host instance, shared by all sessions of one start of an initiator: a random number of 48
/// bits, which changes each time the initiator's module is loaded. A host has one at a time:
/// sessions of a new instance are ordered after all those of the instances before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInstance(u64);

impl HostInstance {
    /// Makes an instance of the upper 48 bits of a random number.
    pub fn from_random(random: u64) -> Self {
        Self(random >> 16)
    }
}

/// Identifies a session: a path of a disk of a host instance, unchanged over reconnections. Bits 0
/// to 11 are the number of the disk, bits 12 to 15 that of the path, the others the host instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(pub u64);

/// Paths that a disk may have.
pub const PATHS_MAX: u8 = 16;
/// Highest number of a disk.
pub const DISK_MAX: u16 = 0xfff;

const PATH_SHIFT: u32 = 12;
const PATH_MASK: u64 = 0xf << PATH_SHIFT;

impl SessionId {
    /// Returns the id of the sessions of disk `disk` on its path 0; `None` if the number is above
    /// [`DISK_MAX`].
    pub fn new(instance: HostInstance, disk: u16) -> Option<Self> {
        (disk <= DISK_MAX).then_some(Self(instance.0 << 16 | u64::from(disk)))
    }

    /// Returns the id of the same disk's sessions on path `path`, modulo [`PATHS_MAX`].
    pub fn on_path(self, path: u8) -> Self {
        let bits = u64::from(path % PATHS_MAX) << PATH_SHIFT;
        Self(self.0 & !PATH_MASK | bits)
    }

    /// Returns the number of the path, below [`PATHS_MAX`].
    pub fn path(self) -> u8 {
        ((self.0 & PATH_MASK) >> PATH_SHIFT) as u8
    }

    /// Returns the host instance of the session.
    pub fn instance(self) -> HostInstance {
        HostInstance(self.0 >> 16)
    }
}

/// How often a session was connected. While a target knows a session, it admits no older epoch of
/// the session, and a newer one only when no request of the older one can reach the drive any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u32);

/// Identifies a target's memory of the writes that it acknowledged to one session id and has not
/// made durable, and of the write-back errors that it has not reported yet. A random number, not 0,
/// which changes whenever that memory is lost: the export was started again, or the target had no
/// room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInstance(NonZeroU64);

impl ExportInstance {
    /// Returns the instance of this number, `None` for 0.
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns the number of the instance.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

/// The largest data length is a multiple of this.
const TRANSFER_UNIT: u32 = 4096;

#[cfg(test)]
mod tests;
