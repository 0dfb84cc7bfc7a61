// SPDX-License-Identifier: GPL-2.0

//! A queue pair and the hardware queue above it: the I/O path.
//!
//! # A request's way
//!
//! ```text
//!             queue_rq                       response                    completion
//!   (block   ────────────► Sent ──────────────────────────► (ended) ◄─────────────────┐
//!    layer)    map,         │      key invalid: unmap, end                            │
//!              REG_MR,      │                                                         │
//!              SEND         └────────────────────────────► Invalidating ──────────────┘
//!                                  key still valid: LOCAL_INV             unmap, end
//! ```
//!
//! From `Sent` on the request is parked in the table of requests; the state is
//! kept beside it for its tag ([`Phase`]). A request ends only when the target
//! has no access to its memory any more: because its answer came with remote
//! invalidation, because our own invalidation completed, or, when the
//! connection is lost, because no queue pair of the session works any more.
//!
//! # Locks and contexts
//!
//! One lock, `send`: taken once to issue a request and once for its answer. It
//! orders the accounts of credits and of send queue slots, the doorbells, and
//! parking before taking. Issuing runs in process or softirq context,
//! completions run in softirq context, one at a time for a queue.

use crate::{
    failure::Failure,
    session::Session,
    stats::{
        Done,
        Sent, //
    },
};
use hcablk_core::{
    blkdev::{
        Op,
        Operations,
        PerTag,
        Rejected,
        Request,
        Requests,
        Status,
        Timeout, //
    },
    proto::{
        credits::Credits,
        message::{
            self,
            Extent,
            Remote,
            Response,
            Tag,
            BUFFER_LEN, //
        },
    },
    rdma::{
        buffer::MessageBuffers,
        cm::Id,
        cq::{
            Completion,
            CompletionQueue,
            Context,
            Handler, //
        },
        device::Direction,
        pd::ProtectionDomain,
        qp::{
            Capacity,
            QueuePair, //
        },
        space::SendSpace,
        wr::{
            Chain,
            Entry,
            Rdma,
            Send,
            WorkId,
            WorkRequest, //
        },
    },
    sglist::SegmentList,
    sync::{
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        Arc, //
    },
};

/// Kinds of work, in work ids. The index is a tag or a receive buffer.
mod kind {
    pub(super) const SEND: u8 = 1;
    pub(super) const RECEIVE: u8 = 2;
    pub(super) const REGISTER: u8 = 3;
    pub(super) const INVALIDATE: u8 = 4;
    pub(super) const PROBE: u8 = 5;
}

/// Send queue slots that a request with data may need: to register, to send,
/// and to invalidate.
const SLOTS_PER_REQUEST: u32 = 3;

/// What the disk's operations are called on.
pub(crate) struct Driver;

/// Where a request is, see the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not given to the target.
    Idle,
    /// The target works on it.
    Sent,
    /// The target has answered; its key is being taken away.
    Invalidating(Status),
}

/// What there is once for each tag.
pub(crate) struct TagData {
    phase: Phase,
    /// Slots reserved for this request that are still to be used.
    slots: u32,
    list: SegmentList,
}

/// What is behind the lock.
struct SendState {
    space: SendSpace,
    credits: Credits,
    /// A request was turned away for want of credits or slots.
    starved: bool,
    /// A probe is under way.
    probing: bool,
}

impl SendState {
    /// Takes a credit and `slots`, or neither and remembers that somebody waits.
    #[inline]
    fn reserve(&mut self, slots: u32) -> bool {
        if self.space.reserve(slots) {
            if self.credits.take() {
                return true;
            }
            self.space.release(slots);
        }
        self.starved = true;
        false
    }
}

/// Sizes of a queue and of the requests on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Requests in flight.
    pub(crate) depth: u16,
    /// Segments of a request.
    pub(crate) segments: u16,
    /// Bytes of a request.
    pub(crate) bytes: u32,
}

