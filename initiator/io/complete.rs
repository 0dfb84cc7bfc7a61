// SPDX-License-Identifier: GPL-2.0

//! Completions: handles the target's responses and the completions of our own work requests, and
//! ends requests. Everything here runs in softirq context or in the poller's, one call at a time
//! for a queue.

use super::{
    data_paths::{
        give_back,
        DataPath, //
    },
    queue::{
        kind,
        Phase,
        Queue,
        TagData,
        Tagged, //
    },
    registered::INVALIDATE_SLOTS,
    send_queue::SendState,
    status::to_block,
    user::QueueUser,
};
use crate::{
    batching::{
        ArmFor,
        Solicited, //
    },
    failure::{
        Failure,
        Violation, //
    }, //
};
use hcablk_core::{
    blkdev::{
        Ending,
        Op,
        RequestRef,
        Status, //
    },
    broken,
    proto::{
        eager_ring::{
            DecodedResponses,
            EagerResponses, //
        },
        message::{
            self,
            IoResponse,
            Tag,
            BUFFER_LEN, //
        },
    },
    rdma::cq::{
        Completion,
        CqNotify,
        Handler, //
    },
    report::trace,
    sync::IrqGuard, //
};
use kernel::prelude::*;

/// Work that one round of completions gathers and does at its end.
#[derive(Default)]
pub(crate) struct Round {
    /// Ended requests, to be returned together.
    ending: Ending,
    /// Keys must be invalidated: [`Queue::invalidate`].
    pub(super) invalidates: bool,
}

impl Round {
    /// Ends the gathered requests at once if no other is outstanding (`alone`).
    #[inline]
    pub(super) fn flush_if(&mut self, alone: bool) {
        if alone {
            self.ending.flush();
        }
    }
}

impl Queue {
    /// Ends a request whose memory the target cannot reach any more.
    pub(super) fn finish(&self, round: &mut Round, mut request: Tagged<'_>, status: Status) {
        let (view, data) = request.split();
        if data.list.is_registered() {
            return self.keep_reachable(request);
        }
        if let Some(user) = data.user() {
            self.count(user, view, status, data);
        }
        data.phase = Phase::Idle;
        give_back(&mut data.list);
        data.end_marks();
        trace::initiator::completed(|| self.about(view).ended(status.to_errno()));
        round.ending.push(request.into_request(), status);
    }

    /// Counts a request that ends with `status`, and updates the flush account.
    #[inline(always)]
    fn count(&self, user: &QueueUser, view: RequestRef<'_>, status: Status, data: &TagData) {
        let ended = &user.ended;
        let bytes = view.bytes().into();
        match view.op() {
            Op::Read => {
                ended.reads.bump();
                ended.read_bytes.add(bytes);
            }
            Op::Write => {
                ended.writes.bump();
                ended.written_bytes.add(bytes);
                if data.list.is_copied() {
                    self.done.copied_writes.bump();
                    self.done.copied_bytes.add(bytes);
                }
                if status == Status::Ok && !view.fua() {
                    user.note_write();
                }
            }
            Op::Discard => {
                ended.discards.bump();
                ended.discarded_bytes.add(bytes);
            }
            Op::WriteZeroes => {
                ended.zeroes.bump();
                ended.zeroed_bytes.add(bytes);
                if status == Status::Ok {
                    user.note_write();
                }
            }
            _ => {
                ended.flushes.bump();
                if status == Status::Ok {
                    Self::note_flush(user, data.phase);
                }
            }
        }
        if status != Status::Ok {
            ended.errors.bump();
        }
    }

    /// Notes a successful flush.
    #[inline(never)]
    fn note_flush(user: &QueueUser, phase: Phase) {
        let Phase::Sent { data_path, .. } = phase else {
            return;
        };
        if let DataPath::Flush { number } = data_path {
            user.note_flush(number);
        }
    }

    /// Parks a request whose end is due while the target may still reach its memory. It ends with
    /// the session, after its region is destroyed.
    #[cold]
    fn keep_reachable(&self, mut request: Tagged<'_>) {
        let (_, data) = request.split();
        data.phase = Phase::Kept;
        request.park();
        let what = "memory of an ended request was still registered";
        broken!(what);
        self.fail(Failure::Broken(what));
    }

    /// Counts a request whose awaited send has completed. [`Self::account_awaited`] reports the
    /// count to `batching` under the lock of the next response, or at the end of the round.
    pub(super) fn send_awaited(&self) {
        self.done.send_waits.bump();
        self.completed_sends.count_awaited();
    }

