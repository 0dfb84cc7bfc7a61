// SPDX-License-Identifier: GPL-2.0

//! Eager writes: the initiator puts the data into the target's eager ring, by RDMA WRITE straight
//! from the request's segments. Nothing is registered, and the target posts no RDMA READ. The
//! slots of the ring are accounted for by [`grant`](hcablk_core::proto::grant), under the send
//! lock.
//!
//! An eager write has one of two forms:
//!
//! - a *write-with-immediate*: one RDMA WRITE, whose immediate value says for which block it is.
//!   For whole units of 4 KiB without FUA, in few segments, but not on iWARP.
//! - a *write with a request*: RDMA WRITEs, and a request in a message behind them.
//!
//! A write that finds no free slot goes another way if the target posts RDMA READs. Otherwise it
//! waits for an answer.
//!
//! The target registers the ring with its first answer on a queue pair: before that nothing is
//! written. If the target posts no RDMA READ, the queue requests the volume's size at once to get
//! that answer.

use super::{
    issue::give_back,
    kind,
    wr_seq::WrSeq,
    Driver,
    Phase,
    Queue,
    SendState, //
};
use crate::{
    batching::Solicited,
    shape::INLINE_SEGMENTS,
    stats::Marks, //
};
use hcablk_core::{
    blkdev::{
        Op,
        Rejected,
        Request,
        RequestRef,
        Status, //
    },
    proto::{
        connect::Reply,
        grant::{
            Grant,
            Immediate,
            RingSlot, //
        },
        message::{
            self,
            Extent,
            Tag, //
        },
    },
    rdma::{
        device::Direction,
        wr::{
            Chain,
            Rdma,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    report::trace, //
    sglist::SegmentList,
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};

/// Whether the initiator may write to the target's eager ring.
#[derive(Clone, Copy)]
pub(super) enum EagerState {
    /// The target has granted no ring.
    Never,
    /// From its first answer on.
    AfterAnswer(Grant),
    Now(Grant),
}

/// A write that can be an eager one.
pub(super) struct Eager {
    extent: Extent,
    fua: bool,
    /// It can be a write-with-immediate.
    immediate: bool,
}

impl Eager {
    fn op(&self) -> message::Op {
        message::Op::WriteEager {
            extent: self.extent,
            fua: self.fua,
        }
    }
}

impl Queue {
    /// Stores the ring of the target's reply. Before the queue is live.
    pub(super) fn take_ring(&self, send: &mut SendState, reply: &Reply) {
        self.only_eager.store(reply.no_read, Relaxed);
        if let Some(grant) = reply.grant {
            let limit = if reply.no_read {
                grant.bytes
            } else {
                self.settings.eager_write.min(grant.bytes)
            };
            if limit != 0 {
                send.ring.begin(grant.bytes, reply.credits);
                send.eager_state = EagerState::AfterAnswer(grant);
                self.eager_limit.store(limit, Relaxed);
            }
        }
    }

    /// Allows eager writes, since the target has answered a request.
    #[inline]
    pub(super) fn allow_eager(send: &mut SendState) {
        if let EagerState::AfterAnswer(grant) = send.eager_state {
            send.eager_state = EagerState::Now(grant);
        }
    }

    /// Returns how a request goes as an eager write, `None` if it is to go another way.
    #[inline]
    pub(super) fn eager(&self, view: RequestRef<'_>, extent: Extent) -> Option<Eager> {
        let limit = self.eager_limit.load(Relaxed);
        if view.op() != Op::Write || extent.length > limit {
            return None;
        }
        let fua = view.fua();
        let few = view.segments() <= self.inline_segments;
        let immediate = few
            && !fua
            && self.immediates
            && Immediate::new(extent.offset, extent.length, false).is_some();
        let inline = few && extent.length <= self.inline_limit.load(Relaxed);
        (immediate || !inline).then_some(Eager {
            extent,
            fua,
            immediate,
        })
    }

    /// Issues an eager write. Returns the request if it has to go another way, since no slot is
    /// free.
    pub(super) fn issue_eager(
        &self,
        mut request: Request<Driver>,
        eager: Eager,
        tag: Tag,
        last: bool,
    ) -> Result<Option<Request<Driver>>, Rejected<Driver>> {
        let Some((view, data)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        match data.list.map_local(view, Direction::ToDevice) {
            Ok(()) => {}
            Err(e) if e == ENOMEM => return Err(Rejected::new(request, Status::Resource)),
            Err(_) => return Err(Rejected::new(request, Status::IoErr)),
        }
        let pieces = data.list.mapped();
        let immediate = eager.immediate && pieces <= self.inline_segments.into();
        let used = match immediate {
            true => 1,
            false => pieces.div_ceil(self.inline_segments.max(1).into()) + 1,
        };

        let mut send = self.send.lock();
        if !send.reserve(used, || self.freed()) {
            self.sent.credit_waits.bump();
            return Err(self.turned_away(request, send));
        }
        let found = match send.eager_state {
            EagerState::Now(grant) => send
                .ring
                .take_slot(eager.extent.length, tag.to_immediate())
                .map(|slot| (grant, slot)),
            _ => None,
        };
        let Some((grant, slot)) = found else {
            send.unreserve(used);
            self.sent.eager_misses.bump();
            if self.only_eager.load(Relaxed) {
                send.starved = true;
                return Err(self.turned_away(request, send));
            }
            drop(send);
            give_back(&mut data.list);
            return Ok(Some(request));
        };
        let solicited = send.batching.issue(last);
        let quiet = solicited == Solicited::No;
        data.solicited = solicited;
        data.phase = Phase::Sent;
        data.slots = 0;
        data.read_bounce = false;
        data.sending = true;
        data.eager = true;
        data.marks = if self.timing.load(Relaxed) {
            Marks::sent(view.made_ns())
        } else {
            Marks::default()
        };
        self.sent.eager_writes.bump();
        self.sent.quiet.add(quiet.into());
        self.sent.rdma_bytes.add(eager.extent.length.into());
        let reap = last && send.batching.shall_reap();
        self.update_notify(&send);
        let done = send.next_seq(used);
        data.seq = done.seq;
        let post = EagerPost { grant, slot, last };
        let posted = if immediate {
            self.post_with_immediate(&mut send, &mut data.list, &eager, &post, quiet, done)
        } else {
            self.sent.sends.bump();
            self.post_with_request(&mut send, &mut data.list, &eager, &post, (tag, quiet), done)
        };
        trace::initiator::sent(|| self.about_sent(tag, &eager.op(), slot.number));
        // Whoever answers takes the lock first, so that the request is there.
        request.park();
        drop(send);
        self.issued(posted, quiet, reap);
        Ok(None)
    }

    /// Posts the write as one RDMA WRITE with an immediate value.
    #[inline]
    fn post_with_immediate(
        &self,
        send: &mut SendState,
        list: &mut SegmentList,
        eager: &Eager,
        post: &EagerPost,
        quiet: bool,
        done: WrSeq,
    ) -> Result {
        let mut sges = [Sge::EMPTY; INLINE_SEGMENTS];
        let count = list.part(0, &mut sges).0;
        let extent = eager.extent;
        let value = Immediate::new(extent.offset, extent.length, quiet).ok_or(EINVAL)?;
        let sges = sges.get(..count).unwrap_or(&[]);
        let mut wr = Rdma::write(sges, post.grant.address(post.slot.offset), post.grant.key);
        wr.immediate(value.to_wire(), true);
        self.post_or_queue(send, &mut wr, done, !post.last)
    }

    /// Posts the write as RDMA WRITEs, and a request behind them.
    fn post_with_request(
        &self,
        send: &mut SendState,
        list: &mut SegmentList,
        eager: &Eager,
        post: &EagerPost,
        (tag, quiet): (Tag, bool),
        done: WrSeq,
    ) -> Result {
        let per_part = usize::from(self.inline_segments).clamp(1, INLINE_SEGMENTS);
        let mut sges = [Sge::EMPTY; INLINE_SEGMENTS];
        let (mut first, mut offset) = (0, post.slot.offset);
        while first < list.mapped() as usize {
            let part_sges = sges.get_mut(..per_part).ok_or(EINVAL)?;
            let (count, bytes) = list.part(first, part_sges);
            if count == 0 {
                return Err(EINVAL);
            }
            let part = sges.get(..count).unwrap_or(&[]);
            let mut wr = Rdma::write(part, post.grant.address(offset), post.grant.key);
            wr.name(WorkId::new(kind::SEND, tag.index.into()));
            if !send.backlog.push(&mut wr) {
                let mut chain = Chain::new();
                chain.push(&mut wr);
                self.ring(send, &chain)?;
            }
            first += count;
            offset += bytes;
        }
        let request = message::Request {
            tag,
            op: eager.op(),
            quiet,
        };
        let slice = self.outgoing.write(tag.index.into(), &request.encode())?;
        let message = [Sge::new(slice)];
        let mut wr = Send::new(&message);
        wr.solicited();
        self.post_or_queue(send, &mut wr, done, !post.last)
    }
}

/// Where the data of an eager write goes.
struct EagerPost {
    grant: Grant,
    slot: RingSlot,
    /// No other request follows at once.
    last: bool,
}
