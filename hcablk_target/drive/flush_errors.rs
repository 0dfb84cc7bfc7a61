// SPDX-License-Identifier: GPL-2.0

//! Errors of flushes that an initiator has yet to be told. Uses nothing but the wire
//! format: its tests run on the host.
//!
//! A drive or the page cache tells of a loss once. The answer that carries the error may never
//! leave, because its queue pair is replaced; the flush is then issued again, and would succeed. So
//! an error is kept for the disk until an answer that carried it has arrived, and meanwhile every
//! flush ends with it. On InfiniBand and RoCE an answer has arrived when its send has completed; on
//! iWARP that says only that it was sent. There the session's own flushes succeed from then on, and
//! one of another session, which may be what is left of this one's, ends with it once more: to be
//! told twice does no harm.
//!
//! ```text
//!   a flush fails, or a write
//!   with FUA whose flush may have       an answer with it has arrived
//!  None ────────────────► Owed(status) ─────────────────────────────────► None
//!                            │ one was sent by a session                    ▲
//!                            ▼                                              │
//!                         Sent(status, session)                             │ an answer with it was sent
//!                            │ a flush of another session                   │
//!                            ▼                                              │
//!                         Repeated(status) ─────────────────────────────────┘
//! ```

use crate::proto::message::Status;

/// A session that tells errors, among those of a disk.
pub(crate) type Teller = u32;

#[derive(Clone, Copy)]
enum State {
    None,
    Owed(Status),
    Sent(Status, Teller),
    Repeated(Status),
}

/// See the module.
pub(crate) struct FlushErrors {
    state: State,
    /// How many there were, never 0 once there was one.
    number: u32,
}

impl FlushErrors {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::None,
            number: 0,
        }
    }

    /// Notes that what was acknowledged may be lost, by `error`: the next flush tells of it.
    pub(crate) fn owe(&mut self, error: Status) {
        self.state = State::Owed(error);
        self.number = self.number.wrapping_add(1).max(1);
    }

    /// Returns how a flush of session `by` ends for which the drive's part ended with `own`; and
    /// which error that is, for [`Self::sent`], or 0.
    pub(crate) fn end(&mut self, own: Status, by: Teller) -> (Status, u32) {
        if own != Status::Ok {
            self.owe(own);
        }
        match self.state {
            State::Sent(status, teller) if teller != by => {
                self.state = State::Repeated(status);
                (status, self.number)
            }
            State::Owed(status) | State::Repeated(status) => (status, self.number),
            State::None | State::Sent(..) => (Status::Ok, 0),
        }
    }

    /// Notes that an answer with error `number` was sent by session `by`, and whether that says
    /// that it has `arrived`. An error that came after it is still to be reported.
    pub(crate) fn sent(&mut self, number: u32, by: Teller, arrived: bool) {
        if number != self.number {
            return;
        }
        self.state = match self.state {
            State::Owed(status) if !arrived => State::Sent(status, by),
            State::Sent(status, teller) if !arrived => State::Sent(status, teller),
            _ => State::None,
        };
    }

    /// Returns whether there is none that is still to be told, to anybody.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.state, State::None)
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
    fn an_error_is_told_until_an_answer_with_it_was_sent() {
        let mut errors = FlushErrors::new();
        let (status, first) = errors.end(Status::IoError, 1);
        assert_eq!(status, Status::IoError);
        // That answer never left: these are told, too.
        for _ in 0..3 {
            assert_eq!(errors.end(Status::Ok, 1), (Status::IoError, first));
        }
        assert!(!errors.is_empty());
        errors.sent(first, 1, true);
        assert_eq!(errors.end(Status::Ok, 1), (Status::Ok, 0));
        assert!(errors.is_empty());
    }

    #[test]
    fn a_later_error_is_not_told_by_an_earlier_answer() {
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
            state: State::None,
            number: u32::MAX,
        };
        let (_, number) = errors.end(Status::Medium, 1);
        assert_ne!(number, 0);
        errors.sent(number, 1, true);
        assert!(errors.is_empty());
    }

    #[test]
    fn what_may_not_have_arrived_is_told_to_one_more_session() {
        let mut errors = FlushErrors::new();
        let (_, number) = errors.end(Status::IoError, 1);
        errors.sent(number, 1, false);
        assert_eq!(
            errors.end(Status::Ok, 1),
            (Status::Ok, 0),
            "not to the same"
        );
        assert!(!errors.is_empty());
        // The first may have been lost with session 1, and this answer with session 2.
        assert_eq!(errors.end(Status::Ok, 2), (Status::IoError, number));
        assert_eq!(errors.end(Status::Ok, 3), (Status::IoError, number));
        errors.sent(number, 3, false);
        assert!(errors.is_empty());
        for session in 1..=4 {
            assert_eq!(errors.end(Status::Ok, session), (Status::Ok, 0));
        }
    }

    #[test]
    fn what_is_owed_is_told_by_the_next_flush() {
        let mut errors = FlushErrors::new();
        errors.owe(Status::IoError);
        assert!(!errors.is_empty());
        let (status, number) = errors.end(Status::Ok, 1);
        assert_eq!(status, Status::IoError);
        errors.sent(number, 1, true);
        assert_eq!(errors.end(Status::Ok, 1), (Status::Ok, 0));
    }

    #[test]
    fn a_second_answer_with_the_same_error_changes_nothing() {
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
