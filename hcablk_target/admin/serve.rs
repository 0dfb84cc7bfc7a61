// SPDX-License-Identifier: GPL-2.0

//! Serves the requests that arrive on an admin queue pair.

use super::{
    kind,
    silence_ms,
    Admin,
    AdminState,
    GONE_MS,
    LOOK_MS,
    NEXT_WATCH_MS, //
    RESPONSES,
};
use crate::{
    io::Fault,
    session::{
        attachment::Attachment,
        end_reason::EndReason,
        watched::WatchStart, //
    },
};
use hcablk_core::{
    proto::{
        connect::Reason,
        message::{
            AdminOp,
            AdminRequest,
            AdminResponse,
            Attached,
            Handle,
            Status,
            Tag,
            BUFFER_LEN, //
        },
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
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The response buffers that notices leave free for requests whose response is sent at once.
const NEWS_LEAVE: u32 = RESPONSES / 2;

/// The value of `AdminState::free` when no response is being sent.
const ALL_FREE: u32 = u32::MAX;
const _: () = assert!(RESPONSES == u32::BITS);

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

    fn serve(&self, AdminRequest { tag, volume, op }: AdminRequest) {
        match op {
            AdminOp::KeepAlive { tmo_s } => {
                self.state.lock().limit_ms = silence_ms(tmo_s);
                self.respond_status(tag, Status::Ok);
            }
            AdminOp::Portals { known } => self.keep_portals(tag, known),
            AdminOp::Attach(attach) => {
                if !self.session.is_of_host() {
                    return self.fail(Fault::Admin(BUFFER_LEN));
                }
                match self.session.begin_attach(tag, attach) {
                    Ok(()) => {}
                    Err(EMFILE) => self.fail(Fault::Flood),
                    Err(_) => self.attached(tag, Err(Reason::NoResources)),
                }
            }
            _ if volume != Handle::FIRST && !self.session.is_of_host() => {
                self.fail(Fault::Admin(BUFFER_LEN));
            }
            AdminOp::Detach if !self.session.is_of_host() => self.fail(Fault::Admin(BUFFER_LEN)),
            AdminOp::Detach => {
                self.respond_status(tag, Status::Ok);
                if !self.session.detach(volume) {
                    self.fail(Fault::Detach(volume));
                }
            }
            op => match self.session.attachment(volume) {
                // In a session of several volumes, an initiator knows a volume's handle only from
                // the response to its attachment.
                Some(attachment) if attachment.is_published() || !self.session.is_of_host() => {
                    self.serve_volume(&attachment, tag, op);
                }
                _ => self.respond_status(tag, Status::Gone),
            },
        }
    }

    /// Serves a request about a volume.
    fn serve_volume(&self, volume: &Arc<Attachment>, tag: Tag, op: AdminOp) {
        match op {
            AdminOp::KeepAlive { .. }
            | AdminOp::Portals { .. }
            | AdminOp::Attach(_)
            | AdminOp::Detach => {}
            AdminOp::Fence { path, epoch } => {
                let status = match volume.fence(path, epoch) {
                    Ok(true) => Status::Ok,
                    Ok(false) => Status::Draining,
                    Err(_) => Status::Invalid,
                };
                self.respond_status(tag, status);
            }
            AdminOp::Durable => {
                let status = match volume.durable() {
                    None => Status::Draining,
                    Some(true) => Status::Ok,
                    Some(false) => Status::Invalid,
                };
                self.respond_status(tag, status);
                if status != Status::Draining {
                    volume.durable_reported();
                }
            }
            AdminOp::Reservation { sequence, op } => {
                if let Err(status) = volume.reserve(tag, sequence, op) {
                    self.respond_status(tag, status);
                }
            }
            AdminOp::ReadKey { index } => self.respond_reservation(volume, tag, Some(index)),
            AdminOp::ReadReservation => self.respond_reservation(volume, tag, None),
            AdminOp::Watch {
                known,
                flushes,
                generation,
            } => {
                volume.set_flushes(known.write_cache, flushes);
                match volume.watched.begin(tag, known, generation) {
                    WatchStart::Pending => self.look_at_volume(volume),
                    WatchStart::Second => self.fail(Fault::SecondWatch),
                    WatchStart::Ending => {
                        self.respond_status(tag, Status::Gone);
                        volume.watched.notice_end();
                    }
                }
            }
        }
    }

    /// Sends the response to a request to attach a volume. Any context.
    pub(crate) fn attached(&self, tag: Tag, outcome: Result<Attached, Reason>) {
        self.respond(AdminResponse {
            attached: Some(outcome),
            ..AdminResponse::bare(tag, Status::Ok)
        });
    }

    /// Sends the key of registrant `index`, or the reservation, as the response.
    fn respond_reservation(&self, volume: &Attachment, tag: Tag, index: Option<u32>) {
        let reservation = volume.reservation(index);
        let status = reservation.err().unwrap_or(Status::Ok);
        self.respond(AdminResponse {
            reservation: reservation.ok(),
            ..AdminResponse::bare(tag, status)
        });
    }

    /// Sends the response to the watch of a volume if there is one, and the volume differs from
    /// what its initiator knows. May sleep.
    fn look_at_volume(&self, volume: &Attachment) {
        let Some(tag) = volume.watched.tag() else {
            return;
        };
        // Keep the other buffers for requests: the watch is checked again at the next tick.
        if self.state.lock().free.count_ones() < NEWS_LEAVE {
            return;
        }
        let now = volume.volume_now();
        if let Some(news) = now.and_then(|now| volume.watched.take_news(tag, &now)) {
            self.respond(news);
        }
    }

    /// Stores the request for portals; `known` is the generation that its initiator knows.
    fn keep_portals(&self, tag: Tag, known: u32) {
        let former = self.state.lock().portals.replace((tag, known));
        if former.is_some() {
            return self.fail(Fault::SecondWatch);
        }
        self.look_at_portals();
    }

    /// Sends the response to the request for portals if there is one, and the portals have changed.
    /// Any context.
    fn look_at_portals(&self) {
        let (asked, generation) = {
            let mut state = self.state.lock();
            // Under the lock: a later response never has an older generation.
            let generation = self.session.portals_generation();
            let asked = state.portals.take_if(|(_, known)| *known != generation);
            (asked, generation)
        };
        if let Some((tag, _)) = asked {
            self.respond(AdminResponse {
                portals: Some(generation),
                ..AdminResponse::bare(tag, Status::Ok)
            });
        }
    }

    /// Notifies the initiator that a volume is being detached, if it watches the volume. If `asks`,
    /// the initiator then asks whether all is durable: so this function waits for the next watch of
    /// an initiator that watched earlier, and then until the response has been sent. Sleeps, for
    /// [`NEXT_WATCH_MS`] and [`GONE_MS`] at most.
    pub(crate) fn report_gone(&self, volume: &Attachment, asks: bool) {
        match volume.watched.end() {
            // Without a free buffer the watch gets no response; the initiator's next requests get
            // theirs.
            (Some(tag), _) if asks || self.state.lock().free != 0 => {
                self.respond_status(tag, Status::Gone);
            }
            (None, true) if asks => {
                if !volume.watched.is_noticed_within(NEXT_WATCH_MS) {
                    return;
                }
            }
            _ => return,
        }
        if asks {
            self.let_responses_leave();
        }
    }

    /// Ends the session, which has no volume.
    pub(crate) fn end_bare(&self) {
        self.session.clone().end(EndReason::Bare);
    }

    /// Waits until the last response has been sent, for [`GONE_MS`] at most: the session ends in
    /// any case. Sleeps.
    pub(crate) fn let_responses_leave(&self) {
        let _ = self.all_sent.wait_ms(GONE_MS);
    }

    /// Sends the response to a request for a change of reservations that has been made. Any
    /// context.
    pub(crate) fn respond_to_change(&self, tag: Tag, status: Status) {
        self.respond_status(tag, status);
    }

    /// Sends a response with a status only. Any context.
    fn respond_status(&self, tag: Tag, status: Status) {
        self.respond(AdminResponse::bare(tag, status));
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
                send.signal(WorkId::new(kind::RESPONSE, buffer));
                let mut chain = Chain::new();
                chain.push(&mut send);
                self.pair.post(&chain)
            });
        drop(state);
        if posted.is_err() {
            self.fail(Fault::Unposted("a response", None));
        }
    }

    /// Handles the completion of a response's SEND.
    fn sent(&self, buffer: u32) {
        let mut state = self.state.lock();
        state.free |= 1 << (buffer % RESPONSES);
        if state.free == ALL_FREE {
            self.all_sent.set();
        }
    }

    /// Returns the seconds of the initiator's silence, if they exceed the limit. Called every
    /// [`LOOK_MS`].
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

impl AdminState {
    fn take_buffer(&mut self) -> Option<u32> {
        let buffer = self.free.trailing_zeros();
        (buffer < RESPONSES).then(|| {
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
            kind::RESPONSE => self.sent(work.index),
            kind::RECEIVE if ok => self.receive(work.index, completion),
            _ => {}
        }
        if !ok {
            self.fail(if completion.is_flushed() {
                Fault::Flushed
            } else {
                let what = match work.kind {
                    kind::RESPONSE => "a response",
                    _ => "receiving",
                };
                Fault::Work(what, completion.status(), None)
            });
        }
    }
}

impl Tick for Admin {
    fn tick(&self) {
        for volume in self.session.attachments() {
            self.look_at_volume(&volume);
        }
        self.look_at_portals();
        if let Some(seconds) = self.is_silent() {
            self.fail(Fault::NothingReceived(seconds));
        }
    }
}
