// SPDX-License-Identifier: GPL-2.0

//! The life of a queue: its start, its keep-alives, and its end.
//!
//! # The end
//!
//! The session calls these in order: stop accepting requests, take the queue pair down, end the
//! requests without a response.
//!
//! After a mere request timeout, the session takes down this queue alone, connects a replacement
//! queue pair, reissues the requests on it and continues (`session/replace.rs`).
//!
//! # Keep-alives
//!
//! Keep-alives check the connection and find left-over completions. The session's [admin queue
//! pair](crate::admin) checks whether the target is alive.
//!
//! # The nop
//!
//! A nop gets a first response before any write if the target posts no RDMA READ: the first
//! response opens the eager ring. The nop uses the tag after the block layer's last, and the
//! message buffer of that number. It has the I/O timeout like other requests: it may have taken the
//! last credit, and then no request with a timeout of its own would be sent. When a nop times out,
//! the queue pair is replaced.

use super::{
    hw_queue::Driver,
    queue::{
        kind,
        Phase,
        Queue,
        Tagged, //
    },
    send_queue::SendState,
    user::QueueUser, //
};
use crate::{
    batching::Batching,
    failure::Failure,
    session::Attachment, //
};
use hcablk_core::{
    blkdev::{
        ByAge,
        Status, //
    },
    logic::session_state::KEEP_ALIVE_PERIOD_MS,
    proto::{
        connect::Reply,
        credits::Credits,
        message::{
            self,
            Handle,
            IoResponse,
            Op,
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
    report::{
        broken::keep,
        trace::{
            self,
            ConnectionState, //
        },
    },
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
};
use kernel::{
    pr_info_once,
    prelude::*, //
};

impl Queue {
    /// Starts accepting requests, after the target has accepted the connection and granted its
    /// first credits. Posts the registration of the read bounce slots first. May fail as posting
    /// does, and with `ENOMEM` without a send queue slot for that.
    pub(crate) fn go_live(&self, reply: &Reply) -> Result {
        self.standing.granted.store(true, Relaxed);
        let settings = &self.settings;
        let inline = reply.inline.min(settings.small_write);
        self.limits.set_inline(inline);
        let mut send = self.send.lock();
        if send.stopped {
            // The session ended in the meantime; the code that connects it checks for that.
            return Ok(());
        }
        send.credits = Credits::new(reply.credits);
        let most = reply
            .requests_per_message()
            .min(settings.message_requests as usize)
            .min(self.limits.segments() + 1);
        send.batch.set_limit(most);
        self.take_ring(&mut send, reply);
        if self.polled {
            // Interrupt batching is impossible.
        } else if reply.quiet {
            send.batching = Batching::new(settings.batch_upper, settings.batch_lower);
        } else {
            // The target may send all its responses unsolicited.
            self.pair.cq().notify_all();
            if settings.batch_upper != 0 {
                pr_info_once!(
                    "a target does not support interrupt batching: every response interrupts\n"
                );
            }
        }
        if let Some(read_bounce) = &self.read_bounce {
            if !send.space.reserve(1, || self.completed_sends.freed()) {
                return Err(ENOMEM);
            }
            let slots = send.space.post_signaled(1);
            let mut register = read_bounce.register()?;
            register.signal(WorkId::new(kind::READ_BOUNCE, 0).freeing(slots));
            let mut chain = Chain::new();
            chain.push(&mut register);
            self.ring(&mut send, &chain)?;
        }
        if reply.no_read && send.space.reserve(1, || self.completed_sends.freed()) {
            // The queue cannot write before the first response.
            self.post_nop(&mut send)?;
        }
        self.standing.live.store(true, Release);
        drop(send);
        self.trace_state(ConnectionState::Live);
        Ok(())
    }
}

/// Whether a queue accepts requests, and why not.
pub(super) struct Standing {
    /// Requests are accepted.
    live: Atomic<bool>,
    /// The target has granted the connection, and has proven its identity if it has a key.
    granted: Atomic<bool>,
    /// A request timed out: a replacement queue pair will take over.
    timed_out: Atomic<bool>,
    /// The queue pair failed after the timeout.
    is_unfit: Atomic<bool>,
    /// A keep-alive is under way.
    keep_alive: Atomic<bool>,
}

impl Standing {
    /// Creates the state of a queue that is being connected.
    pub(super) const fn new() -> Self {
        Self {
            live: Atomic::new(false),
            granted: Atomic::new(false),
            timed_out: Atomic::new(false),
            is_unfit: Atomic::new(false),
            keep_alive: Atomic::new(false),
        }
    }

    /// Returns whether requests are accepted, at this moment.
    #[inline(always)]
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Acquire)
    }

    /// Returns whether a keep-alive is under way.
    #[inline(always)]
    pub(super) fn is_keep_alive_pending(&self) -> bool {
        self.keep_alive.load(Acquire)
    }

    /// Notes that the keep-alive has completed.
    #[inline(always)]
    pub(super) fn keep_alive_over(&self) {
        self.keep_alive.store(false, Release);
    }

    /// Returns whether the target has granted the connection.
    pub(super) fn is_granted(&self) -> bool {
        self.granted.load(Relaxed)
    }
}

