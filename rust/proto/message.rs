// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages on a connected queue pair: requests one way, responses the other.

use super::wire::{prefix, Reader, Writer};

/// Bytes of a request.
pub const REQUEST_LEN: usize = 40;
/// Bytes of a response.
pub const RESPONSE_LEN: usize = 16;
/// Bytes of a receive buffer on either side; longer messages are not valid.
pub const BUFFER_LEN: usize = 64;
/// Requests that one message may have at most.
pub const MESSAGE_REQUESTS_MAX: usize = 16;
/// Where the first of them says how many more there are.
pub const MORE_OFFSET: usize = 2;

/// Names a request in flight: its tag, and how often the tag was used, so
/// that a late or repeated answer is not taken for another request's.
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
    pub fn from_immediate(value: u32) -> Self {
        Self {
            index: value as u16,
            generation: (value >> 16) as u16,
        }
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Move data from the volume to the initiator's memory.
    Read(Extent, Remote),
    /// Move data from the initiator's memory to the volume.
    Write {
        /// Where on the volume.
        extent: Extent,
        /// Where in the initiator's memory.
        remote: Remote,
        /// Answer only when the data is on stable storage.
        fua: bool,
    },
    /// Move the data that follows in the message to the volume.
    WriteInline {
        /// Where on the volume.
        extent: Extent,
        /// Answer only when the data is on stable storage.
        fua: bool,
    },
    /// Move the data that was written to the next slot of
    /// the [eager ring](super::grant) to the volume.
    WriteEager {
        /// Where on the volume.
        extent: Extent,
        /// Answer only when the data is on stable storage.
        fua: bool,
    },
    /// Make every answered write stable.
    Flush,
    /// The content of these blocks is not needed any more; what they read as is
    /// open until they are written.
    Discard(Extent),
    /// Make these blocks read as zeroes.
    WriteZeroes {
        /// Where on the volume.
        extent: Extent,
        /// The blocks stay allocated.
        keep: bool,
    },
    /// Say how large the volume is now.
    Size,
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
    /// Address within the memory region. It says nothing about where the
    /// memory is on the initiator.
    pub address: u64,
    /// The region's key.
    pub key: u32,
    /// How the target shall answer.
    pub answer: Answer,
}

/// How the target shall answer a request with data that could be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By a response.
    Response,
    /// By a response that invalidates the key.
    Invalidating,
    /// By the immediate value of the RDMA WRITE that ends the data: reads only.
    Immediate,
}

/// An initiator's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request in the answer.
    pub tag: Tag,
    /// What to do.
    pub op: Op,
    /// Its answer need not wake up who sent it.
    pub quiet: bool,
}

const READ: u8 = 1;
const WRITE: u8 = 2;
const FLUSH: u8 = 3;
const DISCARD: u8 = 4;
const WRITE_ZEROES: u8 = 5;
const SIZE: u8 = 6;
const RESPONSE: u8 = 0x80;

const FLAG_FUA: u8 = 1 << 0;
const FLAG_INVALIDATE: u8 = 1 << 1;
const FLAG_KEEP: u8 = 1 << 2;
const FLAG_QUIET: u8 = 1 << 3;

/// How the data travels. 5 (in chunks) is reserved.
const DATA_NONE: u8 = 0;
const DATA_KEYED: u8 = 1;
/// Keyed, and answered by an immediate.
const DATA_IMMEDIATE: u8 = 2;
/// Behind the request in its message.
const DATA_INLINE: u8 = 3;
/// It is in the eager ring already.
const DATA_EAGER: u8 = 4;

/// What the key fields of a request say that needs none.
const NO_REMOTE: Remote = Remote {
    address: 0,
    key: 0,
    answer: Answer::Response,
};

/// What the data fields of a request without data say.
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
    /// Too short to have a tag, or it may mean a slot of the eager ring or
    /// several requests, which both sides would count differently: the connection ends.
    Unanswerable,
    /// It can be answered, with this status.
    Answer(Tag, Status),
}

