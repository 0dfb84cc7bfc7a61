// SPDX-License-Identifier: GPL-2.0

//! Issuing: turns a request of the block layer into work requests.
//!
//! ```text
//!  issue: claim ──► plan ──► submit: map ──► (send lock) reserve ──► encode ──► post ──► park
//!           │                                               │
//!           └───────────────────────────────────────────────┴─► nothing is free: turned away
//! ```
//!
//! *Claim* gives the request a place of the queue pair, whose number is its tag on the wire. *Plan*
//! chooses how the data moves; the steps of `submit` that depend on that are the
//! [`IssuePath`]'s, in a file for each (`data_paths.rs`).

use super::{
    data_paths::{
        give_back,
        InlineWrite,
        IssuePath, //
        Issued,
        MessageOnly,
    },
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
    user::QueueUser,
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
        Tag, //
    },
    rdma::wr::{
        Chain,
        Sge, //
    },
    report::trace,
    sync::IrqGuard, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The outcome of submitting a request that was not rejected.
enum Submitted<'a, F> {
    Sent,
    /// No room for its data on this data path: the request must use another.
    NoRoom(Tagged<'a>, F),
}

impl Submitted<'_, Infallible> {
    /// The data path always has room.
    #[inline]
    fn sent(self) {
        match self {
            Self::Sent => {}
            Self::NoRoom(_, never) => match never {},
        }
    }
}

impl Queue {
    /// Sends a request to the target; `last`: no other request follows at once.
    // `inline(always)`: it runs in the frame of the function that the block layer calls.
    #[inline(always)]
    pub(super) fn issue(
        &self,
        user: &Arc<QueueUser>,
        request: Request<Driver>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        if !self.is_live() {
            return Err(Rejected::new(request, self.refusal(user)));
        }
        let mut request = match self.tags.claim(request) {
            Ok(request) => request,
            // Not reached while one disk uses the queue pair.
            Err(request) => return Err(Rejected::new(request, Status::Resource)),
        };
        request.split().1.set_user(user);
        trace::initiator::queued(|| self.about(request.view()));
        match request.view().op() {
            Op::Read => match MessageOnly::plan_read(self, request.view()) {
                Some(issue_path) => self
                    .submit(user, request, issue_path, last)
                    .map(Submitted::sent),
                None => self.issue_registered(user, request, last),
            },
            Op::Write => {
                if request.view().promises() {
                    if request.view().fua() && user.attachment().has_lost_writes() {
                        return Err(Self::not_durable(user, request));
                    }
                    if request.view().atomic() {
                        // Only this data path handles atomic writes: no other pays for them.
                        return self.issue_registered(user, request, last);
                    }
                }
                if let Some(eager) = EagerWrite::plan(self, user, request.view()) {
                    match self.submit(user, request, eager, last)? {
                        Submitted::Sent => return Ok(()),
                        Submitted::NoRoom(back, RingFull) => request = back,
                    }
                }
                match InlineWrite::plan(self, request.view()) {
                    Some(issue_path) => self
                        .submit(user, request, issue_path, last)
                        .map(Submitted::sent),
                    None => self.issue_registered(user, request, last),
                }
            }
            _ => self.issue_without_data(user, request, last),
        }
    }

    /// Sends a read or write whose memory is registered for it to the target.
    #[inline(never)]
    fn issue_registered(
        &self,
        user: &QueueUser,
        request: Tagged<'_>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        let issue_path = Registered::plan(request.view());
        self.submit(user, request, issue_path, last)
            .map(Submitted::sent)
    }

    /// Sends a request without data to the target.
    #[inline(never)]
    fn issue_without_data(
        &self,
        user: &QueueUser,
        request: Tagged<'_>,
        last: bool,
    ) -> Result<(), Rejected<Driver>> {
        if request.view().op() == Op::Flush && user.attachment().has_lost_writes() {
            return Err(Self::not_durable(user, request));
        }
        match MessageOnly::plan(request.view()) {
            Some(issue_path) => self
                .submit(user, request, issue_path, last)
                .map(Submitted::sent),
            None => Err(Rejected::new(request.into_request(), Status::NotSupported)),
        }
    }

    /// Fails a flush or a FUA write: the target has lost acknowledged writes.
    #[cold]
    fn not_durable(user: &QueueUser, request: Tagged<'_>) -> Rejected<Driver> {
        user.attachment().report_loss();
        Rejected::new(request.into_request(), Status::IoErr)
    }

