// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session: the I/O path.
//!
//! - [`setup`], [`close`]: its beginning and its end; [`shape`], [`cost`]: how large it is.
//! - [`receive`], [`start`]: from a message to a request that is under way.
//! - [`rdma_read`], [`eager`]: where the data of writes comes from.
//! - [`chunked`], [`chunk`]: large requests, which move in chunks.
//! - [`respond`], [`response_batch`]: answers.
//! - [`complete`], [`reclaim`], [`count`]: the completion of work, and the end of a request.
//! - [`fault`], [`fail`], [`kept`]: what goes wrong, and what requests leave behind then.
//! - [`keep_alive`]: whether the connection still works.
//! - [`owner`]: what it knows of its session, and tells it; [`requests`]: what its requests ask of it.
//!
//! # Locks and contexts
//!
//! Completions are handled in process context, one at a time for a queue; the
//! drive's may come in any context. One lock, `work`: taken once when a request
//! is admitted, which also makes a completed one idle again ([`reclaim`]). Between these the
//! request belongs to whoever works on it.
//!
//! # CQ notification
//!
//! The completion of an answer's send raises no event: the round that handles the next request
//! finds it, unless a request waits for buffers or for the HCA. The initiator's messages are
//! solicited. Every keep-alive has the queue polled for what is left, and for errors.
//!
//! Answers that come while a round of completions lasts are posted together
//! ([`response_batch`]).
//!
//! # Limits
//!
//! There are as many receive buffers as credits were granted, and twice as many
//! [`Io`]s: an answer grants its credit before its own send has completed, and
//! a request that comes in meanwhile finds an idle one. If it does not, it
//! waits in its receive buffer, which is its own, or that of several requests: then it
//! is posted again with the answer to the last of them. Requests that find no transfer buffers wait in
//! the order in which they came: for the queue's own, or for those that others give back
//! ([`memory`](crate::memory)).

