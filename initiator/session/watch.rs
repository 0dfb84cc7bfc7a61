// SPDX-License-Identifier: GPL-2.0

//! The session's admin queue pair: from when on it watches, and what becomes of what the target tells.

use super::{
    Session,
    VolumeInfo,
    FOLLOW, //
};
use crate::{
    admin::{
        Admin,
        AdminOwner, //
    },
    failure::Failure, //
};
use hcablk_core::{
    proto::connect::Reply,
    sync::{
        atomic::Relaxed,
        defer::for_reclaim, //
    },
};
use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

impl Session {
    /// Returns the admin queue pair, unless the teardown is done with it.
    pub(crate) fn admin(&self) -> Option<Arc<Admin>> {
        self.admin.lock().clone()
    }

    /// Has the disk follow the limits that the session was told when it began. Any context.
    pub(crate) fn follow(self: &Arc<Self>) {
        self.limits_due.store(true, Relaxed);
        self.clone().on_news();
    }

    /// Returns whether the target has said anything while the session was brought up: it has granted that, or, where both sides
    /// prove who they are, challenged it, before which there is no admin queue pair.
    pub(crate) fn was_answered(&self, is_proven: bool) -> bool {
        self.admin()
            .is_some_and(|admin| is_proven || admin.is_of_target())
    }

    /// Begins to watch the volume, and the target, after the admin queue pair was connected, as that has said by `reply`: its portals,
    /// and its write cache, if it reports these. Fails if the disk sends no flushes, on which a target relies that does not report its
    /// write cache.
    pub(crate) fn watch(&self, volume: &VolumeInfo, reply: &Reply) -> Result<(), Failure> {
        let flushes = match self.head.has_begun() {
            true => self.head.flushes(),
            false => volume.geometry.write_cache,
        };
        let cache = volume.geometry.write_cache;
        if cache && !flushes && !reply.tells_cache {
            return Err(Failure::OtherLimits);
        }
        let known = volume.state(reply.tells_cache.then_some(cache));
        let flushes = flushes && reply.tells_cache;
        self.admin()
            .ok_or(Failure::Disconnected)?
            .go_live(
                self.workqueues.keep_alive(),
                (known, flushes),
                reply.tells_portals,
            )
            .map_err(|e| Failure::Setup("the admin queue pair", e))
    }
}

impl AdminOwner for Session {
    fn admin_failed(self: Arc<Self>, failure: Failure) {
        self.fail(failure);
    }

    fn is_behind(&self) -> bool {
        self.limits_due.load(Relaxed)
    }

    fn on_news(self: Arc<Self>) {
        // If that is queued already it has yet to look.
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
        let news = admin.news();
        if news.is_some_and(|now| for_reclaim(|| this.owner.follow(&this, now))) {
            admin.followed();
        }
        if this.is_behind() && for_reclaim(|| this.owner.follow_limits(&this)) {
            this.limits_due.store(false, Relaxed);
        }
        let portals = admin.portals_news();
        if portals.is_some_and(|generation| this.owner.tell_portals(generation)) {
            admin.portals_followed();
        }
    }
}
