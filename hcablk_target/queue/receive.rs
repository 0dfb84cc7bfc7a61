// SPDX-License-Identifier: GPL-2.0

//! Admission: from a message to a request with buffers.

use super::{
    eager::{
        immediate_extent,
        UNNAMED, //
    },
    kind,
    Fault,
    Io,
    Queue,
    Received,
    Work,
    RECEIVE_ENTRIES, //
};
use crate::{
    memory::{
        layout::MEDIUM,
        Waker, //
    },
    request::validate::{
        check,
        check_write, //
    }, //
};
use hcablk_core::sync::atomic::{
    Acquire,
    Relaxed,
    Release, //
};
use hcablk_core::{
    proto::message::{
        BadRequest,
        Op,
        Request,
        Status,
        BUFFER_LEN,
        MESSAGE_REQUESTS_MAX, //
        REQUEST_LEN,
    },
    rdma::{
        buffer::DmaBuffer,
        wr::WorkId, //
    },
    report::trace, //
    sync::IrqGuard,
};
use kernel::prelude::*;

/// There is a place for every receive buffer.
const NO_ROOM: &str = "a message has no place in which to wait";

/// What became of a request that came in.
enum Admitted {
    Start(KBox<Io>),
    /// It waits, or the queue is closing.
    Later,
}

impl Waker for Queue {
    /// Schedules the completion handler to start what waits for shared buffers, and to give back
    /// those that others want. Any context.
    fn wake(&self) {
        // What the caller has changed is seen by who finds this.
        self.woken.store(true, Release);
        self.pair.cq().kick();
    }
}

impl Queue {
    /// Handles a received message or write-with-immediate. Completion handler.
    #[inline(never)]
    pub(super) fn receive(&self, message: Received) {
        self.counters.receives.bump();
        let completed = self.take_completed();
        let mut work = self.work.lock();
        if let Some(io) = completed {
            self.release(&mut work, io);
        }
        work.silent = false;
        if work.closing {
            return;
        }
        if work.unregistered && !self.register_ring(&mut work) {
            drop(work);
            return self.unposted("the registration of the eager ring", None);
        }
        // In the order in which they came: eager writes are counted.
        let idle = if work.received.is_empty() {
            work.idle.pop()
        } else {
            None
        };
        let Some(io) = idle else {
            if work.received.push(message).is_err() {
                self.broken(NO_ROOM);
            }
            return self.begin_waiting(work);
        };
        let (admitted, more) = self.admit(&mut work, io, message);
        self.batcher.gather_from(work.made - work.idle.len());
        if more {
            return self.receive_rest(work, admitted, message.behind());
        }
        match admitted {
            Admitted::Start(io) => {
                drop(work);
                self.start(io);
            }
            Admitted::Later => self.begin_waiting(work),
        }
    }

    /// Admits the other requests of a message, whose first was admitted.
    #[inline(never)]
    fn receive_rest(&self, mut work: IrqGuard<'_, Work>, first: Admitted, rest: Received) {
        let mut group = [const { None }; MESSAGE_REQUESTS_MAX];
        let mut places = group.iter_mut();
        let mut later = false;
        let mut put = |admitted| match (admitted, places.next()) {
            (Admitted::Start(io), Some(place)) => *place = Some(io),
            _ => later = true,
        };
        put(first);
        let (mut message, mut more) = (rest, true);
        while more {
            let Some(io) = work.idle.pop() else {
                // Nothing waits in front of it.
                if work.received.push(message).is_err() {
                    self.broken(NO_ROOM);
                }
                put(Admitted::Later);
                break;
            };
            let admitted;
            (admitted, more) = self.admit(&mut work, io, message);
            message = message.behind();
            put(admitted);
        }
        self.batcher.gather_from(work.made - work.idle.len());
        drop(work);
        for io in group.into_iter().flatten() {
            self.start(io);
        }
        if later {
            self.begin_waiting(self.work.lock());
        }
    }

    /// Decodes the request of a message that is one request without data, as most are.
    #[inline(always)]
    fn read_one(&self, message: Received) -> Result<Request, BadRequest> {
        let bytes = self
            .incoming
            .read_whole::<REQUEST_LEN>(message.buffer as usize);
        let bytes = bytes.map_err(|_| BadRequest::Unanswerable)?;
        Request::count(&bytes, REQUEST_LEN)?;
        Request::decode_whole(&bytes, 0, 0)
    }

