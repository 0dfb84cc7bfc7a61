// SPDX-License-Identifier: GPL-2.0

//! The difference between the clocks of two machines, from messages that both recorded.
//!
//! A request is sent before it is received, and its response is sent before it is received. So each message gives one
//! bound of the difference between the clocks (theirs minus ours) at one moment: a smallest value or a largest one.
//! Clocks run at different rates, but the rates differ by a few millionths (`ppm`) at most: a bound for one moment,
//! widened accordingly, holds for all others. The intersection of all bounds is an interval for each moment (as in NTP,
//! by Marzullo's algorithm); its middle is used, and half of its width is the uncertainty.

/// The largest difference between the rates of two clocks, unless the user sets it, in millionths. Crystals are within
/// 100; the calibration of an emulated machine's clock is not.
pub const DRIFT_PPM: u32 = 1000;

/// The precision of times in tracefs, in nanoseconds.
const ROUNDED: i64 = 1000;

/// Stands for no bound; far enough from the limits of i64 for sums.
const UNBOUNDED: i64 = i64::MAX / 4;

/// The bounds from a pair of messages, at a moment of our clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) at: i64,
    pub(super) least: i64,
    pub(super) most: i64,
}

impl Bound {
    /// Makes the bound from a message that they sent at `sent`, by their clock, and we received at `received`.
    pub(super) fn received(sent: i64, received: i64) -> Self {
        Self {
            at: received,
            least: sent - received - ROUNDED,
            most: UNBOUNDED,
        }
    }

    /// Makes the bound from a message that we sent at `sent`, and they received at `received`, by their clock.
    pub(super) fn sent(sent: i64, received: i64) -> Self {
        Self {
            at: sent,
            least: -UNBOUNDED,
            most: received - sent + ROUNDED,
        }
    }
}

/// The reason why two clocks cannot be aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockError {
    /// No request has both its messages recorded on both sides.
    Unknown,
    /// The messages contradict each other by this many nanoseconds.
    Contradiction(i64),
}

/// How far another clock is ahead of ours, over time.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    knots: Vec<Bound>,
    ppm: i64,
}

impl Clocks {
    /// Returns the difference of a clock from itself.
    pub(super) fn same() -> Self {
        Self {
            knots: vec![Bound {
                at: 0,
                least: 0,
                most: 0,
            }],
            ppm: 0,
        }
    }

    /// Computes the differences that `bounds` allow, if rates differ by `ppm` millionths at most.
    pub(super) fn new(mut bounds: Vec<Bound>, ppm: u32) -> Result<Self, ClockError> {
        bounds.sort_by_key(|bound| bound.at);
        let mut clocks = Self {
            knots: bounds,
            ppm: ppm.into(),
        };
        for index in 1..clocks.knots.len() {
            clocks.narrow(index, index - 1);
        }
        for index in (1..clocks.knots.len()).rev() {
            clocks.narrow(index - 1, index);
        }
        let known = |knot: &Bound| knot.least > -UNBOUNDED / 2 && knot.most < UNBOUNDED / 2;
        if !clocks.knots.iter().any(known) {
            return Err(ClockError::Unknown);
        }
        let widths = clocks.knots.iter().map(|knot| knot.least - knot.most);
        match widths.max() {
            Some(width) if width > 0 => Err(ClockError::Contradiction(width)),
            _ => Ok(clocks),
        }
    }

    /// Narrows a knot by the bounds of a neighbour.
    fn narrow(&mut self, index: usize, by: usize) {
        let other = self.knots[by];
        let slack = self.slack(self.knots[index].at, other.at);
        let knot = &mut self.knots[index];
        knot.least = knot.least.max(other.least - slack);
        knot.most = knot.most.min(other.most + slack);
    }

    /// Returns the largest change of the difference between two moments.
    fn slack(&self, one: i64, other: i64) -> i64 {
        // Rounded up; the product stays below the limit for a hundred days.
        (one - other).abs() / 1000 * self.ppm / 1000 + i64::from(self.ppm != 0)
    }

