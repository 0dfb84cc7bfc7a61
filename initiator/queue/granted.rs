// SPDX-License-Identifier: GPL-2.0

//! Granted writes: the data goes into memory that the target has granted, by
//! RDMA WRITE straight from the request's segments. Nothing is registered, and the
//! target fetches nothing. Which part is used when is said in
//! [`grant`](hcablk_core::proto::grant); the account is kept under the send lock.
//!
//! Two forms:
//!
//! - *told*: one RDMA WRITE whose immediate value says for which block it is, for what can
//!   be said so (whole 4 KiB, no FUA) and is in few pieces, but not on iWARP;
//! - *asked*: RDMA WRITEs, and a request in a message behind them.
//!
//! A write that finds no place goes as if nothing had been granted, if the
//! target fetches data. Otherwise it waits for an answer.
//!
//! The target lets us in with its first answer on a queue pair: before that
//! nothing is written. If it fetches nothing the queue asks a question at once to
//! get that answer.

use super::{
    issue::give_back,
    kind,
    number::Numbered,
    Driver,
    Phase,
    Queue,
    SendState, //
};
use crate::{
    batching::Voice,
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
            Place, //
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
            Entry,
            Rdma,
            Send,
            WorkId,
            WorkRequest, //
        },
    },
    sglist::SegmentList,
    trace, //
};
use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};

/// What the target grants.
#[derive(Clone, Copy)]
pub(super) enum Granting {
    Nothing,
    /// From its first answer on.
    Soon(Grant),
    Now(Grant),
}

/// A write that can be granted.
pub(super) struct Eager {
    extent: Extent,
    fua: bool,
    /// It is told by an immediate value.
    told: bool,
}

impl Eager {
    fn op(&self) -> message::Op {
        message::Op::WriteGranted {
            extent: self.extent,
            fua: self.fua,
        }
    }
}

impl Queue {
    /// Takes note of what the target grants. Before the queue is live.
    pub(super) fn take_grant(&self, send: &mut SendState, reply: &Reply) {
        self.must_grant.store(reply.no_read, Relaxed);
        if let Some(grant) = reply.grant {
            let limit = if reply.no_read {
                grant.bytes
            } else {
                self.session.settings().eager_write.min(grant.bytes)
            };
            if limit != 0 {
                send.ring.begin(grant.bytes, reply.credits);
                send.granting = Granting::Soon(grant);
                self.eager_limit.store(limit, Relaxed);
            }
        }
    }

    /// The target has answered something.
    #[inline]
    pub(super) fn heard(send: &mut SendState) {
        if let Granting::Soon(grant) = send.granting {
            send.granting = Granting::Now(grant);
        }
    }

    /// Whether a request is to be a granted write.
    #[inline]
    pub(super) fn eager(&self, view: RequestRef<'_>, extent: Extent) -> Option<Eager> {
        let limit = self.eager_limit.load(Relaxed);
        if view.op() != Op::Write || extent.length > limit {
            return None;
        }
        let fua = view.fua();
        let few = view.segments() <= self.inline_segments;
        let told = few
            && !fua
            && self.immediates
            && Immediate::new(extent.offset, extent.length, false).is_some();
        let inline = few && extent.length <= self.inline_limit.load(Relaxed);
        (told || !inline).then_some(Eager { extent, fua, told })
    }

    /// Issues a granted write, or gives the request back, which has to go
    /// another way.
    pub(super) fn issue_granted(
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
        let told = eager.told && pieces <= self.inline_segments.into();
        let used = match told {
            true => 1,
            false => pieces.div_ceil(self.inline_segments.max(1).into()) + 1,
        };

        let mut send = self.send.lock();
        if !send.reserve(used, || self.freed()) {
            self.sent.credit_waits.bump();
            return Err(self.turned_away(request, send));
        }
        let found = match send.granting {
            Granting::Now(grant) => send
                .ring
                .place(eager.extent.length, tag.to_immediate())
                .map(|place| (grant, place)),
            _ => None,
        };
        let Some((grant, place)) = found else {
            send.unreserve(used);
            self.sent.eager_misses.bump();
            if self.must_grant.load(Relaxed) {
                send.starved = true;
                return Err(self.turned_away(request, send));
            }
            drop(send);
            give_back(&mut data.list);
            return Ok(Some(request));
        };
        let voice = send.batching.issue(last);
        let quiet = voice == Voice::Quiet;
        data.voice = voice;
        data.phase = Phase::Sent;
        data.slots = 0;
        data.lands = false;
        data.sending = true;
        data.granted = true;
        data.marks = if self.timing.load(Relaxed) {
            Marks::sent(view.made_ns())
        } else {
            Marks::default()
        };
        self.sent.eager_writes.bump();
        self.sent.quiet.add(quiet.into());
        self.sent.rdma_bytes.add(eager.extent.length.into());
        let reap = last && send.batching.shall_reap();
        self.heed(&send);
        let done = send.number(used);
        data.number = done.number;
        let way = Way { grant, place, last };
        let posted = if told {
            self.tell(&mut send, &mut data.list, &eager, &way, quiet, done)
        } else {
            self.sent.sends.bump();
            self.ask(&mut send, &mut data.list, &eager, &way, (tag, quiet), done)
        };
        trace::initiator::sent(|| self.about_sent(tag, &eager.op(), place.number));
        // Whoever answers takes the lock first, so that the request is there.
        request.park();
        drop(send);
        self.issued(posted, quiet, reap);
        Ok(None)
    }

    /// Posts a write that says by itself that it is there.
    #[inline]
    fn tell(
        &self,
        send: &mut SendState,
        list: &mut SegmentList,
        eager: &Eager,
        way: &Way,
        quiet: bool,
        done: Numbered,
    ) -> Result {
        let mut entries = [Entry::EMPTY; INLINE_SEGMENTS];
        let count = list.part(0, &mut entries).0;
        let extent = eager.extent;
        let value = Immediate::new(extent.offset, extent.length, quiet).ok_or(EINVAL)?;
        let entries = entries.get(..count).unwrap_or(&[]);
        let mut wr = Rdma::write(entries, way.grant.address(way.place.offset), way.grant.key);
        wr.immediate(value.to_wire(), true);
        self.hand_over(send, &mut wr, done, !way.last)
    }

    /// Posts writes, and a request behind them.
    fn ask(
        &self,
        send: &mut SendState,
        list: &mut SegmentList,
        eager: &Eager,
        way: &Way,
        (tag, quiet): (Tag, bool),
        done: Numbered,
    ) -> Result {
        let per_part = usize::from(self.inline_segments).clamp(1, INLINE_SEGMENTS);
        let mut entries = [Entry::EMPTY; INLINE_SEGMENTS];
        let (mut first, mut offset) = (0, way.place.offset);
        while first < list.mapped() as usize {
            let places = entries.get_mut(..per_part).ok_or(EINVAL)?;
            let (count, bytes) = list.part(first, places);
            if count == 0 {
                return Err(EINVAL);
            }
            let part = entries.get(..count).unwrap_or(&[]);
            let mut wr = Rdma::write(part, way.grant.address(offset), way.grant.key);
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
        let message = [Entry::new(slice)];
        let mut wr = Send::new(&message);
        wr.solicited();
        self.hand_over(send, &mut wr, done, !way.last)
    }
}

/// Where a granted write goes.
struct Way {
    grant: Grant,
    place: Place,
    /// No other request follows at once.
    last: bool,
}
