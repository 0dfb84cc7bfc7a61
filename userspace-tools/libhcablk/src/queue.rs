// SPDX-License-Identifier: GPL-2.0

//! A queue: a queue pair, and the requests on it. It belongs to one thread at a time, and takes no lock to issue a
//! request or to handle its response.
//!
//! [`plan`](crate::plan) decides how data moves, [`engine`](crate::engine) handles the consequences of responses; this
//! module connects both with the verbs.
//!
//! # Over sessions
//!
//! When the session is lost, or the queue pair fails, the queue destroys its windows and the queue pair: then no device
//! reaches the memory of requests any more. The requests wait for the queue pair of the next session, in the order in
//! which they were issued, ahead of those that were not issued yet. When there cannot be another session they end with
//! [`RequestError::Lost`].

use crate::{
    connect::{wait_for, Deadline},
    engine::{DataPath, Engine, Signal, Then, WINDOW_SLOTS},
    failure::{Failure, RequestError},
    messages::Messages,
    opening::SECTOR,
    plan::{bare, DataPlace, Limits, Part, Piece, Span},
    request::{Completed, Notice, Op, Request},
    session::{Next, Shared},
    times::Tick,
    verbs::{
        cm::Id,
        device::{Attributes, Domains, ProtectionDomain},
        memory::{Access, Buffer, Region, Right, Sge, Window},
        queue::{Capacity, Completion, CompletionQueue, Done, QueuePair, Stopper, POLL},
    },
};
use hcablk_core::proto::{
    connect::Reply,
    eager_ring::Immediate,
    message::{self, Extent, Remote, ResponseKind, Tag, BUFFER_LEN},
};
use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};
use std::{
    collections::VecDeque,
    os::fd::{AsFd as _, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// Bytes of a tag's slot, which holds data that is copied.
const SLOT: usize = 8192;
/// Pieces that a work request gathers in addition to a message.
const PIECES: usize = 8;
/// The address of the slots as the target sees it; it does not reveal where they are in memory.
const SLOTS_ADDRESS: u64 = 0xffff_ffff << 32;
/// Bytes that a synchronous call moves at a time.
const STAGING: usize = 1 << 20;

/// The interval at which a synchronous call that waits for events also polls, in case an event was missed.
const WAIT: Duration = Duration::from_secs(1);

/// The queue's wake-up, among the events that a queue waits for.
const WAKE: u64 = 0;
const COMPLETIONS: u64 = 1;

/// Kinds of work requests, in their ids.
const KIND_SEND: u64 = 1 << 56;
const KIND_RECEIVE: u64 = 2 << 56;

fn send_id(signal: Signal) -> u64 {
    KIND_SEND | (u64::from(signal.frees) << 32) | u64::from(signal.seq)
}

/// The size of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueShape {
    pub(crate) depth: u16,
    pieces: usize,
}

impl QueueShape {
    /// Returns the size of a queue for `depth` requests, or for fewer if the device does not allow
    /// that.
    pub(crate) fn fit(attributes: Attributes, depth: u16) -> Result<Self, Failure> {
        let pieces = (attributes.max_sge as usize).saturating_sub(1).min(PIECES);
        if pieces == 0 {
            return Err(Failure::Device("its work requests have too few pieces"));
        }
        let mut shape = Self { depth, pieces };
        while shape.capacity().sends > attributes.max_qp_wr
            || shape.completions() > attributes.max_cqe
        {
            if shape.depth <= 1 {
                return Err(Failure::Device("its queues are too short"));
            }
            shape.depth /= 2;
        }
        Ok(shape)
    }

    fn capacity(self) -> Capacity {
        let depth = u32::from(self.depth);
        Capacity {
            // The slots of up to a period of work requests become free only when the next signaled
            // one completes.
            sends: depth * WINDOW_SLOTS + 32 + WINDOW_SLOTS,
            receives: depth,
            pieces: u32::try_from(self.pieces + 1).unwrap_or(1),
        }
    }

    fn completions(self) -> u32 {
        let capacity = self.capacity();
        capacity.sends + capacity.receives
    }
}

/// The memory and the windows of a queue, before it is connected.
pub(crate) struct Memory {
    shape: QueueShape,
    windows: Vec<Window>,
    slots: Region,
    outgoing: Messages,
    incoming: Messages,
}

impl Memory {
    /// Allocates the memory, and makes the queue pair of the connection `id`.
    pub(crate) fn new(
        pd: &Arc<ProtectionDomain>,
        id: &Id,
        shape: QueueShape,
    ) -> Result<(Self, QueuePair), Failure> {
        let depth = usize::from(shape.depth);
        let make = || {
            // The queue pair is made before its windows: when a program is killed the kernel
            // destroys the newest objects first, and it cannot destroy a queue pair on which a
            // window is bound.
            let cq = CompletionQueue::new(pd, shape.completions())?;
            let mut pair = QueuePair::new(id, cq, shape.capacity())?;
            let memory = Self {
                shape,
                windows: (0..depth)
                    .map(|_| Window::new(pd))
                    .collect::<Result<_, _>>()?,
                slots: Region::new(pd, depth * SLOT, Access::Standing, Some(SLOTS_ADDRESS))?,
                outgoing: Messages::new(pd, depth)?,
                incoming: Messages::new(pd, depth)?,
            };
            for buffer in 0..depth {
                memory.receive(&mut pair, buffer)?;
            }
            Ok((memory, pair))
        };
        make().map_err(|error| Failure::Setup("a queue", error))
    }

    fn receive(&self, pair: &mut QueuePair, buffer: usize) -> Result<(), Errno> {
        self.incoming
            .receive(pair, buffer, KIND_RECEIVE | buffer as u64)
    }
}

/// The queue pair and its memory, while the queue pair works.
pub(crate) struct LivePair {
    // Windows are dropped first: some devices keep a queue pair while a window is bound on it.
    memory: Memory,
    pair: QueuePair,
}

impl LivePair {
    /// Combines a connected queue pair with its memory.
    pub(crate) fn new(memory: Memory, pair: QueuePair) -> Self {
        Self { memory, pair }
    }

    /// Returns a handle with which any thread can fail the queue pair.
    pub(crate) fn stopper(&self) -> Stopper {
        self.pair.stopper()
    }

    /// Destroys the queue pair: nothing reaches memory of requests any more.
    fn destroy(self) {
        let Self { memory, pair } = self;
        pair.stopper().fail();
        drop(memory.windows);
        drop(pair);
    }
}

/// A part of an application's request.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Data that is cut into requests of the protocol when it is issued, with the limits of that moment.
    Uncut(Span),
    Data(Part),
    /// A range of the request without data: its start and end. When it is issued, each request of the protocol takes as
    /// much of the range as its limit allows.
    Bare(u64, u64),
    Flush,
    /// A nop, which belongs to no request: it makes the target send a message.
    Nop,
}

