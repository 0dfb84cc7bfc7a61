// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Credit flow control: a sender holds one credit for every receive buffer
//! that its peer has posted and not yet used, and spends one with every SEND.
//! A SEND therefore always finds a buffer and receiver-not-ready never happens.

/// A protocol violation: the peer grants more credits than it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdraft;

/// The sender's side: how many messages may be sent now.
#[derive(Debug)]
pub struct Credits {
    available: u16,
    limit: u16,
    /// Messages without a response yet. Each has a tag of its own, so that the count does not wrap.
    outstanding: u16,
}

impl Credits {
    /// Creates the account of a connection whose peer has already posted `granted` buffers.
    pub const fn new(granted: u16) -> Self {
        Self {
            available: granted,
            limit: granted,
            outstanding: 0,
        }
    }

    /// Spends a credit. Returns `false` if none is left: do not send.
    #[must_use]
    #[inline]
    pub fn take(&mut self) -> bool {
        match self.available.checked_sub(1) {
            Some(rest) => {
                self.available = rest;
                self.outstanding = self.outstanding.wrapping_add(1);
                true
            }
            None => false,
        }
    }

    /// Adds `count` credits, for buffers that the peer reports as posted again. Fails if these are
    /// more than were used.
    #[inline]
    pub fn grant(&mut self, count: u16) -> Result<(), Overdraft> {
        match self.available.checked_add(count) {
            Some(sum) if sum <= self.limit => {
                self.available = sum;
                Ok(())
            }
            _ => Err(Overdraft),
        }
    }

    /// Accounts for the response to a message, after [`Self::grant`] for the credits that came with
    /// it. Returns `false` if there is no credit, and no message is under way whose response could
    /// bring one: then nothing can be sent ever again.
    #[must_use]
    #[inline]
    pub fn responded(&mut self) -> bool {
        self.outstanding = self.outstanding.wrapping_sub(1);
        self.available != 0 || self.outstanding != 0
    }

    /// Returns how many credits are left.
    pub fn available(&self) -> u16 {
        self.available
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_send_without_a_credit() {
        let mut c = Credits::new(2);
        assert!(c.take());
        assert!(c.take());
        assert!(!c.take());
        assert_eq!(c.grant(1), Ok(()));
        assert!(c.take());
        assert!(!c.take());
    }

    #[test]
    fn a_peer_cannot_grant_more_than_it_has() {
        let mut c = Credits::new(3);
        assert_eq!(c.grant(1), Err(Overdraft));
        assert!(c.take());
        assert_eq!(c.grant(2), Err(Overdraft));
        assert_eq!(c.available(), 2);
        assert_eq!(c.grant(1), Ok(()));
        assert_eq!(c.grant(u16::MAX), Err(Overdraft));
    }

    #[test]
    fn a_peer_cannot_keep_the_last_credit() {
        let mut c = Credits::new(2);
        assert!(c.take());
        assert!(c.take());
        // The response to the other message may bring a credit.
        assert!(c.responded());
        assert_eq!(c.grant(2), Ok(()));
        assert!(c.responded());
        assert!(c.take());
        assert!(c.responded());
        assert!(c.take());
        assert!(!c.responded());
    }
}
