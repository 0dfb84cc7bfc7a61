// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session: its completions, its keep-alives, and its end.
//!
//! # Locks and contexts
//!
//! Completions are handled in process context, one at a time for a queue; the drive's may come in
//! any context. There is one lock, `work`. It is taken once to admit a request and, at the same
//! time, to make a completed one idle again ([`reclaim`](super::reclaim)). Between admission and
//! reclaiming, the request belongs to the function that works on it.
//!
//! # CQ notification
//!
//! The completion of a response's SEND raises no event: the round that handles the next request
//! finds it, unless a request waits for buffers or for the HCA. The initiator's messages are
//! solicited. Every keep-alive makes the handler poll the queue for remaining completions, and for
//! errors.
//!
//! Responses of one round of completions are posted together ([`respond`](super::respond)).
//!
//! # Limits
//!
//! There are as many receive buffers as granted credits, and twice as many [`TargetRequest`]s: a
//! response grants its credit before its own SEND has completed, and a request that arrives in
//! between finds an idle `TargetRequest`. If there is none, the request waits in its receive
//! buffer. A buffer shared by several requests is posted again with the response to the last of
//! them. Requests that find no transfer buffers wait in the order of their arrival: for the queue's
//! own, or for shared ones that others return ([`memory`](crate::memory)).