impl Queue {
    /// Stops accepting requests for good: the queue cannot go live later either. Requests that are
    /// being issued may still be posted.
    pub(crate) fn stop(&self) {
        // The lock orders this after a keep-alive that saw the queue live.
        let mut send = self.send.lock();
        let news = !core::mem::replace(&mut send.stopped, true);
        self.standing.live.store(false, Release);
        drop(send);
        // Ending a session calls this both before and after waiting for the replacement of a queue
        // pair.
        if news {
            self.trace_state(ConnectionState::Ending);
        }
    }

    /// Marks the queue as timed out because of request `tag`: it accepts no further requests.
    /// Returns `false` if it was marked before, or is stopped. Any context.
    pub(crate) fn mark_timed_out(&self, tag: u16) -> bool {
        let mut send = self.send.lock();
        if send.stopped {
            return false;
        }
        send.late.insert(tag);
        let news = !self.standing.timed_out.xchg(true, Full);
        // Stored after the mark: see `refusal()`.
        self.standing.live.store(false, Release);
        drop(send);
        news
    }

    /// Clears the timeout mark if all late requests have their responses, so that the queue accepts
    /// requests again; returns whether it does. Requests refused in the meantime wait for a run of
    /// the hardware queue, after a grace period.
    pub(crate) fn try_resume(&self) -> bool {
        let mut send = self.send.lock();
        let nop_pending = send.nop != Nop::Nothing;
        if send.stopped || self.is_behind(&send.late, nop_pending) {
            return false;
        }
        self.standing.live.store(true, Release);
        // Cleared after that: see `refusal()`.
        self.standing.timed_out.xchg(false, Full);
        // Read after that: see `fail()`.
        if self.standing.is_unfit.load(Relaxed) {
            self.standing.timed_out.store(true, Relaxed);
            self.standing.live.store(false, Release);
            return false;
        }
        send.late.clear();
        true
    }

    /// Returns whether a request of this queue timed out, so that a queue pair must replace it.
    pub(crate) fn is_timed_out(&self) -> bool {
        self.standing.timed_out.load(Acquire)
    }

    /// Clears the timeout mark since no queue pair will replace this one: the queue refuses
    /// requests from here on. Returns whether the mark was set.
    pub(crate) fn clear_timed_out(&self) -> bool {
        self.standing.timed_out.xchg(false, Full)
    }

    /// Returns the status for requests of a user that are not accepted: they wait for a new queue
    /// pair or session, or fail.
    #[cold]
    pub(super) fn refusal(&self, user: &QueueUser) -> Status {
        // Checked in this order: a queue that has caught up goes live before it loses its mark.
        if self.is_timed_out() || self.is_live() || user.attachment().requests_wait() {
            Status::DevResource
        } else {
            Status::Transport
        }
    }

    /// Ends the session because of `failure`, unless a replacement queue pair will take over: then
    /// the replacement goes ahead even if late responses arrive. Any context.
    #[cold]
    pub(super) fn fail(&self, failure: Failure) {
        if self.is_timed_out() {
            self.standing.is_unfit.xchg(true, Full);
            // If the queue has lost its mark by now, this failure may have been missed.
            if self.is_timed_out() {
                return;
            }
        }
        self.end_session(failure);
    }

