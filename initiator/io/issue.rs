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
//! [`Way`]'s, in a file for each (`transfers.rs`).

use super::{
    eager::{
        EagerWrite,
        RingFull, //
    },
    hw_queue::Driver,
    queue::{
        Phase,
        Queue,
        Tagged, //
    },
    registered::Registered,
    send_queue::SendState,
    transfers::{
        give_back,
        InlineWrite,
        Issued,
        MessageOnly,
        Way, //
    },
};
use crate::batching::Solicited;
use core::convert::Infallible;
use hcablk_core::{
    blkdev::{
        Op,
        Rejected,
        Request,
        Status, //
    },
    proto::message::{
        self,
        Handle,
        Tag, //
    },
    rdma::wr::{
        Chain,
        Sge, //
    },
    report::trace,
    sync::IrqGuard, //
};
use kernel::prelude::*;

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
    // In the frame of who is called by the block layer.
    #[inline(always)]
    pub(super) fn issue(
        &self,
        mut request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        if !self.is_live() {
            return Err(Rejected::new(request, self.refusal()));
        }
        trace::initiator::queued(|| self.about(request.view()));
        match request.op() {
            Op::Read => match MessageOnly::plan_read(self, request.view()) {
                Some(way) => self.submit(request, way, last).map(Submitted::sent),
                None => self.issue_registered(request, last),
            },
            Op::Write => {
                if request.promises() {
                    if request.fua() && self.session.has_lost_writes() {
                        return Err(self.not_durable(request));
                    }
                    if request.atomic() {
                        // By one way only, so that no other pays for it.
                        return self.issue_registered(request, last);
                    }
                }
                if let Some(eager) = EagerWrite::plan(self, request.view()) {
                    match self.submit(request, eager, last)? {
                        Submitted::Sent => return Ok(()),
                        Submitted::NoRoom(back, RingFull) => request = back,
                    }
                }
                match InlineWrite::plan(self, request.view()) {
                    Some(way) => self.submit(request, way, last).map(Submitted::sent),
                    None => self.issue_registered(request, last),
                }
            }
            _ => self.issue_without_data(request, last),
        }
    }

    /// Gives a read or write to the target whose memory is registered for it.
    #[inline(never)]
    fn issue_registered(
        &self,
        request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        let way = Registered::plan(request.view());
        self.submit(request, way, last).map(Submitted::sent)
    }

    /// Gives a request to the target that has no data.
    #[inline(never)]
    fn issue_without_data(
        &self,
        request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        if request.op() == Op::Flush && self.session.has_lost_writes() {
            return Err(self.not_durable(request));
        }
        match MessageOnly::plan(request.view()) {
            Some(way) => self.submit(request, way, last).map(Submitted::sent),
            None => Err(Rejected::new(request, Status::NotSupported)),
        }
    }

    /// Fails a flush or a write with FUA, since the target has lost writes that it acknowledged.
    #[cold]
    fn not_durable(&self, request: Request<Driver>) -> Rejected<Driver> {
        self.session.tell_loss();
        Rejected::new(request, Status::IoErr)
    }

    /// Gives a request to the target by a way; it is the `last` for now.
    #[inline(always)]
    fn submit<W: Way>(
        &self,
        request: Request<Driver>,
        mut way: W,
        last: bool,
    ) -> Result<Submitted<W::Full>, Rejected<Driver>> {
        let mut request = match self.tags.join(request) {
            Ok(request) => request,
            Err(request) => return Err(Rejected::new(request, Status::IoErr)),
        };
        let (view, data) = request.split();
        let tag = Tag {
            index: view.tag(),
            generation: view.generation(),
        };
        let slots = match way.map(self, view, &mut data.list, tag) {
            Ok(slots) => slots,
            Err(status) => return Err(Rejected::new(request.into_request(), status)),
        };
        let mut send = self.send.lock();
        if !send.reserve(slots, || self.completed_sends.freed()) {
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
        data.marks.send(self.is_timed(), view.made_ns());
        self.sent.quiet.add(quiet.into());
        let reap = last && send.batching.shall_reap();
        self.update_notify(&send);
        let issued = Issued { tag, quiet, last };
        let number = W::number(&reserved);
        let posted = match way.encode(self, &mut data.list, issued) {
            Ok(encoded) => {
                // Before it is: whoever compares the clocks of both sides relies on that.
                trace::initiator::sent(|| self.about_sent(tag, &way.op(), number));
                way.post(self, &mut send, reserved, encoded, issued)
            }
            Err(e) => Err(e),
        };
        send.issued = send.issued.wrapping_add(1);
        let mut request = request.into_request();
        request.set_order(send.issued);
        // Whoever answers takes the lock first, so that the request is there.
        request.park_on(self.path);
        drop(send);
        self.issued(posted, quiet, reap);
        Ok(Submitted::Sent)
    }

    /// Encodes a request into the message buffer of its tag.
    // What is known of `op` where it is called leaves a few moves.
    #[inline(always)]
    pub(super) fn encode(&self, issued: Issued, op: message::Op) -> Result<Sge> {
        let Issued { tag, quiet, .. } = issued;
        let message = message::Request {
            tag,
            volume: Handle::FIRST,
            op,
            quiet,
        }
        .encode();
        let slice = self.outgoing.write(tag.index.into(), &message)?;
        Ok(Sge::new(slice))
    }

    /// Finishes issuing a request, without the lock: fails the session if posting failed, starts
    /// the timer for a quiet request, and polls if `reap`.
    #[inline(always)]
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
        request: Tagged<'_>,
        mut send: IrqGuard<'_, SendState>,
    ) -> Rejected<Driver> {
        self.set_starved(true);
        // What is issued already may be what brings it.
        let posted = self.ring(&mut send, &Chain::new());
        drop(send);
        self.check(posted);
        Self::unissued(request, Status::Resource)
    }

    /// Gives back a request that finds no room for its data: to wait for an answer if it can go
    /// no other way.
    fn no_room(
        &self,
        mut request: Tagged<'_>,
        mut send: IrqGuard<'_, SendState>,
    ) -> Result<Request<Driver>, Rejected<Driver>> {
        if self.limits.is_only_eager() {
            send.starved = true;
            return Err(self.turned_away(request, send));
        }
        drop(send);
        give_back(&mut request.split().1.list);
        Ok(request.into_request())
    }

    /// Gives back a request of which nothing was posted.
    fn unissued(mut request: Tagged<'_>, status: Status) -> Rejected<Driver> {
        give_back(&mut request.split().1.list);
        Rejected::new(request.into_request(), status)
    }
}
