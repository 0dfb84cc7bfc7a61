// SPDX-License-Identifier: GPL-2.0

//! The states of an admin queue pair, and which side broke the protocol in each. Uses nothing but
//! `core`: its tests run on the host.
//!
//! ```text
//!  Connecting ──go_live()──► Live ──stop()──► Stopped
//!      └──────stop()──► Abandoned
//! ```

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Who answers has not proven to be the target.
    Connecting,
    /// The session is live.
    Live,
    /// It was live.
    Stopped,
    /// It was given up before it was live. Until it is drained, messages still come of whoever
    /// answered.
    Abandoned,
}

impl Life {
    /// Returns the state after the end.
    pub(super) fn stopped(self) -> Self {
        match self {
            Self::Connecting | Self::Abandoned => Self::Abandoned,
            Self::Live | Self::Stopped => Self::Stopped,
        }
    }

    /// Returns whether it is the target that has sent what comes; else it may be anyone, and a disk
    /// is not given up for it.
    pub(super) fn is_of_target(self) -> bool {
        match self {
            Self::Live | Self::Stopped => true,
            Self::Connecting | Self::Abandoned => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Life;

    /// The probe of a handshake is stopped while it is connecting; on iWARP messages may come until
    /// it is drained.
    #[test]
    fn a_message_before_it_was_live_is_nobodys_in_particular_also_after_the_end() {
        assert!(!Life::Connecting.is_of_target());
        let abandoned = Life::Connecting.stopped();
        assert!(!abandoned.is_of_target());
        // It is stopped by each who tears down.
        assert!(!abandoned.stopped().is_of_target());
        assert!(Life::Live.is_of_target());
        assert!(Life::Live.stopped().stopped().is_of_target());
    }
}
