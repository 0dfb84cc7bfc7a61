// SPDX-License-Identifier: GPL-2.0

//! What comes by an admin queue pair, and how it is answered.

use super::{
    kind,
    silence_ms,
    Admin,
    State,
    Watch,
    ANSWERS,
    GONE_MS,
    LOOK_MS,
    NEXT_WATCH_MS, //
};
use crate::{
    io::Fault,
    session::attachment::Attachment, //
};
use hcablk_core::{
    proto::message::{
        AdminOp,
        AdminRequest,
        AdminResponse,
        Status,
        Tag,
        VolumeState,
        BUFFER_LEN, //
    },
    rdma::{
        cq::{
            Completion,
            Handler, //
        },
        wr::{
            Chain,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    sync::{
        atomic::{
            Acquire,
            Release, //
        },
        defer::without_io,
        Tick, //
    },
};

/// No answer is being sent.
const ALL_FREE: u32 = u32::MAX;
const _: () = assert!(ANSWERS == u32::BITS);

impl Admin {
    /// Handles a received message. Completion handler.
    fn receive(&self, buffer: u32, completion: &Completion) {
        let length = completion.byte_len();
        let mut bytes = [0; BUFFER_LEN];
        let request = match completion.immediate() {
            Some(_) => return self.fail(Fault::Immediate(length)),
            None => self.incoming.read(buffer as usize, length, &mut bytes).ok(),
        };
        let Some(request) = request.and_then(AdminRequest::decode) else {
            return self.fail(Fault::Admin(length));
        };
        self.heard.store(true, Release);
        if self.post_receive(buffer).is_err() {
            return self.fail(Fault::Unposted("a receive buffer", None));
        }
        without_io(|| self.serve(request));
    }

    fn serve(&self, AdminRequest { tag, op }: AdminRequest) {
        match op {
            AdminOp::KeepAlive { tmo_s } => {
                self.state.lock().limit_ms = silence_ms(tmo_s);
                self.answer(tag, Status::Ok);
            }
            AdminOp::Portals { known } => self.keep_portals(tag, known),
            op => match self.session.attachment() {
                Some(attachment) => self.serve_volume(&attachment, tag, op),
                None => self.answer(tag, Status::Gone),
            },
        }
    }

    /// Serves what is asked about a volume.
    fn serve_volume(&self, volume: &Attachment, tag: Tag, op: AdminOp) {
        match op {
            AdminOp::KeepAlive { .. } | AdminOp::Portals { .. } => {}
            AdminOp::Fence { path, epoch } => {
                let status = match volume.fence(path, epoch) {
                    Ok(true) => Status::Ok,
                    Ok(false) => Status::Draining,
                    Err(_) => Status::Invalid,
                };
                self.answer(tag, status);
            }
            AdminOp::Durable => {
                let status = match volume.durable() {
                    None => Status::Draining,
                    Some(true) => Status::Ok,
                    Some(false) => Status::Invalid,
                };
                self.answer(tag, status);
                if status != Status::Draining {
                    volume.durable_told();
                }
            }
            AdminOp::Reservation { sequence, op } => {
                if let Err(status) = volume.reserve(tag, sequence, op) {
                    self.answer(tag, status);
                }
            }
            AdminOp::ReadKey { index } => self.tell_reservation(volume, tag, Some(index)),
            AdminOp::ReadReservation => self.tell_reservation(volume, tag, None),
            AdminOp::Watch {
                known,
                flushes,
                generation,
            } => {
                volume.set_flushes(known.write_cache, flushes);
                let mut state = self.state.lock();
                state.has_watched = true;
                let watch = match state.watch {
                    Watch::Ending => Watch::Ending,
                    _ => Watch::Kept(tag, known, generation),
                };
                let former = core::mem::replace(&mut state.watch, watch);
                drop(state);
                match former {
                    Watch::Unwatched => self.look_at_volume(),
                    Watch::Kept(..) => self.fail(Fault::SecondWatch),
                    Watch::Ending => {
                        self.answer(tag, Status::Gone);
                        self.told_gone.set();
                    }
                }
            }
        }
    }

    /// Answers with the key of registrant `index`, or the reservation.
    fn tell_reservation(&self, volume: &Attachment, tag: Tag, index: Option<u32>) {
        let reservation = volume.reservation(index);
        self.respond(AdminResponse {
            tag,
            status: reservation.err().unwrap_or(Status::Ok),
            volume: None,
            limits: None,
            portals: None,
            reservation: reservation.ok(),
        });
    }

    /// Answers the watch if there is one, and the volume is not what its initiator knows. May
    /// sleep.
    fn look_at_volume(&self) {
        let Watch::Kept(tag, known, generation) = self.state.lock().watch else {
            return;
        };
        let attachment = self.session.attachment();
        let Some(now) = attachment.and_then(|attachment| attachment.volume_now()) else {
            return;
        };
        let state = VolumeState {
            // Not to an initiator that does not follow it.
            write_cache: now
                .state
                .write_cache
                .filter(|_| known.write_cache.is_some()),
            ..now.state
        };
        let limits = generation.map(|_| (now.generation, now.limits));
        let is_news = match generation {
            Some(known) => known != now.generation,
            None => state != known,
        };
        if is_news && self.take_watch(tag) {
            self.respond(AdminResponse {
                tag,
                status: Status::Ok,
                volume: Some(state),
                limits,
                portals: None,
                reservation: None,
            });
        }
    }

    /// Keeps the request to be told of the portals, `known` being what its initiator knows of them.
    fn keep_portals(&self, tag: Tag, known: u32) {
        let former = self.state.lock().portals.replace((tag, known));
        if former.is_some() {
            return self.fail(Fault::SecondWatch);
        }
        self.look_at_portals();
    }

    /// Answers that request if there is one, and the portals are others. Any context.
    fn look_at_portals(&self) {
        let (asked, generation) = {
            let mut state = self.state.lock();
            // With the lock: what is told is no older than what was.
            let generation = self.session.portals_generation();
            let asked = state.portals.take_if(|(_, known)| *known != generation);
            (asked, generation)
        };
        if let Some((tag, _)) = asked {
            self.respond(AdminResponse {
                tag,
                status: Status::Ok,
                volume: None,
                limits: None,
                portals: Some(generation),
                reservation: None,
            });
        }
    }

    /// Takes the watch of this tag, to answer it; `false`: somebody else does.
    fn take_watch(&self, tag: Tag) -> bool {
        let mut state = self.state.lock();
        let there = matches!(state.watch, Watch::Kept(kept, ..) if kept == tag);
        if there {
            state.watch = Watch::Unwatched;
        }
        there
    }

    /// Tells the initiator that the export ends, if it watches or has watched, and gives the answer
    /// time to leave. Sleeps, for [`NEXT_WATCH_MS`] and [`GONE_MS`] at most.
    pub(crate) fn say_gone(&self) {
        let (former, has_watched) = {
            let mut state = self.state.lock();
            let former = core::mem::replace(&mut state.watch, Watch::Ending);
            (former, state.has_watched)
        };
        match former {
            Watch::Kept(tag, ..) => self.answer(tag, Status::Gone),
            Watch::Unwatched if has_watched => {
                if self.told_gone.wait_ms(NEXT_WATCH_MS).is_err() {
                    return;
                }
            }
            Watch::Unwatched | Watch::Ending => return,
        }
        self.let_answers_leave();
    }

    /// Waits until the last answer has left, for [`GONE_MS`] at most: the end of the session comes
    /// in any case. Sleeps.
    pub(crate) fn let_answers_leave(&self) {
        let _ = self.all_sent.wait_ms(GONE_MS);
    }

    /// Answers a request for a change of reservations: the change is made. Any context.
    pub(crate) fn answer_change(&self, tag: Tag, status: Status) {
        self.answer(tag, status);
    }

    /// Sends an answer that has nothing but a status. Any context.
    fn answer(&self, tag: Tag, status: Status) {
        self.respond(AdminResponse {
            tag,
            status,
            volume: None,
            limits: None,
            portals: None,
            reservation: None,
        });
    }

    /// Sends a response. Any context.
    fn respond(&self, response: AdminResponse) {
        let mut state = self.state.lock();
        if state.closing {
            return;
        }
        let Some(buffer) = state.take_buffer() else {
            drop(state);
            return self.fail(Fault::Flood);
        };
        self.all_sent.reset();
        let posted = self
            .outgoing
            .write(buffer as usize, &response.encode())
            .and_then(|slice| {
                let message = [Sge::new(slice)];
                let mut send = Send::new(&message);
                send.solicited();
                send.signal(WorkId::new(kind::ANSWER, buffer));
                let mut chain = Chain::new();
                chain.push(&mut send);
                self.pair.post(&chain)
            });
        drop(state);
        if posted.is_err() {
            self.fail(Fault::Unposted("an answer", None));
        }
    }

    /// Handles the completion of an answer's send.
    fn sent(&self, buffer: u32) {
        let mut state = self.state.lock();
        state.free |= 1 << (buffer % ANSWERS);
        if state.free == ALL_FREE {
            self.all_sent.set();
        }
    }

    /// Returns whether the initiator has been silent for too long, and for how many seconds. Called
    /// every [`LOOK_MS`].
    fn is_silent(&self) -> Option<u32> {
        let heard = self.heard.xchg(false, Acquire);
        let mut state = self.state.lock();
        state.silent_ms = match heard {
            true => 0,
            false => state.silent_ms + LOOK_MS,
        };
        (state.silent_ms > state.limit_ms && !state.closing).then_some(state.silent_ms / 1000)
    }
}

impl State {
    fn take_buffer(&mut self) -> Option<u32> {
        let buffer = self.free.trailing_zeros();
        (buffer < ANSWERS).then(|| {
            self.free &= !(1 << buffer);
            buffer
        })
    }
}

impl Handler for Admin {
    type Round = ();

    fn complete(&self, (): &mut (), completion: &Completion) {
        let work = completion.work();
        let ok = completion.is_ok();
        match work.kind {
            kind::ANSWER => self.sent(work.index),
            kind::RECEIVE if ok => self.receive(work.index, completion),
            _ => {}
        }
        if !ok {
            self.fail(if completion.is_flushed() {
                Fault::Flushed
            } else {
                let what = match work.kind {
                    kind::ANSWER => "an answer",
                    _ => "receiving",
                };
                Fault::Work(what, completion.status(), None)
            });
        }
    }
}

impl Tick for Admin {
    fn tick(&self) {
        self.look_at_volume();
        self.look_at_portals();
        if let Some(seconds) = self.is_silent() {
            self.fail(Fault::NothingReceived(seconds));
        }
    }
}
