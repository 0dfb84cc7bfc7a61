// SPDX-License-Identifier: GPL-2.0

//! The connections of an attempt to connect a path. Each step of a connection waits for an event,
//! which may be late or may never come; disabling the path ends all these waits. On iWARP a
//! provider may connect TCP inside its verb, which cannot be interrupted.

use super::CmLink;
use crate::failure::Failure;
use hcablk_core::rdma::cm::Id;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The connections of an attempt; see the module. Shared with the path if the path's worker makes
/// the attempt. The lock is not held across calls to the connection manager.
#[pin_data]
pub(crate) struct AttemptLinks {
    #[pin]
    state: Mutex<AttemptState>,
}

struct AttemptState {
    links: KVec<Arc<CmLink>>,
    /// Why the attempt must not continue.
    end: Option<Failure>,
}

impl AttemptLinks {
    /// Starts an attempt. May sleep. Fails with `ENOMEM`, as a [`Failure::Setup`].
    pub(crate) fn new() -> Result<Arc<Self>, Failure> {
        let state = AttemptState {
            links: KVec::new(),
            end: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                state <- new_mutex!(state),
            }),
            GFP_KERNEL,
        )
        .map_err(|e| Failure::Setup("a connection", e))
    }

    /// Creates an identifier, and the link that handles its events, for the attempt. If the attempt
    /// was ended, fails with the reason. Sleeps.
    pub(crate) fn connection(&self) -> Result<(Arc<CmLink>, Arc<Id>), Failure> {
        let (link, id) = CmLink::new()?;
        self.add(&link)?;
        Ok((link, id))
    }

    fn add(&self, link: &Arc<CmLink>) -> Result<(), Failure> {
        let mut state = self.state.lock();
        match state.end {
            Some(failure) => Err(failure),
            None => state
                .links
                .push(link.clone(), GFP_KERNEL)
                .map_err(|e| Failure::Setup("a connection", e.into())),
        }
    }

    /// Ends the attempt with `failure`, unless it was ended before: its waits and all later steps
    /// fail with that. May sleep.
    pub(crate) fn end(&self, failure: Failure) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.end = Some(failure);
            for link in state.links.iter() {
                link.interrupt(failure);
            }
        }
    }

    /// Releases the connections, so that a concurrent [`Self::end`] does not drop the last
    /// reference to one. May sleep.
    pub(crate) fn release_links(&self) {
        let links = core::mem::replace(&mut self.state.lock().links, KVec::new());
        drop(links);
    }
}
