// SPDX-License-Identifier: GPL-2.0

//! The states of an admin queue pair, and in which of them its messages are certainly the target's.
//! Uses nothing but `core`: its tests run on the host.
//!
//! ```text
//!  Connecting ──go_live()──► Live ──stop()──► Stopped
//!      └──────stop()──► Abandoned
//! ```

/// The state of an admin queue pair; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// The peer has not proven to be the target.
    Connecting,
    /// The session is live.
    Live,
    /// The session was live.
    Stopped,
    /// The queue pair was abandoned before the session was live. Until it is drained, it still
    /// receives messages of a peer that may not be the target.
    Abandoned,
}

impl Life {
    /// Returns the state after stopping.
    pub(super) fn stopped(self) -> Self {
        match self {
            Self::Connecting | Self::Abandoned => Self::Abandoned,
            Self::Live | Self::Stopped => Self::Stopped,
        }
    }

    /// Returns whether messages certainly come from the target; otherwise they may be anyone's, and
    /// must not cost the disk its path for good.
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

    /// A handshake's probe is stopped while connecting; on iWARP it receives messages until it is
    /// drained.
    #[test]
    fn a_message_before_it_was_live_is_nobodys_in_particular_also_after_the_end() {
        assert!(!Life::Connecting.is_of_target());
        let abandoned = Life::Connecting.stopped();
        assert!(!abandoned.is_of_target());
        // Stopping is repeated by each part of the teardown.
        assert!(!abandoned.stopped().is_of_target());
        assert!(Life::Live.is_of_target());
        assert!(Life::Live.stopped().stopped().is_of_target());
    }
}
