// SPDX-License-Identifier: GPL-2.0

//! The session that the paths of an association share, and which of them connects it. A pure state
//! machine. Uses nothing but `core`: its tests run on the host.
//!
//! ```text
//!        a path needs a session           its admin queue pair is granted
//!  Idle ────────────────────────► Connecting ───────────────────────────► Granted
//!   ▲                                 │ failed, or interrupted               │ lost
//!   └─────────────────────────────────┴──────────────────────────────────────┘
//!
//!               a volume is attached             connected
//!  Granted: Missing ───────────────► Connecting ───────────► Up
//! ```
//!
//! One path connects, the others wait for it. A failure is that of all of them: until the time of
//! the next attempt, a path that needs a session gets the failure again. An interruption, because
//! the path that connects is disabled, says nothing about the target: the next path connects at
//! once.
//!
//! The second line is that of the session's other queue pairs, which the target accepts when a
//! volume is attached: the first path whose volume is attached connects them.

/// A time.
pub(crate) trait Moment: Copy {
    /// Returns whether it has passed.
    fn has_passed(self) -> bool;
}

/// The next step of a path that needs a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<S, F> {
    /// Use this session.
    Use(S),
    /// Connect a session, and report the result: [`Shared::granted`], [`Shared::failed`] or
    /// [`Shared::interrupted`].
    Connect,
    /// Another path connects. Ask again when that has ended.
    Wait,
    /// The last attempt failed, and the next one is not due yet.
    Failed(F),
}

/// The next step of a path whose volume is attached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextPairs {
    /// The session has its queue pairs.
    Up,
    /// Connect them, and report the result: [`Shared::pairs_connected`], or the end of the session.
    Connect,
    /// Another path connects them. Ask again when that has ended.
    Wait,
    /// The session was lost.
    Lost,
}

/// The queue pairs of a session, except the admin queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pairs {
    Missing,
    Connecting,
    Up,
}

enum State<S> {
    Idle,
    Connecting,
    Granted(S, Pairs),
}

/// The shared session `S` of an association; see the module. `F` is why an attempt failed, `M` a
/// time.
pub(crate) struct Shared<S, F, M> {
    state: State<S>,
    /// The last attempt has failed, and when the next one is due.
    last: Option<(F, M)>,
}