    /// Returns how far the other clock is ahead when ours shows `at`, and the uncertainty.
    pub(super) fn ahead(&self, at: i64) -> (i64, i64) {
        let after = self.knots.partition_point(|knot| knot.at < at);
        let neighbours = [after.checked_sub(1), Some(after)];
        let (mut least, mut most) = (-UNBOUNDED, UNBOUNDED);
        for knot in neighbours.into_iter().flatten() {
            if let Some(knot) = self.knots.get(knot) {
                let slack = self.slack(at, knot.at);
                least = least.max(knot.least - slack);
                most = most.min(knot.most + slack);
            }
        }
        (least + (most - least) / 2, (most - least + 1) / 2)
    }

    /// Returns the time of our clock when the other clock shows `at`, and its uncertainty.
    pub(super) fn ours(&self, at: i64) -> (i64, i64) {
        let mut ours = at - self.ahead(self.knots.first().map_or(0, |knot| knot.at)).0;
        // Each iteration multiplies the remaining error by the drift: with the default, by a thousandth at most.
        for _ in 0..3 {
            ours = at - self.ahead(ours).0;
        }
        (ours, self.ahead(ours).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of a machine whose clock is ahead by `ahead(time)`, each way with its delay.
    fn exchange(ahead: impl Fn(i64) -> i64, delays: &[(i64, i64)], every: i64) -> Vec<Bound> {
        let mut bounds = Vec::new();
        for (index, (there, back)) in (1..).zip(delays) {
            let received = index * every;
            let answered = received + 50_000;
            bounds.push(Bound::received(
                received - there + ahead(received - there),
                received,
            ));
            bounds.push(Bound::sent(
                answered,
                answered + back + ahead(answered + back),
            ));
        }
        bounds
    }

    #[test]
    fn the_fastest_messages_count() {
        let delays = [(90_000, 5_000), (4_000, 80_000), (70_000, 60_000)];
        let clocks = Clocks::new(exchange(|_| 7_000_000, &delays, 200_000), 0).unwrap();
        let (ahead, uncertainty) = clocks.ahead(400_000);
        // Between -4 us and +5 us, each widened by the precision of tracefs.
        assert_eq!((ahead, uncertainty), (7_000_500, 5_500));
        assert!((ahead - 7_000_000).abs() <= uncertainty);
        let (ours, _) = clocks.ours(8_000_500);
        assert_eq!(ours, 1_000_000);
    }

    #[test]
    fn clocks_that_drift() {
        // 100 us each second, for ten seconds: far more than messages take.
        let drifting = |at: i64| -3_000_000_000 + at / 10_000;
        let delays = vec![(10_000, 12_000); 100];
        let bounds = exchange(drifting, &delays, 100_000_000);
        assert!(matches!(
            Clocks::new(bounds.clone(), 0),
            Err(ClockError::Contradiction(_))
        ));
        let clocks = Clocks::new(bounds, 200).unwrap();
        let mut last = i64::MIN;
        for at in (0..10_000_000_000).step_by(37_000_000) {
            let (ahead, uncertainty) = clocks.ahead(at);
            assert!((ahead - drifting(at)).abs() <= uncertainty, "{at}");
            assert!(uncertainty <= 40_000, "{uncertainty}");
            let (ours, _) = clocks.ours(at + drifting(at));
            assert!((ours - at).abs() <= uncertainty + 1000, "{ours} {at}");
            assert!(ours > last);
            last = ours;
        }
    }

    #[test]
    fn clocks_that_cannot_be_aligned_are_refused() {
        assert_eq!(
            Clocks::new(Vec::new(), 100).err(),
            Some(ClockError::Unknown)
        );
        let one_way = vec![Bound::received(5, 10), Bound::received(15, 20)];
        assert_eq!(Clocks::new(one_way, 100).err(), Some(ClockError::Unknown));
        let wrong = vec![Bound::received(50_000, 10_000), Bound::sent(11_000, 12_000)];
        assert_eq!(
            Clocks::new(wrong, 0).err(),
            Some(ClockError::Contradiction(37_000))
        );
    }
}
