// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the algorithm, on the host: against a model that follows the paper, and for lost or
//! doubled nodes.

use super::*;
use std::collections::{
    HashSet,
    VecDeque, //
};

/// The host's memory.
pub(super) struct Heap;

impl Memory for Heap {
    type Of<T> = Vec<T>;
    type Error = ();

    fn make<T: Copy>(value: T, count: usize) -> Result<Vec<T>, ()> {
        Ok(vec![value; count])
    }
}

/// Pseudo-random numbers, the same in each run (splitmix64).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// Returns a number below `n`, a small one more often.
    pub(super) fn skewed(&mut self, n: u64) -> u64 {
        let below = self.below(n) + 1;
        self.below(below)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    uses: u16,
    last: u64,
    entered: u64,
}

/// The same algorithm, written as simply as possible.
struct Model {
    slots: usize,
    queues: Vec<Vec<Entry>>,
    history: VecDeque<Entry>,
    now: u64,
    lifetime: u64,
    distances: Vec<u32>,
    samples: u64,
}

impl Model {
    fn new(slots: usize) -> Self {
        Self {
            slots,
            queues: vec![Vec::new(); QUEUES],
            history: VecDeque::new(),
            now: 0,
            lifetime: slots as u64,
            distances: vec![0; DISTANCES],
            samples: 0,
        }
    }

    fn find(&self, key: u64) -> Option<(usize, usize)> {
        self.queues.iter().enumerate().find_map(|(q, queue)| {
            let at = queue.iter().position(|entry| entry.key == key)?;
            Some((q, at))
        })
    }

    fn insert(&mut self, key: u64, before: Option<Entry>) {
        let uses = before.map_or(0, |e| e.uses).saturating_add(1);
        let queue = (f64::from(uses).log2() as usize).min(QUEUES - 1);
        self.queues[queue].push(Entry {
            key,
            uses,
            last: self.now,
            entered: self.now,
        });
        if let Some(entry) = before {
            self.learn(self.now - entry.last);
        }
    }

    fn hit(&mut self, key: u64) {
        self.now += 1;
        if let Some((q, at)) = self.find(key) {
            let entry = self.queues[q].remove(at);
            self.insert(key, Some(entry));
        }
        self.age();
    }

    fn miss(&mut self, key: u64, may_evict: impl Fn(u64) -> bool) -> Option<Option<u64>> {
        self.now += 1;
        let known = self.history.iter().copied().find(|e| e.key == key);
        let mut evicted = None;
        if self.queues.iter().map(Vec::len).sum::<usize>() == self.slots {
            let found =
                self.queues.iter().enumerate().flat_map(|(q, queue)| {
                    queue.iter().enumerate().map(move |(at, e)| (q, at, e.key))
                });
            let Some((q, at, old)) = found.take(CANDIDATES).find(|(_, _, key)| may_evict(*key))
            else {
                self.age();
                return None;
            };
            self.history.push_back(self.queues[q].remove(at));
            if self.history.len() > self.slots * HISTORY {
                self.history.pop_front();
            }
            evicted = Some(old);
        }
        self.history.retain(|e| e.key != key);
        self.insert(key, known);
        self.age();
        Some(evicted)
    }

    fn age(&mut self) {
        for q in 1..QUEUES {
            if self.queues[q]
                .first()
                .is_some_and(|e| self.now - e.entered > self.lifetime)
            {
                let mut entry = self.queues[q].remove(0);
                entry.entered = self.now;
                self.queues[q - 1].push(entry);
            }
        }
    }

    fn learn(&mut self, distance: u64) {
        self.distances[(distance.max(1) as f64).log2() as usize] += 1;
        self.samples += 1;
        if self.samples >= SAMPLES.max(self.slots as u64) {
            self.samples = 0;
            let most = *self.distances.iter().max().unwrap();
            let power = self.distances.iter().rposition(|n| *n == most).unwrap();
            self.lifetime = 1 << (power + 1);
            self.distances.iter_mut().for_each(|n| *n /= 2);
        }
    }
}

/// Returns the keys of a list. Checks its links.
fn list_of(mq: &Mq<Heap>, list: usize) -> Vec<u64> {
    let mut keys = Vec::new();
    let (mut before, mut at) = (NONE, mq.lists[list].head);
    while at != NONE {
        let node = &mq.nodes[at as usize];
        assert_eq!(usize::from(node.list), list);
        assert_eq!(node.prev, before);
        keys.push(node.key);
        (before, at) = (at, node.next);
    }
    assert_eq!(mq.lists[list].tail, before);
    assert_eq!(mq.lists[list].len as usize, keys.len());
    keys
}

