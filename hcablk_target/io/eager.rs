// SPDX-License-Identifier: GPL-2.0

//! Handles eager writes, whose data is in the eager ring before the target knows of them, and their
//! responses. [`eager_ring`](hcablk_core::proto::eager_ring) accounts for the slots of the ring,
//! under `Queue::work`, in the order in which requests arrive.
//!
//! Just before a response is posted, its slot is marked, without that lock ([`RespondedSlots`]).
//! The next write that takes a slot frees the marked ones. The initiator can write to all of the
//! ring at any time, but cannot read it; no decision here depends on the contents of the ring.

use super::{
    queue::{
        kind,
        Queue,
        Work, //
    },
    request::TargetRequest,
    respond::ResponseBatch, //
};
use hcablk_core::{
    memory::eager_ring::EagerRing,
    proto::{
        eager_ring::{
            EagerResponses,
            EagerRingGrant,
            Immediate,
            Ring,
            Taken,
            UNIT, //
        },
        message::{
            Extent,
            Op,
            Tag, //
        },
    },
    rdma::wr::{
        Chain,
        Send,
        Sge,
        WorkId,
        WorkRequest, //
    },
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
};
use kernel::prelude::*;

/// Cannot happen: a message is flushed when it is full.
const NO_ROOM: &str = "a response has no room in a message";

/// The tag of an eager write that came with an immediate value, and has a number but no tag.
pub(super) const UNNAMED: Tag = Tag::from_immediate(0);

/// Returns the blocks of the eager write of `length` bytes with the immediate value `value`, and
/// whether its response need not raise an event at the initiator. Returns `None` if the value or
/// the length is not valid.
#[inline]
pub(super) fn immediate_extent(value: u32, length: usize) -> Option<(Extent, bool)> {
    let length = u32::try_from(length).ok()?;
    if length == 0 || length % UNIT != 0 {
        return None;
    }
    let immediate = Immediate::from_wire(value);
    let offset = immediate.offset();
    Some((Extent { offset, length }, immediate.quiet))
}

/// Marks of the slots whose writes are about to get their response: one for each write that may be
/// open.
pub(super) struct RespondedSlots(KVec<Atomic<u32>>);

impl RespondedSlots {
    /// Allocates the marks for `open_writes` eager writes. May sleep.
    pub(super) fn new(open_writes: usize) -> Result<Self> {
        let mut slots = KVec::with_capacity(open_writes, GFP_KERNEL)?;
        for _ in 0..open_writes {
            slots.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self(slots))
    }

    #[inline]
    fn slot(&self, number: u16) -> Option<&Atomic<u32>> {
        // Their number is a power of two.
        let mask = self.0.len().checked_sub(1)?;
        self.0.get(usize::from(number) & mask)
    }

    /// Marks that the response to write `number` is about to be sent. Any context.
    #[inline]
    fn set(&self, number: u16) {
        if let Some(slot) = self.slot(number) {
            slot.store(1, Release);
        }
    }

    /// Frees the oldest marked slots. Returns `false` if a marked slot was not taken.
    #[inline]
    fn sweep(&self, ring: &mut Ring<KVec<Taken>>) -> bool {
        while let Some(number) = ring.oldest() {
            match self.slot(number) {
                Some(slot) if slot.load(Acquire) != 0 => slot.store(0, Release),
                _ => break,
            }
            if !ring.free_oldest() {
                return false;
            }
        }
        true
    }
}

impl Queue {
    /// Returns the eager ring, if the initiator was granted one.
    #[inline]
    pub(crate) fn eager_ring(&self) -> Option<&EagerRing> {
        self.eager_ring.as_ref()
    }

    /// Returns the eager ring as the reply grants it.
    pub(crate) fn grant(&self) -> Option<EagerRingGrant> {
        Some(self.eager_ring()?.grant())
    }

    /// Posts the registration of the eager ring, at the initiator's first message; the initiator
    /// may write to the ring after the response to it. Returns `false` if the queue pair accepts no
    /// work.
    #[cold]
    pub(super) fn register_ring(&self, work: &mut Work) -> bool {
        work.unregistered = false;
        let Some(eager_ring) = self.eager_ring() else {
            return true;
        };
        let Ok(mut register) = eager_ring.register() else {
            return false;
        };
        register.signal(WorkId::new(kind::EAGER_RING, 0));
        let mut chain = Chain::new();
        chain.push(&mut register);
        self.batcher.rang(1);
        self.pair.post(&chain).is_ok()
    }

