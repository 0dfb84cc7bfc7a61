// SPDX-License-Identifier: GPL-2.0

//! Completing: from the target's answer to the end of a request. Everything
//! here runs in softirq context, or in that of who polls, one call at a time
//! for a queue.

use super::{
    kind,
    status::to_block,
    transfer::{
        give_back,
        Transfer,
        INVALIDATE_SLOTS, //
    },
    Driver,
    Phase,
    Queue,
    SendState, //
};
use crate::{
    batching::ArmFor,
    failure::{
        Failure,
        Violation, //
    },
};
use hcablk_core::{
    blkdev::{
        Ending,
        Op,
        Request,
        RequestRef,
        Status, //
    },
    broken,
    proto::{
        grant::Answers,
        message::{
            self,
            Response,
            Tag,
            BUFFER_LEN, //
        },
    },
    rdma::cq::{
        Completion,
        CqNotify, //
        Handler,
    },
    report::trace, //
    sglist::SegmentList,
};
use kernel::sync::atomic::{
    Acquire,
    Relaxed,
    Release, //
};

/// What came with an answer.
enum With {
    Nothing,
    /// Of this key.
    Invalidation(u32),
    /// So many bytes, into the region that the request named.
    Data(usize),
}

/// What one round of completions leaves for its end.
#[derive(Default)]
pub(crate) struct Round {
    /// Requests to give back.
    ending: Ending,
    /// Keys are to be taken away: [`Queue::invalidate`].
    pub(super) invalidates: bool,
}

impl Round {
    /// Ends the gathered requests at once if no other is outstanding (`alone`).
    #[inline]
    fn flush_if(&mut self, alone: bool) {
        if alone {
            self.ending.flush();
        }
    }
}

impl Queue {
    /// Handles a received message, or the immediate value of a write.
    fn receive(&self, round: &mut Round, buffer: u32, completion: &Completion) {
        self.done.receives.bump();
        let (response, with) = match completion.immediate() {
            Some(value) => (
                Response::of_immediate(value),
                With::Data(completion.byte_len()),
            ),
            None => {
                let mut message = [0; BUFFER_LEN];
                let message = self
                    .incoming
                    .read(buffer as usize, completion.byte_len(), &mut message)
                    .ok();
                if message.is_some_and(Answers::is) {
                    if completion.invalidated().is_some() {
                        return self.violation("it invalidated a key that it was not given");
                    }
                    return self.eager_answered(round, buffer, message.and_then(Answers::decode));
                }
                let response = message.and_then(Response::decode);
                let depth = self.depth;
                let Some(response) = response.filter(|r| r.sectors == 0 || r.tag.index == depth)
                else {
                    return self.violation("a message cannot be understood");
                };
                let with = completion.invalidated();
                (response, with.map_or(With::Nothing, With::Invalidation))
            }
        };
        if self.reposted(buffer) {
            self.respond(round, response, with);
        }
    }

    /// Posts a receive buffer again; `false`: that failed, and the session does.
    #[inline]
    fn reposted(&self, buffer: u32) -> bool {
        let posted = self.post_receive(buffer).is_ok();
        if !posted {
            self.end_session(Failure::Work(c"posting a receive failed"));
        }
        posted
    }

    /// Handles a message with answers to eager writes; `None`: it cannot be decoded.
    fn eager_answered(&self, round: &mut Round, buffer: u32, answers: Option<Answers>) {
        let Some(answers) = answers else {
            return self.violation("a message cannot be understood");
        };
        if !self.reposted(buffer) {
            return;
        }
        for (number, status) in answers.iter() {
            if !self.respond_eager(round, number, status) {
                return;
            }
        }
    }

    /// Handles the answer to eager write `number`. Returns `false` if the session ends.
    fn respond_eager(&self, round: &mut Round, number: u16, status: message::Status) -> bool {
        let mut send = self.send.lock();
        if send.credits.grant(1).is_err() {
            drop(send);
            self.violation("it granted more credits than it has");
            return false;
        }
        self.account_awaited(&mut send);
        let hungry = core::mem::take(&mut send.starved);
        let request = send.ring.free(number).and_then(|owner| {
            let Tag { index, generation } = Tag::from_immediate(owner);
            self.requests.take(self.index.into(), index, generation)
        });
        let Some(mut request) = request else {
            drop(send);
            self.violation("it answered what was not asked");
            return false;
        };
        trace::initiator::answered(|| self.about(&request).ended(status as i32));
        let Some((view, data)) = self.tags.of(&mut request) else {
            return false;
        };
        let Phase::Sent {
            transfer: Transfer::Eager { seq },
            solicited,
        } = data.phase
        else {
            // Not reached: the number is an eager write's until it is answered.
            request.park();
            drop(send);
            self.violation("it answered what was not asked");
            return false;
        };
        let can_ask = send.credits.answered();
        data.marks.answer();
        send.batching.answered(solicited);
        let status = to_block(status);
        if !self.is_completed(seq) {
            let awaited = self.await_send(&mut send, view.tag(), status, seq);
            data.phase = Phase::Answered(awaited);
            request.park();
            drop(send);
        } else {
            self.update_notify(&send);
            let alone = send.batching.is_idle();
            drop(send);
            self.finish(round, request, status);
            round.flush_if(alone);
        }
        self.after_answer(can_ask, hungry);
        true
    }

