// SPDX-License-Identifier: GPL-2.0

//! The algorithms that the Multi-Queue algorithm is compared with, in simple form.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A cache that stores lines when they are read.
pub(crate) trait Policy {
    /// Reads a line; returns whether it was in the cache.
    fn access(&mut self, line: u64) -> bool;
}

/// Lines in the order in which they were used.
#[derive(Default)]
struct Recency {
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    now: u64,
}

impl Recency {
    fn len(&self) -> usize {
        self.stamps.len()
    }

    fn has(&self, line: u64) -> bool {
        self.stamps.contains_key(&line)
    }

    fn remove(&mut self, line: u64) -> bool {
        let stamp = self.stamps.remove(&line);
        stamp.is_some_and(|stamp| self.order.remove(&stamp).is_some())
    }

    /// Makes the line the last used.
    fn push(&mut self, line: u64) {
        self.remove(line);
        self.now += 1;
        self.stamps.insert(line, self.now);
        self.order.insert(self.now, line);
    }

    fn pop_oldest(&mut self) -> Option<u64> {
        let (_, line) = self.order.pop_first()?;
        self.stamps.remove(&line);
        Some(line)
    }
}

/// Keeps the most recently used lines.
pub(crate) struct Lru {
    slots: usize,
    lines: Recency,
}

impl Lru {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            slots,
            lines: Recency::default(),
        }
    }
}

impl Policy for Lru {
    fn access(&mut self, line: u64) -> bool {
        let hit = self.lines.has(line);
        self.lines.push(line);
        if self.lines.len() > self.slots {
            self.lines.pop_oldest();
        }
        hit
    }
}

/// Balances lines used once and lines used again (Megiddo and Modha, *ARC: A Self-Tuning, Low
/// Overhead Replacement Cache*, FAST 2003; the names are theirs).
pub(crate) struct Arc {
    c: usize,
    p: usize,
    t1: Recency,
    t2: Recency,
    b1: Recency,
    b2: Recency,
}

impl Arc {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            c: slots,
            p: 0,
            t1: Recency::default(),
            t2: Recency::default(),
            b1: Recency::default(),
            b2: Recency::default(),
        }
    }

    fn replace(&mut self, in_b2: bool) {
        let t1 = self.t1.len();
        if t1 != 0 && (t1 > self.p || (in_b2 && t1 == self.p)) {
            if let Some(line) = self.t1.pop_oldest() {
                self.b1.push(line);
            }
        } else if let Some(line) = self.t2.pop_oldest() {
            self.b2.push(line);
        }
    }
}

impl Policy for Arc {
    fn access(&mut self, line: u64) -> bool {
        if self.t1.remove(line) || self.t2.has(line) {
            self.t2.push(line);
            return true;
        }
        let (b1, b2) = (self.b1.len(), self.b2.len());
        if self.b1.has(line) {
            self.p = self.c.min(self.p + (b2 / b1).max(1));
            self.replace(false);
            self.b1.remove(line);
            self.t2.push(line);
            return false;
        }
        if self.b2.has(line) {
            self.p = self.p.saturating_sub((b1 / b2).max(1));
            self.replace(true);
            self.b2.remove(line);
            self.t2.push(line);
            return false;
        }
        let l1 = self.t1.len() + b1;
        let all = l1 + self.t2.len() + b2;
        if l1 >= self.c {
            if self.t1.len() < self.c {
                self.b1.pop_oldest();
                self.replace(false);
            } else {
                self.t1.pop_oldest();
            }
        } else if all >= self.c {
            if all >= 2 * self.c {
                self.b2.pop_oldest();
            }
            self.replace(false);
        }
        self.t1.push(line);
        false
    }
}

/// Keeps the lines that are used again the soonest (Belady), and may reject a line that is used
/// later than all cached ones: no algorithm hits more often.
pub(crate) struct Opt {
    slots: usize,
    /// For each access, the next use of the same line.
    next: std::vec::IntoIter<u64>,
    kept: HashMap<u64, u64>,
    order: BTreeSet<(u64, u64)>,
}

impl Opt {
    /// Makes the policy for these accesses and no others.
    pub(crate) fn new(slots: usize, accesses: &[u64]) -> Self {
        let mut next = vec![u64::MAX; accesses.len()];
        let mut seen = HashMap::new();
        for (i, line) in accesses.iter().enumerate().rev() {
            if let Some(later) = seen.insert(line, i as u64) {
                next[i] = later;
            }
        }
        Self {
            slots,
            next: next.into_iter(),
            kept: HashMap::new(),
            order: BTreeSet::new(),
        }
    }
}

impl Policy for Opt {
    fn access(&mut self, line: u64) -> bool {
        let next = self.next.next().unwrap_or(u64::MAX);
        let old = self.kept.remove(&line);
        if let Some(old) = old {
            self.order.remove(&(old, line));
        }
        if next != u64::MAX {
            self.kept.insert(line, next);
            self.order.insert((next, line));
            if self.kept.len() > self.slots {
                if let Some((_, last)) = self.order.pop_last() {
                    self.kept.remove(&last);
                }
            }
        }
        old.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: &mut dyn Policy, accesses: &[u64]) -> usize {
        accesses.iter().filter(|line| policy.access(**line)).count()
    }

    /// Returns the most hits that any choice of cached lines gives, by trying all choices.
    fn best(accesses: &[u64], slots: usize, kept: &[u64]) -> usize {
        let Some((line, rest)) = accesses.split_first() else {
            return 0;
        };
        if kept.contains(line) {
            return 1 + best(rest, slots, kept);
        }
        let mut most = best(rest, slots, kept);
        if kept.len() < slots {
            return most.max(best(rest, slots, &[kept, &[*line]].concat()));
        }
        for at in 0..kept.len() {
            let mut other = kept.to_vec();
            other[at] = *line;
            most = most.max(best(rest, slots, &other));
        }
        most
    }

    #[test]
    fn opt_is_the_best_there_is() {
        let mut seed = 7u64;
        for slots in 1..4 {
            for _ in 0..20 {
                let accesses: Vec<_> = (0..12)
                    .map(|_| {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (seed >> 33) % 6
                    })
                    .collect();
                let opt = hits(&mut Opt::new(slots, &accesses), &accesses);
                assert_eq!(opt, best(&accesses, slots, &[]), "{accesses:?}");
            }
        }
    }

    #[test]
    fn lru_keeps_the_most_recently_used_lines() {
        let mut lru = Lru::new(2);
        assert_eq!(hits(&mut lru, &[1, 2, 1, 3, 1, 2]), 2);
    }

    #[test]
    fn arc_keeps_reused_lines_through_a_scan() {
        let mut accesses: Vec<u64> = (0..50).chain(0..50).collect();
        accesses.extend(1000..1100);
        accesses.extend(0..50);
        assert_eq!(hits(&mut Arc::new(100), &accesses), 100);
        assert_eq!(hits(&mut Lru::new(100), &accesses), 50);
    }
}
