// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session: the I/O path.
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
        layout::BUFFER_ORDER,
        pool::Pool,
        Charge,
        Client,
        PoolHandle, //
    },
    request::Io,
    session::Session,
    stats::{
        Counters,
        Times, //
    },
    storage::{
        backing::Backing,
        p2p, //
    }, //
};
use hcablk_core::{
    containers::fifo::Fifo,
    containers::slots::SlotTable,
    memory::eager_ring::EagerRing,
    p2p::PeerLease,
    proto::{
        connect::Geometry,
        grant::{
            open_writes,
            Ring,
            Taken, //
        },
        message::{
            BUFFER_LEN,
            REQUEST_LEN, //
        }, //
    },
    rdma::{
        buffer::{
            DmaBuffer,
            MessageBuffers, //
        },
        cm::Id,
        cq::{
            CompletionQueue,
            CqContext, //
        },
        device::Direction,
        qp::QueuePair,
        wr::{Sge, WorkId},
    },
    report::trace::State, //
    sync::{
        new_irq_lock,
        synchronize_completions,
        Event,
        IrqLock,
        WorkQueue, //
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

mod chunk;
mod chunked;
mod cost;
mod eager;
mod fault;
mod keep_alive;
mod kept;
mod lease;
mod receive;
mod reclaim;
mod response_batch;
mod shape;
mod transfer;

use self::{
    chunked::ChunkedRequests,
    eager::AnsweredSlots,
    fault::Named,
    kept::Kept,
    reclaim::CompletedSends,
    response_batch::Outbox, //
};
pub(crate) use self::{
    chunked::IoChunks,
    shape::{
        QueueOptions,
        Shape, //
    }, //
};

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
    /// Keep-alive periods since something was received.
    rx_periods: u32,
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
    index: u8,
    session: Arc<Session>,
    /// The volume, as this queue's initiator is told.
    geometry: Geometry,
    pair: QueuePair<Queue>,
    shape: Shape,
    /// A keep-alive that has completed does not prove that the initiator is there (iWARP): it
    /// has to send something.
    needs_rx: bool,
    /// Something has come, or was taken, since the last keep-alive. Only kept if that
    /// is what tells.
    rx_seen: Atomic<bool>,
    /// Something has completed since the last keep-alive.
    moved: Atomic<bool>,
    /// The transport knows RDMA WRITEs with an immediate value.
    immediates: bool,
    /// Data is sent by requests that are reported each by itself. Of one that is
    /// not, soft-iWARP has TCP send the very pages (`siw_qp_prepare_tx()`),
    /// which it does when it likes: also after the answer behind it has
    /// completed, and the buffer is another request's.
    all_reported: bool,
    incoming: MessageBuffers,
    /// Where the data that a request brings with it is put, one for each
    /// receive buffer; empty when none may.
    inline: KVec<DmaBuffer>,
    outgoing: MessageBuffers,
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
    /// See [`Self::wake`].
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
    #[pin]
    outbox: Outbox,
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
    /// Makes the queue pair of the connection `id` with all its memory, which `charge` is for, and
    /// posts its receive buffers. May sleep.
    pub(crate) fn new(
        session: &Arc<Session>,
        backing: Arc<Backing>,
        index: u8,
        id: &Arc<Id>,
        mut shape: Shape,
        (client, charge): (&Arc<Client>, Charge),
    ) -> Result<Arc<Self>> {
        let pd = session.pd();
        let lease = p2p::lease(session, &backing, index, shape.sinks, shape.buffers);
        if lease.is_some() {
            // What came with a request would be in RAM.
            shape.inline = 0;
            if !shape.no_read {
                shape.eager_ring = 0;
            }
        }
        let capacity = shape.capacity();
        let view = p2p::view(session, &backing, index, shape.sinks);
        let ios = shape.ios as usize;
        let cq = CompletionQueue::new(
            pd,
            capacity.completions(),
            index.into(),
            CqContext::Process(session.completions().clone()),
        )?;
        let pair = QueuePair::new(id, pd, &cq, capacity)?;
        let receives = usize::from(shape.credits);
        let incoming = MessageBuffers::new(pd, receives, BUFFER_LEN, Direction::FromDevice)?;
        let mut inline = KVec::new();
        if shape.inline != 0 {
            for _ in 0..receives {
                inline.push(DmaBuffer::new(pd, 0, Direction::FromDevice)?, GFP_KERNEL)?;
            }
        }
        let outgoing = MessageBuffers::new(pd, ios, BUFFER_LEN, Direction::ToDevice)?;
        let mut buffers = KVec::with_capacity(shape.buffers, GFP_KERNEL)?;
        for _ in 0..shape.buffers {
            buffers.push(
                DmaBuffer::new(pd, BUFFER_ORDER, Direction::Bidirectional)?,
                GFP_KERNEL,
            )?;
        }
        let eager_ring = match shape.eager_ring {
            0 => None,
            bytes => Some(EagerRing::new(pd, bytes)?),
        };
        let mut taken = KVec::new();
        taken.resize(open_writes(shape.credits), Taken::default(), GFP_KERNEL)?;
        let memory = lease.as_ref().and_then(PeerLease::memory);
        let peers = memory.map_or(0, |memory| memory.pieces());
        let handle = match shape.shares {
            true => Some(PoolHandle::new(client)?),
            false => None,
        };
        let free = Pool::new(shape.buffers, peers, ios, handle.clone(), pd)?;
        let work = Work {
            idle: KVec::with_capacity(ios, GFP_KERNEL)?,
            waiting: Fifo::new(ios)?,
            received: Fifo::new(receives)?,
            ring: Ring::new(shape.eager_ring as u32, shape.credits, taken),
            unregistered: eager_ring.is_some(),
            free,
            kept: Kept::new(ios, &backing)?,
            chunks: KVec::with_capacity(shape.chunks.into(), GFP_KERNEL)?,
            made: 0,
            closing: false,
            keep_alive_pending: true,
            // MPA wants the side that connected to be first.
            silent: id.is_iwarp(),
            rx_periods: 0,
            quiet: 0,
            owed: 0,
        };
        let inflight = SlotTable::new(ios)?;
        let named = Named::new(ios)?;
        let outbox = Outbox::new()?;
        let answered_slots = AnsweredSlots::new(open_writes(shape.credits))?;
        let chunked = ChunkedRequests::new(shape.chunks, ios)?;
        let queue = Arc::pin_init(
            pin_init!(Self {
                index,
                session: session.clone(),
                geometry: Geometry {
                    max_transfer: shape.largest,
                    ..*session.geometry()
                },
                pair,
                shape,
                needs_rx: id.is_iwarp(),
                rx_seen: Atomic::new(false),
                moved: Atomic::new(true),
                immediates: !id.is_iwarp(),
                all_reported: id.is_iwarp(),
                incoming,
                inline,
                outgoing,
                eager_ring,
                buffers,
                handle,
                inflight,
                named,
                chunked <- chunked,
                fetching: Atomic::new(0),
                notify_all: Atomic::new(true),
                woken: Atomic::new(false),
                completed_sends: CompletedSends::new(),
                answered_slots,
                work <- new_irq_lock!(work, "hcablk_work"),
                lease,
                view,
                backing,
                outbox <- outbox,
                leaving: Atomic::new(false),
                all_idle <- Event::new(),
                counters: Counters::default(),
                timing: Atomic::new(false),
                times: Times::default(),
                _charge: charge,
            }),
            GFP_KERNEL,
        )?;
        queue.comes_to(State::Connecting);
        if let Some(handle) = &queue.handle {
            handle.attach(&queue);
        }
        let filled = queue.fill();
        cq.start(queue.clone());
        if let Err(e) = filled {
            queue.close();
            return Err(e);
        }
        Ok(queue)
    }

    /// Makes the `Io`s and posts the receive buffers.
    fn fill(self: &Arc<Self>) -> Result {
        for index in 0..self.shape.ios {
            let io = Io::new(self, index)?;
            let mut work = self.work.lock();
            work.idle.push_within_capacity(io).map_err(|_| ENOMEM)?;
            work.made += 1;
        }
        self.make_chunks()?;
        for buffer in 0..u32::from(self.shape.credits) {
            self.post_receive(buffer)?;
        }
        Ok(())
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    #[inline]
    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the workqueue on which requests wait for drives.
    pub(crate) fn io_work(&self) -> &WorkQueue {
        self.backing.io_work()
    }

    /// Returns the bytes of the volume at this moment, in whole blocks; 0 if the drive is gone.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        let block = 1u64 << self.geometry.logical_block_shift;
        self.backing.size_bytes() & !(block - 1)
    }

    /// Returns a transfer buffer of the queue's own.
    #[inline]
    pub(crate) fn buffer(&self, number: u16) -> Option<&DmaBuffer> {
        self.buffers.get(usize::from(number))
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

    /// Begins to take the queue pair down: nothing new is begun, what is posted
    /// is flushed. May sleep.
    pub(crate) fn shut(&self) {
        {
            let mut work = self.work.lock();
            work.close();
            // Those that wait become idle; their initiator gets no answer.
            while let Some(mut io) = work.waiting.pop() {
                io.return_buffers(&mut work.free);
                self.keep_idle(&mut work, io);
            }
            self.check_all_idle(&work);
            self.update_notify(&work);
        }
        self.pair.id().disconnect();
        // If it cannot be failed `drain()` says so.
        let _ = self.pair.fail();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps
    /// until the drive has finished what it has begun.
    pub(crate) fn close(&self) {
        self.shut();
        if self.all_idle.wait_ms(30_000).is_err() {
            // Either the drive is slow or the HCA does not flush. What the
            // queue pair has is not coming back then; all that the HCA reaches
            // stays until the pair is destroyed ([`kept`]).
            self.pair.drain();
            self.give_up_all();
            while self.all_idle.wait_ms(30_000).is_err() {
                pr_warn!("still waiting for the drive to finish requests of a closed session\n");
                // What the drive has finished since was posted to a queue pair that does not flush.
                self.give_up_all();
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
        self.pair.id().detach();
        let ios = core::mem::take(&mut self.work.lock().idle);
        drop(ios);
        // See `keep_idle()`.
        for index in 0..self.shape.ios {
            drop(self.inflight.take(index));
        }
        self.chunked.clear();
        self.comes_to(State::Ended);
    }

    /// Gives up what the queue pair has. Its completion handler does so no more.
    fn give_up_all(&self) {
        for index in 0..self.shape.ios {
            if let Some(io) = self.inflight.take(index) {
                self.give_up(io);
            }
        }
        self.chunked.give_up();
    }

    /// Closes the queue as [`Self::close`] does, while the session goes on: failures here do not
    /// end it any more.
    pub(crate) fn close_alone(&self) {
        self.leaving.store(true, Release);
        self.pair.id().detach();
        self.close();
        // Completions are over: the counter has no other writer.
        self.counters.replaced_queues.bump();
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

    fn check_all_idle(&self, work: &Work) {
        if work.closing && work.idle.len() == work.made {
            self.all_idle.set();
        }
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let id = WorkId::new(kind::RECEIVE, buffer);
        let index = buffer as usize;
        match self.inline.get(index) {
            None => {
                let slice = self.incoming.slice(index, BUFFER_LEN)?;
                self.pair.post_receive(Sge::new(slice), id)
            }
            // The data begins a page of its own, from which the drive takes it.
            Some(data) => {
                let request = self.incoming.slice(index, REQUEST_LEN)?;
                let length = self.shape.inline as usize;
                data.sync_for_device(0, length);
                let data = data.slice(0, length);
                let parts = [Sge::new(request), Sge::new(data)];
                self.pair.post_receive_parts(&parts, id)
            }
        }
    }

    /// Returns the inline data of the request in receive buffer `buffer`.
    #[inline]
    pub(crate) fn inline_data(&self, buffer: u32) -> Option<&DmaBuffer> {
        self.inline.get(buffer as usize)
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
