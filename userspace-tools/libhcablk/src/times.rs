// SPDX-License-Identifier: GPL-2.0

//! Which requests of a queue the target does not answer in time: pure.
//!
//! Time is counted in *ticks* by the volume's thread, and each tag has the tick at which its request was issued: so a request costs
//! two stores and no look at a clock, and time that passes while this machine is suspended is not the target's. The thread sees
//! that a request may be late and wakes the queue; only the queue knows what has been answered and was not looked at yet, so that
//! decides.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Ticks that a request may take.
const TICKS: u32 = 8;

/// Returns the time between two ticks, when requests may take `timeout`. They get that, and up to an eighth more.
pub(crate) fn period(timeout: Duration) -> Duration {
    timeout / TICKS
}

/// The ticks of a queue's requests, by tag. One thread writes them, any other may look.
pub(crate) struct Times {
    /// 0: the tag has no request.
    since: Box<[AtomicU32]>,
}

impl Times {
    /// Makes it for `depth` tags.
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            since: (0..depth).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn set(&self, tag: u16, since: u32) {
        if let Some(place) = self.since.get(usize::from(tag)) {
            place.store(since, Ordering::Relaxed);
        }
    }

    /// Records that the request of `tag` is issued at the tick `now`.
    pub(crate) fn begin(&self, tag: u16, now: u32) {
        // 0 says that there is none; after so long a time a tick more is nothing.
        self.set(tag, now.max(1));
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

    /// Returns whether at the tick `now` a request has taken longer than it may.
    pub(crate) fn is_late(&self, now: u32) -> bool {
        let mut begun = self.since.iter().map(|since| since.load(Ordering::Relaxed));
        // The first tick may have come a moment after it began.
        begun.any(|since| since != 0 && now.wrapping_sub(since) > TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_late_when_its_time_has_passed() {
        let times = Times::new(2);
        assert!(!times.is_late(1000));
        times.begin(1, 5);
        assert!(!times.is_late(5 + TICKS));
        assert!(times.is_late(5 + TICKS + 1));
        times.begin(0, 5 + TICKS);
        times.end(1);
        assert!(!times.is_late(5 + TICKS + 1), "others go on");
        assert!(times.is_late(5 + 2 * TICKS + 1));
        times.begin(1, 5);
        times.clear();
        assert!(!times.is_late(u32::MAX));
        times.begin(7, 5);
        assert!(!times.is_late(100), "there is no such tag");
    }

    #[test]
    fn ticks_begin_anew_after_the_last_one() {
        let times = Times::new(1);
        times.begin(0, u32::MAX);
        assert!(!times.is_late(TICKS - 1));
        assert!(times.is_late(TICKS));
        times.begin(0, 0);
        assert!(times.is_late(TICKS + 2), "0 is a tick, too");
    }

    #[test]
    fn no_request_has_less_than_its_time() {
        let timeout = Duration::from_secs(30);
        assert!(period(timeout) * TICKS >= timeout);
    }
}
