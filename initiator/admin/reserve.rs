// SPDX-License-Identifier: GPL-2.0

//! Requests to read or change the drive's reservations.
//!
//! There is one at a time. A caller without a response repeats the request, on this or another
//! session: the sequence number of a change shows the target that it has made the change already.

use super::{
    state::{
        NotAsked,
        ReservationResponse,
        Reserving, //
    },
    volume::AdminVolume, //
};
use crate::failure::{
    ConnectStep, //
    Failure,
};
use hcablk_core::proto::message::AdminOp;

/// The time limit of a response, in milliseconds: the target writes a file first.
const RESPONSE_MS: u32 = 10_000;

impl AdminVolume {
    /// Sends the request, and returns the target's response. Sleeps until then, [`RESPONSE_MS`] at
    /// most. Fails when the queue pair is stopped, and when the response is late: the target may
    /// then have handled the request or not.
    pub(crate) fn ask_reservation(
        &self,
        question: AdminOp,
    ) -> Result<ReservationResponse, Failure> {
        let _alone = self.waiters.reserver.lock();
        let posted = {
            let mut state = self.admin.state.lock();
            match state.ask_reservation(self.index, question) {
                Ok(request) => {
                    self.waiters.reserve_response.reset();
                    self.admin.post(&mut state, Some(request))
                }
                Err(NotAsked::NotLive) => return Err(Failure::Disconnected),
                // A late response to an earlier request would be taken for the one to this request.
                Err(NotAsked::Pending | NotAsked::Busy) => {
                    return Err(Failure::Timeout(ConnectStep::Response))
                }
            }
        };
        if posted.is_err() {
            self.admin.check(posted);
            return Err(Failure::Disconnected);
        }
        let waited = self.waiters.reserve_response.wait_ms(RESPONSE_MS);
        let state = self.admin.state.lock();
        match state.reserving(self.index) {
            Reserving::Responded(response) => Ok(response),
            _ if waited.is_err() && state.is_live() => Err(Failure::Timeout(ConnectStep::Response)),
            _ => Err(Failure::Disconnected),
        }
    }
}
