// SPDX-License-Identifier: GPL-2.0

//! Granted memory: writes whose data is there before the target knows of them,
//! and their answers. Who may use which part when is said in
//! [`grant`](hcablk_core::proto::grant); the account is kept under
//! `Queue::work`, in the order in which requests come.
//!
//! A place is given back just before its answer is posted, without that lock ([`Left`]):
//! who takes the next place looks for it. The initiator can
//! write into all of the memory at any time, but reads nothing there; what is in
//! it decides nothing here.

use super::{
    kind,
    outbox::Waiting,
    Queue,
    Work, //
};
use crate::io::Io;
use hcablk_core::{
    granted::Granted,
    proto::{
        grant::{
            Answers,
            Grant,
            Immediate,
            Ring,
            Taken,
            UNIT, //
        },
        message::{
            BadRequest,
            Extent,
            Op,
            Request,
            Status,
            Tag, //
        },
    },
    rdma::wr::{
        Chain,
        Entry,
        Send,
        WorkId,
        WorkRequest, //
    },
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
};

/// A message is sealed when it is full.
const NO_ROOM: &str = "an answer has no room in a message";

/// Which places are about to be answered: one for each write that may be open.
pub(super) struct Left(KVec<Atomic<u32>>);

impl Left {
    /// May sleep.
    pub(super) fn new(open_writes: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(open_writes, GFP_KERNEL)?;
        for _ in 0..open_writes {
            places.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    #[inline]
    fn place(&self, number: u16) -> Option<&Atomic<u32>> {
        // Their number is a power of two.
        let mask = self.0.len().checked_sub(1)?;
        self.0.get(usize::from(number) & mask)
    }

    /// Write `number` is about to be answered. Any context.
    #[inline]
    fn set(&self, number: u16) {
        if let Some(place) = self.place(number) {
            place.store(1, Release);
        }
    }

    /// Makes the places free that can be: the oldest ones. `false`: one is not taken, though it
    /// was answered.
    #[inline]
    fn sweep(&self, ring: &mut Ring<KVec<Taken>>) -> bool {
        while let Some(number) = ring.oldest() {
            match self.place(number) {
                Some(place) if place.load(Acquire) != 0 => place.store(0, Release),
                _ => break,
            }
            if ring.free(number).is_none() {
                return false;
            }
        }
        true
    }
}

impl Queue {
    /// The memory that is granted, if any is.
    #[inline]
    pub(crate) fn granted(&self) -> Option<&Granted> {
        self.granted.as_ref()
    }

    /// What the initiator is told of it.
    pub(crate) fn grant(&self) -> Option<Grant> {
        Some(self.granted()?.grant())
    }

    /// Lets the initiator write there: with the first message of it, which is before
    /// it hears anything that says that it may. `false`: the queue pair takes
    /// no work.
    pub(super) fn open_grant(&self, work: &mut Work) -> bool {
        work.sealed = false;
        let Some(granted) = self.granted() else {
            return true;
        };
        let mut register = granted.register();
        register.signal(WorkId::new(kind::GRANT, 0));
        let mut chain = Chain::new();
        chain.push(&mut register);
        self.outbox.rang(1);
        self.pair.post(&chain).is_ok()
    }

    /// The write that an immediate value tells of, with `length` bytes of data.
    #[inline]
    pub(super) fn told(&self, value: u32, length: usize) -> Result<Request, BadRequest> {
        let length = u32::try_from(length).map_err(|_| BadRequest::Unanswerable)?;
        if length == 0 || length % UNIT != 0 {
            return Err(BadRequest::Unanswerable);
        }
        let immediate = Immediate::from_wire(value);
        Ok(Request {
            // It is named by its number.
            tag: Tag::from_immediate(0),
            op: Op::WriteGranted {
                extent: Extent {
                    offset: immediate.offset(),
                    length,
                },
                fua: false,
            },
            quiet: immediate.quiet,
        })
    }

    /// Gives a granted write its place; `false`: there is none, so its initiator has
    /// broken the protocol.
    #[inline]
    pub(super) fn take_place(&self, work: &mut Work, io: &mut Io, length: u32) -> bool {
        if !self.left.sweep(&mut work.ring) {
            self.broken("a granted write was answered that is not open");
            return false;
        }
        let Some(place) = work.ring.place(length, 0) else {
            return false;
        };
        io.place = place;
        true
    }

    /// Writes what is in granted memory.
    pub(super) fn store_granted(&self, mut io: KBox<Io>) {
        io.moved = io.length() as u64;
        if let Some(granted) = self.granted() {
            granted.sync_for_cpu(io.place.offset as usize, io.length());
        }
        self.begin(io);
    }

    /// Answers a granted write; the receive buffer that it took is posted again.
    pub(super) fn answer_granted(&self, io: KBox<Io>) {
        if let Some(granted) = self.granted() {
            granted.sync_for_device(io.place.offset as usize, io.length());
        }
        self.left.set(io.place.number);
        if self.outbox.gathers() {
            return self.gather_granted(io);
        }
        let index = io.index;
        let mut answers = Answers::new();
        if !answers.push(io.place.number, io.status) {
            self.broken(NO_ROOM);
        }
        let Ok(message) = self.outgoing.write(index as usize, answers.message()) else {
            self.broken("a request has no buffer for its answer");
            return self.give_up(io);
        };
        let message = [Entry::new(message)];
        let mut send = answer(&message, index, io.quiet);
        let mut chain = Chain::new();
        chain.push(&mut send);
        self.post(io, &chain);
    }

    /// Lets an answer wait for others that go by the same message.
    fn gather_granted(&self, mut io: KBox<Io>) {
        let (index, number, status, quiet) = (io.index, io.place.number, io.status, io.quiet);
        let mut waiting = self.outbox.waiting();
        io.next = waiting.first;
        if let Err(io) = self.inflight.park(index, io) {
            drop(waiting);
            self.broken("a granted write is there that is to be answered");
            return self.give_up(io);
        }
        waiting.first = Some(index);
        waiting.loud |= !quiet;
        if !waiting.answers.push(number, status) {
            self.broken(NO_ROOM);
        }
        if waiting.answers.len() < Answers::MAX {
            return;
        }
        let failed = self.seal_answers(&mut waiting);
        drop(waiting);
        if failed.is_some() {
            self.not_posted(failed);
        }
    }

    /// Makes a message of the answers that wait, to be posted with what else waits. On
    /// failure says which `Io` is the first of those that were to be answered by it.
    pub(super) fn seal_answers(&self, waiting: &mut Waiting) -> Option<u32> {
        let first = waiting.first.take()?;
        let answers = core::mem::take(&mut waiting.answers);
        let quiet = !core::mem::take(&mut waiting.loud);
        let Ok(message) = self.outgoing.write(first as usize, answers.message()) else {
            return Some(first);
        };
        let message = [Entry::new(message)];
        let mut send = answer(&message, first, quiet);
        if waiting.backlog.push(&mut send) {
            waiting.last = None;
            return None;
        }
        let mut chain = Chain::new();
        chain.push(&mut send);
        match self.ring(waiting, &chain) {
            Ok(()) => None,
            Err(_) => Some(first),
        }
    }

    /// Whether a write's status may be told by its number: it has a place.
    #[inline]
    pub(super) fn is_granted(io: &Io) -> bool {
        matches!(io.op, Ok(Op::WriteGranted { .. }))
    }

    /// Writes that cannot be done, whatever else is right with them.
    #[inline]
    pub(super) fn refuses(&self, op: &Op) -> Option<Status> {
        match op {
            Op::Write { .. } if self.shape.no_read => Some(Status::Unsupported),
            _ => None,
        }
    }
}

/// The message with answers in `message`, of the buffer of `index`.
#[inline]
fn answer<'a>(message: &'a [Entry], index: u32, quiet: bool) -> Send<'a> {
    let mut send = Send::new(message);
    if !quiet {
        send.solicited();
    }
    send.signal(WorkId::new(kind::ANSWER, index));
    send
}
