// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session: its completions, its keep-alives, and its end.
//!
//! # Locks and contexts
//!
//! Completions are handled in process context, one at a time for a queue; the drive's may come in
//! any context. One lock, `work`: taken once when a request is admitted, which also makes a
//! completed one idle again ([`reclaim`](super::reclaim)). Between these the request belongs to
//! whoever works on it.
//!
//! # CQ notification
//!
//! The completion of an answer's send raises no event: the round that handles the next request
//! finds it, unless a request waits for buffers or for the HCA. The initiator's messages are
//! solicited. Every keep-alive has the queue polled for what is left, and for errors.
//!
//! Answers that come while a round of completions lasts are posted together
//! ([`respond`](super::respond)).
//!
//! # Limits
//!
//! There are as many receive buffers as credits were granted, and twice as many [`Request`]s: an
//! answer grants its credit before its own send has completed, and a request that comes in
//! meanwhile finds an idle one. If it does not, it waits in its receive buffer, which is its own,
//! or that of several requests: then it is posted again with the answer to the last of them.
//! Requests that find no transfer buffers wait in the order in which they came: for the queue's
//! own, or for those that others give back ([`memory`](crate::memory)).

use super::{
    chunks::ChunkedRequests,
    eager::AnsweredSlots,
    fault::Named,
    limits::Shape,
    queue_volume::{
        VolumeConfig,
        Volumes, //
    },
    reclaim::{
        CompletedSends,
        Kept, //
    },
    request::Request,
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
        State, //
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

/// Kinds of work, in work ids. The index is a [`Request`]'s or a receive buffer's.
pub(super) mod kind {
    pub(in super::super) const ANSWER: u8 = 1;
    pub(in super::super) const RECEIVE: u8 = 2;
    pub(in super::super) const FETCH: u8 = 3;
    pub(in super::super) const PART: u8 = 4;
    pub(in super::super) const KEEP_ALIVE: u8 = 5;
    pub(in super::super) const SINK: u8 = 6;
    pub(in super::super) const CHUNK: u8 = 7;
    pub(in super::super) const EAGER_RING: u8 = 8;
    /// The RDMA WRITE of a chunk, while that is traced.
    pub(in super::super) const CHUNK_WRITTEN: u8 = 9;
}

/// What a receive buffer was used for.
#[derive(Clone, Copy)]
pub(super) struct Received {
    pub(super) buffer: u32,
    /// Bytes of the message, or of the data that came with an immediate value.
    pub(super) length: usize,
    pub(super) immediate: Option<u32>,
    /// Requests of it that were admitted.
    pub(super) admitted: usize,
}

impl Received {
    /// Returns the same message, of which one request more was admitted.
    #[inline]
    pub(super) fn behind(self) -> Self {
        Self {
            admitted: self.admitted + 1,
            ..self
        }
    }
}

/// What `Queue::work` guards.
pub(super) struct Work {
    pub(super) idle: KVec<KBox<Request>>,
    /// Wait for transfer buffers.
    pub(super) waiting: Fifo<KBox<Request>>,
    /// Wait for an idle `Request`.
    pub(super) received: Fifo<Received>,
    /// Which slots of the eager ring are taken.
    pub(super) ring: Ring<KVec<Taken>>,
    /// The eager ring is still to be registered.
    pub(super) unregistered: bool,
    /// Transfer buffers that are free. Dropped after the queue pair.
    pub(super) free: Pool,
    /// What the HCA may still use. Dropped after the queue pair.
    pub(super) kept: Kept,
    /// Chunks that are free.
    pub(super) chunks: KVec<u16>,
    /// `Request`s that were made.
    pub(super) made: usize,
    /// Nothing new is begun.
    pub(super) closing: bool,
    /// A keep-alive is under way, or the connection is not up yet.
    pub(super) keep_alive_pending: bool,
    /// The initiator must send first, and has not yet.
    pub(super) silent: bool,
    /// Keep-alives since something has completed.
    pub(super) quiet: u32,
    /// Answers under way that tell of the error of a flush: the session is to know at once when
    /// they were sent.
    pub(super) owed: u32,
    /// What requests may be about. Dropped last: its peer memory waits for what the others have of
    /// that.
    pub(super) volumes: Volumes,
}

impl Work {
    /// Stops new requests, and keeps the transfer buffers from others.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.free.close();
    }
}

