// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The locking of lines of a write-through cache, which guarantees that no read returns old data.
//! Uses nothing but `core`: its tests run on the host.
//!
//! A request is a [`Visit`]. It announces its operation before the drive starts it, and leaves
//! after the drive has finished, before the response. The account here is kept under one lock. Data
//! is copied without that lock, by a visit that has a right to the line:
//!
//! ```text
//!          read, misses                      left, with the data
//!  (none) ─────────────► Busy, of the reader ───────────────────► Clean
//!    ▲                     │ doomed, or left without               │  │ read, hits: pinned
//!    ├─────────────────────┘                                       │  ▼ as long as it copies
//!    ├──────────────────── evicted, invalidated ───────────────────┤
//!    │  doomed, or left without                    write           │
//!    └──────────────────── Busy, of the writer ◄───────────────────┘
//!                            │ left: written, and copied    ▲
//!                            └──────────────────────────────┘ Clean
//! ```
//!
//! Data need not be copied: a drive may put it into the lines of a read that misses, and the
//! response may be sent from there. Such a read [keeps its lines pinned](Lines::keep_pinned) after
//! the drive has finished: they are Clean, and pinned by it until the send of the response has
//! completed.
//!
//! # Why no data is old
//!
//! - Only its owner uses a Busy line.
//! - A write drops every line that it touches and cannot own. If the line is in use (being filled,
//!   of another write, or being copied by a reader), the write dooms it: its owner, or its last
//!   reader, drops it.
//! - While a write is under way, no line that it touches starts to be filled. Writes are counted by
//!   a hash of the line's number, so a line is sometimes not filled because of another line's
//!   write.
//! - So data that was read from the drive before or during a write is not kept after it, and of two
//!   writes at the same time the data of neither is kept.
//! - When the drive's size changes, the cache's *age* changes, and lines of an older age are not
//!   used.
//!
//! Requests of more than [`SPAN`] lines bypass the cache: reads are not looked up, writes drop the
//! lines that they touch. Discarded and zeroed ranges, which may be very long, are dropped a few
//! lines at a time; in the meantime no line starts to be filled.

use super::{
    Memory,
    Mq, //
};

/// log2 of the bytes of a line.
pub const LINE_SHIFT: u32 = 12;
/// Bytes of a line.
pub const LINE: usize = 1 << LINE_SHIFT;
/// Maximum number of lines that a request through the cache may touch: enough for 64 KiB at any
/// offset.
pub const SPAN: usize = 17;

/// Maximum number of lines that one call, under the lock, handles.
const BATCH: u64 = 64;
/// Number of counters of writes under way; a power of two.
const WRITERS: usize = 1024;
const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Free,
    /// Holds the drive's data.
    Clean,
    /// Owned by one visit.
    Busy,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    state: LineState,
    /// Its owner, or the last reader that has pinned it, must drop it.
    doomed: bool,
    /// Reads that copy from it, or whose response is sent from it.
    pins: u32,
    age: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Has no right to any line.
    Outside,
    /// Has pinned its lines.
    Hit,
    /// Owns some of its lines, to be filled.
    Fill,
    /// Owns some of its lines, to be changed; is counted as a writer.
    Write,
    /// Drops many lines.
    Drop,
}

/// A request's state in the cache. It must [`leave`](Lines::leave).
#[derive(Debug)]
pub struct Visit {
    kind: Kind,
    /// The first line.
    first: u64,
    /// The number of lines.
    count: u64,
    /// How many lines `enter` or `leave` has handled so far; slots, if `enter` drops more lines
    /// than there are slots.
    done: u64,
    slots: [u32; SPAN],
    /// Requested lines that the cache had.
    pub hits: u32,
    /// Requested lines that the cache did not have.
    pub misses: u32,
    /// Lines that were evicted for the missing ones.
    pub evictions: u32,
}

