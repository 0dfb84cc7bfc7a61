// SPDX-License-Identifier: GPL-2.0

//! Whether a disk has acknowledged writes that no flush has covered: an account without a lock. Uses nothing but atomics:
//! its tests run on the host.
//!
//! The flushes of a disk, over all queues and paths, are numbered from 1 in the order in which they are sent. A write is
//! *volatile* when it ends without FUA on a volume with a volatile write cache. A volatile write that ends while flush `n` is
//! the next one to be sent is covered by flush `n` and by all later ones: its response had arrived before the flush was sent.
//! A flush that was sent before the write ended may have passed it, and does not cover it.
//!
//! ```text
//!  write ends at 4 ──► acked = 4     flush 4 sent, next = 5     write ends at 5 ──► acked = 5     flush 4 succeeds, covered = 4
//!  acked > covered: there are unflushed writes
//! ```
//!
//! Discards are not counted: they promise nothing that a flush could make durable.
//!
//! # Cost
//!
//! Each queue remembers the number at which it last reported a write. So a write costs two loads and a comparison, and only the
//! first write of a queue after a flush touches shared memory.

use hcablk_core::sync::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed, //
};

/// See the module.
pub(crate) struct Unflushed {
    /// The number of the next flush; 0: the volume has no volatile write cache.
    next: Atomic<u64>,
    /// The highest number at which a volatile write ended.
    acked: Atomic<u64>,
    /// The highest number of a flush that succeeded.
    covered: Atomic<u64>,
    /// The last number that was given away, while `next` is 0.
    last: Atomic<u64>,
}

/// Raises `number` to `least`. Any context.
fn raise(number: &Atomic<u64>, least: u64) {
    let mut now = number.load(Relaxed);
    while now < least {
        match number.cmpxchg(now, least, Full) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

impl Unflushed {
    /// Makes the account of a disk without writes, whose volume has no volatile write cache.
    pub(crate) const fn new() -> Self {
        Self {
            next: Atomic::new(0),
            acked: Atomic::new(0),
            covered: Atomic::new(0),
            last: Atomic::new(0),
        }
    }

    /// Sets whether the volume has a volatile write cache. Without one nothing is counted, and what was counted is forgotten.
    /// One caller at a time.
    pub(crate) fn set_cache(&self, on: bool) {
        let is_on = self.next.load(Relaxed) != 0;
        match (is_on, on) {
            (false, true) => self.next.store(self.last.load(Relaxed) + 1, Relaxed),
            (true, false) => {
                self.forget();
                self.last.store(self.next.xchg(0, Full) - 1, Relaxed);
            }
            _ => {}
        }
    }

    /// Returns the number at which a write that ends now is to be reported. Any context.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Records that a volatile write ended at the number `at`, before its request ends. Any context.
    #[cold]
    #[inline(never)]
    pub(crate) fn acknowledge(&self, at: u64) {
        raise(&self.acked, at);
    }

    /// Returns the number of a flush that is about to be sent; 0: it covers nothing. Any context.
    pub(crate) fn begin_flush(&self) -> u64 {
        let mut now = self.next.load(Relaxed);
        while now != 0 {
            match self.next.cmpxchg(now, now + 1, Full) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        now
    }

    /// Records that flush `number` succeeded. Any context.
    pub(crate) fn flushed(&self, number: u64) {
        raise(&self.covered, number);
    }

    /// Returns whether there are volatile writes that no flush has covered. Any context.
    pub(crate) fn is_dirty(&self) -> bool {
        self.acked.load(Acquire) > self.covered.load(Acquire)
    }

    /// Forgets all writes that have ended. Any context.
    pub(crate) fn forget(&self) {
        // Queues report their next write anew, since the number is another one.
        let number = self.begin_flush();
        self.flushed(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An account as a queue uses it.
    struct Queue<'a>(&'a Unflushed, u64);

    impl Queue<'_> {
        fn write(&mut self) {
            let now = self.0.now();
            if self.1 != now {
                self.1 = now;
                self.0.acknowledge(now);
            }
        }
    }

    fn with_cache() -> Unflushed {
        let account = Unflushed::new();
        account.set_cache(true);
        account
    }

    #[test]
    fn a_write_is_unflushed_until_a_later_flush_succeeds() {
        let account = with_cache();
        let mut queue = Queue(&account, 0);
        assert!(!account.is_dirty());
        queue.write();
        assert!(account.is_dirty());
        let flush = account.begin_flush();
        assert!(account.is_dirty());
        account.flushed(flush);
        assert!(!account.is_dirty());
        queue.write();
        assert!(account.is_dirty());
    }

    #[test]
    fn a_flush_does_not_cover_a_write_that_ended_after_it_was_sent() {
        let account = with_cache();
        let (mut one, mut two) = (Queue(&account, 0), Queue(&account, 0));
        one.write();
        let flush = account.begin_flush();
        two.write();
        account.flushed(flush);
        assert!(account.is_dirty());
        let flush = account.begin_flush();
        account.flushed(flush);
        assert!(!account.is_dirty());
    }

    #[test]
    fn a_failed_flush_covers_nothing_and_a_later_one_covers_all() {
        let account = with_cache();
        let mut queue = Queue(&account, 0);
        queue.write();
        let _failed = account.begin_flush();
        assert!(account.is_dirty());
        let (early, late) = (account.begin_flush(), account.begin_flush());
        account.flushed(late);
        assert!(!account.is_dirty());
        account.flushed(early);
        assert!(!account.is_dirty());
    }

    #[test]
    fn a_late_report_takes_nothing_back() {
        let account = with_cache();
        let early = account.now();
        let flush = account.begin_flush();
        account.acknowledge(account.now());
        account.acknowledge(early);
        account.flushed(flush);
        assert!(account.is_dirty());
    }

    #[test]
    fn what_is_forgotten_is_not_reported_again() {
        let account = with_cache();
        let mut queue = Queue(&account, 0);
        queue.write();
        account.forget();
        assert!(!account.is_dirty());
        queue.write();
        assert!(account.is_dirty());
    }

    #[test]
    fn without_a_cache_nothing_is_counted() {
        let account = Unflushed::new();
        let mut queue = Queue(&account, 0);
        queue.write();
        assert!(!account.is_dirty());
        assert_eq!(account.begin_flush(), 0);
        account.set_cache(true);
        queue.write();
        assert!(account.is_dirty());
        account.set_cache(false);
        assert!(!account.is_dirty());
        queue.write();
        assert!(!account.is_dirty());
        account.set_cache(true);
        assert!(!account.is_dirty());
        queue.write();
        assert!(account.is_dirty());
    }
}