impl Shape {
    /// Send queue slots: each request's, and as many as can be waiting for the
    /// next signaled one, and one to probe.
    fn send_slots(self) -> u32 {
        u32::from(self.depth) * SLOTS_PER_REQUEST + self.signal_period() + SLOTS_PER_REQUEST + 1
    }

    fn signal_period(self) -> u32 {
        u32::from(self.depth / 4).clamp(1, 32)
    }

    fn capacity(self) -> Capacity {
        Capacity {
            sends: self.send_slots(),
            receives: self.depth.into(),
            send_entries: 1,
        }
    }

    /// Work requests of the send queue that a device must have for this.
    pub(crate) fn work_requests(self) -> u32 {
        self.send_slots() + 1
    }

    /// Entries of the completion queue that a device must have for this.
    pub(crate) fn completions(self) -> u32 {
        QueuePair::<Queue>::completions(self.capacity())
    }
}

/// A hardware queue of the disk and its queue pair.
///
/// Made by [`connect`](crate::connect); referenced by the session, by its
/// completion queue until that is stopped, and by the disk.
#[pin_data]
pub(crate) struct Queue {
    index: u8,
    session: Arc<Session>,
    pair: QueuePair<Queue>,
    requests: Arc<Requests<Driver>>,
    tags: PerTag<Driver, TagData>,
    /// Requests are accepted.
    live: Atomic<bool>,
    /// Ask the target to invalidate keys with its answers.
    remote_invalidate: bool,
    outgoing: MessageBuffers,
    incoming: MessageBuffers,
    #[pin]
    send: IrqLock<SendState>,
    pub(crate) sent: Sent,
    pub(crate) done: Done,
}

impl Queue {
    /// Makes the queue pair of the connection `id` with all its memory, and
    /// posts its receive buffers. May sleep.
    pub(crate) fn new(
        session: &Arc<Session>,
        index: u8,
        id: &Arc<Id>,
        pd: &Arc<ProtectionDomain>,
        shape: Shape,
    ) -> Result<Arc<Self>> {
        let depth = shape.depth.into();
        let requests = session.requests();
        let capacity = shape.capacity();
        let cq = CompletionQueue::new(
            pd,
            QueuePair::<Self>::completions(capacity),
            index.into(),
            Context::SoftIrq,
        )?;
        let pair = QueuePair::new(id, pd, &cq, capacity)?;
        let tags = PerTag::new(requests, index.into(), |_| {
            Ok(TagData {
                phase: Phase::Idle,
                slots: 0,
                list: SegmentList::new(pd, shape.segments, shape.bytes)?,
            })
        })?;
        let outgoing = MessageBuffers::new(pd, depth, BUFFER_LEN, Direction::ToDevice)?;
        let incoming = MessageBuffers::new(pd, depth, BUFFER_LEN, Direction::FromDevice)?;
        let queue = Arc::pin_init(
            pin_init!(Self {
                index,
                session: session.clone(),
                pair,
                requests: requests.clone(),
                tags,
                live: Atomic::new(false),
                remote_invalidate: session.settings().remote_invalidate,
                outgoing,
                incoming,
                send <- new_irq_lock!(SendState {
                    space: SendSpace::new(shape.send_slots(), shape.signal_period()),
                    credits: Credits::new(0),
                    starved: false,
                    probing: false,
                }),
                sent: Sent::default(),
                done: Done::default(),
            }),
            GFP_KERNEL,
        )?;
        for buffer in 0..u32::from(shape.depth) {
            queue.post_receive(buffer)?;
        }
        cq.start(queue.clone());
        Ok(queue)
    }

    /// The target granted the connection and its first credits: requests may come.
    pub(crate) fn go_live(&self, credits: u16) {
        self.send.lock().credits = Credits::new(credits);
        self.live.store(true, Release);
    }

    /// No request is accepted from here on; those being issued may still be.
    pub(crate) fn stop(&self) {
        // The lock makes a probe that saw the queue live come before.
        let _send = self.send.lock();
        self.live.store(false, Release);
    }

