// SPDX-License-Identifier: GPL-2.0

//! What the HCA may still use of requests that were given up.
//!
//! Posting failed, or the HCA does not report what was posted: then an `Io` becomes idle though
//! its data may still be moved. Nothing of that may go to others before the queue pair is
//! destroyed: a provider of peer memory waits for it when its driver is unbound, and lines of a
//! cache stay as they are. So the `Io` leaves these here, under `Queue::work`, and they go when
//! the queue does, in process context: after the pair, before the [`PeerLease`](hcablk_core::p2p::PeerLease)s,
//! which wait for them. Transfer buffers stay in the queue's [`Pool`](crate::memory::pool::Pool) as long.

use super::{
    Io,
    Queue, //
};
use crate::storage::backing::Backing;
use hcablk_core::{
    logic::mq::lines::Visit,
    p2p::PeerMemory, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What one request had.
struct Held {
    _memory: [Option<Arc<PeerMemory>>; 2],
    /// Its part in the cache, if the memory is the cache's lines.
    visit: Visit,
}

/// See the module.
pub(super) struct Kept {
    /// There is room for every `Io`, each of which is given up once.
    held: KVec<Held>,
    backing: Arc<Backing>,
}

impl Kept {
    /// Allocates room for `ios` requests. May sleep.
    pub(super) fn new(ios: usize, backing: &Arc<Backing>) -> Result<Self> {
        Ok(Self {
            held: KVec::with_capacity(ios, GFP_KERNEL)?,
            backing: backing.clone(),
        })
    }

    /// Keeps what the HCA reaches of `io`'s peer memory and lines. Any context.
    fn keep(&mut self, io: &mut Io) {
        let reached = |memory: &mut Arc<PeerMemory>| memory.is_mapped();
        let peer = io.peer.take_if(reached);
        let lines = io.lines.take_if(reached);
        if peer.is_none() && lines.is_none() {
            return;
        }
        let visit = match lines {
            Some(_) => core::mem::replace(&mut io.visit, Visit::NONE),
            None => Visit::NONE,
        };
        let held = Held {
            _memory: [peer, lines],
            visit,
        };
        if let Err(full) = self.held.push_within_capacity(held) {
            // It is never given back then: rather that than too early.
            pr_err!("BUG: a request was given up twice\n");
            core::mem::forget(full);
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(cache) = self.backing.cache() else {
            return;
        };
        for held in self.held.iter_mut().filter(|held| !held.visit.is_outside()) {
            cache.leave(&mut held.visit, false);
        }
    }
}

impl Queue {
    /// Makes an `Io` idle again after an error that ends the session, and lets
    /// nothing new begin: see the module. Any context.
    pub(super) fn give_up(&self, mut io: KBox<Io>) {
        let mut work = self.work.lock();
        work.close();
        work.kept.keep(&mut io);
        drop(work);
        let io = self.without_lines(io);
        let mut work = self.work.lock();
        self.release(&mut work, io);
        self.update_notify(&work);
    }
}
