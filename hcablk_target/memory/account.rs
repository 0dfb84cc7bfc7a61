// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accounts for the bytes of a port's memory and their owners. Uses nothing but `core`: its tests
//! run on the host.
//!
//! ```text
//!        reserve()           grant()             refund()
//!  (left) ─────────► coming ───────────► reserved ──────────► (left)
//!     ▲                │ withdraw()
//!     └────────────────┘
//! ```
//!
//! *Reserved* bytes belong to a session or queue pair until it ends. *Coming* bytes were requested,
//! and wait until others have returned borrowed ones. Both together never exceed the limit, nor the
//! goal while the limit is being lowered.
//!
//! # The share of a host
//!
//! A host that requests more bytes may not exceed half of the limit ([`HOST_DIVISOR`]) with its
//! reserved and coming bytes: one host cannot exclude the others, however many sessions and queue
//! pairs it requests. Its sessions with a proof and those without one have a share each
//! ([`Claimant`]): a peer that begins sessions in its name does not use up the share of those that
//! are certainly the host's. A host with sessions of both kinds may have both shares. The share has
//! no setting of its own. To give more to a host that is alone, the administrator raises the limit,
//! which itself takes no memory; a larger share would have to be lowered in time for the next host.
//!
//! A session that has ended is *stranded* while a drive does not finish its requests. Its bytes
//! stay in the account, since the drive may reach them. But the host's share is not charged for
//! them, up to a quarter of the limit ([`STRANDED_DIVISOR`]): the host can reconnect to volumes on
//! working drives without waiting for the hanging one. So one host, hanging drives or not, leaves
//! at least a quarter of the limit to the others.

use crate::claimant::Claimant;

/// The share of a host is the limit divided by this.
const HOST_DIVISOR: u64 = 2;

/// The most stranded bytes of a host that are not charged to its share are the limit divided by
/// this.
const STRANDED_DIVISOR: u64 = 4;

/// The reason why bytes were refused: for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// Bytes that were requested.
    pub(crate) needed: u64,
    /// Bytes that no one owns; or that are left of the host's share.
    pub(crate) left: u64,
    /// The limit; or the host's share of it.
    pub(crate) limit: u64,
    /// The bytes would exceed the share of the host, not the limit.
    pub(crate) of_host: bool,
}

/// One claimant's part of an [`Account`], while it has sessions.
pub(super) struct ClaimantPart {
    claimant: Claimant,
    /// The number of its sessions.
    sessions: usize,
    /// Reserved and coming bytes.
    owned: u64,
    /// The stranded bytes among `owned`.
    stranded: u64,
}

impl ClaimantPart {
    /// Creates the part of a claimant with its first session.
    pub(super) fn new(claimant: Claimant) -> Self {
        Self {
            claimant,
            sessions: 1,
            owned: 0,
            stranded: 0,
        }
    }

    /// Returns the part of `claimant`, if it has sessions.
    pub(super) fn find(parts: &mut [Self], claimant: Claimant) -> Option<&mut Self> {
        parts.iter_mut().find(|part| part.is_of(claimant))
    }

    /// Counts a further session.
    pub(super) fn add_session(&mut self) {
        self.sessions += 1;
    }

    /// Counts the end of a session. Returns `true` if no session is left.
    pub(super) fn remove_session(&mut self) -> bool {
        self.sessions -= 1;
        self.sessions == 0
    }

    /// Returns whether the part is that of `claimant`.
    pub(super) fn is_of(&self, claimant: Claimant) -> bool {
        self.claimant == claimant
    }

    /// Returns the bytes charged to the claimant's share if the limit is `limit`.
    fn charged(&self, limit: u64) -> u64 {
        self.owned - self.stranded.min(limit / STRANDED_DIVISOR)
    }
}

/// The account of a port's memory: see the module.
pub(super) struct Account {
    /// The most bytes that may be in use.
    limit: u64,
    /// The future limit: lower than `limit` while the limit is being lowered.
    goal: u64,
    reserved: u64,
    coming: u64,
    /// Whether the limit is being changed.
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

