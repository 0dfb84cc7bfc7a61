// SPDX-License-Identifier: GPL-2.0

//! What a queue knows of whoever has it, and tells it: a session, which is above this module.

use super::Queue;
use crate::{
    admin::Admin,
    failure::Failure,
    settings::Settings, //
    unflushed::Unflushed,
};
use hcablk_core::proto::connect::{
    Epoch,
    SessionId, //
};
use kernel::sync::Arc;

/// Who has a queue.
pub(crate) trait QueueOwner: Send + Sync + 'static {
    /// Returns the session's admin queue pair, unless its teardown is done with it. May sleep.
    fn admin(&self) -> Option<Arc<Admin>>;

    /// Ends the session because of `failure`. Any context.
    fn queue_failed(self: Arc<Self>, failure: Failure);

    /// Tells that the request of `queue` with this tag was not answered in time. Any context.
    fn queue_timed_out(self: Arc<Self>, queue: &Queue, tag: u16);

    /// Returns whether requests wait for another session when this one has ended.
    fn requests_wait(&self) -> bool;

    /// Has requests wait for no other session. Any context.
    fn no_other_session(&self);

    /// Returns whether flushes and writes with FUA fail, since the target has lost writes that it
    /// acknowledged. Any context.
    fn has_lost_writes(&self) -> bool;

    /// Tells that one was refused because of that. Any context.
    fn tell_loss(&self);

    /// Returns why the session ended as a negative errno, for trace events; 0 if it has not failed.
    fn errno(&self) -> i32;
}

/// Which queue it is, of which session, and how users want it.
pub(crate) struct QueueConfig {
    pub(crate) session: SessionId,
    pub(crate) epoch: Epoch,
    pub(crate) index: u8,
    /// For polled I/O.
    pub(crate) polled: bool,
    /// What users have set.
    pub(crate) settings: Settings,
    /// The disk's account of writes that no flush has covered.
    pub(crate) unflushed: Arc<Unflushed>,
}

impl Queue {
    /// Ends the session because of `failure`. Any context.
    #[cold]
    pub(super) fn end_session(&self, failure: Failure) {
        self.owner.clone().queue_failed(failure);
    }
}