/// See the module. Its completion queue and its `Request`s hold references to it
/// until [`Queue::close`].
#[pin_data]
pub(crate) struct Queue {
    pub(super) session: Arc<Session>,
    pub(super) session_id: SessionId,
    pub(super) epoch: Epoch,
    pub(super) index: u8,
    pub(super) pd: Arc<ProtectionDomain>,
    pub(super) pair: QueuePair<Queue>,
    pub(super) shape: Shape,
    /// Something has completed since the last keep-alive.
    pub(super) moved: Atomic<bool>,
    /// The longest read that is answered by one RDMA WRITE with an immediate value; 0: the
    /// transport knows none.
    pub(super) immediate_bytes: usize,
    /// Data is sent by requests that are reported each by itself. Of one that is not, soft-iWARP
    /// has TCP send the very pages (`siw_qp_prepare_tx()`), which it does when it likes: also after
    /// the answer behind it has completed, and the buffer is another request's. That the send of an
    /// answer has completed does not say there that it has arrived either.
    pub(super) all_reported: bool,
    pub(super) incoming: MessageBuffers<BUFFER_LEN>,
    /// Where the data that a request brings with it is put, one for each
    /// receive buffer; empty when none may.
    pub(super) inline: KVec<DmaBuffer>,
    /// These have to be given to the HCA.
    pub(super) inline_syncs: bool,
    /// By which entries each receive buffer is posted: that of a message, and that of inline data
    /// if it may bring some.
    pub(super) receives: KVec<[Sge; RECEIVE_ENTRIES]>,
    pub(super) outgoing: MessageBuffers<BUFFER_LEN>,
    /// The memory into which the initiator puts the data of eager writes.
    pub(super) eager_ring: Option<EagerRing>,
    pub(super) buffers: KVec<DmaBuffer>,
    /// By which transfer buffers are borrowed, if they are.
    pub(super) handle: Option<Arc<PoolHandle>>,
    pub(super) inflight: SlotTable<Request>,
    pub(super) named: Named,
    #[pin]
    pub(super) chunked: ChunkedRequests,
    /// Writes whose data is being fetched. Counted by the completion handler.
    pub(super) fetching: Atomic<u32>,
    /// The completion queue is to be armed for any completion: see [`Self::update_notify`].
    pub(super) notify_all: Atomic<bool>,
    /// See [`Self::wake`].
    pub(super) woken: Atomic<bool>,
    pub(super) completed_sends: CompletedSends,
    pub(super) answered_slots: AnsweredSlots,
    /// Dropped after the pair.
    #[pin]
    pub(super) work: IrqLock<Work>,
    #[pin]
    pub(super) batcher: ResponseBatcher,
    /// Only this queue pair is taken down: see [`Self::close_alone`].
    pub(super) leaving: Atomic<bool>,
    /// The queue is closing and every `Request` is idle.
    #[pin]
    pub(super) all_idle: Event,
    pub(super) counters: Counters,
    /// How long requests take is measured.
    pub(super) timing: Atomic<bool>,
    pub(super) times: Times,
    /// All of the above, in the port's account: the last to be dropped.
    pub(super) _charge: Charge,
}

impl Queue {
    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// Returns a transfer buffer of the queue's own.
    #[inline]
    pub(super) fn buffer(&self, number: u16) -> Option<&DmaBuffer> {
        self.buffers.get(usize::from(number))
    }

    /// Calls `f` with the peer memory and who lends it, if there is any. May sleep.
    pub(crate) fn with_lease<R>(&self, f: impl FnOnce(&Provider, &PeerMemory) -> R) -> Option<R> {
        let volume = self.leased_volume()?;
        let lease = volume.lease()?;
        Some(f(lease.provider(), &*lease.memory()?))
    }

    /// Returns the number of the queue pair, as the transport tells it to the initiator.
    pub(crate) fn number(&self) -> u32 {
        self.pair.own_number()
    }

    /// Starts bringing the counters up to date, and does not wait for it.
    pub(crate) fn kick(&self) {
        self.pair.cq().kick();
    }

