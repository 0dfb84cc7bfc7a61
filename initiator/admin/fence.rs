// SPDX-License-Identifier: GPL-2.0

//! Questions to the target: to let nothing of another path's session reach the volume any more;
//! and, when it has ended the export, whether all that it acknowledged is durable.
//!
//! The target answers at once: that it is so, or that the drive has not finished what it had begun,
//! and whoever asks does so again. There is one question at a time.

use super::{
    state::{
        Fence,
        NotAsked, //
    },
    Admin,
    Fenced, //
};
use crate::failure::{
    Failure,
    Step, //
};
use hcablk_core::proto::message::AdminOp;

/// Milliseconds until an answer is not waited for any more.
const ANSWER_MS: u32 = 2000;

impl Admin {
    /// Asks the target to fence this disk's session on a path up to an epoch; returns whether
    /// nothing of it can reach the volume any more. Sleeps until the answer, [`ANSWER_MS`] at most.
    /// Fails when nothing is sent any more, there is no answer in time, or the target refuses.
    pub(crate) fn ask_fence(&self, (path, epoch): Fenced) -> Result<bool, Failure> {
        self.ask(AdminOp::Fence { path, epoch })
    }

    /// Asks the target, which ends the export, whether all that it acknowledged is durable;
    /// `false`: not yet. As [`Self::ask_fence`].
    pub(crate) fn ask_durable(&self) -> Result<bool, Failure> {
        self.ask(AdminOp::Durable)
    }

    fn ask(&self, question: AdminOp) -> Result<bool, Failure> {
        let _alone = self.fencing.lock();
        let posted = {
            let mut state = self.state.lock();
            match state.ask_fence(question) {
                Ok(request) => {
                    self.fence_answered.reset();
                    self.post(&mut state, Some(request))
                }
                Err(NotAsked::Busy) => return Ok(false),
                Err(NotAsked::NotLive) => return Err(Failure::Disconnected),
                Err(NotAsked::Pending) => {
                    // That is waited for first.
                    drop(state);
                    return match self.fence_answered.wait_ms(ANSWER_MS) {
                        Ok(()) if self.is_live() => Ok(false),
                        Ok(()) => Err(Failure::Disconnected),
                        Err(_) => Err(Failure::Timeout(Step::Answer)),
                    };
                }
            }
        };
        if posted.is_err() {
            self.check(posted);
            return Err(Failure::Disconnected);
        }
        let waited = self.fence_answered.wait_ms(ANSWER_MS);
        let state = self.state.lock();
        match state.fence() {
            Fence::Answered(Some(fenced)) => Ok(fenced),
            Fence::Answered(None) => Err(Failure::Broken("the target knows no such path to fence")),
            _ if waited.is_err() && state.is_live() => Err(Failure::Timeout(Step::Answer)),
            _ => Err(Failure::Disconnected),
        }
    }

    fn is_live(&self) -> bool {
        self.state.lock().is_live()
    }
}