    /// Fails the queue pair, so that it starts to drain: a caller that closes several queues fails
    /// them all first. No new request may be issued. Sleeps.
    pub(crate) fn begin_close(&self) {
        self.pair.disconnect();
        self.pair.begin_drain();
    }

    /// Drains the queue pair and stops its completion queue, except that a poller may still run.
    /// [`Self::close`] must follow: a caller that closes several queues calls this for all of them
    /// before, so that they wait for one grace period together. Sleeps.
    pub(crate) fn drain(&self) {
        self.begin_close();
        self.pair.drain();
        // The pair accepts no more work; a region is destroyed only when its registration does not
        // wait in the backlog.
        self.send.lock().forget_waiting();
        self.pair.cq().begin_stop();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.drain();
        self.pair.cq().stop();
        self.trace_state(ConnectionState::Ended);
        self.pair.detach();
    }

    /// Counts that a new queue pair replaced this one, which is closed.
    pub(crate) fn count_replaced(&self) {
        // No completion handler runs any more: the counter has no other writer.
        self.done.replaced_queues.bump();
    }

    /// Takes the parked requests of the disk `of`, and gives them to `f`.
    fn for_each_parked(&self, of: &Attachment, mut f: impl FnMut(Tagged<'_>)) {
        self.tags.for_each_parked(|mut request| {
            let user = request.split().1.user();
            match user.is_some_and(|user| core::ptr::eq(user.attachment(), of)) {
                true => f(request),
                false => request.park(),
            }
        });
    }

    /// Ends all requests of the disk `of`: they will get no response. The caller has stopped the
    /// completion queue. Process context, sleeps.
    pub(crate) fn abandon_all(&self, of: &Attachment) {
        self.for_each_parked(of, |request| {
            let Some(mut request) = self.taken_back(request) else {
                return;
            };
            if let Some(user) = request.split().1.user() {
                user.ended.errors.bump();
            }
            let status = Status::Transport;
            trace::initiator::completed(|| self.about(request.view()).ended(status.to_errno()));
            request.into_request().end(status);
        });
    }

    /// Detaches all requests as [`Self::abandon_all`] does, but adds them to `again`, to be issued
    /// again.
    pub(crate) fn requeue_all(&self, of: &Attachment, again: &mut ByAge<Driver>) {
        self.for_each_parked(of, |request| {
            let Some(mut request) = self.taken_back(request) else {
                return;
            };
            if let Some(user) = request.split().1.user() {
                user.ended.retries.bump();
            }
            trace::initiator::completed(|| {
                self.about(request.view())
                    .ended(Status::DevResource.to_errno())
            });
            again.push(request.into_request());
        });
    }

    /// Ends the device's access to the memory of all requests, and adds them to `released`, so that
    /// the caller can end them later, when this queue is gone. Returns their number. Context as for
    /// [`Self::abandon_all`].
    pub(crate) fn release_all(&self, of: &Attachment, released: &mut ByAge<Driver>) -> u64 {
        let mut count = 0;
        self.for_each_parked(of, |request| {
            if let Some(request) = self.taken_back(request) {
                released.push(request.into_request());
                count += 1;
            }
        });
        count
    }

    /// Ends the device's access to the request's memory. Returns `None` if the device refuses; the
    /// request then never ends. Protecting its memory matters more than removing the disk.
    fn taken_back<'a>(&self, mut request: Tagged<'a>) -> Option<Tagged<'a>> {
        let (_, data) = request.split();
        data.phase = Phase::Idle;
        data.list.revoke();
        // Data sent straight from the request's memory has no region that could be revoked.
        if self.pair.is_stuck() || data.list.release().is_err() {
            const WHY: &str = "a request is never ended, since a device may still reach its memory";
            // No new session either: the request's timer would act on its queue pairs.
            if let Some(user) = data.user() {
                user.attachment().no_other_session();
            }
            keep(request, WHY);
            // The request's timer would replace queue pairs that work.
            self.end_session(Failure::Broken(WHY));
            return None;
        }
        Some(request)
    }
}

/// The state of the nop. The completion handler and the keep-alive timer change it, both under the
/// send lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nop {
    Nothing,
    /// Sent this many keep-alives ago.
    Asked(u32),
}

