// SPDX-License-Identifier: GPL-2.0

//! What ends the session from the I/O path, and which request it was about.

use super::{
    kind,
    Fault,
    Io,
    Queue,
    Subject, //
};
use crate::request::chunks::Failure;
use hcablk_core::sync::atomic::Acquire;
use hcablk_core::{
    broken,
    proto::message::{
        Op,
        Tag, //
    },
    rdma::cq::Completion,
    sync::unordered::UnorderedU64, //
};
use kernel::prelude::*;

/// Which request each [`Io`] has, for messages: whoever finds work that has failed does not own
/// the `Io`, and may come when that has another request.
pub(super) struct Named(KVec<UnorderedU64>);

impl Named {
    /// Allocates room for the faults of `ios` requests. May sleep.
    pub(super) fn new(ios: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(ios, GFP_KERNEL)?;
        for _ in 0..ios {
            places.push(UnorderedU64::new(0), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    #[inline]
    pub(super) fn set(&self, io: &Io) {
        let key = match io.op {
            Ok(Op::Read(_, remote) | Op::Write { remote, .. }) => remote.key,
            _ => 0,
        };
        if let Some(place) = self.0.get(io.index as usize) {
            place.set(u64::from(key) << 32 | u64::from(io.tag.to_immediate()));
        }
    }

    pub(super) fn get(&self, io: u32) -> Option<Subject> {
        let named = self.0.get(io as usize)?.get();
        Some(Subject {
            tag: Tag::from_immediate(named as u32),
            key: (named >> 32) as u32,
        })
    }
}

impl Queue {
    /// Ends the session for a fault of this queue pair, unless only this queue pair is being taken
    /// down. Any context.
    #[cold]
    pub(super) fn fail(&self, fault: Fault) {
        if !self.leaving.load(Acquire) {
            self.owner.clone().queue_failed(self.index, fault);
        }
    }

    /// Reports a broken invariant of the driver, and ends the session. Any context.
    #[cold]
    pub(super) fn broken(&self, what: &'static str) {
        broken!(what);
        self.fail(Fault::Broken(what));
    }

    /// Reports that work for `io` could not be posted, and ends the session.
    #[cold]
    pub(super) fn unposted(&self, what: &'static str, io: Option<u32>) {
        let subject = io.and_then(|io| self.named.get(io));
        self.fail(Fault::Unposted(what, subject));
    }

    /// Reports a work request that has failed, and ends the session. Completion handler.
    #[cold]
    pub(super) fn work_failed(&self, completion: &Completion) {
        let work = completion.work();
        // It says whose it is.
        let chunk = match work.kind {
            kind::CHUNK => self.chunked.take_fetched(work.index),
            _ => None,
        };
        let io = match work.kind {
            kind::CHUNK_WRITTEN => self.chunked.io_of_written(work.index),
            kind::ANSWER | kind::FETCH | kind::PART | kind::SINK => Some(work.index),
            _ => chunk.as_ref().map(|chunk| chunk.places_of().1),
        };
        self.fail(if completion.is_flushed() {
            Fault::Flushed
        } else {
            let subject = io.and_then(|io| self.named.get(io));
            Fault::Work(name(work.kind), completion.status(), subject)
        });
        if let Some(chunk) = chunk {
            chunk.settle(false, Err(Failure::Wire));
        }
    }
}

/// Returns the name of a kind of work, for messages.
fn name(kind: u8) -> &'static str {
    match kind {
        kind::ANSWER => "an answer",
        kind::RECEIVE => "receiving",
        kind::FETCH | kind::CHUNK => "an RDMA READ",
        kind::PART => "RDMA",
        kind::CHUNK_WRITTEN => "an RDMA WRITE",
        kind::KEEP_ALIVE => "a keep-alive",
        kind::SINK => "registering buffers",
        kind::EAGER_RING => "registering the eager ring",
        _ => "work",
    }
}
