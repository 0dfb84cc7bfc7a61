// SPDX-License-Identifier: GPL-2.0

//! Answers: from a message of the target, or a write-with-immediate, to what becomes of its
//! request. In the context of `complete.rs`.

use super::{
    complete::Round,
    status::to_block,
    transfer::{
        Transfer,
        INVALIDATE_SLOTS, //
    },
    Phase,
    Queue,
    SendState,
    TagData, //
};
use crate::{
    batching::Solicited,
    failure::Failure, //
};
use hcablk_core::{
    blkdev::{
        RequestRef,
        Status, //
    },
    proto::{
        grant::{
            Answered,
            Answers, //
        },
        message::{
            self,
            Response,
            Tag,
            BUFFER_LEN, //
        },
    },
    rdma::cq::Completion,
    report::trace,
    sync::{
        atomic::Relaxed,
        IrqGuard, //
    },
};
use kernel::prelude::*;

/// What came with an answer.
enum With {
    Nothing,
    /// Of this key.
    Invalidation(u32),
    /// So many bytes, into the region that the request named.
    Data(usize),
}

impl Queue {
    /// Handles a received message, or the immediate value of a write.
    #[inline(always)]
    pub(super) fn receive(&self, round: &mut Round, buffer: u32, completion: &Completion) {
        self.done.receives.bump();
        match completion.immediate() {
            Some(value) => self.receive_immediate(round, buffer, value, completion.byte_len()),
            None => self.receive_message(round, buffer, completion),
        }
    }

    /// Handles the immediate value of a write of `bytes` bytes.
    #[inline(never)]
    fn receive_immediate(&self, round: &mut Round, buffer: u32, value: u32, bytes: usize) {
        if self.reposted(buffer) {
            self.respond(round, Response::of_immediate(value), With::Data(bytes));
        }
    }

    /// Handles a received message.
    #[inline(never)]
    fn receive_message(&self, round: &mut Round, buffer: u32, completion: &Completion) {
        let whole = self.incoming.read_whole::<BUFFER_LEN>(buffer as usize).ok();
        let message = whole
            .as_ref()
            .and_then(|whole| whole.get(..completion.byte_len()));
        if message.is_some_and(Answers::is) {
            if completion.invalidated().is_some() {
                return self.violation("it invalidated a key that it was not given");
            }
            return self.eager_answered(round, buffer, message.and_then(Answers::decode));
        }
        let Some(response) = message.and_then(Response::decode) else {
            return self.violation("a message cannot be understood");
        };
        let with = completion.invalidated();
        let with = with.map_or(With::Nothing, With::Invalidation);
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
    fn eager_answered(&self, round: &mut Round, buffer: u32, answers: Option<Answered<'_>>) {
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
        let Some((mut send, hungry)) = self.lock_for_answer(1) else {
            return false;
        };
        let request = send.ring.free(number).and_then(|owner| {
            let Tag { index, generation } = Tag::from_immediate(owner);
            self.tags.take(self.path, index, generation)
        });
        let Some(mut request) = request else {
            drop(send);
            self.violation("it answered what was not asked");
            return false;
        };
        let (view, data) = request.split();
        trace::initiator::answered(|| self.about(view).ended(status as i32));
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
            let alone = send.batching.outstanding().is_idle();
            drop(send);
            self.finish(round, request, status);
            round.flush_if(alone);
        }
        self.after_answer(can_ask, hungry);
        true
    }

    /// Handles a response, which came `with` something or without.
    // What is known of it where it is called leaves less to do.
    #[inline(always)]
    fn respond(&self, round: &mut Round, response: Response, with: With) {
        let Some((mut send, hungry)) = self.lock_for_answer(response.credits) else {
            return;
        };
        Self::allow_eager(&mut send);
        let Tag { index, generation } = response.tag;
        if index >= self.depth {
            let bare = matches!(with, With::Nothing);
            return self.respond_nop(send, response, bare, hungry);
        }
        let Some(mut request) = self.tags.take(self.path, index, generation) else {
            drop(send);
            return self.tag_violation("it answered what was not asked", response.tag, None);
        };
        let (view, data) = request.split();
        trace::initiator::answered(|| self.about(view).ended(response.status as i32));
        let (transfer, solicited) = match self.check_response(data, with, view) {
            Ok(sent) => sent,
            Err((what, key)) => {
                request.park();
                drop(send);
                return self.tag_violation(what, response.tag, key);
            }
        };
        data.marks.answer();
        let can_ask = send.credits.answered();
        send.batching.answered(solicited);
        self.update_notify(&send);
        let status = to_block(response.status);
        match transfer {
            Transfer::Registered if data.list.is_registered() => {
                // The target left its key valid.
                let posted = self.invalidate_answered(&mut send, round, data, index, status);
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
                let alone = send.batching.outstanding().is_idle();
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

    /// Handles the response to a request of our own, for nothing; `bare`: it came with nothing.
    // By value, so that what is known of a response where it is handled need not be in memory.
    #[cold]
    fn respond_nop(
        &self,
        mut send: IrqGuard<'_, SendState>,
        response: Response,
        bare: bool,
        hungry: bool,
    ) {
        let good = bare && Self::nop_answered(&mut send, response, self.depth);
        let can_ask = good && send.credits.answered();
        drop(send);
        if !good {
            return self.tag_violation("it answered what was not asked", response.tag, None);
        }
        self.after_answer(can_ask, hungry);
    }

    /// Takes the lock for an answer that grants `credits`, and accounts for these and for the sends
    /// that were awaited. Returns the lock, and whether a request was turned away since the last
    /// answer; `None` if the session ends.
    #[inline(always)]
    fn lock_for_answer(&self, credits: u16) -> Option<(IrqGuard<'_, SendState>, bool)> {
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

    /// Checks that a response is the only one to its request and came `with` what that asked for,
    /// and counts that. Returns how the request was sent, or else what the target broke, and the
    /// key that it named.
    #[inline]
    fn check_response(
        &self,
        data: &mut TagData,
        with: With,
        view: RequestRef<'_>,
    ) -> Result<(Transfer, Solicited), (&'static str, Option<u32>)> {
        let Phase::Sent {
            transfer,
            solicited,
        } = data.phase
        else {
            return Err(("it answered twice", None));
        };
        if matches!(transfer, Transfer::Eager { .. }) {
            return Err(("it answered an eager write by a response", None));
        }
        match with {
            With::Invalidation(key) if !data.list.invalidated_by_peer(key) => {
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
        Ok((transfer, solicited))
    }

    /// Begins to take the key of the request `tag` away, which is answered and ends with `status`
    /// when that is done.
    #[inline]
    fn invalidate_answered(
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

    /// Finishes the handling of an answer, without the lock: checks that a credit is left
    /// (`can_ask`), and runs the hardware queue if a request was turned away (`hungry`).
    #[inline(always)]
    fn after_answer(&self, can_ask: bool, hungry: bool) {
        if !can_ask || hungry {
            self.after_last_answer(can_ask, hungry);
        }
    }

    #[inline(never)]
    fn after_last_answer(&self, can_ask: bool, hungry: bool) {
        if !can_ask {
            // Requests would wait for ever: those not issued have no timeout.
            return self.violation("it leaves no credit to ask with");
        }
        if hungry {
            self.starved.store(false, Relaxed);
            self.requests.run_hw_queue(self.index.into());
        }
    }
}
