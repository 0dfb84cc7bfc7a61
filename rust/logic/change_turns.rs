// SPDX-License-Identifier: GPL-2.0

//! Decides which host's change of a drive's reservations is made now, which host is next, and which
//! changes are void. Uses nothing but `core`: its tests run on the host.
//!
//! One change is made at a time, and no thread waits for it: a host that asks during a change is
//! asked to retry, and has its turn after the hosts that were asked before. So a host that asks
//! without a pause cannot keep another, which wants to preempt it, from its turn. A host that does
//! not retry within [`TURN_MS`] loses the turn.
//!
//! ```text
//!             begin(): nobody is before it              end()
//!  asked ─────────────────────────────────────► making ───────► made
//!    ├── begin(): another one is made, or comes first ──► waits for its turn, asked again
//!    └── give_up() meanwhile, and begin() ──► not made; asked again, if there is still somebody to ask
//! ```
//!
//! The host that requested a change may be evicted before its turn. Once the eviction is
//! acknowledged the change must not be made: [`ChangeTurns::give_up`] voids all earlier requests,
//! so that they must be repeated, and [`ChangeTurns::is_making`] returns whether a change of a host
//! had begun before.

use crate::proto::name::HostId;

/// Maximum number of hosts that wait for their turns; further hosts can ask again, but have no
/// turn.
pub const WAITING_MAX: usize = 32;

/// How long a host keeps its turn after it has asked, in milliseconds: far longer than initiators
/// wait between two attempts.
pub const TURN_MS: u64 = 1_000;

/// The time of a request for a change, relative to [`ChangeTurns::give_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The change is not made now; the host may ask for it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskAgain;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    host: HostId,
    until_ms: u64,
}

/// The turns of the hosts that change one drive's reservations; see the module.
#[derive(Debug)]
pub struct ChangeTurns {
    making: Option<HostId>,
    /// The hosts that must retry, in the order of their turns; the free places are at the end.
    waiting: [Option<Waiting>; WAITING_MAX],
    /// How often [`Self::give_up`] was called.
    given_up: u64,
}

impl Default for ChangeTurns {
    fn default() -> Self {
        Self::new()
    }
}

impl ChangeTurns {
    /// Creates the turns of a drive whose reservations no host wants to change.
    pub const fn new() -> Self {
        Self {
            making: None,
            waiting: [None; WAITING_MAX],
            given_up: 0,
        }
    }

