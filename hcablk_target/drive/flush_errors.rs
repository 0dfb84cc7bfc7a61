// SPDX-License-Identifier: GPL-2.0

//! Stores errors of flushes that an initiator has not been notified of. Uses nothing but the wire
//! format: its tests run on the host.
//!
//! A drive or the page cache reports a loss once. The response with the error may never be sent,
//! because its queue pair is replaced; the flush is then issued again, and would succeed. So an
//! error is stored for the disk until a response with it has arrived, and until then every flush
//! ends with it. On InfiniBand and RoCE a response has arrived when its SEND has completed; on
//! iWARP completion only means that it was sent. There the session's own flushes succeed from then
//! on, and the next flush of another session, which may be the successor of this one, ends with the
//! error once more: reporting an error twice does no harm.
//!
//! ```text
//!   a flush fails, or a write
//!   with FUA whose flush may have       a response with it has arrived
//!  None ────────────────► Owed(status) ─────────────────────────────────► None
//!                            │ one was sent by a session                    ▲
//!                            ▼                                              │
//!                         Sent(status, session)                             │ a response with it was sent
//!                            │ a flush of another session                   │
//!                            ▼                                              │
//!                         Repeated(status) ─────────────────────────────────┘
//! ```

use crate::proto::message::Status;

/// The number of a session among those of a disk.
pub(crate) type SessionNumber = u32;

#[derive(Clone, Copy)]
enum FlushErrorState {
    None,
    Owed(Status),
    Sent(Status, SessionNumber),
    Repeated(Status),
}

/// The flush errors of a disk: see the module.
pub(crate) struct FlushErrors {
    state: FlushErrorState,
    /// The number of errors so far, never 0 once there was one.
    number: u32,
}

impl FlushErrors {
    pub(crate) const fn new() -> Self {
        Self {
            state: FlushErrorState::None,
            number: 0,
        }
    }

    /// Records that acknowledged writes may be lost, because of `error`: the next flush reports it.
    pub(crate) fn owe(&mut self, error: Status) {
        self.state = FlushErrorState::Owed(error);
        self.number = self.number.wrapping_add(1).max(1);
    }

    /// Returns the status of a flush of session `by` for which the drive returned `own`, and the
    /// number of the reported error, for [`Self::sent`], or 0.
    pub(crate) fn end(&mut self, own: Status, by: SessionNumber) -> (Status, u32) {
        if own != Status::Ok {
            self.owe(own);
        }
        match self.state {
            FlushErrorState::Sent(status, session_number) if session_number != by => {
                self.state = FlushErrorState::Repeated(status);
                (status, self.number)
            }
            FlushErrorState::Owed(status) | FlushErrorState::Repeated(status) => {
                (status, self.number)
            }
            FlushErrorState::None | FlushErrorState::Sent(..) => (Status::Ok, 0),
        }
    }

    /// Records that a response with error `number` was sent by session `by`, and whether it is
    /// certain that it has `arrived`. Does nothing if a later error was recorded, which must
    /// still be reported.
    pub(crate) fn sent(&mut self, number: u32, by: SessionNumber, arrived: bool) {
        if number != self.number {
            return;
        }
        self.state = match self.state {
            FlushErrorState::Owed(status) if !arrived => FlushErrorState::Sent(status, by),
            FlushErrorState::Sent(status, session_number) if !arrived => {
                FlushErrorState::Sent(status, session_number)
            }
            _ => FlushErrorState::None,
        };
    }

    /// Returns whether every error has been reported.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.state, FlushErrorState::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_error_flushes_succeed() {
        let mut errors = FlushErrors::new();
        assert_eq!(errors.end(Status::Ok, 1), (Status::Ok, 0));
        errors.sent(0, 1, true);
        assert!(errors.is_empty());
    }

    #[test]
    fn an_error_is_reported_until_a_response_with_it_was_sent() {
        let mut errors = FlushErrors::new();
        let (status, first) = errors.end(Status::IoError, 1);
        assert_eq!(status, Status::IoError);
        // That response was never sent: these report the error, too.
        for _ in 0..3 {
            assert_eq!(errors.end(Status::Ok, 1), (Status::IoError, first));
        }
        assert!(!errors.is_empty());
        errors.sent(first, 1, true);
        assert_eq!(errors.end(Status::Ok, 1), (Status::Ok, 0));
        assert!(errors.is_empty());
    }

    #[test]
    fn an_earlier_response_does_not_report_a_later_error() {
        let mut errors = FlushErrors::new();
        let (_, first) = errors.end(Status::IoError, 1);
        let (status, second) = errors.end(Status::NoSpace, 1);
        assert_eq!(status, Status::NoSpace);
        assert_ne!(first, second);
        errors.sent(first, 1, true);
        assert_eq!(errors.end(Status::Ok, 1), (Status::NoSpace, second));
        errors.sent(second, 1, true);
        errors.sent(second, 1, true);
        assert!(errors.is_empty());
    }

    #[test]
    fn numbers_never_are_0() {
        let mut errors = FlushErrors {
            state: FlushErrorState::None,
            number: u32::MAX,
        };
        let (_, number) = errors.end(Status::Medium, 1);
        assert_ne!(number, 0);
        errors.sent(number, 1, true);
        assert!(errors.is_empty());
    }

    #[test]
    fn an_error_whose_response_may_be_lost_is_reported_to_one_more_session() {
        let mut errors = FlushErrors::new();
        let (_, number) = errors.end(Status::IoError, 1);
        errors.sent(number, 1, false);
        assert_eq!(
            errors.end(Status::Ok, 1),
            (Status::Ok, 0),
            "not to the same"
        );
        assert!(!errors.is_empty());
        // The first response may have been lost with session 1, and this one with session 2.
        assert_eq!(errors.end(Status::Ok, 2), (Status::IoError, number));
        assert_eq!(errors.end(Status::Ok, 3), (Status::IoError, number));
        errors.sent(number, 3, false);
        assert!(errors.is_empty());
        for session in 1..=4 {
            assert_eq!(errors.end(Status::Ok, session), (Status::Ok, 0));
        }
    }

    #[test]
    fn the_next_flush_reports_an_owed_error() {
        let mut errors = FlushErrors::new();
        errors.owe(Status::IoError);
        assert!(!errors.is_empty());
        let (status, number) = errors.end(Status::Ok, 1);
        assert_eq!(status, Status::IoError);
        errors.sent(number, 1, true);
        assert_eq!(errors.end(Status::Ok, 1), (Status::Ok, 0));
    }

    #[test]
    fn a_second_response_with_the_same_error_changes_nothing() {
        let mut errors = FlushErrors::new();
        let (_, number) = errors.end(Status::IoError, 1);
        assert_eq!(errors.end(Status::Ok, 1), (Status::IoError, number));
        errors.sent(number, 1, false);
        errors.sent(number, 1, false);
        assert_eq!(errors.end(Status::Ok, 1), (Status::Ok, 0));
        assert_eq!(errors.end(Status::Ok, 2), (Status::IoError, number));
    }

    #[test]
    fn a_later_error_takes_the_place_of_one_that_was_sent() {
        let mut errors = FlushErrors::new();
        let (_, first) = errors.end(Status::IoError, 1);
        errors.sent(first, 1, false);
        let (status, second) = errors.end(Status::NoSpace, 1);
        assert_eq!(status, Status::NoSpace);
        errors.sent(first, 1, false);
        assert_eq!(errors.end(Status::Ok, 1), (Status::NoSpace, second));
    }
}
