// SPDX-License-Identifier: GPL-2.0

//! Eager writes: the initiator puts the data into the target's eager ring, by RDMA WRITE straight
//! from the request's segments or from the tag's write bounce slot. Nothing is registered, and the
//! target posts no RDMA READ. The slots of the ring are accounted for by
//! [`grant`](hcablk_core::proto::eager_ring), under the send lock.
//!
//! An eager write has one of two forms:
//!
//! - a *write-with-immediate*: one RDMA WRITE whose immediate value names the block. For whole
//!   units of 4 KiB without FUA, in few segments; not on iWARP.
//! - a *write with a request*: RDMA WRITEs, then a SEND with the request.
//!
//! If no slot is free, the write becomes a registered or inline one when the target posts RDMA
//! READs; otherwise it waits for a response.
//!
//! The target registers the ring with its first response on a queue pair; until then the initiator
//! must not write to it. If the target posts no RDMA READ, the queue sends a nop at once to get
//! that response.

use super::{
    data_paths::{
        extent_of,
        unmapped,
        DataPath,
        IssuePath, //
        Issued,
    },
    queue::{
        kind,
        Queue, //
    },
    send_queue::{
        SendState,
        WrSeq, //
    },
    user::QueueUser,
};
use crate::shape::INLINE_SEGMENTS;
use hcablk_core::{
    blkdev::{
        Op,
        RequestRef,
        Status, //
    },
    proto::{
        connect::Reply,
        eager_ring::{
            EagerRingGrant,
            Immediate,
            RingSlot, //
        },
        message::{
            self,
            Extent,
            Tag, //
        },
    },
    rdma::wr::{
        Chain,
        Rdma,
        Send,
        Sge,
        WorkId,
        WorkRequest, //
    },
    sglist::SegmentList, //
};
use kernel::prelude::*;

/// Whether the initiator may write to the target's eager ring.
#[derive(Clone, Copy)]
pub(super) enum EagerState {
    /// The target has granted no ring.
    Never,
    /// Writing is allowed after the target's first response.
    AfterResponse(EagerRingGrant),
    Now(EagerRingGrant),
}

impl EagerState {
    /// Returns the ring if writing to it is allowed.
    #[inline(always)]
    fn ring(self) -> Option<EagerRingGrant> {
        match self {
            Self::Now(grant) => Some(grant),
            Self::Never | Self::AfterResponse(_) => None,
        }
    }
}

/// A write that qualifies for the eager ring.
pub(super) struct EagerWrite {
    extent: Extent,
    fua: bool,
    /// The write is a write-with-immediate of this value (except its `quiet` bit) if it has few
    /// enough mapped segments.
    immediate: Option<Immediate>,
}

impl EagerWrite {
    /// Returns the plan of an eager write; `None`: the request must use another data path.
    #[inline]
    pub(super) fn plan(queue: &Queue, user: &QueueUser, view: RequestRef<'_>) -> Option<Self> {
        let extent = extent_of(view);
        if view.op() != Op::Write || !queue.limits.takes_eager(extent.length) {
            return None;
        }
        let fua = view.fua();
        let few = queue.limits.is_few(view);
        let known = queue.limits.knows_immediates() && user.has_immediates();
        let immediate = match few && !fua && known {
            true => Immediate::new(extent.offset, extent.length, false),
            false => None,
        };
        let inline = few && queue.limits.takes_inline(extent.length);
        (immediate.is_some() || !inline).then_some(Self {
            extent,
            fua,
            immediate,
        })
    }
}

/// The reserved place of an eager write in the ring of [`EagerState::Now`]. The ring does not
/// change while the lock is held.
pub(super) struct Room {
    slot: RingSlot,
    /// The number of the last work request.
    wr_seq: WrSeq,
}

/// The eager ring has no free slot, or must not be written to yet.
pub(super) struct RingFull;

/// The request of an eager write, as the target receives it.
pub(super) enum EagerMessage {
    /// In the immediate value of the RDMA WRITE.
    Immediate(Immediate),
    /// In this message, posted after the RDMA WRITEs.
    Request(Sge),
}

impl IssuePath for EagerWrite {
    type Reserved = Room;
    type Full = RingFull;
    type Encoded<'a> = (EagerMessage, &'a mut SegmentList);

    #[inline(always)]
    fn map(
        &mut self,
        queue: &Queue,
        view: RequestRef<'_>,
        list: &mut SegmentList,
        _tag: Tag,
    ) -> Result<u32, Status> {
        list.map_or_copy(view).map_err(unmapped)?;
        let pieces = list.mapped();
        let per_request = queue.limits.segments() as u32;
        if pieces > per_request {
            self.immediate = None;
        }
        Ok(match self.immediate {
            Some(_) => 1,
            None => pieces.div_ceil(per_request.max(1)) + 1,
        })
    }

    #[inline(always)]
    fn reserve(
        &self,
        (queue, _): (&Queue, &QueueUser),
        send: &mut SendState,
        tag: Tag,
        slots: u32,
    ) -> Result<Room, RingFull> {
        let ring = send.eager_state.ring().map(|_| &mut send.ring);
        let taken = ring.and_then(|ring| ring.take_slot(self.extent.length, tag.to_immediate()));
        let Some(slot) = taken else {
            queue.sent.eager_misses.bump();
            return Err(RingFull);
        };
        let wr_seq = send.next_seq(slots);
        Ok(Room { slot, wr_seq })
    }

    #[inline]
    fn data_path(room: &Room) -> DataPath {
        DataPath::Eager {
            seq: room.wr_seq.seq,
        }
    }

    fn number(room: &Room) -> u16 {
        room.slot.number
    }

    #[inline(always)]
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Self::Encoded<'a>> {
        let message = match self.immediate {
            Some(value) => EagerMessage::Immediate(Immediate {
                quiet: issued.quiet,
                ..value
            }),
            None => EagerMessage::Request(queue.encode(issued, self.op())?),
        };
        Ok((message, list))
    }

    #[inline(always)]
    fn op(&self) -> message::Op {
        let Self { extent, fua, .. } = *self;
        message::Op::WriteEager { extent, fua }
    }

    #[inline(always)]
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        room: Room,
        (message, list): Self::Encoded<'_>,
        issued: Issued,
    ) -> Result {
        queue.sent.eager_writes.bump();
        if !list.is_copied() {
            queue.sent.rdma_bytes.add(self.extent.length.into());
        }
        match message {
            EagerMessage::Immediate(value) => {
                queue.post_with_immediate(send, list, room, value, issued)
            }
            EagerMessage::Request(message) => {
                queue.post_with_request(send, list, room.slot.offset, room.wr_seq, message, issued)
            }
        }
    }
}