    /// Returns whether that is done: no completion is being handled. Its handler may sleep for as
    /// long as a drive hangs.
    pub(crate) fn is_settled(&self) -> bool {
        self.pair.cq().is_settled()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns how long requests were in their states.
    pub(crate) fn times(&self) -> &Times {
        &self.times
    }

    /// Sets whether to measure how long requests take that are received from now on.
    pub(crate) fn time(&self, on: bool) {
        self.timing.store(on, Relaxed);
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Publishes whether the completion handler is to arm the completion queue for any
    /// completion, after a change of what the lock guards.
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

    /// Returns whether others wait for transfer buffers that the queue may have: then an answer
    /// whose send has completed is to be reclaimed at once.
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

/// Whether a session's initiator knows of a volatile write cache, and sends flushes. While it does
/// not, each write is on stable media before it is answered. Shared by the session and its queues.
pub(crate) type Flushes = Arc<Atomic<bool>>;

/// Which queue it is, of which session, and what it serves.
pub(crate) struct QueueConfig {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    pub(crate) index: u8,
    /// Where completions are handled.
    pub(crate) completions: Arc<WorkQueue>,
    pub(crate) pd: Arc<ProtectionDomain>,
    /// The volume that it has from the beginning, and its handle.
    pub(crate) volume: VolumeConfig,
    pub(crate) handle: Handle,
    /// Volumes that it may have.
    pub(crate) volumes: u16,
}

impl Queue {
    /// Handles a completion that is neither a message's nor the usual one of an answer.
    #[inline(never)]
    fn complete_other(&self, completion: &Completion) {
        let work = completion.work();
        let ok = completion.is_ok();
        if !ok {
            self.work_failed(completion);
        }
        match work.kind {
            kind::ANSWER => self.answer_completed(work.index, ok),
            kind::FETCH => {
                self.fetching
                    .store(self.fetching.load(Relaxed) - 1, Relaxed);
                match (self.inflight.take(work.index), completion.success()) {
                    (Some(request), Some(proof)) => self.fetched(request, proof),
                    (Some(request), None) => self.reclaim(request),
                    (None, _) => {}
                }
            }
            kind::CHUNK => self.chunk_fetched(work.index),
            kind::CHUNK_WRITTEN if ok => self.chunked.written(work.index),
            kind::KEEP_ALIVE => self.keep_alive_completed(),
            _ => {}
        }
    }
}

impl Handler for Queue {
    type Round = ();

    #[inline]
    fn complete(&self, (): &mut (), completion: &Completion) {
        let work = completion.work();
        self.moved.store(true, Relaxed);
        match work.kind {
            kind::RECEIVE if completion.is_ok() => self.receive(Received {
                buffer: work.index,
                length: completion.byte_len(),
                immediate: completion.immediate(),
                admitted: 0,
            }),
            kind::ANSWER if completion.is_ok() => self.answer_completed(work.index, true),
            _ => self.complete_other(completion),
        }
    }

    fn round_done(&self, (): &mut ()) {
        self.round_over();
    }

    fn cq_notify(&self) -> CqNotify {
        let asked = self.notify_all.load(Relaxed) || trace::wants_chunk_completions();
        if self.fetching.load(Relaxed) != 0 || asked || self.is_pressed() {
            CqNotify::Any
        } else {
            CqNotify::SolicitedOnly
        }
    }
}

/// How long the drive and the HCA may take to finish what was begun, in milliseconds. After that
/// what the HCA has is taken from it; the drive is waited for.
const IDLE_MS: u32 = 30_000;

/// How often it is looked whether the completion handler has ended, in milliseconds.
const HANDLER_LOOK_MS: u32 = 1000;

impl Queue {
    /// Begins to take the queue pair down: nothing new is begun, what is posted
    /// is flushed. May sleep.
    pub(crate) fn shut(&self) {
        {
            let mut work = self.work.lock();
            work.close();
            // Those that wait become idle; their initiator gets no answer.
            while let Some(mut request) = work.waiting.pop() {
                request.return_buffers(&mut work.free);
                self.keep_idle(&mut work, request);
            }
            self.check_all_idle(&work);
            self.update_notify(&work);
        }
        self.pair.disconnect();
        // If it cannot be failed `drain()` says so.
        let _ = self.pair.fail();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps
    /// until the drive has finished what it has begun.
    pub(crate) fn close(&self) {
        self.shut();
        Self::close_all(|| core::iter::once(self), || {});
    }

    /// Closes queues as [`Self::close`] does one; all were [shut](Self::shut). A step takes the
    /// time for one of them if the HCA does not flush.
    ///
    /// If a drive does not finish, what they have of the device goes before it does, and `severed`
    /// is called then, unless something is left of that.
    pub(crate) fn close_all<Q, I>(queues: impl Fn() -> I, severed: impl FnOnce())
    where
        Q: Deref<Target = Self>,
        I: Iterator<Item = Q>,
    {
        let shut = system::now_ns();
        for queue in queues() {
            let gone = system::now_ns().saturating_sub(shut) / 1_000_000;
            let left = IDLE_MS.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX));
            // It may take longer, see `finish()`.
            let _ = queue.all_idle.wait_ms(left);
        }
        for queue in queues() {
            queue.pair.begin_drain();
        }
        let mut all_idle = true;
        for queue in queues() {
            all_idle &= queue.settle();
        }
        if !all_idle && queues().fold(true, |severed, queue| queue.sever() && severed) {
            severed();
        }
        for queue in queues() {
            queue.finish();
        }
    }

    /// Takes from the queue pair, which was [failed](Self::close_all), what it does not give back,
    /// and returns whether nothing is left with the drive. May sleep, as long as a completion handler
    /// waits for a drive that takes no more requests, and the HCA needs.
    fn settle(&self) -> bool {
        if self.all_idle.wait_ms(0).is_err() {
            self.session.strand();
            self.wait_for_handler();
            // Either the drive is slow or the HCA does not flush. What the
            // queue pair has is not coming back then; all that the HCA reaches
            // stays until the pair is destroyed ([`Kept`]).
            self.pair.drain();
            self.give_up_all();
        }
        self.all_idle.wait_ms(0).is_ok()
    }

    /// Returns whether the HCA can be left before the drive has finished: not if requests have
    /// regions of their own, or memory of the HCA's or of another PCI device, which the HCA reaches.
    fn can_be_severed(&self) -> bool {
        !self.shape.sinks && !self.uses_peers()
    }

    /// Gives back to the device all that the queue has of it, while the drive goes on: it uses memory
    /// that stays. What the drive finishes then is not answered: posting fails, and the request is
    /// given up. `false`: something is left. The queue was [settled](Self::settle); sleeps, but not
    /// for the drive.
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
        // Only now: no work uses them any more, and none will.
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

    /// Ends what [`Self::close_all`] has begun. Sleeps until the drive has finished.
    fn finish(&self) {
        while !self.settle() {
            if self.all_idle.wait_ms(IDLE_MS).is_err() {
                self.report_waiting();
            }
        }
        // The drive's completions that made the last ones idle may still hold
        // references, and must not be the last to.
        synchronize_completions();
        self.pair.drain();
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
        self.comes_to(State::Ended);
    }

    /// Waits while the completion handler is busy, which waits for the drive if that takes no more
    /// requests: what the queue pair has done meanwhile, nobody has reported, which is no fault of
    /// the HCA's. Sleeps as long as the drive takes.
    fn wait_for_handler(&self) {
        self.pair.cq().kick();
        for look in 1u64.. {
            if self.is_settled() {
                return;
            }
            if self.all_idle.wait_ms(HANDLER_LOOK_MS).is_ok() {
                // It has nothing to wait for any more.
                return self.pair.cq().settle();
            }
            if look % u64::from(IDLE_MS / HANDLER_LOOK_MS) == 0 {
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

    /// Gives up what the queue pair has. Its completion handler does so no more.
    fn give_up_all(&self) {
        for index in 0..self.shape.requests {
            if let Some(request) = self.inflight.take(index) {
                self.give_up(request);
            }
        }
        self.chunked.give_up();
    }

    /// Closes the queue as [`Self::close`] does, while the session goes on: failures here do not
    /// end it any more.
    pub(crate) fn close_alone(&self) {
        self.leaving.store(true, Release);
        self.pair.detach();
        self.close();
        // Completions are over: the counter has no other writer.
        self.counters.replaced_queues.bump();
    }
}

/// Keep-alive periods without a completion after which a queue pair with chunks under way gets
/// one. An RDMA
/// READ that was not answered by then has been given up: that is 10 s, and its last repetition
/// comes after 7 (`ACK_TIMEOUT` and `RETRY_COUNT` of the core's `rdma/cm.rs`).
const QUIET_MIN: u32 = 2;

impl Queue {
    /// Starts the keep-alive, after the connection was accepted.
    pub(crate) fn go_live(&self) {
        self.keep_alive_completed();
        self.comes_to(State::Live);
    }

    /// Tells of a state to who listens.
    pub(crate) fn comes_to(&self, state: State) {
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
    /// A queue pair with transfers or answers under way is left out: they tell as much. And a
    /// keep-alive must not meet an RDMA READ on soft-RoCE: with an empty write after it the
    /// responder there cannot repeat the answer to an RDMA READ (`read_reply()` of `rxe_resp.c`
    /// takes the length of the last request for this one's), and breaks the connection with a
    /// warning. Of chunks it is not known whether they are on the wire or with the drive: they
    /// count as the former until nothing has completed for [`QUIET_MIN`] keep-alives, so that a
    /// drive that hangs does not hide an initiator that died meanwhile.
    ///
    /// On iWARP it completes when TCP has taken it; there the session's admin queue pair alone
    /// tells.
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
                // Perhaps of those that have completed.
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
