// SPDX-License-Identifier: GPL-2.0

//! What ends the session from the I/O path, and which request it was about.

use super::{
    cut::Failure,
    kind,
    Queue, //
};
use crate::{
    end_reason::{
        EndReason,
        Fault,
        Subject, //
    },
    io::Io,
};
use hcablk_core::{
    broken,
    proto::message::{
        Op,
        Tag, //
    },
    rdma::cq::Completion, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Relaxed, //
    },
};

/// Which request each [`Io`] has, for messages: whoever finds work that has failed does not own
/// the `Io`, and may come when that has another request.
pub(super) struct Named(KVec<Atomic<u64>>);

impl Named {
    /// May sleep.
    pub(super) fn new(ios: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(ios, GFP_KERNEL)?;
        for _ in 0..ios {
            places.push(Atomic::new(0), GFP_KERNEL)?;
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
            place.store(
                u64::from(key) << 32 | u64::from(io.tag.to_immediate()),
                Relaxed,
            );
        }
    }

    pub(super) fn get(&self, io: u32) -> Option<Subject> {
        let named = self.0.get(io as usize)?.load(Relaxed);
        Some(Subject {
            tag: Tag::from_immediate(named as u32),
            key: (named >> 32) as u32,
        })
    }
}

impl Queue {
    /// Something is wrong with the queue pair, or with what came by it: ends the session,
    /// unless it is only this queue pair that is taken down. Any context.
    #[cold]
    pub(super) fn fail(&self, fault: Fault) {
        if !self.leaving.load(Acquire) {
            self.session.end(EndReason::Queue(self.index, fault));
        }
    }

    /// An invariant of our own is broken: what follows from that is not known. Any context.
    #[cold]
    pub(super) fn broken(&self, what: &'static str) {
        broken!(what);
        self.fail(Fault::Broken(what));
    }

    /// Work for `io`, or for somebody else, could not be posted.
    #[cold]
    pub(super) fn unposted(&self, what: &'static str, io: Option<u32>) {
        let subject = io.and_then(|io| self.named.get(io));
        self.fail(Fault::Unposted(what, subject));
    }

    /// Work has failed. Completion handler.
    #[cold]
    pub(super) fn work_failed(&self, completion: &Completion) {
        let work = completion.work();
        // It says whose it is.
        let grain = match work.kind {
            kind::GRAIN => self.cut.take_fetched(work.index),
            _ => None,
        };
        let io = match work.kind {
            kind::ANSWER | kind::FETCH | kind::PART | kind::SINK => Some(work.index),
            _ => grain.as_ref().map(|grain| grain.places_of().1),
        };
        self.fail(if completion.is_flushed() {
            Fault::Flushed
        } else {
            let subject = io.and_then(|io| self.named.get(io));
            Fault::Work(name(work.kind), completion.status(), subject)
        });
        if let Some(grain) = grain {
            grain.settle(false, Err(Failure::Wire));
        }
    }
}

/// What work is called.
fn name(kind: u8) -> &'static str {
    match kind {
        kind::ANSWER => "an answer",
        kind::RECEIVE => "receiving",
        kind::FETCH | kind::GRAIN => "an RDMA READ",
        kind::PART => "RDMA",
        kind::PROBE => "a probe",
        kind::SINK => "registering buffers",
        kind::GRANT => "registering granted memory",
        _ => "work",
    }
}
