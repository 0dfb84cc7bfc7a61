// SPDX-License-Identifier: GPL-2.0

//! What has to be fenced before requests are issued again.
//!
//! What a lost session had sent may reach the drive as long as the target has not ended its side of
//! it. So a session that ends is *unfenced* until the target has said that nothing of it is left:
//! in its answer to the next session on the same path, which has a later epoch, or to a question by
//! another path ([`Admin::ask_fence`]). Three rules keep a write of the past from coming after its
//! retry:
//!
//! 1. The requests of an unfenced session are kept while another path is live, and given back to
//!    the block layer when it is fenced, or when no path is live ([`Head::wait_for_fence`]).
//! 2. A session becomes a path of the disk only while no other path is unfenced, and none is live
//!    or unfenced that leads to another export ([`Head::fence_others`], [`Head::try_admit`]).
//! 3. A queue pair that takes another one's place has requests only if its session has not ended
//!    ([`Head::put_instead`]).
//!
//! All look and act under one lock, so that no session becomes a path between the look and the act
//! of the other. Whose answer counts is told in [`last_sessions`](super::last_sessions).

use super::{
    last_sessions::{
        Obstacle,
        Origin, //
    },
    Head, //
};
use crate::{
    admin::Admin,
    failure::Failure,
    io::{
        Queue,
        Retired, //
    },
};
use hcablk_core::proto::connect::Epoch;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Milliseconds between two questions.
const ASK_MS: u32 = 50;

/// Milliseconds after which it is said that the target still does not fence a path.
const SAY_MS: u32 = 10_000;

impl Head {
    /// Records that the session of this epoch on `path`, which was the disk's, ends. Before its
    /// requests are given back.
    pub(crate) fn set_unfenced(&self, path: u8, epoch: Epoch) {
        self.last_sessions.lock().end(path, epoch);
    }

    /// Records that the target has granted a session of `epoch` and `origin` on `path`, which is
    /// not the disk's yet.
    pub(crate) fn granted(&self, path: u8, epoch: Epoch, origin: &Origin) {
        self.last_sessions.lock().granted(path, epoch, origin);
    }

    /// Has requests go by `queue`, which takes another one's place in the session of this epoch on
    /// `path`; `false`: that is ending, and what is to be fenced may have been given back already.
    /// As [`HwQueues::put`].
    pub(crate) fn put_instead(
        &self,
        (path, epoch): (u8, Epoch),
        queue: &Arc<Queue>,
        retired: &mut Retired,
    ) -> Result<bool> {
        let last_sessions = self.last_sessions.lock();
        if !last_sessions.is_live(path, epoch) {
            return Ok(false);
        }
        self.hw_queues.put(queue, retired).map(|()| true)
    }

    /// Waits until nothing of an ended session of `path` can reach the drive, or no path is live,
    /// or the disk goes; calls `meanwhile` again and again. Sleeps, as long as the drive takes.
    pub(crate) fn wait_for_fence(&self, path: u8, epoch: Epoch, mut meanwhile: impl FnMut()) {
        let mut waited_ms = 0;
        loop {
            let last_sessions = self.last_sessions.lock();
            if !last_sessions.is_unfenced(path, epoch) || self.goes_within(0) {
                return;
            }
            let Some(asker) = self.hw_queues.asker() else {
                return;
            };
            drop(last_sessions);
            meanwhile();
            // If the answer is no other, another path, or the same one, may know better.
            if asker.ask_fence((path, epoch)) == Ok(true) {
                return self.last_sessions.lock().fenced(path, epoch);
            }
            if self.goes_within(ASK_MS) {
                return;
            }
            say(&mut waited_ms, path);
        }
    }

    /// Fences every path but that of `admin`, whose session, of `origin`, is not the disk's yet;
    /// asks `wanted` in between. Sleeps, as long as the drive takes. Fails when another export is
    /// in use or not fenced.
    pub(crate) fn fence_others(
        &self,
        admin: &Admin,
        origin: &Origin,
        mut wanted: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut waited_ms = 0;
        loop {
            let obstacle = self.last_sessions.lock().obstacle(admin.path(), origin);
            let (path, last) = match obstacle {
                None => return Ok(()),
                Some(Obstacle::OtherExport) => return Err(Failure::OtherExport),
                Some(Obstacle::Unfenced(path, last)) => (path, last),
            };
            match admin.ask_fence((path, last))? {
                true => self.last_sessions.lock().fenced(path, last),
                false if self.goes_within(ASK_MS) => return Err(Failure::Forced),
                false => say(&mut waited_ms, path),
            }
            wanted()?;
        }
    }

    /// Calls `install`, which makes a session of `epoch` and `origin` on `path` the disk's, unless
    /// something is in its way again. Sleeps as `install` does.
    pub(crate) fn try_admit<R>(
        &self,
        path: u8,
        epoch: Epoch,
        origin: Origin,
        install: impl FnOnce() -> R,
    ) -> Option<R> {
        let mut last_sessions = self.last_sessions.lock();
        if last_sessions.obstacle(path, &origin).is_some() {
            return None;
        }
        last_sessions.admit(path, epoch, origin);
        Some(install())
    }
}

/// Says that a path is still not fenced, once in a while.
fn say(waited_ms: &mut u32, path: u8) {
    *waited_ms += ASK_MS;
    if *waited_ms % SAY_MS == 0 {
        pr_warn!(
            "still waiting for the target to finish what path {path} had begun: its drive takes long\n"
        );
    }
}
