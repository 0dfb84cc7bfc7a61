// SPDX-License-Identifier: GPL-2.0

//! What a queue counts and measures.

use hcablk_core::{
    report::stats::{
        metrics,
        Counter, //
    },
    report::times::Histogram, //
    system::now_ns,
};

metrics! {
    /// Written under the queue's send lock.
    pub(crate) struct Sent of Counter {
        /// Messages sent.
        sends,
        /// Requests that went in another one's message.
        joined,
        /// Work requests posted, receives left out.
        work_requests,
        /// Calls by which they were, each of which is a doorbell on an HCA.
        doorbells,
        /// Memory regions registered.
        registrations,
        /// Bytes in them, and sent with requests: what the HCA moves without
        /// our processor.
        rdma_bytes,
        /// Writes whose data was sent with the request.
        inline_writes,
        /// Writes whose data was put into memory that the target has granted.
        eager_writes,
        /// Writes that found no room there, and went another way or had to wait.
        eager_misses,
        /// Requests whose answer need not interrupt.
        quiet,
        /// Requests that had to wait for a credit or a send queue slot.
        credit_waits,
    }
}

metrics! {
    /// Written by the queue's completion handler.
    pub(crate) struct Done of Counter {
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
        /// Requests that were not answered and were issued again.
        retries,
        /// Queue pairs that others came in place of, since a request was not answered in time.
        replaced_queues,
        /// Messages received.
        receives,
        /// Small reads that the target answered by an immediate value.
        immediates,
        /// Keys that the target invalidated with its answer.
        remote_invalidations,
        /// Keys invalidated by a work request of our own.
        local_invalidations,
        /// Requests that were answered before what had been sent with them was out, or
        /// whose key was still to be invalidated.
        send_waits,
        /// Bytes that a processor of this host copied: the data of small reads.
        copied_bytes,
        /// Violations of the protocol by the target.
        protocol_errors,
    }
}

impl Done {
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
    /// Written under the lock of the admin queue pair, or by its completion handler.
    pub(crate) struct AdminCounts of Counter {
        /// Keep-alives sent.
        keep_alives,
        /// Changes of the volume that the target has told.
        notices,
        /// Times that the target has told of its portals: in each session first how they are, then
        /// that they have changed.
        portal_notices,
    }
}

metrics! {
    /// How answers were found. Not kept by the queue: made of what its
    /// completion queue counts.
    pub(crate) struct Wakeups of Counter {
        /// Completion events, which are interrupts.
        events,
        /// Looks for answers by those who issue requests.
        reaps,
        /// Looks for answers because no event had come for a while.
        guards,
        /// Messages that were looked for by who waits for them, without events.
        polled,
    }
}

metrics! {
    /// How long requests were in each state, for those issued while that is
    /// measured. Written by the queue's completion handler, when a request ends.
    pub(crate) struct Times of Histogram {
        /// From the block layer's making the request to its being sent: in the
        /// scheduler, or for want of a credit.
        queued,
        /// From there to the target's answer.
        sent,
        /// From the answer to the end: an invalidation of our own, a SEND that
        /// had not completed, copying.
        ending,
    }
}

/// When a request changed its state; `sent` is 0, and the others say nothing, unless that is
/// measured.
#[derive(Clone, Copy, Default)]
pub(crate) struct Marks {
    made: u64,
    sent: u64,
    answered: u64,
}

impl Marks {
    /// Records that a request which was made at `made` is sent now, if it is `measured`.
    #[inline]
    pub(crate) fn send(&mut self, measured: bool, made: u64) {
        if measured {
            *self = Self {
                made,
                sent: now_ns(),
                answered: 0,
            };
        } else {
            self.sent = 0;
        }
    }

    /// Records that the answer has come.
    #[inline]
    pub(crate) fn answer(&mut self) {
        if self.sent != 0 {
            self.answered = now_ns();
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
        times.sent.add(self.sent, self.answered);
        times.ending.add(self.answered, now_ns());
        *self = Self::default();
    }
}
