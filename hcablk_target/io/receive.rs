// SPDX-License-Identifier: GPL-2.0

//! Turns a message into a request that has begun: decoding, admission, buffers.
//!
//! # Data that comes with the request
//!
//! Each receive buffer has two pieces: one for the request, and a page for the data of an inline
//! write, from which the drive reads it. Both are posted again before the response, when the drive
//! has finished with them.

use super::{
    drive::begin_here,
    eager::{
        immediate_extent,
        UNNAMED, //
    },
    fault::Fault,
    queue::{
        kind,
        Queue,
        Received,
        Work,
        RECEIVE_ENTRIES,
        TOGETHER_MAX, //
    },
    request::{
        Group,
        TargetRequest, //
    },
};
use crate::memory::layout::MEDIUM;
use hcablk_core::{
    blkdev::plugged_for,
    proto::message::{
        self,
        BadRequest,
        Handle,
        Op,
        Remote,
        Status,
        BUFFER_LEN,
        MESSAGE_REQUESTS_MAX,
        REQUEST_LEN, //
    },
    rdma::{
        buffer::DmaBuffer,
        wr::WorkId, //
    },
    report::trace,
    sync::{
        atomic::{
            Acquire,
            Relaxed,
            Release, //
        },
        IrqGuard, //
    },
};
use kernel::prelude::*;

/// Cannot happen: there is a place for every receive buffer.
const NO_ROOM: &str = "a message has no place in which to wait";

/// The result of admitting a received request.
enum Admitted {
    Start(KBox<TargetRequest>),
    /// The request waits, or the queue is closing.
    Later,
}

impl Queue {
    /// Schedules the completion handler to start requests that wait for shared buffers, and to
    /// return shared buffers that others want. Any context; the shared pool's lock is held.
    pub(crate) fn wake(&self) {
        // Pairs with the xchg of `handle_wake()`, which then sees the caller's change.
        self.woken.store(true, Release);
        self.pair.cq().kick();
    }
}

impl Queue {
    /// Handles a received message or write-with-immediate. A request that can be begun with others
    /// of the round is added to `together`. Completion handler.
    #[inline(never)]
    pub(super) fn receive(&self, message: Received, together: &mut Group<TOGETHER_MAX>) {
        self.counters.receives.bump();
        let completed = self.take_completed();
        let mut work = self.work.lock();
        if let Some(request) = completed {
            self.release(&mut work, request);
        }
        work.silent = false;
        if work.closing {
            return;
        }
        if work.unregistered && !self.register_ring(&mut work) {
            drop(work);
            return self.unposted("the registration of the eager ring", None);
        }
        // In the order of arrival: eager writes are numbered.
        let idle = if work.received.is_empty() {
            work.idle.pop()
        } else {
            None
        };
        let Some(request) = idle else {
            if work.received.push(message).is_err() {
                self.broken(NO_ROOM);
            }
            return self.begin_waiting(work);
        };
        let (admitted, more) = self.admit(&mut work, request, message);
        self.batcher.gather_from(work.made - work.idle.len());
        if more {
            return self.receive_rest(work, admitted, message.after_one());
        }
        match admitted {
            Admitted::Start(request) => {
                drop(work);
                if message.immediate.is_none() {
                    return self.start(request);
                }
                if together.is_full() {
                    self.start_together(together);
                }
                if let Err(request) = together.push(request) {
                    self.start(request);
                }
            }
            Admitted::Later => self.begin_waiting(work),
        }
    }

    /// Starts requests that arrived together: the block layer allocates its requests for them at
    /// once, and the drive gets them with one doorbell.
    #[inline]
    pub(super) fn start_together<const N: usize>(&self, group: &mut Group<N>) {
        match group.len() {
            0 => {}
            1 => self.start_each(group),
            _ => self.start_plugged(group),
        }
    }

    // Out of line, to keep the plug out of the stack frame of every request.
    #[inline(never)]
    fn start_plugged<const N: usize>(&self, group: &mut Group<N>) {
        plugged_for(group.len() as u16, || self.start_each(group));
    }

    #[inline(always)]
    fn start_each<const N: usize>(&self, group: &mut Group<N>) {
        group.take_each(|request| self.start(request));
    }

