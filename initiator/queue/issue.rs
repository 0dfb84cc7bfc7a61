// SPDX-License-Identifier: GPL-2.0

//! Issuing: from a request of the block layer to work requests.
//!
//! ```text
//!  issue ──► plan ──► submit: map ──► (send lock) reserve ──► encode ──► post ──► park
//!                                                    │
//!                                                    └─► nothing is free: turned away
//! ```
//!
//! *Plan* chooses how the data moves; the steps of `submit` that depend on that are the
//! [`Way`]'s, in a file for each (`transfer.rs`).

use super::{
    transfer::{
        give_back,
        BounceRead,
        EagerWrite,
        InlineWrite,
        Issued,
        NoData,
        Registered,
        RingFull,
        Way, //
    },
    Driver,
    Phase,
    Queue,
    SendState,
    TagData, //
};
use crate::{
    batching::Solicited,
    stats::Marks, //
};
use core::convert::Infallible;
use hcablk_core::{
    blkdev::{
        Op,
        PerTag,
        Rejected,
        Request,
        RequestRef,
        Status, //
    },
    proto::message::{
        self,
        Tag, //
    },
    rdma::wr::{
        Chain,
        Sge, //
    },
    report::trace, //
    sync::IrqGuard,
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Relaxed, //
    },
};

/// How a request's data is to move, if not into the eager ring.
enum PlannedWay {
    NoData(NoData),
    ReadBounce(BounceRead),
    Inline(InlineWrite),
    Registered(Registered),
}

/// What became of a request that was not rejected.
enum Submitted<F> {
    Sent,
    /// There is no room for its data that way: it has to go another one.
    NoRoom(Request<Driver>, F),
}

impl Submitted<Infallible> {
    /// There is always room for it.
    #[inline]
    fn sent(self) {
        match self {
            Self::Sent => {}
            Self::NoRoom(_, never) => match never {},
        }
    }
}