use super::{
    chunks::ChunkedRequests,
    eager::RespondedSlots,
    fault::RequestSubjects,
    limits::QueueShape,
    queue_volume::{
        VolumeConfig,
        Volumes, //
    },
    reclaim::{
        CompletedSends,
        KeptMemory, //
    },
    request::{
        Group,
        TargetRequest, //
    },
    respond::ResponseBatcher, //
};
use crate::{
    memory::{
        pool::Pool,
        Charge,
        PoolHandle, //
    },
    session::Session,
    stats::{
        Counters,
        Times, //
    },
};
use core::ops::Deref;
use hcablk_core::{
    containers::{
        fifo::Fifo,
        slots::SlotTable, //
    },
    memory::eager_ring::EagerRing,
    p2p::{
        PeerMemory,
        Provider, //
    },
    proto::{
        connect::{
            Epoch,
            SessionId, //
        },
        eager_ring::{
            Ring,
            Taken, //
        },
        message::{
            Handle,
            BUFFER_LEN, //
        },
    },
    rdma::{
        buffer::{
            DmaBuffer,
            MessageBuffers, //
        },
        cq::{
            Completion,
            CqNotify,
            Handler, //
        },
        pd::ProtectionDomain,
        qp::QueuePair,
        wr::{
            Chain,
            Rdma,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace::{
        self,
        Change,
        ConnectionState, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed,
            Release, //
        },
        synchronize_completions,
        Event,
        IrqLock,
        WorkQueue, //
    },
    system, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The most pieces of a receive buffer.
pub(super) const RECEIVE_ENTRIES: usize = 2;

/// Kinds of work requests, in work ids. The index is that of a [`TargetRequest`] or of a receive
/// buffer.
pub(super) mod kind {
    pub(in super::super) const RESPONSE: u8 = 1;
    pub(in super::super) const RECEIVE: u8 = 2;
    pub(in super::super) const RDMA_READ: u8 = 3;
    pub(in super::super) const PART: u8 = 4;
    pub(in super::super) const KEEP_ALIVE: u8 = 5;
    pub(in super::super) const SINK: u8 = 6;
    pub(in super::super) const CHUNK: u8 = 7;
    pub(in super::super) const EAGER_RING: u8 = 8;
    /// The RDMA WRITE of a chunk, while chunk completions are traced.
    pub(in super::super) const CHUNK_WRITTEN: u8 = 9;
}

/// A receive buffer with a message.
#[derive(Clone, Copy)]
pub(super) struct Received {
    pub(super) buffer: u32,
    /// Bytes of the message, or of the data that came with an immediate value.
    pub(super) length: usize,
    pub(super) immediate: Option<u32>,
    /// The requests of the message that were admitted already.
    pub(super) admitted: usize,
}

impl Received {
    /// Returns the same message, with one more request admitted.
    #[inline]
    pub(super) fn after_one(self) -> Self {
        Self {
            admitted: self.admitted + 1,
            ..self
        }
    }
}

/// The state that `Queue::work` protects.
pub(super) struct Work {
    pub(super) idle: KVec<KBox<TargetRequest>>,
    /// Requests that wait for transfer buffers.
    pub(super) waiting: Fifo<KBox<TargetRequest>>,
    /// Messages that wait for an idle `TargetRequest`.
    pub(super) received: Fifo<Received>,
    /// The taken slots of the eager ring.
    pub(super) ring: Ring<KVec<Taken>>,
    /// The eager ring is not registered yet.
    pub(super) unregistered: bool,
    /// The free transfer buffers. Dropped after the queue pair.
    pub(super) free: Pool,
    /// Memory that the HCA may still use. Dropped after the queue pair.
    pub(super) kept: KeptMemory,
    /// The numbers of the free chunks.
    pub(super) chunks: KVec<u16>,
    /// The number of allocated `TargetRequest`s.
    pub(super) made: usize,
    /// No new request is begun.
    pub(super) closing: bool,
    /// A keep-alive is in flight, or the connection is not established yet.
    pub(super) keep_alive_pending: bool,
    /// The initiator must send first, and has not done it yet.
    pub(super) silent: bool,
    /// The number of keep-alives since the last completion.
    pub(super) quiet: u32,
    /// The number of responses in flight that report a flush error: the session must learn at once
    /// when they have been sent.
    pub(super) owed: u32,
    /// The volumes that requests may name. Dropped last: their peer memory waits until the fields
    /// above no longer refer to it.
    pub(super) volumes: Volumes,
}

impl Work {
    /// Stops new requests, and withholds the transfer buffers from other queue pairs.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.free.close();
    }
}

/// A queue pair of a session, with its memory and its requests: see the module. Its completion
/// queue and its `TargetRequest`s hold references to it until [`Queue::close`].
#[pin_data]
pub(crate) struct Queue {
    pub(super) session: Arc<Session>,
    pub(super) session_id: SessionId,
    pub(super) epoch: Epoch,
    pub(super) index: u8,
    pub(super) pd: Arc<ProtectionDomain>,
    pub(super) pair: QueuePair<Queue>,
    pub(super) shape: QueueShape,
    /// The completion handler does not wait for room in a drive: the queue pair serves several
    /// volumes, and must not delay the others.
    pub(super) never_waits: bool,
    /// Whether anything has completed since the last keep-alive.
    pub(super) moved: Atomic<bool>,
    /// The longest read whose response is one RDMA WRITE with an immediate value; 0: the transport
    /// has no immediate values.
    pub(super) immediate_bytes: usize,
    /// Every work request that sends data is signaled. soft-iWARP passes the pages of an unsignaled
    /// one to TCP itself (`siw_qp_prepare_tx()`), which may send them at any later time: even after
    /// the response that follows has completed, and the buffer belongs to another request. Also, on
    /// iWARP the completion of a response's SEND does not mean that the response has arrived.
    pub(super) all_reported: bool,
    pub(super) incoming: MessageBuffers<BUFFER_LEN>,
    /// The memory for the inline data of a request, one page for each receive buffer; empty if
    /// inline data is not allowed.
    pub(super) inline: KVec<DmaBuffer>,
    /// The inline buffers must be synced for the HCA.
    pub(super) inline_syncs: bool,
    /// The scatter-gather entries of each receive buffer: one for a message, and one for inline
    /// data if that is allowed.
    pub(super) receives: KVec<[Sge; RECEIVE_ENTRIES]>,
    pub(super) outgoing: MessageBuffers<BUFFER_LEN>,
    /// The memory into which the initiator puts the data of eager writes.
    pub(super) eager_ring: Option<EagerRing>,
    pub(super) buffers: KVec<DmaBuffer>,
    /// The handle that borrows shared transfer buffers, if there are any.
    pub(super) handle: Option<Arc<PoolHandle>>,
    pub(super) inflight: SlotTable<TargetRequest>,
    pub(super) subjects: RequestSubjects,
    #[pin]
    pub(super) chunked: ChunkedRequests,
    /// The number of writes whose RDMA READ is in flight. Changed only by the completion handler.
    pub(super) rdma_reads: Atomic<u32>,
    /// Whether to arm the completion queue for any completion: see [`Self::update_notify`].
    pub(super) notify_all: Atomic<bool>,
    /// See [`Self::wake`].
    pub(super) woken: Atomic<bool>,
    pub(super) completed_sends: CompletedSends,
    pub(super) responded_slots: RespondedSlots,
    /// Dropped after the queue pair.
    #[pin]
    pub(super) work: IrqLock<Work>,
    #[pin]
    pub(super) batcher: ResponseBatcher,
    /// Only this queue pair is being removed, not the session: see [`Self::close_alone`].
    pub(super) leaving: Atomic<bool>,
    /// The queue is closing and every `TargetRequest` is idle.
    #[pin]
    pub(super) all_idle: Event,
    pub(super) counters: Counters,
    /// Whether the durations of requests are measured.
    pub(super) timing: Atomic<bool>,
    pub(super) times: Times,
    /// The charge for all of the above in the port's account: dropped last.
    pub(super) _charge: Charge,
}

impl Queue {
    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// Returns one of the queue's own transfer buffers.
    #[inline]
    pub(super) fn buffer(&self, number: u16) -> Option<&DmaBuffer> {
        self.buffers.get(usize::from(number))
    }

    /// Calls `f` with the peer memory and its provider, if there is any. May sleep.
    pub(crate) fn with_lease<R>(&self, f: impl FnOnce(&Provider, &PeerMemory) -> R) -> Option<R> {
        let volume = self.leased_volume()?;
        let lease = volume.lease()?;
        Some(f(lease.provider(), &*lease.memory()?))
    }

    /// Returns the number of the queue pair, as the transport reports it to the initiator.
    pub(crate) fn number(&self) -> u32 {
        self.pair.own_number()
    }

    /// Makes the completion handler look for completions, which updates the counters, without
    /// waiting for it.
    pub(crate) fn kick(&self) {
        self.pair.cq().kick();
    }

    /// Returns whether the handler has finished, that is, no completion is being handled. The
    /// handler may sleep while a drive hangs.
    pub(crate) fn is_settled(&self) -> bool {
        self.pair.cq().is_settled()
    }

    /// Returns whether the queue pair serves several volumes.
    pub(crate) fn is_shared(&self) -> bool {
        self.never_waits
    }

    /// Returns the counters of messages, work requests and connections. Requests are counted for
    /// [each volume](VolumeConfig::counters).
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the measured durations of the states of requests.
    pub(crate) fn times(&self) -> &Times {
        &self.times
    }

    /// Sets whether to measure the durations of requests received from now on.
    pub(crate) fn set_timing(&self, on: bool) {
        self.timing.store(on, Relaxed);
    }

    pub(crate) fn shape(&self) -> &QueueShape {
        &self.shape
    }

    /// Publishes whether the completion handler must arm the completion queue for any completion,
    /// after a change of the state that the lock protects.
    #[inline]
    pub(super) fn update_notify(&self, work: &Work) {
        let notify_all = work.closing
            || work.keep_alive_pending
            || work.owed != 0
            || !work.waiting.is_empty()
            || !work.received.is_empty();
        self.notify_all.store(notify_all, Relaxed);
        if work.free.is_broken() {
            self.broken("a transfer buffer has no place");
        }
    }

    /// Returns whether other queue pairs wait for transfer buffers that this one may have: then a
    /// response must be reclaimed as soon as its SEND has completed.
    #[inline]
    pub(super) fn is_pressed(&self) -> bool {
        self.handle
            .as_ref()
            .is_some_and(|handle| handle.is_pressed())
    }

    #[inline]
    pub(super) fn check_all_idle(&self, work: &Work) {
        if work.closing && work.idle.len() == work.made {
            self.all_idle.set();
        }
    }

    /// Returns whether the queue posts no RDMA READ.
    pub(crate) fn no_read(&self) -> bool {
        self.shape.no_read
    }

    /// Returns whether a message may carry several requests.
    pub(crate) fn takes_batches(&self) -> bool {
        self.shape.inline != 0
    }

    /// Returns the most bytes of a request's inline data.
    pub(crate) fn inline_limit(&self) -> u32 {
        self.shape.inline
    }
}

/// Whether a session's initiator knows of a volatile write cache, and sends flushes. If not, each
/// write is on stable media before its response. Shared by the session and its queues.
pub(crate) type Flushes = Arc<Atomic<bool>>;

/// The identity of a queue, its session, and the volumes that it serves.
pub(crate) struct QueueConfig {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    pub(crate) index: u8,
    /// The workqueue on which completions are handled.
    pub(crate) completions: Arc<WorkQueue>,
    pub(crate) pd: Arc<ProtectionDomain>,
    /// The first volume of the queue, and its handle.
    pub(crate) volume: VolumeConfig,
    pub(crate) handle: Handle,
    /// The most volumes that the queue may have.
    pub(crate) volumes: u16,
}

impl Queue {
    /// Handles a completion other than that of a received message, or of a response that succeeded.
    #[inline(never)]
    fn complete_other(&self, completion: &Completion) {
        let work = completion.work();
        let ok = completion.is_ok();
        if !ok {
            self.work_failed(completion);
        }
        match work.kind {
            kind::RESPONSE => self.response_completed(work.index, ok),
            kind::RDMA_READ => {
                self.rdma_reads
                    .store(self.rdma_reads.load(Relaxed) - 1, Relaxed);
                match (self.inflight.take(work.index), completion.success()) {
                    (Some(request), Some(proof)) => self.rdma_read_completed(request, proof),
                    (Some(request), None) => self.reclaim(request),
                    (None, _) => {}
                }
            }
            kind::CHUNK => self.chunk_read_completed(work.index),
            kind::CHUNK_WRITTEN if ok => self.chunked.written(work.index),
            kind::KEEP_ALIVE => self.keep_alive_completed(),
            _ => {}
        }
    }
}

/// The most requests of several messages that are begun together: about the size of a round.
pub(super) const TOGETHER_MAX: usize = 16;

impl Handler for Queue {
    /// Eager writes that came with an immediate value only, one message each.
    type Round = Group<TOGETHER_MAX>;

    #[inline]
    fn complete(&self, together: &mut Self::Round, completion: &Completion) {
        let work = completion.work();
        self.moved.store(true, Relaxed);
        match work.kind {
            kind::RECEIVE if completion.is_ok() => {
                let message = Received {
                    buffer: work.index,
                    length: completion.byte_len(),
                    immediate: completion.immediate(),
                    admitted: 0,
                };
                self.receive(message, together);
            }
            kind::RESPONSE if completion.is_ok() => self.response_completed(work.index, true),
            _ => self.complete_other(completion),
        }
    }

    fn round_done(&self, together: &mut Self::Round) {
        self.start_together(together);
        self.round_over();
    }

    fn cq_notify(&self) -> CqNotify {
        let asked = self.notify_all.load(Relaxed) || trace::wants_chunk_completions();
        if self.rdma_reads.load(Relaxed) != 0 || asked || self.is_pressed() {
            CqNotify::Any
        } else {
            CqNotify::SolicitedOnly
        }
    }
}

/// The time limit for the drive and the HCA to finish requests that were begun, in milliseconds.
/// After that, requests in the HCA are given up; the drive is waited for.
const IDLE_MS: u32 = 30_000;

/// The interval for checking whether the completion handler has finished, or the session has ended,
/// in milliseconds.
const LOOK_MS: u32 = 1000;

impl Queue {
    /// Begins to remove the queue pair: no new request is begun, and posted work is flushed. May
    /// sleep.
    pub(crate) fn shut(&self) {
        {
            let mut work = self.work.lock();
            work.close();
            // Waiting requests become idle; their initiator gets no response.
            while let Some(mut request) = work.waiting.pop() {
                request.return_buffers(&mut work.free);
                self.keep_idle(&mut work, request);
            }
            self.check_all_idle(&work);
            self.update_notify(&work);
        }
        self.pair.disconnect();
        // If the queue pair cannot be moved to the error state, `drain()` reports it.
        let _ = self.pair.fail();
    }

    /// Removes the queue pair, and drops the references back to it. Sleeps until the drive has
    /// finished the requests that it has begun.
    pub(crate) fn close(&self) {
        self.shut();
        Self::close_all(|| core::iter::once(self), || {});
    }

    /// Closes queues as [`Self::close`] does one; all were [shut](Self::shut). If the HCA does not
    /// flush, the time limits of all queues run at the same time.
    ///
    /// If a drive does not finish in time, the queues are [severed](Self::sever) from the device
    /// before it does. If that succeeds for all of them, `severed` is called. Both are repeated
    /// while the drive takes longer.
    pub(crate) fn close_all<Q, I>(queues: impl Fn() -> I, severed: impl FnMut())
    where
        Q: Deref<Target = Self>,
        I: Iterator<Item = Q>,
    {
        Self::close_unless(queues, severed, || false);
    }

    /// Closes queues as [`Self::close_all`] does, unless `is_left` returns `true` while the drive
    /// works on their requests. Returns `false` in that case: the caller leaves the queues to a
    /// different owner.
    fn close_unless<Q, I>(
        queues: impl Fn() -> I,
        mut severed: impl FnMut(),
        is_left: impl Fn() -> bool,
    ) -> bool
    where
        Q: Deref<Target = Self>,
        I: Iterator<Item = Q>,
    {
        let shut = system::now_ns();
        for queue in queues() {
            let gone = system::now_ns().saturating_sub(shut) / 1_000_000;
            let left = IDLE_MS.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX));
            // `wait_for_requests()` handles a queue that exceeds this limit.
            if !queue.wait_idle(left, &is_left) && is_left() {
                return false;
            }
        }
        for queue in queues() {
            queue.pair.begin_drain();
        }
        let mut all_idle = true;
        for queue in queues() {
            all_idle &= queue.settle();
        }
        let mut sever = || {
            if Self::sever_all(queues()) {
                severed();
            }
        };
        if !all_idle {
            sever();
        }
        for queue in queues() {
            if !queue.wait_for_requests(&mut sever, &is_left) {
                return false;
            }
        }
        // The drive's completion handlers that made the last requests idle may still hold
        // references, and must not drop the last one.
        synchronize_completions();
        // The completion queues wait for a grace period together.
        for queue in queues() {
            queue.pair.drain();
            queue.pair.cq().begin_stop();
        }
        for queue in queues() {
            queue.finish();
        }
        true
    }

    /// Waits until all requests are idle, for `ms` milliseconds at most, and not after `is_left`
    /// has returned `true`. Returns whether all are idle.
    fn wait_idle(&self, ms: u32, is_left: &impl Fn() -> bool) -> bool {
        let mut left = ms;
        loop {
            let step = left.min(LOOK_MS);
            if self.all_idle.wait_ms(step).is_ok() {
                return true;
            }
            left -= step;
            if left == 0 || is_left() {
                return false;
            }
        }
    }

    /// Reclaims the work that the queue pair, which was [failed](Self::close_all), does not
    /// complete, and returns whether the drive has finished all requests. May sleep: while a
    /// completion handler waits for a drive that accepts no more requests, and for the HCA.
    fn settle(&self) -> bool {
        if self.all_idle.wait_ms(0).is_err() {
            self.session.strand();
            self.wait_for_handler();
            // Either the drive is slow or the HCA does not flush. Work of the queue pair will not
            // complete then; all memory that the HCA reaches is retained until the pair is
            // destroyed ([`KeptMemory`]).
            self.pair.drain();
            self.give_up_all();
        }
        self.all_idle.wait_ms(0).is_ok()
    }

    /// Returns whether the queue can be severed from the device before the drive has finished: not
    /// if requests have regions of their own, or use memory of a PCI device, which the HCA may
    /// reach.
    fn can_be_severed(&self) -> bool {
        !self.shape.sinks && !self.uses_peers()
    }

    /// Destroys all the queue's objects at the RDMA device, while the drive works on requests,
    /// whose memory stays allocated. Requests that the drive finishes afterwards get no response:
    /// posting fails, and they are given up. Returns `false` if the queue still has objects at the
    /// device; may be called again. The queue was [settled](Self::settle). Sleeps, but not for the
    /// drive.
    fn sever(&self) -> bool {
        if !self.can_be_severed() {
            return false;
        }
        self.pair.drain();
        if let Some(handle) = &self.handle {
            handle.detach();
        }
        self.pair.detach();
        self.pair.sever();
        // Only now, when no work request can use the memory any more.
        let revoked = self
            .eager_ring
            .as_ref()
            .is_none_or(|ring| ring.sever().is_ok());
        DmaBuffer::sever_all(|| {
            let messages = Iterator::chain(self.incoming.blocks(), self.outgoing.blocks());
            let data = Iterator::chain(self.inline.iter(), self.buffers.iter());
            Iterator::chain(messages, data)
        });
        revoked
    }

    /// [Severs](Self::sever) queues that were closed, or whose drive does not finish. Returns
    /// whether all were severed.
    pub(crate) fn sever_all<Q: Deref<Target = Self>>(queues: impl Iterator<Item = Q>) -> bool {
        queues.fold(true, |all, queue| queue.sever() && all)
    }

    /// Waits until the drive has finished all requests, and calls `sever` from time to time until
    /// then. Returns `false` if `is_left` has returned `true` meanwhile.
    fn wait_for_requests(&self, sever: &mut impl FnMut(), is_left: &impl Fn() -> bool) -> bool {
        while !self.settle() {
            if self.wait_idle(IDLE_MS, is_left) {
                continue;
            }
            if is_left() {
                return false;
            }
            self.report_waiting();
            sever();
        }
        true
    }

    /// Completes the work of [`Self::close_unless`] for one queue. Its requests are idle, and its
    /// queue pair is drained. Sleeps.
    fn finish(&self) {
        self.pair.cq().stop();
        if let Some(handle) = &self.handle {
            handle.detach();
        }
        self.pair.detach();
        let requests = core::mem::take(&mut self.work.lock().idle);
        drop(requests);
        // See `keep_idle()`.
        for index in 0..self.shape.requests {
            drop(self.inflight.take(index));
        }
        self.chunked.clear();
        self.trace_state(ConnectionState::Ended);
    }

    /// Waits while the completion handler is busy, which blocks while the drive accepts no
    /// requests. No one has handled the completions of the queue pair meanwhile, so the HCA is not
    /// at fault. Sleeps until the drive continues.
    fn wait_for_handler(&self) {
        self.pair.cq().kick();
        for look in 1u64.. {
            if self.is_settled() {
                return;
            }
            if self.all_idle.wait_ms(LOOK_MS).is_ok() {
                // No request is left to wait for.
                return self.pair.cq().settle();
            }
            if look % u64::from(IDLE_MS / LOOK_MS) == 0 {
                self.report_waiting();
            }
        }
    }

    #[cold]
    fn report_waiting(&self) {
        pr_warn!(
            "{}: session {:016x}: still waiting for the drive to finish requests of a closed queue pair\n",
            self.session.label(),
            self.session_id.0
        );
    }

    /// Gives up all requests that the queue pair has; no completion will end them any more.
    fn give_up_all(&self) {
        for index in 0..self.shape.requests {
            if let Some(request) = self.inflight.take(index) {
                self.give_up(request);
            }
        }
        self.chunked.give_up();
    }

    /// Closes the queue as [`Self::close`] does, while the session continues: from now on a failure
    /// here does not end the session. Returns `false` if the session ends while the drive works on
    /// requests: then the teardown closes the queue.
    pub(crate) fn close_alone(&self) -> bool {
        self.leaving.store(true, Release);
        self.pair.detach();
        self.shut();
        let is_closed = Self::close_unless(
            || core::iter::once(self),
            || {},
            // The removal of the RDMA device ends the session as well: all its queue pairs are on
            // one device.
            || self.session.is_ending(),
        );
        if is_closed {
            // The completion handler has stopped: the counter has no other writer.
            self.counters.replaced_queues.bump();
        }
        is_closed
    }
}

