// SPDX-License-Identifier: GPL-2.0

//! Completing: from the target's answer to the end of a request. Everything
//! here runs in softirq context, or in that of who polls, one call at a time
//! for a queue.

use super::{
    issue::give_back,
    kind,
    Driver,
    Phase,
    Queue,
    SendState, //
};
use crate::{
    batching::Listen,
    failure::Failure, //
};
use hcablk_core::{
    blkdev::{
        Ending,
        Op,
        Request,
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
        Handler,
        Patience, //
    },
    trace, //
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
    /// Requests that nothing more will follow have no reason to wait for it.
    #[inline]
    fn go_ahead(&mut self, alone: bool) {
        if alone {
            self.ending.flush();
        }
    }
}

impl Queue {
    /// A message came in.
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
                    return self.granted_answered(round, buffer, message.and_then(Answers::decode));
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
            self.session
                .fail(Failure::Work(c"posting a receive failed"));
        }
        posted
    }

    /// A message with answers to granted writes came in; `None`: it is not one.
    fn granted_answered(&self, round: &mut Round, buffer: u32, answers: Option<Answers>) {
        let Some(answers) = answers else {
            return self.violation("a message cannot be understood");
        };
        if !self.reposted(buffer) {
            return;
        }
        for (number, status) in answers.iter() {
            if !self.respond_granted(round, number, status) {
                return;
            }
        }
    }

    /// Granted write `number` was answered; `false`: the session ends.
    fn respond_granted(&self, round: &mut Round, number: u16, status: message::Status) -> bool {
        let mut send = self.send.lock();
        if send.credits.grant(1).is_err() {
            drop(send);
            self.violation("it granted more credits than it has");
            return false;
        }
        self.tell_lingered(&mut send);
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
        let can_ask = send.credits.answered();
        data.marks.answer();
        send.batching.answered(data.voice);
        let status = self::status(status);
        if data.sending && !self.is_out(data.number) {
            data.phase = Phase::Answered(status);
            self.linger(&mut send, view.tag(), data);
            request.park();
            drop(send);
        } else {
            self.heed(&send);
            let alone = send.batching.is_idle();
            drop(send);
            self.finish(round, request, status);
            round.go_ahead(alone);
        }
        self.go_on(can_ask, hungry);
        true
    }

    fn respond(&self, round: &mut Round, response: Response, with: With) {
        let mut send = self.send.lock();
        if send.credits.grant(response.credits).is_err() {
            drop(send);
            return self.violation("it granted more credits than it has");
        }
        self.tell_lingered(&mut send);
        let hungry = core::mem::take(&mut send.starved);
        Self::heard(&mut send);
        let Tag { index, generation } = response.tag;
        if index == self.depth {
            let good = matches!(with, With::Nothing) && self.size_told(&mut send, &response);
            let can_ask = send.credits.answered();
            drop(send);
            if !good {
                return self.violation("it answered what was not asked");
            }
            return self.go_on(can_ask, hungry);
        }
        let Some(mut request) = self.requests.take(self.index.into(), index, generation) else {
            drop(send);
            return self.violation("it answered what was not asked");
        };
        trace::initiator::answered(|| self.about(&request).ended(response.status as i32));
        let Some((view, data)) = self.tags.of(&mut request) else {
            return;
        };
        if data.phase != Phase::Sent {
            request.park();
            drop(send);
            return self.violation("it answered twice");
        }
        if data.granted {
            request.park();
            drop(send);
            return self.violation("it answered a granted write by a response");
        }
        match with {
            With::Invalidation(key) if !data.list.invalidated_by_peer(key) => {
                request.park();
                drop(send);
                return self.violation("it invalidated a key that it was not given");
            }
            With::Invalidation(_) => self.done.remote_invalidations.bump(),
            With::Data(bytes) if !data.lands || bytes != view.bytes() as usize => {
                request.park();
                drop(send);
                return self.violation("it sent data that was not asked for");
            }
            With::Data(_) => self.done.immediates.bump(),
            With::Nothing => {}
        }
        data.marks.answer();
        let can_ask = send.credits.answered();
        send.batching.answered(data.voice);
        self.heed(&send);
        let status = status(response.status);
        if data.list.is_registered() {
            // The target left its key valid.
            data.phase = Phase::Invalidating(status);
            let posted = self.invalidate(&mut send, round, data);
            self.linger(&mut send, index, data);
            request.park();
            drop(send);
            if posted.is_err() {
                self.fail(Failure::Work(c"posting failed"));
            }
        } else {
            send.space.release(core::mem::take(&mut data.slots));
            if data.sending && !self.is_out(data.number) {
                data.phase = Phase::Answered(status);
                self.linger(&mut send, index, data);
                request.park();
                drop(send);
            } else {
                let alone = send.batching.is_idle();
                drop(send);
                self.finish(round, request, status);
                round.go_ahead(alone);
            }
        }
        self.go_on(can_ask, hungry);
    }

    /// After an answer: something can be asked still, or somebody waits to.
    fn go_on(&self, can_ask: bool, hungry: bool) {
        if !can_ask {
            // Requests would wait for ever: those not issued have no timeout.
            return self.violation("it leaves no credit to ask with");
        }
        if hungry {
            self.requests.run_hw_queue(self.index.into());
        }
    }

    /// Ends a request whose memory the target cannot reach any more.
    pub(super) fn finish(
        &self,
        round: &mut Round,
        mut request: Request<Driver>,
        mut status: Status,
    ) {
        let Some((view, data)) = self.tags.of(&mut request) else {
            return;
        };
        let (op, bytes) = (view.op(), u64::from(view.bytes()));
        if data.list.is_registered() {
            return self.keep_reachable(request, status);
        }
        data.phase = Phase::Idle;
        if let (true, Status::Ok, Some(landing)) = (data.lands, status, &self.landing) {
            match landing.deliver(view.tag(), view) {
                Ok(()) => self.done.copied_bytes.add(bytes),
                // Not reached: what does not fit does not land.
                Err(_) => status = Status::IoErr,
            }
        }
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

    /// The target may reach the memory of a request that is to end: it ends with the session,
    /// when its region is gone.
    #[cold]
    fn keep_reachable(&self, mut request: Request<Driver>, status: Status) {
        if let Some((_, data)) = self.tags.of(&mut request) {
            data.phase = Phase::Answered(status);
        }
        request.park();
        let what = "memory of an ended request was still registered";
        broken!(what);
        self.fail(Failure::Broken(what));
    }

    /// A request that was answered waits for nothing more. Whoever takes the lock for
    /// the next answer says so, or the round's end.
    pub(super) fn lingered(&self) {
        self.done.lingered.bump();
        self.lingered
            .store(self.lingered.load(Relaxed) + 1, Relaxed);
    }

    #[inline]
    fn tell_lingered(&self, send: &mut SendState) {
        let count = self.lingered.load(Relaxed);
        if count != 0 {
            self.lingered.store(0, Relaxed);
            send.batching.lingered(count);
        }
    }

    fn violation(&self, what: &'static str) {
        self.done.protocol_errors.bump();
        self.session.fail(Failure::Protocol(what));
    }
}

