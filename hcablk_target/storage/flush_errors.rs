// SPDX-License-Identifier: GPL-2.0

//! Errors of flushes that an initiator has yet to be told. Uses nothing but the wire
//! format: its tests run on the host.
//!
//! A drive or the page cache tells of a loss once. The answer that carries the error may
//! never leave, because its queue pair is replaced; the flush is then issued again, and
//! would succeed. So an error is kept for the session until an answer that carried it was
//! sent, and meanwhile every flush ends with it:
//!
//! ```text
//!         a flush fails                  an answer with it was sent
//!  None ────────────────► Some(status) ──────────────────────────────► None
//! ```

use crate::proto::message::Status;

/// See the module.
pub(crate) struct FlushErrors {
    error: Option<Status>,
    /// How many there were, never 0 once there was one.
    number: u32,
}

impl FlushErrors {
    pub(crate) const fn new() -> Self {
        Self {
            error: None,
            number: 0,
        }
    }

    /// Returns how a flush ends for which the drive's part ended with `own`; and which error that
    /// is, for [`Self::sent`], or 0.
    pub(crate) fn end(&mut self, own: Status) -> (Status, u32) {
        if own != Status::Ok {
            self.error = Some(own);
            self.number = self.number.wrapping_add(1).max(1);
        }
        match self.error {
            Some(status) => (status, self.number),
            None => (Status::Ok, 0),
        }
    }

    /// Notes that an answer with error `number` was sent. An error that came after it is still to
    /// be reported.
    pub(crate) fn sent(&mut self, number: u32) {
        if number == self.number {
            self.error = None;
        }
    }

    /// Returns whether there is none that is still to be told.
    pub(crate) fn is_empty(&self) -> bool {
        self.error.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_error_flushes_succeed() {
        let mut errors = FlushErrors::new();
        assert_eq!(errors.end(Status::Ok), (Status::Ok, 0));
        errors.sent(0);
        assert!(errors.is_empty());
    }

    #[test]
    fn an_error_is_told_until_an_answer_with_it_was_sent() {
        let mut errors = FlushErrors::new();
        let (status, first) = errors.end(Status::IoError);
        assert_eq!(status, Status::IoError);
        // That answer never left: these are told, too.
        for _ in 0..3 {
            assert_eq!(errors.end(Status::Ok), (Status::IoError, first));
        }
        assert!(!errors.is_empty());
        errors.sent(first);
        assert_eq!(errors.end(Status::Ok), (Status::Ok, 0));
        assert!(errors.is_empty());
    }

    #[test]
    fn a_later_error_is_not_told_by_an_earlier_answer() {
        let mut errors = FlushErrors::new();
        let (_, first) = errors.end(Status::IoError);
        let (status, second) = errors.end(Status::NoSpace);
        assert_eq!(status, Status::NoSpace);
        assert_ne!(first, second);
        errors.sent(first);
        assert_eq!(errors.end(Status::Ok), (Status::NoSpace, second));
        errors.sent(second);
        errors.sent(second);
        assert!(errors.is_empty());
    }

    #[test]
    fn numbers_never_are_0() {
        let mut errors = FlushErrors {
            error: None,
            number: u32::MAX,
        };
        let (_, number) = errors.end(Status::Medium);
        assert_ne!(number, 0);
        errors.sent(number);
        assert!(errors.is_empty());
    }
}
