// SPDX-License-Identifier: GPL-2.0

//! What a queue counts.

use hcablk_core::stats::counters;

counters! {
    /// Written under the queue's send lock.
    pub(crate) struct Sent {
        /// Messages sent.
        sends,
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
        /// Requests whose answer need not interrupt.
        quiet,
        /// Requests that had to wait for a credit or a send queue slot.
        credit_waits,
    }
}

counters! {
    /// Written by the queue's completion handler.
    pub(crate) struct Done {
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
        /// Messages received.
        receives,
        /// Small reads that the target answered by an immediate value.
        immediates,
        /// Keys that the target invalidated with its answer.
        remote_invalidations,
        /// Keys invalidated by a work request of our own.
        local_invalidations,
        /// Bytes that a processor of this host copied: the data of small reads.
        copied_bytes,
        /// Violations of the protocol by the target.
        protocol_errors,
    }
}

counters! {
    /// How answers were found. Not kept by the queue: made of what its
    /// completion queue counts.
    pub(crate) struct Wakeups {
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