    /// The queue pair, to take it down.
    pub(crate) fn pair(&self) -> &QueuePair<Self> {
        &self.pair
    }

    /// Ends a request that the target will not answer any more. The completion
    /// queue must have been stopped. Process context, sleeps.
    pub(crate) fn abandon(&self, mut request: Request<Driver>) {
        if let Some((_, data)) = self.tags.of(&mut request) {
            data.phase = Phase::Idle;
            data.list.revoke();
            let _ = data.list.release();
        }
        // Completions are over: the counter has no other writer.
        self.done.errors.bump();
        request.end(Status::Transport);
    }

    /// Makes sure that the target is still there: its HCA must acknowledge an
    /// empty write, or the connection breaks. Does nothing while an earlier
    /// probe is under way. Process context.
    pub(crate) fn probe(&self) {
        let mut send = self.send.lock();
        if !self.live.load(Acquire) || send.probing || !send.space.reserve(1) {
            return;
        }
        send.probing = true;
        let mut probe = Rdma::probe();
        let slots = send.space.post_signaled(1);
        probe.signal(WorkId::new(kind::PROBE, 0).freeing(slots));
        let mut chain = Chain::new();
        chain.push(&mut probe);
        if self.pair.post(&chain).is_err() {
            drop(send);
            self.session.fail(Failure::Work(c"posting failed"));
        }
    }

    fn post_receive(&self, buffer: u32) -> Result {
        let slice = self.incoming.slice(buffer as usize, BUFFER_LEN)?;
        self.pair
            .post_receive(Entry::new(slice), WorkId::new(kind::RECEIVE, buffer))
    }

