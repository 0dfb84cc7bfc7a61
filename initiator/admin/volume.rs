// SPDX-License-Identifier: GPL-2.0

//! The requests about one volume of a session.
//!
//! Each volume has its own requests in flight ([`state`](super::state)), and callers that wait for
//! its responses: those of one volume wait for no response about another, except that the target's
//! receive buffers limit how many requests are in flight at all.

use super::{
    state::{
        Attachment,
        News,
        VolumeIndex,
        Watching, //
    },
    Admin, //
};
use crate::failure::{
    ConnectStep,
    Failure, //
};
use hcablk_core::{
    sync::Event,
    system::Deadline, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The callers that wait for responses about a volume.
#[pin_data]
pub(super) struct Waiters {
    /// A request to attach or detach the volume has a response, or will get none any more.
    #[pin]
    pub(super) attach_response: Event,
    /// Held during a fence request.
    #[pin]
    pub(super) fencing: Mutex<()>,
    #[pin]
    pub(super) fence_response: Event,
    /// The volume was reported, or no report will come any more.
    #[pin]
    pub(super) reported: Event,
    /// Held during a reservation request.
    #[pin]
    pub(super) reserver: Mutex<()>,
    #[pin]
    pub(super) reserve_response: Event,
}

impl Waiters {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                attach_response <- Event::new(),
                fencing <- new_mutex!(()),
                fence_response <- Event::new(),
                reported <- Event::new(),
                reserver <- new_mutex!(()),
                reserve_response <- Event::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Wakes all of them: no response will come any more.
    pub(super) fn wake(&self) {
        self.attach_response.set();
        self.fence_response.set();
        self.reserve_response.set();
        self.reported.set();
    }
}

/// The waiters of each volume that was added, by its index.
pub(super) struct AllWaiters(KVec<Option<Arc<Waiters>>>);

impl AllWaiters {
    /// Creates the table for `volumes` volumes at most. May sleep.
    pub(super) fn new(volumes: usize) -> Result<Self> {
        let mut places = KVec::with_capacity(volumes, GFP_KERNEL)?;
        for _ in 0..volumes {
            places.push(None, GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    /// Returns the waiters of a volume.
    pub(super) fn of(&self, volume: VolumeIndex) -> Option<Arc<Waiters>> {
        self.0.get(volume.get())?.clone()
    }

    /// Sets the waiters of a volume that is added, and returns those of the one that had the index
    /// before.
    fn set(&mut self, volume: VolumeIndex, waiters: Arc<Waiters>) -> Option<Arc<Waiters>> {
        self.0.get_mut(volume.get())?.replace(waiters)
    }
}

/// A volume of a session, on its admin queue pair. The user of the volume owns it; it and the
/// session refer to each other until the teardown. If it is dropped while the session is live, the
/// volume is detached.
pub(crate) struct AdminVolume {
    pub(super) admin: Arc<Admin>,
    pub(super) index: VolumeIndex,
    pub(super) waiters: Arc<Waiters>,
}

impl Admin {
    /// Makes places for `volumes` volumes. May sleep.
    pub(super) fn places(volumes: usize) -> Result<KVec<Attachment>> {
        let mut places = KVec::with_capacity(volumes, GFP_KERNEL)?;
        for _ in 0..volumes {
            places.push(Attachment::new(), GFP_KERNEL)?;
        }
        Ok(places)
    }

    /// Adds a volume to the session. May sleep. Fails with `ENOSPC` if the session has as many as
    /// it can.
    pub(crate) fn add_volume(self: &Arc<Self>) -> Result<AdminVolume> {
        let waiters = Waiters::new()?;
        let index = self.state.lock().add_volume().ok_or(ENOSPC)?;
        let former = self.waiters.lock().set(index, waiters.clone());
        drop(former);
        Ok(AdminVolume {
            admin: self.clone(),
            index,
            waiters,
        })
    }
}

impl Drop for AdminVolume {
    fn drop(&mut self) {
        let posted = {
            let mut state = self.admin.state.lock();
            state.leave(self.index);
            let detach = state.detach_due();
            self.admin.post(&mut state, detach)
        };
        self.admin.check(posted);
    }
}

impl AdminVolume {
    /// Returns the admin queue pair.
    pub(crate) fn admin(&self) -> &Arc<Admin> {
        &self.admin
    }

    /// Starts watching the volume. May sleep.
    pub(crate) fn watch(&self, watching: Watching) -> Result {
        let mut state = self.admin.state.lock();
        state.watch(self.index, watching);
        self.admin.send_watches(&mut state)
    }

    /// Returns the target's first report of the volume, which it sends right after the start of its
    /// use. Waits for it until `deadline`. Sleeps.
    pub(crate) fn first_news(&self, deadline: Deadline) -> Result<News, Failure> {
        let waited = self
            .waiters
            .reported
            .wait_interruptible_ms(deadline.left_ms());
        match (self.news(), waited) {
            (Some(news), _) => Ok(news),
            (None, Err(e)) => Err(Failure::of_wait(e, ConnectStep::Response)),
            (None, Ok(())) => Err(Failure::Disconnected),
        }
    }

    /// Returns the target's report, if the disk has not followed it yet.
    pub(crate) fn news(&self) -> Option<News> {
        self.admin.state.lock().news(self.index)
    }

    /// Records that the disk has followed the report that [`Self::news`] returned, and watches
    /// again. Any context.
    pub(crate) fn followed(&self) {
        let posted = {
            let mut state = self.admin.state.lock();
            state.followed(self.index);
            self.admin.send_watches(&mut state)
        };
        self.admin.check(posted);
    }
}