/// A request of the application.
struct Io {
    request: Request,
    /// Parts that have not ended.
    left: usize,
    error: Option<RequestError>,
}

/// The `Io` of a nop.
const NO_IO: usize = usize::MAX;

/// A part that waits, or that the target processes.
#[derive(Clone, Copy)]
struct Active {
    io: usize,
    job: Job,
    /// Its number in the order in which parts were issued; it wraps.
    order: u64,
    /// The time of its first issue.
    since: Option<Tick>,
    /// The number of a flush, once it was issued.
    flush: u64,
}

impl Active {
    fn new(io: usize, job: Job) -> Self {
        Self {
            io,
            job,
            order: 0,
            since: None,
            flush: 0,
        }
    }
}

/// The limits that the target's reply sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Allowed {
    limits: Limits,
    inline: u32,
    eager: u32,
    quiet: bool,
    remote_invalidate: bool,
}

/// A queue: see the module.
pub struct Queue {
    shared: Arc<Shared>,
    domains: Arc<Domains>,
    index: u8,
    settings: Settings,
    /// The era that this queue has seen: see [`Shared`].
    era: u32,
    /// The tick of the last check for requests that are late, or have been issued again for too long: see
    /// [`times`](crate::times).
    tick: Option<Tick>,
    link: Option<LivePair>,
    /// The events that the program waits for: those of the completion queue, and the queue's wake-ups.
    events: Epoll,
    allowed: Allowed,
    engine: Engine,
    /// By tag.
    active: Vec<Option<Active>>,
    ios: Vec<Option<Io>>,
    free_ios: Vec<usize>,
    waiting: VecDeque<Active>,
    finished: VecDeque<Completed>,
    /// The queue has had a request.
    is_used: bool,
    /// Requests in flight whose end is noticed by polling.
    polled: usize,
    /// The number of parts that were issued, and that of requests that have ended.
    issued: u64,
    completed: u64,
    /// The number of the last acknowledged write: see [`Unflushed`](crate::driver::unflushed::Unflushed).
    acknowledged_at: u64,
    completions: Vec<Completion>,
    then: Vec<Then>,
    /// The result of the synchronous call.
    awaited: Option<Completed>,
    staging: Option<Buffer>,
    /// The list of the pieces of a synchronous call, for the next one.
    list: Vec<Buffer>,
    notice: Notice,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Requests in flight get no acknowledgement any more.
        self.shared.unused(self.index);
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue with {} requests under way", self.in_flight())
    }
}

/// Settings of the volume that a queue needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) small_read: u32,
    pub(crate) eager_write: u32,
    pub(crate) remote_invalidate: bool,
}

/// Returns what a reply allows.
fn allowed(reply: &Reply, settings: Settings, shape: QueueShape) -> Allowed {
    let ring = reply.grant.map_or(0, |grant| grant.bytes);
    let eager = match reply.no_read {
        true => ring,
        false => settings.eager_write.min(ring),
    };
    let block = 1 << reply.geometry.logical_block_shift;
    let largest = reply.geometry.max_transfer;
    let slot = u32::try_from(SLOT).unwrap_or(u32::MAX);
    let slot = slot.min(largest).max(block);
    Allowed {
        limits: Limits {
            block,
            largest,
            slot,
            small_read: settings.small_read.min(slot),
            gathered: eager.max(reply.inline).min(largest) & !(block - 1),
            pieces: shape.pieces,
            write_windows: !reply.no_read,
        },
        inline: reply.inline,
        eager,
        quiet: reply.quiet,
        remote_invalidate: settings.remote_invalidate,
    }
}