const LOUD: u32 = Listen::Loud as u32;
const LOUD_OR_SOON: u32 = Listen::LoudOrSoon as u32;

impl Handler for Queue {
    type Round = Round;

    fn round_done(&self, round: Round) {
        if round.invalidates {
            self.post_invalidations();
        }
    }

    #[inline]
    fn patience(&self) -> Patience {
        if !self.live.load(Acquire) || self.probing.load(Acquire) {
            return Patience::None;
        }
        if self.lingered.load(Relaxed) != 0 {
            let mut send = self.send.lock();
            self.tell_lingered(&mut send);
            self.heed(&send);
        }
        match self.listen.load(Relaxed) {
            LOUD => Patience::Unsolicited,
            LOUD_OR_SOON => Patience::Guarded,
            _ => Patience::None,
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
            kind::NUMBERED => self.numbered(round, work.index, proof),
            kind::PROBE => self.probing.store(false, Release),
            // Of `SEND` and `LANDING` that is all.
            _ => {}
        }
    }
}

/// What the block layer is told.
fn status(status: message::Status) -> Status {
    match status {
        message::Status::Ok => Status::Ok,
        message::Status::Unsupported => Status::NotSupported,
        message::Status::ReadOnly => Status::Protection,
        message::Status::NoSpace => Status::NoSpace,
        message::Status::Medium => Status::Medium,
        message::Status::Gone => Status::Offline,
        message::Status::Invalid | message::Status::OutOfRange | message::Status::IoError => {
            Status::IoErr
        }
    }
}
