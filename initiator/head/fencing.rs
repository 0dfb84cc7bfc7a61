// SPDX-License-Identifier: GPL-2.0

//! Fences lost sessions before their requests are issued again.
//!
//! Requests of a lost session may reach the drive until the target has ended its side of the
//! session. So a session that ends is *unfenced* until the target has confirmed that none of its
//! requests is left: in its reply to the next session on the same path, which has a later epoch, or
//! in its response to a fence request on another path ([`AdminVolume::ask_fence`]). Three rules
//! keep an old write from overtaking its retry:
//!
//! 1. The requests of an unfenced session wait while another path is live. They return to the block
//!    layer when the session is fenced, or when no path is live ([`Head::wait_for_fence`]).
//! 2. A session becomes a path of the disk only while no other path is unfenced, and no path to
//!    another export is live or unfenced ([`Head::fence_others`], [`Head::try_admit`]).
//! 3. A replacement queue pair gets requests only while its session has not ended
//!    ([`Head::put_instead`]).
//!
//! Each rule is checked and acted on under one lock, so that no session becomes a path in between.
//! [`last_sessions`](super::last_sessions) defines which responses count.

use super::{
    last_sessions::{
        Obstacle,
        Origin, //
    },
    Head, //
};
use crate::{
    admin::AdminVolume,
    failure::Failure,
    io::{
        Queue,
        Retired, //
    },
    session::Attachment, //
};
use hcablk_core::proto::connect::Epoch;
use kernel::{
    fmt::Display,
    prelude::*,
    sync::Arc, //
};

/// Milliseconds between two fence requests.
const ASK_MS: u32 = 50;

/// Milliseconds between warnings that the target does not fence a path.
const LOG_MS: u32 = 10_000;

impl Head {
    /// Records that the session of this epoch on `path`, which was the disk's, ends. Called before
    /// its requests return to the block layer.
    pub(crate) fn set_unfenced(&self, path: u8, epoch: Epoch) {
        self.last_sessions.lock().end(path, epoch);
    }

    /// Records that the target has granted a session of `epoch` and `origin` on `path`, which does
    /// not belong to the disk yet.
    pub(crate) fn granted(&self, path: u8, epoch: Epoch, origin: &Origin) {
        self.last_sessions.lock().granted(path, epoch, origin);
    }

    /// Lets requests of `disk` use `queue`, the replacement of another queue in its session;
    /// `false`: the session is ending, and its requests may have been issued elsewhere
    /// already. Fails as [`HwQueues::add`].
    pub(crate) fn put_instead(
        &self,
        disk: &Attachment,
        queue: &Arc<Queue>,
        retired: &mut Retired,
    ) -> Result<bool> {
        let last_sessions = self.last_sessions.lock();
        if !last_sessions.is_live(disk.path(), disk.epoch()) {
            return Ok(false);
        }
        self.hw_queues.add(disk, queue, retired).map(|()| true)
    }

    /// Waits until no request of an ended session of `path` can reach the drive, or no path is
    /// live, or the disk is being removed; calls `meanwhile` repeatedly. Sleeps until the drive has
    /// finished. `disk` is the disk's name for the log.
    pub(crate) fn wait_for_fence(
        &self,
        disk: &impl Display,
        (path, epoch): (u8, Epoch),
        mut meanwhile: impl FnMut(),
    ) {
        let mut waited_ms = 0;
        loop {
            let last_sessions = self.last_sessions.lock();
            if !last_sessions.is_unfenced(path, epoch) || self.is_removed_within(0) {
                return;
            }
            let Some(asker) = self.hw_queues.asker() else {
                return;
            };
            drop(last_sessions);
            meanwhile();
            // On any other response, ask again: another path, or this one, may get a different one.
            if asker.ask_fence((path, epoch)) == Ok(true) {
                return self.last_sessions.lock().fenced(path, epoch);
            }
            if self.is_removed_within(ASK_MS) {
                return;
            }
            log_wait(disk, &mut waited_ms, path);
        }
    }

    /// Fences every path except that of `admin`, whose session, of `origin`, does not belong to the
    /// disk yet; checks `wanted` in between. Sleeps until the drive has finished. Fails when
    /// another export is in use or not fenced, the disk is being removed, the request fails, or
    /// `wanted` does. `disk` is the disk's name for the log.
    pub(crate) fn fence_others(
        &self,
        disk: &impl Display,
        admin: &AdminVolume,
        origin: &Origin,
        mut wanted: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut waited_ms = 0;
        loop {
            let obstacle = self
                .last_sessions
                .lock()
                .obstacle(admin.admin().path(), origin);
            let (path, last) = match obstacle {
                None => return Ok(()),
                Some(Obstacle::OtherExport) => return Err(Failure::OtherExport),
                Some(Obstacle::Unfenced(path, last)) => (path, last),
            };
            match admin.ask_fence((path, last))? {
                true => self.last_sessions.lock().fenced(path, last),
                false if self.is_removed_within(ASK_MS) => return Err(Failure::Forced),
                false => log_wait(disk, &mut waited_ms, path),
            }
            wanted()?;
        }
    }

    /// Calls `install`, which makes a session of `epoch` and `origin` on `path` the disk's, unless
    /// a new obstacle exists. Sleeps as `install` does.
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

/// Warns every [`LOG_MS`] that a path is still not fenced.
fn log_wait(disk: &impl Display, waited_ms: &mut u32, path: u8) {
    *waited_ms += ASK_MS;
    if *waited_ms % LOG_MS == 0 {
        pr_warn!(
            "{disk}: still waiting for the target to fence path {path}: its drive has not finished the requests of that path\n"
        );
    }
}