    /// Takes the ring slot of an eager write. Returns `false` if no slot is free, which means that
    /// the initiator has broken the protocol.
    #[inline(always)]
    pub(super) fn take_ring_slot(
        &self,
        work: &mut Work,
        request: &mut TargetRequest,
        length: u32,
    ) -> bool {
        if !self.responded_slots.sweep(&mut work.ring) {
            self.broken("a response was made for an eager write that is not open");
            return false;
        }
        let Some(slot) = work.ring.take_slot(length, 0) else {
            return false;
        };
        request.ring_slot = slot;
        true
    }

    /// Makes the data in the ring slot visible to the processors.
    #[inline]
    pub(super) fn take_eager(&self, request: &mut TargetRequest) {
        request.moved = request.length() as u64;
        if let Some(eager_ring) = self.eager_ring() {
            eager_ring.sync_for_cpu(request.ring_slot.offset as usize, request.length());
        }
    }

    /// Sends the response of an eager write, whose receive buffer has been posted again.
    pub(super) fn respond_eager(&self, request: KBox<TargetRequest>) {
        if let Some(eager_ring) = self.eager_ring() {
            eager_ring.sync_for_device(request.ring_slot.offset as usize, request.length());
        }
        self.responded_slots.set(request.ring_slot.number);
        if self.batcher.gathers() {
            return self.gather_eager(request);
        }
        let index = request.index;
        let mut responses = EagerResponses::new();
        if !responses.push(request.ring_slot.number, request.status) {
            self.broken(NO_ROOM);
        }
        let Ok(message) = self.outgoing.write(index as usize, responses.message()) else {
            self.broken("a request has no buffer for its response");
            return self.give_up(request);
        };
        let message = [Sge::new(message)];
        let mut send = response_send(&message, index, request.quiet);
        let mut chain = Chain::new();
        chain.push(&mut send);
        self.post_here(request, &chain);
    }

    /// Adds the response of an eager write to those that the next message carries.
    fn gather_eager(&self, mut request: KBox<TargetRequest>) {
        let (index, number, status, quiet) = (
            request.index,
            request.ring_slot.number,
            request.status,
            request.quiet,
        );
        let mut waiting = self.batcher.waiting();
        request.next = waiting.head;
        if let Err(request) = self.inflight.park(index, request) {
            drop(waiting);
            self.broken("in-flight slot of an eager write already occupied");
            return self.give_up(request);
        }
        waiting.head = Some(index);
        waiting.solicited |= !quiet;
        if !waiting.eager_responses.push(number, status) {
            self.broken(NO_ROOM);
        }
        if waiting.eager_responses.len() < EagerResponses::MAX {
            return;
        }
        let failed = self.flush_responses(&mut waiting);
        drop(waiting);
        if failed.is_some() {
            self.not_posted(failed);
        }
    }

    /// Flushes the waiting responses: makes their message, and adds it to the backlog. On failure
    /// returns the head of the list of `TargetRequest`s whose responses are in the message.
    pub(super) fn flush_responses(&self, waiting: &mut ResponseBatch) -> Option<u32> {
        let head = waiting.head.take()?;
        let responses = core::mem::take(&mut waiting.eager_responses);
        let quiet = !core::mem::take(&mut waiting.solicited);
        let Ok(message) = self.outgoing.write(head as usize, responses.message()) else {
            return Some(head);
        };
        let message = [Sge::new(message)];
        let mut send = response_send(&message, head, quiet);
        if waiting.backlog.push(&mut send) {
            waiting.last = None;
            return None;
        }
        let mut chain = Chain::new();
        chain.push(&mut send);
        match self.ring(waiting, &chain) {
            Ok(()) => None,
            Err(_) => Some(head),
        }
    }

    /// Returns whether the request is an eager write, whose response names it by its number.
    #[inline]
    pub(super) fn is_eager(request: &TargetRequest) -> bool {
        matches!(request.op, Ok(Op::WriteEager { .. }))
    }
}

/// Makes the SEND of the responses in `message`, which is in the message buffer of `index`.
#[inline]
fn response_send<'a>(message: &'a [Sge], index: u32, quiet: bool) -> Send<'a> {
    let mut send = Send::new(message);
    if !quiet {
        send.solicited();
    }
    send.signal(WorkId::new(kind::RESPONSE, index));
    send
}
