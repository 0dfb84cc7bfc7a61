// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the account of lines, on the host: requests that overlap in every order, on a drive
//! whose sectors record their writer.

use super::{
    super::tests::{
        Heap,
        Rng, //
    },
    *,
};

const SECTOR: u64 = 512;
/// Sectors of a line.
const SECTORS: u64 = LINE as u64 / SECTOR;

enum Op {
    /// `seen` has the oldest version of each sector that the read may return.
    Read {
        seen: Vec<u64>,
        /// The drive puts the data into the lines, and it is sent from there.
        in_lines: bool,
    },
    Write {
        value: u64,
    },
    Empty {
        value: u64,
    },
}

struct Request {
    visit: Visit,
    op: Op,
    first: u64,
    count: u64,
    /// The visit has entered the cache.
    entered: bool,
    /// Whether the drive has carried out the request, and with success.
    done: Option<bool>,
    data: Vec<u64>,
}

/// A cache, a drive, and the versions that reads may return.
struct World {
    rng: Rng,
    lines: Lines<Heap>,
    memory: Vec<u64>,
    /// The number of the last write to each sector; writes are numbered in the drive's order.
    drive: Vec<u64>,
    /// The oldest version that a read starting now may see.
    floor: Vec<u64>,
    clock: u64,
    requests: Vec<Request>,
    hits: u64,
    kept: u64,
    stayed: u64,
}

impl World {
    fn new(seed: u64, slots: u32, sectors: u64) -> Self {
        Self {
            rng: Rng(seed),
            lines: Lines::new(slots).unwrap(),
            memory: vec![0; (u64::from(slots) * SECTORS) as usize],
            drive: vec![0; sectors as usize],
            floor: vec![0; sectors as usize],
            clock: 0,
            requests: Vec::new(),
            hits: 0,
            kept: 0,
            stayed: 0,
        }
    }

    fn size(&self) -> u64 {
        self.drive.len() as u64 * SECTOR
    }

    fn begin(&mut self) {
        let all = self.drive.len() as u64;
        let long = match self.rng.below(12) {
            0 => all,
            1 => 40 * SECTORS,
            _ => 4 * SECTORS,
        };
        let mut first = self.rng.skewed(all);
        let mut count = 1 + self.rng.below(long.min(all - first));
        if self.rng.below(4) != 0 {
            first -= first % SECTORS;
            count = count.next_multiple_of(SECTORS).min(all - first);
        }
        let (offset, length) = (first * SECTOR, (count * SECTOR) as u32);
        let value = 0;
        let (visit, op) = match self.rng.below(10) {
            0..6 => {
                let seen = self.floor[first as usize..][..count as usize].to_vec();
                let visit = self.lines.read(offset, length, self.size());
                let in_lines = self.rng.below(2) == 0;
                (visit, Op::Read { seen, in_lines })
            }
            6..9 => (Visit::write(offset, length), Op::Write { value }),
            _ => (Visit::empty(offset, length), Op::Empty { value }),
        };
        self.requests.push(Request {
            entered: matches!(op, Op::Read { .. }),
            visit,
            op,
            first,
            count,
            done: None,
            data: vec![],
        });
    }

    /// Returns the sectors of the request that are in slots of its visit: their places in the
    /// request, and in `memory`.
    fn copies(request: &Request) -> Vec<(usize, usize)> {
        let range = request.first..request.first + request.count;
        let slots = request.visit.slots();
        slots
            .flat_map(|(number, slot)| {
                (0..SECTORS).map(move |s| (number * SECTORS + s, u64::from(slot) * SECTORS + s))
            })
            .filter(|(sector, _)| range.contains(sector))
            .map(|(sector, at)| ((sector - range.start) as usize, at as usize))
            .collect()
    }

    /// Advances a random request by one step.
    fn step(&mut self) {
        let size = self.size();
        let which = self.rng.below(self.requests.len() as u64) as usize;
        let mut request = self.requests.swap_remove(which);
        if !request.entered {
            request.entered = self.lines.enter(&mut request.visit, size);
        } else if request.visit.is_hit() {
            if request.data.is_empty() {
                request.data = vec![0; request.count as usize];
                for (i, at) in Self::copies(&request) {
                    request.data[i] = self.memory[at];
                }
            } else {
                // Data does not change while a request copies it.
                for (i, at) in Self::copies(&request) {
                    assert_eq!(request.data[i], self.memory[at]);
                }
                self.hits += 1;
                return self.end(request, true);
            }
        } else if request.done.is_none() {
            self.use_drive(&mut request);
        } else {
            return self.settle(request);
        }
        self.requests.push(request);
    }

