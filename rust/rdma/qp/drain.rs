// SPDX-License-Identifier: GPL-2.0

//! Draining: waiting until the device is done with all that was posted to a queue pair.
//!
//! ```text
//!         begin_drain()                 drain(): both have completed
//!  ─────────────────────► last requests ────────────────────────────────────────► drained
//!   failed                are posted    │ refused: by the device's own operation      ▲
//!                                       ▼ not in time, or nobody can say              │
//!                                       reset ────────────────────────────────────────┘
//!                                       │ refused, too
//!                                       ▼
//!                                       stuck
//! ```
//!
//! A session has several pairs: it begins to drain all of them before it waits for the first, so
//! that a device that does not flush costs the time limit only once.

use super::QueuePair;
use crate::sync::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed,
    Release, //
};
use crate::{
    bindings,
    rdma::{
        cq::Handler,
        wr::{
            Chain,
            Rdma,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    system,
};
use kernel::prelude::*;

/// The time within which a failed queue pair must report its work, in milliseconds. After that the
/// pair is reset, which ends the work as well.
const DRAIN_TIMEOUT_MS: u32 = 30_000;

/// One of a pair's queues.
#[derive(Clone, Copy)]
enum Side {
    Sends = 0,
    Receives = 1,
}

impl Side {
    fn name(self) -> &'static CStr {
        match self {
            Self::Sends => c"send",
            Self::Receives => c"receive",
        }
    }
}

/// The progress of draining a pair.
pub(super) struct Draining {
    begun: Atomic<bool>,
    /// A caller of [`QueuePair::drain`] waits, or has waited.
    waited: Atomic<bool>,
    /// When it was begun, by [`system::now_ns`].
    since: Atomic<u64>,
    /// Why the last requests of its queues were not posted, as errno; 0 if they were.
    refused: [Atomic<i32>; 2],
    /// It did not drain and was not reset.
    stuck: Atomic<bool>,
}

impl Draining {
    pub(super) fn new() -> Self {
        Self {
            begun: Atomic::new(false),
            waited: Atomic::new(false),
            since: Atomic::new(0),
            refused: [const { Atomic::new(0) }; 2],
            stuck: Atomic::new(false),
        }
    }

    /// Returns whether the drain was begun: then events of the completion queue concern this pair.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Relaxed)
    }

    /// Returns the milliseconds that are left of the time that draining may take.
    fn left_ms(&self) -> u32 {
        let gone = system::now_ns().saturating_sub(self.since.load(Relaxed)) / 1_000_000;
        DRAIN_TIMEOUT_MS.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX))
    }
}

impl<H: Handler> QueuePair<H> {
    /// Fails the pair and posts the requests whose completion ends [`Self::drain`]. The caller must
    /// call that afterwards; it waits until 30 s from now at most, or without a limit if the device
    /// refuses the requests and drains by its own operation. Does nothing the second time. May
    /// sleep; must not run concurrently with [`Self::drain`].
    ///
    /// For a caller that drains several pairs; `drain` does not wait for work that is posted after
    /// this.
    pub fn begin_drain(&self) {
        if self.draining.begun.xchg(true, Full) {
            return;
        }
        self.draining.since.store(system::now_ns(), Relaxed);
        let failed = self.fail();
        for side in [Side::Sends, Side::Receives] {
            if let Err(refused) = failed.and_then(|()| self.post_last(side)) {
                self.draining.refused[side as usize].store(refused.to_errno(), Relaxed);
            }
        }
    }

    /// Fails the pair and waits until all work that was posted before this, or before an earlier
    /// [`Self::begin_drain`], has completed: then the device touches none of its memory any more.
    /// Does nothing the second time. May sleep; not from a completion handler.
    ///
    /// A device may fail to flush. The log reports that after a while, and the pair is reset, which
    /// ends all its work without completions. If the device refuses that, too, the pair [is
    /// stuck](Self::is_stuck): only dropping it, or a memory region, is sure to end access.
    ///
    /// A device may also be in a state in which it neither fails a pair nor takes
    /// work, as mlx4, mlx5 and hns are after a fatal error. It has operations of its
    /// own for that: see [`Self::drain_by_device`].
    pub fn drain(&self) {
        let _alone = self.id.ending.lock();
        self.drain_alone();
    }