    /// Admits the remaining requests of a message whose first one was admitted.
    #[inline(never)]
    fn receive_rest(&self, mut work: IrqGuard<'_, Work>, first: Admitted, rest: Received) {
        let mut group = Group::<MESSAGE_REQUESTS_MAX>::new();
        let mut later = false;
        let mut put = |admitted| match admitted {
            // The group has room for all requests of a message.
            Admitted::Start(request) => later |= group.push(request).is_err(),
            Admitted::Later => later = true,
        };
        put(first);
        let (mut message, mut more) = (rest, true);
        while more {
            let Some(request) = work.idle.pop() else {
                // The list is empty, so the message becomes its first.
                if work.received.push(message).is_err() {
                    self.broken(NO_ROOM);
                }
                put(Admitted::Later);
                break;
            };
            let admitted;
            (admitted, more) = self.admit(&mut work, request, message);
            message = message.after_one();
            put(admitted);
        }
        self.batcher.gather_from(work.made - work.idle.len());
        drop(work);
        self.start_together(&mut group);
        if later {
            self.begin_waiting(self.work.lock());
        }
    }

    /// Decodes a message of one request without data, which most messages are.
    #[inline(always)]
    fn read_one(&self, message: Received) -> Result<message::IoRequest, BadRequest> {
        let bytes = self
            .incoming
            .read_whole::<REQUEST_LEN>(message.buffer as usize);
        let bytes = bytes.map_err(|_| BadRequest::EndSession)?;
        message::IoRequest::count(&bytes, REQUEST_LEN)?;
        message::IoRequest::decode_whole(&bytes, 0, 0)
    }

    /// Decodes the next request of a message whose first one was admitted. Returns the request or
    /// its error, and how many requests follow.
    #[inline(always)]
    fn read_next(&self, message: Received) -> (Result<message::IoRequest, BadRequest>, usize) {
        let before = (message.admitted - 1) * REQUEST_LEN;
        let more = message.length / REQUEST_LEN - message.admitted - 1;
        let data = self.inline_data(message.buffer).ok_or(EINVAL);
        match data.and_then(|data| data.read::<REQUEST_LEN>(before)) {
            Ok(bytes) => (message::IoRequest::decode_whole(&bytes, 0, 0), more),
            Err(_) => (Err(BadRequest::EndSession), 0),
        }
    }

    /// Decodes the first request of a message of any length, as [`Self::read_next`] does.
    #[inline(never)]
    fn read_first(&self, message: Received) -> (Result<message::IoRequest, BadRequest>, usize) {
        let mut bytes = [0; BUFFER_LEN];
        // If inline data has its own page, a receive buffer has the length of one request.
        let here = if self.inline.is_empty() {
            message.length
        } else {
            message.length.min(REQUEST_LEN)
        };
        let first = self
            .incoming
            .read(message.buffer as usize, here, &mut bytes);
        let Ok(bytes) = first else {
            return (Err(BadRequest::EndSession), 0);
        };
        match message::IoRequest::count(bytes, message.length) {
            Ok(1) => (
                message::IoRequest::decode_before(bytes, message.length - here, 0),
                0,
            ),
            Ok(count) => {
                let more = count - 1;
                (
                    message::IoRequest::decode_before(bytes, 0, more as u8),
                    more,
                )
            }
            Err(e) => (Err(e), 0),
        }
    }

    /// Reads the next request of a message into `request`, and assigns transfer buffers or lets it
    /// wait. Returns whether more requests of the message follow ([`Received::after_one`]).
    // The most frequent kinds of messages are decoded by specialized code.
    fn admit(
        &self,
        work: &mut Work,
        request: KBox<TargetRequest>,
        message: Received,
    ) -> (Admitted, bool) {
        if let Some(value) = message.immediate {
            (self.admit_immediate(work, request, message, value), false)
        } else if message.admitted == 0 && message.length == REQUEST_LEN {
            let decoded = self.read_one(message);
            self.admit_decoded(work, request, message, decoded, false)
        } else if message.admitted != 0 {
            let (decoded, more) = self.read_next(message);
            self.admit_decoded(work, request, message, decoded, more != 0)
        } else {
            self.admit_first(work, request, message)
        }
    }

    /// Admits the first request of a message of any length, as [`Self::admit`] does.
    #[inline(never)]
    fn admit_first(
        &self,
        work: &mut Work,
        request: KBox<TargetRequest>,
        message: Received,
    ) -> (Admitted, bool) {
        let (decoded, more) = self.read_first(message);
        self.admit_decoded(work, request, message, decoded, more != 0)
    }

