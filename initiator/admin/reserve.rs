// SPDX-License-Identifier: GPL-2.0

//! Questions to the target about the drive's reservations, and changes of these.
//!
//! ```text
//!             SEND              answer
//!  Nothing ──────────► Asked ──────────► Answered ──► (the next question)
//! ```
//!
//! There is one at a time. Who gets no answer asks again, by this session or another one: the target knows a change that it
//! has made by its sequence number.

use super::{
    tag,
    Admin,
    Life, //
};
use crate::failure::{
    Failure,
    Step, //
};
use hcablk_core::proto::message::{
    AdminOp,
    ReservationInfo,
    Status, //
};
use kernel::prelude::*;

/// Milliseconds until an answer is not waited for any more: the target writes a file before.
const ANSWER_MS: u32 = 10_000;

/// How a question ended, and what was told if it was one for something.
pub(crate) type Answer = (Status, Option<ReservationInfo>);

/// See the module's picture. Whoever asks and the completion handler change it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserving {
    Nothing,
    Asked,
    Answered(Answer),
}

impl Admin {
    /// Asks the target, and returns its answer. Sleeps until that, [`ANSWER_MS`] at most. Fails when nothing is sent any more,
    /// and when there is no answer in time: then it may be answered or not.
    pub(crate) fn ask_reservation(&self, question: AdminOp) -> Result<Answer, Failure> {
        let _alone = self.reserver.lock();
        {
            let mut state = self.state.lock();
            if state.life != Life::Live {
                return Err(Failure::Disconnected);
            }
            // One that nobody waits for any more may still be answered: this one would be taken for it.
            if state.reserving == Reserving::Asked {
                return Err(Failure::Timeout(Step::Answer));
            }
            self.reserve_answered.reset();
            match self.send(&mut state, tag::RESERVE, question) {
                Ok(()) => state.reserving = Reserving::Asked,
                Err(EBUSY) => return Err(Failure::Timeout(Step::Answer)),
                Err(e) => {
                    drop(state);
                    self.check(Err(e));
                    return Err(Failure::Disconnected);
                }
            }
        }
        let waited = self.reserve_answered.wait_ms(ANSWER_MS);
        let state = self.state.lock();
        match state.reserving {
            Reserving::Answered(answer) => Ok(answer),
            _ if waited.is_err() && state.life == Life::Live => Err(Failure::Timeout(Step::Answer)),
            _ => Err(Failure::Disconnected),
        }
    }
}
