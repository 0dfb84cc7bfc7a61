// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The account of a port's memory: how many bytes are whose. Uses nothing but `core`: its
//! tests run on the host.
//!
//! ```text
//!        reserve()           grant()             refund()
//!  (left) ─────────► coming ───────────► reserved ──────────► (left)
//!     ▲                │ withdraw()
//!     └────────────────┘
//! ```
//!
//! What is *reserved* is a session's or a queue pair's own as long as that lives. What is *coming*
//! was asked for, and waits until others have given back what they borrowed. Both together never
//! pass what the limit is, or shall be.

/// Why bytes were refused: for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// Bytes that were asked for.
    pub(crate) needed: u64,
    /// Bytes that others do not have for themselves.
    pub(crate) left: u64,
    /// Bytes that there may be.
    pub(crate) limit: u64,
}

/// See the module.
pub(super) struct Account {
    /// Bytes that are used at most.
    limit: u64,
    /// Bytes that shall be: less while the limit is being lowered.
    goal: u64,
    reserved: u64,
    coming: u64,
    /// The limit is being changed.
    changing: bool,
}

impl Account {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            goal: limit,
            reserved: 0,
            coming: 0,
            changing: false,
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that shall be used at most.
    pub(super) fn goal(&self) -> u64 {
        self.goal
    }

    /// Returns the bytes that somebody has for himself.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the reserved bytes, and those that are coming.
    pub(super) fn owned(&self) -> u64 {
        self.reserved + self.coming
    }

    fn shortage(&self, needed: u64) -> Shortage {
        Shortage {
            needed,
            left: self.goal.saturating_sub(self.owned()),
            limit: self.goal,
        }
    }

    /// Reserves `bytes` bytes, which are to be granted or withdrawn.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<(), Shortage> {
        let owned = self.owned().saturating_add(bytes);
        if owned > self.goal {
            return Err(self.shortage(bytes));
        }
        self.coming += bytes;
        Ok(())
    }

    /// Notes that `bytes` reserved bytes are there.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.coming -= bytes;
        self.reserved += bytes;
    }

    /// Notes that `bytes` reserved bytes do not come.
    pub(super) fn withdraw(&mut self, bytes: u64) -> Shortage {
        self.coming -= bytes;
        self.shortage(bytes)
    }

    /// Frees `bytes` bytes.
    pub(super) fn refund(&mut self, bytes: u64) {
        self.reserved -= bytes;
    }

    /// Returns the bytes that may still be shared when `held` bytes are; `None`: too many are.
    pub(super) fn left(&self, held: u64) -> Option<u64> {
        self.goal.checked_sub(self.owned())?.checked_sub(held)
    }

    /// Begins to change the limit to `bytes`; returns the one that it was, for
    /// [`Self::end_change`]. `None`: somebody else is changing it, or what is owned is more.
    pub(super) fn begin_change(&mut self, bytes: u64) -> Option<u64> {
        if self.changing || self.owned() > bytes {
            return None;
        }
        self.changing = true;
        self.goal = bytes;
        let before = self.limit;
        // It may be used at once, but what is used may not be forbidden.
        self.limit = self.limit.max(bytes);
        Some(before)
    }

    /// Sets the limit to `bytes`, from here on.
    pub(super) fn end_change(&mut self, bytes: u64) {
        self.changing = false;
        self.goal = bytes;
        self.limit = bytes;
    }
}

/// What a queue pair's bytes are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// A place of its session's.
    place: bool,
    /// Bytes beyond that.
    pub(super) extra: u64,
}

/// The places of a session's queue pairs, which are in the account from its beginning. A peer may
/// ask for more with a later queue pair than with the first, and for one more before an old one
/// is gone: that is extra.
pub(super) struct Places {
    free: u64,
    each: u64,
}

impl Places {
    /// Makes `count` places of `each` bytes.
    pub(super) fn new(count: u64, each: u64) -> Self {
        Self { free: count, each }
    }

    /// Takes the `bytes` bytes that a queue pair needs.
    pub(super) fn take(&mut self, bytes: u64) -> Part {
        let place = self.free != 0;
        self.free -= u64::from(place);
        Part {
            place,
            extra: bytes.saturating_sub(if place { self.each } else { 0 }),
        }
    }

    /// Gives back what a queue pair had.
    pub(super) fn give(&mut self, part: Part) {
        self.free += u64::from(part.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_never_passes_the_limit() {
        let mut account = Account::new(100);
        assert_eq!(account.reserve(60), Ok(()));
        let refused = Shortage {
            needed: 41,
            left: 40,
            limit: 100,
        };
        assert_eq!(account.reserve(41), Err(refused), "what is coming counts");
        assert!(account.reserve(u64::MAX).is_err());
        assert_eq!(account.reserve(40), Ok(()));
        account.grant(60);
        assert_eq!((account.reserved(), account.owned()), (60, 100));
        assert_eq!(account.left(0), Some(0));
        assert_eq!(account.left(1), None);
        account.withdraw(40);
        assert_eq!(account.left(39), Some(1));
        account.refund(60);
        assert_eq!(account.owned(), 0);
    }

    #[test]
    fn the_limit_goes_no_lower_than_what_is_owned() {
        let mut account = Account::new(100);
        assert_eq!(account.reserve(30), Ok(()));
        account.grant(30);
        assert_eq!(account.reserve(20), Ok(()));
        assert_eq!(account.begin_change(49), None);
        assert_eq!(account.begin_change(50), Some(100));
        assert_eq!((account.limit(), account.goal()), (100, 50));
        assert_eq!(account.begin_change(200), None, "one at a time");
        assert!(
            account.reserve(1).is_err(),
            "nothing new beyond what shall be"
        );
        account.end_change(50);
        assert_eq!(account.limit(), 50);
        assert_eq!(account.begin_change(200), Some(50));
        assert_eq!(account.limit(), 200, "more may be used at once");
    }

    #[test]
    fn a_session_has_as_many_places_as_it_paid_for() {
        let mut places = Places::new(2, 10);
        let first = places.take(10);
        assert_eq!(first.extra, 0);
        assert_eq!(places.take(15).extra, 5, "a larger one than was said");
        let third = places.take(10);
        assert_eq!(third.extra, 10, "one more than was said");
        places.give(third);
        assert_eq!(places.take(10).extra, 10, "that made no place");
        places.give(first);
        assert_eq!(places.take(7).extra, 0);
    }
}