    /// Reports the count of completed awaited sends to `batching`.
    #[inline]
    pub(super) fn account_awaited(&self, send: &mut SendState) {
        if self.completed_sends.has_awaited() {
            send.batching
                .sends_completed(self.completed_sends.take_awaited());
        }
    }

    /// Reports the count of completed awaited sends to `batching` at the end of a round: takes the
    /// lock.
    #[inline(never)]
    fn account_awaited_now(&self) {
        let mut send = self.send.lock();
        self.account_awaited(&mut send);
        self.update_notify(&send);
    }

    /// Ends the session: the target broke the protocol with a message that names no request.
    pub(super) fn violation(&self, what: &'static str) {
        self.violated(Violation::new(what, Some(self.index)));
    }

    /// Ends the session: the target broke the protocol with its response to `tag`.
    pub(super) fn tag_violation(&self, what: &'static str, tag: Tag, key: Option<u32>) {
        self.violated(Violation {
            what,
            queue: Some(self.index),
            tag: Some(tag),
            key,
        });
    }

    /// Ends the session, since its volume has left it: requests for it have no outcome, and are
    /// issued again over another path or in the next session.
    #[cold]
    fn volume_gone(&self) {
        self.end_session(Failure::ExportEnds);
    }

    fn violated(&self, violation: Violation) {
        self.done.protocol_errors.bump();
        // Before the reply was checked, any host may have sent this.
        self.end_session(match self.standing.is_granted() {
            true => Failure::Protocol(violation),
            false => Failure::Stranger(violation),
        });
    }
}

impl Handler for Queue {
    type Round = Round;

    #[inline]
    fn round_done(&self, round: &mut Round) {
        if round.invalidates {
            self.post_invalidations();
        }
    }

    #[inline(always)]
    fn cq_notify(&self) -> CqNotify {
        if !self.standing.is_live() || self.standing.is_keep_alive_pending() {
            return CqNotify::Any;
        }
        if self.completed_sends.has_awaited() {
            self.account_awaited_now();
        }
        match self.outstanding().arm_for() {
            ArmFor::Solicited => CqNotify::SolicitedOnly,
            ArmFor::SolicitedOrTimer => CqNotify::SolicitedOrTimer,
            ArmFor::Any => CqNotify::Any,
        }
    }

    #[inline]
    fn complete(&self, round: &mut Round, completion: &Completion) {
        let work = completion.work();
        let Some(proof) = completion.success() else {
            if !completion.is_flushed() {
                self.fail(Failure::Work(completion.status()));
            } else if self.is_live() || self.is_timed_out() {
                self.fail(Failure::Flushed);
            }
            // While connecting, a refusal flushes the receives before the event that carries its
            // reason arrives.
            return;
        };
        if work.kind == kind::RECEIVE {
            return self.receive(round, work.index, completion);
        }
        self.completed_sends.free(work.slots);
        match work.kind {
            kind::SEQ => self.send_completed(round, work.index, proof),
            kind::KEEP_ALIVE => self.standing.keep_alive_over(),
            // Nothing waits for the completion of `SEND` and `READ_BOUNCE`.
            _ => {}
        }
    }
}

/// The effect of a response on the request's memory.
enum With {
    Nothing,
    /// Invalidates this key.
    Invalidation(u32),
    /// Wrote this many bytes into the region that the request named.
    Data(usize),
}

impl Queue {
    /// Handles a received message, or the immediate value of an RDMA WRITE.
    #[inline(always)]
    pub(super) fn receive(&self, round: &mut Round, buffer: u32, completion: &Completion) {
        self.done.receives.bump();
        match completion.immediate() {
            Some(value) => self.receive_immediate(round, buffer, value, completion.byte_len()),
            None => self.receive_message(round, buffer, completion),
        }
    }

    /// Handles the immediate value of an RDMA WRITE of `bytes` bytes.
    #[inline(never)]
    fn receive_immediate(&self, round: &mut Round, buffer: u32, value: u32, bytes: usize) {
        if self.reposted(buffer) {
            self.handle_response(round, IoResponse::of_immediate(value), With::Data(bytes));
        }
    }