    /// Does the work of [`Self::drain`]. The caller holds [`HeldId::ending`](super::HeldId).
    pub(super) fn drain_alone(&self) {
        self.begin_drain();
        if self.draining.waited.xchg(true, Full) {
            return;
        }
        let mut drained_all = true;
        for side in [Side::Sends, Side::Receives] {
            match self.drain_side(side) {
                Ok(reported) => drained_all &= reported,
                Err(e) => {
                    drained_all = false;
                    pr_warn!(
                        "BUG: {} queue did not drain (error {})\n",
                        side.name(),
                        e.to_errno()
                    );
                }
            }
        }
        if !drained_all && self.modify(bindings::ib_qp_state_IB_QPS_RESET).is_err() {
            pr_warn!("BUG: a queue pair that did not drain cannot be reset\n");
            self.draining.stuck.store(true, Release);
        }
    }

    /// Returns whether the device may still read or write memory that was posted, after
    /// [`Self::drain`].
    pub fn is_stuck(&self) -> bool {
        self.draining.stuck.load(Acquire)
    }

    /// Waits until a queue has drained. `false`: the queue may not have drained.
    fn drain_side(&self, side: Side) -> Result<bool> {
        let refused = self.draining.refused[side as usize].load(Relaxed);
        if refused != 0 {
            return self.drain_by_device(side).ok_or(Error::from_errno(refused));
        }
        let drained = match side {
            Side::Sends => &self.cq.sends_drained,
            Side::Receives => &self.cq.receives_drained,
        };
        let left = self.draining.left_ms();
        self.cq.wait_for(drained, left).map(|()| true)
    }

    /// Posts the request, or the buffer, whose completion proves that all earlier work has
    /// completed.
    fn post_last(&self, side: Side) -> Result {
        match side {
            Side::Sends => {
                let mut last = Rdma::empty_write();
                last.signal(WorkId::SENDS_DRAINED);
                let mut chain = Chain::new();
                chain.push(&mut last);
                // SAFETY: By `Chain`'s invariant. No fault is injected here: a device that refuses
                // this, too, does not drain.
                unsafe { self.post_to_device(chain.head()) }
            }
            Side::Receives => self.post_receive(Sge::EMPTY, WorkId::RECEIVES_DRAINED),
        }
    }

    /// Drains a queue with the device's own operation: `None` if there is none.
    ///
    /// The operations of mlx4, mlx5 and hns post a request despite the device's refusal, have the
    /// completion queue polled, and wait, without a limit, until our poller has passed the
    /// completion on to them ([`Completion::hand_over`](crate::rdma::cq::Completion)): then this
    /// returns `true`. Other operations may wait until the queue is empty, and post nothing if it
    /// is, or may give up, which they cannot report: then this returns `false`, and a reset ends
    /// all remaining work.
    ///
    /// This is used only where the device refuses our requests, in a state in which the driver
    /// makes completions itself; on a device that works it would equal our own drain. The event of
    /// such a completion may be lost, so a timer polls the queue during the wait
    /// ([`CompletionQueue::watch`](crate::rdma::cq::CompletionQueue::watch)). Not for a polled
    /// queue, which has no poller during the wait.
    ///
    /// C: `ib_drain_sq()`, `ib_drain_rq()`.
    fn drain_by_device(&self, side: Side) -> Option<bool> {
        if self.cq.is_direct() {
            return None;
        }
        let qp = self.raw.as_ptr();
        // SAFETY: The queue pair is valid, since `HeldId::ending` is held and the pair was not
        // severed: that drains it first. So is its device.
        unsafe {
            let ops = &(*(*qp).device).ops;
            let drain = match side {
                Side::Sends => ops.drain_sq,
                Side::Receives => ops.drain_rq,
            };
            let before = self.cq.handed_over();
            let drain = drain?;
            self.cq.watch(|| drain(qp));
            Some(self.cq.handed_over() != before)
        }
    }
}
