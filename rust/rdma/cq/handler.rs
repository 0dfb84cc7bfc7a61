// SPDX-License-Identifier: GPL-2.0

//! The receiver of completions, which also chooses the completions for which the queue is armed.

use super::Completion;

/// Receives the completions of a queue.
pub trait Handler: Send + Sync + 'static {
    /// The handler's state during one round of completions.
    type Round: Default;

    /// Handles a completion, in the queue's [`CqContext`](super::CqContext). Calls for one queue
    /// never overlap.
    fn complete(&self, round: &mut Self::Round, completion: &Completion);

    /// Ends a round: all of its completions were handled. The rest of `round` is dropped after
    /// this.
    #[inline]
    fn round_done(&self, _round: &mut Self::Round) {}

    /// Returns the completions for which the queue must be armed. Called at the end of each round,
    /// in the queue's [`CqContext`](super::CqContext).
    #[inline]
    fn cq_notify(&self) -> CqNotify {
        CqNotify::Any
    }
}

/// The completions at which a queue raises its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqNotify {
    /// Any completion.
    Any,
    /// A solicited completion: that of a message whose sender asked for an event. Others, errors
    /// too, are handled with the next solicited one, at
    /// [`CompletionQueue::kick`](super::CompletionQueue::kick), or when the queue pair fails,
    /// which arms the queue for any completion from then on.
    SolicitedOnly,
    /// As [`Self::SolicitedOnly`], and a timer polls the queue after [`GUARD_MS`] and a tick.
    /// Only in [`CqContext::SoftIrq`](super::CqContext::SoftIrq); elsewhere the same as
    /// [`Self::SolicitedOnly`].
    SolicitedOrTimer,
}

/// Milliseconds until the timer of [`CqNotify::SolicitedOrTimer`] polls.
pub const GUARD_MS: u32 = 2;