impl Visit {
    /// The state of a request that does not use a cache.
    pub const NONE: Self = Self {
        kind: Kind::Outside,
        first: 0,
        count: 0,
        done: 0,
        slots: [NO_SLOT; SPAN],
        hits: 0,
        misses: 0,
        evictions: 0,
    };

    fn new(kind: Kind, offset: u64, length: u64) -> Self {
        let first = offset >> LINE_SHIFT;
        let end = offset.saturating_add(length);
        let last = end.saturating_sub(1) >> LINE_SHIFT;
        Self {
            kind: if length == 0 { Kind::Outside } else { kind },
            first,
            count: last.saturating_sub(first) + 1,
            ..Self::NONE
        }
    }

    /// Creates the visit of a write; the caller must [`enter`](Lines::enter) it.
    pub fn write(offset: u64, length: u32) -> Self {
        Self::new(Kind::Write, offset, length.into())
    }

    /// Creates the visit of a change without data; the caller must [`enter`](Lines::enter) it.
    pub fn empty(offset: u64, length: u32) -> Self {
        Self::new(Kind::Drop, offset, length.into())
    }

    /// Returns whether the whole request can be read from the cache.
    pub fn is_hit(&self) -> bool {
        self.kind == Kind::Hit
    }

    /// Returns whether the request must put data into its lines before it leaves.
    pub fn is_owner(&self) -> bool {
        matches!(self.kind, Kind::Fill | Kind::Write) && self.slots().next().is_some()
    }

    /// Returns whether the request has left, or has never entered.
    pub fn is_outside(&self) -> bool {
        self.kind == Kind::Outside
    }

    /// Iterates over the lines that the visit may use: their numbers and slots.
    pub fn slots(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let numbers = self.first..self.first.saturating_add(self.count);
        let slots = self.slots.iter().zip(numbers);
        slots.filter_map(|(slot, number)| (*slot != NO_SLOT).then_some((number, *slot)))
    }

    /// Returns the slot of line `number`, if the visit may use it.
    #[inline]
    pub fn slot(&self, number: u64) -> Option<u32> {
        let at = number.checked_sub(self.first)?;
        let slot = self.slots.get(usize::try_from(at).ok()?)?;
        (*slot != NO_SLOT).then_some(*slot)
    }

    fn is_small(&self) -> bool {
        self.count <= SPAN as u64
    }

    /// Returns the numbers of the next lines to handle, [`BATCH`] at most.
    fn batch(&mut self, of: u64) -> core::ops::Range<u64> {
        let from = self.done;
        self.done = of.min(from + BATCH);
        from..self.done
    }
}

/// The account of all lines of a cache.
pub struct Lines<M: Memory> {
    mq: Mq<M>,
    lines: M::Of<Line>,
    /// Writes under way, by a hash of the line.
    writers: M::Of<u32>,
    /// Ranges that are being dropped.
    drops: u32,
    age: u32,
    /// The drive's size in bytes, as of the last request.
    size: u64,
}

impl<M: Memory> Lines<M> {
    /// Makes the account of a cache of `slots` lines. May sleep.
    pub fn new(slots: u32) -> Result<Self, M::Error> {
        let line = Line {
            state: LineState::Free,
            doomed: false,
            pins: 0,
            age: 0,
        };
        let mq = Mq::new(slots)?;
        Ok(Self {
            lines: M::make(line, mq.slots() as usize)?,
            mq,
            writers: M::make(0, WRITERS)?,
            drops: 0,
            age: 0,
            size: 0,
        })
    }

    /// Returns the replacement algorithm.
    pub fn mq(&self) -> &Mq<M> {
        &self.mq
    }