impl Queue {
    /// Makes a queue of a volume whose first session has begun.
    pub(crate) fn new(
        shared: Arc<Shared>,
        domains: Arc<Domains>,
        index: u8,
        settings: Settings,
    ) -> Result<Self, Failure> {
        let setup = |error| Failure::Setup("a queue", error);
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(setup)?;
        let wake = shared.wake_of(index).ok_or(setup(Errno::EINVAL))?;
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, WAKE);
        events.add(wake, readable).map_err(setup)?;
        let mut queue = Self {
            shared,
            domains,
            index,
            settings,
            era: 0,
            tick: None,
            link: None,
            events,
            allowed: Allowed::default(),
            engine: Engine::new(0, 0, None, 0),
            active: Vec::new(),
            ios: Vec::new(),
            free_ios: Vec::new(),
            waiting: VecDeque::new(),
            finished: VecDeque::new(),
            is_used: false,
            polled: 0,
            issued: 0,
            completed: 0,
            acknowledged_at: 0,
            completions: Vec::with_capacity(POLL),
            then: Vec::new(),
            awaited: None,
            staging: None,
            list: Vec::with_capacity(1),
            notice: Notice::Polled,
        };
        queue.follow();
        match queue.shared.failure() {
            None => Ok(queue),
            Some(failure) => Err(failure),
        }
    }

    /// Follows a change of the session, if there was one.
    #[inline]
    fn follow(&mut self) {
        let era = self.shared.era();
        if era != self.era {
            self.change(era);
        }
    }

    #[cold]
    fn change(&mut self, era: u32) {
        self.detach();
        self.era = era;
        if self.is_used {
            self.shared.followed(self.index, era);
        }
        if let Some(failure) = self.shared.ended() {
            return self.end_all(RequestError::Lost(failure));
        }
        self.fail_old();
        if let Some(next) = self.shared.take(self.index, era) {
            self.attach(next);
        } else {
            self.fail_fast();
        }
    }

    /// Fails the waiting requests, if there was no session for the configured time.
    fn fail_fast(&mut self) {
        if let Some(failure) = self.shared.fails_fast() {
            self.end_all(RequestError::Lost(failure));
        }
    }

    /// Starts to use the queue pair of a session.
    fn attach(&mut self, next: Next) {
        let Next { era, link, reply } = next;
        let shape = link.memory.shape;
        let allowed = allowed(&reply, self.settings, shape);
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, COMPLETIONS);
        if let Err(error) = self.events.add(link.pair.cq.as_fd(), readable) {
            link.destroy();
            return self.shared.lose(era, Failure::Setup("a queue", error));
        }
        let sends = shape.capacity().sends;
        self.allowed = allowed;
        self.make_room(shape.depth.into());
        self.engine = Engine::new(shape.depth, reply.credits, reply.grant, sends);
        self.active = vec![None; usize::from(shape.depth)];
        self.link = Some(link);
        // The target's ring is open once it has sent a message.
        self.waiting.push_front(Active::new(NO_IO, Job::Nop));
        self.pump();
    }

    /// Reserves memory for `depth` concurrent requests and for the consequences of their responses: from here on no
    /// request allocates anything, unless the program submits more than that. Then the larger memory stays.
    fn make_room(&mut self, depth: usize) {
        fn up_to(count: usize, depth: usize) -> usize {
            depth.saturating_sub(count)
        }
        self.ios.reserve(up_to(self.ios.len(), depth));
        self.free_ios.reserve(up_to(self.free_ios.len(), depth));
        // With the nop, and the rest of a request that is issued in part.
        self.waiting.reserve(up_to(self.waiting.len(), depth + 2));
        self.finished.reserve(up_to(self.finished.len(), depth));
        self.then.reserve(depth);
    }

    /// Drops the queue pair. Issued requests wait again.
    fn detach(&mut self) {
        if let Some(link) = self.link.take() {
            link.destroy();
        }
        if let Some(times) = self.shared.times_of(self.index) {
            times.clear();
        }
        // Completions that were not handled belong to the engine of that queue pair.
        self.completions.clear();
        self.then.clear();
        let issued = self.active.iter_mut().filter_map(Option::take);
        let mut issued: Vec<_> = issued.filter(|active| active.io != NO_IO).collect();
        issued.sort_unstable_by_key(|active| active.order);
        self.waiting.retain(|active| active.io != NO_IO);
        for mut active in issued.into_iter().rev() {
            if let Job::Data(part) = active.job {
                active.job = Job::Uncut(Span::from_part(part));
            }
            self.waiting.push_front(active);
        }
    }

    /// Returns the reason if there cannot be another session: requests fail.
    pub fn ended(&self) -> Option<Failure> {
        self.shared.ended()
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.ios.len() - self.free_ios.len()
    }

    /// Returns a buffer of `len` bytes for requests of this volume.
    pub fn memory(&self, len: usize) -> Result<Buffer, RequestError> {
        Buffer::new(&self.domains, len)
            .map_err(|error| RequestError::Lost(Failure::Setup("a buffer", error)))
    }

    /// Submits a request. A malformed request is returned with its memory.
    pub fn submit(&mut self, request: Request) -> Result<(), Box<(RequestError, Request)>> {
        self.prepare(request)?;
        self.ring();
        Ok(())
    }

    /// As [`Self::submit`], but the doorbell is rung with the next call that submits or polls: several requests share
    /// one doorbell.
    pub fn prepare(&mut self, request: Request) -> Result<(), Box<(RequestError, Request)>> {
        let ended = self.finished.len();
        let result = self.add(request);
        self.notify_since(ended);
        result
    }

    /// Makes the descriptor readable if more than `ended` requests have ended: a program that waits for it gets no
    /// other notice.
    fn notify_since(&self, ended: usize) {
        if self.finished.len() > ended {
            if let Some(wake) = self.shared.wake_of(self.index) {
                // It cannot be full.
                let _ = wake.write(1);
            }
        }
    }

    fn add(&mut self, request: Request) -> Result<(), Box<(RequestError, Request)>> {
        self.follow();
        let job = match self.job(&request) {
            Ok(job) => job,
            Err(error) => return Err(Box::new((error, request))),
        };
        if !self.is_used {
            // Before the request is issued: once it is, the queue may acknowledge a write of this
            // era even after the next era has begun.
            self.is_used = true;
            self.shared.followed(self.index, self.era);
        }
        if request.notice == Notice::Polled {
            self.polled += 1;
        }
        let io = Io {
            request,
            left: 1,
            error: None,
        };
        let place = self.free_ios.pop().unwrap_or_else(|| {
            self.ios.push(None);
            self.ios.len() - 1
        });
        if let Some(free) = self.ios.get_mut(place) {
            *free = Some(io);
        }
        self.waiting.push_back(Active::new(place, job));
        match self.shared.ended() {
            Some(failure) => self.end_all(RequestError::Lost(failure)),
            None if self.link.is_none() => self.fail_fast(),
            None => self.issue_waiting(),
        }
        Ok(())
    }

    /// Returns the job for a whole request, which is cut when it is issued.
    fn job(&self, request: &Request) -> Result<Job, RequestError> {
        let Limits { block, largest, .. } = self.allowed.limits;
        let mask = u64::from(block) - 1;
        let whole = |length: u64| {
            let good = length != 0 && (length | request.offset) & mask == 0;
            let ends = request.offset.checked_add(length).is_some();
            good && ends
        };
        let in_blocks = RequestError::Invalid("it is not in whole blocks");
        let without_data = |length, limit| match limit {
            0 => Err(RequestError::Unsupported),
            _ if !whole(length) => Err(in_blocks),
            _ if request.offset + length > self.shared.present().state.sectors * SECTOR => {
                Err(RequestError::OutOfRange)
            }
            _ => Ok(Job::Bare(0, length)),
        };
        match request.op {
            Op::Flush => Ok(Job::Flush),
            Op::Discard { length } => without_data(length, self.max_discard()),
            Op::Zeroes { length, .. } => without_data(length, self.max_zeroes()),
            Op::Read | Op::Write { .. } => {
                let mut memory = request.memory.iter();
                if !memory.all(|buffer| buffer.is_of(&self.domains)) {
                    return Err(RequestError::Invalid("its memory is another volume's"));
                }
                let lengths = request.memory.iter().map(|buffer| buffer.len() as u64);
                let length = lengths.fold(0, u64::saturating_add);
                if !whole(length) || largest < block {
                    return Err(in_blocks);
                }
                Ok(Job::Uncut(Span::whole(length)))
            }
        }
    }

    /// Returns the largest request of the protocol of a kind without data; 0: there is none.
    fn max_bare(&self, op: Op) -> u32 {
        match op {
            Op::Discard { .. } => self.max_discard(),
            _ => self.max_zeroes(),
        }
    }

    fn max_discard(&self) -> u32 {
        let limits = self.shared.present().limits;
        limits.map_or(self.shared.geometry.max_discard, |limits| {
            limits.max_discard
        })
    }

    fn max_zeroes(&self) -> u32 {
        let limits = self.shared.present().limits;
        limits.map_or(self.shared.geometry.max_zeroes, |limits| limits.max_zeroes)
    }

    /// Issues the waiting requests, as far as possible.
    fn issue_waiting(&mut self) {
        while let Some(whole) = self.waiting.front().copied() {
            let (next, rest) = self.split(whole);
            if let Some(error) = self.is_hopeless(next) {
                self.waiting.pop_front();
                self.part_has_ended(whole, Err(error));
                continue;
            }
            match self.issue(next) {
                Some(true) => {
                    self.waiting.pop_front();
                    if let Some(rest) = rest {
                        self.waiting.push_front(rest);
                        if let Some(io) = self.ios.get_mut(rest.io).and_then(Option::as_mut) {
                            io.left += 1;
                        }
                    }
                }
                Some(false) => return,
                None => {
                    self.shared
                        .end(Failure::Verb("issuing a request", Errno::EINVAL));
                    return self.follow();
                }
            }
        }
    }

    /// Returns the reason why a part can never be issued.
    fn is_hopeless(&self, active: Active) -> Option<RequestError> {
        let io = self.ios.get(active.io)?.as_ref()?;
        let op = io.request.op;
        let promises = matches!(op, Op::Flush | Op::Write { fua: true });
        if promises && self.shared.has_lost_writes() {
            return Some(RequestError::LostWrites);
        }
        // Without a session the limits are not known.
        self.link.as_ref()?;
        match (op, active.job) {
            (Op::Write { .. }, Job::Data(part)) if io.error.is_none() => {
                // A target that starts no RDMA READs accepts only writes that fit into its ring or
                // a message.
                let Allowed {
                    limits,
                    inline,
                    eager,
                    ..
                } = self.allowed;
                let fits = limits.write_windows || part.length <= inline.max(eager);
                (!fits).then_some(RequestError::ReadOnly)
            }
            // An earlier part of the request has failed.
            (_, Job::Bare(..) | Job::Data(_)) if io.error.is_some() => io.error,
            (_, Job::Bare(..)) if self.max_bare(op) == 0 => Some(RequestError::Unsupported),
            _ => None,
        }
    }

    /// Splits off the data that exceeds one request of the protocol.
    fn split(&self, active: Active) -> (Active, Option<Active>) {
        let io = self.ios.get(active.io).and_then(Option::as_ref);
        let Some(Io { request, .. }) = io else {
            return (active, None);
        };
        let (first, rest) = match active.job {
            Job::Uncut(span) => {
                let is_write = request.op != Op::Read;
                match span.cut(self.allowed.limits, is_write, &request.memory) {
                    Some((part, rest)) => (Job::Data(part), rest.map(Job::Uncut)),
                    // Not reached: a data request has at least one block.
                    None => return (active, None),
                }
            }
            Job::Bare(at, end) => {
                let largest = self.max_bare(request.op);
                let middle = at + u64::from(bare(end - at, largest, self.allowed.limits.block));
                let rest = (middle != end).then_some(Job::Bare(middle, end));
                (Job::Bare(at, middle), rest)
            }
            Job::Data(_) | Job::Flush | Job::Nop => return (active, None),
        };
        let first = Active {
            job: first,
            ..active
        };
        // The rest of a request that was issued with different limits keeps its deadline.
        (first, rest.map(|job| Active { job, ..active }))
    }

    /// Issues waiting requests, and rings the doorbell.
    fn pump(&mut self) {
        self.issue_waiting();
        self.ring();
    }

    /// Rings the doorbell for [prepared](Self::prepare) requests.
    pub fn ring(&mut self) {
        let Some(link) = &mut self.link else { return };
        if let Err(error) = link.pair.ring() {
            let ended = self.finished.len();
            self.give_up(Failure::Verb("posting", error));
            self.notify_since(ended);
        }
    }

    /// Issues a part. Returns `false` if the part must wait, and `None` if this program has a bug.
    fn issue(&mut self, mut active: Active) -> Option<bool> {
        if self.link.is_none() {
            return Some(false);
        }
        let slots = match active.job {
            Job::Uncut(_) | Job::Data(_) => WINDOW_SLOTS,
            Job::Bare(..) | Job::Flush | Job::Nop => 1,
        };
        let Some(tag) = self.engine.issue(slots) else {
            return Some(false);
        };
        if matches!(active.job, Job::Flush) {
            // Numbered before it is sent: the flush covers all writes that were acknowledged until now.
            active.flush = self.shared.unflushed.begin_flush();
        }
        let mut issue = Issue {
            link: self.link.as_mut()?,
            engine: &mut self.engine,
            allowed: self.allowed,
            tag,
            quiet: false,
        };
        let request = match active.io {
            NO_IO => {
                issue.message_only(message::Op::Nop)?;
                None
            }
            io => Some(&self.ios.get(io)?.as_ref()?.request),
        };
        if let Some(request) = request {
            issue.quiet = self.allowed.quiet && request.notice == Notice::Polled;
            if !issue.request(request, active.job)? {
                self.engine.cancel(tag, slots);
                return Some(false);
            }
        }
        self.issued = self.issued.wrapping_add(1);
        active.order = self.issued;
        active.since = active.since.or(Some(self.shared.tick()));
        *self.active.get_mut(usize::from(tag.index))? = Some(active);
        self.begin_time(tag.index);
        Some(true)
    }

    /// Polls for responses. Returns the number of ended requests that wait for [`Self::completed`].
    pub fn poll(&mut self) -> usize {
        self.follow();
        // Read the tick before polling: then polling finds each response that arrived before a
        // request was late at this tick, even if the thread does not run in between.
        let now = self.shared.tick();
        if self.link.is_some() {
            self.look();
        }
        if self.tick != Some(now) {
            self.look_at_times(now);
        }
        self.finished.len()
    }

    fn begin_time(&self, tag: u16) {
        if let Some(times) = self.shared.times_of(self.index) {
            times.begin(tag, self.shared.tick());
        }
    }

    /// Gives up the session if a request is late at the tick `now`; all responses that arrived
    /// until then must have been handled. Fails requests that have been issued again for too long.
    #[cold]
    fn look_at_times(&mut self, now: Tick) {
        self.tick = Some(now);
        let times = self.shared.times_of(self.index);
        if self.link.is_some() && times.is_some_and(|times| times.is_late(now)) {
            return self.give_up(self.shared.request_timeout());
        }
        self.fail_old();
    }

    /// Fails requests that wait to be issued again although their time is over. Nothing reaches their memory, since
    /// they are not issued.
    ///
    /// A write among them may still be in progress at the target. No later write overtakes it: that one is issued in a
    /// new session, which the target grants when the drive has finished the old one's requests.
    fn fail_old(&mut self) {
        let (now, lifetime) = (self.shared.tick(), self.shared.lifetime());
        let why = self.shared.failure();
        let why = why.unwrap_or_else(|| self.shared.request_timeout());
        for active in &self.waiting {
            let io = self.ios.get_mut(active.io).and_then(Option::as_mut);
            if let Some(io) = io.filter(|_| lifetime.is_over(active.since, now)) {
                io.error.get_or_insert(RequestError::Lost(why));
            }
        }
        // Ends the other parts of these requests, too. Each part is removed once and the others are
        // put back, so they stay in order.
        for _ in 0..self.waiting.len() {
            let Some(active) = self.waiting.pop_front() else {
                return;
            };
            let io = self.ios.get(active.io).and_then(Option::as_ref);
            match io.and_then(|io| io.error) {
                Some(error) => self.part_has_ended(active, Err(error)),
                None => self.waiting.push_back(active),
            }
        }
    }

    /// Returns a request that has ended.
    pub fn completed(&mut self) -> Option<Completed> {
        self.finished.pop_front()
    }

    /// Returns the queue's descriptor. It becomes readable when a request with [`Notice::Event`]
    /// ends after [`Self::arm`] has returned 0, when the session is lost, and when a new one has
    /// begun. The descriptor never changes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.0.as_fd()
    }

    /// Returns the number of ended requests. If there is none, the descriptor becomes readable when
    /// the next request with [`Notice::Event`] ends, or the next of any kind while requests with
    /// [`Notice::Polled`] are in flight. Otherwise handle the ended requests, and call this again
    /// before waiting: completions in between raise no event.
    pub fn arm(&mut self) -> usize {
        match self.poll() {
            0 => self.arm_anyway(),
            finished => finished,
        }
    }

    /// Arms the descriptor as [`Self::arm`] does, even if the program has not yet taken all completions.
    fn arm_anyway(&mut self) -> usize {
        if let Some(wake) = self.shared.wake_of(self.index) {
            // This clears the event, if there was one.
            let _ = wake.read();
        }
        self.follow();
        let Some(link) = &mut self.link else {
            return self.poll();
        };
        link.pair.cq.take_events();
        // Completions of own work requests are not solicited.
        let needs_sends = self.engine.awaits_sends() || !self.waiting.is_empty();
        let mut solicited = self.polled == 0 && !needs_sends;
        loop {
            let armed = self.link.as_mut().map(|link| link.pair.cq.arm(solicited));
            if let Some(Err(error)) = armed {
                self.give_up(Failure::Verb("arming", error));
            }
            // A completion from before the arming raises no event.
            let finished = self.poll();
            if !solicited || !self.engine.awaits_sends() {
                return finished;
            }
            solicited = false;
        }
    }

    /// Waits for events until a request has ended, or for `timeout`. Returns the number of ended requests.
    pub fn wait(&mut self, timeout: Duration) -> usize {
        let deadline = Deadline::after(timeout);
        loop {
            let finished = self.arm();
            // When the volume has ended, requests in flight are about to end, which wakes the wait.
            let is_over = self.in_flight() == 0 && self.shared.ended().is_some();
            if finished != 0 || is_over {
                return finished;
            }
            match wait_for(self.fd(), deadline) {
                Ok(true) => {}
                Ok(false) => return self.poll(),
                Err(error) => self.shared.end(Failure::Verb("waiting for events", error)),
            }
        }
    }

    fn look(&mut self) {
        loop {
            let Some(link) = &mut self.link else { return };
            let completions = &mut self.completions;
            match link.pair.cq.poll(|completion| completions.push(completion)) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return self.give_up(Failure::Verb("polling", error)),
            }
            let mut completions = std::mem::take(&mut self.completions);
            for completion in completions.drain(..) {
                if let Err(failure) = self.complete(completion) {
                    return self.give_up(failure);
                }
            }
            self.completions = completions;
        }
        self.pump();
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Failure> {
        let Completion { id, done } = completion;
        match done {
            Done::Flushed => return Err(Failure::Flushed),
            Done::Failed(status) => return Err(Failure::Work(status)),
            Done::Sent => {
                let low = |bits: u64| u32::try_from(bits & 0xffff_ffff).unwrap_or(0);
                let signal = Signal {
                    seq: low(id),
                    frees: u16::try_from((id >> 32) & 0xffff).unwrap_or(0),
                };
                self.engine.completed(signal, &mut self.then);
            }
            Done::Received {
                bytes,
                immediate,
                invalidated,
            } => self.receive(id & !KIND_RECEIVE, bytes, immediate, invalidated)?,
        }
        let mut then = std::mem::take(&mut self.then);
        for then in then.drain(..) {
            match then {
                Then::End(tag, status) => self.end_part(tag, RequestError::from_status(status)),
                Then::Invalidate(tag, signal) => self.invalidate(tag, signal),
            }
        }
        self.then = then;
        Ok(())
    }

    fn receive(
        &mut self,
        buffer: u64,
        bytes: u32,
        immediate: Option<u32>,
        invalidated: Option<u32>,
    ) -> Result<(), Failure> {
        const NONSENSE: Failure = Failure::Protocol("a message cannot be understood");
        let buffer = usize::try_from(buffer).unwrap_or(usize::MAX);
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let mut message = [0; BUFFER_LEN];
        let message = match immediate {
            Some(_) => &mut [],
            None => message.get_mut(..bytes as usize).ok_or(NONSENSE)?,
        };
        if !link.memory.incoming.received(buffer, message) {
            return Err(NONSENSE);
        }
        link.memory
            .receive(&mut link.pair, buffer)
            .map_err(|error| Failure::Verb("posting a receive", error))?;
        let result = match immediate {
            Some(value) => self.engine.immediate(value, bytes, &mut self.then),
            None => self.engine.message(message, invalidated, &mut self.then),
        };
        result.map_err(Failure::Protocol)
    }

    fn invalidate(&mut self, tag: u16, signal: Signal) {
        if let Some(LivePair { memory, pair }) = &mut self.link {
            if let Some(window) = memory.windows.get(usize::from(tag)) {
                pair.invalidate(window, send_id(signal));
            }
        }
        // The target has responded in time; the rest depends on this host's device.
        self.begin_time(tag);
    }

    /// Ends the part of a tag. The part has its response, and neither the target nor this host's
    /// RDMA device can reach its memory any more.
    fn end_part(&mut self, tag: u16, result: Result<(), RequestError>) {
        let active = self.active.get_mut(usize::from(tag)).and_then(Option::take);
        let Some(active) = active else { return };
        if let Some(times) = self.shared.times_of(self.index) {
            times.end(tag);
        }
        let io = self.ios.get_mut(active.io).and_then(Option::as_mut);
        if let (Ok(()), Some(io)) = (result, io) {
            match (io.request.op, active.job, &self.link) {
                (Op::Read, Job::Data(part), Some(link)) if part.place == DataPlace::Slot => {
                    copy_out(&link.memory.slots, tag, part, &mut io.request.memory);
                }
                (Op::Write { fua: false } | Op::Zeroes { .. }, ..) => self.acknowledged(),
                (Op::Flush, ..) => self.shared.unflushed.flushed(active.flush),
                _ => {}
            }
        }
        self.part_has_ended(active, result);
    }

    /// Records a write that the target may keep in a volatile cache.
    fn acknowledged(&mut self) {
        let now = self.shared.unflushed.now();
        if now != self.acknowledged_at {
            self.acknowledged_at = now;
            self.shared.acknowledged(self.era, now);
        }
    }

    fn part_has_ended(&mut self, active: Active, result: Result<(), RequestError>) {
        let Some(io) = self.ios.get_mut(active.io).and_then(Option::as_mut) else {
            return;
        };
        if let Err(error) = result {
            io.error.get_or_insert(error);
        }
        self.part_is_over(active.io);
    }

    fn part_is_over(&mut self, place: usize) {
        let Some(entry) = self.ios.get_mut(place) else {
            return;
        };
        if let Some(io) = entry {
            io.left -= 1;
            if io.left != 0 {
                return;
            }
        }
        let Some(io) = entry.take() else { return };
        self.free_ios.push(place);
        if io.request.notice == Notice::Polled {
            self.polled -= 1;
        }
        if let Some(flag) = &io.request.flag {
            flag.set();
        }
        self.completed += 1;
        self.shared.completed(self.index, self.completed);
        let completed = Completed {
            user_data: io.request.user_data,
            result: io.error.map_or(Ok(()), Err),
            memory: io.request.memory,
        };
        match io.request.is_awaited {
            true => self.awaited = Some(completed),
            false => self.finished.push_back(completed),
        }
    }

    /// Gives up the session because of `failure`: the thread of the volume connects the next one.
    fn give_up(&mut self, failure: Failure) {
        self.shared.lose(self.era, failure);
        self.follow();
    }

    /// Ends all waiting requests, since there cannot be another session, or was none in time.
    fn end_all(&mut self, error: RequestError) {
        while let Some(active) = self.waiting.pop_front() {
            self.part_has_ended(active, Err(error));
        }
    }
}