    /// Admits an eager write that came with the immediate value `value` only. It has neither a key
    /// nor transfer buffers.
    #[inline(always)]
    fn admit_immediate(
        &self,
        work: &mut Work,
        mut request: KBox<TargetRequest>,
        message: Received,
        value: u32,
    ) -> Admitted {
        let Some((extent, quiet)) = immediate_extent(value, message.length) else {
            return self.refuse(work, request, Fault::Immediate(message.length));
        };
        request.marks.receive(self.timing.load(Relaxed));
        if !self.take_ring_slot(work, &mut request, extent.length) {
            return self.refuse(work, request, Fault::NoRingSlot(UNNAMED, extent.length));
        }
        request.reset(Some(message.buffer));
        request.tag = UNNAMED;
        request.quiet = quiet;
        request.op = Ok(Op::WriteEager { extent, fua: false });
        request.size_class = MEDIUM;
        // An immediate value has no room for a handle: it means the first volume.
        request.status = match work.enter_volume(&mut request, Handle::FIRST) {
            Ok(()) => {
                request.force_fua = request.volume.forces_fua();
                request.volume.admit_write(&extent)
            }
            Err(status) => status,
        };
        self.subjects.set(&request);
        trace::target::received(|| request.about());
        if request.status == Status::Ok && !work.waiting.is_empty() {
            return self.wait(work, request);
        }
        Admitted::Start(request)
    }

    /// Ends the session because of an invalid message or immediate value, which gets no response.
    #[cold]
    #[inline(never)]
    fn refuse(&self, work: &mut Work, request: KBox<TargetRequest>, fault: Fault) -> Admitted {
        self.counters.protocol_errors.bump();
        self.keep_idle(work, request);
        self.fail(fault);
        Admitted::Later
    }

    /// Admits the request of a message that was `decoded`, as [`Self::admit`] does. `more`: other
    /// requests of the message follow.
    // `inline(always)`: callers pass constants for some arguments, so parts of the function fold
    // away.
    #[inline(always)]
    fn admit_decoded(
        &self,
        work: &mut Work,
        mut request: KBox<TargetRequest>,
        message: Received,
        decoded: Result<message::IoRequest, BadRequest>,
        more: bool,
    ) -> (Admitted, bool) {
        request.marks.receive(self.timing.load(Relaxed));
        if let Ok(message::IoRequest {
            tag,
            volume,
            op: Op::WriteEager { extent, .. },
            ..
        }) = decoded
        {
            if !work.may_have_volume(volume) {
                let fault = Fault::Message(message.length);
                return (self.refuse(work, request, fault), false);
            }
            if !self.take_ring_slot(work, &mut request, extent.length) {
                let fault = Fault::NoRingSlot(tag, extent.length);
                return (self.refuse(work, request, fault), false);
            }
        }
        // The receive buffer is posted again with the response to its last request.
        request.reset((!more).then_some(message.buffer));
        match decoded {
            Ok(asked) => self.take_request(work, &mut request, asked),
            Err(BadRequest::Refuse(tag, status)) => {
                self.counters.protocol_errors.bump();
                request.tag = tag;
                request.op = Err(status);
                request.status = status;
            }
            Err(BadRequest::EndSession) => {
                let fault = Fault::Message(message.length);
                return (self.refuse(work, request, fault), false);
            }
        }
        self.subjects.set(&request);
        trace::target::received(|| request.about());
        if request.status != Status::Ok {
            return (Admitted::Start(request), more);
        }
        (self.assign_buffers(work, request), more)
    }

    /// Records the operation of a request, and the status if it is refused.
    #[inline(always)]
    fn take_request(&self, work: &Work, request: &mut TargetRequest, asked: message::IoRequest) {
        request.tag = asked.tag;
        request.quiet = asked.quiet;
        request.op = Ok(asked.op);
        request.status = match work.enter_volume(request, asked.volume) {
            Ok(()) => {
                request.force_fua = request.volume.forces_fua();
                request.volume.admit(&asked.op)
            }
            Err(status) => {
                if status == Status::Invalid {
                    self.counters.protocol_errors.bump();
                    // The message itself is wrong: no key is invalidated.
                    request.op = Err(status);
                }
                status
            }
        };
    }

    /// Assigns transfer buffers and chunks to a request, or lets it wait for transfer buffers.
    #[inline(always)]
    fn assign_buffers(&self, work: &mut Work, mut request: KBox<TargetRequest>) -> Admitted {
        if work.waiting.is_empty() && request.take_buffers(&mut work.free) {
            self.count_buffers(&request);
            self.take_chunks(work, &mut request);
            return Admitted::Start(request);
        }
        self.wait(work, request)
    }

    /// Lets a request wait for transfer buffers, after the requests that already wait.
    #[inline(never)]
    fn wait(&self, work: &mut Work, request: KBox<TargetRequest>) -> Admitted {
        request.volume.counters().buffer_waits.bump();
        if let Err(request) = work.waiting.push(request) {
            self.cannot_wait(work, request);
        }
        Admitted::Later
    }

