// SPDX-License-Identifier: GPL-2.0

//! Admission: from a message to a request with buffers.

use super::{
    Queue,
    Received,
    Work, //
};
use crate::{
    check::check,
    io::Io,
    stats::Marks, //
};
use hcablk_core::{
    proto::message::{
        BadRequest,
        Op,
        Request,
        Status,
        BUFFER_LEN,
        REQUEST_LEN, //
    },
    sync::IrqGuard,
    trace, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Relaxed,
        Release, //
    },
};

/// What became of a request that came in.
enum Admitted {
    Go(KBox<Io>),
    /// It waits, or the queue is closing.
    Later,
}

impl Queue {
    /// A message or an immediate value has come.
    pub(super) fn receive(&self, message: Received) {
        self.counters.receives.bump();
        let home = self.take_returned();
        let mut work = self.work.lock();
        if let Some(io) = home {
            self.put(&mut work, io);
        }
        work.silent = false;
        if work.closing {
            return;
        }
        if work.sealed && !self.open_grant(&mut work) {
            drop(work);
            return self.fail();
        }
        // In the order in which they came: granted writes are counted.
        let idle = if work.received.is_empty() {
            work.idle.pop()
        } else {
            None
        };
        let Some(io) = idle else {
            // There is room: a place for every receive buffer.
            let _ = work.received.push(message);
            return self.begin_waiting(work);
        };
        let admitted = self.admit(&mut work, io, message);
        self.outbox.heed(work.made - work.idle.len());
        match admitted {
            Admitted::Go(io) => {
                drop(work);
                self.go(io);
            }
            Admitted::Later => self.begin_waiting(work),
        }
    }

    /// The request in a receive buffer.
    #[inline]
    fn read(&self, buffer: u32, length: usize) -> Result<Request, BadRequest> {
        let mut message = [0; BUFFER_LEN];
        // With data of its own a receive buffer is as long as a request.
        let here = if self.inline.is_empty() {
            length
        } else {
            length.min(REQUEST_LEN)
        };
        match self.incoming.read(buffer as usize, here, &mut message) {
            Ok(message) => Request::decode_before(message, length - here),
            Err(_) => Err(BadRequest::Unanswerable),
        }
    }

    /// Reads a request into `io` and gives it transfer buffers, or its place.
    fn admit(&self, work: &mut Work, mut io: KBox<Io>, message: Received) -> Admitted {
        let mut decoded = match message.immediate {
            Some(value) => self.told(value, message.length),
            None => self.read(message.buffer, message.length),
        };
        io.marks = Marks::received(self.timing.load(Relaxed));
        if let Ok(Op::WriteGranted { extent, .. }) = decoded.map(|request| request.op) {
            if !self.take_place(work, &mut io, extent.length) {
                decoded = Err(BadRequest::Unanswerable);
            }
        }
        io.receive = message.buffer;
        io.next = None;
        io.moved = 0;
        io.sectors = 0;
        io.status = Status::Ok;
        io.quiet = false;
        match decoded {
            Ok(request) => {
                io.tag = request.tag;
                io.quiet = request.quiet;
                io.op = Ok(request.op);
                if let Err(status) = check(&request.op, &self.geometry, self.capacity()) {
                    io.status = status;
                } else if let Some(status) = self.refuses(&request.op) {
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
                self.fail();
                return Admitted::Later;
            }
        }
        trace::target::received(|| io.about());
        if io.status != Status::Ok {
            return Admitted::Go(io);
        }
        if work.waiting.is_empty() && io.take_buffers(&mut work.free) {
            self.count_buffers(&io);
            self.take_grains(work, &mut io);
            return Admitted::Go(io);
        }
        self.counters.buffer_waits.bump();
        // There is room: a place for every `Io`.
        let _ = work.waiting.push(io);
        Admitted::Later
    }

    /// Counts a request that has its buffers.
    #[inline]
    fn count_buffers(&self, io: &Io) {
        if let Some(counter) = self.counters.of_zone(io) {
            counter.bump();
        }
    }

    /// Others have given back what a request waits for, or want what is not used. Any
    /// context; the completion handler does it.
    pub(crate) fn wake(&self) {
        // What the caller has changed is seen by who finds this.
        self.woken.store(true, Release);
        self.pair.cq().kick();
    }

    /// Does what [`Self::wake`] was called for. Completion handler.
    #[inline]
    pub(super) fn heed_waking(&self) {
        if self.woken.load(Relaxed) && self.woken.xchg(false, Acquire) {
            let mut work = self.work.lock();
            work.free.heed_others();
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
            self.go(io);
            work = self.work.lock();
        }
        self.heed(&work);
    }

    /// The next request that can be begun.
    fn next(&self, work: &mut Work) -> Option<KBox<Io>> {
        loop {
            if let Some(mut io) = work.waiting.pop() {
                if io.take_buffers(&mut work.free) {
                    self.count_buffers(&io);
                    self.take_grains(work, &mut io);
                    return Some(io);
                }
                work.waiting.unpop(io);
                return None;
            }
            if work.received.is_empty() {
                return None;
            }
            let io = work.idle.pop()?;
            let Some(message) = work.received.pop() else {
                let _ = work.idle.push_within_capacity(io);
                return None;
            };
            if let Admitted::Go(io) = self.admit(work, io, message) {
                return Some(io);
            }
        }
    }
}