/// The number of keep-alive periods without a completion after which a queue pair with chunks under
/// way sends a keep-alive. An unanswered RDMA READ has failed by then: 10 s have passed, and its
/// last repetition is sent after 7 s (`ACK_TIMEOUT` and `RETRY_COUNT` of the core's `rdma/cm.rs`).
const QUIET_MIN: u32 = 2;

impl Queue {
    /// Starts the keep-alive, after the connection was accepted.
    pub(crate) fn go_live(&self) {
        self.keep_alive_completed();
        self.trace_state(ConnectionState::Live);
    }

    /// Emits the trace event of a new state.
    pub(crate) fn trace_state(&self, state: ConnectionState) {
        trace::target::queue(|| Change {
            session: self.session_id.0,
            epoch: self.epoch.0,
            queue: Some(self.index),
            state,
            error: 0,
        });
    }

    /// Handles the completion of a keep-alive.
    pub(super) fn keep_alive_completed(&self) {
        let mut work = self.work.lock();
        work.keep_alive_pending = false;
        self.update_notify(&work);
    }

    /// Sends a keep-alive, every
    /// [`KEEP_ALIVE_PERIOD_MS`](hcablk_core::logic::session_state::KEEP_ALIVE_PERIOD_MS). Process
    /// context.
    ///
    /// A queue pair with transfers or responses under way sends none: their completions are proof
    /// enough. Moreover, a keep-alive must not meet an RDMA READ on soft-RoCE. If an empty write
    /// follows an RDMA READ, the responder there cannot repeat the response to the READ
    /// (`read_reply()` of `rxe_resp.c` uses the length of the last request for it), and breaks the
    /// connection with a warning. It is unknown whether a chunk is on the wire or in the drive:
    /// chunks count as on the wire until [`QUIET_MIN`] keep-alive periods have passed without a
    /// completion, so that a hanging drive does not hide a dead initiator.
    ///
    /// On iWARP a keep-alive completes when TCP has accepted it; there only the session's admin
    /// queue pair detects a dead initiator.
    pub(crate) fn send_keep_alive(&self) {
        let moved = self.moved.xchg(false, Relaxed);
        {
            let mut work = self.work.lock();
            work.quiet = if moved {
                0
            } else {
                work.quiet.saturating_add(1)
            };
            let on_wire =
                !self.inflight.is_empty() || (!self.chunked.is_empty() && work.quiet < QUIET_MIN);
            if on_wire {
                // Poll for completions of these requests.
                drop(work);
                return self.pair.cq().kick();
            }
            if work.closing || work.keep_alive_pending || work.silent {
                return;
            }
            work.keep_alive_pending = true;
            self.update_notify(&work);
        }
        let mut keep_alive = Rdma::empty_write();
        keep_alive.signal(WorkId::new(kind::KEEP_ALIVE, 0));
        let mut chain = Chain::new();
        chain.push(&mut keep_alive);
        self.batcher.rang(1);
        if self.pair.post(&chain).is_err() {
            self.unposted("a keep-alive", None);
        }
        self.pair.cq().kick();
    }
}
