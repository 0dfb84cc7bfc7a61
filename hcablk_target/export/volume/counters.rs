// SPDX-License-Identifier: GPL-2.0

//! Sums the counters and times of a volume's queues, including those of closed queues.

use super::Volume;
use crate::{
    io::Queue,
    session::attachment::Attachment,
    stats::{
        Counters,
        Times, //
    },
};
use hcablk_core::sync::atomic::Relaxed;
use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
};

/// The time limit for a reader of counters to wait for completions that are being handled, in
/// milliseconds.
const SETTLE_MS: i64 = 200;
/// The interval for checking whether completions are handled, in milliseconds.
const SETTLE_LOOK_MS: i64 = 1;

/// Counters and times of closed queues.
#[derive(Default)]
pub(super) struct ClosedQueues {
    counters: Counters,
    times: Times,
}

impl ClosedQueues {
    /// Adds the counters and times of a closed queue.
    pub(super) fn absorb(&self, queue: &Queue) {
        // Messages of a queue pair with several volumes count for none of them.
        if !queue.is_shared() {
            self.counters.absorb(queue.counters());
        }
        self.times.absorb(queue.times());
    }

    /// Adds the counters of the requests of an attachment that has ended completely.
    pub(super) fn absorb_requests(&self, attachment: &Attachment) {
        attachment.add_counters(&self.counters, true);
    }
}

impl Volume {
    /// Calls `f` with each queue of the volume.
    fn for_each_queue(&self, mut f: impl FnMut(&Queue)) -> Result {
        let mine = |a: &Attachment| a.is_of(self);
        for attachment in self.registry.attachments(mine)? {
            attachment.session().for_each_queue(&mut f);
        }
        Ok(())
    }

    /// Waits until all existing completions are counted, for [`SETTLE_MS`] at most, since a hanging
    /// drive may block a handler. Holds no lock while it sleeps.
    fn settle(&self) -> Result {
        let start: Instant<Monotonic> = Instant::now();
        self.for_each_queue(|queue| queue.kick())?;
        loop {
            let mut settled = true;
            self.for_each_queue(|queue| settled &= queue.is_settled())?;
            if settled || start.elapsed().as_millis() >= SETTLE_MS {
                return Ok(());
            }
            fsleep(Delta::from_millis(SETTLE_LOOK_MS));
        }
    }

    /// Returns the counters of the volume's requests on all its queues, present and closed, and of
    /// the messages and work requests of queues without other volumes. Requests that are being
    /// handled may be missing. Sleeps for [`SETTLE_MS`] at most.
    pub(crate) fn counters(&self) -> Result<Counters> {
        self.settle()?;
        let sum = Counters::default();
        // Held until the end: queues are moved to `closed_queues` under it.
        let closed_queues = self.closed_queues.lock();
        let mine = |a: &Attachment| a.is_of(self);
        for attachment in self.registry.attachments(mine)? {
            attachment.add_counters(&sum, false);
            attachment.session().for_each_queue(|queue| {
                if !queue.is_shared() {
                    sum.absorb(queue.counters());
                }
            });
        }
        sum.absorb(&closed_queues.counters);
        Ok(sum)
    }

    /// Returns the durations of the states of requests, on all queues of the volume, present and
    /// closed. As [`Self::counters`].
    pub(crate) fn times(&self) -> Result<Times> {
        self.settle()?;
        let sum = Times::default();
        let closed_queues = self.closed_queues.lock();
        self.for_each_queue(|queue| sum.absorb(queue.times()))?;
        sum.absorb(&closed_queues.times);
        Ok(sum)
    }

    /// Returns whether the durations of requests are measured.
    pub(crate) fn timing(&self) -> bool {
        self.timing.load(Relaxed)
    }

    /// Sets whether to measure the durations of requests from now on. A queue that is being added
    /// reads the setting under the lock that it is added under.
    pub(crate) fn set_timing(&self, on: bool) -> Result {
        self.timing.store(on, Relaxed);
        self.for_each_queue(|queue| queue.set_timing(on))
    }
}
