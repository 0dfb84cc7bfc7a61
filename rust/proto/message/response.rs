// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Responses: a target's messages.

use super::{
    super::wire::{Reader, Writer},
    Status, Tag, RESPONSE_LEN,
};

pub(super) const RESPONSE: u8 = 0x80;

/// A target's response in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoResponse {
    /// Receive buffers that the target posted since its last message.
    pub credits: u16,
    /// The request.
    pub tag: Tag,
    /// How it ended.
    pub status: Status,
}

impl IoResponse {
    /// Decodes a response in an immediate value: the request was carried out, and its receive
    /// buffer is posted again.
    #[inline]
    pub fn of_immediate(value: u32) -> Self {
        Self {
            credits: 1,
            tag: Tag::from_immediate(value),
            status: Status::Ok,
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
            .u16(0)
            .u32(0)
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
        let reserved = r.u16() != 0 || r.u32() != 0;
        (opcode == RESPONSE && flags == 0 && !reserved).then_some(Self {
            credits,
            tag,
            status,
        })
    }
}
