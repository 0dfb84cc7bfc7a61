// SPDX-License-Identifier: GPL-2.0

//! The delay between attempts to connect a path, and the time limit of each: a pure state machine.
//! Uses nothing but `core`: its tests run on the host.
//!
//! Attempts start [`Pace::delay_ms`] apart. An attempt without a response from the target ends when
//! the next one is due ([`Pace::response_ms`]), so that a path that returns is used soon: the
//! connection manager would repeat the request only after 4 s.
//!
//! If a target responds, but so slowly that the attempt times out, it is overloaded, as when all
//! its initiators reconnect at once. Since each attempt is work that delays the others, attempts
//! that always restarted would never succeed. So the next attempt gets twice the time
//! ([`Pace::whole_ms`]), and starts after a rest ([`Pace::rest_ms`]).

/// Every `PATIENT`-th unanswered attempt in a row waits for its full time limit: a target may
/// respond more slowly than ever before.
const PATIENT: u32 = 8;

/// Maximum number of doublings of an attempt's time limit: from half of the connect timeout to
/// twice the connect timeout.
const DOUBLINGS: u32 = 2;

/// After this many losses in a row a path is set aside while other paths work.
const LOSSES: u32 = 3;

/// A path is set aside for no longer than this, in milliseconds.
const ASIDE_MAX_MS: u32 = 300_000;

/// How an attempt that made no session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The target did not respond within the limit for its first response.
    NoResponse,
    /// The target had responded, but the attempt timed out.
    Late,
    /// The attempt failed for another reason than time.
    Refused,
}

/// The schedule of attempts for one path that has no session. See the module.
pub(crate) struct Pace {
    connect_timeout_s: u32,
    reconnect_delay_s: u32,
    /// Unanswered attempts in a row.
    no_responses: u32,
    /// How often the time limit of an attempt was doubled because the target was too slow.
    late: u32,
    /// The last attempt timed out: a rest is due.
    is_late: bool,
}

impl Pace {
    pub(crate) const fn new(connect_timeout_s: u32, reconnect_delay_s: u32) -> Self {
        Self {
            connect_timeout_s,
            reconnect_delay_s,
            no_responses: 0,
            late: 0,
            is_late: false,
        }
    }

    /// Changes the delay between attempts, from the next attempt on.
    pub(crate) fn set_reconnect_delay(&mut self, reconnect_delay_s: u32) {
        self.reconnect_delay_s = reconnect_delay_s;
    }

    /// Returns the milliseconds from the start of one attempt to the start of the next: between
    /// half of `reconnect_delay` and all of it, chosen by `random`, so that the clients of a target
    /// do not all reconnect at once.
    pub(crate) fn delay_ms(&self, random: u64) -> u32 {
        down_to_half(self.reconnect_delay_s.saturating_mul(1000), random)
    }

    /// Returns the milliseconds for which a path is set aside after `losses` losses in a row, each
    /// soon after the path was connected: the time doubles with each loss, up to [`ASIDE_MAX_MS`].
    /// Returns `None` if the path is not set aside yet. Without this, requests would use the path
    /// and wait each time until it is lost again, for example on a network that passes only small
    /// packets.
    pub(crate) fn aside_ms(&self, losses: u32) -> Option<u32> {
        let doublings = losses.checked_sub(LOSSES)?.min(16) + 1;
        let delay = u64::from(self.reconnect_delay_s.max(1)) * 1000 << doublings;
        Some(u32::try_from(delay).map_or(ASIDE_MAX_MS, |ms| ms.min(ASIDE_MAX_MS)))
    }

    /// Returns the milliseconds of rest between the end of the last attempt and the start of the
    /// next: 0, or, if the target was too slow, up to the time limit of the next attempt.
    pub(crate) fn rest_ms(&self, random: u64) -> u32 {
        match self.is_late {
            true => {
                let usual = self.reconnect_delay_s.saturating_mul(1000);
                let rest = usual.saturating_mul(1 << self.late);
                down_to_half(rest.min(self.limit_ms(self.late)), random)
            }
            false => 0,
        }
    }