impl Queue {
    /// Gives a request to the target; it is the `last` for now.
    pub(super) fn issue(
        &self,
        mut request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        if !self.live.load(Acquire) {
            return Err(Rejected::new(request, self.refusal()));
        }
        trace::initiator::queued(|| self.about(&request));
        let Some((view, _)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        if let Some(eager) = EagerWrite::plan(self, view) {
            match self.submit(request, eager, last)? {
                Submitted::Sent => return Ok(()),
                Submitted::NoRoom(back, RingFull) => request = back,
            }
        }
        let Some((view, _)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        if view.op() == Op::Flush && self.owner.take_lost_writes() {
            pr_err!("a flush fails: its target has forgotten writes that it acknowledged\n");
            return Err(Rejected::new(request, Status::IoErr));
        }
        let submitted = match self.plan(view) {
            Some(PlannedWay::NoData(way)) => self.submit(request, way, last),
            Some(PlannedWay::ReadBounce(way)) => self.submit(request, way, last),
            Some(PlannedWay::Inline(way)) => self.submit(request, way, last),
            Some(PlannedWay::Registered(way)) => self.submit(request, way, last),
            None => Err(Rejected::new(request, Status::NotSupported)),
        };
        submitted.map(Submitted::sent)
    }

    /// Chooses the cheapest way for a request's data; `None`: there is no such operation.
    #[inline]
    fn plan(&self, view: RequestRef<'_>) -> Option<PlannedWay> {
        Some(match view.op() {
            Op::Read => match BounceRead::plan(self, view) {
                Some(way) => PlannedWay::ReadBounce(way),
                None => PlannedWay::Registered(Registered::plan(view)),
            },
            Op::Write => match InlineWrite::plan(self, view) {
                Some(way) => PlannedWay::Inline(way),
                None => PlannedWay::Registered(Registered::plan(view)),
            },
            _ => PlannedWay::NoData(NoData::plan(view)?),
        })
    }

    /// Gives a request to the target by a way; it is the `last` for now.
    #[inline]
    fn submit<W: Way>(
        &self,
        mut request: Request<Driver>,
        mut way: W,
        last: bool,
    ) -> Result<Submitted<W::Full>, Rejected<Driver>> {
        let tag = Tag {
            index: request.tag(),
            generation: request.generation(),
        };
        let Some((view, data)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        let slots = match way.map(self, view, &mut data.list, tag) {
            Ok(slots) => slots,
            Err(status) => return Err(Rejected::new(request, status)),
        };
        let mut send = self.send.lock();
        if !send.reserve(slots, || self.freed()) {
            self.sent.credit_waits.bump();
            return Err(self.turned_away(request, send));
        }
        let reserved = match way.reserve(self, &mut send, tag, slots) {
            Ok(reserved) => reserved,
            Err(full) => {
                send.unreserve(slots);
                let back = self.no_room(request, send)?;
                return Ok(Submitted::NoRoom(back, full));
            }
        };
        let solicited = send.batching.issue(last);
        let quiet = solicited == Solicited::No;
        data.phase = Phase::Sent {
            transfer: W::transfer(&reserved),
            solicited,
        };
        data.marks = if self.timing.load(Relaxed) {
            Marks::sent(view.made_ns())
        } else {
            Marks::default()
        };
        self.sent.quiet.add(quiet.into());
        let reap = last && send.batching.shall_reap();
        self.update_notify(&send);
        let issued = Issued { tag, quiet, last };
        let number = W::number(&reserved);
        let encoded = way.encode(self, &mut data.list, issued);
        let posted = encoded.and_then(|(op, encoded)| {
            let posted = way.post(self, &mut send, reserved, encoded, issued);
            trace::initiator::sent(|| self.about_sent(tag, &op, number));
            posted
        });
        request.set_path(self.path);
        // Whoever answers takes the lock first, so that the request is there.
        request.park();
        drop(send);
        self.issued(posted, quiet, reap);
        Ok(Submitted::Sent)
    }

    /// Encodes a request into the message buffer of its tag.
    #[inline]
    pub(super) fn encode(&self, issued: Issued, op: message::Op) -> Result<Sge> {
        let Issued { tag, quiet, .. } = issued;
        let message = message::Request { tag, op, quiet }.encode();
        let slice = self.outgoing.write(tag.index.into(), &message)?;
        Ok(Sge::new(slice))
    }

    /// Finishes issuing a request, without the lock: fails the session if posting failed, starts
    /// the timer for a quiet request, and polls if `reap`.
    #[inline]
    fn issued(&self, posted: Result, quiet: bool, reap: bool) {
        self.check(posted);
        if quiet {
            // The handler may have armed the queue before it knew of this one.
            self.pair.cq().guard();
        }
        if reap {
            self.reap();
        }
    }

    /// Gives back a request that has to wait for an answer to others.
    fn turned_away(
        &self,
        request: Request<Driver>,
        mut send: IrqGuard<'_, SendState>,
    ) -> Rejected<Driver> {
        // What is issued already may be what brings it.
        let posted = self.ring(&mut send, &Chain::new());
        drop(send);
        self.check(posted);
        Self::unissued(request, &self.tags, Status::Resource)
    }

    /// Gives back a request that finds no room for its data: to wait for an answer if it can go
    /// no other way.
    fn no_room(
        &self,
        mut request: Request<Driver>,
        mut send: IrqGuard<'_, SendState>,
    ) -> Result<Request<Driver>, Rejected<Driver>> {
        if self.only_eager.load(Relaxed) {
            send.starved = true;
            return Err(self.turned_away(request, send));
        }
        drop(send);
        if let Some((_, data)) = self.tags.of(&mut request) {
            give_back(&mut data.list);
        }
        Ok(request)
    }

    /// Gives back a request of which nothing was posted.
    fn unissued(
        mut request: Request<Driver>,
        tags: &PerTag<Driver, TagData>,
        status: Status,
    ) -> Rejected<Driver> {
        if let Some((_, data)) = tags.of(&mut request) {
            give_back(&mut data.list);
        }
        Rejected::new(request, status)
    }
}
