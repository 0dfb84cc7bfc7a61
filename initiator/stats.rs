// SPDX-License-Identifier: GPL-2.0

//! Counters and histograms of a queue, and of a disk on it.

use hcablk_core::{
    report::stats::{
        metrics,
        Counter, //
    },
    report::times::Histogram, //
    system::now_ns,
};

metrics! {
    /// Counters written under the queue's send lock.
    pub(crate) struct Sent of Counter {
        /// Messages sent.
        sends,
        /// Requests that shared another request's message.
        joined,
        /// Work requests posted, except receives.
        work_requests,
        /// Post calls for these work requests, each of which is a doorbell on an HCA.
        doorbells,
        /// Memory regions registered.
        registrations,
        /// Bytes in these regions, and bytes sent directly from requests' pages: the HCA moves both
        /// without a copy.
        rdma_bytes,
        /// Inline writes.
        inline_writes,
        /// Writes whose data was put into the eager ring.
        eager_writes,
        /// Writes that found no room in the ring, and were sent over a different data path, or
        /// waited.
        eager_misses,
        /// Requests whose response need not interrupt.
        quiet,
        /// Requests that had to wait for a credit or a send queue slot.
        credit_waits,
    }
}

metrics! {
    /// Counters of a disk's requests on a queue. Written by the queue's completion handler.
    pub(crate) struct Ended of Counter {
        /// Read requests ended.
        reads,
        /// Write requests ended.
        writes,
        /// Flushes ended.
        flushes,
        /// Discards ended.
        discards,
        /// Writes of zeroes ended.
        zeroes,
        /// Bytes discarded.
        discarded_bytes,
        /// Bytes of zeroes written.
        zeroed_bytes,
        /// Bytes read.
        read_bytes,
        /// Bytes written.
        written_bytes,
        /// Requests ended with an error.
        errors,
        /// Requests without a response that were issued again.
        retries,
    }
}

metrics! {
    /// Counters of a queue. Written by its completion handler.
    pub(crate) struct Done of Counter {
        /// Queue pairs that were replaced because of a request timeout.
        replaced_queues,
        /// Messages received.
        receives,
        /// Small reads whose response was an immediate value.
        immediates,
        /// Keys that the target invalidated with its response.
        remote_invalidations,
        /// Keys invalidated by a work request of our own.
        local_invalidations,
        /// Requests whose response came before their send had completed, or while their key was
        /// valid.
        send_waits,
        /// Bytes that a processor of this host copied: the data of small reads, and of the writes
        /// below.
        copied_bytes,
        /// Writes whose data was copied into a write bounce slot.
        copied_writes,
        /// Violations of the protocol by the target.
        protocol_errors,
    }
}

impl Ended {
    /// Returns how many requests have ended.
    pub(crate) fn completed(&self) -> u64 {
        let kinds = [
            &self.reads,
            &self.writes,
            &self.flushes,
            &self.discards,
            &self.zeroes,
        ];
        kinds.iter().map(|count| count.get()).sum()
    }
}

metrics! {
    /// Counters written under the lock of the admin queue pair, or by its completion handler.
    pub(crate) struct AdminCounts of Counter {
        /// Keep-alives sent.
        keep_alives,
        /// Notices of changes of the volume.
        notices,
        /// Reports of the target's portals: in each session first the current portals, then
        /// changes.
        portal_notices,
    }
}

metrics! {
    /// Wake-ups of a queue: how responses were found. Computed from the counts of its completion
    /// queue.
    pub(crate) struct Wakeups of Counter {
        /// Completion events, which are interrupts.
        events,
        /// Polls by tasks that issue requests.
        reaps,
        /// Polls because no event had come for a while.
        guards,
        /// Messages found by tasks that poll for them, without events.
        polled,
    }
}

metrics! {
    /// Durations of a disk's requests in each state, while measuring is enabled. Written by the
    /// queue's completion handler, when a request ends.
    pub(crate) struct Times of Histogram {
        /// From the creation of the request in the block layer to its sending: in the scheduler, or
        /// waiting for a credit.
        queued,
        /// From sending to the target's response.
        sent,
        /// From the response to the end: waiting for our own invalidation or SEND, and copying.
        ending,
    }
}

/// When a request changed its state; `sent` is 0, and the others are meaningless, unless durations
/// are measured.
#[derive(Clone, Copy, Default)]
pub(crate) struct Marks {
    made: u64,
    sent: u64,
    responded: u64,
}

impl Marks {
    /// Records that a request created at `made` is sent now, if it is `measured`.
    #[inline]
    pub(crate) fn send(&mut self, measured: bool, made: u64) {
        if measured {
            *self = Self {
                made,
                sent: now_ns(),
                responded: 0,
            };
        } else {
            self.sent = 0;
        }
    }

    /// Records the arrival of the response.
    #[inline]
    pub(crate) fn note_response(&mut self) {
        if self.sent != 0 {
            self.responded = now_ns();
        }
    }

    /// Records that the request ends, and adds its durations to `times`.
    #[inline]
    pub(crate) fn end(&mut self, times: &Times) {
        if self.sent != 0 {
            self.end_measured(times);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_measured(&mut self, times: &Times) {
        // Requests of queues that keep no statistics are not stamped.
        if self.made != 0 {
            times.queued.add(self.made, self.sent);
        }
        times.sent.add(self.sent, self.responded);
        times.ending.add(self.responded, now_ns());
        *self = Self::default();
    }
}