    /// Begins a read of `length` bytes at `offset` of a drive of `size` bytes. If it is a hit, the
    /// caller need not read from the drive.
    pub fn read(&mut self, offset: u64, length: u32, size: u64) -> Visit {
        self.follow_size(size);
        let mut visit = Visit::new(Kind::Fill, offset, length.into());
        if !visit.is_small() || visit.is_outside() {
            return Visit::NONE;
        }
        let numbers = visit.first..visit.first + visit.count;
        if numbers.clone().all(|number| self.clean(number).is_some()) {
            visit.kind = Kind::Hit;
            for (place, number) in visit.slots.iter_mut().zip(numbers) {
                if let Some(slot) = self.clean(number) {
                    self.mq.hit(slot);
                    if let Some(line) = self.lines.get_mut(slot as usize) {
                        line.pins += 1;
                    }
                    *place = slot;
                }
            }
            visit.hits = visit.count as u32;
            return visit;
        }
        let end = offset.saturating_add(length.into());
        for (i, number) in numbers.enumerate() {
            let start = number << LINE_SHIFT;
            let whole = offset <= start && start + LINE as u64 <= end;
            if let Some(slot) = self.seek(number, whole, &mut visit) {
                if let Some(place) = visit.slots.get_mut(i) {
                    *place = slot;
                }
            }
        }
        visit
    }

    /// Accounts for a line of a read that the drive serves; returns the slot if the line must be
    /// filled.
    fn seek(&mut self, number: u64, whole: bool, visit: &mut Visit) -> Option<u32> {
        if let Some(slot) = self.clean(number) {
            self.mq.hit(slot);
            visit.hits += 1;
            return None;
        }
        visit.misses += 1;
        if let Some(slot) = self.mq.find(number) {
            if self.is_used(slot) {
                self.mq.hit(slot);
                return None;
            }
            // Its data is outdated.
            self.drop_slot(slot);
        }
        let written = self
            .writers
            .get(writer_slot(number))
            .is_some_and(|n| *n != 0);
        if !whole || written || self.drops != 0 {
            self.mq.record_bypass();
            return None;
        }
        let lines = &self.lines;
        let may_evict = |slot: u32| {
            lines
                .get(slot as usize)
                .is_some_and(|line| line.state != LineState::Busy && line.pins == 0)
        };
        let admission = self.mq.miss(number, may_evict)?;
        visit.evictions += u32::from(admission.evicted.is_some());
        self.own(admission.slot);
        Some(admission.slot)
    }

    /// Starts a visit that changes blocks. The caller repeats this until it returns `true`, with
    /// the lock released between; after that, the drive may start the operation.
    pub fn enter(&mut self, visit: &mut Visit, size: u64) -> bool {
        self.follow_size(size);
        match visit.kind {
            Kind::Write => {
                let small = visit.is_small();
                for i in visit.batch(visit.count) {
                    let number = visit.first + i;
                    if let Some(writers) = self.writers.get_mut(writer_slot(number)) {
                        *writers += 1;
                    }
                    let Some(slot) = self.mq.find(number) else {
                        continue;
                    };
                    let own = small && self.clean(number).is_some() && !self.is_used(slot);
                    match visit.slots.get_mut(i as usize) {
                        Some(place) if own => {
                            self.own(slot);
                            *place = slot;
                        }
                        _ => self.invalidate(slot),
                    }
                }
            }
            Kind::Drop => {
                if visit.done == 0 {
                    self.drops += 1;
                }
                if visit.count <= u64::from(self.mq.slots()) {
                    for i in visit.batch(visit.count) {
                        if let Some(slot) = self.mq.find(visit.first + i) {
                            self.invalidate(slot);
                        }
                    }
                } else {
                    let range = visit.first..visit.first.saturating_add(visit.count);
                    for slot in visit.batch(self.mq.slots().into()) {
                        let slot = slot as u32;
                        if self.mq.key(slot).is_some_and(|key| range.contains(&key)) {
                            self.invalidate(slot);
                        }
                    }
                    if visit.done == u64::from(self.mq.slots()) {
                        visit.done = visit.count;
                    }
                }
            }
            Kind::Outside | Kind::Hit | Kind::Fill => return true,
        }
        let entered = visit.done == visit.count;
        if entered {
            visit.done = 0;
        }
        entered
    }

