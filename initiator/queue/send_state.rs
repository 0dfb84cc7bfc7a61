// SPDX-License-Identifier: GPL-2.0

//! What a queue's send lock guards: the accounts of credits and of send queue slots, and what
//! waits for its doorbell.

use super::{
    keep_alive::Nop,
    late::Late,
    message_batch::MessageBatch,
    transfer::EagerState,
    wr_seq,
    PLUG, //
};
use crate::{
    batching::Batching,
    shape::{
        Shape,
        INLINE_SEGMENTS, //
    },
};
use hcablk_core::{
    broken,
    proto::{
        credits::Credits,
        grant::{
            open_writes,
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
    pub(super) nop: Nop,
    /// Those that were not answered in time, while the queue is marked for that
    /// ([`Queue::mark_timed_out`]).
    pub(super) late: Late,
    pub(super) batching: Batching,
    pub(super) eager_state: EagerState,
    /// Which slots of the eager ring are taken, and by which tags.
    pub(super) ring: Ring<KVec<Taken>>,
    /// What waits for the last of a plug, or for whatever else is posted.
    pub(super) backlog: Backlog<{ INLINE_SEGMENTS + 1 }>,
    /// The last work request with a sequence number in it, `None` if there is none.
    pub(super) waiting: Option<wr_seq::BackloggedWr>,
    /// Requests that the next message carries.
    pub(super) batch: MessageBatch,
    /// The last sequence number that was allocated.
    pub(super) last_seq: u32,
    /// How many requests were issued, with wrap.
    pub(super) issued: u32,
}

impl SendState {
    /// Makes the state of a queue that was granted nothing and has sent nothing. May sleep.
    pub(super) fn new(shape: Shape) -> Result<Self> {
        let mut taken = KVec::new();
        taken.resize(open_writes(shape.depth), Taken::default(), GFP_KERNEL)?;
        Ok(Self {
            space: SendSpace::new(shape.send_slots(), shape.signal_period()),
            credits: Credits::new(0),
            starved: false,
            stopped: false,
            nop: Nop::Nothing,
            late: Late::new(usize::from(shape.depth) + 1)?,
            batching: Batching::new(0, 0),
            eager_state: EagerState::Never,
            ring: Ring::new(0, 0, taken),
            backlog: Backlog::new(usize::from(shape.depth).min(PLUG))?,
            waiting: None,
            batch: MessageBatch::new(),
            last_seq: 0,
            issued: 0,
        })
    }

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