/// Copies the data of a read from a tag's slot to the memory of its request.
fn copy_out(slots: &Region, tag: u16, part: Part, memory: &mut [Buffer]) {
    let mut from = usize::from(tag) * SLOT;
    let mut left = part.length as usize;
    let mut offset = part.offset;
    for buffer in memory.iter_mut().skip(part.piece) {
        let Some(to) = buffer.get_mut(offset..) else {
            return;
        };
        let count = to.len().min(left);
        if let Some(to) = to.get_mut(..count) {
            // The slot has room for the part, whose plan respects the slot's size.
            let _ = slots.read(from, to);
        }
        from += count;
        left -= count;
        offset = 0;
        if left == 0 {
            return;
        }
    }
}

/// A part that is being issued.
struct Issue<'a> {
    link: &'a mut LivePair,
    engine: &'a mut Engine,
    allowed: Allowed,
    tag: Tag,
    quiet: bool,
}

impl Issue<'_> {
    /// Issues a part of `request`; `false`: the part has to wait, and nothing was changed.
    fn request(&mut self, request: &Request, job: Job) -> Option<bool> {
        let extent = |at, length| Extent {
            offset: request.offset + at,
            length,
        };
        let bare = |at, end: u64| Some(extent(at, u32::try_from(end - at).ok()?));
        match (request.op, job) {
            (Op::Read, Job::Data(part)) => {
                self.read(request, part, extent(part.at, part.length))?;
            }
            (Op::Write { fua }, Job::Data(part)) => {
                return self.write(request, part, extent(part.at, part.length), fua);
            }
            (Op::Discard { .. }, Job::Bare(at, end)) => {
                self.message_only(message::Op::Discard(bare(at, end)?))?;
            }
            (Op::Zeroes { keep, .. }, Job::Bare(at, end)) => {
                let extent = bare(at, end)?;
                self.message_only(message::Op::WriteZeroes { extent, keep })?;
            }
            (Op::Flush, _) => self.message_only(message::Op::Flush)?,
            _ => return None,
        }
        Some(true)
    }

    /// Encodes the message of this tag.
    fn message(&self, op: message::Op) -> Option<Sge> {
        let request = message::IoRequest {
            tag: self.tag,
            volume: message::Handle::FIRST,
            op,
            quiet: self.quiet,
        };
        let outgoing = &self.link.memory.outgoing;
        outgoing.put(self.tag.index.into(), &request.encode())
    }

    /// Sends a request without data.
    fn message_only(&mut self, op: message::Op) -> Option<()> {
        let message = self.message(op)?;
        let signal = self.engine.signal_if_due(1);
        self.link.pair.send(&[message], signal.map(send_id));
        self.engine.sent(self.tag, DataPath::None);
        Some(())
    }

    fn slot(&self) -> usize {
        usize::from(self.tag.index) * SLOT
    }

    fn read(&mut self, request: &Request, part: Part, extent: Extent) -> Option<()> {
        if part.place == DataPlace::Window {
            return self.by_window(Some(request), part, |remote| {
                message::Op::Read(extent, remote)
            });
        }
        let slots = &self.link.memory.slots;
        let remote = Remote {
            address: slots.address(self.slot()),
            key: slots.peer_key(),
            response: ResponseKind::Immediate,
        };
        let message = self.message(message::Op::Read(extent, remote))?;
        self.engine.release_slots(WINDOW_SLOTS - 1);
        let signal = self.engine.signal_if_due(1);
        self.link.pair.send(&[message], signal.map(send_id));
        self.engine.sent(self.tag, DataPath::Slot(extent.length));
        Some(())
    }

    /// Sends a request whose memory the target reaches through the tag's window: a piece of `request`, or the tag's
    /// slot.
    fn by_window(
        &mut self,
        request: Option<&Request>,
        part: Part,
        op: impl FnOnce(Remote) -> message::Op,
    ) -> Option<()> {
        let is_write = request.is_none_or(|request| request.op != Op::Read);
        let right = match is_write {
            true => Right::Read,
            false => Right::Write,
        };
        let (length, slot) = (part.length as usize, self.slot());
        let LivePair { memory, pair } = &mut *self.link;
        let window = memory.windows.get_mut(usize::from(self.tag.index))?;
        let key = match request {
            Some(request) => {
                let buffer = request.memory.get(part.piece)?;
                pair.bind(window, buffer, part.offset..part.offset + length, right)?
            }
            None => pair.bind_region(window, &memory.slots, slot..slot + length, right),
        };
        let response = match self.allowed.remote_invalidate {
            true => ResponseKind::Invalidating,
            false => ResponseKind::Message,
        };
        // The addresses of a window begin at 0.
        let message = self.message(op(Remote {
            address: 0,
            key,
            response,
        }))?;
        let signal = self.engine.signal_if_due(WINDOW_SLOTS - 1);
        self.link.pair.send(&[message], signal.map(send_id));
        self.engine.sent(self.tag, DataPath::Window { key });
        Some(())
    }

    /// Copies the data of a part to the tag's slot, and returns the slot.
    fn copy_in(&self, request: &Request, part: Part) -> Option<Sge> {
        let begin = self.slot();
        let (mut to, mut left, mut offset) = (begin, part.length as usize, part.offset);
        for buffer in request.memory.get(part.piece..)? {
            let from = buffer.get(offset..)?;
            let from = from.get(..left.min(from.len()))?;
            self.link.memory.slots.write(to, from).then_some(())?;
            to += from.len();
            left -= from.len();
            offset = 0;
            if left == 0 {
                break;
            }
        }
        self.link
            .memory
            .slots
            .sge(begin..begin + part.length as usize)
    }

    fn write(&mut self, request: &Request, part: Part, extent: Extent, fua: bool) -> Option<bool> {
        let keyed = |remote| message::Op::Write {
            extent,
            remote,
            fua,
            atomic: false,
        };
        let mut data = Gathered::new();
        match part.place {
            DataPlace::Window => {
                self.by_window(Some(request), part, keyed)?;
                return Some(true);
            }
            DataPlace::Slot => data.push(self.copy_in(request, part)?)?,
            DataPlace::Gathered(_) => {
                gather(&request.memory, self.link.pair.place(), part, &mut data)?;
            }
        }
        if self.eager(data.pieces(), extent, fua)? || self.inline(&mut data, extent, fua)? {
            return Some(true);
        }
        // The ring is full, and the message has no room for the data.
        if !self.allowed.limits.write_windows {
            return Some(false);
        }
        match part.place {
            DataPlace::Gathered(1) => self.by_window(Some(request), part, keyed)?,
            DataPlace::Gathered(_) if part.length as usize > SLOT => return Some(false),
            DataPlace::Gathered(_) => {
                self.copy_in(request, part)?;
                self.by_window(None, part, keyed)?;
            }
            DataPlace::Slot | DataPlace::Window => self.by_window(None, part, keyed)?,
        }
        Some(true)
    }

    /// Writes the data of a write into the target's ring; `false`: the data must move differently.
    fn eager(&mut self, data: &[Sge], extent: Extent, fua: bool) -> Option<bool> {
        let length = extent.length;
        let immediate = match fua {
            true => None,
            false => Immediate::new(extent.offset, length, self.quiet),
        };
        let is_for_ring =
            length <= self.allowed.eager && (immediate.is_some() || length > self.allowed.inline);
        if !is_for_ring {
            return Some(false);
        }
        let Some((slot, grant)) = self.engine.eager_slot(self.tag, length) else {
            return Some(false);
        };
        let to = (grant.address(slot.offset), grant.key);
        let slots = if immediate.is_some() { 1 } else { 2 };
        self.engine.release_slots(WINDOW_SLOTS - slots);
        let signal = self.engine.signal(slots);
        if let Some(value) = immediate {
            let value = Some(value.to_wire());
            self.link.pair.write(data, to, value, Some(send_id(signal)));
        } else {
            let message = self.message(message::Op::WriteEager { extent, fua })?;
            self.link.pair.write(data, to, None, None);
            self.link.pair.send(&[message], Some(send_id(signal)));
        }
        self.engine
            .sent(self.tag, DataPath::Eager { seq: signal.seq });
        Some(true)
    }

    /// Sends the data of a write in its message; `false`: the message has no room.
    fn inline(&mut self, data: &mut Gathered, extent: Extent, fua: bool) -> Option<bool> {
        if extent.length > self.allowed.inline {
            return Some(false);
        }
        let message = self.message(message::Op::WriteInline { extent, fua })?;
        self.engine.release_slots(WINDOW_SLOTS - 1);
        let signal = self.engine.signal(1);
        let message_and_data = data.with_message(message);
        self.link.pair.send(message_and_data, Some(send_id(signal)));
        self.engine
            .sent(self.tag, DataPath::Inline { seq: signal.seq });
        Some(true)
    }
}

