// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session: the I/O path.
//!
//! # Locks and contexts
//!
//! Completions are handled in process context, one at a time for a queue; the
//! drive's may come in any context. One lock, `work`: taken once when a request
//! is admitted, by which one that is over comes [`home`]. Between these the
//! request belongs to whoever works on it.
//!
//! # Patience
//!
//! That an answer has left need not be known at once: its completion waits for
//! the next request, unless something waits for buffers, or for the HCA. The
//! initiator's messages ask to be reported. Every probe period looks after
//! what was left, and after errors.
//!
//! Answers that come while a round of completions lasts are posted together
//! ([`outbox`]).
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
    backing::Backing,
    io::Io,
    memory::{
        Charge,
        Client,
        Seat, //
    },
    peer,
    session::Session,
    stats::{
        Counters,
        Times, //
    },
};
use hcablk_core::{
    fifo::Fifo,
    granted::Granted,
    p2p::Loan,
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
            Context, //
        },
        device::Direction,
        qp::QueuePair,
        wr::{Entry, WorkId},
    },
    slots::SlotTable,
    sync::{
        new_irq_lock,
        synchronize_completions,
        Event,
        IrqLock,
        WorkQueue, //
    },
    trace::State, //
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

mod admit;
mod choice;
mod cost;
mod cut;
mod fault;
mod grain;
mod grains;
mod granted;
mod home;
mod kept;
mod lent;
mod outbox;
mod pool;
mod probe;
mod shape;
mod transfer;

use self::{
    cut::CutRequests,
    fault::Named,
    granted::Left,
    home::Returned,
    kept::Kept,
    outbox::Outbox,
    shape::CHUNK_ORDER, //
};
pub(crate) use self::{
    cut::Share,
    grains::Cut,
    pool::Pool,
    shape::{
        Shape,
        Ways,
        CHUNKS_MAX,
        CHUNK_BYTES, //
    }, //
};

