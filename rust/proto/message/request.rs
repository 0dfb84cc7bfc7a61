// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests: an initiator's messages, and their checks.

use super::{
    super::wire::{prefix, Reader, Writer},
    admin::is_admin,
    Extent, Handle, Op, Remote, ResponseKind, Status, Tag, MESSAGE_REQUESTS_MAX, MORE_OFFSET,
    REQUEST_LEN,
};

/// An initiator's request for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRequest {
    /// Names the request in the response.
    pub tag: Tag,
    /// The volume concerned; the first one if the operation concerns none.
    pub volume: Handle,
    /// The operation.
    pub op: Op,
    /// The response need not interrupt the sender.
    pub quiet: bool,
}

pub(super) const READ: u8 = 1;
pub(super) const WRITE: u8 = 2;
pub(super) const FLUSH: u8 = 3;
pub(super) const DISCARD: u8 = 4;
pub(super) const WRITE_ZEROES: u8 = 5;
pub(super) const NOP: u8 = 6;

pub(super) const FLAG_FUA: u8 = 1 << 0;
pub(super) const FLAG_INVALIDATE: u8 = 1 << 1;
pub(super) const FLAG_KEEP: u8 = 1 << 2;
pub(super) const FLAG_QUIET: u8 = 1 << 3;
/// A flag of a keyed write.
pub(super) const FLAG_ATOMIC: u8 = 1 << 4;

/// How the data travels. 5 (in chunks) is reserved.
pub(super) const DATA_NONE: u8 = 0;
pub(super) const DATA_KEYED: u8 = 1;
/// Keyed, with an immediate value as the response.
pub(super) const DATA_IMMEDIATE: u8 = 2;
/// After the request, in its message.
pub(super) const DATA_INLINE: u8 = 3;
/// It is in the eager ring already.
pub(super) const DATA_EAGER: u8 = 4;

/// The key fields of a request without a key.
const NO_REMOTE: Remote = Remote {
    address: 0,
    key: 0,
    response: ResponseKind::Message,
};

/// The data fields of a request without data.
const NO_DATA: (Extent, Remote) = (
    Extent {
        offset: 0,
        length: 0,
    },
    NO_REMOTE,
);

/// Why a request cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// The session ends: the request is too short to have a tag, or is for the admin queue pair, or
    /// may take a slot of the eager ring or stand for several requests, which both sides would then
    /// count differently.
    EndSession,
    /// The response has this status.
    Refuse(Tag, Status),
}

impl IoRequest {
    /// Encodes the request.
    #[inline]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let durable = |fua| if fua { FLAG_FUA } else { 0 };
        let (opcode, data, (extent, remote), mut flags) = match self.op {
            Op::Read(extent, remote) => (READ, DATA_KEYED, (extent, remote), 0),
            Op::Write {
                extent,
                remote,
                fua,
                atomic,
            } => {
                let atomic = if atomic { FLAG_ATOMIC } else { 0 };
                (WRITE, DATA_KEYED, (extent, remote), durable(fua) | atomic)
            }
            Op::WriteInline { extent, fua } => {
                (WRITE, DATA_INLINE, (extent, NO_REMOTE), durable(fua))
            }
            Op::WriteEager { extent, fua } => {
                (WRITE, DATA_EAGER, (extent, NO_REMOTE), durable(fua))
            }
            Op::Flush => (FLUSH, DATA_NONE, NO_DATA, 0),
            Op::Discard(extent) => (DISCARD, DATA_NONE, (extent, NO_REMOTE), 0),
            Op::WriteZeroes { extent, keep } => (
                WRITE_ZEROES,
                DATA_NONE,
                (extent, NO_REMOTE),
                if keep { FLAG_KEEP } else { 0 },
            ),
            Op::Nop => (NOP, DATA_NONE, NO_DATA, 0),
        };
        let data = match remote.response {
            ResponseKind::Message => data,
            ResponseKind::Invalidating => {
                flags |= FLAG_INVALIDATE;
                data
            }
            ResponseKind::Immediate => DATA_IMMEDIATE,
        };
        if self.quiet {
            flags |= FLAG_QUIET;
        }
        Writer::new()
            .u8(opcode)
            .u8(flags)
            .u16(0)
            .u16(self.tag.index)
            .u16(self.tag.generation)
            .u64(extent.offset)
            .u32(extent.length)
            .u32(remote.key)
            .u64(remote.address)
            .u8(data)
            .u8(0)
            .u16(self.volume.0)
            .u32(0)
            .finish()
    }

    /// Returns how many requests are in a message of `length` bytes that begins with `bytes`.
    #[inline]
    pub fn count(bytes: &[u8], length: usize) -> Result<usize, BadRequest> {
        match bytes.get(MORE_OFFSET) {
            Some(&more) if more != 0 && length >= REQUEST_LEN => {
                let count = usize::from(more) + 1;
                if count > MESSAGE_REQUESTS_MAX || length != count * REQUEST_LEN {
                    return Err(BadRequest::EndSession);
                }
                Ok(count)
            }
            _ => Ok(1),
        }
    }

    /// Reads a request of `bytes.len()` bytes: a whole message, whose length its completion has
    /// reported, or a request after the first one of a message.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRequest> {
        Self::decode_before(bytes, 0, 0)
    }

    /// Decodes a request as [`Self::decode`] does, from a message that continues with `following`
    /// bytes of data, or with `more` requests.
    #[inline]
    pub fn decode_before(bytes: &[u8], following: usize, more: u8) -> Result<Self, BadRequest> {
        if bytes.len() == REQUEST_LEN {
            if let Some(whole) = prefix(bytes) {
                return Self::decode_whole(whole, following, more);
            }
        }
        let header: &[u8; 8] = prefix(bytes).ok_or(BadRequest::EndSession)?;
        let mut r = Reader::new(header);
        r.u32();
        let tag = Tag {
            index: r.u16(),
            generation: r.u16(),
        };
        Err(BadRequest::Refuse(tag, Status::Invalid))
    }

    /// Decodes a request as [`Self::decode_before`] does, of the length of one.
    // For a caller that needs few of the fields, the compiler leaves out the rest.
    #[inline(always)]
    pub fn decode_whole(
        bytes: &[u8; REQUEST_LEN],
        following: usize,
        more: u8,
    ) -> Result<Self, BadRequest> {
        let mut r = Reader::new(bytes);
        let opcode = r.u8();
        let flags = r.u8();
        let (others, reserved) = (r.u8(), r.u8());
        let tag = Tag {
            index: r.u16(),
            generation: r.u16(),
        };
        let fields = Fields {
            opcode,
            flags,
            extent: Extent {
                offset: r.u64(),
                length: r.u32(),
            },
            key: r.u32(),
            address: r.u64(),
            data: r.u8(),
        };
        let invalid = || {
            if fields.data == DATA_EAGER || is_admin(opcode) {
                BadRequest::EndSession
            } else {
                BadRequest::Refuse(tag, Status::Invalid)
            }
        };
        let remote = fields.remote().ok_or_else(invalid)?;
        let (unused, volume) = (r.u8(), Handle(r.u16()));
        if others != more || reserved != 0 || unused != 0 || r.u32() != 0 {
            return Err(invalid());
        }
        if following != 0 && !fields.is_inline(remote, following) {
            return Err(invalid());
        }
        let op = match fields.op(remote, following) {
            Some(op) => op,
            None if fields.data == DATA_EAGER || fields.is_known() => return Err(invalid()),
            None if is_admin(opcode) => return Err(BadRequest::EndSession),
            None => return Err(BadRequest::Refuse(tag, Status::Unsupported)),
        };
        Ok(Self {
            tag,
            volume,
            op,
            quiet: flags & FLAG_QUIET != 0,
        })
    }
}

