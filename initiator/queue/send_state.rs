// SPDX-License-Identifier: GPL-2.0

//! What a queue's send lock guards: the accounts of credits and of send queue slots, and what
//! waits for its doorbell.

use super::{
    message_batch::MessageBatch,
    size::Size,
    transfer::EagerState,
    wr_seq, //
};
use crate::{batching::Batching, shape::INLINE_SEGMENTS};
use hcablk_core::{
    broken,
    proto::{
        credits::Credits,
        grant::{
            Ring,
            Taken, //
        },
    },
    rdma::{
        backlog::Backlog,
        space::SendSpace, //
    },
};
use kernel::prelude::*;

/// What `Queue::send` guards.
pub(super) struct SendState {
    pub(super) space: SendSpace,
    pub(super) credits: Credits,
    /// A request was turned away for want of credits or slots.
    pub(super) starved: bool,
    /// See [`Queue::stop`].
    pub(super) stopped: bool,
    pub(super) size: Size,
    pub(super) batching: Batching,
    pub(super) eager_state: EagerState,
    /// Which slots of the eager ring are taken, and by which tags.
    pub(super) ring: Ring<KVec<Taken>>,
    /// What waits for the last of a plug, or for whatever else is posted.
    pub(super) backlog: Backlog<{ INLINE_SEGMENTS + 1 }>,
    /// The last work request with a sequence number in it.
    pub(super) waiting: Option<wr_seq::BackloggedWr>,
    /// Requests that the next message carries.
    pub(super) batch: MessageBatch,
    /// The last sequence number that was allocated.
    pub(super) last_seq: u32,
}

impl SendState {
    /// Takes a credit and `slots`, or neither and remembers that somebody waits.
    #[inline]
    pub(super) fn reserve(&mut self, slots: u32, freed: impl FnOnce() -> u32) -> bool {
        if self.space.reserve(slots, freed) {
            if self.credits.take() {
                return true;
            }
            self.space.release(slots);
        }
        self.starved = true;
        false
    }

    /// Gives back what [`Self::reserve`] took.
    #[cold]
    pub(super) fn unreserve(&mut self, slots: u32) {
        self.space.release(slots);
        if self.credits.grant(1).is_err() {
            // All are there, so none is lost.
            broken!("a credit is given back that was not taken");
        }
        // There is one now, so something can be asked.
        let _ = self.credits.answered();
    }
}