    /// Lets others read the lines that the visit owns, since the drive has put the data of its read
    /// there, and the response is sent from there. They do not change before the visit leaves.
    pub fn keep_pinned(&mut self, visit: &mut Visit) {
        if visit.kind != Kind::Fill {
            return;
        }
        for (_, slot) in visit.slots() {
            if let Some(line) = self.lines.get_mut(slot as usize) {
                line.state = LineState::Clean;
                line.doomed |= line.age != self.age;
                line.pins += 1;
            }
        }
        visit.kind = Kind::Hit;
    }

    /// Ends a visit. With `keep`, the slots that it owns hold the drive's data, and stay in the
    /// cache. The caller repeats this until it returns `true`, with the lock released between; the
    /// response may be sent after that.
    pub fn leave(&mut self, visit: &mut Visit, keep: bool) -> bool {
        if visit.done == 0 {
            for i in 0..SPAN {
                let slot = visit.slots.get(i).copied().unwrap_or(NO_SLOT);
                if slot != NO_SLOT {
                    match visit.kind {
                        Kind::Hit => self.unpin(slot),
                        _ => self.disown(slot, keep),
                    }
                }
            }
            visit.slots = [NO_SLOT; SPAN];
        }
        match visit.kind {
            Kind::Write => {
                for i in visit.batch(visit.count) {
                    if let Some(writers) = self.writers.get_mut(writer_slot(visit.first + i)) {
                        *writers -= 1;
                    }
                }
                if visit.done != visit.count {
                    return false;
                }
            }
            Kind::Drop => self.drops -= 1,
            Kind::Outside | Kind::Hit | Kind::Fill => {}
        }
        visit.kind = Kind::Outside;
        true
    }

    /// Makes all lines outdated if the drive's size has changed.
    fn follow_size(&mut self, size: u64) {
        if self.size != size {
            self.size = size;
            self.age = self.age.wrapping_add(1);
        }
    }

    /// Returns the slot of line `number`, if it can be read.
    fn clean(&self, number: u64) -> Option<u32> {
        let slot = self.mq.find(number)?;
        let line = self.lines.get(slot as usize)?;
        let good = line.state == LineState::Clean && !line.doomed && line.age == self.age;
        good.then_some(slot)
    }

    /// Returns whether some visit has a right to the slot.
    fn is_used(&self, slot: u32) -> bool {
        let line = self.lines.get(slot as usize);
        line.is_some_and(|line| line.state == LineState::Busy || line.pins != 0)
    }

    fn own(&mut self, slot: u32) {
        if let Some(line) = self.lines.get_mut(slot as usize) {
            line.state = LineState::Busy;
            line.doomed = false;
            line.age = self.age;
        }
    }

    fn disown(&mut self, slot: u32, keep: bool) {
        let Some(line) = self.lines.get_mut(slot as usize) else {
            return;
        };
        line.state = LineState::Clean;
        if !keep || line.doomed || line.age != self.age {
            self.drop_slot(slot);
        }
    }

    fn unpin(&mut self, slot: u32) {
        let Some(line) = self.lines.get_mut(slot as usize) else {
            return;
        };
        line.pins -= 1;
        if line.pins == 0 && line.doomed {
            self.drop_slot(slot);
        }
    }

    /// Drops the line in this slot, or dooms it if it is in use, since its data is about to change.
    fn invalidate(&mut self, slot: u32) {
        if !self.is_used(slot) {
            self.drop_slot(slot);
        } else if let Some(line) = self.lines.get_mut(slot as usize) {
            line.doomed = true;
        }
    }

    /// Frees a slot without users.
    fn drop_slot(&mut self, slot: u32) {
        self.mq.remove(slot);
        if let Some(line) = self.lines.get_mut(slot as usize) {
            line.state = LineState::Free;
            line.doomed = false;
        }
    }
}

/// Returns the index of the counter of writes to a line.
fn writer_slot(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize & (WRITERS - 1)
}

#[cfg(test)]
mod tests;