    /// Handles a received message.
    #[inline(never)]
    fn receive_message(&self, round: &mut Round, buffer: u32, completion: &Completion) {
        let whole = self.incoming.read_whole::<BUFFER_LEN>(buffer as usize).ok();
        let message = whole
            .as_ref()
            .and_then(|whole| whole.get(..completion.byte_len()));
        if message.is_some_and(EagerResponses::is) {
            if completion.invalidated().is_some() {
                return self.violation("it invalidated a key that it was not given");
            }
            return self.handle_eager_responses(
                round,
                buffer,
                message.and_then(EagerResponses::decode),
            );
        }
        let Some(response) = message.and_then(IoResponse::decode) else {
            return self.violation("a message cannot be understood");
        };
        let with = completion.invalidated();
        let with = with.map_or(With::Nothing, With::Invalidation);
        if self.reposted(buffer) {
            self.handle_response(round, response, with);
        }
    }

    /// Reposts a receive buffer. Returns `false`, and fails the session, if posting fails.
    #[inline]
    fn reposted(&self, buffer: u32) -> bool {
        let posted = self.post_receive(buffer).is_ok();
        if !posted {
            self.end_session(Failure::Work(c"posting a receive failed"));
        }
        posted
    }

    /// Handles a message with responses to eager writes; `None`: it cannot be decoded.
    fn handle_eager_responses(
        &self,
        round: &mut Round,
        buffer: u32,
        responses: Option<DecodedResponses<'_>>,
    ) {
        let Some(responses) = responses else {
            return self.violation("a message cannot be understood");
        };
        if !self.reposted(buffer) {
            return;
        }
        for (number, status) in responses.iter() {
            if !self.handle_eager_response(round, number, status) {
                return;
            }
        }
    }

    /// Handles the response to eager write `number`. Returns `false` if the session ends.
    fn handle_eager_response(
        &self,
        round: &mut Round,
        number: u16,
        status: message::Status,
    ) -> bool {
        let Some((mut send, hungry)) = self.lock_for_response(1) else {
            return false;
        };
        let request = send.ring.free(number).and_then(|owner| {
            let Tag { index, generation } = Tag::from_immediate(owner);
            self.tags.take(index, generation)
        });
        let Some(mut request) = request else {
            drop(send);
            self.violation("it sent an unexpected response");
            return false;
        };
        let (view, data) = request.split();
        trace::initiator::answered(|| self.about(view).ended(status as i32));
        let Phase::Sent {
            data_path: DataPath::Eager { seq },
            solicited,
        } = data.phase
        else {
            // Not reached: the number is an eager write's until its response.
            request.park();
            drop(send);
            self.violation("it sent an unexpected response");
            return false;
        };
        let Some(status) = to_block(status) else {
            request.park();
            drop(send);
            self.volume_gone();
            return false;
        };
        let can_ask = send.credits.responded();
        data.marks.note_response();
        send.batching.responded(solicited);
        if !self.is_completed(seq) {
            let awaited = self.await_send(&mut send, view.tag(), status, seq);
            data.phase = Phase::Responded(awaited);
            request.park();
            drop(send);
        } else {
            self.update_notify(&send);
            let alone = send.batching.outstanding().is_idle();
            drop(send);
            self.finish(round, request, status);
            round.flush_if(alone);
        }
        self.after_response(can_ask, hungry);
        true
    }

    /// Handles a response. `with` is its effect on the request's memory.
    #[inline(always)]
    fn handle_response(&self, round: &mut Round, response: IoResponse, with: With) {
        let Some((mut send, hungry)) = self.lock_for_response(response.credits) else {
            return;
        };
        Self::allow_eager(&mut send);
        let Tag { index, generation } = response.tag;
        if index >= self.depth {
            let bare = matches!(with, With::Nothing);
            return self.handle_nop_response(send, response, bare, hungry);
        }
        let Some(mut request) = self.tags.take(index, generation) else {
            drop(send);
            return self.tag_violation("it sent an unexpected response", response.tag, None);
        };
        let (view, data) = request.split();
        trace::initiator::answered(|| self.about(view).ended(response.status as i32));
        let (data_path, solicited) = match self.check_response(data, with, view) {
            Ok(sent) => sent,
            Err((what, key)) => {
                request.park();
                drop(send);
                return self.tag_violation(what, response.tag, key);
            }
        };
        let Some(status) = to_block(response.status) else {
            request.park();
            drop(send);
            return self.volume_gone();
        };
        data.marks.note_response();
        let can_ask = send.credits.responded();
        send.batching.responded(solicited);
        self.update_notify(&send);
        match data_path {
            DataPath::Registered if data.list.is_registered() => {
                // The target left its key valid.
                let posted = self.invalidate_after_response(&mut send, round, data, index, status);
                request.park();
                drop(send);
                self.check(posted);
            }
            DataPath::Inline { seq } if !self.is_completed(seq) => {
                let awaited = self.await_send(&mut send, index, status, seq);
                data.phase = Phase::Responded(awaited);
                request.park();
                drop(send);
            }
            _ => {
                if data_path == DataPath::Registered {
                    send.space.release(INVALIDATE_SLOTS);
                }
                let alone = send.batching.outstanding().is_idle();
                drop(send);
                let status = match data_path {
                    DataPath::ReadBounce => self.copy_bounced(view, status),
                    _ => status,
                };
                self.finish(round, request, status);
                round.flush_if(alone);
            }
        }
        self.after_response(can_ask, hungry);
    }