    /// Handles a response, which came `with` something or without.
    fn respond(&self, round: &mut Round, response: Response, with: With) {
        let mut send = self.send.lock();
        if send.credits.grant(response.credits).is_err() {
            drop(send);
            return self.violation("it granted more credits than it has");
        }
        self.account_awaited(&mut send);
        let hungry = core::mem::take(&mut send.starved);
        Self::allow_eager(&mut send);
        let Tag { index, generation } = response.tag;
        if index == self.depth {
            let good = matches!(with, With::Nothing) && self.size_answered(&mut send, &response);
            let can_ask = send.credits.answered();
            drop(send);
            if !good {
                return self.tag_violation("it answered what was not asked", response.tag, None);
            }
            return self.after_answer(can_ask, hungry);
        }
        let Some(mut request) = self.requests.take(self.index.into(), index, generation) else {
            drop(send);
            return self.tag_violation("it answered what was not asked", response.tag, None);
        };
        trace::initiator::answered(|| self.about(&request).ended(response.status as i32));
        let Some((view, data)) = self.tags.of(&mut request) else {
            return;
        };
        let Phase::Sent {
            transfer,
            solicited,
        } = data.phase
        else {
            request.park();
            drop(send);
            return self.tag_violation("it answered twice", response.tag, None);
        };
        if let Err((what, key)) = self.check_response(transfer, with, view, &mut data.list) {
            request.park();
            drop(send);
            return self.tag_violation(what, response.tag, key);
        }
        data.marks.answer();
        let can_ask = send.credits.answered();
        send.batching.answered(solicited);
        self.update_notify(&send);
        let status = to_block(response.status);
        match transfer {
            Transfer::Registered if data.list.is_registered() => {
                // The target left its key valid.
                let wr_seq = send.next_seq(INVALIDATE_SLOTS);
                let awaited = self.await_send(&mut send, index, status, wr_seq.seq);
                data.phase = Phase::Invalidating(awaited);
                let posted = self.invalidate(&mut send, round, &mut data.list, wr_seq);
                request.park();
                drop(send);
                self.check(posted);
            }
            Transfer::Inline { seq } if !self.is_completed(seq) => {
                let awaited = self.await_send(&mut send, index, status, seq);
                data.phase = Phase::Answered(awaited);
                request.park();
                drop(send);
            }
            _ => {
                if transfer == Transfer::Registered {
                    send.space.release(INVALIDATE_SLOTS);
                }
                let alone = send.batching.is_idle();
                drop(send);
                let status = match transfer {
                    Transfer::ReadBounce => self.copy_bounced(view, status),
                    _ => status,
                };
                self.finish(round, request, status);
                round.flush_if(alone);
            }
        }
        self.after_answer(can_ask, hungry);
    }

    /// Checks that a response came `with` what its request asked for, and counts that. Returns what
    /// the target broke, and the key that it named.
    #[inline]
    fn check_response(
        &self,
        transfer: Transfer,
        with: With,
        view: RequestRef<'_>,
        list: &mut SegmentList,
    ) -> Result<(), (&'static str, Option<u32>)> {
        if matches!(transfer, Transfer::Eager { .. }) {
            return Err(("it answered an eager write by a response", None));
        }
        match with {
            With::Invalidation(key) if !list.invalidated_by_peer(key) => {
                return Err(("it invalidated a key that it was not given", Some(key)));
            }
            With::Invalidation(_) => self.done.remote_invalidations.bump(),
            With::Data(bytes)
                if transfer != Transfer::ReadBounce || bytes != view.bytes() as usize =>
            {
                return Err(("it sent data that was not asked for", None));
            }
            With::Data(_) => self.done.immediates.bump(),
            With::Nothing => {}
        }
        Ok(())
    }

    /// Finishes the handling of an answer, without the lock: checks that a credit is left
    /// (`can_ask`), and runs the hardware queue if a request was turned away (`hungry`).
    fn after_answer(&self, can_ask: bool, hungry: bool) {
        if !can_ask {
            // Requests would wait for ever: those not issued have no timeout.
            return self.violation("it leaves no credit to ask with");
        }
        if hungry {
            self.requests.run_hw_queue(self.index.into());
        }
    }