    /// Lets the drive carry out a request, or fail.
    fn use_drive(&mut self, request: &mut Request) {
        let range = request.first as usize..(request.first + request.count) as usize;
        let good = self.rng.below(20) != 0;
        request.done = Some(good);
        if let Op::Write { value } | Op::Empty { value } = &mut request.op {
            // A failed write may have been done nevertheless.
            if good || self.rng.below(2) == 0 {
                self.clock += 1;
                *value = self.clock;
                self.drive[range].fill(self.clock);
            }
            return;
        }
        request.data = self.drive[range].to_vec();
        if matches!(request.op, Op::Read { in_lines: true, .. }) && request.visit.is_owner() {
            for (i, at) in Self::copies(request) {
                self.memory[at] = request.data[i];
            }
        }
    }

    /// Ends a request that the drive has carried out, or keeps its lines pinned.
    fn settle(&mut self, mut request: Request) {
        let good = request.done == Some(true);
        let in_lines = matches!(request.op, Op::Read { in_lines: true, .. });
        if good && request.visit.is_owner() && in_lines {
            self.lines.keep_pinned(&mut request.visit);
            self.stayed += 1;
            self.requests.push(request);
            return;
        }
        if good && request.visit.is_owner() {
            let data = match request.op {
                Op::Write { value } => vec![value; request.count as usize],
                _ => request.data.clone(),
            };
            for (i, at) in Self::copies(&request) {
                self.memory[at] = data[i];
                self.kept += 1;
            }
        }
        self.end(request, good)
    }

    fn end(&mut self, mut request: Request, good: bool) {
        while !self.lines.leave(&mut request.visit, good) {}
        assert!(request.visit.is_outside());
        if !good {
            return;
        }
        for i in 0..request.count as usize {
            let floor = &mut self.floor[request.first as usize + i];
            match &request.op {
                Op::Read { seen, .. } => {
                    assert!(request.data[i] >= seen[i], "old data");
                    *floor = request.data[i].max(*floor);
                }
                Op::Write { value } | Op::Empty { value } => *floor = (*value).max(*floor),
            }
        }
    }

    /// Checks that no request has a right to any line.
    fn check_idle(&self) {
        assert!(self
            .lines
            .lines
            .iter()
            .all(|line| line.pins == 0 && !line.doomed));
        for (slot, line) in self.lines.lines.iter().enumerate() {
            let there = self.lines.mq.key(slot as u32).is_some();
            let state = if there {
                LineState::Clean
            } else {
                LineState::Free
            };
            assert_eq!(line.state, state);
        }
        assert!(self.lines.writers.iter().all(|n| *n == 0));
        assert_eq!(self.lines.drops, 0);
    }
}

#[test]
fn nobody_is_ever_given_old_data() {
    let (mut hits, mut kept, mut stayed) = (0, 0, 0);
    for seed in 0..60 {
        let slots = [3, 20, 100, 700][seed as usize % 4];
        let mut world = World::new(seed, slots, 300 * SECTORS + seed % 3);
        for _ in 0..4_000 {
            let busy = world.requests.len() as u64;
            if busy == 0 || (busy < 24 && world.rng.below(3) == 0) {
                world.begin();
            } else {
                world.step();
            }
        }
        while !world.requests.is_empty() {
            world.step();
        }
        world.check_idle();
        hits += world.hits;
        kept += world.kept;
        stayed += world.stayed;
    }
    // The cache must have been used.
    assert!(
        hits > 300 && kept > 10_000 && stayed > 1_000,
        "{hits} hits, {kept} sectors kept, {stayed} reads stayed"
    );
}

fn read(lines: &mut Lines<Heap>, offset: u64, length: u32, size: u64) -> bool {
    let mut visit = lines.read(offset, length, size);
    let hit = visit.is_hit();
    assert!(lines.leave(&mut visit, true));
    hit
}

const SIZE: u64 = 1 << 30;
const FOUR: u32 = LINE as u32;

#[test]
fn a_fill_that_began_before_a_write_is_not_kept() {
    let mut lines = Lines::<Heap>::new(8).unwrap();
    let mut fill = lines.read(0, FOUR, SIZE);
    assert!(fill.is_owner());
    let mut write = Visit::write(512, 512);
    assert!(lines.enter(&mut write, SIZE));
    assert!(!write.is_owner());
    assert!(lines.leave(&mut write, true));
    assert!(lines.leave(&mut fill, true));
    assert!(!read(&mut lines, 0, FOUR, SIZE));
    assert!(read(&mut lines, 0, FOUR, SIZE));
}

#[test]
fn pinned_lines_are_readable_until_a_write() {
    let mut lines = Lines::<Heap>::new(8).unwrap();
    let mut fill = lines.read(0, FOUR, SIZE);
    lines.keep_pinned(&mut fill);
    assert!(fill.is_hit() && read(&mut lines, 0, FOUR, SIZE));
    let mut write = Visit::write(0, FOUR);
    assert!(lines.enter(&mut write, SIZE));
    // No request gets the slot while its data is being sent.
    assert!(!write.is_owner());
    assert!(lines.leave(&mut write, true));
    assert!(!read(&mut lines, 0, FOUR, SIZE));
    assert!(lines.mq().find(0).is_some());
    assert!(lines.leave(&mut fill, true));
    assert_eq!(lines.mq().find(0), None);
}