    /// Handles the response to a nop; `bare`: the response had no effect on memory.
    // `response` is passed by value so that the callers need not store it in memory.
    #[cold]
    fn handle_nop_response(
        &self,
        mut send: IrqGuard<'_, SendState>,
        response: IoResponse,
        bare: bool,
        hungry: bool,
    ) {
        let good = bare && Self::take_nop_response(&mut send, response, self.depth);
        let can_ask = good && send.credits.responded();
        drop(send);
        if !good {
            return self.tag_violation("it sent an unexpected response", response.tag, None);
        }
        self.after_response(can_ask, hungry);
    }

    /// Takes the lock for a response that grants `credits`, and accounts for these and for
    /// completed awaited sends. Returns the lock, and whether a request was turned away since the
    /// last response; `None` if the session ends.
    #[inline(always)]
    fn lock_for_response(&self, credits: u16) -> Option<(IrqGuard<'_, SendState>, bool)> {
        let mut send = self.send.lock();
        if send.credits.grant(credits).is_err() {
            drop(send);
            self.violation("it granted more credits than it has");
            return None;
        }
        self.account_awaited(&mut send);
        let hungry = core::mem::take(&mut send.starved);
        Some((send, hungry))
    }

    /// Checks that a response is the first to its request and has the effect that the request asked
    /// for, and counts that effect. Returns how the request was sent; on a violation, returns the
    /// rule that the target broke and the key that it named.
    #[inline]
    fn check_response(
        &self,
        data: &mut TagData,
        with: With,
        view: RequestRef<'_>,
    ) -> Result<(DataPath, Solicited), (&'static str, Option<u32>)> {
        let Phase::Sent {
            data_path,
            solicited,
        } = data.phase
        else {
            return Err(("it responded twice", None));
        };
        if matches!(data_path, DataPath::Eager { .. }) {
            return Err(("it responded to an eager write by tag", None));
        }
        match with {
            With::Invalidation(key) if !data.list.invalidated_by_peer(key) => {
                return Err(("it invalidated a key that it was not given", Some(key)));
            }
            With::Invalidation(_) => self.done.remote_invalidations.bump(),
            With::Data(bytes)
                if data_path != DataPath::ReadBounce || bytes != view.bytes() as usize =>
            {
                return Err(("it sent data that was not asked for", None));
            }
            With::Data(_) => self.done.immediates.bump(),
            With::Nothing => {}
        }
        Ok((data_path, solicited))
    }

    /// Starts invalidating the key of request `tag`, which has its response and ends with `status`
    /// when the invalidation has completed.
    #[inline]
    fn invalidate_after_response(
        &self,
        send: &mut SendState,
        round: &mut Round,
        data: &mut TagData,
        tag: u16,
        status: Status,
    ) -> Result {
        let wr_seq = send.next_seq(INVALIDATE_SLOTS);
        let awaited = self.await_send(send, tag, status, wr_seq.seq);
        data.phase = Phase::Invalidating(awaited);
        self.invalidate(send, round, &mut data.list, wr_seq)
    }

    /// Finishes the handling of a response, without the lock: checks that a credit is left
    /// (`can_ask`), and runs the hardware queue if a request was turned away (`hungry`).
    #[inline(always)]
    fn after_response(&self, can_ask: bool, hungry: bool) {
        if !can_ask || hungry {
            self.after_last_response(can_ask, hungry);
        }
    }

    #[inline(never)]
    fn after_last_response(&self, can_ask: bool, hungry: bool) {
        if !can_ask {
            // Requests would wait for ever: unissued requests have no timeout.
            return self.violation("it left no credit for any request");
        }
        if hungry {
            self.set_starved(false);
            for user in self.users() {
                user.run_if_waiting(self.index);
            }
        }
    }
}
