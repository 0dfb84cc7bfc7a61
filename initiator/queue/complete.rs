// SPDX-License-Identifier: GPL-2.0

//! Completing: what completions bring, and the end of requests; the answers are in `answer.rs`.
//! Everything here runs in softirq context, or in that of who polls, one call at a time
//! for a queue.

use super::{
    kind,
    transfer::{
        give_back,
        Transfer, //
    },
    Phase,
    Queue,
    SendState,
    Tagged, //
};
use crate::{
    batching::ArmFor,
    failure::{
        Failure,
        Violation, //
    },
};
use hcablk_core::sync::atomic::{
    Acquire,
    Relaxed,
    Release, //
};
use hcablk_core::{
    blkdev::{
        Ending,
        Op,
        RequestRef,
        Status, //
    },
    broken,
    proto::message::Tag,
    rdma::cq::{
        Completion,
        CqNotify, //
        Handler,
    },
    report::trace, //
};
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
        self.count(view, status, data.phase);
        data.phase = Phase::Idle;
        give_back(&mut data.list);
        data.marks.end(&self.times);
        trace::initiator::completed(|| self.about(view).ended(status.to_errno()));
        round.ending.push(request.into_request(), status);
    }

    /// Counts a request that ends with `status`, and notes what it says of flushes.
    #[inline(always)]
    fn count(&self, view: RequestRef<'_>, status: Status, phase: Phase) {
        let bytes = view.bytes().into();
        match view.op() {
            Op::Read => {
                self.done.reads.bump();
                self.done.read_bytes.add(bytes);
            }
            Op::Write => {
                self.done.writes.bump();
                self.done.written_bytes.add(bytes);
                if status == Status::Ok && !view.fua() {
                    self.note_volatile_write();
                }
            }
            Op::Discard => {
                self.done.discards.bump();
                self.done.discarded_bytes.add(bytes);
            }
            Op::WriteZeroes => {
                self.done.zeroes.bump();
                self.done.zeroed_bytes.add(bytes);
                if status == Status::Ok {
                    self.note_volatile_write();
                }
            }
            _ => {
                self.done.flushes.bump();
                if status == Status::Ok {
                    self.note_flush(phase);
                }
            }
        }
        if status != Status::Ok {
            self.done.errors.bump();
        }
    }

    /// Notes a write that ended well and that a flush has to cover
    /// ([`Unflushed`](crate::unflushed::Unflushed)), before its request ends: whoever sees the end
    /// may send a flush.
    #[inline(always)]
    fn note_volatile_write(&self) {
        let now = self.unflushed.now();
        if self.reported_at.load(Relaxed) != now {
            self.unflushed.acknowledge(now);
            self.reported_at.store(now, Relaxed);
        }
    }

    /// Notes a flush that ended well.
    #[inline(never)]
    fn note_flush(&self, phase: Phase) {
        let Phase::Sent { transfer, .. } = phase else {
            return;
        };
        if let Transfer::Flush { number } = transfer {
            self.unflushed.flushed(number);
        }
    }

    /// Parks a request that is to end but whose memory the target may still reach: it ends with the
    /// session, when its region is gone.
    #[cold]
    fn keep_reachable(&self, mut request: Tagged<'_>) {
        let (_, data) = request.split();
        data.phase = Phase::Kept;
        request.park();
        let what = "memory of an ended request was still registered";
        broken!(what);
        self.fail(Failure::Broken(what));
    }

    /// Counts a request whose awaited send has completed. [`Self::account_awaited`] takes it to
    /// `batching` under the lock of the next answer, or at the end of the round.
    pub(super) fn send_awaited(&self) {
        self.done.send_waits.bump();
        // Who arms at the end of a round may take the count while another processor has begun the
        // next round.
        self.awaited_sends.fetch_add(1, Relaxed);
    }

    /// Tells `batching` which awaited sends have completed.
    #[inline]
    pub(super) fn account_awaited(&self, send: &mut SendState) {
        if self.awaited_sends.load(Relaxed) != 0 {
            let count = self.awaited_sends.xchg(0, Relaxed);
            send.batching.sends_completed(count);
        }
    }

    /// Does so at the end of a round, under the lock.
    #[inline(never)]
    fn account_awaited_now(&self) {
        let mut send = self.send.lock();
        self.account_awaited(&mut send);
        self.update_notify(&send);
    }

    /// Ends the session, since the target broke the protocol by a message that names no request.
    pub(super) fn violation(&self, what: &'static str) {
        self.violated(Violation::new(what, Some(self.index)));
    }

    /// Ends the session, since the target broke the protocol by an answer to `tag`.
    pub(super) fn tag_violation(&self, what: &'static str, tag: Tag, key: Option<u32>) {
        self.violated(Violation {
            what,
            queue: Some(self.index),
            tag: Some(tag),
            key,
        });
    }

    fn violated(&self, violation: Violation) {
        self.done.protocol_errors.bump();
        // Before the reply was checked it may be anybody's.
        self.end_session(match self.granted.load(Relaxed) {
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
        if !self.live.load(Acquire) || self.keep_alive_pending.load(Acquire) {
            return CqNotify::Any;
        }
        if self.awaited_sends.load(Relaxed) != 0 {
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
