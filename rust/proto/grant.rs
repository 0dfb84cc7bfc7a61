// SPDX-License-Identifier: GPL-2.0

//! Granted memory: where the initiator may put the data of writes before the
//! target knows of them.
//!
//! A target may grant each queue pair a range of its memory, which the
//! initiator uses as a ring. A *granted write* puts its data into the next
//! place there, by RDMA WRITE, and then says so, by that WRITE's immediate value
//! or by a request in a message. Neither names the place: a connection keeps
//! the order, so both sides count alike. What a place is depends on the sizes of
//! the writes alone ([`Ring::place`]); the answer, which names the write by its
//! number, makes the place free again.
//!
//! ```text
//!          place()                       free(), in any order
//!  Free ─────────────► Taken, number n ──────────────────────► Answered
//!    ▲                                                            │
//!    └──────────── all that were taken before are answered ───────┘
//! ```
//!
//! No more places are taken at once than the queue pair began with credits. Places that are
//! kept by an older open write count: their writes were answered, so that their credits
//! are back, and without this bound there could be any number of them.
//!
//! The target makes a place free before it posts the answer, the initiator when
//! it has come: so what is free at the initiator is free at the target, and a
//! write that finds no place there breaks the protocol.

use super::{
    message::{Status, BUFFER_LEN},
    DEPTH_MAX,
};

/// Places begin and end at multiples of this, in bytes.
pub const UNIT: u32 = 4096;
/// Bytes of granted memory at most.
pub const BYTES_MAX: u32 = 1 << 24;

/// What a target grants to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Bytes, a multiple of [`UNIT`].
    pub bytes: u32,
    /// The key.
    pub key: u32,
    /// Where it begins, in units of 2^32. It says nothing about where the memory is.
    pub base: u32,
}

impl Grant {
    /// Checks what a reply says; `None` also when it says that there is none.
    pub(super) fn checked(self) -> Option<Self> {
        let good = self.bytes != 0 && self.bytes <= BYTES_MAX && self.bytes % UNIT == 0;
        good.then_some(self)
    }

    /// The address of the byte at `offset`.
    #[inline]
    pub fn address(self, offset: u32) -> u64 {
        u64::from(self.base) << 32 | u64::from(offset)
    }
}

/// What an immediate value of an initiator says: that the data before it, whole
/// units of it, is for these blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// Where on the volume, in [`UNIT`]s; below 2^31.
    pub unit: u32,
    /// The answer need not wake up who sent it.
    pub quiet: bool,
}

const QUIET: u32 = 1 << 31;

impl Immediate {
    /// For a write of `length` bytes at `offset`; `None`: it cannot be told so.
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

    /// Where on the volume, in bytes.
    #[inline]
    pub fn offset(self) -> u64 {
        u64::from(self.unit) * u64::from(UNIT)
    }

    /// As it travels.
    #[inline]
    pub fn to_wire(self) -> u32 {
        self.unit | if self.quiet { QUIET } else { 0 }
    }

    /// Every value is one.
    #[inline]
    pub fn from_wire(value: u32) -> Self {
        Self {
            unit: value & !QUIET,
            quiet: value & QUIET != 0,
        }
    }
}

/// Answers to granted writes: up to [`Answers::MAX`] in one message.
#[derive(Clone, Copy, Debug)]
pub struct Answers {
    bytes: [u8; BUFFER_LEN],
    count: usize,
}

/// First byte of such a message.
const ANSWERS: u8 = 0x81;
/// Bytes before the first answer, and of each.
const ANSWER_LEN: usize = 4;

impl Answers {
    /// Answers in one message.
    pub const MAX: usize = BUFFER_LEN / ANSWER_LEN - 1;

    /// No answers.
    pub const fn new() -> Self {
        let mut bytes = [0; BUFFER_LEN];
        bytes[0] = ANSWERS;
        Self { bytes, count: 0 }
    }

