// SPDX-License-Identifier: GPL-2.0

//! The requests to attach a volume to the session, and to detach it (version 3 of the protocol).

use super::{
    state::{
        Attaching,
        NotAsked,
        Outgoing, //
    },
    Admin,
    State,
    FIRST, //
};
use crate::failure::{
    ConnectStep, //
    Failure,
};
use hcablk_core::{
    proto::{
        connect::Reject,
        message::{
            Attach,
            Attached, //
        }, //
    },
    system::Deadline, //
};

/// The time limit for the response to a request to detach, in milliseconds: the target responds at
/// once.
const DETACH_MS: u32 = 500;

impl Admin {
    /// Attaches a volume, and returns the target's description of it. Sleeps until the response,
    /// which may have to wait until the drive has finished requests of an older attachment, but not
    /// beyond `deadline`. Fails with the target's refusal.
    pub(crate) fn attach(&self, attach: Attach, deadline: Deadline) -> Result<Attached, Failure> {
        self.send_attach(|state| state.ask_attach(FIRST, attach))?;
        let waited = self
            .attach_response
            .wait_interruptible_ms(deadline.left_ms());
        let attaching = self.state.lock().attaching(FIRST);
        match (attaching, waited) {
            (Attaching::Responded(Ok(attached)), _) => Ok(attached),
            (Attaching::Responded(Err(reason)), _) => Err(Failure::Refused(Reject::new(reason))),
            (_, Err(e)) => Err(Failure::of_wait(e, ConnectStep::Response)),
            (_, Ok(())) => Err(Failure::Disconnected),
        }
    }

    /// Detaches the volume, which has no requests under way. The target then ends the session,
    /// which has no other volume. Does nothing if no volume is attached. Sleeps until the response,
    /// [`DETACH_MS`] at most.
    pub(crate) fn detach(&self) {
        if self.send_attach(|state| state.ask_detach(FIRST)).is_ok() {
            // The queue pair is closed next in any case.
            let _ = self.attach_response.wait_ms(DETACH_MS);
        }
    }

    /// Sends the request that `ask` returns.
    fn send_attach(
        &self,
        ask: impl FnOnce(&mut State) -> Result<Outgoing, NotAsked>,
    ) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let request = ask(&mut state).map_err(|_| Failure::Disconnected)?;
        self.attach_response.reset();
        let posted = self.post(&mut state, Some(request));
        drop(state);
        posted.map_err(|_| Failure::Work(c"posting failed"))
    }
}
