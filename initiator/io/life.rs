// SPDX-License-Identifier: GPL-2.0

//! The life of a queue: how it begins to accept requests, its keep-alives, and its end.
//!
//! # The end
//!
//! In the order in which the session calls for it: nothing more is accepted, the queue pair is
//! taken down, what was not answered is ended.
//!
//! When only a request was not answered in time, the session does that with its queue alone,
//! issues those requests again on another queue pair that it connects in place of this one, and
//! goes on (`session/replace.rs`).
//!
//! # Keep-alives
//!
//! They find whether its connection still works, and what was left over. Whether
//! the target is there is the matter of the session's [admin queue pair](crate::admin).
//!
//! # The nop
//!
//! With a request for nothing a queue hears something before it has to write, if its target fetches
//! no data: the eager ring is open after the first answer. It has the tag behind those of the block
//! layer, and the message buffer of that number. Like other requests it has the I/O timeout: it may
//! have taken the last credit, so that no request is ever sent whose own timeout would end the
//! wait. Then the queue pair is replaced.

use super::{
    hw_queue::Driver,
    queue::{
        kind,
        Phase,
        Queue, //
    },
    send_queue::SendState, //
};
use crate::{
    batching::Batching,
    failure::Failure, //
};
use hcablk_core::{
    blkdev::{
        ByAge,
        Request,
        Status, //
    },
    logic::session_state::KEEP_ALIVE_PERIOD_MS,
    proto::{
        connect::Reply,
        credits::Credits,
        message::{
            self,
            Handle,
            Op,
            Response,
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
            State, //
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
            // The session has ended meanwhile, as whoever brings it up will see.
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
            // There is nothing to batch.
        } else if reply.quiet {
            send.batching = Batching::new(settings.batch_upper, settings.batch_lower);
        } else {
            // Its responses may not be solicited at all.
            self.pair.cq().notify_all();
            if settings.batch_upper != 0 {
                pr_info_once!("a target cannot batch interrupts: each answer makes one\n");
            }
        }
        if let Some(read_bounce) = &self.read_bounce {
            if !send.space.reserve(1, || self.completed_sends.freed()) {
                return Err(ENOMEM);
            }
            let slots = send.space.post_signaled(1);
            let mut register = read_bounce.register();
            register.signal(WorkId::new(kind::READ_BOUNCE, 0).freeing(slots));
            let mut chain = Chain::new();
            chain.push(&mut register);
            self.ring(&mut send, &chain)?;
        }
        if reply.no_read && send.space.reserve(1, || self.completed_sends.freed()) {
            // Nothing can be written before something was answered.
            self.post_nop(&mut send)?;
        }
        self.standing.live.store(true, Release);
        drop(send);
        self.comes_to(State::Live);
        Ok(())
    }
}

/// Whether a queue accepts requests, and what becomes of it.
pub(super) struct Standing {
    /// Requests are accepted.
    live: Atomic<bool>,
    /// The target has granted the connection, and has proven who it is if it can.
    granted: Atomic<bool>,
    /// A request was not answered in time: another queue pair comes in place of this one.
    timed_out: Atomic<bool>,
    /// The queue pair has failed meanwhile.
    is_unfit: Atomic<bool>,
    /// A keep-alive is under way.
    keep_alive: Atomic<bool>,
}

impl Standing {
    /// Makes that of a queue that is being connected.
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

    /// Takes note that the keep-alive has completed.
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
    /// Stops accepting requests, also if the queue has yet to go live; those that are being issued
    /// may still be posted.
    pub(crate) fn stop(&self) {
        // The lock makes a keep-alive that saw the queue live come before.
        let mut send = self.send.lock();
        let news = !core::mem::replace(&mut send.stopped, true);
        self.standing.live.store(false, Release);
        drop(send);
        // Who ends a session does this before and after a queue pair that is being replaced is
        // waited for.
        if news {
            self.comes_to(State::Ending);
        }
    }

