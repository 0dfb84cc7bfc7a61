// SPDX-License-Identifier: GPL-2.0

//! Chooses the next request when more wait for a drive than it has workers: one of each host in
//! turn. Uses nothing but `core`: its tests run on the host.
//!
//! ```text
//!            arrive(): a worker is free                 end()
//!  request ─────────────────────────────► running ─────────────► (done)
//!     │                                      ▲
//!     └─ all are busy ─► waiting in a line ──┘ end() of another one, when it is the line's turn
//! ```
//!
//! Each host has a *line*, for all its sessions and queue pairs. The lines with waiting requests
//! form a ring: the oldest request of the first line is next, and then the line becomes the last.
//! So if one host keeps thousands of requests in flight (mostly flushes), a request of another host
//! waits only for one request of each waiting host, and not for all of the first one's.
//!
//! No request waits while a worker is free. A caller keeps the requests themselves, a FIFO for each
//! line, and a lock around all of it.

use hcablk_core::proto::name::HostId;

/// The number of lines of a drive. If more hosts use it at the same time, some of them share a
/// line.
pub(crate) const LINES: usize = 64;

/// The requests of one host, or of several.
#[derive(Clone, Copy, Default)]
pub(crate) struct Line {
    /// The host for which the line was begun.
    host: Option<HostId>,
    /// The number of queue pairs and volumes that use the line.
    users: u32,
    /// The number of waiting requests.
    waiting: u32,
    /// The next line in the ring, if requests wait.
    next: Option<usize>,
}

/// The turns of the hosts at a drive: see the module. All functions get the same lines.
pub(crate) struct HostTurns {
    workers: u32,
    running: u32,
    /// The ring of lines: the first, whose turn it is, and the last.
    first: Option<usize>,
    last: Option<usize>,
}

impl HostTurns {
    /// Returns the turns of a drive on which `workers` requests run at the same time.
    pub(crate) const fn new(workers: u32) -> Self {
        Self {
            workers,
            running: 0,
            first: None,
            last: None,
        }
    }

    /// Returns the line for requests of `host`, which is in use until [`Self::leave`].
    pub(crate) fn join(&mut self, lines: &mut [Line], host: HostId) -> usize {
        let own = lines.iter().position(|line| line.host == Some(host));
        let free = || lines.iter().position(|line| line.users == 0);
        let least = || {
            let by_users = lines.iter().enumerate().min_by_key(|(_, line)| line.users);
            by_users.map(|(at, _)| at)
        };
        let at = own.or_else(free).or_else(least).unwrap_or(0);
        if let Some(line) = lines.get_mut(at) {
            line.users += 1;
            line.host.get_or_insert(host);
        }
        at
    }

    /// Ends the use of a line by a user that [joined](Self::join). None of its requests waits.
    pub(crate) fn leave(&mut self, lines: &mut [Line], at: usize) {
        if let Some(line) = lines.get_mut(at) {
            line.users -= 1;
            if line.users == 0 {
                line.host = None;
            }
        }
    }

    /// Returns whether a request of line `at` runs now; otherwise it waits in its line.
    #[must_use]
    pub(crate) fn arrive(&mut self, lines: &mut [Line], at: usize) -> bool {
        if self.running < self.workers {
            self.running += 1;
            return true;
        }
        if let Some(line) = lines.get_mut(at) {
            line.waiting += 1;
            if line.waiting == 1 {
                self.append(lines, at);
            }
        }
        false
    }

    /// Ends a request that ran. Returns the line whose oldest request runs in its place.
    #[must_use]
    pub(crate) fn end(&mut self, lines: &mut [Line]) -> Option<usize> {
        let turn = self.first.and_then(|at| Some((at, lines.get_mut(at)?)));
        let Some((at, line)) = turn else {
            self.running -= 1;
            return None;
        };
        line.waiting -= 1;
        let waits_more = line.waiting != 0;
        self.first = line.next.take();
        if self.first.is_none() {
            self.last = None;
        }
        if waits_more {
            self.append(lines, at);
        }
        Some(at)
    }