impl Queue {
    /// Stores the ring that the target's reply grants. Called before the queue is live.
    pub(super) fn take_ring(&self, send: &mut SendState, reply: &Reply) {
        self.limits.set_only_eager(reply.no_read);
        if let Some(grant) = reply.grant {
            let limit = if reply.no_read {
                grant.bytes
            } else {
                self.settings.eager_write.min(grant.bytes)
            };
            if limit != 0 {
                send.ring.begin(grant.bytes, reply.credits);
                send.eager_state = EagerState::AfterResponse(grant);
                self.limits.set_eager(limit);
            }
        }
    }

    /// Allows eager writes, since the target has sent a response.
    #[inline]
    pub(super) fn allow_eager(send: &mut SendState) {
        if let EagerState::AfterResponse(grant) = send.eager_state {
            send.eager_state = EagerState::Now(grant);
        }
    }

    // The functions below take the parts of a `Room` that they need: the compiler then does not
    // store the `Room` for those that are not inlined.

    /// Posts the write as one RDMA WRITE with an immediate value.
    #[inline(always)]
    fn post_with_immediate(
        &self,
        send: &mut SendState,
        list: &mut SegmentList,
        room: Room,
        value: Immediate,
        issued: Issued,
    ) -> Result {
        let (offset, wr_seq) = (room.slot.offset, room.wr_seq);
        match list.only() {
            Some(sge) => self.post_data(send, &[sge], offset, wr_seq, value, issued),
            None => self.post_segments(send, list, offset, wr_seq, value, issued),
        }
    }

    /// Posts a write of several segments as [`Self::post_with_immediate`] does.
    #[inline(never)]
    fn post_segments(
        &self,
        send: &mut SendState,
        list: &mut SegmentList,
        offset: u32,
        wr_seq: WrSeq,
        value: Immediate,
        issued: Issued,
    ) -> Result {
        let mut sges = [Sge::EMPTY; INLINE_SEGMENTS];
        let count = list.part(0, &mut sges).0;
        let sges = sges.get(..count).unwrap_or(&[]);
        self.post_data(send, sges, offset, wr_seq, value, issued)
    }

    #[inline(always)]
    fn post_data(
        &self,
        send: &mut SendState,
        sges: &[Sge],
        offset: u32,
        wr_seq: WrSeq,
        value: Immediate,
        issued: Issued,
    ) -> Result {
        let grant = send.eager_state.ring().ok_or(EIO)?;
        self.post_or_queue(send, wr_seq, !issued.last, || {
            let mut wr = Rdma::write(sges, grant.address(offset), grant.key);
            wr.immediate(value.to_wire(), true);
            wr
        })
    }

    /// Posts the write as RDMA WRITEs, followed by a request.
    #[inline(never)]
    fn post_with_request(
        &self,
        send: &mut SendState,
        list: &mut SegmentList,
        mut offset: u32,
        wr_seq: WrSeq,
        message: Sge,
        issued: Issued,
    ) -> Result {
        let grant = send.eager_state.ring().ok_or(EIO)?;
        self.sent.sends.bump();
        let per_part = self.limits.segments().clamp(1, INLINE_SEGMENTS);
        let mut sges = [Sge::EMPTY; INLINE_SEGMENTS];
        let mut first = 0;
        while first < list.mapped() as usize {
            let part_sges = sges.get_mut(..per_part).ok_or(EINVAL)?;
            let (count, bytes) = list.part(first, part_sges);
            if count == 0 {
                return Err(EINVAL);
            }
            let part = sges.get(..count).unwrap_or(&[]);
            let mut wr = Rdma::write(part, grant.address(offset), grant.key);
            wr.name(WorkId::new(kind::SEND, issued.tag.index.into()));
            if !send.backlog.push(&mut wr) {
                let mut chain = Chain::new();
                chain.push(&mut wr);
                self.ring(send, &chain)?;
            }
            first += count;
            offset += bytes;
        }
        let message = [message];
        self.post_or_queue(send, wr_seq, !issued.last, || {
            let mut wr = Send::new(&message);
            wr.solicited();
            wr
        })
    }
}
