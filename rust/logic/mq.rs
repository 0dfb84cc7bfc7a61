// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Multi-Queue replacement algorithm: which lines a second-level cache
//! keeps. Uses nothing but `core`: its tests run on the host, and the
//! simulator `hcablk-cachesim` runs this very code.
//!
//! A target sees the misses of its initiators' own caches. These have the blocks used a moment ago;
//! this cache must keep blocks that are used often, over a long time (Zhou, Philbin and Li, *The
//! Multi-Queue Replacement Algorithm for Second Level Buffer Caches*, USENIX 2001).
//!
//! ```text
//!             used again: to the queue of its uses, at the end
//!          ┌───────────────────────────────────────────────┐
//!  miss ─► │ Q0 1 use ◄── Q1 2..3 ◄── Q2 4..7 ◄── … Q7 128.. │
//!          └──┬───────── not used for the lifetime ──────────┘
//!             │ no room: the first of the lowest queue
//!             ▼
//!          history: its uses, without the data ── the oldest is forgotten
//! ```
//!
//! - Time is the number of accesses.
//! - A line that is read again while it is in the history continues its count of uses.
//! - The lifetime follows the observed accesses: the most frequent distance between two uses of the
//!   same line, by powers of two.
//!
//! # Memory
//!
//! Everything is in three arrays of a fixed size: 40 bytes for each line and for each of the
//! [`HISTORY`] times as many lines in the history, and an index of 4-byte entries, at least half as
//! many as these lines. An access looks at a few entries, independent of the size.
//!
//! # Invariants
//!
//! Every node is in exactly one list. Those in a queue are slots, those in the
//! history are not; both, and no others, are in the index, and no key is there
//! twice.

use core::ops::DerefMut;

pub mod lines;

/// An allocator of arrays: the kernel's, or the host's.
pub trait Memory {
    /// An array.
    type Of<T>: DerefMut<Target = [T]>;
    /// The error of an allocation.
    type Error;

    /// Makes an array of `count` copies. May sleep.
    fn make<T: Copy>(value: T, count: usize) -> Result<Self::Of<T>, Self::Error>;
}

/// Queues of lines in the cache.
pub const QUEUES: usize = 8;
/// Lines that the history remembers, for each line in the cache.
pub const HISTORY: usize = 4;

/// The lists after the queues.
const HISTORY_LIST: usize = QUEUES;
const FREE: usize = QUEUES + 1;
const SPARE: usize = QUEUES + 2;
const LISTS: usize = QUEUES + 3;

/// No node.
const NONE: u32 = u32::MAX;
/// The number of lines that are considered for eviction.
const CANDIDATES: usize = 64;
/// The number of powers of two for which distances are counted.
const DISTANCES: usize = 40;
/// The smallest number of distances from which a lifetime is computed.
const SAMPLES: u64 = 64;

/// The state of a line.
#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    /// When it was used last.
    last: u64,
    /// When it entered its queue.
    entered: u64,
    next: u32,
    prev: u32,
    /// The next node with the same place in the index.
    chain: u32,
    uses: u16,
    list: u8,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

/// The slot that [`Mq::miss`] has assigned to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The slot.
    pub slot: u32,
    /// The line that had the slot until now.
    pub evicted: Option<u64>,
}

/// The directory of a cache: which line is in which slot.
pub struct Mq<M: Memory> {
    /// The nodes of the slots, then those of the history.
    nodes: M::Of<Node>,
    index: M::Of<u32>,
    lists: [List; LISTS],
    slots: u32,
    now: u64,
    lifetime: u64,
    distances: [u32; DISTANCES],
    /// How many distances were counted since the lifetime was last computed.
    samples: u64,
}