impl Request {
    /// Encodes the request.
    #[inline]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let (opcode, data, (extent, remote), mut flags) = match self.op {
            Op::Read(extent, remote) => (READ, DATA_KEYED, (extent, remote), 0),
            Op::Write {
                extent,
                remote,
                fua,
            } => (
                WRITE,
                DATA_KEYED,
                (extent, remote),
                if fua { FLAG_FUA } else { 0 },
            ),
            Op::WriteInline { extent, fua } => (
                WRITE,
                DATA_INLINE,
                (extent, NO_REMOTE),
                if fua { FLAG_FUA } else { 0 },
            ),
            Op::WriteEager { extent, fua } => (
                WRITE,
                DATA_EAGER,
                (extent, NO_REMOTE),
                if fua { FLAG_FUA } else { 0 },
            ),
            Op::Flush => (FLUSH, DATA_NONE, NO_DATA, 0),
            Op::Discard(extent) => (DISCARD, DATA_NONE, (extent, NO_REMOTE), 0),
            Op::WriteZeroes { extent, keep } => (
                WRITE_ZEROES,
                DATA_NONE,
                (extent, NO_REMOTE),
                if keep { FLAG_KEEP } else { 0 },
            ),
            Op::Size => (SIZE, DATA_NONE, NO_DATA, 0),
        };
        let data = match remote.answer {
            Answer::Response => data,
            Answer::Invalidating => {
                flags |= FLAG_INVALIDATE;
                data
            }
            Answer::Immediate => DATA_IMMEDIATE,
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
            .u16(0)
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
                    return Err(BadRequest::Unanswerable);
                }
                Ok(count)
            }
            _ => Ok(1),
        }
    }

    /// Reads a request of `bytes.len()` bytes that is a message, the length that the
    /// completion gave, or is in one behind the first.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRequest> {
        Self::decode_before(bytes, 0, 0)
    }

    /// Decodes a request as [`Self::decode`] does, of a message that goes on with `following` bytes
    /// of data, or with `more` requests.
    #[inline]
    pub fn decode_before(bytes: &[u8], following: usize, more: u8) -> Result<Self, BadRequest> {
        let header: &[u8; 8] = prefix(bytes).ok_or(BadRequest::Unanswerable)?;
        let mut r = Reader::new(header);
        let opcode = r.u8();
        let flags = r.u8();
        let (others, reserved) = (r.u8(), r.u8());
        let tag = Tag {
            index: r.u16(),
            generation: r.u16(),
        };
        let invalid = BadRequest::Answer(tag, Status::Invalid);
        if bytes.len() != REQUEST_LEN {
            return Err(invalid);
        }
        let bytes: &[u8; REQUEST_LEN] = prefix(bytes).ok_or(invalid)?;
        let mut r = Reader::new(bytes);
        r.u64();
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
        let invalid = if fields.data == DATA_EAGER {
            BadRequest::Unanswerable
        } else {
            invalid
        };
        let remote = fields.remote().ok_or(invalid)?;
        if others != more || reserved != 0 || r.u8() != 0 || r.u16() != 0 || r.u32() != 0 {
            return Err(invalid);
        }
        if following != 0 && !fields.is_inline(remote, following) {
            return Err(invalid);
        }
        let op = match fields.op(remote, following) {
            Some(op) => op,
            None if fields.data == DATA_EAGER || fields.is_known() => return Err(invalid),
            None => return Err(BadRequest::Answer(tag, Status::Unsupported)),
        };
        Ok(Self {
            tag,
            op,
            quiet: flags & FLAG_QUIET != 0,
        })
    }
}