    /// Counts a request that has transfer buffers, by their size class.
    #[inline]
    fn count_buffers(&self, request: &TargetRequest) {
        if !request.shared().is_empty() || !request.own().is_empty() {
            let c = request.volume.counters();
            c.of_class(request.size_class).bump();
        }
    }

    /// Does the work that [`Queue::wake`] requests. Completion handler.
    #[inline]
    pub(super) fn handle_wake(&self) {
        if self.woken.load(Relaxed) && self.woken.xchg(false, Acquire) {
            let mut work = self.work.lock();
            work.free.give_back_if_pressed();
            self.begin_waiting(work);
        }
    }

    /// Begins waiting requests that can be begun. Process context.
    pub(super) fn begin_waiting<'a>(&'a self, mut work: IrqGuard<'a, Work>) {
        while !work.closing {
            let Some(request) = self.next(&mut work) else {
                break;
            };
            drop(work);
            self.start(request);
            work = self.work.lock();
        }
        self.update_notify(&work);
    }

    /// Returns the next waiting request that can be started.
    fn next(&self, work: &mut Work) -> Option<KBox<TargetRequest>> {
        loop {
            if let Some(mut request) = work.waiting.pop() {
                if request.take_buffers(&mut work.free) {
                    self.count_buffers(&request);
                    self.take_chunks(work, &mut request);
                    return Some(request);
                }
                if let Err(request) = work.waiting.unpop(request) {
                    self.cannot_wait(work, request);
                }
                return None;
            }
            if work.received.is_empty() {
                return None;
            }
            let request = work.idle.pop()?;
            let Some(message) = work.received.pop() else {
                self.keep_idle(work, request);
                return None;
            };
            let (admitted, more) = self.admit(work, request, message);
            if more && work.received.unpop(message.after_one()).is_err() {
                self.broken(NO_ROOM);
            }
            if let Admitted::Start(request) = admitted {
                return Some(request);
            }
        }
    }

    /// Posts receive buffer `buffer` again. Any context.
    #[inline]
    pub(super) fn post_receive(&self, buffer: u32) -> Result {
        let entries = self.receives.get(buffer as usize).ok_or(EINVAL)?;
        if self.inline_syncs {
            self.give_inline(buffer);
        }
        let count = if self.inline.is_empty() {
            1
        } else {
            RECEIVE_ENTRIES
        };
        let entries = entries.get(..count).ok_or(EINVAL)?;
        let id = WorkId::new(kind::RECEIVE, buffer);
        self.pair.post_receive_parts(entries, id)
    }

    /// Syncs the memory for inline data of receive buffer `buffer` for the HCA.
    #[cold]
    #[inline(never)]
    fn give_inline(&self, buffer: u32) {
        if let Some(data) = self.inline_data(buffer) {
            data.sync_for_device(0, self.shape.inline as usize);
        }
    }

    /// Returns the inline data of the request in receive buffer `buffer`.
    #[inline]
    pub(super) fn inline_data(&self, buffer: u32) -> Option<&DmaBuffer> {
        self.inline.get(buffer as usize)
    }
}

impl Queue {
    /// Starts an admitted request.
    pub(super) fn start(&self, mut request: KBox<TargetRequest>) {
        request.marks.begin();
        if request.status != Status::Ok {
            let status = request.status;
            return self.respond(request, status);
        }
        match request.op {
            Ok(Op::Write { remote, .. }) => return self.start_rdma_read(request, remote),
            Ok(Op::Nop) => return self.respond(request, Status::Ok),
            Err(status) => return self.respond(request, status),
            Ok(Op::WriteInline { .. }) => self.take_inline(&mut request),
            Ok(Op::WriteEager { .. }) => self.take_eager(&mut request),
            Ok(Op::Read(..) | Op::Flush | Op::Discard(_) | Op::WriteZeroes { .. }) => {}
        }
        begin_here(self, request);
    }

    /// Makes the inline data of a request visible to the processors.
    #[inline]
    fn take_inline(&self, request: &mut TargetRequest) {
        request.moved = request.length() as u64;
        if let Some(data) = request.receive.and_then(|buffer| self.inline_data(buffer)) {
            data.sync_for_cpu(0, request.length());
        }
    }

    /// Starts the RDMA READ of a write's data, in chunks if the request has any.
    // Out of line, to keep its tables out of the stack frame of every request.
    #[inline(never)]
    fn start_rdma_read(&self, mut request: KBox<TargetRequest>, remote: Remote) {
        match request.is_read_in_chunks() {
            true => self.rdma_read_chunks(request),
            false => self.rdma_read(request, remote),
        }
    }
}