    /// Returns the most bytes that may be in use once the change of the limit has ended.
    pub(super) fn goal(&self) -> u64 {
        self.goal
    }

    /// Returns the reserved bytes of all owners.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the reserved and the coming bytes.
    pub(super) fn owned(&self) -> u64 {
        self.reserved + self.coming
    }

    fn shortage(&self, needed: u64) -> Shortage {
        Shortage {
            needed,
            left: self.goal.saturating_sub(self.owned()),
            limit: self.goal,
            of_host: false,
        }
    }

    /// Requests `bytes` bytes for the claimant of `part`, which must be granted or withdrawn later.
    pub(super) fn reserve(&mut self, part: &mut ClaimantPart, bytes: u64) -> Result<(), Shortage> {
        let owned = self.owned().saturating_add(bytes);
        if owned > self.goal {
            return Err(self.shortage(bytes));
        }
        let (share, charged) = (self.goal / HOST_DIVISOR, part.charged(self.goal));
        if charged.saturating_add(bytes) > share {
            return Err(Shortage {
                needed: bytes,
                left: share.saturating_sub(charged),
                limit: share,
                of_host: true,
            });
        }
        self.coming += bytes;
        part.owned += bytes;
        Ok(())
    }

    /// Records that `bytes` coming bytes are available, and reserves them.
    pub(super) fn grant(&mut self, bytes: u64) {
        self.coming -= bytes;
        self.reserved += bytes;
    }

    /// Records that `bytes` coming bytes of `part` do not become available.
    pub(super) fn withdraw(&mut self, part: &mut ClaimantPart, bytes: u64) -> Shortage {
        self.coming -= bytes;
        part.owned -= bytes;
        self.shortage(bytes)
    }

    /// Frees `bytes` bytes of `part` that are not stranded.
    pub(super) fn refund(&mut self, part: &mut ClaimantPart, bytes: u64) {
        self.reserved -= bytes;
        part.owned -= bytes;
    }

    /// Records that `bytes` reserved bytes of `part` are stranded, until [`Self::refund_stranded`].
    pub(super) fn strand(part: &mut ClaimantPart, bytes: u64) {
        part.stranded += bytes;
    }

    /// Frees `bytes` stranded bytes of `part`.
    pub(super) fn refund_stranded(&mut self, part: &mut ClaimantPart, bytes: u64) {
        part.stranded -= bytes;
        self.refund(part, bytes);
    }

    /// Returns the bytes that may still be shared if `held` bytes are, or `None` if these are too
    /// many.
    pub(super) fn left(&self, held: u64) -> Option<u64> {
        self.goal.checked_sub(self.owned())?.checked_sub(held)
    }

    /// Begins to change the limit to `bytes`. Returns the former limit, for [`Self::end_change`],
    /// or `None` if another caller is changing it, or more bytes are owned.
    pub(super) fn begin_change(&mut self, bytes: u64) -> Option<u64> {
        if self.changing || self.owned() > bytes {
            return None;
        }
        self.changing = true;
        self.goal = bytes;
        let before = self.limit;
        // A higher limit is valid at once; a lower one only when no more bytes are in use.
        self.limit = self.limit.max(bytes);
        Some(before)
    }

    /// Ends a change: the limit is `bytes` from here on.
    pub(super) fn end_change(&mut self, bytes: u64) {
        self.changing = false;
        self.goal = bytes;
        self.limit = bytes;
    }
}

/// The origin of a queue pair's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Whether the queue pair has one of the session's places.
    place: bool,
    /// Bytes beyond that place.
    pub(super) extra: u64,
}

/// The places of a session's queue pairs, which are in the account from the session's beginning. A
/// peer may ask for more with a later queue pair than with the first, and for an additional one
/// before an old one is closed: these bytes are extra.
pub(super) struct Places {
    free: u64,
    each: u64,
}

