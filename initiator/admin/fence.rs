// SPDX-License-Identifier: GPL-2.0

//! Requests to fence another path's session at the target, and, when the target has ended the
//! export, requests for the durability of acknowledged writes.
//!
//! The target responds at once: with yes, or with the information that the drive has not finished;
//! the caller then asks again. There is one request at a time.

use super::{
    state::{
        Fence,
        NotAsked, //
    },
    volume::AdminVolume,
    Fenced, //
};
use crate::failure::{
    ConnectStep, //
    Failure,
};
use hcablk_core::proto::message::AdminOp;

/// The time limit of a response, in milliseconds.
const RESPONSE_MS: u32 = 2000;

impl AdminVolume {
    /// Asks the target to fence this disk's session on a path up to an epoch; returns whether no
    /// request of it can reach the volume any more. Sleeps until the response, [`RESPONSE_MS`] at
    /// most. Fails when the queue pair is stopped, the response is late, or the target refuses.
    pub(crate) fn ask_fence(&self, (path, epoch): Fenced) -> Result<bool, Failure> {
        self.ask(AdminOp::Fence { path, epoch })
    }

    /// Asks the target, which ends the export, whether all acknowledged writes are durable;
    /// `false`: not yet. As [`Self::ask_fence`].
    pub(crate) fn ask_durable(&self) -> Result<bool, Failure> {
        self.ask(AdminOp::Durable)
    }

    fn ask(&self, question: AdminOp) -> Result<bool, Failure> {
        let _alone = self.waiters.fencing.lock();
        let posted = {
            let mut state = self.admin.state.lock();
            match state.ask_fence(self.index, question) {
                Ok(request) => {
                    self.waiters.fence_response.reset();
                    self.admin.post(&mut state, Some(request))
                }
                Err(NotAsked::Busy) => return Ok(false),
                Err(NotAsked::NotLive) => return Err(Failure::Disconnected),
                Err(NotAsked::Pending) => {
                    // Wait for the outstanding response first.
                    drop(state);
                    return match self.waiters.fence_response.wait_ms(RESPONSE_MS) {
                        Ok(()) if self.is_live() => Ok(false),
                        Ok(()) => Err(Failure::Disconnected),
                        Err(_) => Err(Failure::Timeout(ConnectStep::Response)),
                    };
                }
            }
        };
        if posted.is_err() {
            self.admin.check(posted);
            return Err(Failure::Disconnected);
        }
        let waited = self.waiters.fence_response.wait_ms(RESPONSE_MS);
        let state = self.admin.state.lock();
        match state.fence(self.index) {
            Fence::Responded(Some(fenced)) => Ok(fenced),
            Fence::Gone => {
                drop(state);
                // A path without its volume must not be asked again.
                self.admin.fail(Failure::Disconnected);
                Err(Failure::Disconnected)
            }
            Fence::Responded(None) => {
                Err(Failure::Broken("the target knows no such path to fence"))
            }
            _ if waited.is_err() && state.is_live() => Err(Failure::Timeout(ConnectStep::Response)),
            _ => Err(Failure::Disconnected),
        }
    }

    fn is_live(&self) -> bool {
        self.admin.state.lock().is_live()
    }
}