    /// Sends a request to the target as `issue_path` prescribes; `last`: no other request follows
    /// at once.
    #[inline(always)]
    fn submit<'a, W: IssuePath>(
        &self,
        user: &QueueUser,
        mut request: Tagged<'a>,
        mut issue_path: W,
        last: bool,
    ) -> Result<Submitted<'a, W::Full>, Rejected<Driver>> {
        let generation = request.generation();
        let (view, data) = request.split();
        let tag = Tag {
            index: view.tag(),
            generation,
        };
        let slots = match issue_path.map(self, view, &mut data.list, tag) {
            Ok(slots) => slots,
            Err(status) => return Err(Rejected::new(request.into_request(), status)),
        };
        let mut send = self.send.lock();
        if !send.reserve(slots, || self.completed_sends.freed()) {
            self.sent.credit_waits.bump();
            return Err(self.turned_away(user, request, send));
        }
        let reserved = match issue_path.reserve((self, user), &mut send, tag, slots) {
            Ok(reserved) => reserved,
            Err(full) => {
                send.unreserve(slots);
                let back = self.no_room(user, request, send)?;
                return Ok(Submitted::NoRoom(back, full));
            }
        };
        let solicited = send.batching.issue(last);
        let quiet = solicited == Solicited::No;
        data.phase = Phase::Sent {
            data_path: W::data_path(&reserved),
            solicited,
        };
        data.marks.send(user.is_timed(), view.made_ns());
        self.sent.quiet.add(quiet.into());
        let reap = last && send.batching.shall_reap();
        self.update_notify(&send);
        let issued = Issued {
            tag,
            volume: user.volume(),
            quiet,
            last,
        };
        let number = W::number(&reserved);
        let posted = match issue_path.encode(self, &mut data.list, issued) {
            Ok(encoded) => {
                // Traced before posting: tools that compare the clocks of both sides rely on this
                // order.
                trace::initiator::sent(|| self.about_sent(tag, &issue_path.op(), number));
                issue_path.post(self, &mut send, reserved, encoded, issued)
            }
            Err(e) => Err(e),
        };
        send.issued = send.issued.wrapping_add(1);
        request.set_order(send.issued);
        // The completion handler takes the lock first, so it finds the request parked.
        request.park();
        drop(send);
        self.issued(posted, quiet, reap);
        Ok(Submitted::Sent)
    }

    /// Encodes a request into the message buffer of its tag.
    // `inline(always)`: callers pass a constant variant of `op`, so the match folds away.
    #[inline(always)]
    pub(super) fn encode(&self, issued: Issued, op: message::Op) -> Result<Sge> {
        let Issued {
            tag, volume, quiet, ..
        } = issued;
        let message = message::IoRequest {
            tag,
            volume,
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
            // The handler may have armed the queue before it could see this request.
            self.pair.cq().guard();
        }
        if reap {
            self.reap();
        }
    }

    /// Returns a request to the block layer, which reissues it after a response to another request.
    fn turned_away(
        &self,
        user: &QueueUser,
        request: Tagged<'_>,
        mut send: IrqGuard<'_, SendState>,
    ) -> Rejected<Driver> {
        self.set_starved(true);
        user.set_waiting();
        // Responses to already issued requests may free the resource, so post them.
        let posted = self.ring(&mut send, &Chain::new());
        drop(send);
        self.check(posted);
        Self::unissued(request, Status::Resource)
    }

    /// Returns a request that finds no memory for its data to the block layer: it waits for a
    /// response if no other data path is possible.
    fn no_room<'a>(
        &self,
        user: &QueueUser,
        mut request: Tagged<'a>,
        mut send: IrqGuard<'_, SendState>,
    ) -> Result<Tagged<'a>, Rejected<Driver>> {
        if self.limits.is_only_eager() {
            send.starved = true;
            return Err(self.turned_away(user, request, send));
        }
        drop(send);
        give_back(&mut request.split().1.list);
        Ok(request)
    }

    /// Returns a request, of which nothing was posted, to the block layer.
    fn unissued(mut request: Tagged<'_>, status: Status) -> Rejected<Driver> {
        give_back(&mut request.split().1.list);
        Rejected::new(request.into_request(), status)
    }
}
