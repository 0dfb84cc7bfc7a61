// SPDX-License-Identifier: GPL-2.0

//! What a queue counts and measures.

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
    /// Written by a queue's completion handler: what concerns requests, for the volume that they
    /// are about; what concerns messages and work requests, for the queue.
    pub(crate) struct Counters of Counter {
        /// Read requests answered.
        reads,
        /// Write requests answered.
        writes,
        /// Flushes answered.
        flushes,
        /// Writes that had to be stable when they were answered.
        fua_writes,
        /// Discards answered.
        discards,
        /// Writes of zeroes answered.
        zeroes,
        /// Bytes discarded successfully.
        discarded_bytes,
        /// Bytes of zeroes written successfully.
        zeroed_bytes,
        /// Bytes read successfully.
        read_bytes,
        /// Bytes written successfully.
        written_bytes,
        /// Requests answered with an error.
        errors,
        /// Queue pairs that their initiator had replaced.
        replaced_queues,
        /// Bytes that the HCA moved between buffers and initiators.
        rdma_bytes,
        /// Bytes that a processor of this host copied: successful requests'
        /// data that the HCA did not move, or not to where the drive has it.
        copied_bytes,
        /// Bytes copied between buffers and the page cache.
        cache_bytes,
        /// Bytes that crossed this host's RAM: once in a buffer there, once more
        /// in the page cache or in the volume's cache.
        ram_bytes,
        /// Bytes that the drive exchanged with peer memory.
        p2p_bytes,
        /// Bytes that a processor copied between peer memory and RAM, since
        /// the RDMA device does no DMA to other PCI devices.
        p2p_bounce_bytes,
        /// Requests of mode p2p whose data went by RAM instead.
        p2p_fallbacks,
        /// Requests that were to pass the page cache and met pages there.
        met_pages,
        /// Lines of reads that were in the volume's cache.
        cache_hits,
        /// Lines of reads that were not.
        cache_misses,
        /// Lines that had to go for others.
        cache_evictions,
        /// Bytes of reads for which the drive was not asked.
        bytes_from_cache,
        /// Of these, bytes whose lines were in peer memory.
        cache_peer_bytes,
        /// Reads of volumes of mode p2p whose cache has no lines in peer memory.
        cache_fallbacks,
        /// Bytes copied between buffers and the volume's cache.
        cache_copied_bytes,
        /// Chunks that large requests moved in.
        chunks,
        /// Of these, the ones that went on before the last of their request had arrived.
        early_chunks,
        /// Requests moved whole, though large, since all chunks were in use.
        unchunked,
        /// Messages received.
        receives,
        /// Messages sent.
        sends,
        /// Work requests posted, receives left out.
        work_requests,
        /// Calls by which they were, each of which is a doorbell on an HCA.
        doorbells,
        /// Answers, or messages of several, whose sending was reported: one for those posted
        /// together.
        reports,
        /// Reads answered by the immediate value of the write of their data.
        immediates,
        /// Writes whose data came with their request.
        inline_writes,
        /// Writes whose data was in the eager ring before they came.
        eager_writes,
        /// RDMA READs posted.
        rdma_reads,
        /// Memory registrations, one for each write on devices that need it.
        registrations,
        /// Keys invalidated with an answer.
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
    /// Returns what counts requests with buffers of `size_class`.
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
    /// How long requests were in each state, for those received while that is
    /// measured. Written by the queue's completion handler, when the
    /// completion of their answer's send is found.
    pub(crate) struct Times of Histogram {
        /// From the message to the beginning of work: for transfer buffers.
        waiting,
        /// Writes: until the data is here.
        fetching,
        /// With the drive, the page cache, the volume's cache.
        drive,
        /// From there until the completion of the answer's send was found: data and answer on
        /// the wire, and what the completion waited for the next one.
        sending,
    }
}

/// When a request changed its state; `received` is 0, and the others say nothing, unless that is
/// measured.
#[derive(Clone, Copy, Default)]
pub(crate) struct Marks {
    received: u64,
    begun: u64,
    to_drive: u64,
    from_drive: u64,
}

impl Marks {
    /// Begins to measure a request that is received now, if it is `measured`.
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

    /// Notes that work begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.received != 0 {
            self.begun = now_ns();
        }
    }

    /// Records that the request goes to the drive.
    #[inline]
    pub(crate) fn enter_drive(&mut self) {
        if self.received != 0 {
            self.to_drive = now_ns();
        }
    }

    /// Records that the drive has completed it.
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

    /// Notes that the answer's send has completed, of a request that is measured.
    pub(crate) fn end(&self, fetched: bool, times: &Times) {
        times.waiting.add(self.received, self.begun);
        // What is refused, or asks nothing of the drive, never got there.
        if self.to_drive != 0 {
            if fetched {
                times.fetching.add(self.begun, self.to_drive);
            }
            times.drive.add(self.to_drive, self.from_drive);
        }
        times.sending.add(self.from_drive, now_ns());
    }
}
