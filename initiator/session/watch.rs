// SPDX-License-Identifier: GPL-2.0

//! The session's use of its admin queue pair: when it starts watching, and how it handles the
//! target's notices.

use super::{
    Attachment,
    Session,
    VolumeInfo,
    FOLLOW, //
};
use crate::{
    admin::{
        Admin,
        AdminOwner,
        Watching, //
    },
    failure::{
        Failure,
        Violation, //
    },
};
use hcablk_core::{
    proto::{
        connect::Reply,
        message::VolumeLimits,
        ADMIN_QUEUE, //
    },
    sync::defer::for_reclaim,
    system::Deadline, //
};
use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

/// The violation of a target whose limits contradict each other.
pub(crate) const UNSOUND_LIMITS: &str = "the reported limits make no sense";

impl Session {
    /// Returns the admin queue pair, until the teardown has closed it.
    pub(crate) fn admin(&self) -> Option<Arc<Admin>> {
        self.admin.lock().clone()
    }

    /// Makes the disk follow the volume as reported when the session began. Any context.
    pub(crate) fn follow(self: &Arc<Self>) {
        self.clone().on_news();
    }

    /// Returns whether the target has responded during the setup of the session: with a grant or,
    /// where both sides prove their identity, with a challenge, before which there is no admin
    /// queue pair.
    pub(crate) fn has_responded(&self, is_proven: bool) -> bool {
        self.admin()
            .is_some_and(|admin| is_proven || admin.is_of_target())
    }

    /// Starts sending keep-alives, after `reply` has granted the admin queue pair, and follows the
    /// portals of a target that reports them. May sleep.
    pub(crate) fn begin(&self, reply: &Reply) -> Result<(), Failure> {
        let admin = self.admin().ok_or(Failure::Disconnected)?;
        admin
            .go_live(self.workqueues.keep_alive(), reply.tells_portals)
            .map_err(|e| Failure::Setup("the admin queue pair", e))
    }
}

impl Attachment {
    /// Starts watching the volume, which is attached: its size, its write cache, and its limits, if
    /// `reply` says that the target reports these. Returns the limits, waiting for them until
    /// `deadline`. Fails if the volume has a volatile write cache whose changes the target does not
    /// report, but the disk sends no flushes. Sleeps.
    pub(crate) fn watch(
        &self,
        volume: &VolumeInfo,
        reply: &Reply,
        deadline: Deadline,
    ) -> Result<Option<VolumeLimits>, Failure> {
        let head = self.head();
        let flushes = match head.has_begun() {
            true => head.flushes(),
            false => volume.geometry.write_cache,
        };
        let cache = volume.geometry.write_cache;
        if cache && !flushes && !reply.tells_cache {
            return Err(Failure::OtherLimits);
        }
        let known = volume.state(reply.tells_cache.then_some(cache));
        let watching = Watching {
            known,
            flushes: flushes && reply.tells_cache,
            limits: reply.tells_cache && reply.tells_limits,
        };
        let admin = self.admin().ok_or(Failure::Disconnected)?;
        admin
            .watch(watching)
            .map_err(|e| Failure::Setup("the admin queue pair", e))?;
        if !watching.limits {
            return Ok(None);
        }
        let limits = admin.first_news(deadline)?.limits.map(|(_, limits)| limits);
        if limits.is_some_and(|limits| !limits.is_sound(volume.geometry.logical_block_shift)) {
            return Err(Failure::Protocol(Violation::new(
                UNSOUND_LIMITS,
                Some(ADMIN_QUEUE),
            )));
        }
        Ok(limits)
    }
}

impl AdminOwner for Session {
    fn admin_failed(self: Arc<Self>, failure: Failure) {
        self.fail(failure);
    }

    fn is_behind(&self) -> bool {
        self.attachments().any(|disk| disk.head().limits_due())
    }

    fn on_news(self: Arc<Self>) {
        // Work that is queued already has not read the news yet.
        let _ = self
            .workqueues
            .teardown()
            .enqueue::<_, FOLLOW>(self.clone());
    }
}

impl WorkItem<FOLLOW> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(admin) = this.admin() else {
            return;
        };
        for disk in this.attachments() {
            let device = disk.device();
            if let Some(volume) = disk.admin() {
                let news = volume.news();
                if news.is_some_and(|now| for_reclaim(|| device.follow(&disk, now))) {
                    volume.followed();
                }
            }
            if disk.head().limits_due() {
                for_reclaim(|| device.follow_limits(&disk));
            }
        }
        let portals = admin.portals_news();
        let announce = |generation| {
            // Each disk has user space look at its own paths.
            this.attachments().fold(true, |all, disk| {
                disk.device().announce_portals(generation) && all
            })
        };
        if portals.is_some_and(announce) {
            admin.portals_followed();
        }
    }
}