    /// Appends a line, which is not in the ring, to the ring.
    fn append(&mut self, lines: &mut [Line], at: usize) {
        match self.last.replace(at).and_then(|last| lines.get_mut(last)) {
            Some(last) => last.next = Some(at),
            None => self.first = Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn host(number: u8) -> HostId {
        HostId::from_wire([number + 1; 16]).unwrap()
    }

    /// A drive together with the requests themselves, which are numbers.
    struct Drive {
        turns: HostTurns,
        lines: Vec<Line>,
        waiting: Vec<VecDeque<u32>>,
        running: Vec<u32>,
        most: usize,
    }

    impl Drive {
        fn new(workers: u32, lines: usize) -> Self {
            Self {
                turns: HostTurns::new(workers),
                lines: vec![Line::default(); lines],
                waiting: vec![VecDeque::new(); lines],
                running: vec![],
                most: workers as usize,
            }
        }

        fn join(&mut self, number: u8) -> usize {
            self.turns.join(&mut self.lines, host(number))
        }

        fn arrive(&mut self, at: usize, request: u32) {
            match self.turns.arrive(&mut self.lines, at) {
                true => self.running.push(request),
                false => self.waiting[at].push_back(request),
            }
            self.check();
        }

        /// Ends the oldest running request. Returns the request that runs in its place.
        fn end(&mut self) -> Option<u32> {
            self.running.remove(0);
            let next = self.turns.end(&mut self.lines);
            let next = next.map(|at| self.waiting[at].pop_front().unwrap());
            self.running.extend(next);
            self.check();
            next
        }

        fn check(&self) {
            assert_eq!(self.turns.running as usize, self.running.len());
            assert!(self.running.len() <= self.most);
            let waiting: usize = self.waiting.iter().map(VecDeque::len).sum();
            assert!(
                waiting == 0 || self.running.len() == self.most,
                "one is idle"
            );
            for (line, requests) in self.lines.iter().zip(&self.waiting) {
                assert_eq!(line.waiting as usize, requests.len());
            }
        }
    }

    #[test]
    fn a_host_with_thousands_has_another_wait_for_one() {
        let mut drive = Drive::new(4, LINES);
        let (greedy, modest) = (drive.join(1), drive.join(2));
        for request in 0..5000 {
            drive.arrive(greedy, request);
        }
        drive.arrive(modest, 10_000);
        assert_eq!(
            drive.end(),
            Some(4),
            "the greedy one's turn had come before"
        );
        assert_eq!(drive.end(), Some(10_000));
        // One request after the other, as of a writer that flushes.
        for n in 1..100 {
            drive.arrive(modest, 10_000 + n);
            drive.end();
            assert_eq!(drive.end(), Some(10_000 + n));
        }
        while !drive.running.is_empty() {
            drive.end();
        }
    }

    #[test]
    fn hosts_take_turns_and_their_own_stay_in_order() {
        let mut drive = Drive::new(1, LINES);
        let lines = [drive.join(1), drive.join(2), drive.join(3)];
        drive.arrive(lines[0], 0);
        for n in 1..4 {
            for (line, hundred) in lines.into_iter().zip([100, 200, 300]) {
                drive.arrive(line, hundred + n);
            }
        }
        let order: Vec<_> = std::iter::from_fn(|| drive.end()).collect();
        assert_eq!(order, [101, 201, 301, 102, 202, 302, 103, 203, 303]);
        assert_eq!(drive.turns.running, 0);
        // The next request runs at once.
        drive.arrive(lines[1], 7);
        assert_eq!(drive.running, [7]);
    }

    #[test]
    fn all_sessions_of_a_host_have_one_line() {
        let mut drive = Drive::new(1, LINES);
        let at = drive.join(1);
        assert_eq!(drive.join(1), at);
        assert_ne!(drive.join(2), at);
        drive.turns.leave(&mut drive.lines, at);
        assert_ne!(drive.join(3), at, "it is still used");
        drive.turns.leave(&mut drive.lines, at);
        assert_eq!(drive.join(4), at, "it belongs to a new host then");
    }

    #[test]
    fn hosts_share_lines_when_there_are_more() {
        let mut drive = Drive::new(1, 2);
        let lines: Vec<_> = (0..6).map(|number| drive.join(number)).collect();
        assert_eq!(lines.iter().filter(|line| **line == lines[0]).count(), 3);
        for line in lines {
            drive.turns.leave(&mut drive.lines, line);
        }
        assert!(drive
            .lines
            .iter()
            .all(|line| line.users == 0 && line.host.is_none()));
    }

    #[test]
    fn nothing_is_lost_whatever_comes() {
        let mut random = 12345u32;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_103_515_245).wrapping_add(12345);
            (random >> 16) % below
        };
        let mut drive = Drive::new(3, 4);
        let lines: Vec<_> = (0..4).map(|number| drive.join(number)).collect();
        let (mut came, mut ended) = (0, 0);
        for _ in 0..10_000 {
            if next(2) == 0 && came - ended < 50 {
                drive.arrive(lines[next(4) as usize], came);
                came += 1;
            } else if !drive.running.is_empty() {
                drive.end();
                ended += 1;
            }
        }
        while !drive.running.is_empty() {
            drive.end();
            ended += 1;
        }
        assert_eq!(came, ended);
    }
}