    /// Gives a request to the target.
    fn issue(&self, mut request: Request<Driver>) -> Result<(), Rejected<Driver>> {
        if !self.live.load(Acquire) {
            return Err(Rejected::new(request, Status::Transport));
        }
        let tag = Tag {
            index: request.tag(),
            generation: request.generation(),
        };
        let Some((view, data)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        let direction = match view.op() {
            Op::Read => Some(Direction::FromDevice),
            Op::Write => Some(Direction::ToDevice),
            Op::Flush => None,
            _ => return Err(Rejected::new(request, Status::NotSupported)),
        };
        if let Some(direction) = direction {
            let cookie = u32::from(tag.generation) << 16 | u32::from(tag.index);
            match data.list.map(view, direction, cookie) {
                Ok(()) => {}
                // The IOMMU or bounce buffers are short; it will be tried again.
                Err(e) if e == ENOMEM => return Err(Rejected::new(request, Status::Resource)),
                Err(_) => return Err(Rejected::new(request, Status::IoErr)),
            }
        }
        let extent = Extent {
            offset: view.sector() << 9,
            length: view.bytes(),
        };
        let (write, fua) = (view.op() == Op::Write, view.fua());
        let mut chain = Chain::new();
        let mut register = None;
        let op = if direction.is_none() {
            message::Op::Flush
        } else {
            let Ok((wr, remote)) = data.list.register() else {
                return Err(Rejected::new(request, Status::IoErr));
            };
            let wr = register.insert(wr);
            wr.name(WorkId::new(kind::REGISTER, tag.index.into()));
            chain.push(wr);
            let remote = Remote {
                address: remote.address,
                key: remote.key,
                invalidate: self.remote_invalidate,
            };
            if write {
                message::Op::Write {
                    extent,
                    remote,
                    fua,
                }
            } else {
                message::Op::Read(extent, remote)
            }
        };
        let message = message::Request { tag, op }.encode();
        let Ok(slice) = self.outgoing.write(tag.index.into(), &message) else {
            return Err(Self::unissued(request, &self.tags, Status::IoErr));
        };
        let entries = [Entry::new(slice)];
        let mut wr = Send::new(&entries);
        let used = chain.len() + 1;
        let slots = match direction {
            Some(_) => SLOTS_PER_REQUEST,
            None => 1,
        };

        let mut send = self.send.lock();
        if !send.reserve(slots) {
            self.sent.credit_waits.bump();
            drop(send);
            return Err(Self::unissued(request, &self.tags, Status::Resource));
        }
        let id = WorkId::new(kind::SEND, tag.index.into());
        match send.space.post(used) {
            Some(freed) => wr.signal(id.freeing(freed)),
            None => wr.name(id),
        }
        chain.push(&mut wr);
        data.phase = Phase::Sent;
        data.slots = slots - used;
        self.sent.sends.bump();
        if direction.is_some() {
            self.sent.registrations.bump();
            self.sent.rdma_bytes.add(extent.length.into());
        }
        let posted = self.pair.post(&chain);
        // Whoever answers takes the lock first, so that the request is there.
        request.park();
        drop(send);
        if posted.is_err() {
            // The request is ended when the queue pair is gone: some of the
            // work may have been posted.
            self.session.fail(Failure::Work(c"posting failed"));
        }
        Ok(())
    }

    /// Gives back a request of which nothing was posted.
    fn unissued(
        mut request: Request<Driver>,
        tags: &PerTag<Driver, TagData>,
        status: Status,
    ) -> Rejected<Driver> {
        if let Some((_, data)) = tags.of(&mut request) {
            data.list.invalidated();
            let _ = data.list.release();
        }
        Rejected::new(request, status)
    }

    /// A message came in. Softirq context.
    fn receive(&self, buffer: u32, completion: &Completion) {
        self.done.receives.bump();
        let mut message = [0; BUFFER_LEN];
        let response = self
            .incoming
            .read(buffer as usize, completion.byte_len(), &mut message)
            .ok()
            .and_then(Response::decode);
        let Some(response) = response else {
            return self.violation("a message cannot be understood");
        };
        if self.post_receive(buffer).is_err() {
            return self
                .session
                .fail(Failure::Work(c"posting a receive failed"));
        }
        self.respond(response, completion.invalidated());
    }

    fn respond(&self, response: Response, invalidated: Option<u32>) {
        let mut send = self.send.lock();
        if send.credits.grant(response.credits).is_err() {
            drop(send);
            return self.violation("it granted more credits than it has");
        }
        let hungry = core::mem::take(&mut send.starved);
        let Tag { index, generation } = response.tag;
        let Some(mut request) = self.requests.take(self.index.into(), index, generation) else {
            drop(send);
            return self.violation("it answered what was not asked");
        };
        let Some((_, data)) = self.tags.of(&mut request) else {
            return;
        };
        if data.phase != Phase::Sent {
            request.park();
            drop(send);
            return self.violation("it answered twice");
        }
        if let Some(key) = invalidated {
            if !data.list.invalidated_by_peer(key) {
                request.park();
                drop(send);
                return self.violation("it invalidated a key that it was not given");
            }
            self.done.remote_invalidations.bump();
        }
        let status = status(response.status);
        if data.list.is_registered() {
            // The target left its key valid: take it away before the memory is
            // anybody else's. A slot was reserved.
            let Ok(mut wr) = data.list.invalidate() else {
                // Not reached: a list that was revoked is in no queue that is live.
                request.park();
                return;
            };
            data.phase = Phase::Invalidating(status);
            data.slots = 0;
            let freed = send.space.post_signaled(1);
            wr.signal(WorkId::new(kind::INVALIDATE, index.into()).freeing(freed));
            let mut chain = Chain::new();
            chain.push(&mut wr);
            self.done.local_invalidations.bump();
            let posted = self.pair.post(&chain);
            request.park();
            drop(send);
            if posted.is_err() {
                self.session.fail(Failure::Work(c"posting failed"));
            }
        } else {
            send.space.release(core::mem::take(&mut data.slots));
            drop(send);
            self.finish(request, status);
        }
        if hungry {
            self.requests.run_hw_queue(self.index.into());
        }
    }

    /// Our own invalidation is done. Softirq context.
    fn invalidated(&self, tag: u32) {
        let Some(mut request) = u16::try_from(tag)
            .ok()
            .and_then(|tag| self.requests.take_any(self.index.into(), tag))
        else {
            return;
        };
        let Some((_, data)) = self.tags.of(&mut request) else {
            return;
        };
        if let Phase::Invalidating(status) = data.phase {
            data.list.invalidated();
            self.finish(request, status);
        } else {
            request.park();
        }
    }

    /// Ends a request whose memory the target cannot reach any more.
    fn finish(&self, mut request: Request<Driver>, status: Status) {
        let Some((view, data)) = self.tags.of(&mut request) else {
            return;
        };
        let (op, bytes) = (view.op(), u64::from(view.bytes()));
        let moved_by_hca = data.list.mapped() != 0;
        data.phase = Phase::Idle;
        if data.list.release().is_err() {
            pr_warn_once!("memory of an ended request was still registered\n");
        }
        match op {
            Op::Read => {
                self.done.reads.bump();
                self.done.read_bytes.add(bytes);
            }
            Op::Write => {
                self.done.writes.bump();
                self.done.written_bytes.add(bytes);
            }
            _ => self.done.flushes.bump(),
        }
        if !moved_by_hca {
            self.done.copied_bytes.add(bytes);
        }
        if status != Status::Ok {
            self.done.errors.bump();
        }
        request.end(status);
    }

    fn violation(&self, what: &'static str) {
        self.done.protocol_errors.bump();
        self.session.fail(Failure::Protocol(what));
    }
}

impl Handler for Queue {
    #[inline]
    fn complete(&self, completion: &Completion) {
        let work = completion.work();
        if !completion.is_ok() {
            if !completion.is_flushed() {
                self.session.fail(Failure::Work(completion.status()));
            } else if self.live.load(Acquire) {
                self.session.fail(Failure::Disconnected);
            }
            // While connecting, a refusal flushes the receives before its
            // event comes, and that says why.
            return;
        }
        match work.kind {
            kind::RECEIVE => self.receive(work.index, completion),
            kind::SEND => self.send.lock().space.complete(work.slots),
            kind::INVALIDATE => {
                self.send.lock().space.complete(work.slots);
                self.invalidated(work.index);
            }
            kind::PROBE => {
                let mut send = self.send.lock();
                send.space.complete(work.slots);
                send.probing = false;
            }
            _ => {}
        }
    }
}

/// What the block layer is told.
fn status(status: message::Status) -> Status {
    match status {
        message::Status::Ok => Status::Ok,
        message::Status::Unsupported => Status::NotSupported,
        message::Status::ReadOnly => Status::Protection,
        message::Status::NoSpace => Status::NoSpace,
        message::Status::Medium => Status::Medium,
        message::Status::Gone => Status::Offline,
        message::Status::Invalid | message::Status::OutOfRange | message::Status::IoError => {
            Status::IoErr
        }
    }
}

impl Operations for Driver {
    type Data = Session;
    type HwQueue = Queue;
    type Pdu = ();

    fn hw_queue(
        session: &Session,
        index: u32,
        _requests: &Arc<Requests<Self>>,
    ) -> Result<Arc<Queue>> {
        session.queue(index).ok_or(ENXIO)
    }

    fn init_request(_: &Session, _hw_queue: u32) -> Result {
        Ok(())
    }

    #[inline]
    fn queue_rq(queue: &Queue, request: Request<Self>, _last: bool) -> Result<(), Rejected<Self>> {
        queue.issue(request)
    }

    fn timeout(queue: &Queue, _hw_queue: u32, _tag: u16) -> Timeout {
        queue.session.fail(Failure::RequestTimeout);
        // The end of the session ends the request.
        Timeout::ResetTimer
    }
}
