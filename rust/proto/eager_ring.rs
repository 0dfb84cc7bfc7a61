// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The eager ring: memory of the target into which the initiator puts the data of writes before the
//! target has received their requests.
//!
//! A target may grant each queue pair a range of its memory, which the initiator uses as a ring. An
//! *eager write* puts its data into the next slot of the ring, with an RDMA WRITE, and announces it
//! with that WRITE's immediate value or with a request in a message. Neither names the slot: the
//! connection preserves the order of eager writes, so both sides compute the same slot. A slot's
//! place in the ring depends on the sizes of the writes alone ([`Ring::take_slot`]); the response,
//! which has the write's number, frees the slot.
//!
//! ```text
//!         take_slot()                    free(), in any order
//!  Free ─────────────► Taken, number n ──────────────────────► Done
//!    ▲                                                            │
//!    └──────────── all that were taken before are done ───────────┘
//! ```
//!
//! At most as many slots are taken at once as the queue pair had credits at its start. Slots that
//! an older open write blocks count as taken: their writes have their responses, and their credits
//! are back, so without this bound their number would be unlimited.
//!
//! The target frees a slot before it posts the response, the initiator when the response has
//! arrived. So every slot that is free at the initiator is free at the target, and a write that
//! finds no free slot at the target breaks the protocol.

use super::{
    message::{Status, BUFFER_LEN},
    DEPTH_MAX,
};

/// Slots begin and end at multiples of this, in bytes; a power of two.
pub const UNIT: u32 = 4096;
/// Maximum size of a ring in bytes.
pub const BYTES_MAX: u32 = 1 << 24;

/// The ring that a target grants to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EagerRingGrant {
    /// Bytes, a multiple of [`UNIT`].
    pub bytes: u32,
    /// The key of the ring's region.
    pub key: u32,
    /// Address of the first byte, in units of 2^32. It does not depend on where the memory is.
    pub base: u32,
}

impl EagerRingGrant {
    /// Checks a reply's ring; `None` if it is not valid, or if there is none.
    pub(super) fn checked(self) -> Option<Self> {
        let good = self.bytes != 0 && self.bytes <= BYTES_MAX && self.bytes % UNIT == 0;
        good.then_some(self)
    }

    /// Returns the address of the byte at `offset`.
    #[inline]
    pub fn address(self, offset: u32) -> u64 {
        u64::from(self.base) << 32 | u64::from(offset)
    }
}

/// The immediate value of an initiator's write-with-immediate: the blocks of the volume to which
/// its data, in whole units, belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The offset on the volume, in [`UNIT`]s; below 2^31.
    pub unit: u32,
    /// The response need not be solicited.
    pub quiet: bool,
}

const QUIET: u32 = 1 << 31;

impl Immediate {
    /// Encodes a write of `length` bytes at `offset`, in bytes; `None` if an immediate value cannot
    /// express it.
    #[inline]
    pub fn new(offset: u64, length: u32, quiet: bool) -> Option<Self> {
        let mask = UNIT - 1;
        let unit = offset / u64::from(UNIT);
        let fits = offset & u64::from(mask) == 0
            && length & mask == 0
            && length != 0
            && unit < u64::from(QUIET);
        fits.then_some(Self {
            unit: unit as u32,
            quiet,
        })
    }

    /// Returns the offset on the volume, in bytes.
    #[inline]
    pub fn offset(self) -> u64 {
        u64::from(self.unit) * u64::from(UNIT)
    }

    /// Encodes the immediate value.
    #[inline]
    pub fn to_wire(self) -> u32 {
        self.unit | if self.quiet { QUIET } else { 0 }
    }

    /// Decodes an immediate value; every value is valid.
    #[inline]
    pub fn from_wire(value: u32) -> Self {
        Self {
            unit: value & !QUIET,
            quiet: value & QUIET != 0,
        }
    }
}

/// Responses to eager writes: up to [`EagerResponses::MAX`] in one message.
#[derive(Clone, Copy, Debug)]
pub struct EagerResponses {
    bytes: [u8; BUFFER_LEN],
    count: usize,
}

