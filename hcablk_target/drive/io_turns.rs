// SPDX-License-Identifier: GPL-2.0

//! Holds requests, and chunks of requests, that wait for a volume's drive on its workqueue: if
//! there are more than can run at the same time, those of all hosts [take
//! turns](super::host_turns). In a host's line chunks come before requests, since their requests
//! have begun.
//!
//! # Ownership
//!
//! A waiting request or chunk is in the line of its host, in its box. It refers to its volume,
//! whose [`HostLine`] thus exists while anything waits in it. Nothing here refers to the workqueue:
//! its work may drop the last reference to this.
//!
//! One lock, for any context, protects all of it; nothing is allocated or freed under it, and no
//! other lock is taken inside.

use super::host_turns::{
    HostTurns,
    Line,
    LINES, //
};
use crate::io::{
    Chunk,
    Request, //
};
use hcablk_core::{
    proto::name::HostId,
    sync::{
        defer::DeferredList,
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A request or chunk that waits in a line, or runs in its turn.
pub(crate) enum Turn {
    Request(KBox<Request>),
    Chunk(KBox<Chunk>),
}

/// The waiting requests and chunks of a line.
#[derive(Default)]
struct Waiting {
    requests: DeferredList<Request>,
    chunks: DeferredList<Chunk>,
}

impl Waiting {
    fn push(&mut self, turn: Turn) {
        match turn {
            Turn::Request(request) => self.requests.push(request),
            Turn::Chunk(chunk) => self.chunks.push(chunk),
        }
    }

    fn pop(&mut self) -> Option<Turn> {
        let chunk = self.chunks.pop().map(Turn::Chunk);
        chunk.or_else(|| self.requests.pop().map(Turn::Request))
    }
}

struct State {
    turns: HostTurns,
    /// `lines` and `waiting` have the same, constant length.
    lines: KVec<Line>,
    waiting: KVec<Waiting>,
}

impl State {
    fn new(workers: u16) -> Result<Self> {
        let mut lines = KVec::with_capacity(LINES, GFP_KERNEL)?;
        let mut waiting = KVec::with_capacity(LINES, GFP_KERNEL)?;
        for _ in 0..LINES {
            lines.push(Line::default(), GFP_KERNEL)?;
            waiting.push(Waiting::default(), GFP_KERNEL)?;
        }
        Ok(Self {
            turns: HostTurns::new(workers.into()),
            lines,
            waiting,
        })
    }

    fn join(&mut self, host: HostId) -> usize {
        self.turns.join(&mut self.lines, host)
    }

    fn leave(&mut self, at: usize) {
        self.turns.leave(&mut self.lines, at);
    }

    fn arrive(&mut self, at: usize, turn: Turn) -> Option<Turn> {
        // Without a line it runs, so that it is not lost.
        let Some(line) = self.waiting.get_mut(at) else {
            return Some(turn);
        };
        if self.turns.arrive(&mut self.lines, at) {
            return Some(turn);
        }
        line.push(turn);
        None
    }

    fn end(&mut self) -> Option<Turn> {
        let at = self.turns.end(&mut self.lines)?;
        self.waiting.get_mut(at)?.pop()
    }
}

/// The turns of the hosts' requests at a drive: see the module.
#[pin_data]
pub(crate) struct IoTurns {
    #[pin]
    state: IrqLock<State>,
}

impl IoTurns {
    /// Creates the turns of a drive on which `workers` requests run at the same time. May sleep.
    pub(crate) fn new(workers: u16) -> Result<Arc<Self>> {
        let state = State::new(workers)?;
        Arc::pin_init(
            pin_init!(Self {
                state <- new_irq_lock!(state, "hcablk_io_turns"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the line of `host`. Any context.
    pub(crate) fn join(self: &Arc<Self>, host: HostId) -> HostLine {
        HostLine {
            at: self.state.lock().join(host),
            turns: self.clone(),
        }
    }
}

/// The line of a host.
pub(crate) struct HostLine {
    turns: Arc<IoTurns>,
    at: usize,
}

impl HostLine {
    /// Returns `turn` if it can run now; otherwise it waits in this line. Any context.
    pub(crate) fn arrive(&self, turn: Turn) -> Option<Turn> {
        self.turns.state.lock().arrive(self.at, turn)
    }

    /// Ends the run of a request or chunk that [arrived](Self::arrive). Returns the one, of any
    /// line, that runs in its place. Any context.
    pub(crate) fn end(&self) -> Option<Turn> {
        self.turns.state.lock().end()
    }
}

impl Drop for HostLine {
    fn drop(&mut self) {
        self.turns.state.lock().leave(self.at);
    }
}
