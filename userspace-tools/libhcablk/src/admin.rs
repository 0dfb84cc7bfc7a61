// SPDX-License-Identifier: GPL-2.0

//! A session's admin queue pair: keep-alives, and the watch with which the target reports changes of the volume.
//! [`AdminState`] tracks the requests in flight; it is the kernel driver's own.

use crate::{
    connect::{wait_for, Deadline},
    failure::{ConnectStep, Failure},
    messages::Messages,
    verbs::{
        cm::Id,
        device::ProtectionDomain,
        queue::{Capacity, Completion, CompletionQueue, Done, QueuePair},
    },
};
use hcablk_core::proto::{
    message::{AdminOp, AdminResponse, BUFFER_LEN},
    ADMIN_DEPTH,
};
use nix::errno::Errno;
use std::{os::fd::AsFd as _, sync::Arc};

#[rustfmt::skip]
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    reason = "linted as a part of the kernel module; this library uses only some of its functions"
)]
mod life;
#[rustfmt::skip]
#[allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    reason = "linted as a part of the kernel module; this client asks for no fences and reservations"
)]
mod state;

use self::state::{
    AdminState, Attachment, Fence, NotAsked, Outgoing, Then, VolumeIndex, NONSENSE, SENDS,
};
pub(crate) use self::state::{News, Watching};

/// The volume of the session, which has one.
const FIRST: VolumeIndex = VolumeIndex::FIRST;

/// The largest number of unhandled completions: of all sends and receives.
const COMPLETIONS: u32 = SENDS + ADMIN_DEPTH as u32;
/// The bit that distinguishes sends in work ids, which otherwise are the number of a buffer.
const SEND: u64 = 1 << 32;

fn posting(error: Errno) -> Failure {
    Failure::Verb("posting to the admin queue pair", error)
}

/// The memory of an admin queue pair.
pub(crate) struct Memory {
    incoming: Messages,
    outgoing: Messages,
}

impl Memory {
    /// Allocates the memory, and makes the queue pair of the connection `id`.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, id: &Id) -> Result<(Self, QueuePair), Failure> {
        let make = || {
            let memory = Self {
                incoming: Messages::new(pd, ADMIN_DEPTH.into())?,
                outgoing: Messages::new(pd, SENDS as usize)?,
            };
            let cq = CompletionQueue::new(pd, COMPLETIONS)?;
            let capacity = Capacity {
                sends: SENDS,
                receives: ADMIN_DEPTH.into(),
                pieces: 1,
            };
            let mut pair = QueuePair::new(id, cq, capacity)?;
            for buffer in 0..ADMIN_DEPTH.into() {
                memory.incoming.receive(&mut pair, buffer, buffer as u64)?;
            }
            Ok((memory, pair))
        };
        make().map_err(|error| Failure::Setup("the admin queue pair", error))
    }
}

/// A session's admin queue pair; see the module.
pub(crate) struct Admin {
    pub(crate) pair: QueuePair,
    memory: Memory,
    state: AdminState<Vec<Attachment>>,
    tmo_s: u16,
    /// The target has reported the end of the export, and the caller has not yet seen that.
    ends: bool,
}

impl Admin {
    /// Makes the admin queue pair from a connected one. The session ends when a keep-alive gets no response within
    /// `tmo_s` seconds.
    pub(crate) fn new(pair: QueuePair, memory: Memory, tmo_s: u16) -> Self {
        Self {
            pair,
            memory,
            state: AdminState::new(vec![Attachment::new()]),
            tmo_s,
            ends: false,
        }
    }

    /// Returns the milliseconds between two rounds of its timer.
    pub(crate) fn period_ms(&self) -> u32 {
        state::period_ms(self.tmo_s)
    }

    /// Starts to send keep-alives, and to watch the volume.
    pub(crate) fn go_live(&mut self, watching: Watching) -> Result<(), Failure> {
        // Nothing has changed the state before, so the result is known.
        let _ = self.state.go_live(false);
        let _ = self.state.add_volume();
        self.state.watch(FIRST, watching);
        self.send_due()
    }

    /// Counts a round of the timer, and sends the messages that are due.
    pub(crate) fn round(&mut self) -> Result<(), Failure> {
        if !self.state.round(self.tmo_s) {
            // The response may have arrived since the last poll. Other messages stay until they are handled.
            self.take()?;
            if !self.state.round(self.tmo_s) {
                return Err(Failure::KeepAlive(self.tmo_s));
            }
        }
        self.send_due()
    }