impl<M: Memory> Mq<M> {
    /// Makes the directory of a cache of `slots` lines; at most `u32::MAX / 8`.
    /// May sleep.
    pub fn new(slots: u32) -> Result<Self, M::Error> {
        let slots = slots.min(NONE / 8);
        let count = slots as usize * (1 + HISTORY);
        let node = Node {
            key: 0,
            last: 0,
            entered: 0,
            next: NONE,
            prev: NONE,
            chain: NONE,
            uses: 0,
            list: 0,
        };
        let list = List {
            head: NONE,
            tail: NONE,
            len: 0,
        };
        let mut this = Self {
            nodes: M::make(node, count)?,
            index: M::make(NONE, (count / 2).next_power_of_two())?,
            lists: [list; LISTS],
            slots,
            now: 0,
            lifetime: slots.into(),
            distances: [0; DISTANCES],
            samples: 0,
        };
        for at in 0..count as u32 {
            this.push(if at < slots { FREE } else { SPARE }, at);
        }
        Ok(this)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns how many lines the cache holds.
    pub fn len(&self) -> u32 {
        let free = self.lists.get(FREE).map_or(0, |list| list.len);
        self.slots - free
    }

    /// Returns whether the cache holds no line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns for how many accesses a line that is not used stays in its queue.
    pub fn lifetime(&self) -> u64 {
        self.lifetime
    }

    /// Returns the slot of the line `key`.
    #[inline]
    pub fn find(&self, key: u64) -> Option<u32> {
        self.look_up(key).filter(|at| *at < self.slots)
    }

    /// Returns the line in a slot.
    #[inline]
    pub fn key(&self, slot: u32) -> Option<u64> {
        let node = self.nodes.get(slot as usize)?;
        (slot < self.slots && usize::from(node.list) < QUEUES).then_some(node.key)
    }

    /// Accounts for a use of the line in `slot`.
    #[inline]
    pub fn hit(&mut self, slot: u32) {
        self.now += 1;
        if self.key(slot).is_some() {
            self.unlink(slot);
            let (mut queue, mut distance) = (0, 0);
            if let Some(node) = self.nodes.get_mut(slot as usize) {
                distance = self.now - node.last;
                node.uses = node.uses.saturating_add(1);
                node.last = self.now;
                node.entered = self.now;
                queue = queue_of(node.uses);
            }
            self.push(queue, slot);
            self.learn(distance);
        }
        self.age();
    }

    /// Accounts for a use of the line `key`, which is not in the cache, and assigns a slot to it: a
    /// free one, or the slot of the least valuable line that `may_evict` allows to evict. Returns
    /// `None` if `may_evict` allows none of the first [`CANDIDATES`] lines, or if the line is in
    /// the cache.
    #[inline]
    pub fn miss(&mut self, key: u64, may_evict: impl Fn(u32) -> bool) -> Option<Admission> {
        self.now += 1;
        let known = match self.look_up(key) {
            Some(at) if at < self.slots => return None,
            Some(at) => self.nodes.get(at as usize).copied(),
            None => None,
        };
        let Some(admission) = self.make_room(may_evict) else {
            self.age();
            return None;
        };
        // Making room may have pushed the line out of the history.
        if let Some(at) = self.look_up(key) {
            self.forget(at, SPARE);
        }
        let uses = known.map_or(0, |node| node.uses).saturating_add(1);
        if let Some(node) = self.nodes.get_mut(admission.slot as usize) {
            node.key = key;
            node.uses = uses;
            node.last = self.now;
            node.entered = self.now;
        }
        self.unlink(admission.slot);
        self.push(queue_of(uses), admission.slot);
        self.enter(admission.slot);
        if let Some(node) = known {
            self.learn(self.now - node.last);
        }
        self.age();
        Some(admission)
    }

    /// Accounts for a use of a line that is not in the cache and does not enter it.
    #[inline]
    pub fn record_bypass(&mut self) {
        self.now += 1;
        self.age();
    }

    /// Removes the slot's line, and does not add it to the history.
    #[inline]
    pub fn remove(&mut self, slot: u32) {
        if self.key(slot).is_some() {
            self.forget(slot, FREE);
        }
    }

    /// Returns a slot of the free list; evicts a line if the list is empty.
    fn make_room(&mut self, may_evict: impl Fn(u32) -> bool) -> Option<Admission> {
        if let Some(slot) = self.first(FREE) {
            return Some(Admission {
                slot,
                evicted: None,
            });
        }
        let slot = self
            .candidates()
            .take(CANDIDATES)
            .find(|at| may_evict(*at))?;
        let old = self.nodes.get(slot as usize).copied()?;
        self.forget(slot, FREE);
        // If the history has no spare node, all its nodes are in use: forget its oldest line.
        if let Some(oldest) = self
            .first(HISTORY_LIST)
            .filter(|_| self.first(SPARE).is_none())
        {
            self.forget(oldest, SPARE);
        }
        if let Some(at) = self.first(SPARE) {
            if let Some(node) = self.nodes.get_mut(at as usize) {
                node.key = old.key;
                node.uses = old.uses;
                node.last = old.last;
            }
            self.unlink(at);
            self.push(HISTORY_LIST, at);
            self.enter(at);
        }
        Some(Admission {
            slot,
            evicted: Some(old.key),
        })
    }

    /// Returns the slots in use, that of the least valuable line first.
    fn candidates(&self) -> impl Iterator<Item = u32> + '_ {
        self.lists.iter().take(QUEUES).flat_map(move |list| {
            core::iter::successors(some(list.head), move |at| {
                some(self.nodes.get(*at as usize)?.next)
            })
        })
    }