#[test]
fn nothing_is_filled_while_it_is_written() {
    let mut lines = Lines::<Heap>::new(8).unwrap();
    let mut write = Visit::write(0, FOUR);
    assert!(lines.enter(&mut write, SIZE));
    assert!(!read(&mut lines, 0, FOUR, SIZE));
    assert!(lines.leave(&mut write, true));
    assert!(!read(&mut lines, 0, FOUR, SIZE));
}

#[test]
fn a_write_changes_the_lines_that_are_there_unless_it_fails() {
    let mut lines = Lines::<Heap>::new(8).unwrap();
    for keep in [true, false] {
        read(&mut lines, 0, FOUR, SIZE);
        let mut write = Visit::write(0, 2 * FOUR);
        assert!(lines.enter(&mut write, SIZE));
        assert_eq!(
            write.slots().map(|(number, _)| number).collect::<Vec<_>>(),
            [0]
        );
        // Meanwhile no other request may use the line.
        assert!(!lines.read(0, FOUR, SIZE).is_hit());
        assert!(lines.leave(&mut write, keep));
        assert_eq!(lines.mq().find(0).is_some(), keep);
        assert_eq!(lines.mq().find(1), None);
    }
}

#[test]
fn of_two_writes_at_a_time_neither_is_kept() {
    let mut lines = Lines::<Heap>::new(8).unwrap();
    read(&mut lines, 0, FOUR, SIZE);
    let (mut one, mut other) = (Visit::write(0, FOUR), Visit::write(0, FOUR));
    assert!(lines.enter(&mut one, SIZE) && lines.enter(&mut other, SIZE));
    assert!(one.is_owner() && !other.is_owner());
    assert!(lines.leave(&mut one, true) && lines.leave(&mut other, true));
    assert_eq!(lines.mq().find(0), None);
}

#[test]
fn lines_being_copied_are_neither_evicted_nor_written() {
    let mut lines = Lines::<Heap>::new(1).unwrap();
    read(&mut lines, 0, FOUR, SIZE);
    let mut hit = lines.read(0, 512, SIZE);
    assert!(hit.is_hit());
    // The line is neither evicted nor written to.
    assert!(!lines.read(1 << 20, FOUR, SIZE).is_owner());
    let mut write = Visit::write(0, FOUR);
    assert!(lines.enter(&mut write, SIZE));
    assert!(!write.is_owner());
    assert!(lines.leave(&mut write, true));
    assert!(lines.mq().find(0).is_some());
    assert!(lines.leave(&mut hit, true));
    assert_eq!(lines.mq().find(0), None);
}

#[test]
fn another_size_makes_everything_worth_nothing() {
    let mut lines = Lines::<Heap>::new(8).unwrap();
    read(&mut lines, 0, FOUR, SIZE);
    let mut fill = lines.read(LINE as u64, FOUR, SIZE);
    assert!(!read(&mut lines, 0, FOUR, SIZE / 2));
    assert!(lines.leave(&mut fill, true));
    assert_eq!(lines.mq().find(1), None);
    assert!(read(&mut lines, 0, FOUR, SIZE / 2));
}

#[test]
fn ranges_of_any_length_are_dropped() {
    for length in [FOUR, 100 * FOUR, u32::MAX & !511] {
        let mut lines = Lines::<Heap>::new(500).unwrap();
        (0..300).for_each(|n| assert!(!read(&mut lines, n << LINE_SHIFT, FOUR, SIZE)));
        let mut visit = Visit::empty(LINE as u64, length);
        while !lines.enter(&mut visit, SIZE) {}
        assert!(!read(&mut lines, 999 << LINE_SHIFT, FOUR, SIZE));
        assert_eq!(lines.mq().find(999), None);
        while !lines.leave(&mut visit, true) {}
        let left = (0..300).filter(|n| lines.mq().find(*n).is_some()).count();
        assert_eq!(left, 300 - 299.min(length as usize / LINE));
        assert!(lines.mq().find(0).is_some());
    }
}

#[test]
fn long_requests_bypass_the_cache_and_partial_lines_are_not_filled() {
    let mut lines = Lines::<Heap>::new(100).unwrap();
    let long = (SPAN as u32 + 1) * FOUR;
    assert!(lines.read(0, long, SIZE).is_outside());
    let mut visit = lines.read(512, 2 * FOUR, SIZE);
    let filled: Vec<_> = visit.slots().map(|(number, _)| number).collect();
    assert_eq!(filled, [1]);
    assert_eq!((visit.hits, visit.misses), (0, 3));
    assert!(lines.leave(&mut visit, true));
    // A long write drops the lines that it touches.
    let mut write = Visit::write(0, long);
    assert!(lines.enter(&mut write, SIZE));
    assert!(!write.is_owner());
    assert!(lines.leave(&mut write, true));
    assert!(lines.mq().is_empty());
}
