// SPDX-License-Identifier: GPL-2.0

//! Questions to the target about the drive's reservations, and changes of these.
//!
//! There is one at a time. Who gets no answer asks again, by this session or another one: the
//! target knows a change that it has made by its sequence number.

use super::{
    state::{
        Answer,
        NotAsked,
        Reserving, //
    },
    Admin, //
};
use crate::failure::{
    Failure,
    Step, //
};
use hcablk_core::proto::message::AdminOp;

/// Milliseconds until an answer is not waited for any more: the target writes a file before.
const ANSWER_MS: u32 = 10_000;

impl Admin {
    /// Asks the target, and returns its answer. Sleeps until that, [`ANSWER_MS`] at most. Fails
    /// when nothing is sent any more, and when there is no answer in time: then it may be answered
    /// or not.
    pub(crate) fn ask_reservation(&self, question: AdminOp) -> Result<Answer, Failure> {
        let _alone = self.reserver.lock();
        let posted = {
            let mut state = self.state.lock();
            match state.ask_reservation(question) {
                Ok(request) => {
                    self.reserve_answered.reset();
                    self.post(&mut state, Some(request))
                }
                Err(NotAsked::NotLive) => return Err(Failure::Disconnected),
                // An answer for which nobody waits any more would be taken for that to this one.
                Err(NotAsked::Pending | NotAsked::Busy) => {
                    return Err(Failure::Timeout(Step::Answer))
                }
            }
        };
        if posted.is_err() {
            self.check(posted);
            return Err(Failure::Disconnected);
        }
        let waited = self.reserve_answered.wait_ms(ANSWER_MS);
        let state = self.state.lock();
        match state.reserving() {
            Reserving::Answered(answer) => Ok(answer),
            _ if waited.is_err() && state.is_live() => Err(Failure::Timeout(Step::Answer)),
            _ => Err(Failure::Disconnected),
        }
    }
}
