// SPDX-License-Identifier: GPL-2.0

//! A disk as the user of a queue pair: what a request's volume decides, not its queue pair.
//!
//! A place of the queue pair refers to the user of its last request ([`TagData::set_user`]): a
//! request that follows one of the same disk changes no count of references. The queue has a
//! reference of its own for as long as a place may have one, so that none on the I/O path is the
//! last.
//!
//! [`TagData::set_user`]: super::queue::TagData::set_user

use crate::{
    session::Attachment,
    stats::{
        Ended,
        Times, //
    },
    unflushed::Unflushed, //
};
use hcablk_core::{
    proto::message::Handle,
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A user of a queue pair; see the module.
pub(crate) struct QueueUser {
    attachment: Arc<Attachment>,
    /// The handle of the volume in requests.
    volume: Handle,
    /// The disk's account of writes that no flush has covered.
    unflushed: Arc<Unflushed>,
    /// The account's number when the queue last reported a write of the disk. Used by the
    /// completion handler only.
    reported_at: Atomic<u64>,
    /// The queue has turned a request of the disk away, and has not run the disk's hardware queue
    /// since.
    waits: Atomic<bool>,
    /// Request durations are measured.
    timing: Atomic<bool>,
    pub(crate) ended: Ended,
    pub(crate) times: Times,
}

impl QueueUser {
    /// Creates the user of a queue pair that has reported no write yet. May sleep.
    pub(super) fn new(attachment: Arc<Attachment>) -> Result<Arc<Self>> {
        let unflushed = attachment.head().unflushed().clone();
        let user = Self {
            volume: attachment.handle(),
            attachment,
            unflushed,
            reported_at: Atomic::new(0),
            waits: Atomic::new(false),
            timing: Atomic::new(false),
            ended: Ended::default(),
            times: Times::default(),
        };
        Ok(Arc::new(user, GFP_KERNEL)?)
    }

    /// Notes that the queue turns a request of the disk away. Under the queue's lock, so that the
    /// next response finds the note.
    pub(super) fn set_waiting(&self) {
        self.waits.store(true, Relaxed);
    }

    /// Runs the disk's hardware queue `index` if one of its requests was turned away. Any context.
    pub(super) fn run_if_waiting(&self, index: u8) {
        if self.waits.xchg(false, Full) {
            self.attachment.dispatch().run_hw_queue(index.into());
        }
    }

    /// Sets whether the durations of requests issued from now on are measured.
    pub(crate) fn set_timing(&self, on: bool) {
        self.timing.store(on, Relaxed);
    }

    /// Returns whether request durations are measured.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.timing.load(Relaxed)
    }

    /// Returns the disk on the session.
    #[inline(always)]
    pub(crate) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Returns the handle of the volume in requests.
    #[inline(always)]
    pub(super) fn volume(&self) -> Handle {
        self.volume
    }

    /// Returns whether an immediate value, which names no volume, is about this one.
    #[inline(always)]
    pub(super) fn has_immediates(&self) -> bool {
        self.volume == Handle::FIRST
    }

    /// Returns the number of a flush that is about to be sent. Any context.
    pub(super) fn begin_flush(&self) -> u64 {
        self.unflushed.begin_flush()
    }

    /// Notes a successful write that a flush has to cover. Must run before its request ends: a
    /// caller that sees the end may send a flush. Completion handler.
    #[inline(always)]
    pub(super) fn note_write(&self) {
        let now = self.unflushed.now();
        if self.reported_at.load(Relaxed) != now {
            self.unflushed.acknowledge(now);
            self.reported_at.store(now, Relaxed);
        }
    }

    /// Notes that the flush with this number succeeded.
    pub(super) fn note_flush(&self, number: u64) {
        self.unflushed.flushed(number);
    }
}
