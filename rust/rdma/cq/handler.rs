// SPDX-License-Identifier: GPL-2.0

//! Who hears of completions, and how soon.

use super::Completion;

/// Who is told of completions.
pub trait Handler: Send + Sync + 'static {
    /// What is gathered while completions of one round are reported.
    type Round: Default;

    /// One completion, in the queue's [`Context`](super::Context); calls for one queue never overlap.
    fn complete(&self, round: &mut Self::Round, completion: &Completion);

    /// All completions of a round were reported.
    #[inline]
    fn round_done(&self, _round: Self::Round) {}

    /// What need not be reported at once until the next round. Asked after
    /// each round.
    #[inline]
    fn patience(&self) -> Patience {
        Patience::None
    }
}

/// Which completions a [`Handler`] lets wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// None.
    None,
    /// All but messages that ask for being reported. Others, errors too, wait
    /// for such a message, for [`CompletionQueue::kick`](super::CompletionQueue::kick), or until the queue
    /// pair is failed, which ends all patience.
    Unsolicited,
    /// The same, but they wait no longer than for [`GUARD_MS`] and a tick.
    /// Only in [`Context::SoftIrq`](super::Context::SoftIrq); elsewhere the same as [`Self::Unsolicited`].
    Guarded,
}

/// See [`Patience::Guarded`], milliseconds.
pub const GUARD_MS: u32 = 2;
