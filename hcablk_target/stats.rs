// SPDX-License-Identifier: GPL-2.0

//! The counters and the times of a queue.

use crate::memory::layout;
use hcablk_core::{
    report::stats::{
        metrics,
        Counter, //
    },
    report::times::Histogram, //
    system::now_ns,
};

metrics! {
    /// The counters of a queue, written by its completion handler: those about requests belong to
    /// the volume of the request, those about messages and work requests to the queue.
    pub(crate) struct Counters of Counter {
        /// Responses to reads.
        reads,
        /// Responses to writes.
        writes,
        /// Responses to flushes.
        flushes,
        /// Writes that had to be on stable media before their response.
        fua_writes,
        /// Responses to discards.
        discards,
        /// Responses to writes of zeroes.
        zeroes,
        /// Bytes discarded successfully.
        discarded_bytes,
        /// Bytes of zeroes written successfully.
        zeroed_bytes,
        /// Bytes read successfully.
        read_bytes,
        /// Bytes written successfully.
        written_bytes,
        /// Responses with an error.
        errors,
        /// Queue pairs that were replaced at the request of their initiator.
        replaced_queues,
        /// Bytes that the HCA moved between buffers and initiators.
        rdma_bytes,
        /// Bytes that a processor of this host copied: data of successful requests that the HCA did
        /// not move, or did not move to the drive's memory.
        copied_bytes,
        /// Bytes copied between buffers and the page cache.
        cache_bytes,
        /// Bytes that crossed this host's RAM: counted once for a transfer buffer in RAM, and once
        /// more for the page cache or the volume's cache.
        ram_bytes,
        /// Bytes that the drive exchanged with peer memory.
        p2p_bytes,
        /// Bytes that a processor copied between peer memory and RAM, since the RDMA device does no
        /// DMA to other PCI devices.
        p2p_bounce_bytes,
        /// Requests of mode p2p whose data went through RAM instead.
        p2p_fallbacks,
        /// Requests meant to bypass the page cache that found pages in it.
        met_pages,
        /// Lines of reads that were in the volume's cache.
        cache_hits,
        /// Lines of reads that were not in the volume's cache.
        cache_misses,
        /// Lines that were evicted to make room for others.
        cache_evictions,
        /// Bytes of reads served without the drive.
        bytes_from_cache,
        /// Bytes of `bytes_from_cache` whose lines were in peer memory.
        cache_peer_bytes,
        /// Reads of volumes of mode p2p whose cache has no lines in peer memory.
        cache_fallbacks,
        /// Bytes copied between buffers and the volume's cache.
        cache_copied_bytes,
        /// Chunks of large requests.
        chunks,
        /// Chunks that went to the drive or the network before the last chunk of their request had
        /// arrived.
        early_chunks,
        /// Large requests that were not split, since too few chunks were free.
        unchunked,
        /// Messages received.
        receives,
        /// Messages sent.
        sends,
        /// Work requests posted, except receives.
        work_requests,
        /// Post calls for these work requests, each of which is a doorbell on an HCA.
        doorbells,
        /// Completions of response sends: one for all responses that were posted together.
        reports,
        /// Reads whose response was the immediate value of the RDMA WRITE of their data.
        immediates,
        /// Writes whose data came in the same message.
        inline_writes,
        /// Writes whose data was in the eager ring before their request arrived.
        eager_writes,
        /// RDMA READs posted.
        rdma_reads,
        /// Memory registrations, one for each write on devices that need it.
        registrations,
        /// Keys invalidated by a response.
        remote_invalidations,
        /// Requests that had to wait for transfer buffers.
        buffer_waits,
        /// Requests that got a shared transfer buffer of 4 KiB.
        small_buffers,
        /// Requests that got buffers of 32 KiB, their queue's own or shared ones.
        medium_buffers,
        /// Requests that got shared buffers of 128 KiB.
        large_buffers,
        /// Violations of the protocol by the initiator.
        protocol_errors,
    }
}

impl Counters {
    /// Returns the counter of requests with buffers of `size_class`.
    #[inline]
    pub(crate) fn of_class(&self, size_class: usize) -> &Counter {
        match size_class {
            layout::SMALL => &self.small_buffers,
            layout::MEDIUM => &self.medium_buffers,
            _ => &self.large_buffers,
        }
    }
}

metrics! {
    /// The durations of each state of the requests that were received while times are measured.
    /// Written by the queue's completion handler, when it finds the completion of their response's
    /// SEND.
    pub(crate) struct Times of Histogram {
        /// From the message to the start of work: the wait for transfer buffers.
        waiting,
        /// Writes: until the data has arrived.
        fetching,
        /// In the drive, the page cache, or the volume's cache.
        drive,
        /// From there until the completion of the response's SEND was found: data and response on
        /// the wire, and the wait of the completion until the next message makes the target look.
        sending,
    }
}

/// The times of a request's changes of state; `received` is 0, and the others are meaningless,
/// unless times are measured.
#[derive(Clone, Copy, Default)]
pub(crate) struct Marks {
    received: u64,
    begun: u64,
    to_drive: u64,
    from_drive: u64,
}

impl Marks {
    /// Begins to measure a request that is being received, if it is `measured`.
    #[inline]
    pub(crate) fn receive(&mut self, measured: bool) {
        self.received = 0;
        if measured {
            *self = Self {
                received: now_ns(),
                ..Self::default()
            };
        }
    }

    /// Records that work on the request begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.received != 0 {
            self.begun = now_ns();
        }
    }

    /// Records that the request is submitted to the drive.
    #[inline]
    pub(crate) fn enter_drive(&mut self) {
        if self.received != 0 {
            self.to_drive = now_ns();
        }
    }

    /// Records that the drive has completed the request.
    #[inline]
    pub(crate) fn leave_drive(&mut self) {
        if self.received != 0 {
            self.from_drive = now_ns();
        }
    }

    /// Returns whether the request is measured.
    #[inline]
    pub(crate) fn is_measured(&self) -> bool {
        self.received != 0
    }

    /// Adds the durations of a measured request whose response's SEND has completed.
    pub(crate) fn end(&self, by_rdma_read: bool, times: &Times) {
        times.waiting.add(self.received, self.begun);
        // A request that was refused, or does not need the drive, was never submitted to it.
        if self.to_drive != 0 {
            if by_rdma_read {
                times.fetching.add(self.begun, self.to_drive);
            }
            times.drive.add(self.to_drive, self.from_drive);
        }
        times.sending.add(self.from_drive, now_ns());
    }
}
