// SPDX-License-Identifier: GPL-2.0

//! What the target says by an admin queue pair. Softirq context, one call at a time.

use super::{
    fence::Fence,
    kind,
    reserve::Reserving,
    tag,
    Admin,
    Life,
    News,
    State,
    Watch, //
};
use crate::failure::Failure;
use hcablk_core::{
    proto::message::{
        AdminResponse,
        Status,
        BUFFER_LEN, //
    },
    rdma::cq::{
        Completion,
        Handler, //
    },
};

pub(super) const UNASKED: &str = "it answered what was not asked";
const NONSENSE: &str = "a message cannot be understood";
pub(super) const NO_CHANGE: &str = "it told a change that is none";

/// What follows from an answer, without the lock.
enum Then {
    Nothing,
    /// The session knows what the volume is.
    Begin,
    /// The disk is to follow the volume.
    Follow,
    /// User space is to be told of the portals.
    Tell,
    /// The export ends.
    End,
}

impl News {
    /// Returns whether `now` is nothing new.
    fn tells(&self, now: &Self) -> bool {
        match (self.limits, now.limits) {
            (Some((known, _)), Some((generation, _))) => known == generation,
            (None, Some(_)) => false,
            _ => self.state == now.state,
        }
    }
}

impl State {
    /// Takes an answer. Fails with what the target broke.
    fn answered(&mut self, response: &AdminResponse) -> Result<Then, &'static str> {
        let AdminResponse {
            tag,
            status,
            volume,
            limits,
            portals,
            reservation,
        } = *response;
        let sent = self.generations.get(usize::from(tag.index));
        if sent != Some(&tag.generation) {
            return Err(UNASKED);
        }
        if portals.is_some() != (tag.index == tag::PORTALS) {
            return Err(NONSENSE);
        }
        if tag.index == tag::RESERVE {
            if self.reserving != Reserving::Asked || volume.is_some() {
                return Err(UNASKED);
            }
            self.reserving = Reserving::Answered((status, reservation));
            return Ok(Then::Nothing);
        }
        if reservation.is_some() {
            return Err(NONSENSE);
        }
        match (tag.index, status, volume) {
            (tag::KEEP_ALIVE, Status::Ok, None) => {
                self.keep_alive = self.keep_alive.answered().ok_or(UNASKED)?;
                Ok(Then::Nothing)
            }
            (tag::FENCE, Status::Ok | Status::Draining | Status::Invalid, None) => {
                if self.fence != Fence::Asked {
                    return Err(UNASKED);
                }
                self.fence = Fence::Answered(match status {
                    Status::Ok => Some(true),
                    Status::Draining => Some(false),
                    _ => None,
                });
                Ok(Then::Nothing)
            }
            (tag::WATCH, Status::Ok, Some(state)) => {
                let Watch::Watching(known) = self.watch else {
                    return Err(UNASKED);
                };
                let now = News { state, limits };
                let follows_cache = known.state.write_cache.is_some();
                if follows_cache != state.write_cache.is_some()
                    || self.follows_limits != limits.is_some()
                {
                    return Err(NONSENSE);
                }
                if known.tells(&now) {
                    return Err(NO_CHANGE);
                }
                self.watch = Watch::Told(now);
                self.notices += 1;
                Ok(match self.follows_limits && known.limits.is_none() {
                    true => Then::Begin,
                    false => Then::Follow,
                })
            }
            (tag::WATCH, Status::Gone, None) => match self.watch {
                Watch::Watching(_) => Ok(Then::End),
                _ => Err(UNASKED),
            },
            (tag::PORTALS, Status::Ok, None) => {
                self.portals = self.portals.answered(portals)?;
                Ok(Then::Tell)
            }
            _ => Err(NONSENSE),
        }
    }
}

impl Admin {
    /// Handles a received message.
    fn receive(&self, buffer: u32, completion: &Completion) {
        if completion.immediate().is_some() {
            return self.violated("it sent data that was not asked for", None);
        }
        if completion.invalidated().is_some() {
            return self.violated("it invalidated a key that it was not given", None);
        }
        let mut bytes = [0; BUFFER_LEN];
        let message = self
            .incoming
            .read(buffer as usize, completion.byte_len(), &mut bytes)
            .ok();
        let Some(response) = message.and_then(AdminResponse::decode) else {
            return self.violated(NONSENSE, None);
        };
        if self.post_receive(buffer).is_err() {
            return self.fail(Failure::Work(c"posting a receive failed"));
        }
        let then = self.state.lock().answered(&response);
        match then {
            Ok(Then::Nothing) => {}
            Ok(Then::Begin) => {
                self.told.set();
                self.owner.clone().on_news();
            }
            Ok(Then::Follow) => {
                self.counts.notices.bump();
                self.owner.clone().on_news();
            }
            Ok(Then::Tell) => {
                self.counts.portal_notices.bump();
                self.owner.clone().on_news();
            }
            Ok(Then::End) => self.fail(Failure::ExportEnds),
            Err(what) => return self.violated(what, Some(response.tag)),
        }
        match response.tag.index {
            tag::FENCE => self.fence_answered.set(),
            tag::RESERVE => self.reserve_answered.set(),
            _ => {}
        }
    }
}

impl Handler for Admin {
    type Round = ();

    fn complete(&self, (): &mut (), completion: &Completion) {
        let work = completion.work();
        if !completion.is_ok() {
            if !completion.is_flushed() {
                self.fail(Failure::Work(completion.status()));
            } else if self.state.lock().life == Life::Live {
                self.fail(Failure::Flushed);
            }
            // While connecting, a refusal flushes the receives before its event comes, and that says why.
            return;
        }
        match work.kind {
            kind::RECEIVE => self.receive(work.index, completion),
            kind::SEND => self.state.lock().sends -= 1,
            _ => {}
        }
    }
}
