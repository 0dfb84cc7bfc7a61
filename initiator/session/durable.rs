// SPDX-License-Identifier: GPL-2.0

//! What a target that ends the export in order has acknowledged from a volatile write cache.
//!
//! The next export is another instance, which remembers nothing of that, so that the disk would
//! have to fail a flush. A target that withdraws the volume, or is shut down, has the drive make it
//! durable when the session's queue pairs are gone. The initiator asks for that by the admin queue
//! pair, which is closed last. It counts only by the session whose queue pairs are gone last: until
//! then something may be acknowledged by another path.

use super::Session;
use crate::{
    admin::Admin,
    deadline::Deadline,
    failure::Failure, //
};

/// How long the target is asked, in milliseconds. It waits about as long for the question.
const DURABLE_MS: u32 = 10_000;

/// Milliseconds between two questions.
const ASK_MS: u32 = 50;

/// Whether requests can go by the queue pairs of a session, and be answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    NotYet,
    Yes,
    /// Its queue pairs are closed.
    Over,
}

impl Session {
    /// Counts the session as one by which requests are answered, unless its queue pairs are closed.
    /// Process context.
    pub(super) fn open(&self) {
        let mut opened = self.opened.lock();
        if *opened == Opened::NotYet {
            *opened = Opened::Yes;
            self.head.session_opened();
        }
    }

    /// Counts it no longer, since its queue pairs are closed; returns whether no other is open.
    /// Process context.
    pub(super) fn close(&self) -> bool {
        let mut opened = self.opened.lock();
        let former = core::mem::replace(&mut *opened, Opened::Over);
        former == Opened::Yes && self.head.session_closed()
    }

    /// Returns whether to ask the target of `admin` before that is closed.
    pub(super) fn is_to_ask_durable(&self) -> bool {
        self.failure() == Some(Failure::ExportEnds)
            && self.is_to_be_followed()
            && self.head.flushes()
    }

    /// Asks the target whether all is durable that it acknowledged, and records that it is. Sleeps,
    /// [`DURABLE_MS`] or so at most.
    pub(super) fn ask_durable(&self, admin: &Admin) {
        let deadline = Deadline::new(DURABLE_MS);
        let durable = loop {
            match admin.ask_durable() {
                Ok(true) => break true,
                Ok(false) if !deadline.has_passed() && !self.head.goes_within(ASK_MS) => {}
                _ => break false,
            }
        };
        if durable {
            let instance = self.volume().and_then(|volume| volume.instance);
            self.head.set_durable(instance);
        }
    }
}
