// SPDX-License-Identifier: GPL-2.0

//! The requests to attach a volume to the session, and to detach it (version 3 of the protocol).

use super::{
    state::{
        Attaching,
        NotAsked,
        Outgoing, //
    },
    volume::AdminVolume,
    State, //
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
use kernel::time::{
    delay::fsleep,
    Delta, //
};

/// The time limit for the response to a request to detach, in milliseconds: the target responds at
/// once.
const DETACH_MS: u32 = 500;

/// The interval for checking whether another request may be in flight.
const BUSY_LOOK: Delta = Delta::from_millis(20);

/// Why a request was not sent.
enum NotSent {
    Not(NotAsked),
    /// Posting failed.
    Unposted,
}

impl AdminVolume {
    /// Attaches a volume, and returns the target's description of it. Sleeps until the response,
    /// which may have to wait until the drive has finished requests of an older attachment, but not
    /// beyond `deadline`. Fails with the target's refusal.
    pub(crate) fn attach(&self, attach: Attach, deadline: Deadline) -> Result<Attached, Failure> {
        loop {
            match self.send_attach(|state| state.ask_attach(self.index, attach)) {
                Ok(()) => break,
                // Too many requests are in flight, about other volumes.
                Err(NotSent::Not(NotAsked::Busy)) if !deadline.has_passed() => fsleep(BUSY_LOOK),
                Err(NotSent::Not(NotAsked::Busy)) => {
                    return Err(Failure::Timeout(ConnectStep::Response))
                }
                Err(NotSent::Not(_)) => return Err(Failure::Disconnected),
                Err(NotSent::Unposted) => return Err(Failure::Work(c"posting failed")),
            }
        }
        let waited = self
            .waiters
            .attach_response
            .wait_interruptible_ms(deadline.left_ms());
        let attaching = self.admin.state.lock().attaching(self.index);
        match (attaching, waited) {
            (Attaching::Responded(Ok(attached)), _) => Ok(attached),
            (Attaching::Responded(Err(reason)), _) => Err(Failure::Refused(Reject::new(reason))),
            (_, Err(e)) => Err(Failure::of_wait(e, ConnectStep::Response)),
            (_, Ok(())) => Err(Failure::Disconnected),
        }
    }

    /// Detaches the volume, which has no requests under way. The target then ends the session, if
    /// it has no other volume. Does nothing if no volume is attached. Sleeps until the response,
    /// [`DETACH_MS`] at most.
    pub(crate) fn detach(&self) {
        if self
            .send_attach(|state| state.ask_detach(self.index))
            .is_ok()
        {
            // The queue pair is closed next in any case.
            let _ = self.waiters.attach_response.wait_ms(DETACH_MS);
        }
    }

    /// Sends the request that `ask` returns.
    fn send_attach(
        &self,
        ask: impl FnOnce(&mut State) -> Result<Outgoing, NotAsked>,
    ) -> Result<(), NotSent> {
        let mut state = self.admin.state.lock();
        let request = ask(&mut state).map_err(NotSent::Not)?;
        self.waiters.attach_response.reset();
        let posted = self.admin.post(&mut state, Some(request));
        drop(state);
        posted.map_err(|_| NotSent::Unposted)
    }
}
