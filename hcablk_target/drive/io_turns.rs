// SPDX-License-Identifier: GPL-2.0

//! Holds requests that wait for a volume's drive on its workqueue: if there are more than can run
//! at the same time, those of all hosts [take turns](super::host_turns).
//!
//! # Ownership
//!
//! A waiting request is in the line of its host, in its box. It refers to its volume, whose
//! [`HostLine`] thus exists while requests wait in it. Nothing here refers to the workqueue: its
//! work may drop the last reference to this.
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
            Deferred,
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

struct State<T: Deferred> {
    turns: HostTurns,
    /// `lines` and `waiting` have the same, constant length.
    lines: KVec<Line>,
    waiting: KVec<DeferredList<T>>,
}

/// The turns of the hosts' requests at a drive: see the module.
#[pin_data]
pub(crate) struct IoTurns<T: Deferred> {
    #[pin]
    state: IrqLock<State<T>>,
}

impl<T: Deferred> IoTurns<T> {
    /// Creates the turns of a drive on which `workers` requests run at the same time. May sleep.
    pub(crate) fn new(workers: u16) -> Result<Arc<Self>> {
        let mut lines = KVec::with_capacity(LINES, GFP_KERNEL)?;
        let mut waiting = KVec::with_capacity(LINES, GFP_KERNEL)?;
        for _ in 0..LINES {
            lines.push(Line::default(), GFP_KERNEL)?;
            waiting.push(DeferredList::new(), GFP_KERNEL)?;
        }
        let state = State {
            turns: HostTurns::new(workers.into()),
            lines,
            waiting,
        };
        Arc::pin_init(
            pin_init!(Self {
                state <- new_irq_lock!(state, "hcablk_io_turns"),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the line of `host`. Any context.
    pub(crate) fn join(self: &Arc<Self>, host: HostId) -> HostLine<T> {
        let mut state = self.state.lock();
        let State { turns, lines, .. } = &mut *state;
        HostLine {
            at: turns.join(lines, host),
            turns: self.clone(),
        }
    }
}

/// The line of a host.
pub(crate) struct HostLine<T: Deferred> {
    turns: Arc<IoTurns<T>>,
    at: usize,
}

impl<T: Deferred> HostLine<T> {
    /// Returns `request` if it can run now; otherwise it waits in this line. Any context.
    pub(crate) fn arrive(&self, request: KBox<T>) -> Option<KBox<T>> {
        let mut state = self.turns.state.lock();
        let State {
            turns,
            lines,
            waiting,
        } = &mut *state;
        // Without a line the request runs, so that it is not lost.
        let Some(line) = waiting.get_mut(self.at) else {
            return Some(request);
        };
        if turns.arrive(lines, self.at) {
            return Some(request);
        }
        line.push(request);
        None
    }

    /// Ends the run of a request that [arrived](Self::arrive). Returns the request, of any line,
    /// that runs in its place. Any context.
    pub(crate) fn end(&self) -> Option<KBox<T>> {
        let mut state = self.turns.state.lock();
        let State {
            turns,
            lines,
            waiting,
        } = &mut *state;
        let at = turns.end(lines)?;
        waiting.get_mut(at)?.pop()
    }
}

impl<T: Deferred> Drop for HostLine<T> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        let State { turns, lines, .. } = &mut *state;
        turns.leave(lines, self.at);
    }
}