/// The relevant fields of a request, before they are checked.
struct Fields {
    opcode: u8,
    flags: u8,
    extent: Extent,
    key: u32,
    address: u64,
    /// Where the data is, one of `DATA_…`.
    data: u8,
}

impl Fields {
    /// Returns whether the opcode is one of this version.
    #[inline]
    fn is_known(&self) -> bool {
        (READ..=NOP).contains(&self.opcode)
    }

    /// Returns the key's fields with the kind of response; `None` if a request with its data in
    /// that place cannot have this response.
    #[inline]
    fn remote(&self) -> Option<Remote> {
        let response = match (self.data, self.flags & FLAG_INVALIDATE != 0) {
            (DATA_IMMEDIATE, false) if self.opcode == READ => ResponseKind::Immediate,
            (DATA_NONE | DATA_KEYED | DATA_INLINE | DATA_EAGER, false) => ResponseKind::Message,
            (DATA_KEYED, true) => ResponseKind::Invalidating,
            _ if self.is_known() => return None,
            _ => ResponseKind::Message,
        };
        Some(Remote {
            address: self.address,
            key: self.key,
            response,
        })
    }

    /// Returns whether the extent has a length, and an end that fits into 64 bits.
    #[inline]
    fn has_extent(&self) -> bool {
        let length = self.extent.length;
        length > 0 && self.extent.offset.checked_add(u64::from(length)).is_some()
    }

    /// Returns whether the data is the `following` bytes after the request.
    #[inline]
    fn is_inline(&self, remote: Remote, following: usize) -> bool {
        self.data == DATA_INLINE
            && self.extent.length as usize == following
            && self.has_extent()
            && remote == NO_REMOTE
    }

    /// Returns the operation; `None` if it is not known, or if its fields do not fit together.
    #[inline(always)]
    fn op(&self, remote: Remote, following: usize) -> Option<Op> {
        let extent = self.extent;
        let unkeyed = || self.has_extent() && remote == NO_REMOTE;
        let bare = || self.data == DATA_NONE && unkeyed();
        let keyed = || {
            matches!(self.data, DATA_KEYED | DATA_IMMEDIATE)
                && self.has_extent()
                && remote
                    .address
                    .checked_add(u64::from(extent.length))
                    .is_some()
        };
        let nothing = || self.data == DATA_NONE && (extent, remote) == NO_DATA;
        let fua = self.flags & FLAG_FUA != 0;
        let atomic = self.flags & FLAG_ATOMIC != 0;
        const ATOMIC_AND_FUA: u8 = FLAG_ATOMIC | FLAG_FUA;
        Some(
            match (self.opcode, self.flags & !(FLAG_INVALIDATE | FLAG_QUIET)) {
                (READ, 0) if keyed() => Op::Read(extent, remote),
                (WRITE, 0 | FLAG_FUA | FLAG_ATOMIC | ATOMIC_AND_FUA) if keyed() => Op::Write {
                    extent,
                    remote,
                    fua,
                    atomic,
                },
                (WRITE, 0 | FLAG_FUA) if self.is_inline(remote, following) => {
                    Op::WriteInline { extent, fua }
                }
                (WRITE, 0 | FLAG_FUA) if self.data == DATA_EAGER && unkeyed() => {
                    Op::WriteEager { extent, fua }
                }
                (FLUSH, 0) if nothing() => Op::Flush,
                (DISCARD, 0) if bare() => Op::Discard(extent),
                (WRITE_ZEROES, 0 | FLAG_KEEP) if bare() => Op::WriteZeroes {
                    extent,
                    keep: self.flags & FLAG_KEEP != 0,
                },
                (NOP, 0) if nothing() => Op::Nop,
                _ => return None,
            },
        )
    }
}