    /// Returns half of the connect timeout, doubled `doublings` times, in milliseconds.
    fn limit_ms(&self, doublings: u32) -> u32 {
        let half = self.connect_timeout_s.saturating_mul(500);
        half.saturating_mul(1 << doublings)
    }

    /// Returns the least time limit of an attempt, in milliseconds: half of the connect timeout.
    pub(crate) fn least_ms(&self) -> u32 {
        self.limit_ms(0)
    }

    fn is_patient(&self) -> bool {
        self.no_responses % PATIENT == PATIENT - 1
    }

    /// Returns how often the time limit of the next attempt is doubled. Every fourth patient
    /// attempt waits twice as long, and every fourth of these twice as long again. More would delay
    /// finding a path that returns during the attempt.
    fn doublings(&self) -> u32 {
        let patience = match self.is_patient() {
            true => (self.no_responses / PATIENT + 1).trailing_zeros() / 2,
            false => 0,
        };
        self.late.max(patience).min(DOUBLINGS)
    }

    /// Returns the time limit of the next attempt, in milliseconds: half of the connect timeout, 5
    /// s by default; twice the duration of the path's last successful attempt, `usual` ms, if that
    /// is more; and more for a slow target.
    pub(crate) fn whole_ms(&self, usual: u32) -> u32 {
        let needed = usual.saturating_mul(2).min(self.limit_ms(DOUBLINGS));
        self.limit_ms(self.doublings()).max(needed)
    }

    /// Returns the milliseconds for which the next attempt, of at most `whole` ms, waits for the
    /// target's first response: until the following attempt is due, `delay` ms, but twice the
    /// duration of the path's last successful attempt, `usual` ms, if that is more. Returns `whole`
    /// for a target known to be slow, and once in a while for one that does not respond.
    pub(crate) fn response_ms(&self, delay: u32, usual: u32, whole: u32) -> u32 {
        match self.late > 0 || self.is_patient() {
            true => whole,
            false => whole.min(delay.max(usual.saturating_mul(2))),
        }
    }

    /// Records how an attempt ended.
    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.is_late = outcome == Outcome::Late;
        match outcome {
            Outcome::NoResponse => {
                self.no_responses = self.no_responses.saturating_add(1);
                // The target may be gone, and its return must be found soon.
                self.late = self.late.saturating_sub(1);
            }
            Outcome::Late => {
                self.no_responses = 0;
                self.late = (self.late + 1).min(DOUBLINGS);
            }
            Outcome::Refused => self.no_responses = 0,
        }
    }
}

