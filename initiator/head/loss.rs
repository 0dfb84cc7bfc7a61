// SPDX-License-Identifier: GPL-2.0

//! The time limits of a disk without a session, across losses that follow each other: a pure state
//! machine. Uses nothing but `core`: its tests run on the host.
//!
//! ```text
//!  never lost ──begin()──► lost ──end()──► recovering ──STABLE_MS──► stable ──begin()──► lost …
//!                            ▲                  │
//!                            └─────begin()──────┘
//! ```
//!
//! A loss while the disk is recovering continues the previous loss: its limits count from the start
//! of the first. But a disk that completes requests in between works, though badly, and must not be
//! removed: `ctrl_loss_tmo` restarts. `fast_io_fail_tmo` does not: it protects callers that wait
//! for a single request.

/// Milliseconds that a session must live for its loss to be a new one.
const STABLE_MS: u32 = 10_000;

/// The time limits without a session on any path. `D` is a moment in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss<D> {
    /// When the disk is removed; `None`: never.
    pub(crate) end: Option<D>,
    /// When requests start to fail; `None`: not before the disk is removed.
    pub(crate) fail_fast: Option<D>,
}

impl<D> Loss<D> {
    const NONE: Self = Self {
        end: None,
        fail_fast: None,
    };
}

/// The settings that limit a loss, in seconds; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LossLimits {
    pub(crate) ctrl_loss_tmo_s: Option<u32>,
    pub(crate) fast_io_fail_tmo_s: Option<u32>,
}

/// Future moments of a clock.
pub(crate) trait Moment: Copy {
    /// Returns the moment `ms` milliseconds from now.
    fn after(ms: u32) -> Self;

    fn has_passed(self) -> bool;
}

/// The current loss, or the last one. See the module.
pub(crate) struct Losses<D> {
    loss: Loss<D>,
    /// There is no session now.
    is_now: bool,
    /// When the sessions since the last loss have lived long enough.
    stable: Option<D>,
    /// Number of completed requests when the last loss began.
    completed: u64,
}

impl<D: Moment> Losses<D> {
    pub(crate) const fn new() -> Self {
        Self {
            loss: Loss::NONE,
            is_now: false,
            stable: None,
            completed: 0,
        }
    }

    /// Records that there is no session any more; `completed`: requests completed so far.
    pub(crate) fn begin(&mut self, completed: u64, limits: LossLimits) {
        if core::mem::replace(&mut self.is_now, true) {
            return;
        }
        let again = self.stable.is_some_and(|stable| !stable.has_passed());
        let has_worked = core::mem::replace(&mut self.completed, completed) != completed;
        let deadline = |s: u32| D::after(s.saturating_mul(1000));
        if !again || has_worked {
            self.loss.end = limits.ctrl_loss_tmo_s.map(deadline);
        }
        if !again {
            self.loss.fail_fast = limits.fast_io_fail_tmo_s.map(deadline);
        }
    }

    /// Changes the limits. They count from now for the present loss, and for a loss that continues
    /// it because its session did not live for `STABLE_MS`.
    pub(crate) fn limit(&mut self, limits: LossLimits) {
        let deadline = |s: u32| D::after(s.saturating_mul(1000));
        self.loss = Loss {
            end: limits.ctrl_loss_tmo_s.map(deadline),
            fail_fast: limits.fast_io_fail_tmo_s.map(deadline),
        };
    }

    /// Records that there is a session again.
    pub(crate) fn end(&mut self) {
        // On a disk that was never lost, a further path starts no recovery.
        if core::mem::take(&mut self.is_now) {
            self.stable = Some(D::after(STABLE_MS));
        }
    }

