// SPDX-License-Identifier: GPL-2.0

//! A queue pair of a session: the I/O path.
//!
//! # Locks and contexts
//!
//! Completions are handled in process context, one at a time for a queue; the
//! drive's may come in any context. One lock, `work`: taken once when a request
//! is admitted and once when everything of it is back. Between these the
//! request belongs to whoever works on it.
//!
//! # Limits
//!
//! There are as many receive buffers as credits were granted, and twice as many
//! [`Io`]s: an answer grants its credit before its own send has completed, and
//! a request that comes in meanwhile finds an idle one. If it does not, it
//! waits in its receive buffer. Requests that find no transfer buffers wait in
//! the order in which they came.

use crate::{
    check::check,
    io::Io,
    session::Session,
    stats::Counters, //
};
use hcablk_core::{
    blkdev::{
        submit,
        BioOp,
        BlockDevice, //
    },
    fifo::Fifo,
    proto::{
        message::{
            BadRequest,
            Op,
            Remote,
            Request,
            Response,
            Status,
            BUFFER_LEN, //
        },
        TRANSFER_MAX, //
    },
    rdma::{
        buffer::{
            DmaBuffer,
            MessageBuffers, //
        },
        cm::Id,
        cq::{
            Completion,
            CompletionQueue,
            Context,
            Handler, //
        },
        device::{
            Attributes,
            Direction, //
        },
        qp::{
            Capacity,
            QueuePair, //
        },
        wr::{
            Chain,
            Entry,
            Rdma,
            Send,
            WorkId,
            WorkRequest, //
        },
    },
    slots::SlotTable,
    sync::{
        new_irq_lock,
        synchronize_interrupts,
        Event,
        IrqLock, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Kinds of work, in work ids. The index is an [`Io`]'s or a receive buffer's.
mod kind {
    pub(super) const ANSWER: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
    pub(super) const FETCH: u8 = 3;
    pub(super) const PART: u8 = 4;
    pub(super) const PROBE: u8 = 5;
}

/// log2 of the pages of a transfer buffer.
const CHUNK_ORDER: u32 = 3;
/// Bytes of a transfer buffer.
pub(crate) const CHUNK_BYTES: usize = kernel::page::PAGE_SIZE << CHUNK_ORDER;
/// Transfer buffers of the largest request.
pub(crate) const CHUNKS_MAX: usize = (TRANSFER_MAX as usize).div_ceil(CHUNK_BYTES);
/// RDMA work requests that a request may be split into, for devices that take
/// few entries in each.
const PARTS_MAX: usize = 8;

/// Sizes of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Receive buffers.
    pub(crate) credits: u16,
    ios: u32,
    buffers: usize,
    write_entries: usize,
    read_entries: usize,
    parts: u32,
}

impl Shape {
    /// What a device allows of `credits` requests in flight, with `bytes` of
    /// transfer buffers; `None` when it is not enough for one.
    pub(crate) fn new(attributes: Attributes, credits: u16, bytes: usize) -> Option<Self> {
        let entries = |max: u32| (max as usize).clamp(1, CHUNKS_MAX);
        let write_entries = entries(attributes.max_send_sge);
        let read_entries = entries(attributes.max_sge_rd.min(attributes.max_send_sge));
        let parts = CHUNKS_MAX.div_ceil(write_entries.min(read_entries));
        if parts > PARTS_MAX {
            return None;
        }
        let mut shape = Self {
            credits,
            ios: u32::from(credits) * 2,
            buffers: (bytes / CHUNK_BYTES).max(CHUNKS_MAX),
            write_entries,
            read_entries,
            parts: parts as u32,
        };
        while shape.sends() + 1 > attributes.max_qp_wr || shape.completions() > attributes.max_cqe {
            if shape.credits == 1 {
                return None;
            }
            shape.credits /= 2;
            shape.ios = u32::from(shape.credits) * 2;
        }
        Some(shape)
    }

    /// Each request's parts and its answer, and a probe.
    fn sends(self) -> u32 {
        self.ios * (self.parts + 1) + 1
    }

    fn completions(self) -> u32 {
        QueuePair::<Queue>::completions(self.capacity())
    }

    fn capacity(self) -> Capacity {
        Capacity {
            sends: self.sends(),
            receives: self.credits.into(),
            send_entries: self.write_entries.max(self.read_entries) as u32,
        }
    }
}

/// What is behind the lock.
struct Work {
    idle: KVec<KBox<Io>>,
    /// Wait for transfer buffers.
    waiting: Fifo<KBox<Io>>,
    /// Wait for an idle `Io`: receive buffer, and length of the message in it.
    received: Fifo<(u32, usize)>,
    /// Transfer buffers that are free.
    free: KVec<u16>,
    /// `Io`s that were made.
    made: usize,
    /// Nothing new is begun.
    closing: bool,
    /// A probe is under way, or the connection is not up yet.
    probing: bool,
}

/// What became of a request that came in.
enum Admitted {
    Go(KBox<Io>),
    /// It waits, or the queue is closing.
    Later,
}

/// See the module. Its completion queue and its `Io`s hold references to it
/// until [`Queue::close`].
#[pin_data]
pub(crate) struct Queue {
    index: u8,
    session: Arc<Session>,
    device: Arc<BlockDevice>,
    pair: QueuePair<Queue>,
    shape: Shape,
    incoming: MessageBuffers,
    outgoing: MessageBuffers,
    buffers: KVec<DmaBuffer>,
    inflight: SlotTable<Io>,
    #[pin]
    work: IrqLock<Work>,
    /// The queue is closing and every `Io` is idle.
    #[pin]
    home: Event,
    counters: Counters,
}

impl Queue {
    /// Makes the queue pair of the connection `id` with all its memory, and
    /// posts its receive buffers. May sleep.
    pub(crate) fn new(
        session: &Arc<Session>,
        device: Arc<BlockDevice>,
        index: u8,
        id: &Arc<Id>,
        shape: Shape,
    ) -> Result<Arc<Self>> {
        let pd = session.pd();
        let capacity = shape.capacity();
        let ios = shape.ios as usize;
        let cq = CompletionQueue::new(
            pd,
            QueuePair::<Self>::completions(capacity),
            index.into(),
            Context::Process(session.completions().clone()),
        )?;
        let pair = QueuePair::new(id, pd, &cq, capacity)?;
        let receives = shape.credits.into();
        let incoming = MessageBuffers::new(pd, receives, BUFFER_LEN, Direction::FromDevice)?;
        let outgoing = MessageBuffers::new(pd, ios, BUFFER_LEN, Direction::ToDevice)?;
        let mut buffers = KVec::with_capacity(shape.buffers, GFP_KERNEL)?;
        let mut free = KVec::with_capacity(shape.buffers, GFP_KERNEL)?;
        for chunk in 0..shape.buffers {
            buffers.push(
                DmaBuffer::new(pd, CHUNK_ORDER, Direction::Bidirectional)?,
                GFP_KERNEL,
            )?;
            free.push(u16::try_from(chunk)?, GFP_KERNEL)?;
        }
        let work = Work {
            idle: KVec::with_capacity(ios, GFP_KERNEL)?,
            waiting: Fifo::new(ios)?,
            received: Fifo::new(receives)?,
            free,
            made: 0,
            closing: false,
            probing: true,
        };
        let inflight = SlotTable::new(ios)?;
        let queue = Arc::pin_init(
            pin_init!(Self {
                index,
                session: session.clone(),
                device,
                pair,
                shape,
                incoming,
                outgoing,
                buffers,
                inflight,
                work <- new_irq_lock!(work),
                home <- Event::new(),
                counters: Counters::default(),
            }),
            GFP_KERNEL,
        )?;
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
        for buffer in 0..u32::from(self.shape.credits) {
            self.post_receive(buffer)?;
        }
        Ok(())
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    pub(crate) fn device(&self) -> &BlockDevice {
        &self.device
    }

    /// A transfer buffer.
    #[inline]
    pub(crate) fn buffer(&self, chunk: u16) -> Option<&DmaBuffer> {
        self.buffers.get(usize::from(chunk))
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn credits(&self) -> u16 {
        self.shape.credits
    }

    /// Begins to take the queue pair down: nothing new is begun, what is posted
    /// is flushed. May sleep.
    pub(crate) fn shut(&self) {
        {
            let mut work = self.work.lock();
            work.closing = true;
            // Those who wait go home; their initiator will not hear of them.
            while let Some(mut io) = work.waiting.pop() {
                io.return_chunks(&mut work.free);
                let _ = work.idle.push_within_capacity(io);
            }
            self.check_home(&work);
        }
        self.pair.id().disconnect();
        let _ = self.pair.fail();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps
    /// until the drive has finished what it has begun.
    pub(crate) fn close(&self) {
        self.shut();
        if self.home.wait_ms(30_000).is_err() {
            // Either the drive is slow or the HCA does not flush. What the
            // queue pair has is not coming back then; its buffers stay until
            // the pair is destroyed.
            self.pair.drain();
            for index in 0..self.shape.ios {
                if let Some(io) = self.inflight.take(index) {
                    self.give_up(io);
                }
            }
            while self.home.wait_ms(30_000).is_err() {
                pr_warn!("still waiting for the drive to finish requests of a closed session\n");
            }
        }
        // The drive's interrupt handlers that brought the last ones home may
        // still hold references, and must not be the last to.
        synchronize_interrupts();
        self.pair.drain();
        self.pair.cq().stop();
        self.pair.id().detach();
        let ios = core::mem::take(&mut self.work.lock().idle);
        drop(ios);
    }

    fn check_home(&self, work: &Work) {
        if work.closing && work.idle.len() == work.made {
            self.home.set();
        }
    }

    /// The connection was granted: from here on silence is watched.
    pub(crate) fn go_live(&self) {
        self.work.lock().probing = false;
    }

    /// Makes sure that the initiator is still there, as the initiator does.
    pub(crate) fn probe(&self) {
        {
            let mut work = self.work.lock();
            if work.closing || work.probing {
                return;
            }
            work.probing = true;
        }
        let mut probe = Rdma::probe();
        probe.signal(WorkId::new(kind::PROBE, 0));
        let mut chain = Chain::new();
        chain.push(&mut probe);
        if self.pair.post(&chain).is_err() {
            self.session.end();
        }
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Entry::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }

    /// A message of `length` bytes is in receive buffer `buffer`.
    fn receive(&self, buffer: u32, length: usize) {
        self.counters.receives.bump();
        let mut work = self.work.lock();
        if work.closing {
            return;
        }
        let Some(io) = work.idle.pop() else {
            // There is room: a place for every receive buffer.
            let _ = work.received.push((buffer, length));
            return;
        };
        let admitted = self.admit(&mut work, io, buffer, length);
        drop(work);
        if let Admitted::Go(io) = admitted {
            self.go(io);
        }
    }

    /// Reads the request in a receive buffer into `io` and gives it transfer
    /// buffers.
    fn admit(&self, work: &mut Work, mut io: KBox<Io>, buffer: u32, length: usize) -> Admitted {
        let mut message = [0; BUFFER_LEN];
        let decoded = match self.incoming.read(buffer as usize, length, &mut message) {
            Ok(message) => Request::decode(message),
            Err(_) => Err(BadRequest::Unanswerable),
        };
        io.receive = buffer;
        io.moved = 0;
        io.status = Status::Ok;
        match decoded {
            Ok(request) => {
                io.tag = request.tag;
                io.op = Ok(request.op);
                if let Err(status) = check(&request.op, self.session.geometry()) {
                    io.status = status;
                }
            }
            Err(BadRequest::Answer(tag, status)) => {
                self.counters.protocol_errors.bump();
                io.tag = tag;
                io.op = Err(status);
                io.status = status;
            }
            Err(BadRequest::Unanswerable) => {
                self.counters.protocol_errors.bump();
                let _ = work.idle.push_within_capacity(io);
                self.session.end();
                return Admitted::Later;
            }
        }
        if io.status != Status::Ok {
            return Admitted::Go(io);
        }
        if work.waiting.is_empty() && io.take_chunks(&mut work.free) {
            return Admitted::Go(io);
        }
        self.counters.buffer_waits.bump();
        // There is room: a place for every `Io`.
        let _ = work.waiting.push(io);
        Admitted::Later
    }

    /// Begins to carry out an admitted request.
    fn go(&self, io: KBox<Io>) {
        if io.status != Status::Ok {
            let status = io.status;
            return self.answer(io, status);
        }
        match io.op {
            Ok(Op::Read(extent, _)) => self.submit(io, BioOp::Read, extent.offset >> 9),
            Ok(Op::Write { remote, .. }) => self.fetch(io, remote),
            Ok(Op::Flush) => self.submit(io, BioOp::Flush, 0),
            Err(status) => self.answer(io, status),
        }
    }

    fn submit(&self, io: KBox<Io>, op: BioOp, sector: u64) {
        if let Err((_, io)) = submit(io, op, sector) {
            self.answer(io, Status::IoError);
        }
    }

    /// Reads the data of a write out of the initiator's memory.
    fn fetch(&self, mut io: KBox<Io>, remote: Remote) {
        io.moved = io.length() as u64;
        let index = io.index;
        let mut entries = [Entry::EMPTY; CHUNKS_MAX];
        let count = self.entries(&io, &mut entries);
        let per_part = self.shape.read_entries;
        let mut parts = entries
            .get(..count)
            .unwrap_or(&[])
            .chunks(per_part)
            .enumerate()
            .map(|(i, part)| {
                let address = remote.address + (i * per_part * CHUNK_BYTES) as u64;
                Rdma::read(part, address, remote.key)
            });
        let mut reads: [Option<Rdma<'_>>; PARTS_MAX] = core::array::from_fn(|_| parts.next());
        let last = count.div_ceil(per_part);
        let mut chain = Chain::new();
        for (i, read) in reads.iter_mut().flatten().enumerate() {
            if i + 1 == last {
                read.signal(WorkId::new(kind::FETCH, index));
            } else {
                read.name(WorkId::new(kind::PART, index));
            }
            chain.push(read);
        }
        self.post(io, &chain);
    }

    /// The data of a write is here.
    fn fetched(&self, io: KBox<Io>) {
        for (chunk, length) in io.chunks() {
            if let Some(buffer) = self.buffer(chunk) {
                buffer.sync_for_cpu(0, length);
            }
        }
        let Ok(Op::Write { extent, fua, .. }) = io.op else {
            return self.answer(io, Status::Invalid);
        };
        self.submit(io, BioOp::Write { fua }, extent.offset >> 9);
    }

    /// Answers a request, after the data that it asked for. Any context.
    pub(crate) fn answer(&self, mut io: KBox<Io>, status: Status) {
        io.status = status;
        let index = io.index;
        // The credit that the answer grants must be there before the answer.
        let response = Response {
            credits: 1,
            tag: io.tag,
            status,
        };
        let ready = self
            .post_receive(io.receive)
            .and_then(|()| self.outgoing.write(index as usize, &response.encode()));
        let Ok(message) = ready else {
            self.session.end();
            return self.give_up(io);
        };

        let mut entries = [Entry::EMPTY; CHUNKS_MAX];
        let mut count = 0;
        let mut data = None;
        if let (Ok(Op::Read(_, remote)), Status::Ok) = (io.op, status) {
            for (chunk, length) in io.chunks() {
                if let Some(buffer) = self.buffer(chunk) {
                    buffer.sync_for_device(0, length);
                }
            }
            io.moved = io.length() as u64;
            count = self.entries(&io, &mut entries);
            data = Some(remote);
        }
        let per_part = self.shape.write_entries;
        let mut parts = entries
            .get(..count)
            .unwrap_or(&[])
            .chunks(per_part)
            .zip(0..)
            .filter_map(|(part, i): (_, u64)| {
                let remote = data?;
                let address = remote.address + i * (per_part * CHUNK_BYTES) as u64;
                Some(Rdma::write(part, address, remote.key))
            });
        let mut writes: [Option<Rdma<'_>>; PARTS_MAX] = core::array::from_fn(|_| parts.next());
        let message = [Entry::new(message)];
        let mut send = Send::new(&message);
        if let Some(key) = key_to_invalidate(&io) {
            send = send.invalidating(key);
        }
        send.signal(WorkId::new(kind::ANSWER, index));
        let mut chain = Chain::new();
        for write in writes.iter_mut().flatten() {
            write.name(WorkId::new(kind::PART, index));
            chain.push(write);
        }
        chain.push(&mut send);
        self.post(io, &chain);
    }

    /// The pieces of memory that `io`'s data is in.
    #[inline]
    fn entries(&self, io: &Io, entries: &mut [Entry; CHUNKS_MAX]) -> usize {
        let mut count = 0;
        for ((chunk, length), entry) in io.chunks().zip(entries.iter_mut()) {
            if let Some(buffer) = self.buffer(chunk) {
                *entry = Entry::new(buffer.slice(0, length));
                count += 1;
            }
        }
        count
    }

    /// Posts work after which `io` comes back by its index.
    fn post(&self, io: KBox<Io>, chain: &Chain<'_>) {
        let index = io.index;
        if let Err(io) = self.inflight.park(index, io) {
            self.session.end();
            return self.give_up(io);
        }
        if self.pair.post(chain).is_err() {
            // Some of it may have been posted.
            self.session.end();
            if let Some(io) = self.inflight.take(index) {
                self.give_up(io);
            }
        }
    }

    /// The answer has been sent.
    fn answered(&self, io: &Io) {
        let c = &self.counters;
        let length = io.length() as u64;
        let ok = io.status == Status::Ok;
        c.sends.bump();
        match io.op {
            Ok(Op::Read(..)) => {
                c.reads.bump();
                c.read_bytes.add(if ok { length } else { 0 });
            }
            Ok(Op::Write { fua, .. }) => {
                c.writes.bump();
                c.fua_writes.add(fua.into());
                c.written_bytes.add(if ok { length } else { 0 });
            }
            Ok(Op::Flush) => c.flushes.bump(),
            Err(_) => {}
        }
        c.rdma_bytes.add(io.moved);
        if ok {
            c.copied_bytes.add(length - io.moved.min(length));
        } else {
            c.errors.bump();
        }
        if key_to_invalidate(io).is_some() {
            c.remote_invalidations.bump();
        }
    }

    /// Makes an `Io` idle again after an error that ends the session, and lets
    /// nothing new begin: the HCA may still use its buffers. Any context.
    fn give_up(&self, io: KBox<Io>) {
        let mut work = self.work.lock();
        work.closing = true;
        self.put(&mut work, io);
    }

    fn put(&self, work: &mut Work, mut io: KBox<Io>) {
        io.return_chunks(&mut work.free);
        let _ = work.idle.push_within_capacity(io);
        self.check_home(work);
    }

    /// Makes an `Io` idle again and begins what waited for it or its buffers.
    /// Process context: the drive may let us wait.
    fn bring_home(&self, io: KBox<Io>) {
        let mut work = self.work.lock();
        self.put(&mut work, io);
        while !work.closing {
            let Some(io) = self.next(&mut work) else {
                break;
            };
            drop(work);
            self.go(io);
            work = self.work.lock();
        }
    }

    /// The next request that can be begun.
    fn next(&self, work: &mut Work) -> Option<KBox<Io>> {
        loop {
            if let Some(mut io) = work.waiting.pop() {
                if io.take_chunks(&mut work.free) {
                    return Some(io);
                }
                work.waiting.unpop(io);
                return None;
            }
            if work.received.is_empty() {
                return None;
            }
            let io = work.idle.pop()?;
            let Some((buffer, length)) = work.received.pop() else {
                let _ = work.idle.push_within_capacity(io);
                return None;
            };
            if let Admitted::Go(io) = self.admit(work, io, buffer, length) {
                return Some(io);
            }
        }
    }
}

/// The key that `io`'s answer shall invalidate.
fn key_to_invalidate(io: &Io) -> Option<u32> {
    match io.op {
        Ok(Op::Read(_, remote) | Op::Write { remote, .. }) if remote.invalidate => Some(remote.key),
        _ => None,
    }
}

impl Handler for Queue {
    fn complete(&self, completion: &Completion) {
        let work = completion.work();
        let ok = completion.is_ok();
        if !ok {
            self.session.end();
        }
        match work.kind {
            kind::RECEIVE if ok => self.receive(work.index, completion.byte_len()),
            kind::ANSWER => {
                if let Some(io) = self.inflight.take(work.index) {
                    if ok {
                        self.answered(&io);
                    }
                    self.bring_home(io);
                }
            }
            kind::FETCH => match self.inflight.take(work.index) {
                Some(io) if ok => self.fetched(io),
                Some(io) => self.bring_home(io),
                None => {}
            },
            kind::PROBE => self.work.lock().probing = false,
            _ => {}
        }
    }
}