/// What a request's fields say that is wanted, before it is checked.
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
        (READ..=SIZE).contains(&self.opcode)
    }

    /// Returns the key's fields with the kind of answer; `None` if there is no such answer to a
    /// request with its data there.
    #[inline]
    fn remote(&self) -> Option<Remote> {
        let answer = match (self.data, self.flags & FLAG_INVALIDATE != 0) {
            (DATA_IMMEDIATE, false) if self.opcode == READ => Answer::Immediate,
            (DATA_NONE | DATA_KEYED | DATA_INLINE | DATA_EAGER, false) => Answer::Response,
            (DATA_KEYED, true) => Answer::Invalidating,
            _ if self.is_known() => return None,
            _ => Answer::Response,
        };
        Some(Remote {
            address: self.address,
            key: self.key,
            answer,
        })
    }

    /// Returns whether the extent has a length and ends within what 64 bits can say.
    #[inline]
    fn has_extent(&self) -> bool {
        let length = self.extent.length;
        length > 0 && self.extent.offset.checked_add(u64::from(length)).is_some()
    }

    /// Returns whether the data is the `following` bytes behind the request.
    #[inline]
    fn is_inline(&self, remote: Remote, following: usize) -> bool {
        self.data == DATA_INLINE
            && self.extent.length as usize == following
            && self.has_extent()
            && remote == NO_REMOTE
    }

    /// Returns the operation; `None` if it is not known, or if its fields do not fit together.
    #[inline]
    fn op(&self, remote: Remote, following: usize) -> Option<Op> {
        let extent = self.extent;
        let unkeyed = self.has_extent() && remote == NO_REMOTE;
        let bare = self.data == DATA_NONE && unkeyed;
        let keyed = matches!(self.data, DATA_KEYED | DATA_IMMEDIATE)
            && self.has_extent()
            && remote
                .address
                .checked_add(u64::from(extent.length))
                .is_some();
        let nothing = self.data == DATA_NONE && (extent, remote) == NO_DATA;
        let fua = self.flags & FLAG_FUA != 0;
        Some(
            match (self.opcode, self.flags & !(FLAG_INVALIDATE | FLAG_QUIET)) {
                (READ, 0) if keyed => Op::Read(extent, remote),
                (WRITE, 0 | FLAG_FUA) if keyed => Op::Write {
                    extent,
                    remote,
                    fua,
                },
                (WRITE, 0 | FLAG_FUA) if self.is_inline(remote, following) => {
                    Op::WriteInline { extent, fua }
                }
                (WRITE, 0 | FLAG_FUA) if self.data == DATA_EAGER && unkeyed => {
                    Op::WriteEager { extent, fua }
                }
                (FLUSH, 0) if nothing => Op::Flush,
                (DISCARD, 0) if bare => Op::Discard(extent),
                (WRITE_ZEROES, 0 | FLAG_KEEP) if bare => Op::WriteZeroes {
                    extent,
                    keep: self.flags & FLAG_KEEP != 0,
                },
                (SIZE, 0) if nothing => Op::Size,
                _ => return None,
            },
        )
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// It was done.
    Ok = 0,
    /// The request makes no sense.
    Invalid = 1,
    /// The request is not known or not supported by this volume.
    Unsupported = 2,
    /// It goes beyond the end of the volume, or is not on block boundaries.
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
            _ => return None,
        })
    }
}

/// A target's answer by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Receive buffers that the target posted since its last message.
    pub credits: u16,
    /// The request.
    pub tag: Tag,
    /// How it ended.
    pub status: Status,
    /// The answer to [`Op::Size`], in units of 512 bytes and below 2^48; 0 for
    /// other requests.
    pub sectors: u64,
}

impl Response {
    /// Decodes a response by an immediate value: the request was carried out, and its receive
    /// buffer is posted again.
    #[inline]
    pub fn of_immediate(value: u32) -> Self {
        Self {
            credits: 1,
            tag: Tag::from_immediate(value),
            status: Status::Ok,
            sectors: 0,
        }
    }

    /// Encodes the response.
    #[inline]
    pub fn encode(&self) -> [u8; RESPONSE_LEN] {
        Writer::new()
            .u8(RESPONSE)
            .u8(0)
            .u16(self.credits)
            .u16(self.tag.index)
            .u16(self.tag.generation)
            .u16(self.status as u16)
            .u16(self.sectors as u16)
            .u32((self.sectors >> 16) as u32)
            .finish()
    }

    /// Reads a message of `bytes.len()` bytes; `None`: the peer does not
    /// speak this protocol and the connection ends.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RESPONSE_LEN] = bytes.try_into().ok()?;
        let mut r = Reader::new(bytes);
        let (opcode, flags, credits) = (r.u8(), r.u8(), r.u16());
        let tag = Tag {
            index: r.u16(),
            generation: r.u16(),
        };
        let status = Status::from_wire(r.u16())?;
        let sectors = u64::from(r.u16()) | u64::from(r.u32()) << 16;
        (opcode == RESPONSE && flags == 0).then_some(Self {
            credits,
            tag,
            status,
            sectors,
        })
    }
}

#[cfg(test)]
mod tests;
