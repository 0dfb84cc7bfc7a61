// SPDX-License-Identifier: GPL-2.0

//! Finds the requests of a queue that get no response in time, and those that have been issued again for too long:
//! pure.
//!
//! Time is counted in *ticks* by the volume's thread, and each tag has the tick at which its request was issued: so a
//! request costs two stores and no read of a clock, and time in which this machine is suspended does not count against
//! the target. The thread sees that a request may be late and wakes the queue; only the queue knows the responses that
//! were not polled yet, so the queue decides.
//!
//! A late request ends its session, and the next session issues it again. A drive that is always late would keep the
//! request for ever. So the request also has a [`Lifetime`], which counts from its first issue, over all sessions and
//! the time between them. After it the request is not issued again: it fails when its session is lost, or at once while
//! it waits. A request that was issued before that gets its full time for the response.
//!
//! ```text
//!  issued ──► late, lost ──► issued again ──► late, lost ──► … ──► issued for the last time ──► late, lost: failed
//!  ├──────────────────────────── life ────────────────────────────────────┤     ├─ io-timeout ─┤
//! ```

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Ticks that a request may take.
const TICKS: u32 = 8;

/// A moment: the number of ticks so far, from 1. It never wraps: that would take longer than the age of the universe.
pub(crate) type Tick = NonZeroU64;

/// Returns the time between two ticks, when requests may take `timeout`. They get that, and up to an eighth more.
pub(crate) fn period(timeout: Duration) -> Duration {
    timeout / TICKS
}

/// The time for which a request is issued again, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime(u64);

impl Lifetime {
    /// Makes the lifetime of requests that may take `timeout`, in a volume that may be without a session for
    /// `ctrl_loss`: the sum of both.
    pub(crate) fn new(timeout: Duration, ctrl_loss: Duration) -> Self {
        let period = period(timeout).as_millis().max(1);
        let waits = ctrl_loss.as_millis().div_ceil(period);
        Self(
            u64::try_from(waits)
                .unwrap_or(u64::MAX)
                .saturating_add(TICKS.into()),
        )
    }

    /// Returns whether the lifetime of a request is over at the tick `now`. `since` is the tick of its first issue;
    /// `None`: it was not issued yet, so its lifetime has not begun.
    pub(crate) fn is_over(self, since: Option<Tick>, now: Tick) -> bool {
        since.is_some_and(|since| now.get().saturating_sub(since.get()) > self.0)
    }
}

/// The ticks of a queue's requests, by tag. One thread writes them, any other may read them.
pub(crate) struct Times {
    /// 0: the tag has no request.
    since: Box<[AtomicU64]>,
}

impl Times {
    /// Makes the times of `depth` tags.
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            since: (0..depth).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn set(&self, tag: u16, since: u64) {
        if let Some(place) = self.since.get(usize::from(tag)) {
            place.store(since, Ordering::Relaxed);
        }
    }

    /// Records that the request of `tag` is issued at the tick `now`.
    pub(crate) fn begin(&self, tag: u16, now: Tick) {
        self.set(tag, now.get());
    }

    /// Records that the request of `tag` has ended.
    pub(crate) fn end(&self, tag: u16) {
        self.set(tag, 0);
    }

    /// Records that no request is issued any more.
    pub(crate) fn clear(&self) {
        for place in &self.since {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether a request has exceeded its time limit at the tick `now`.
    pub(crate) fn is_late(&self, now: Tick) -> bool {
        let mut begun = self.since.iter().map(|since| since.load(Ordering::Relaxed));
        // The first tick may have come a moment after the request began. A request that began after `now` was read is
        // not late.
        begun.any(|since| since != 0 && now.get().saturating_sub(since) > u64::from(TICKS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u64 = super::TICKS as u64;

    fn tick(number: u64) -> Tick {
        Tick::new(number).unwrap()
    }

    #[test]
    fn a_request_is_late_when_its_time_has_passed() {
        let times = Times::new(2);
        assert!(!times.is_late(tick(1000)));
        times.begin(1, tick(5));
        assert!(!times.is_late(tick(5 + TICKS)));
        assert!(times.is_late(tick(5 + TICKS + 1)));
        times.begin(0, tick(5 + TICKS));
        times.end(1);
        assert!(!times.is_late(tick(5 + TICKS + 1)), "others continue");
        assert!(times.is_late(tick(5 + 2 * TICKS + 1)));
        times.begin(1, tick(5));
        times.clear();
        assert!(!times.is_late(Tick::MAX));
        times.begin(7, tick(5));
        assert!(!times.is_late(tick(100)), "there is no such tag");
    }

    #[test]
    fn no_tick_is_too_high() {
        // A counter of 32 bits wraps after 17 years of an eighth of a second.
        let high = u64::from(u32::MAX);
        for begin in high - 2 * TICKS..high + 2 * TICKS {
            let times = Times::new(1);
            times.begin(0, tick(begin));
            assert!(!times.is_late(tick(begin)), "{begin}");
            assert!(!times.is_late(tick(begin + TICKS)), "{begin}");
            assert!(times.is_late(tick(begin + TICKS + 1)), "{begin}");
        }
    }

    #[test]
    fn a_request_is_not_late_by_a_tick_before_its_own() {
        let times = Times::new(1);
        times.begin(0, tick(7));
        assert!(!times.is_late(tick(6)));
        assert!(!Lifetime(0).is_over(Some(tick(7)), tick(6)));
    }

    #[test]
    fn no_request_has_less_than_its_time() {
        let timeout = Duration::from_secs(30);
        assert!(period(timeout) * super::TICKS >= timeout);
    }

    #[test]
    fn a_request_lives_for_its_time_and_that_of_a_loss() {
        let seconds = Duration::from_secs;
        let life = Lifetime::new(seconds(2), seconds(6));
        // Ticks of a quarter of a second.
        assert!(!life.is_over(Some(tick(10)), tick(10 + 4 * 8)));
        assert!(life.is_over(Some(tick(10)), tick(10 + 4 * 8 + 1)));
        assert!(!life.is_over(None, Tick::MAX), "it was not issued");
        // A request that must not wait for a session.
        assert!(Lifetime::new(seconds(30), seconds(0)).is_over(Some(tick(1)), tick(2 + TICKS)));
    }

    #[test]
    fn the_longest_life_is_longer_than_any_volume_is_open() {
        let years = u64::from(u32::MAX) / (365 * 86400);
        assert!(years > 100);
        let longest = Duration::from_secs(u32::MAX.into());
        let life = Lifetime::new(Duration::from_secs(1), longest);
        assert!(!life.is_over(Some(tick(1)), tick(8 * 365 * 86400 * 100)));
        assert!(Lifetime::new(Duration::from_secs(3600), Duration::ZERO).0 == TICKS);
    }
}