impl<S: Clone + PartialEq, F: Copy, M: Moment> Shared<S, F, M> {
    /// Creates the state of an association that has no session yet.
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Idle,
            last: None,
        }
    }

    /// Returns the next step of a path that needs a session. `is_usable` returns whether a session
    /// has not ended.
    pub(crate) fn next(&mut self, is_usable: impl Fn(&S) -> bool) -> Next<S, F> {
        match &self.state {
            State::Granted(session, _) if is_usable(session) => Next::Use(session.clone()),
            State::Connecting => Next::Wait,
            State::Idle | State::Granted(..) => match self.last {
                Some((failure, due)) if !due.has_passed() => Next::Failed(failure),
                _ => {
                    self.state = State::Connecting;
                    Next::Connect
                }
            },
        }
    }

    /// Records that the path that connects has a session, whose admin queue pair is granted.
    pub(crate) fn granted(&mut self, session: S) {
        self.state = State::Granted(session, Pairs::Missing);
        self.last = None;
    }

    /// Records that the path that connects has failed; the next attempt is due at `due`.
    pub(crate) fn failed(&mut self, failure: F, due: M) {
        self.state = State::Idle;
        self.last = Some((failure, due));
    }

    /// Records that the path that connects was interrupted.
    pub(crate) fn interrupted(&mut self) {
        self.state = State::Idle;
    }

    /// Returns the next step of a path whose volume is attached to `session`.
    pub(crate) fn next_pairs(&mut self, session: &S) -> NextPairs {
        match &mut self.state {
            State::Granted(own, pairs) if own == session => match *pairs {
                Pairs::Missing => {
                    *pairs = Pairs::Connecting;
                    NextPairs::Connect
                }
                Pairs::Connecting => NextPairs::Wait,
                Pairs::Up => NextPairs::Up,
            },
            _ => NextPairs::Lost,
        }
    }

    /// Records that the queue pairs of `session` are connected.
    pub(crate) fn pairs_connected(&mut self, session: &S) {
        if let State::Granted(own, pairs) = &mut self.state {
            if own == session {
                *pairs = Pairs::Up;
            }
        }
    }

    /// Records that `session` has ended; returns it if it was the association's.
    pub(crate) fn lost(&mut self, session: &S) -> Option<S> {
        let is_own = matches!(&self.state, State::Granted(own, _) if own == session);
        if !is_own {
            return None;
        }
        match core::mem::replace(&mut self.state, State::Idle) {
            State::Granted(own, _) => Some(own),
            State::Idle | State::Connecting => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    std::thread_local! {
        static NOW: Cell<u32> = const { Cell::new(0) };
    }

    #[derive(Clone, Copy)]
    struct At(u32);

    impl Moment for At {
        fn has_passed(self) -> bool {
            NOW.get() >= self.0
        }
    }

    type Tested = Shared<u32, &'static str, At>;

    fn usable(_: &u32) -> bool {
        true
    }

    #[test]
    fn one_path_connects_and_the_others_use_its_session() {
        let mut shared = Tested::new();
        assert_eq!(shared.next(usable), Next::Connect);
        assert_eq!(shared.next(usable), Next::Wait);
        shared.granted(1);
        assert_eq!(shared.next(usable), Next::Use(1));
        assert_eq!(shared.next(usable), Next::Use(1));
    }

    #[test]
    fn a_failure_is_that_of_all_until_the_next_attempt_is_due() {
        NOW.set(0);
        let mut shared = Tested::new();
        assert_eq!(shared.next(usable), Next::Connect);
        shared.failed("refused", At(10));
        assert_eq!(shared.next(usable), Next::Failed("refused"));
        NOW.set(9);
        assert_eq!(shared.next(usable), Next::Failed("refused"));
        NOW.set(10);
        assert_eq!(shared.next(usable), Next::Connect);
        assert_eq!(shared.next(usable), Next::Wait);
    }

    #[test]
    fn after_an_interruption_the_next_path_connects_at_once() {
        let mut shared = Tested::new();
        assert_eq!(shared.next(usable), Next::Connect);
        shared.interrupted();
        assert_eq!(shared.next(usable), Next::Connect);
    }

    #[test]
    fn a_session_that_has_ended_is_not_used() {
        let mut shared = Tested::new();
        assert_eq!(shared.next(usable), Next::Connect);
        shared.granted(1);
        assert_eq!(shared.next(|_| false), Next::Connect);
        shared.granted(2);
        assert_eq!(
            shared.lost(&1),
            None,
            "it is not the association's any more"
        );
        assert_eq!(shared.next(usable), Next::Use(2));
        assert_eq!(shared.lost(&2), Some(2));
        assert_eq!(shared.lost(&2), None);
        assert_eq!(shared.next(usable), Next::Connect);
    }

    #[test]
    fn the_first_attached_volume_brings_the_queue_pairs() {
        let mut shared = Tested::new();
        assert_eq!(shared.next_pairs(&1), NextPairs::Lost);
        assert_eq!(shared.next(usable), Next::Connect);
        shared.granted(1);
        assert_eq!(shared.next_pairs(&1), NextPairs::Connect);
        assert_eq!(shared.next_pairs(&1), NextPairs::Wait);
        shared.pairs_connected(&2);
        assert_eq!(shared.next_pairs(&1), NextPairs::Wait, "of another session");
        shared.pairs_connected(&1);
        assert_eq!(shared.next_pairs(&1), NextPairs::Up);
        shared.lost(&1);
        assert_eq!(shared.next_pairs(&1), NextPairs::Lost);
    }
}