    /// Marks the queue as one whose request with this tag was not answered in time: it accepts none
    /// from here on. Returns `false` if it was marked before, or is stopped. Any context.
    pub(crate) fn mark_timed_out(&self, tag: u16) -> bool {
        let mut send = self.send.lock();
        if send.stopped {
            return false;
        }
        send.late.insert(tag);
        let news = !self.standing.timed_out.xchg(true, Full);
        // Behind the mark: see `refusal()`.
        self.standing.live.store(false, Release);
        drop(send);
        news
    }

    /// Takes the mark away if all was answered by now that was not in time, so that the queue
    /// accepts requests again; returns whether it does. Those that were refused meanwhile wait for
    /// a run of the hardware queue, after a grace period.
    pub(crate) fn has_caught_up(&self) -> bool {
        let mut send = self.send.lock();
        let asks_nothing = send.nop != Nop::Nothing;
        if send.stopped || self.is_behind(&send.late, asks_nothing) {
            return false;
        }
        self.standing.live.store(true, Release);
        // Behind that: see `refusal()`.
        self.standing.timed_out.xchg(false, Full);
        // Behind that: see `fail()`.
        if self.standing.is_unfit.load(Relaxed) {
            self.standing.timed_out.store(true, Relaxed);
            self.standing.live.store(false, Release);
            return false;
        }
        send.late.clear();
        true
    }

    /// Returns whether a request was not answered in time, so that another queue pair shall
    /// replace this one.
    pub(crate) fn is_timed_out(&self) -> bool {
        self.standing.timed_out.load(Acquire)
    }

    /// Clears the mark, since no queue pair will replace this one: requests are refused from
    /// here on. Returns whether it was set.
    pub(crate) fn is_not_replaced(&self) -> bool {
        self.standing.timed_out.xchg(false, Full)
    }

    /// Returns the status of requests that are not accepted: they wait for another queue pair or
    /// another session, or fail.
    #[cold]
    pub(super) fn refusal(&self) -> Status {
        // In this order: a queue that has caught up is live before it loses its mark.
        if self.is_timed_out() || self.is_live() || self.session.requests_wait() {
            Status::DevResource
        } else {
            Status::Transport
        }
    }

    /// Ends the session because of `failure`, unless another queue pair comes in place of this one:
    /// then it does, whatever is answered still. Any context.
    #[cold]
    pub(super) fn fail(&self, failure: Failure) {
        if self.is_timed_out() {
            self.standing.is_unfit.xchg(true, Full);
            // If the queue has lost its mark by now, nobody may have seen that.
            if self.is_timed_out() {
                return;
            }
        }
        self.end_session(failure);
    }

    /// Fails the queue pair, so that it begins to drain. For who closes several; nothing new may be
    /// issued. Sleeps.
    pub(crate) fn begin_close(&self) {
        self.pair.disconnect();
        self.pair.begin_drain();
    }

    /// Takes the queue pair down and cuts the references back to it. Sleeps.
    pub(crate) fn close(&self) {
        self.begin_close();
        self.pair.drain();
        // The pair takes nothing any more; a region is destroyed only when its registration
        // does not wait.
        self.send.lock().forget_waiting();
        self.pair.cq().stop();
        self.comes_to(State::Ended);
        self.pair.detach();
    }

    /// Counts that another queue pair came in place of this one, which is closed.
    pub(crate) fn was_replaced(&self) {
        // Completions are over: the counter has no other writer.
        self.done.replaced_queues.bump();
    }

    /// Ends a request that the target will not answer any more. The completion
    /// queue must have been stopped. Process context, sleeps.
    pub(crate) fn abandon(&self, request: Request<Driver>) {
        let Some(request) = self.taken_back(request) else {
            return;
        };
        self.done.errors.bump();
        let status = Status::Transport;
        trace::initiator::completed(|| self.about(request.view()).ended(status.to_errno()));
        request.end(status);
    }