    /// Moves lines that were not used for the lifetime to the next lower queue: at most one line of
    /// each queue.
    #[inline]
    fn age(&mut self) {
        for queue in 1..QUEUES {
            let Some(at) = self.first(queue) else {
                continue;
            };
            let Some(node) = self.nodes.get_mut(at as usize) else {
                continue;
            };
            if self.now - node.entered > self.lifetime {
                node.entered = self.now;
                self.unlink(at);
                self.push(queue - 1, at);
            }
        }
    }

    /// Counts that a line was used again after `distance` accesses, and updates the lifetime.
    fn learn(&mut self, distance: u64) {
        let power = distance.max(1).ilog2() as usize;
        if let Some(count) = self.distances.get_mut(power.min(DISTANCES - 1)) {
            *count += 1;
        }
        self.samples += 1;
        if self.samples < SAMPLES.max(self.slots.into()) {
            return;
        }
        self.samples = 0;
        let peak = self.distances.iter().enumerate().max_by_key(|(_, n)| **n);
        self.lifetime = peak.map_or(self.lifetime, |(power, _)| 2 << power);
        // Old distances count less.
        for count in &mut self.distances {
            *count /= 2;
        }
    }

    fn index_slot(&self, key: u64) -> usize {
        let bits = self.index.len().trailing_zeros();
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed.checked_shr(64 - bits).unwrap_or(0) as usize
    }

    /// Returns the node of a line in the cache or in the history.
    #[inline]
    fn look_up(&self, key: u64) -> Option<u32> {
        let mut at = some(*self.index.get(self.index_slot(key))?)?;
        loop {
            let node = self.nodes.get(at as usize)?;
            if node.key == key {
                return Some(at);
            }
            at = some(node.chain)?;
        }
    }

    /// Puts a node into the index.
    fn enter(&mut self, at: u32) {
        let Some(key) = self.nodes.get(at as usize).map(|node| node.key) else {
            return;
        };
        let place = self.index_slot(key);
        if let (Some(head), Some(node)) =
            (self.index.get_mut(place), self.nodes.get_mut(at as usize))
        {
            node.chain = *head;
            *head = at;
        }
    }

    /// Removes a node from the index, and moves it from its list to `list`.
    fn forget(&mut self, at: u32, list: usize) {
        if let Some((key, chain)) = self.nodes.get(at as usize).map(|n| (n.key, n.chain)) {
            let place = self.index_slot(key);
            let mut before = None;
            let mut here = self.index.get(place).copied().unwrap_or(NONE);
            while here != at && here != NONE {
                before = Some(here);
                here = self.nodes.get(here as usize).map_or(NONE, |n| n.chain);
            }
            let link = match before {
                None => self.index.get_mut(place),
                Some(before) => self.nodes.get_mut(before as usize).map(|n| &mut n.chain),
            };
            if let (Some(link), true) = (link, here == at) {
                *link = chain;
            }
        }
        self.unlink(at);
        self.push(list, at);
    }

    #[inline]
    fn first(&self, list: usize) -> Option<u32> {
        some(self.lists.get(list)?.head)
    }

    /// Puts a node that is in no list at the end of one.
    fn push(&mut self, list: usize, at: u32) {
        let Some(ends) = self.lists.get_mut(list) else {
            return;
        };
        let prev = ends.tail;
        ends.tail = at;
        ends.len += 1;
        if prev == NONE {
            ends.head = at;
        }
        if let Some(node) = self.nodes.get_mut(prev as usize) {
            node.next = at;
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.prev = prev;
            node.next = NONE;
            node.list = list as u8;
        }
    }

    /// Takes a node out of its list.
    fn unlink(&mut self, at: u32) {
        let Some(node) = self.nodes.get(at as usize).copied() else {
            return;
        };
        if let Some(prev) = self.nodes.get_mut(node.prev as usize) {
            prev.next = node.next;
        }
        if let Some(next) = self.nodes.get_mut(node.next as usize) {
            next.prev = node.prev;
        }
        if let Some(ends) = self.lists.get_mut(usize::from(node.list)) {
            ends.len -= 1;
            if node.prev == NONE {
                ends.head = node.next;
            }
            if node.next == NONE {
                ends.tail = node.prev;
            }
        }
    }
}

/// Returns the queue of a line that was used `uses` times.
fn queue_of(uses: u16) -> usize {
    (uses.max(1).ilog2() as usize).min(QUEUES - 1)
}

#[inline]
fn some(at: u32) -> Option<u32> {
    (at != NONE).then_some(at)
}

#[cfg(test)]
mod tests;