impl Piece for Buffer {
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// The pieces of a write that a work request gathers, with room for a message before them.
struct Gathered {
    places: [Sge; PIECES + 1],
    /// The number of used places, including that of the message.
    taken: usize,
}

impl Gathered {
    fn new() -> Self {
        Self {
            places: [Sge::NONE; PIECES + 1],
            taken: 1,
        }
    }

    /// Adds a piece; returns `None` if there is no room.
    fn push(&mut self, piece: Sge) -> Option<()> {
        *self.places.get_mut(self.taken)? = piece;
        self.taken += 1;
        Some(())
    }

    /// Returns the pieces.
    fn pieces(&self) -> &[Sge] {
        self.places.get(1..self.taken).unwrap_or_default()
    }

    /// Returns `message`, followed by the pieces.
    fn with_message(&mut self, message: Sge) -> &[Sge] {
        if let Some(first) = self.places.first_mut() {
            *first = message;
        }
        self.places.get(..self.taken).unwrap_or_default()
    }
}

/// Adds the pieces of memory that contain the data of a part to `data`, for the domain `place`.
fn gather(memory: &[Buffer], place: usize, part: Part, data: &mut Gathered) -> Option<()> {
    let (mut left, mut offset) = (part.length as usize, part.offset);
    for buffer in memory.get(part.piece..)? {
        let count = (buffer.len() - offset).min(left);
        if count != 0 {
            data.push(buffer.sge(place, offset..offset + count)?)?;
        }
        left -= count;
        offset = 0;
        if left == 0 {
            break;
        }
    }
    (left == 0).then_some(())
}

/// Synchronous calls, which copy the memory of the caller. Requests that were submitted continue meanwhile, and wait
/// for [`Queue::completed`].
impl Queue {
    /// Sets how the synchronous calls wait.
    pub fn set_notice(&mut self, notice: Notice) {
        self.notice = notice;
    }

