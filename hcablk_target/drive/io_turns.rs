// SPDX-License-Identifier: GPL-2.0

//! Holds requests, and chunks of requests, that wait for a volume's drive on its workqueue: if
//! there are more than can run at the same time, those of all hosts [take
//! turns](super::host_turns). A host's requests and chunks keep their order.
//!
//! # Ownership
//!
//! A waiting request or chunk is in the line of its host, in a box whose type this module does not
//! know. It refers to its volume, whose [`HostLine`] thus exists while anything waits in it.
//! Nothing here refers to the workqueue, since the workqueue's work may drop the last reference to
//! an [`IoTurns`].
//!
//! One lock, for any context, protects all of it; nothing is allocated or freed under it, and no
//! other lock is taken inside.

use super::host_turns::{
    HostTurns,
    Line,
    LINES, //
};
use hcablk_core::{
    proto::name::HostId,
    sync::{
        defer::{
            DeferredBox,
            DeferredList, //
        },
        new_irq_lock,
        IrqLock, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

struct IoTurnsState {
    turns: HostTurns,
    /// `lines` and `waiting` have the same, constant length.
    lines: KVec<Line>,
    waiting: KVec<DeferredList>,
}

impl IoTurnsState {
    fn new(workers: u16) -> Result<Self> {
        let mut lines = KVec::with_capacity(LINES, GFP_KERNEL)?;
        let mut waiting = KVec::with_capacity(LINES, GFP_KERNEL)?;
        for _ in 0..LINES {
            lines.push(Line::default(), GFP_KERNEL)?;
            waiting.push(DeferredList::new(), GFP_KERNEL)?;
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

    fn arrive(&mut self, at: usize, work: DeferredBox) -> Option<DeferredBox> {
        // Without a line it runs, so that it is not lost.
        let Some(line) = self.waiting.get_mut(at) else {
            return Some(work);
        };
        if self.turns.arrive(&mut self.lines, at) {
            return Some(work);
        }
        line.push(work);
        None
    }

    fn end(&mut self) -> Option<DeferredBox> {
        let at = self.turns.end(&mut self.lines)?;
        self.waiting.get_mut(at)?.pop()
    }
}

/// The turns of the hosts' requests at a drive: see the module.
#[pin_data]
pub(crate) struct IoTurns {
    #[pin]
    state: IrqLock<IoTurnsState>,
}

impl IoTurns {
    /// Creates the turns of a drive on which `workers` requests run at the same time. May sleep.
    pub(crate) fn new(workers: u16) -> Result<Arc<Self>> {
        let state = IoTurnsState::new(workers)?;
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
    /// Returns `work`, a request or chunk, if it can run now; otherwise it waits in this line. Any
    /// context.
    pub(crate) fn arrive(&self, work: DeferredBox) -> Option<DeferredBox> {
        self.turns.state.lock().arrive(self.at, work)
    }

    /// Ends the run of a request or chunk that [arrived](Self::arrive). Returns the request or
    /// chunk, of any line, that runs in its place. Any context.
    pub(crate) fn end(&self) -> Option<DeferredBox> {
        self.turns.state.lock().end()
    }
}

impl Drop for HostLine {
    fn drop(&mut self) {
        self.turns.state.lock().leave(self.at);
    }
}
