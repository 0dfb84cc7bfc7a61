// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The account of free slots of a send queue.
//!
//! A slot is free again when a completion proves it, and only signaled work requests complete. The
//! completion of a signaled request also covers the unsignaled ones posted before it; the work id
//! has the number of their slots. Uses nothing but `core`: its tests run on the host.

/// The account of one send queue. The caller changes it under the lock under which it posts work
/// requests, so that the account has the order of the send queue.
///
/// A completion handler need not take that lock: it adds up the freed slots, modulo 2^32, and the
/// account reads the sum when it runs short.
#[derive(Debug)]
pub struct SendSpace {
    /// Free slots, without those that completions have freed since `settled`.
    free: u32,
    size: u32,
    /// The sum of freed slots when the account read it last.
    settled: u32,
    /// Slots used since the last signaled request.
    unsignaled: u32,
    /// A request is signaled when it brings the slots used since the last signaled one to this
    /// number.
    period: u32,
}

impl SendSpace {
    /// Creates the account of a send queue of `size` slots, of which at least one in `period` is
    /// signaled.
    pub const fn new(size: u32, period: u32) -> Self {
        Self {
            free: size,
            size,
            settled: 0,
            unsignaled: 0,
            period,
        }
    }

    /// Reserves `count` slots. Returns `false` if fewer are free. Calls `freed` to get the sum of
    /// freed slots only if the account is short.
    #[must_use]
    #[inline]
    pub fn reserve(&mut self, count: u32, freed: impl FnOnce() -> u32) -> bool {
        if self.free < count {
            self.settle(freed());
        }
        match self.free.checked_sub(count) {
            Some(free) => {
                self.free = free;
                true
            }
            None => false,
        }
    }

    /// Adds the slots that completions have freed by now.
    fn settle(&mut self, freed: u32) {
        self.release(freed.wrapping_sub(self.settled));
        self.settled = freed;
    }

    /// Releases reserved slots that will not be used.
    #[inline]
    pub fn release(&mut self, count: u32) {
        self.free = self.size.min(self.free + count);
    }

    /// Accounts for `count` reserved slots that are about to be used. Returns how many slots the
    /// completion of the last one frees if it is signaled.
    #[inline]
    pub fn post(&mut self, count: u32) -> Option<u16> {
        self.unsignaled += count;
        (self.unsignaled >= self.period).then(|| self.take_unsignaled())
    }

    /// Accounts for slots as [`Self::post`] does, for work requests the last of which is signaled
    /// in any case. Returns how many slots its completion will free.
    #[inline]
    pub fn post_signaled(&mut self, count: u32) -> u16 {
        self.unsignaled += count;
        self.take_unsignaled()
    }

    #[inline]
    fn take_unsignaled(&mut self) -> u16 {
        let covered = self.unsignaled.min(u32::from(u16::MAX));
        self.unsignaled -= covered;
        covered as u16
    }

    /// Returns how many slots are free when completions have freed `freed` in all.
    pub fn free(&mut self, freed: u32) -> u32 {
        self.settle(freed);
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signaled_work_request_frees_the_ones_before_it() {
        let mut s = SendSpace::new(8, 4);
        assert!(s.reserve(2, || 0));
        assert_eq!(s.post(2), None);
        assert!(s.reserve(2, || 0));
        let covered = s.post(2).unwrap();
        assert_eq!(covered, 4);
        assert_eq!(s.free(0), 4);
        assert_eq!(s.free(covered.into()), 8);
    }

    #[test]
    fn nothing_is_reserved_beyond_the_size() {
        let mut s = SendSpace::new(3, 1);
        assert!(!s.reserve(4, || 0));
        assert!(s.reserve(3, || 0));
        assert!(!s.reserve(1, || 0));
        s.release(3);
        assert_eq!(s.free(0), 3);
        assert_eq!(s.post(0), None);
    }

    #[test]
    fn a_slot_reserved_for_later_is_there_when_everything_else_is_taken() {
        let mut s = SendSpace::new(6, 100);
        assert!(s.reserve(3, || 0));
        assert_eq!(s.post(2), None);
        assert!(s.reserve(3, || 0));
        assert_eq!(s.post(2), None);
        assert!(!s.reserve(1, || 0));
        assert_eq!(s.post_signaled(1), 5, "covers all before it");
        s.release(1);
        assert_eq!(s.free(5), 6);
    }

    #[test]
    fn completions_are_counted_only_when_space_is_short() {
        let mut s = SendSpace::new(4, 1);
        assert!(s.reserve(4, || unreachable!("there are enough")));
        assert!(!s.reserve(1, || 0), "nothing was freed");
        assert!(s.reserve(1, || 2));
        assert!(s.reserve(1, || unreachable!("two were freed")));
        assert!(!s.reserve(1, || 2), "those two are counted already");
    }

    #[test]
    fn the_account_balances_whatever_the_sizes() {
        let mut s = SendSpace::new(64, 8);
        let mut inflight = std::collections::VecDeque::new();
        // The sum of freed slots passes 2^32 on the way.
        let start = u32::MAX - 1000;
        s.settled = start;
        let mut freed = start;
        for i in 0..10_000u32 {
            let count = 1 + i % 3;
            while !s.reserve(count, || freed) {
                let covered: u16 = inflight
                    .pop_front()
                    .expect("a full queue has signaled requests");
                freed = freed.wrapping_add(covered.into());
            }
            inflight.extend(s.post(count));
        }
        inflight.push_back(s.post_signaled(0));
        for covered in inflight {
            freed = freed.wrapping_add(covered.into());
        }
        assert_eq!(s.free(freed), 64);
    }
}
