// SPDX-License-Identifier: GPL-2.0

//! What a volume's queues have counted and measured, those that are gone included.

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

/// How long who reads counters waits for completions that are being handled, in milliseconds,
/// and how long it sleeps between two looks.
const SETTLE_MS: i64 = 200;
/// See [`SETTLE_MS`].
const SETTLE_LOOK_MS: i64 = 1;

/// What queues have counted and measured.
#[derive(Default)]
pub(super) struct Past {
    counters: Counters,
    times: Times,
}

impl Past {
    /// Adds those of a queue that is closed.
    pub(super) fn absorb(&self, queue: &Queue) {
        // The messages of several volumes are none of one's.
        if !queue.is_shared() {
            self.counters.absorb(queue.counters());
        }
        self.times.absorb(queue.times());
    }

    /// Adds those of requests of a session of which nothing is left.
    pub(super) fn absorb_requests(&self, attachment: &Attachment) {
        attachment.add_counters(&self.counters, true);
    }
}

impl Volume {
    /// Calls `f` with each queue that the volume has.
    fn for_each_queue(&self, mut f: impl FnMut(&Queue)) -> Result {
        let mine = |a: &Attachment| a.is_of(self);
        for attachment in self.registry.attachments(mine)? {
            attachment.session().for_each_queue(&mut f);
        }
        Ok(())
    }

    /// Waits until all completions that have come are counted, but not for a handler that a hung
    /// drive keeps. Holds no lock while it sleeps.
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

    /// Returns the counters of the volume's requests on all queues that it ever had, with those of
    /// messages and work requests of queues that had no other volume. Requests that are handled at
    /// this moment may be missing. Sleeps for [`SETTLE_MS`] at most.
    pub(crate) fn counters(&self) -> Result<Counters> {
        self.settle()?;
        let sum = Counters::default();
        // Held until the end: queues become past under it.
        let past = self.past.lock();
        let mine = |a: &Attachment| a.is_of(self);
        for attachment in self.registry.attachments(mine)? {
            attachment.add_counters(&sum, false);
            attachment.session().for_each_queue(|queue| {
                if !queue.is_shared() {
                    sum.absorb(queue.counters());
                }
            });
        }
        sum.absorb(&past.counters);
        Ok(sum)
    }

    /// Returns how long requests were in their states, on all queues that it ever had. As
    /// [`Self::counters`].
    pub(crate) fn times(&self) -> Result<Times> {
        self.settle()?;
        let sum = Times::default();
        let past = self.past.lock();
        self.for_each_queue(|queue| sum.absorb(queue.times()))?;
        sum.absorb(&past.times);
        Ok(sum)
    }

    /// Returns whether that is measured.
    pub(crate) fn timing(&self) -> bool {
        self.timing.load(Relaxed)
    }

    /// Returns whether to measure it from now on. A queue that comes meanwhile looks
    /// under the lock that it is added under.
    pub(crate) fn time(&self, on: bool) -> Result {
        self.timing.store(on, Relaxed);
        self.for_each_queue(|queue| queue.time(on))
    }
}