    /// Returns the time limits without a session; none while there is one.
    pub(crate) fn now(&self) -> Loss<D> {
        match self.is_now {
            true => self.loss,
            false => Loss::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW_MS: Cell<u64> = const { Cell::new(0) };
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct At(u64);

    impl Moment for At {
        fn after(ms: u32) -> Self {
            At(NOW_MS.get() + u64::from(ms))
        }

        fn has_passed(self) -> bool {
            NOW_MS.get() >= self.0
        }
    }

    const LIMITS: LossLimits = LossLimits {
        ctrl_loss_tmo_s: Some(600),
        fast_io_fail_tmo_s: Some(20),
    };
    const STABLE: u64 = STABLE_MS as u64;

    fn pass(ms: u64) {
        NOW_MS.set(NOW_MS.get() + ms);
    }

    fn lost_since(end: u64, fail_fast: u64) -> Loss<At> {
        Loss {
            end: Some(At(end + 600_000)),
            fail_fast: Some(At(fail_fast + 20_000)),
        }
    }

    #[test]
    fn there_are_limits_only_while_there_is_no_session() {
        let mut losses = Losses::new();
        assert_eq!(losses.now(), Loss::NONE);
        losses.begin(0, LIMITS);
        assert_eq!(losses.now(), lost_since(0, 0));
        losses.end();
        assert_eq!(losses.now(), Loss::NONE);
        let unbounded = LossLimits {
            ctrl_loss_tmo_s: None,
            fast_io_fail_tmo_s: None,
        };
        pass(STABLE);
        losses.begin(0, unbounded);
        assert_eq!(losses.now(), Loss::NONE);
    }

    #[test]
    fn a_loss_counts_from_when_it_began_whoever_reports_it() {
        let mut losses = Losses::new();
        losses.begin(0, LIMITS);
        pass(5000);
        losses.begin(3, LIMITS);
        assert_eq!(losses.now(), lost_since(0, 0));
    }

    #[test]
    fn new_limits_count_from_their_change() {
        let mut losses = Losses::new();
        losses.begin(0, LIMITS);
        pass(5000);
        let short = LossLimits {
            ctrl_loss_tmo_s: Some(3),
            fast_io_fail_tmo_s: None,
        };
        losses.limit(short);
        let bound = Loss {
            end: Some(At(8000)),
            fail_fast: None,
        };
        assert_eq!(losses.now(), bound);
        // A loss that continues this one keeps the new deadline.
        losses.end();
        assert_eq!(losses.now(), Loss::NONE);
        pass(1000);
        losses.begin(0, short);
        assert_eq!(losses.now(), bound);
    }

    #[test]
    fn a_stable_session_ends_the_loss() {
        let mut losses = Losses::new();
        losses.begin(0, LIMITS);
        pass(5000);
        losses.end();
        pass(STABLE);
        losses.begin(0, LIMITS);
        assert_eq!(losses.now(), lost_since(15_000, 15_000));
    }

    #[test]
    fn an_idle_disk_ends_if_no_session_is_stable() {
        let mut losses = Losses::new();
        losses.begin(7, LIMITS);
        while !losses.now().end.is_some_and(At::has_passed) {
            pass(1000);
            losses.end();
            pass(STABLE - 1);
            losses.begin(7, LIMITS);
        }
        assert!(NOW_MS.get() < 600_000 + STABLE + 1000);
    }

    #[test]
    fn a_disk_that_completes_requests_in_between_stays() {
        let mut losses = Losses::new();
        losses.begin(0, LIMITS);
        let began = NOW_MS.get();
        for completed in 1..1000 {
            pass(1000);
            losses.end();
            pass(STABLE - 1);
            losses.begin(completed, LIMITS);
            // The wait for one request is not prolonged by that.
            assert_eq!(losses.now(), lost_since(NOW_MS.get(), began));
        }
        // No requests complete any more.
        let last = NOW_MS.get();
        pass(1000);
        losses.end();
        pass(1);
        losses.begin(999, LIMITS);
        assert_eq!(losses.now(), lost_since(last, began));
    }

    #[test]
    fn another_path_of_a_disk_that_was_never_lost_begins_nothing() {
        let mut losses = Losses::new();
        losses.end();
        losses.begin(0, LIMITS);
        pass(1);
        assert_eq!(losses.now(), lost_since(0, 0));
    }
}