/// First byte of such a message.
const EAGER_RESPONSES: u8 = 0x81;
/// The size in bytes of the header, and of each response.
const EAGER_RESPONSE_LEN: usize = 4;

impl EagerResponses {
    /// Maximum number of responses in one message.
    pub const MAX: usize = BUFFER_LEN / EAGER_RESPONSE_LEN - 1;

    /// Makes an empty message.
    pub const fn new() -> Self {
        let mut bytes = [0; BUFFER_LEN];
        bytes[0] = EAGER_RESPONSES;
        Self { bytes, count: 0 }
    }

    /// Adds the response that write `number` ended with `status`. Returns `false` if there is no
    /// room.
    #[inline]
    pub fn push(&mut self, number: u16, status: Status) -> bool {
        let at = (self.count + 1) * EAGER_RESPONSE_LEN;
        let Some(slot) = self.bytes.get_mut(at..at + EAGER_RESPONSE_LEN) else {
            return false;
        };
        let response = u32::from(number) | u32::from(status as u16) << 16;
        slot.copy_from_slice(&response.to_le_bytes());
        self.count += 1;
        self.bytes[1] = self.count as u8;
        true
    }

    /// Returns the number of responses.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there is no response.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the encoded message.
    #[inline]
    pub fn message(&self) -> &[u8] {
        let len = (self.count + 1) * EAGER_RESPONSE_LEN;
        self.bytes.get(..len).unwrap_or(&[])
    }

    /// Returns whether [`Self::decode`] is the decoder for a message.
    #[inline]
    pub fn is(bytes: &[u8]) -> bool {
        bytes.first() == Some(&EAGER_RESPONSES)
    }

    /// Checks a message; `None` if it is not valid, which ends the connection.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<DecodedResponses<'_>> {
        let (head, rest) = bytes.split_first_chunk::<EAGER_RESPONSE_LEN>()?;
        let count = usize::from(head[1]);
        let good = head[0] == EAGER_RESPONSES
            && head[2..] == [0, 0]
            && count != 0
            && count <= Self::MAX
            && rest.len() == count * EAGER_RESPONSE_LEN;
        let responses = DecodedResponses(rest);
        (good && responses.iter().count() == count).then_some(responses)
    }
}

/// The responses of a message that was checked by [`EagerResponses::decode`].
#[derive(Clone, Copy, Debug)]
pub struct DecodedResponses<'a>(&'a [u8]);

impl<'a> DecodedResponses<'a> {
    /// Returns the number of responses.
    #[inline]
    pub fn len(self) -> usize {
        self.0.len() / EAGER_RESPONSE_LEN
    }

    /// Returns whether there is no response: never.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the responses, each as number and status.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = (u16, Status)> + 'a {
        self.0
            .chunks_exact(EAGER_RESPONSE_LEN)
            .filter_map(|response| {
                let value = u32::from_le_bytes(response.try_into().ok()?);
                Some((value as u16, Status::from_wire((value >> 16) as u16)?))
            })
    }
}

impl Default for EagerResponses {
    fn default() -> Self {
        Self::new()
    }
}

/// The slot of one eager write in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSlot {
    /// Offset of the slot in the ring, in bytes.
    pub offset: u32,
    /// The number of the eager write on its queue pair, from 0, modulo 2^16.
    pub number: u16,
}

/// A write whose slot is not free yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Bytes up to the next slot, including the skipped bytes before this slot.
    bytes: u32,
    /// The write has no response yet.
    open: bool,
    /// The owner of the write, as the caller names it.
    owner: u32,
}

/// One side's account of the eager ring. `S` holds a power of two of [`Taken`] entries, at least
/// one for each slot that may be taken at once.
#[derive(Debug)]
pub struct Ring<S> {
    bytes: u32,
    /// The maximum number of slots that are taken at once, including those that only wait for an
    /// older open write: the credits that the queue pair began with, so that both sides have the
    /// same bound.
    most: u16,
    /// Where the last slot ended.
    end: u32,
    /// Bytes from the oldest slot that is not free to `end`.
    used: u32,
    /// Number of the oldest write whose slot is not free.
    oldest: u16,
    /// Number of the next write.
    next: u16,
    taken: S,
}

