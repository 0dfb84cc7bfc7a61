// SPDX-License-Identifier: GPL-2.0

//! The states of a session, the same on both sides. Uses nothing but `core`: its
//! tests run on the host.
//!
//! ```text
//!  Connecting ──go_live()──► Live ──end()──► Ending ──finish()──► Ended
//!      └────────────────end()──────────────────┘
//! ```
//!
//! A session ends once, and for one reason: the first.

/// Milliseconds between keep-alives of a queue pair.
pub const KEEP_ALIVE_PERIOD_MS: u32 = 5_000;

/// The state of a session; an `R` is the reason of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState<R> {
    /// Its queue pairs are being connected.
    Connecting,
    /// Requests may come.
    Live,
    /// It is being taken down.
    Ending(R),
    /// Nothing is left of it.
    Ended(R),
}

impl<R: Copy> SessionState<R> {
    /// Returns whether requests may come.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live)
    }

    /// Returns why the session ends or has ended; `None` if it is connecting or live.
    pub fn reason(&self) -> Option<R> {
        match *self {
            Self::Connecting | Self::Live => None,
            Self::Ending(reason) | Self::Ended(reason) => Some(reason),
        }
    }

    /// Makes a connecting session live. Fails with the reason if the session ends or has ended.
    pub fn go_live(&mut self) -> Result<(), R> {
        match self.reason() {
            Some(reason) => Err(reason),
            None => {
                *self = Self::Live;
                Ok(())
            }
        }
    }

    /// Begins the session's end because of `reason`. Returns `false` if the end has begun before.
    pub fn end(&mut self, reason: R) -> bool {
        let begins = self.reason().is_none();
        if begins {
            *self = Self::Ending(reason);
        }
        begins
    }

    /// Notes that the teardown of an ending session is complete.
    pub fn finish(&mut self) {
        if let Self::Ending(reason) = *self {
            *self = Self::Ended(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_once_for_the_first_reason() {
        let mut state = SessionState::Connecting;
        assert!(!state.is_live());
        assert_eq!(state.go_live(), Ok(()));
        assert!(state.is_live());
        assert_eq!(state.reason(), None);
        assert!(state.end(1));
        assert!(!state.end(2));
        assert_eq!(state, SessionState::Ending(1));
        assert!(!state.is_live());
        state.finish();
        assert_eq!(state, SessionState::Ended(1));
        assert!(!state.end(3));
        assert_eq!(state.reason(), Some(1));
    }

    #[test]
    fn a_session_that_ends_does_not_become_live() {
        let mut state = SessionState::Connecting;
        assert!(state.end(7));
        assert_eq!(state.go_live(), Err(7));
        state.finish();
        assert_eq!(state.go_live(), Err(7));
        assert_eq!(state, SessionState::Ended(7));
    }

    #[test]
    fn only_an_ending_session_can_end_completely() {
        let mut state = SessionState::<u8>::Live;
        state.finish();
        assert!(state.is_live());
    }
}
