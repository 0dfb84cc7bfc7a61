// SPDX-License-Identifier: GPL-2.0

//! How many slots of a send queue are free.
//!
//! A slot is free again when a completion proves it, and only signaled work
//! requests complete. A signaled request stands for itself and for the
//! unsignaled ones posted before it; its work id says how many. Uses nothing
//! but `core`: its tests run on the host.

/// The account of one send queue. It is kept under the lock under which work
/// requests are posted, so that the order of accounts is the order of slots.
#[derive(Debug)]
pub struct SendSpace {
    free: u32,
    size: u32,
    /// Slots used since the last signaled request.
    unsignaled: u32,
    /// A request is signaled at the latest when this many slots went before it.
    period: u32,
}

impl SendSpace {
    /// A queue of `size` slots, at least one in `period` of them signaled.
    pub const fn new(size: u32, period: u32) -> Self {
        Self {
            free: size,
            size,
            unsignaled: 0,
            period,
        }
    }

    /// Reserves `count` slots; `false`: there are not so many.
    #[must_use]
    #[inline]
    pub fn reserve(&mut self, count: u32) -> bool {
        match self.free.checked_sub(count) {
            Some(free) => {
                self.free = free;
                self.unsignaled += count;
                true
            }
            None => false,
        }
    }

    /// Gives back slots reserved for requests that were not posted.
    #[inline]
    pub fn unreserve(&mut self, count: u32) {
        self.free += count;
        self.unsignaled = self.unsignaled.saturating_sub(count);
    }

    /// Whether the last of the slots reserved ought to be signaled, and then
    /// how many slots its completion will free.
    #[inline]
    pub fn due(&mut self) -> Option<u16> {
        (self.unsignaled >= self.period).then(|| self.signal())
    }

    /// The last of the slots reserved will be signaled in any case: how many
    /// slots its completion will free.
    #[inline]
    pub fn signal(&mut self) -> u16 {
        let covered = self.unsignaled.min(u32::from(u16::MAX));
        self.unsignaled -= covered;
        covered as u16
    }

    /// A signaled request completed that stood for `count` slots.
    #[inline]
    pub fn complete(&mut self, count: u16) {
        self.free = self.size.min(self.free + u32::from(count));
    }

    /// Slots free now.
    pub fn free(&self) -> u32 {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signaled_request_frees_those_before_it() {
        let mut s = SendSpace::new(8, 4);
        assert!(s.reserve(2));
        assert_eq!(s.due(), None);
        assert!(s.reserve(2));
        let covered = s.due().unwrap();
        assert_eq!(covered, 4);
        assert_eq!(s.free(), 4);
        s.complete(covered);
        assert_eq!(s.free(), 8);
    }

    #[test]
    fn nothing_is_reserved_beyond_the_size() {
        let mut s = SendSpace::new(3, 1);
        assert!(!s.reserve(4));
        assert!(s.reserve(3));
        assert!(!s.reserve(1));
        s.unreserve(3);
        assert_eq!(s.free(), 3);
        assert_eq!(s.due(), None);
    }

    #[test]
    fn the_account_balances_whatever_the_order_of_completions() {
        let mut s = SendSpace::new(64, 8);
        let mut inflight = std::collections::VecDeque::new();
        for i in 0..10_000u32 {
            let count = 1 + i % 3;
            while !s.reserve(count) {
                s.complete(inflight.pop_front().expect("a full queue has signaled requests"));
            }
            if let Some(covered) = s.due() {
                inflight.push_back(covered);
            }
        }
        inflight.push_back(s.signal());
        for covered in inflight {
            s.complete(covered);
        }
        assert_eq!(s.free(), 64);
    }
}