impl Queue {
    /// Checks the connection: the target's HCA must acknowledge an empty write, or the connection
    /// breaks. Does nothing while an earlier keep-alive is under way. Process context.
    pub(crate) fn send_keep_alive(&self) {
        if self.polled {
            // Nothing else may poll the queue: find responses and errors here.
            self.pair.cq().settle();
        }
        let mut send = self.send.lock();
        if let Nop::Asked(periods) = &mut send.nop {
            *periods += 1;
        }
        if self.is_live() && self.has_nop_timed_out(&send) {
            drop(send);
            return self.session.clone().queue_timed_out(self, self.depth);
        }
        if !self.is_live()
            || self.standing.is_keep_alive_pending()
            || !send.space.reserve(1, || self.completed_sends.freed())
        {
            return;
        }
        self.standing.keep_alive.store(true, Release);
        let mut keep_alive = Rdma::empty_write();
        let slots = send.space.post_signaled(1);
        keep_alive.signal(WorkId::new(kind::KEEP_ALIVE, 0).freeing(slots));
        let mut chain = Chain::new();
        chain.push(&mut keep_alive);
        let posted = self.ring(&mut send, &chain);
        drop(send);
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
        // The keep-alive's completion must be reported, and left-over completions with it.
        self.pair.cq().kick();
    }

    /// Posts the nop. Fails with `EIO` if no credit is left, and as posting does. The caller has
    /// reserved a send queue slot.
    pub(super) fn post_nop(&self, send: &mut SendState) -> Result {
        let request = message::IoRequest {
            tag: Tag {
                index: self.depth,
                generation: 0,
            },
            // The response does not depend on the volume.
            volume: Handle::FIRST,
            op: Op::Nop,
            quiet: false,
        };
        let slice = self.outgoing.write(self.depth.into(), &request.encode())?;
        if !send.credits.take() {
            return Err(EIO);
        }
        send.nop = Nop::Asked(0);
        let sges = [Sge::new(slice)];
        let mut wr = Send::new(&sges);
        wr.solicited();
        let slots = send.space.post_signaled(1);
        wr.signal(WorkId::new(kind::SEND, 0).freeing(slots));
        let mut chain = Chain::new();
        chain.push(&mut wr);
        self.ring(send, &chain)
    }

    /// Returns whether the nop timed out. No other timeout covers it.
    fn has_nop_timed_out(&self, send: &SendState) -> bool {
        let periods = self.settings.io_timeout_s * 1000 / KEEP_ALIVE_PERIOD_MS;
        matches!(send.nop, Nop::Asked(n) if n > periods)
    }

    /// Handles the response to the nop. Returns `false` if no nop is outstanding, or if the
    /// response does not fit one.
    pub(super) fn take_nop_response(
        send: &mut SendState,
        response: IoResponse,
        depth: u16,
    ) -> bool {
        let tag = response.tag;
        let asked = matches!(send.nop, Nop::Asked(_)) && tag.index == depth && tag.generation == 0;
        if asked {
            send.nop = Nop::Nothing;
        }
        asked
    }
}

/// A set of tags: those of places and the nop's.
pub(super) struct Late {
    words: KVec<u64>,
}

impl Late {
    /// Creates an empty set of tags below `tags`. May sleep.
    pub(super) fn new(tags: usize) -> Result<Self> {
        let mut words = KVec::new();
        words.resize(tags.div_ceil(64), 0, GFP_KERNEL)?;
        Ok(Self { words })
    }

    pub(super) fn insert(&mut self, tag: u16) {
        if let Some(word) = self.words.get_mut(usize::from(tag / 64)) {
            *word |= 1 << (tag % 64);
        }
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Iterates over the tags.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(place, word)| {
            let tags = (0..64).filter(move |bit| word >> bit & 1 != 0);
            tags.map(move |bit| (place * 64 + bit) as u16)
        })
    }
}

impl Queue {
    /// Returns whether a request that timed out still has no response. `late` are the requests that
    /// timed out; some may have got their responses since.
    pub(super) fn is_behind(&self, late: &Late, nop_pending: bool) -> bool {
        late.iter().any(|tag| match tag == self.depth {
            true => nop_pending,
            false => self.tags.is_parked(tag),
        })
    }
}