/// Returns the number of [`Taken`] entries for a queue pair of at most `credits` credits.
pub const fn open_writes(credits: u16) -> usize {
    let credits = if credits > DEPTH_MAX {
        DEPTH_MAX
    } else {
        credits
    };
    (credits as usize).next_power_of_two()
}

impl<S: core::ops::DerefMut<Target = [Taken]>> Ring<S> {
    /// Creates a ring of `bytes` bytes, all of them free; a ring of 0 bytes has no slot for any
    /// write. `credits` are those of the reply.
    pub const fn new(bytes: u32, credits: u16, taken: S) -> Self {
        Self {
            bytes,
            most: credits,
            end: 0,
            used: 0,
            oldest: 0,
            next: 0,
            taken,
        }
    }

    /// Sets the size of a ring that had 0 bytes, and the credits of the reply. All bytes are free.
    pub fn begin(&mut self, bytes: u32, credits: u16) {
        if self.bytes == 0 {
            self.bytes = bytes;
            self.most = credits;
        }
    }

    /// Returns the bytes of the ring.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns how many slots are taken, including those that only wait for an older open write.
    #[inline]
    pub fn open(&self) -> u16 {
        self.next.wrapping_sub(self.oldest)
    }

    /// Returns the number of the oldest write whose slot is not free, if there is any.
    #[inline]
    pub fn oldest(&self) -> Option<u16> {
        (self.open() != 0).then_some(self.oldest)
    }

    /// Takes the next slot for `length` bytes: after the last one, or at the start of the ring if
    /// there is no room before its end. Returns `None`, and changes nothing, if that place is not
    /// free.
    #[inline(always)]
    pub fn take_slot(&mut self, length: u32, owner: u32) -> Option<RingSlot> {
        // 0 if rounding up to a multiple overflows.
        let need = length.wrapping_add(UNIT - 1) & !(UNIT - 1);
        if need == 0 || need > self.bytes {
            return None;
        }
        let left = self.bytes - self.end;
        let (offset, mut bytes) = if need <= left {
            (self.end, need)
        } else {
            (0, need + left)
        };
        if self.open() == 0 {
            // The skipped bytes belong to no slot.
            (self.used, bytes) = (0, need);
        }
        let room = self.bytes - self.used;
        let most = usize::from(self.most).min(self.taken.len());
        if bytes > room || usize::from(self.open()) >= most {
            return None;
        }
        let number = self.next;
        let mask = self.taken.len() - 1;
        *self.taken.get_mut(usize::from(number) & mask)? = Taken {
            bytes,
            open: true,
            owner,
        };
        self.used += bytes;
        self.end = offset + need;
        self.next = number.wrapping_add(1);
        Some(RingSlot { offset, number })
    }

    /// Frees the oldest slot in use, of a write that has its response: for a caller that frees all
    /// slots in this order, and does not call [`Self::free`]. Returns `false` when no write is
    /// open.
    #[inline]
    pub fn free_oldest(&mut self) -> bool {
        if self.open() == 0 {
            return false;
        }
        let place = usize::from(self.oldest) & self.taken.len().wrapping_sub(1);
        match self.taken.get_mut(place) {
            Some(taken) if taken.open => {
                taken.open = false;
                self.used -= taken.bytes;
                self.oldest = self.oldest.wrapping_add(1);
                true
            }
            _ => false,
        }
    }

    /// Frees the slot of write `number`, which has its response. Returns its owner, `None` when no
    /// write of this number is open.
    #[inline]
    pub fn free(&mut self, number: u16) -> Option<u32> {
        let mask = self.taken.len().checked_sub(1)?;
        if number.wrapping_sub(self.oldest) >= self.open() {
            return None;
        }
        let taken = self.taken.get_mut(usize::from(number) & mask)?;
        if !taken.open {
            return None;
        }
        taken.open = false;
        let owner = taken.owner;
        while self.oldest != self.next {
            let Some(first) = self.taken.get(usize::from(self.oldest) & mask) else {
                break;
            };
            if first.open {
                break;
            }
            self.used -= first.bytes;
            self.oldest = self.oldest.wrapping_add(1);
        }
        Some(owner)
    }
}

#[cfg(test)]
mod tests;