/// Checks the invariants of the module.
fn check(mq: &Mq<Heap>) {
    let lists: Vec<_> = (0..LISTS).map(|list| list_of(mq, list)).collect();
    assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), mq.nodes.len());
    for (at, node) in mq.nodes.iter().enumerate() {
        let slot = at < mq.slots as usize;
        assert_eq!(
            slot,
            usize::from(node.list) < QUEUES || usize::from(node.list) == FREE
        );
    }
    let mut indexed = HashSet::new();
    for (place, head) in mq.index.iter().enumerate() {
        let mut at = *head;
        while at != NONE {
            let node = &mq.nodes[at as usize];
            assert_eq!(mq.index_slot(node.key), place);
            assert!(indexed.insert(node.key), "{} is there twice", node.key);
            at = node.chain;
        }
    }
    let known: HashSet<_> = lists[..=HISTORY_LIST].iter().flatten().copied().collect();
    assert_eq!(indexed, known);
}

#[test]
fn mq_matches_a_model_of_the_paper() {
    for (seed, slots) in [(1, 1), (2, 2), (3, 7), (4, 64), (5, 200)] {
        let mut rng = Rng(seed);
        let mut mq = Mq::<Heap>::new(slots).unwrap();
        let mut model = Model::new(slots as usize);
        for step in 0..20_000u64 {
            let key = rng.skewed(u64::from(slots) * 8);
            let stubborn = rng.below(8);
            let may_evict = |key: u64| stubborn != 0 || key % 3 == 0;
            match (mq.find(key), rng.below(50)) {
                (Some(slot), 0) => {
                    mq.remove(slot);
                    let (q, at) = model.find(key).unwrap();
                    model.queues[q].remove(at);
                }
                (Some(slot), _) => {
                    assert_eq!(mq.key(slot), Some(key));
                    mq.hit(slot);
                    model.hit(key);
                }
                (None, 0) => {
                    mq.record_bypass();
                    model.now += 1;
                    model.age();
                }
                (None, _) => {
                    let keys: Vec<_> = (0..slots).map(|slot| mq.key(slot)).collect();
                    let got = mq.miss(key, |slot| keys[slot as usize].is_some_and(may_evict));
                    let wanted = model.miss(key, may_evict);
                    assert_eq!(got.map(|a| a.evicted), wanted, "step {step}");
                }
            }
            assert_eq!(mq.lifetime(), model.lifetime);
            if step % 64 == 0 {
                check(&mq);
                for (q, queue) in model.queues.iter().enumerate() {
                    let keys: Vec<_> = queue.iter().map(|e| e.key).collect();
                    assert_eq!(list_of(&mq, q), keys, "queue {q} at step {step}");
                }
                let keys: Vec<_> = model.history.iter().map(|e| e.key).collect();
                assert_eq!(list_of(&mq, HISTORY_LIST), keys, "history at step {step}");
            }
        }
    }
}

#[test]
fn frequently_used_lines_outlive_a_scan() {
    let mut mq = Mq::<Heap>::new(100).unwrap();
    let access = |mq: &mut Mq<Heap>, key| match mq.find(key) {
        Some(slot) => mq.hit(slot),
        None => assert!(mq.miss(key, |_| true).is_some()),
    };
    for _ in 0..8 {
        (0..20).for_each(|key| access(&mut mq, key));
    }
    // Enough keys to displace everything from an LRU list of this size.
    (1000..1100).for_each(|key| access(&mut mq, key));
    assert!((0..20).all(|key| mq.find(key).is_some()));
}

#[test]
fn a_line_that_comes_back_counts_on() {
    let mut mq = Mq::<Heap>::new(4).unwrap();
    for _ in 0..4 {
        match mq.find(7) {
            Some(slot) => mq.hit(slot),
            None => assert!(mq.miss(7, |_| true).is_some()),
        }
    }
    let slot = mq.find(7).unwrap();
    // It is evicted.
    (10..13).for_each(|key| assert!(mq.miss(key, |_| true).is_some()));
    assert_eq!(mq.miss(13, |at| at == slot).unwrap().evicted, Some(7));
    assert_eq!(mq.find(7), None);
    let slot = mq.miss(7, |_| true).unwrap().slot;
    assert_eq!(mq.nodes[slot as usize].uses, 5);
    check(&mq);
}

#[test]
fn no_room_is_no_harm() {
    let mut mq = Mq::<Heap>::new(3).unwrap();
    (0..3).for_each(|key| assert!(mq.miss(key, |_| true).is_some()));
    assert_eq!(mq.miss(9, |_| false), None);
    assert!((0..3).all(|key| mq.find(key).is_some()));
    assert_eq!(mq.len(), 3);
    let mut none = Mq::<Heap>::new(0).unwrap();
    assert_eq!(none.miss(1, |_| true), None);
    assert!(none.is_empty());
    check(&mq);
}