    fn send_due(&mut self) -> Result<(), Failure> {
        let keep_alive = self.state.keep_alive_due(self.tmo_s);
        self.post(keep_alive)?;
        let watch = self.state.watch_due();
        self.post(watch)
    }

    fn post(&mut self, outgoing: Option<Outgoing>) -> Result<(), Failure> {
        let Some(Outgoing { request, buffer }) = outgoing else {
            return Ok(());
        };
        let message = self.memory.outgoing.put(buffer as usize, &request.encode());
        let sge = message.ok_or(posting(Errno::EINVAL))?;
        self.pair.send(&[sge], Some(SEND | u64::from(buffer)));
        self.pair.ring().map_err(posting)
    }

    /// Takes the available completions.
    fn take(&mut self) -> Result<(), Failure> {
        let cq = &mut self.pair.cq;
        cq.take_events();
        cq.arm(false).map_err(posting)?;
        let mut completions = Vec::new();
        while self
            .pair
            .cq
            .poll(|completion| completions.push(completion))
            .map_err(posting)?
            != 0
        {}
        for completion in completions {
            self.complete(completion)?;
        }
        Ok(())
    }

    /// Handles the messages that have arrived; returns the state of the volume, if the target has reported it.
    pub(crate) fn handle(&mut self) -> Result<Option<News>, Failure> {
        self.take()?;
        // Messages that arrived with it were handled, too: the target may still be asked whether all writes are
        // durable.
        if std::mem::take(&mut self.ends) {
            return Err(Failure::ExportEnds);
        }
        let news = self.state.news(FIRST);
        if news.is_some() {
            self.state.followed(FIRST);
            let watch = self.state.watch_due();
            self.post(watch)?;
        }
        Ok(news)
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Failure> {
        match completion.done {
            Done::Sent => {
                let buffer = u32::try_from(completion.id & !SEND).unwrap_or(u32::MAX);
                self.state.send_completed(buffer);
                Ok(())
            }
            Done::Received {
                immediate: Some(_), ..
            } => Err(Failure::Protocol("it sent data that was not asked for")),
            Done::Received {
                invalidated: Some(_),
                ..
            } => Err(Failure::Protocol(
                "it invalidated a key that it was not given",
            )),
            Done::Received { bytes, .. } => self.receive(completion.id, bytes),
            Done::Flushed => Err(Failure::Flushed),
            Done::Failed(status) => Err(Failure::Work(status)),
        }
    }

    fn receive(&mut self, id: u64, bytes: u32) -> Result<(), Failure> {
        let buffer = usize::try_from(id).unwrap_or(usize::MAX);
        let mut message = [0; BUFFER_LEN];
        let message = message.get_mut(..bytes as usize);
        let Some(message) = message.filter(|_| buffer < ADMIN_DEPTH.into()) else {
            return Err(Failure::Protocol(NONSENSE));
        };
        let response = match self.memory.incoming.received(buffer, message) {
            true => AdminResponse::decode(message),
            false => None,
        };
        let response = response.ok_or(Failure::Protocol(NONSENSE))?;
        self.memory
            .incoming
            .receive(&mut self.pair, buffer, id)
            .map_err(posting)?;
        match self
            .state
            .handle_response(&response)
            .map_err(Failure::Protocol)?
        {
            Then::End(_) => self.ends = true,
            Then::Nothing | Then::Begin(_) | Then::Follow(_) | Then::NotifyPortals => {}
        }
        Ok(())
    }

    /// Asks the target, which ends the export, whether all acknowledged writes are durable; `false`: not yet. Fails
    /// when they cannot become durable, or there is no response in time.
    pub(crate) fn ask_durable(&mut self, deadline: Deadline<'_>) -> Result<bool, Failure> {
        match self.state.ask_fence(FIRST, AdminOp::Durable) {
            Ok(request) => self.post(Some(request))?,
            Err(NotAsked::Busy) => {
                self.handle()?;
                return Ok(false);
            }
            Err(NotAsked::Pending | NotAsked::NotLive) => return Err(Failure::Disconnected),
        }
        loop {
            self.handle()?;
            match self.state.fence(FIRST) {
                Fence::Responded(Some(durable)) => return Ok(durable),
                // A write-back has failed.
                Fence::Responded(None) | Fence::Gone => return Err(Failure::ExportEnds),
                Fence::Nothing | Fence::Asked => {}
            }
            match wait_for(self.pair.cq.as_fd(), deadline) {
                Ok(true) => {}
                Ok(false) => return Err(Failure::Timeout(ConnectStep::Response)),
                Err(error) => return Err(Failure::Verb("waiting for events", error)),
            }
        }
    }
}