    /// Carries out a request, and waits until it has ended.
    pub fn execute(&mut self, request: Request) -> Completed {
        let ended = self.finished.len();
        let completed = self.carry_out(request);
        self.notify_since(ended);
        completed
    }

    fn carry_out(&mut self, mut request: Request) -> Completed {
        request.notice = self.notice;
        request.is_awaited = true;
        if let Err(refused) = self.submit(request) {
            let (error, request) = *refused;
            return Completed {
                user_data: request.user_data,
                result: Err(error),
                memory: request.memory,
            };
        }
        loop {
            match self.notice {
                // Without a session there is nothing to poll.
                Notice::Polled if self.link.is_none() => {
                    self.arm_anyway();
                }
                Notice::Polled => {
                    self.poll();
                    std::hint::spin_loop();
                }
                Notice::Event => {
                    self.arm_anyway();
                }
            }
            if let Some(completed) = self.awaited.take() {
                return completed;
            }
            if self.notice == Notice::Event || self.link.is_none() {
                if let Err(error) = wait_for(self.fd(), Deadline::after(WAIT)) {
                    self.shared.end(Failure::Verb("waiting for events", error));
                }
            }
        }
    }

    /// Carries out `request` with a list of one piece: `len` bytes of the staging buffer. `before`
    /// fills them, and `after` reads them.
    fn staged(
        &mut self,
        len: usize,
        before: impl FnOnce(&mut [u8]),
        request: impl FnOnce(Vec<Buffer>) -> Request,
        after: impl FnOnce(&[u8]),
    ) -> Result<(), RequestError> {
        let mut buffer = match self.staging.take() {
            Some(buffer) => buffer,
            None => self.memory(STAGING)?,
        };
        let rest = buffer.split_off(len);
        before(&mut buffer);
        let mut list = std::mem::take(&mut self.list);
        list.push(buffer);
        let Completed {
            result, mut memory, ..
        } = self.execute(request(list));
        if let Some(mut buffer) = memory.pop() {
            if result.is_ok() {
                after(&buffer);
            }
            // It is the rest of the same buffer.
            self.staging = buffer.join(rest).is_ok().then_some(buffer);
        }
        self.list = memory;
        result
    }

    /// Reads `bytes.len()` bytes from `offset` on.
    pub fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> Result<(), RequestError> {
        let mut at = offset;
        for chunk in bytes.chunks_mut(STAGING) {
            let len = chunk.len();
            let request = |list| Request::read_scattered(at, list);
            self.staged(len, |_| {}, request, |read| chunk.copy_from_slice(read))?;
            at += len as u64;
        }
        Ok(())
    }

    /// Writes `bytes` from `offset` on.
    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), RequestError> {
        let mut at = offset;
        for chunk in bytes.chunks(STAGING) {
            let request = |list| Request::write_gathered(at, list);
            let fill = |to: &mut [u8]| to.copy_from_slice(chunk);
            self.staged(chunk.len(), fill, request, |_| {})?;
            at += chunk.len() as u64;
        }
        Ok(())
    }

    /// Makes acknowledged writes durable.
    pub fn flush(&mut self) -> Result<(), RequestError> {
        self.execute(Request::flush()).result
    }
}