    /// Decodes the next request of a message. Returns it, or what is wrong with it, and how many
    /// follow.
    #[inline]
    fn read(&self, message: Received) -> (Result<Request, BadRequest>, usize) {
        if message.admitted == 0 {
            return self.read_first(message);
        }
        let before = (message.admitted - 1) * REQUEST_LEN;
        let more = message.length / REQUEST_LEN - message.admitted - 1;
        let data = self.inline_data(message.buffer).ok_or(EINVAL);
        match data.and_then(|data| data.read::<REQUEST_LEN>(before)) {
            Ok(bytes) => (Request::decode_whole(&bytes, 0, 0), more),
            Err(_) => (Err(BadRequest::Unanswerable), 0),
        }
    }

    /// Decodes the first request of a message as [`Self::read`] does, of any length.
    #[inline(never)]
    fn read_first(&self, message: Received) -> (Result<Request, BadRequest>, usize) {
        let mut bytes = [0; BUFFER_LEN];
        // With data of its own a receive buffer is as long as a request.
        let here = if self.inline.is_empty() {
            message.length
        } else {
            message.length.min(REQUEST_LEN)
        };
        let first = self
            .incoming
            .read(message.buffer as usize, here, &mut bytes);
        let Ok(bytes) = first else {
            return (Err(BadRequest::Unanswerable), 0);
        };
        match Request::count(bytes, message.length) {
            Ok(1) => (Request::decode_before(bytes, message.length - here, 0), 0),
            Ok(count) => {
                let more = count - 1;
                (Request::decode_before(bytes, 0, more as u8), more)
            }
            Err(e) => (Err(e), 0),
        }
    }

    /// Reads the next request of a message into `io` and gives it transfer buffers, or its
    /// place. Returns whether others follow in the message ([`Received::behind`]), too.
    // What most messages are is read by code that knows it.
    fn admit(&self, work: &mut Work, io: KBox<Io>, message: Received) -> (Admitted, bool) {
        if let Some(value) = message.immediate {
            (self.admit_immediate(work, io, message, value), false)
        } else if message.admitted == 0 && message.length == REQUEST_LEN {
            let decoded = self.read_one(message);
            self.admit_decoded(work, io, message, decoded, false)
        } else {
            let (decoded, more) = self.read(message);
            self.admit_decoded(work, io, message, decoded, more != 0)
        }
    }

    /// Admits an eager write that came with nothing but the immediate value `value`. It has neither a key nor transfer
    /// buffers.
    #[inline(always)]
    fn admit_immediate(
        &self,
        work: &mut Work,
        mut io: KBox<Io>,
        message: Received,
        value: u32,
    ) -> Admitted {
        let Some((extent, quiet)) = immediate_extent(value, message.length) else {
            return self.refuse(work, io, Fault::Immediate(message.length));
        };
        io.marks.receive(self.timing.load(Relaxed));
        if !self.take_ring_slot(work, &mut io, extent.length) {
            return self.refuse(work, io, Fault::NoRingSlot(UNNAMED, extent.length));
        }
        io.reset(Some(message.buffer));
        io.tag = UNNAMED;
        io.quiet = quiet;
        io.op = Ok(Op::WriteEager { extent, fua: false });
        io.force_fua = self.forces_fua();
        io.size_class = MEDIUM;
        let (size, refuses_writes) = (self.backing.size_bytes(), || self.backing.refuses_writes());
        if let Err(status) = check_write(&extent, &self.geometry, size, refuses_writes) {
            io.status = status;
        } else if self.is_reserved_from_writes() {
            io.status = Status::Conflict;
        }
        self.named.set(&io);
        trace::target::received(|| io.about());
        if io.status == Status::Ok && !work.waiting.is_empty() {
            return self.wait(work, io);
        }
        Admitted::Start(io)
    }

    /// Ends the session for a message that cannot be answered.
    #[cold]
    #[inline(never)]
    fn refuse(&self, work: &mut Work, io: KBox<Io>, fault: Fault) -> Admitted {
        self.counters.protocol_errors.bump();
        self.keep_idle(work, io);
        self.fail(fault);
        Admitted::Later
    }

    /// Admits the request of a message as [`Self::admit`] does, which was `decoded`; with `more`
    /// behind it.
    // Each of the calls knows something of it, which leaves less to do.
    #[inline(always)]
    fn admit_decoded(
        &self,
        work: &mut Work,
        mut io: KBox<Io>,
        message: Received,
        decoded: Result<Request, BadRequest>,
        more: bool,
    ) -> (Admitted, bool) {
        io.marks.receive(self.timing.load(Relaxed));
        if let Ok(Request {
            tag,
            op: Op::WriteEager { extent, .. },
            ..
        }) = decoded
        {
            if !self.take_ring_slot(work, &mut io, extent.length) {
                let fault = Fault::NoRingSlot(tag, extent.length);
                return (self.refuse(work, io, fault), false);
            }
        }
        // The receive buffer is posted again with the answer to its last request.
        io.reset((!more).then_some(message.buffer));
        match decoded {
            Ok(request) => self.take_request(&mut io, request),
            Err(BadRequest::Answer(tag, status)) => {
                self.counters.protocol_errors.bump();
                io.tag = tag;
                io.op = Err(status);
                io.status = status;
            }
            Err(BadRequest::Unanswerable) => {
                let fault = Fault::Message(message.length);
                return (self.refuse(work, io, fault), false);
            }
        }
        self.named.set(&io);
        trace::target::received(|| io.about());
        if io.status != Status::Ok {
            return (Admitted::Start(io), more);
        }
        (self.assign_buffers(work, io), more)
    }

