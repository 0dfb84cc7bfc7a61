// SPDX-License-Identifier: GPL-2.0

//! Tracks whether a disk has acknowledged writes that no flush has covered: an account without a
//! lock. Uses nothing but atomics: its tests run on the host.
//!
//! The flushes of a disk, over all queues and paths, are numbered from 1 in the order in which they
//! are sent. A write is *volatile* when it ends without FUA while the target may keep it in a
//! volatile write cache. A volatile write that ends while flush `n` is the next one to be sent is
//! covered by flush `n` and by all later ones: its response had arrived before the flush was sent.
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
//! Each queue remembers the number at which it last reported a write. So a write costs two loads
//! and a comparison, and only the first write of a queue after a flush touches shared memory.

use hcablk_core::sync::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed, //
};

/// The account of unflushed writes; see the module.
pub(crate) struct Unflushed {
    /// The number of the next flush, from 1.
    next: Atomic<u64>,
    /// The value of `next` while writes are volatile, else 0.
    counted_at: Atomic<u64>,
    /// The highest number at which a volatile write ended.
    acked: Atomic<u64>,
    /// The highest number of a flush that succeeded.
    covered: Atomic<u64>,
}

/// Raises `number` to `least`, unless it is below `from`. Any context.
fn raise(number: &Atomic<u64>, from: u64, least: u64) {
    let mut now = number.load(Relaxed);
    while (from..least).contains(&now) {
        match number.cmpxchg(now, least, Full) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

impl Unflushed {
    /// Creates the account of a disk without writes, whose writes are not volatile.
    pub(crate) const fn new() -> Self {
        Self {
            next: Atomic::new(1),
            counted_at: Atomic::new(0),
            acked: Atomic::new(0),
            covered: Atomic::new(0),
        }
    }

    /// Sets whether writes that end without FUA are volatile. Writes that were counted before
    /// remain until a flush covers them. One caller at a time, and before the first volatile write
    /// can end.
    pub(crate) fn count(&self, on: bool) {
        let is_on = self.counted_at.load(Relaxed) != 0;
        if !on {
            self.counted_at.store(0, Relaxed);
        } else if !is_on {
            // Ordered before the load that follows: either that load sees the number of a flush, or
            // the flush sees this store.
            self.counted_at.xchg(self.next.load(Relaxed), Full);
            // A flush may have been sent in between.
            raise(&self.counted_at, 1, self.next.load(Acquire));
        }
    }

    /// Returns the number at which a write that ends now must be reported; 0: it is not volatile.
    /// Any context.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        self.counted_at.load(Relaxed)
    }

    /// Records that a write ended at the number `at`, before its request ends. Any context.
    #[cold]
    #[inline(never)]
    pub(crate) fn acknowledge(&self, at: u64) {
        raise(&self.acked, 0, at);
    }

    /// Returns the number of a flush that is about to be sent. Any context.
    pub(crate) fn begin_flush(&self) -> u64 {
        let number = self.next.fetch_add(1, Full);
        raise(&self.counted_at, 1, number + 1);
        number
    }

    /// Records that flush `number` succeeded. Any context.
    pub(crate) fn flushed(&self, number: u64) {
        raise(&self.covered, 0, number);
    }

    /// Returns whether there are volatile writes that no flush has covered. Any context.
    pub(crate) fn is_dirty(&self) -> bool {
        self.acked.load(Acquire) > self.covered.load(Acquire)
    }

    /// Drops all writes that have ended. Any context.
    pub(crate) fn forget(&self) {
        // Queues report their next write again, since the number has changed.
        let number = self.begin_flush();
        self.flushed(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue's use of the account.
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
        account.count(true);
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
    fn forgotten_writes_are_not_reported_again() {
        let account = with_cache();
        let mut queue = Queue(&account, 0);
        queue.write();
        account.forget();
        assert!(!account.is_dirty());
        queue.write();
        assert!(account.is_dirty());
    }

    #[test]
    fn durable_writes_are_not_counted_and_volatile_ones_stay_counted() {
        let account = Unflushed::new();
        let mut queue = Queue(&account, 0);
        queue.write();
        assert!(!account.is_dirty());
        account.count(true);
        queue.write();
        assert!(account.is_dirty());
        account.count(false);
        queue.write();
        assert!(account.is_dirty());
        let flush = account.begin_flush();
        account.flushed(flush);
        assert!(!account.is_dirty());
        queue.write();
        assert!(!account.is_dirty());
        account.count(true);
        queue.write();
        assert!(account.is_dirty());
        let flush = account.begin_flush();
        queue.write();
        account.flushed(flush);
        assert!(account.is_dirty());
    }
}