    /// Adds that write `number` ended with `status`; `false`: there is no room.
    #[inline]
    pub fn push(&mut self, number: u16, status: Status) -> bool {
        let at = (self.count + 1) * ANSWER_LEN;
        let Some(place) = self.bytes.get_mut(at..at + ANSWER_LEN) else {
            return false;
        };
        let answer = u32::from(number) | u32::from(status as u16) << 16;
        place.copy_from_slice(&answer.to_le_bytes());
        self.count += 1;
        self.bytes[1] = self.count as u8;
        true
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The message.
    #[inline]
    pub fn message(&self) -> &[u8] {
        let len = (self.count + 1) * ANSWER_LEN;
        self.bytes.get(..len).unwrap_or(&[])
    }

    /// Whether a message is to be read by [`Self::decode`].
    #[inline]
    pub fn is(bytes: &[u8]) -> bool {
        bytes.first() == Some(&ANSWERS)
    }

    /// Reads a message; `None`: it makes no sense, and the connection ends.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut answers = Self::new();
        let (head, rest) = bytes.split_first_chunk::<ANSWER_LEN>()?;
        let count = usize::from(head[1]);
        let good = head[0] == ANSWERS
            && head[2..] == [0, 0]
            && count != 0
            && rest.len() == count * ANSWER_LEN;
        if !good {
            return None;
        }
        for answer in rest.chunks_exact(ANSWER_LEN) {
            let value = u32::from_le_bytes(answer.try_into().ok()?);
            if !answers.push(value as u16, Status::from_wire((value >> 16) as u16)?) {
                return None;
            }
        }
        Some(answers)
    }

    /// The answers: number and status.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (u16, Status)> + '_ {
        self.message()
            .chunks_exact(ANSWER_LEN)
            .skip(1)
            .filter_map(|answer| {
                let value = u32::from_le_bytes(answer.try_into().ok()?);
                Some((value as u16, Status::from_wire((value >> 16) as u16)?))
            })
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self::new()
    }
}

/// A place in granted memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where it begins.
    pub offset: u32,
    /// Which granted write of the queue pair it is, from 0, modulo 2^16.
    pub number: u16,
}

/// A write whose place is not free yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Bytes until the next place, those before this one included that were left out.
    bytes: u32,
    /// It was not answered.
    open: bool,
    /// Whose it is.
    owner: u32,
}

/// One side's account of granted memory. `S` has a number of [`Taken`] that is a
/// power of two, and at least as many as places may be taken at once.
#[derive(Debug)]
pub struct Ring<S> {
    bytes: u32,
    /// Places that may be taken at once, those included that an older open write keeps: the
    /// credits that the queue pair began with, so that both sides have the same bound.
    most: u16,
    /// Where the last place ended.
    end: u32,
    /// Bytes from the oldest place that is not free to `end`.
    used: u32,
    /// Number of the oldest write whose place is not free.
    oldest: u16,
    /// Number of the next write.
    next: u16,
    taken: S,
}

/// How many [`Taken`] a queue pair of at most so many credits needs.
pub const fn open_writes(credits: u16) -> usize {
    let credits = if credits > DEPTH_MAX {
        DEPTH_MAX
    } else {
        credits
    };
    (credits as usize).next_power_of_two()
}

impl<S: core::ops::DerefMut<Target = [Taken]>> Ring<S> {
    /// All of `bytes` bytes are free; none: no write finds a place. `credits` are those of the
    /// reply.
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

    /// From here on there are so many bytes, all of them free, and so many credits in the
    /// reply. For a ring without any.
    pub fn begin(&mut self, bytes: u32, credits: u16) {
        if self.bytes == 0 {
            self.bytes = bytes;
            self.most = credits;
        }
    }

    /// Bytes of all places.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Writes that are open, and those whose places are kept by older ones.
    #[inline]
    pub fn open(&self) -> u16 {
        self.next.wrapping_sub(self.oldest)
    }

    /// Number of the oldest write whose place is not free, if there is any.
    #[inline]
    pub fn oldest(&self) -> Option<u16> {
        (self.open() != 0).then_some(self.oldest)
    }

    /// Takes the next place for `length` bytes: behind the last one, or at the
    /// beginning if there is no room before the end. `None`: that is not free,
    /// and nothing was changed.
    #[inline]
    pub fn place(&mut self, length: u32, owner: u32) -> Option<Place> {
        let need = length.checked_next_multiple_of(UNIT)?;
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
            // What is left out is nobody's.
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
        Some(Place { offset, number })
    }

    /// Write `number` is answered; whose it was, `None` when none of this number is open.
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