    /// Records what a request asks for, and with what status it is refused if it is.
    #[inline(always)]
    fn take_request(&self, io: &mut Io, request: Request) {
        io.tag = request.tag;
        io.quiet = request.quiet;
        io.op = Ok(request.op);
        io.force_fua = self.forces_fua();
        let (size, refuses_writes) = (self.backing.size_bytes(), || self.backing.refuses_writes());
        let emptied = || self.backing.emptied();
        if let Err(status) = check(&request.op, &self.geometry, size, refuses_writes, emptied) {
            io.status = status;
        } else if let Some(status) = self.refuses(&request.op) {
            io.status = status;
        } else if self.is_reserved_from(&request.op) {
            io.status = Status::Conflict;
        }
    }

    /// Returns whether a reservation of another host forbids a request. This is asked under the lock under which the queue closes:
    /// who closes it after a change waits for all that was allowed before.
    #[inline]
    fn is_reserved_from(&self, op: &Op) -> bool {
        let drive = self.backing.drive();
        drive.is_some_and(|drive| drive.forbids(&self.host, op))
    }

    /// Returns whether a reservation of another host forbids writes, as [`Self::is_reserved_from`] does.
    #[inline]
    fn is_reserved_from_writes(&self) -> bool {
        let drive = self.backing.drive();
        drive.is_some_and(|drive| drive.forbids_writes(&self.host))
    }

    /// Gives a request its transfer buffers and chunks, or its place among those that wait for some.
    #[inline(always)]
    fn assign_buffers(&self, work: &mut Work, mut io: KBox<Io>) -> Admitted {
        if work.waiting.is_empty() && io.take_buffers(&mut work.free) {
            self.count_buffers(&io);
            self.take_chunks(work, &mut io);
            return Admitted::Start(io);
        }
        self.wait(work, io)
    }

    /// Lets a request wait for transfer buffers, or behind those that do.
    #[inline(never)]
    fn wait(&self, work: &mut Work, io: KBox<Io>) -> Admitted {
        self.counters.buffer_waits.bump();
        if let Err(io) = work.waiting.push(io) {
            self.cannot_wait(work, io);
        }
        Admitted::Later
    }

    /// Counts a request that has its buffers.
    #[inline]
    fn count_buffers(&self, io: &Io) {
        if !io.shared().is_empty() || !io.own().is_empty() {
            self.counters.of_class(io.size_class).bump();
        }
    }

    /// Does what [`Waker::wake`] was called for. Completion handler.
    #[inline]
    pub(super) fn handle_wake(&self) {
        if self.woken.load(Relaxed) && self.woken.xchg(false, Acquire) {
            let mut work = self.work.lock();
            work.free.give_back_if_pressed();
            self.begin_waiting(work);
        }
    }

    /// Begins what can be begun of that which waits. Process context.
    pub(super) fn begin_waiting<'a>(&'a self, mut work: IrqGuard<'a, Work>) {
        while !work.closing {
            let Some(io) = self.next(&mut work) else {
                break;
            };
            drop(work);
            self.start(io);
            work = self.work.lock();
        }
        self.update_notify(&work);
    }

    /// Returns the next request that can be started.
    fn next(&self, work: &mut Work) -> Option<KBox<Io>> {
        loop {
            if let Some(mut io) = work.waiting.pop() {
                if io.take_buffers(&mut work.free) {
                    self.count_buffers(&io);
                    self.take_chunks(work, &mut io);
                    return Some(io);
                }
                if let Err(io) = work.waiting.unpop(io) {
                    self.cannot_wait(work, io);
                }
                return None;
            }
            if work.received.is_empty() {
                return None;
            }
            let io = work.idle.pop()?;
            let Some(message) = work.received.pop() else {
                self.keep_idle(work, io);
                return None;
            };
            let (admitted, more) = self.admit(work, io, message);
            if more && work.received.unpop(message.behind()).is_err() {
                self.broken(NO_ROOM);
            }
            if let Admitted::Start(io) = admitted {
                return Some(io);
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

    /// Gives the memory for inline data of receive buffer `buffer` to the HCA.
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
