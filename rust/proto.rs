// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The wire protocol, versions 2 and 3. `docs/reference/protocol.md` is the specification.
//!
//! This module uses nothing but `core`: the same code runs in the modules and in the unit tests on
//! the host. Decoding is total: a decoder returns either a value all of whose fields were checked,
//! or the error.
//!
//! - [`auth`]: mutual authentication.
//! - [`connect`]: the contents of the connection manager's private data.
//! - [`discovery`]: questions of a host before it connects.
//! - [`message`]: the contents of SENDs once connected.
//! - [`name`]: host ids and volume names.
//! - [`credits`]: when each side may send.
//! - [`eager_ring`]: memory of the target for the data of writes.

pub mod auth;
pub mod connect;
pub mod credits;
pub mod discovery;
pub mod eager_ring;
pub mod message;
pub mod name;
mod wire;

/// Lowest protocol version that this implementation speaks.
pub const VERSION_MIN: u8 = 2;
/// Highest protocol version that this implementation speaks.
pub const VERSION_MAX: u8 = 3;
/// The version in which a session belongs to one volume, which its connection requests name.
pub const VERSION_OF_VOLUME: u8 = 2;
/// The version in which volumes are attached to a session with requests on its admin queue pair.
pub const VERSION_OF_HOST: u8 = 3;

/// First bytes of everything in private data: "HCAB" read as a little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"HCAB");

/// Smallest queue depth (requests in flight on one queue pair).
pub const DEPTH_MIN: u16 = 1;
/// Largest queue depth.
pub const DEPTH_MAX: u16 = 1024;
/// Maximum number of queue pairs of a session, besides its admin queue pair.
pub const QUEUES_MAX: u8 = 127;
/// The number of the admin queue pair in its connection request.
pub const ADMIN_QUEUE: u8 = 0xff;
/// Maximum number of requests in flight on the admin queue pair: enough for one of each kind.
pub const ADMIN_DEPTH: u16 = 8;
/// Maximum number of volumes that may be attached to one session at a time.
pub const ATTACHED_MAX: u16 = 256;
/// Largest data in bytes that may follow a request in its message.
pub const INLINE_MAX: u32 = 65536;
/// Largest data length of one request in bytes, unless both sides have agreed on more.
pub const TRANSFER_USUAL: u32 = 1 << 20;
/// Largest data length of one request in bytes that two sides can agree on.
pub const TRANSFER_MAX: u32 = 4 << 20;