    /// Ends the request as [`Self::abandon`] does, but puts it among those that are to be issued
    /// `again`.
    pub(crate) fn requeue(&self, request: Request<Driver>, again: &mut ByAge<Driver>) {
        let Some(request) = self.taken_back(request) else {
            return;
        };
        self.done.retries.bump();
        trace::initiator::completed(|| {
            self.about(request.view())
                .ended(Status::DevResource.to_errno())
        });
        again.push(request);
    }

    /// Ends the device's access to the request's memory, and leaves the request where it is, for
    /// who ends it later without this queue. As [`Self::abandon`].
    pub(crate) fn release(&self, request: Request<Driver>) {
        if let Some(request) = self.taken_back(request) {
            request.park();
        }
    }

    /// Ends the device's access to the request's memory. Returns `None` if the device refuses, so
    /// that the request is never ended. That its memory stays as it is matters more than that its
    /// disk goes away.
    fn taken_back(&self, mut request: Request<Driver>) -> Option<Request<Driver>> {
        if let Some((_, data)) = self.tags.of(&mut request) {
            data.phase = Phase::Idle;
            data.list.revoke();
            // What was sent from the memory itself has no region that could be revoked.
            if self.pair.is_stuck() || data.list.release().is_err() {
                const WHY: &str =
                    "a request is never ended, since a device may still reach its memory";
                keep(request, WHY);
                // No other session, either: the timer would find that one's queue pairs.
                self.session.no_other_session();
                // Its timer would have queue pairs replaced that work.
                self.end_session(Failure::Broken(WHY));
                return None;
            }
        }
        Some(request)
    }
}

/// The request for nothing. The completion handler and the keep-alive timer change it, both under
/// the send lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nop {
    Nothing,
    /// So many keep-alives ago.
    Asked(u32),
}

impl Queue {
    /// Makes sure that the connection still works: the target's HCA must acknowledge an
    /// empty write, or the connection breaks. Does nothing while an earlier
    /// keep-alive is under way. Process context.
    pub(crate) fn send_keep_alive(&self) {
        if self.polled {
            // Perhaps nobody does: answers and errors must be found all the same.
            self.pair.cq().settle();
        }
        let mut send = self.send.lock();
        if let Nop::Asked(periods) = &mut send.nop {
            *periods += 1;
        }
        if self.is_live() && self.is_unanswered(&send) {
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
        // Its end has to be reported, as well as what was left over.
        self.pair.cq().kick();
    }

    /// Posts the request for nothing. Fails with `EIO` if no credit is left, and as posting does. A
    /// send queue slot was reserved.
    pub(super) fn post_nop(&self, send: &mut SendState) -> Result {
        let request = message::Request {
            tag: Tag {
                index: self.depth,
                generation: 0,
            },
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

    /// Returns whether the request for nothing was not answered in time. No other timeout covers
    /// it.
    fn is_unanswered(&self, send: &SendState) -> bool {
        let periods = self.settings.io_timeout_s * 1000 / KEEP_ALIVE_PERIOD_MS;
        matches!(send.nop, Nop::Asked(n) if n > periods)
    }

    /// Handles the answer to the request for nothing. Returns `false` if there was none, or if it
    /// is no such answer.
    pub(super) fn nop_answered(send: &mut SendState, response: Response, depth: u16) -> bool {
        let tag = response.tag;
        let asked = matches!(send.nop, Nop::Asked(_)) && tag.index == depth && tag.generation == 0;
        if asked {
            send.nop = Nop::Nothing;
        }
        asked
    }
}

/// A set of tags: those of the block layer, and that of the request for nothing.
pub(super) struct Late {
    words: KVec<u64>,
}

impl Late {
    /// Makes an empty set of tags below `tags`. May sleep.
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
    /// Returns whether a request is still to be answered that was not in time. `late` are those
    /// that were not, which may have been answered since.
    pub(super) fn is_behind(&self, late: &Late, asks_nothing: bool) -> bool {
        late.iter().any(|tag| match tag == self.depth {
            true => asks_nothing,
            false => self.requests.path_of(self.index.into(), tag) == Some(self.path),
        })
    }
}