/// Returns a value between half of `ms` and `ms`, chosen by `random`.
fn down_to_half(ms: u32, random: u64) -> u32 {
    ms - (random % (u64::from(ms / 2) + 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(outcomes: &[Outcome]) -> Pace {
        let mut pace = Pace::new(10, 1);
        for outcome in outcomes {
            pace.ended(*outcome);
        }
        pace
    }

    #[test]
    fn a_path_that_is_lost_again_and_again_is_set_aside() {
        let pace = Pace::new(10, 2);
        assert_eq!(pace.aside_ms(0), None);
        assert_eq!(pace.aside_ms(2), None);
        assert_eq!(pace.aside_ms(3), Some(4000));
        assert_eq!(pace.aside_ms(4), Some(8000));
        assert_eq!(pace.aside_ms(9), Some(256_000));
        assert_eq!(pace.aside_ms(10), Some(300_000));
        assert_eq!(pace.aside_ms(u32::MAX), Some(300_000));
        assert_eq!(Pace::new(10, 0).aside_ms(3), Some(2000));
        assert_eq!(Pace::new(10, u32::MAX).aside_ms(3), Some(300_000));
    }

    #[test]
    fn attempts_follow_within_a_delay_or_down_to_half_of_it() {
        let pace = Pace::new(10, 2);
        assert_eq!(pace.delay_ms(0), 2000);
        assert_eq!(pace.delay_ms(1000), 1000);
        assert_eq!(pace.delay_ms(1001), 2000);
        assert!((0..10_000).all(|random| (1000..=2000).contains(&pace.delay_ms(random * 7919))));
        assert_eq!(pace.rest_ms(0), 0);
    }

    #[test]
    fn another_delay_holds_from_the_next_attempt_on() {
        let mut pace = Pace::new(10, 60);
        assert_eq!(pace.delay_ms(0), 60_000);
        pace.set_reconnect_delay(1);
        assert_eq!(pace.delay_ms(0), 1000);
        assert_eq!(pace.whole_ms(0), 5000);
    }

    #[test]
    fn a_target_that_is_not_there_is_asked_again_soon_and_once_in_a_while_with_patience() {
        let mut pace = Pace::new(10, 1);
        let mut patient = [0; 3];
        for attempt in 1..=1280 {
            let whole = pace.whole_ms(300);
            let response = pace.response_ms(900, 300, whole);
            if attempt % PATIENT == 0 {
                assert_eq!(response, whole);
                patient[(whole / 5000).ilog2() as usize] += 1;
            } else {
                assert_eq!((response, whole), (900, 5000));
            }
            pace.ended(Outcome::NoResponse);
            assert_eq!(pace.rest_ms(0), 0);
        }
        assert_eq!(patient, [120, 30, 10]);
    }

    #[test]
    fn an_attempt_after_a_slow_one_has_twice_its_time() {
        let pace = Pace::new(10, 1);
        assert_eq!(pace.whole_ms(0), 5000);
        assert_eq!(pace.response_ms(900, 700, 5000), 1400);
        assert_eq!(pace.response_ms(900, 7000, 5000), 5000);
        assert_eq!(pace.whole_ms(7000), 14_000);
        assert_eq!(pace.whole_ms(u32::MAX), 20_000);
    }

    #[test]
    fn a_slow_target_is_given_longer_and_longer_and_left_alone_meanwhile() {
        let mut pace = Pace::new(10, 1);
        for (whole, rest) in [(10_000, 2000), (20_000, 4000), (20_000, 4000)] {
            pace.ended(Outcome::Late);
            assert_eq!(pace.whole_ms(100), whole);
            assert_eq!(pace.response_ms(900, 100, whole), whole);
            assert_eq!(pace.rest_ms(0), rest);
            assert_eq!(pace.rest_ms(u64::from(rest / 2)), rest / 2);
        }
    }

    #[test]
    fn a_slow_target_that_refuses_is_slow_still_and_one_that_is_silent_is_found_soon() {
        let pace = after(&[Outcome::Late, Outcome::Late, Outcome::Refused]);
        assert_eq!(pace.whole_ms(100), 20_000);
        assert_eq!(pace.rest_ms(0), 0);
        let pace = after(&[Outcome::Late, Outcome::Late, Outcome::NoResponse]);
        assert_eq!(pace.whole_ms(100), 10_000);
        let pace = after(&[Outcome::Late, Outcome::NoResponse]);
        assert_eq!(pace.whole_ms(100), 5000);
        assert_eq!(pace.response_ms(900, 100, 5000), 900);
    }

    #[test]
    fn a_refusal_is_a_response() {
        let no_responses = [Outcome::NoResponse; PATIENT as usize - 1];
        assert_eq!(after(&no_responses).response_ms(900, 100, 5000), 5000);
        let mut pace = after(&no_responses);
        pace.ended(Outcome::Refused);
        assert_eq!(pace.response_ms(900, 100, 5000), 900);
    }

    #[test]
    fn no_setting_is_too_large() {
        let mut pace = Pace::new(u32::MAX, u32::MAX);
        for _ in 0..100 {
            pace.ended(Outcome::Late);
            assert_eq!(pace.whole_ms(u32::MAX), u32::MAX);
            assert!(pace.rest_ms(u64::MAX) >= u32::MAX / 2);
        }
    }

    #[test]
    fn nobody_rests_for_longer_than_the_next_attempt_may_take() {
        let mut pace = Pace::new(10, 60);
        for whole in [10_000, 20_000, 20_000] {
            pace.ended(Outcome::Late);
            assert_eq!(pace.rest_ms(0), whole);
        }
    }
}