    /// Returns a ticket for a change that is requested now.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.given_up)
    }

    /// Gives up all changes that were asked for and have not begun.
    pub fn give_up(&mut self) {
        self.given_up += 1;
    }

    /// Returns whether a change of `host` is being made.
    pub fn is_making(&self, host: HostId) -> bool {
        self.making == Some(host)
    }

    /// Starts the change that `host` requested with `ticket`, until [`Self::end`]. Fails if it is
    /// not the host's turn, or the change was given up.
    pub fn begin(&mut self, host: HostId, ticket: Ticket, now_ms: u64) -> Result<(), AskAgain> {
        if ticket != self.ticket() {
            return Err(AskAgain);
        }
        self.keep(|waiting| waiting.host == host || now_ms < waiting.until_ms);
        let first = self.waiting.first().copied().flatten();
        if self.making.is_some() || first.is_some_and(|first| first.host != host) {
            self.wait(host, now_ms + TURN_MS);
            return Err(AskAgain);
        }
        self.keep(|waiting| waiting.host != host);
        self.making = Some(host);
        Ok(())
    }

    /// Ends what [`Self::begin`] has begun.
    pub fn end(&mut self) {
        self.making = None;
    }

    /// Keeps the turns for which `which` returns `true`.
    fn keep(&mut self, which: impl Fn(&Waiting) -> bool) {
        let mut kept = [None; WAITING_MAX];
        let those = self.waiting.iter().flatten().filter(|one| which(one));
        for (place, waiting) in kept.iter_mut().zip(those) {
            *place = Some(*waiting);
        }
        self.waiting = kept;
    }

    /// Keeps the turn of `host`, or gives it one if there is room.
    fn wait(&mut self, host: HostId, until_ms: u64) {
        let own = |place: &&mut Option<Waiting>| place.is_none_or(|waiting| waiting.host == host);
        if let Some(place) = self.waiting.iter_mut().find(own) {
            *place = Some(Waiting { host, until_ms });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> HostId {
        HostId::from_wire([number + 1; 16]).unwrap()
    }

    fn ask(turns: &mut ChangeTurns, number: u8, now_ms: u64) -> Result<(), AskAgain> {
        let ticket = turns.ticket();
        turns.begin(host(number), ticket, now_ms)
    }

    #[test]
    fn one_change_is_made_at_a_time() {
        let mut turns = ChangeTurns::new();
        assert_eq!(ask(&mut turns, 1, 0), Ok(()));
        assert!(turns.is_making(host(1)));
        assert!(!turns.is_making(host(2)));
        assert_eq!(ask(&mut turns, 1, 0), Err(AskAgain));
        assert_eq!(ask(&mut turns, 2, 0), Err(AskAgain));
        turns.end();
        assert!(!turns.is_making(host(1)));
    }

    #[test]
    fn a_host_that_asks_without_pause_delays_no_other_host() {
        let mut turns = ChangeTurns::new();
        assert_eq!(ask(&mut turns, 1, 0), Ok(()));
        assert_eq!(ask(&mut turns, 2, 10), Err(AskAgain));
        turns.end();
        // Two other hosts that ask alternately do not delay host 2 either.
        for now in 11..60 {
            assert_eq!(ask(&mut turns, 1, now), Err(AskAgain));
            assert_eq!(ask(&mut turns, 3, now), Err(AskAgain));
        }
        assert_eq!(ask(&mut turns, 2, 60), Ok(()));
        turns.end();
        // Then the other hosts, in the order in which they asked.
        assert_eq!(ask(&mut turns, 2, 61), Err(AskAgain));
        assert_eq!(ask(&mut turns, 3, 61), Err(AskAgain));
        assert_eq!(ask(&mut turns, 1, 61), Ok(()));
        turns.end();
        assert_eq!(ask(&mut turns, 3, 62), Ok(()));
    }

    #[test]
    fn a_host_that_does_not_ask_again_loses_its_turn() {
        let mut turns = ChangeTurns::new();
        assert_eq!(ask(&mut turns, 1, 0), Ok(()));
        assert_eq!(ask(&mut turns, 2, 5), Err(AskAgain));
        turns.end();
        assert_eq!(ask(&mut turns, 1, 4 + TURN_MS), Err(AskAgain));
        assert_eq!(ask(&mut turns, 1, 5 + TURN_MS), Ok(()));
    }

    #[test]
    fn a_host_without_a_place_in_the_queue_gets_a_turn_later() {
        let mut turns = ChangeTurns::new();
        assert_eq!(ask(&mut turns, 0, 0), Ok(()));
        for number in 1..=WAITING_MAX as u8 + 1 {
            assert_eq!(ask(&mut turns, number, 0), Err(AskAgain));
        }
        turns.end();
        let last = WAITING_MAX as u8 + 1;
        for number in 1..=WAITING_MAX as u8 {
            assert_eq!(ask(&mut turns, last, 1), Err(AskAgain));
            assert_eq!(ask(&mut turns, number, 1), Ok(()));
            turns.end();
        }
        assert_eq!(ask(&mut turns, last, 1), Ok(()));
    }

    #[test]
    fn a_given_up_change_is_not_made() {
        let mut turns = ChangeTurns::new();
        let before = turns.ticket();
        turns.give_up();
        assert_eq!(turns.begin(host(1), before, 0), Err(AskAgain));
        // The void request does not reserve a turn either.
        assert_eq!(ask(&mut turns, 2, 0), Ok(()));
        // A change that has begun continues.
        turns.give_up();
        assert!(turns.is_making(host(2)));
    }
}