use crate::{
    memory::{
        pool::Pool,
        Charge,
        PoolHandle, //
    },
    request,
    stats::{
        Counters,
        Times, //
    },
    storage::{
        backing::Backing,
        flush_errors::Teller,
        write_errors::WriteErrors, //
    }, //
};
use hcablk_core::sync::atomic::{
    Atomic,
    Relaxed, //
};
use hcablk_core::{
    containers::fifo::Fifo,
    containers::slots::SlotTable,
    memory::eager_ring::EagerRing,
    p2p::{
        PeerLease,
        PeerMemory,
        Provider, //
    },
    proto::{
        connect::{
            Epoch,
            Geometry,
            SessionId, //
        },
        grant::{
            Ring,
            Taken, //
        },
        message::BUFFER_LEN,
        name::HostId,
    },
    rdma::{
        buffer::{
            DmaBuffer,
            MessageBuffers, //
        },
        pd::ProtectionDomain,
        qp::QueuePair,
        wr::Sge, //
    },
    sync::{
        Event,
        IrqLock,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

mod chunk;
mod chunked;
mod close;
mod complete;
mod cost;
mod count;
mod eager;
mod fail;
mod fault;
mod keep_alive;
mod kept;
mod owner;
mod rdma_read;
mod receive;
mod reclaim;
mod requests;
mod respond;
mod response_batch;
mod setup;
mod shape;
mod start;

use self::{
    chunked::ChunkedRequests,
    eager::AnsweredSlots,
    fail::Named,
    kept::Kept,
    reclaim::CompletedSends,
    response_batch::ResponseBatcher, //
};
pub(crate) use self::{
    cost::bytes_of_messages,
    fault::{
        Fault,
        Subject, //
    },
    owner::{
        Flushes,
        QueueConfig,
        QueueOwner, //
    },
    shape::{
        QueueOptions,
        Shape, //
    },
};

/// A request of a queue.
type Io = request::Io<Queue>;

/// The most pieces of a receive buffer.
const RECEIVE_ENTRIES: usize = 2;

/// Kinds of work, in work ids. The index is an [`Io`]'s or a receive buffer's.
mod kind {
    pub(super) const ANSWER: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
    pub(super) const FETCH: u8 = 3;
    pub(super) const PART: u8 = 4;
    pub(super) const KEEP_ALIVE: u8 = 5;
    pub(super) const SINK: u8 = 6;
    pub(super) const CHUNK: u8 = 7;
    pub(super) const EAGER_RING: u8 = 8;
    /// The RDMA WRITE of a chunk, while that is traced.
    pub(super) const CHUNK_WRITTEN: u8 = 9;
}

/// What a receive buffer was used for.
#[derive(Clone, Copy)]
struct Received {
    buffer: u32,
    /// Bytes of the message, or of the data that came with an immediate value.
    length: usize,
    immediate: Option<u32>,
    /// Requests of it that were admitted.
    admitted: usize,
}

impl Received {
    /// Returns the same message, of which one request more was admitted.
    #[inline]
    fn behind(self) -> Self {
        Self {
            admitted: self.admitted + 1,
            ..self
        }
    }
}

/// What `Queue::work` guards.
struct Work {
    idle: KVec<KBox<Io>>,
    /// Wait for transfer buffers.
    waiting: Fifo<KBox<Io>>,
    /// Wait for an idle `Io`.
    received: Fifo<Received>,
    /// Which slots of the eager ring are taken.
    ring: Ring<KVec<Taken>>,
    /// The eager ring is still to be registered.
    unregistered: bool,
    /// Transfer buffers that are free. Dropped after the queue pair.
    free: Pool,
    /// What the HCA may still use. Dropped after the queue pair.
    kept: Kept,
    /// Chunks that are free.
    chunks: KVec<u16>,
    /// `Io`s that were made.
    made: usize,
    /// Nothing new is begun.
    closing: bool,
    /// A keep-alive is under way, or the connection is not up yet.
    keep_alive_pending: bool,
    /// The initiator must send first, and has not yet.
    silent: bool,
    /// Keep-alives since something has completed.
    quiet: u32,
    /// Answers under way that tell of the error of a flush: the session is to know at once when
    /// they were sent.
    owed: u32,
}

impl Work {
    /// Stops new requests, and keeps the transfer buffers from others.
    fn close(&mut self) {
        self.closing = true;
        self.free.close();
    }
}

/// See the module. Its completion queue and its `Io`s hold references to it
/// until [`Queue::close`].
#[pin_data]
pub(crate) struct Queue {
    owner: Arc<dyn QueueOwner>,
    session: SessionId,
    /// Of the session.
    host: HostId,
    epoch: Epoch,
    index: u8,
    pd: Arc<ProtectionDomain>,
    /// The volume, as this queue's initiator is told.
    geometry: Geometry,
    flushes: Flushes,
    /// See [`Backing::writes_with_fua`].
    with_fua: bool,
    pair: QueuePair<Queue>,
    shape: Shape,
    /// Something has completed since the last keep-alive.
    moved: Atomic<bool>,
    /// The longest read that is answered by one RDMA WRITE with an immediate value; 0: the transport knows none.
    immediate_bytes: usize,
    /// See [`Backing::is_straight`].
    is_straight: bool,
    /// Data is sent by requests that are reported each by itself. Of one that is
    /// not, soft-iWARP has TCP send the very pages (`siw_qp_prepare_tx()`),
    /// which it does when it likes: also after the answer behind it has
    /// completed, and the buffer is another request's. That the send of an answer has completed does
    /// not say there that it has arrived either.
    all_reported: bool,
    incoming: MessageBuffers<BUFFER_LEN>,
    /// Where the data that a request brings with it is put, one for each
    /// receive buffer; empty when none may.
    inline: KVec<DmaBuffer>,
    /// These have to be given to the HCA.
    inline_syncs: bool,
    /// By which entries each receive buffer is posted: that of a message, and that of inline data if it may bring some.
    receives: KVec<[Sge; RECEIVE_ENTRIES]>,
    outgoing: MessageBuffers<BUFFER_LEN>,
    /// The memory into which the initiator puts the data of eager writes.
    eager_ring: Option<EagerRing>,
    buffers: KVec<DmaBuffer>,
    /// By which transfer buffers are borrowed, if they are.
    handle: Option<Arc<PoolHandle>>,
    inflight: SlotTable<Io>,
    named: Named,
    #[pin]
    chunked: ChunkedRequests,
    /// Writes whose data is being fetched. Counted by the completion handler.
    fetching: Atomic<u32>,
    /// The completion queue is to be armed for any completion: see [`Self::update_notify`].
    notify_all: Atomic<bool>,
    /// See [`Waker::wake`](crate::memory::Waker::wake).
    woken: Atomic<bool>,
    completed_sends: CompletedSends,
    answered_slots: AnsweredSlots,
    /// Dropped after the pair, and before the leases, since these wait for what it has.
    #[pin]
    work: IrqLock<Work>,
    /// Peer memory beside the first buffers.
    lease: Option<PeerLease>,
    /// The cache's lines, if they are in peer memory that the HCA reaches.
    view: Option<PeerLease>,
    /// It may have the cache, whose own lease waits for the view of it.
    backing: Arc<Backing>,
    /// Which errors of the session's writes are still to be told.
    write_errors: Arc<WriteErrors>,
    teller: Teller,
    #[pin]
    batcher: ResponseBatcher,
    /// Only this queue pair is taken down: see [`Self::close_alone`].
    leaving: Atomic<bool>,
    /// The queue is closing and every `Io` is idle.
    #[pin]
    all_idle: Event,
    counters: Counters,
    /// How long requests take is measured.
    timing: Atomic<bool>,
    times: Times,
    /// All of the above, in the port's account: the last to be dropped.
    _charge: Charge,
}

impl Queue {
    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    #[inline]
    fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns whether a write that begins now is sent to the drive as one with FUA, though its initiator has not asked for that.
    #[inline]
    fn forces_fua(&self) -> bool {
        self.with_fua && !self.flushes.load(Relaxed) && self.backing.is_volatile()
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the workqueue on which requests wait for drives.
    fn io_work(&self) -> &WorkQueue {
        self.backing.io_work()
    }

    /// Returns the bytes of the volume at this moment, in whole blocks; 0 if the drive is gone.
    #[inline]
    fn capacity(&self) -> u64 {
        let block = 1u64 << self.geometry.logical_block_shift;
        self.backing.size_bytes() & !(block - 1)
    }

    /// Returns a transfer buffer of the queue's own.
    #[inline]
    fn buffer(&self, number: u16) -> Option<&DmaBuffer> {
        self.buffers.get(usize::from(number))
    }

    /// Returns the peer memory and who lends it, if there is any.
    pub(crate) fn lease(&self) -> Option<(&Provider, Arc<PeerMemory>)> {
        let lease = self.lease.as_ref()?;
        Some((lease.provider(), lease.memory()?))
    }

    /// Returns the number of the queue pair, as the transport tells it to the initiator.
    pub(crate) fn number(&self) -> u32 {
        self.pair.id().own_qp(self.pair.number())
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
    fn update_notify(&self, work: &Work) {
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
    fn is_pressed(&self) -> bool {
        self.handle
            .as_ref()
            .is_some_and(|handle| handle.is_pressed())
    }

    #[inline]
    fn check_all_idle(&self, work: &Work) {
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