impl Places {
    /// Returns `count` places of `each` bytes.
    pub(super) fn new(count: u64, each: u64) -> Self {
        Self { free: count, each }
    }

    /// Takes a place for a queue pair that needs `bytes` bytes.
    pub(super) fn take(&mut self, bytes: u64) -> Part {
        let place = self.free != 0;
        self.free -= u64::from(place);
        Part {
            place,
            extra: bytes.saturating_sub(if place { self.each } else { 0 }),
        }
    }

    /// Frees the place of a queue pair, if it has one.
    pub(super) fn free_place(&mut self, part: Part) {
        self.free += u64::from(part.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcablk_core::proto::name::HostId;

    fn claimant(host: u8, is_proven: bool) -> Claimant {
        Claimant::new(HostId::from_wire([host; 16]).unwrap(), is_proven)
    }

    /// Returns an account with the limit `limit`, and the parts of two hosts.
    fn account(limit: u64) -> (Account, ClaimantPart, ClaimantPart) {
        (
            Account::new(limit),
            ClaimantPart::new(claimant(1, true)),
            ClaimantPart::new(claimant(2, true)),
        )
    }

    #[test]
    fn reservations_never_exceed_the_limit() {
        let (mut account, mut one, mut other) = account(100);
        assert_eq!(account.reserve(&mut one, 50), Ok(()));
        assert_eq!(account.reserve(&mut other, 10), Ok(()));
        let refused = Shortage {
            needed: 41,
            left: 40,
            limit: 100,
            of_host: false,
        };
        assert_eq!(
            account.reserve(&mut other, 41),
            Err(refused),
            "coming bytes count"
        );
        assert!(account.reserve(&mut other, u64::MAX).is_err());
        assert_eq!(account.reserve(&mut other, 40), Ok(()));
        account.grant(60);
        assert_eq!((account.reserved(), account.owned()), (60, 100));
        assert_eq!(account.left(0), Some(0));
        assert_eq!(account.left(1), None);
        account.withdraw(&mut other, 40);
        assert_eq!(account.left(39), Some(1));
        account.refund(&mut one, 50);
        account.refund(&mut other, 10);
        assert_eq!(account.owned(), 0);
        assert_eq!((one.owned, other.owned), (0, 0));
    }

    #[test]
    fn the_limit_cannot_fall_below_the_owned_bytes() {
        let (mut account, mut one, mut other) = account(100);
        assert_eq!(account.reserve(&mut one, 30), Ok(()));
        account.grant(30);
        assert_eq!(account.reserve(&mut other, 20), Ok(()));
        assert_eq!(account.begin_change(49), None);
        assert_eq!(
            account.begin_change(50),
            Some(100),
            "though one has more than its share of that"
        );
        assert_eq!((account.limit(), account.goal()), (100, 50));
        assert_eq!(account.begin_change(200), None, "one at a time");
        assert!(
            account.reserve(&mut other, 1).is_err(),
            "nothing beyond the future limit"
        );
        account.end_change(50);
        assert_eq!(account.limit(), 50);
        assert_eq!(account.begin_change(200), Some(50));
        assert_eq!(account.limit(), 200, "more may be used at once");
    }

    #[test]
    fn one_host_does_not_lock_another_out() {
        let (mut account, mut one, mut other) = account(100);
        assert_eq!(account.reserve(&mut one, 40), Ok(()));
        account.grant(40);
        let refused = Shortage {
            needed: 11,
            left: 10,
            limit: 50,
            of_host: true,
        };
        assert_eq!(account.reserve(&mut one, 11), Err(refused));
        assert_eq!(
            account
                .reserve(&mut one, u64::MAX / 2)
                .map_err(|s| s.of_host),
            Err(false)
        );
        assert_eq!(account.reserve(&mut one, 10), Ok(()));
        assert!(account.reserve(&mut one, 1).is_err(), "coming bytes count");
        assert_eq!(account.reserve(&mut other, 50), Ok(()));
        // Bytes that are withdrawn or freed can be reserved again.
        account.withdraw(&mut one, 10);
        assert_eq!(account.reserve(&mut one, 10), Ok(()));
        account.grant(10);
        account.refund(&mut one, 40);
        assert_eq!(account.reserve(&mut one, 40), Ok(()));
    }

    #[test]
    fn sessions_without_a_proof_do_not_use_up_the_share_of_the_host_that_they_name() {
        let mut account = Account::new(100);
        let (stated, proven) = (claimant(1, false), claimant(1, true));
        let mut parts = [ClaimantPart::new(stated), ClaimantPart::new(proven)];
        assert!(ClaimantPart::find(&mut parts, claimant(2, true)).is_none());
        let part = ClaimantPart::find(&mut parts, stated).unwrap();
        assert_eq!(account.reserve(part, 50), Ok(()));
        account.grant(50);
        assert!(account.reserve(part, 1).is_err());
        // A drive that hangs lets it have half as much again.
        Account::strand(part, 50);
        assert_eq!(account.reserve(part, 25), Ok(()));
        assert!(account.reserve(part, 1).is_err());
        let part = ClaimantPart::find(&mut parts, proven).unwrap();
        assert_eq!(account.reserve(part, 25), Ok(()), "a quarter is left");
        account.withdraw(part, 25);
        let part = ClaimantPart::find(&mut parts, stated).unwrap();
        account.withdraw(part, 25);
        let part = ClaimantPart::find(&mut parts, proven).unwrap();
        assert_eq!(account.reserve(part, 50), Ok(()), "its own share");
    }

    #[test]
    fn memory_held_by_a_hung_drive_is_not_charged_to_the_share() {
        let (mut account, mut one, mut other) = account(100);
        assert_eq!(account.reserve(&mut one, 20), Ok(()));
        account.grant(20);
        Account::strand(&mut one, 20);
        assert_eq!(account.owned(), 20, "stranded bytes count");
        assert_eq!(account.reserve(&mut one, 50), Ok(()));
        account.grant(50);
        assert!(account.reserve(&mut one, 1).is_err());
        // Repeatedly hanging drives do not bypass the share.
        Account::strand(&mut one, 50);
        let refused = Shortage {
            needed: 6,
            left: 5,
            limit: 50,
            of_host: true,
        };
        assert_eq!(account.reserve(&mut one, 6), Err(refused));
        assert_eq!(account.reserve(&mut one, 5), Ok(()));
        assert_eq!(account.reserve(&mut other, 25), Ok(()), "a quarter is left");
        account.withdraw(&mut one, 5);
        account.refund_stranded(&mut one, 50);
        account.refund_stranded(&mut one, 20);
        assert_eq!((one.owned, one.stranded), (0, 0));
    }

    #[test]
    fn a_host_that_strands_all_it_can_leaves_a_quarter() {
        for limit in [1, 3, 4, 100, 4 << 30] {
            let (mut account, mut one, _) = account(limit);
            let step = (limit / 64).max(1);
            while account.reserve(&mut one, step).is_ok() {
                account.grant(step);
                Account::strand(&mut one, step);
            }
            let most = limit / HOST_DIVISOR + limit / STRANDED_DIVISOR;
            assert!(account.owned() <= most, "{limit}");
        }
    }

    #[test]
    fn a_session_has_as_many_places_as_it_paid_for() {
        let mut places = Places::new(2, 10);
        let first = places.take(10);
        assert_eq!(first.extra, 0);
        assert_eq!(places.take(15).extra, 5, "larger than announced");
        let third = places.take(10);
        assert_eq!(third.extra, 10, "one more than announced");
        places.free_place(third);
        assert_eq!(places.take(10).extra, 10, "it had no place");
        places.free_place(first);
        assert_eq!(places.take(7).extra, 0);
    }
}
