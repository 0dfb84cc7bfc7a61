// SPDX-License-Identifier: GPL-2.0

//! The connections of an attempt to connect a path. Each step of one waits for an event that may be
//! long in coming, or never come; who does not want the path any more ends all these waits. On
//! iWARP a provider may connect TCP inside of its verb, which nothing ends.

use super::Link;
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

/// See the module. Shared by who makes the attempt and, if that is the path's worker, by the path.
/// Nothing of the connection manager's is called with the lock held.
#[pin_data]
pub(crate) struct AttemptLinks {
    #[pin]
    state: Mutex<AttemptState>,
}

struct AttemptState {
    links: KVec<Arc<Link>>,
    /// Why the attempt is not to go on.
    end: Option<Failure>,
}

impl AttemptLinks {
    /// Begins an attempt. May sleep. Fails with `ENOMEM`, as a [`Failure::Setup`].
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

    /// Makes an identifier, and the link that hears its events, for the attempt. Fails with why it
    /// is over, if it is. Sleeps.
    pub(crate) fn connection(&self) -> Result<(Arc<Link>, Arc<Id>), Failure> {
        let (link, id) = Link::new()?;
        self.add(&link)?;
        Ok((link, id))
    }

    fn add(&self, link: &Arc<Link>) -> Result<(), Failure> {
        let mut state = self.state.lock();
        match state.end {
            Some(failure) => Err(failure),
            None => state
                .links
                .push(link.clone(), GFP_KERNEL)
                .map_err(|e| Failure::Setup("a connection", e.into())),
        }
    }

    /// Ends the attempt with `failure`, unless that was done: what it waits for, and whatever else
    /// it begins, fails with that. May sleep.
    pub(crate) fn end(&self, failure: Failure) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.end = Some(failure);
            for link in state.links.iter() {
                link.interrupt(failure);
            }
        }
    }

    /// Lets go of the connections: whoever has been ending the attempt meanwhile is not the last
    /// who has one. May sleep.
    pub(crate) fn let_go(&self) {
        let links = core::mem::replace(&mut self.state.lock().links, KVec::new());
        drop(links);
    }
}