/// Kinds of work, in work ids. The index is an [`Io`]'s or a receive buffer's.
mod kind {
    pub(super) const ANSWER: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
    pub(super) const FETCH: u8 = 3;
    pub(super) const PART: u8 = 4;
    pub(super) const PROBE: u8 = 5;
    pub(super) const SINK: u8 = 6;
    pub(super) const GRAIN: u8 = 7;
    pub(super) const GRANT: u8 = 8;
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

/// What is behind the lock.
struct Work {
    idle: KVec<KBox<Io>>,
    /// Wait for transfer buffers.
    waiting: Fifo<KBox<Io>>,
    /// Wait for an idle `Io`.
    received: Fifo<Received>,
    /// Which parts of granted memory are used.
    ring: Ring<KVec<Taken>>,
    /// The initiator cannot write there yet.
    sealed: bool,
    /// Transfer buffers that are free. Dropped after the queue pair.
    free: Pool,
    /// What the HCA may still use. Dropped after the queue pair.
    kept: Kept,
    /// Grains that are free.
    grains: KVec<u16>,
    /// `Io`s that were made.
    made: usize,
    /// Nothing new is begun.
    closing: bool,
    /// A probe is under way, or the connection is not up yet.
    probing: bool,
    /// The initiator must send first, and has not yet.
    silent: bool,
    /// Probes since it was last heard of.
    unheard: u32,
    /// Probes since something has completed.
    quiet: u32,
    /// Answers under way that tell of the error of a flush: the session is to know at once when
    /// they were sent.
    owed: u32,
}

impl Work {
    /// Nothing new is begun from here on, and no transfer buffer is given to others.
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
    /// That a probe has completed does not prove that the initiator is there.
    unproven: bool,
    /// Something has come, or was taken, since the last probe. Only kept if that
    /// is what tells.
    heard: Atomic<bool>,
    /// Something has completed since the last probe.
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
    /// Where the initiator may put the data of writes.
    granted: Option<Granted>,
    buffers: KVec<DmaBuffer>,
    /// By which transfer buffers are borrowed, if they are.
    seat: Option<Arc<Seat>>,
    inflight: SlotTable<Io>,
    named: Named,
    #[pin]
    cut: CutRequests,
    /// Writes whose data is being fetched. Counted by the completion handler.
    fetching: Atomic<u32>,
    /// Every completion is to be reported at once: see [`Self::heed`].
    hurried: Atomic<bool>,
    /// See [`Self::wake`].
    woken: Atomic<bool>,
    returned: Returned,
    left: Left,
    /// Dropped after the pair, and before the loans, since these wait for what it has.
    #[pin]
    work: IrqLock<Work>,
    /// Peer memory beside the first buffers.
    loan: Option<Loan>,
    /// The cache's lines, if they are in peer memory that the HCA reaches.
    view: Option<Loan>,
    /// It may have the cache, whose own loan waits for the view of it.
    backing: Arc<Backing>,
    #[pin]
    outbox: Outbox,
    /// Only this queue pair is taken down: see [`Self::close_alone`].
    leaving: Atomic<bool>,
    /// The queue is closing and every `Io` is idle.
    #[pin]
    home: Event,
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
        let loan = peer::loan(session, &backing, index, shape.sinks, shape.buffers);
        if loan.is_some() {
            // What came with a request would be in RAM.
            shape.inline = 0;
            if !shape.no_read {
                shape.granted = 0;
            }
        }
        let capacity = shape.capacity();
        let view = peer::view(session, &backing, index, shape.sinks);
        let ios = shape.ios as usize;
        let cq = CompletionQueue::new(
            pd,
            QueuePair::<Self>::completions(capacity),
            index.into(),
            Context::Process(session.completions().clone()),
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
                DmaBuffer::new(pd, CHUNK_ORDER, Direction::Bidirectional)?,
                GFP_KERNEL,
            )?;
        }
        let granted = match shape.granted {
            0 => None,
            bytes => Some(Granted::new(pd, bytes)?),
        };
        let mut taken = KVec::new();
        taken.resize(open_writes(shape.credits), Taken::default(), GFP_KERNEL)?;
        let memory = loan.as_ref().and_then(Loan::memory);
        let peers = memory.map_or(0, |memory| memory.pieces());
        let seat = match shape.shares {
            true => Some(Seat::new(client)?),
            false => None,
        };
        let free = Pool::new(shape.buffers, peers, ios, seat.clone(), pd)?;
        let work = Work {
            idle: KVec::with_capacity(ios, GFP_KERNEL)?,
            waiting: Fifo::new(ios)?,
            received: Fifo::new(receives)?,
            ring: Ring::new(shape.granted as u32, shape.credits, taken),
            sealed: granted.is_some(),
            free,
            kept: Kept::new(ios, &backing)?,
            grains: KVec::with_capacity(shape.grains.into(), GFP_KERNEL)?,
            made: 0,
            closing: false,
            probing: true,
            // MPA wants the side that connected to be first.
            silent: id.is_iwarp(),
            unheard: 0,
            quiet: 0,
            owed: 0,
        };
        let inflight = SlotTable::new(ios)?;
        let named = Named::new(ios)?;
        let outbox = Outbox::new()?;
        let left = Left::new(open_writes(shape.credits))?;
        let cut = CutRequests::new(shape.grains, ios)?;
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
                unproven: id.is_iwarp(),
                heard: Atomic::new(false),
                moved: Atomic::new(true),
                immediates: !id.is_iwarp(),
                all_reported: id.is_iwarp(),
                incoming,
                inline,
                outgoing,
                granted,
                buffers,
                seat,
                inflight,
                named,
                cut <- cut,
                fetching: Atomic::new(0),
                hurried: Atomic::new(true),
                woken: Atomic::new(false),
                returned: Returned::new(),
                left,
                work <- new_irq_lock!(work, "hcablk_work"),
                loan,
                view,
                backing,
                outbox <- outbox,
                leaving: Atomic::new(false),
                home <- Event::new(),
                counters: Counters::default(),
                timing: Atomic::new(false),
                times: Times::default(),
                _charge: charge,
            }),
            GFP_KERNEL,
        )?;
        queue.comes_to(State::Connecting);
        if let Some(seat) = &queue.seat {
            seat.attach(&queue);
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
        self.make_grains()?;
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

    /// Where requests wait for drives.
    pub(crate) fn io_work(&self) -> &WorkQueue {
        self.backing.io_work()
    }

    /// Bytes of the volume at this moment, in whole blocks; 0: the drive is gone.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        let block = 1u64 << self.geometry.logical_block_shift;
        self.backing.size_bytes() & !(block - 1)
    }

    /// A transfer buffer of the queue's own.
    #[inline]
    pub(crate) fn buffer(&self, chunk: u16) -> Option<&DmaBuffer> {
        self.buffers.get(usize::from(chunk))
    }

    /// Has the counters brought up to date, and does not wait for it.
    pub(crate) fn kick(&self) {
        self.pair.cq().kick();
    }

    /// Whether that is done: no completion is being handled. Its handler may sleep for as long
    /// as a drive hangs.
    pub(crate) fn is_settled(&self) -> bool {
        self.pair.cq().is_settled()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How long requests were in their states.
    pub(crate) fn times(&self) -> &Times {
        &self.times
    }

    /// Whether to measure how long requests take that are received from now on.
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
            // Those who wait go home; their initiator will not hear of them.
            while let Some(mut io) = work.waiting.pop() {
                io.return_buffers(&mut work.free);
                self.keep_idle(&mut work, io);
            }
            self.check_home(&work);
            self.heed(&work);
        }
        self.pair.id().disconnect();
        // If it cannot be failed `drain()` says so.
        let _ = self.pair.fail();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps
    /// until the drive has finished what it has begun.
    pub(crate) fn close(&self) {
        self.shut();
        if self.home.wait_ms(30_000).is_err() {
            // Either the drive is slow or the HCA does not flush. What the
            // queue pair has is not coming back then; all that the HCA reaches
            // stays until the pair is destroyed ([`kept`]).
            self.pair.drain();
            self.give_up_all();
            while self.home.wait_ms(30_000).is_err() {
                pr_warn!("still waiting for the drive to finish requests of a closed session\n");
                // What the drive has finished since was posted to a queue pair that does not flush.
                self.give_up_all();
            }
        }
        // The drive's completions that brought the last ones home may still hold
        // references, and must not be the last to.
        synchronize_completions();
        self.pair.drain();
        self.pair.cq().stop();
        if let Some(seat) = &self.seat {
            seat.detach();
        }
        self.pair.id().detach();
        let ios = core::mem::take(&mut self.work.lock().idle);
        drop(ios);
        // See `keep_idle()`.
        for index in 0..self.shape.ios {
            drop(self.inflight.take(index));
        }
        self.cut.clear();
        self.comes_to(State::Ended);
    }

    /// Gives up what the queue pair has. Its completion handler does so no more.
    fn give_up_all(&self) {
        for index in 0..self.shape.ios {
            if let Some(io) = self.inflight.take(index) {
                self.give_up(io);
            }
        }
        self.cut.give_up();
    }

    /// As [`Self::close`], while the session goes on: what goes wrong here from now on does not
    /// end it.
    pub(crate) fn close_alone(&self) {
        self.leaving.store(true, Release);
        self.pair.id().detach();
        self.close();
        // Completions are over: the counter has no other writer.
        self.counters.replaced_queues.bump();
    }

    /// What is behind the lock has changed: the completion handler shall know whether
    /// it may be patient.
    #[inline]
    fn heed(&self, work: &Work) {
        let hurried = work.closing
            || work.probing
            || work.owed != 0
            || !work.waiting.is_empty()
            || !work.received.is_empty();
        self.hurried.store(hurried, Relaxed);
        if work.free.is_broken() {
            self.broken("a transfer buffer has no place");
        }
    }

    /// Whether others wait for transfer buffers that the queue may have: then an answer
    /// that has left is to be known at once.
    #[inline]
    fn is_pressed(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.is_pressed())
    }

    fn check_home(&self, work: &Work) {
        if work.closing && work.idle.len() == work.made {
            self.home.set();
        }
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let id = WorkId::new(kind::RECEIVE, buffer);
        let index = buffer as usize;
        match self.inline.get(index) {
            None => {
                let slice = self.incoming.slice(index, BUFFER_LEN)?;
                self.pair.post_receive(Entry::new(slice), id)
            }
            // The data begins a page of its own, from which the drive takes it.
            Some(data) => {
                let request = self.incoming.slice(index, REQUEST_LEN)?;
                let length = self.shape.inline as usize;
                data.sync_for_device(0, length);
                let data = data.slice(0, length);
                let parts = [Entry::new(request), Entry::new(data)];
                self.pair.post_receive_parts(&parts, id)
            }
        }
    }

    /// The data that came with the request in receive buffer `buffer`.
    #[inline]
    pub(crate) fn inline_data(&self, buffer: u32) -> Option<&DmaBuffer> {
        self.inline.get(buffer as usize)
    }

    /// Nothing is fetched by RDMA READ.
    pub(crate) fn no_read(&self) -> bool {
        self.shape.no_read
    }

    /// A message may have several requests.
    pub(crate) fn together(&self) -> bool {
        self.shape.inline != 0
    }

    /// Bytes of data that a request may bring with it.
    pub(crate) fn inline_limit(&self) -> u32 {
        self.shape.inline
    }
}