    /// Ends a request whose memory the target cannot reach any more.
    pub(super) fn finish(&self, round: &mut Round, mut request: Request<Driver>, status: Status) {
        let Some((view, data)) = self.tags.of(&mut request) else {
            return;
        };
        let (op, bytes) = (view.op(), u64::from(view.bytes()));
        if data.list.is_registered() {
            return self.keep_reachable(request);
        }
        data.phase = Phase::Idle;
        give_back(&mut data.list);
        match op {
            Op::Read => {
                self.done.reads.bump();
                self.done.read_bytes.add(bytes);
            }
            Op::Write => {
                self.done.writes.bump();
                self.done.written_bytes.add(bytes);
            }
            Op::Discard => {
                self.done.discards.bump();
                self.done.discarded_bytes.add(bytes);
            }
            Op::WriteZeroes => {
                self.done.zeroes.bump();
                self.done.zeroed_bytes.add(bytes);
            }
            _ => self.done.flushes.bump(),
        }
        if status != Status::Ok {
            self.done.errors.bump();
        }
        data.marks.end(&self.times);
        trace::initiator::completed(|| self.about(&request).ended(status.to_errno()));
        round.ending.push(request, status);
    }

    /// Parks a request that is to end but whose memory the target may still reach: it ends with the
    /// session, when its region is gone.
    #[cold]
    fn keep_reachable(&self, mut request: Request<Driver>) {
        if let Some((_, data)) = self.tags.of(&mut request) {
            data.phase = Phase::Kept;
        }
        request.park();
        let what = "memory of an ended request was still registered";
        broken!(what);
        self.fail(Failure::Broken(what));
    }

    /// Counts a request whose awaited send has completed. [`Self::account_awaited`] takes it to
    /// `batching` under the lock of the next answer, or at the end of the round.
    pub(super) fn send_awaited(&self) {
        self.done.send_waits.bump();
        self.awaited_sends
            .store(self.awaited_sends.load(Relaxed) + 1, Relaxed);
    }

    /// Tells `batching` which awaited sends have completed.
    #[inline]
    fn account_awaited(&self, send: &mut SendState) {
        let count = self.awaited_sends.load(Relaxed);
        if count != 0 {
            self.awaited_sends.store(0, Relaxed);
            send.batching.sends_completed(count);
        }
    }

    /// Ends the session, since the target broke the protocol by a message that names no request.
    fn violation(&self, what: &'static str) {
        self.violated(Violation::new(what, Some(self.index)));
    }

    /// Ends the session, since the target broke the protocol by an answer to `tag`.
    fn tag_violation(&self, what: &'static str, tag: Tag, key: Option<u32>) {
        self.violated(Violation {
            what,
            queue: Some(self.index),
            tag: Some(tag),
            key,
        });
    }

    fn violated(&self, violation: Violation) {
        self.done.protocol_errors.bump();
        self.end_session(Failure::Protocol(violation));
    }
}

const SOLICITED: u32 = ArmFor::Solicited as u32;
const SOLICITED_OR_TIMER: u32 = ArmFor::SolicitedOrTimer as u32;

impl Handler for Queue {
    type Round = Round;

    fn round_done(&self, round: Round) {
        if round.invalidates {
            self.post_invalidations();
        }
    }

    #[inline]
    fn cq_notify(&self) -> CqNotify {
        if !self.live.load(Acquire) || self.keep_alive_pending.load(Acquire) {
            return CqNotify::Any;
        }
        if self.awaited_sends.load(Relaxed) != 0 {
            let mut send = self.send.lock();
            self.account_awaited(&mut send);
            self.update_notify(&send);
        }
        match self.arm_for.load(Relaxed) {
            SOLICITED => CqNotify::SolicitedOnly,
            SOLICITED_OR_TIMER => CqNotify::SolicitedOrTimer,
            _ => CqNotify::Any,
        }
    }

    #[inline]
    fn complete(&self, round: &mut Round, completion: &Completion) {
        let work = completion.work();
        let Some(proof) = completion.success() else {
            if !completion.is_flushed() {
                self.fail(Failure::Work(completion.status()));
            } else if self.live.load(Acquire) {
                self.fail(Failure::Flushed);
            }
            // While connecting, a refusal flushes the receives before its
            // event comes, and that says why.
            return;
        };
        if work.kind == kind::RECEIVE {
            return self.receive(round, work.index, completion);
        }
        self.freed
            .store(self.freed().wrapping_add(work.slots.into()), Relaxed);
        match work.kind {
            kind::SEQ => self.send_completed(round, work.index, proof),
            kind::KEEP_ALIVE => self.keep_alive_pending.store(false, Release),
            // Of `SEND` and `READ_BOUNCE` that is all.
            _ => {}
        }
    }
}
