// SPDX-License-Identifier: GPL-2.0

//! Sums up a device's counters and measurements, those of destroyed queues included.

use super::Device;
use crate::{
    admin::Admin,
    io::{
        Queue,
        QueueUser, //
    },
    stats::{
        AdminCounts,
        Done,
        Ended,
        Sent,
        Times,
        Wakeups, //
    },
};
use hcablk_core::report::stats::Counter;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The sums of destroyed queues.
#[derive(Default)]
pub(super) struct DestroyedQueues {
    sent: Sent,
    ended: Ended,
    done: Done,
    admin: AdminCounts,
    wakeups: Wakeups,
    times: Times,
}

impl DestroyedQueues {
    fn absorb(&self, queue: &Queue, device: &Device) {
        self.sent.absorb(&queue.sent);
        self.done.absorb(&queue.done);
        self.wakeups.absorb(&queue.wakeups());
        for user in device.users_of(queue) {
            self.ended.absorb(&user.ended);
            self.times.absorb(&user.times);
        }
    }

    fn absorb_admin(&self, admin: &Admin) {
        self.admin.absorb(&admin.counts);
        self.done.protocol_errors.add(admin.protocol_errors.get());
    }
}

impl Device {
    /// Returns the users of `queue` that are attachments of this disk.
    pub(super) fn users_of<'a>(
        &'a self,
        queue: &'a Queue,
    ) -> impl Iterator<Item = Arc<QueueUser>> + 'a {
        let is_own =
            move |user: &Arc<QueueUser>| core::ptr::eq(&**user.attachment().device(), self);
        queue.users().filter(is_own)
    }

    /// Removes a session's closed queues and its admin queue pair, and keeps their counts. A
    /// concurrent sum includes each of them once.
    pub(super) fn retire(
        &self,
        queues: &Mutex<KVec<Arc<Queue>>>,
        admin: &Mutex<Option<Arc<Admin>>>,
    ) {
        let destroyed_queues = self.destroyed_queues.lock();
        let queues = core::mem::take(&mut *queues.lock());
        for queue in queues.iter() {
            destroyed_queues.absorb(queue, self);
        }
        let admin = admin.lock().take();
        if let Some(admin) = &admin {
            destroyed_queues.absorb_admin(admin);
        }
        drop(destroyed_queues);
    }

    /// Retires a single queue as [`Self::retire`] retires all, and puts `new` in its place.
    pub(super) fn retire_one(&self, queues: &Mutex<KVec<Arc<Queue>>>, index: u32, new: Arc<Queue>) {
        let destroyed_queues = self.destroyed_queues.lock();
        let mut queues = queues.lock();
        if let Some(place) = queues.get_mut(index as usize) {
            let old = core::mem::replace(place, new);
            destroyed_queues.absorb(&old, self);
        }
    }

    /// Counts requests of retired queues: how many are issued again, and how many failed.
    pub(super) fn count_past(&self, again: u64, failed: u64) {
        let destroyed_queues = self.destroyed_queues.lock();
        destroyed_queues.ended.retries.add(again);
        destroyed_queues.ended.errors.add(failed);
    }

    /// Returns the number of requests that all queues of the device have ever completed. Process
    /// context.
    pub(super) fn completed(&self) -> u64 {
        let mut completed = 0;
        // Locked as in `sum`.
        let destroyed_queues = self.destroyed_queues.lock();
        let sessions = self.shown.lock().sessions.clone();
        for session in sessions.iter().flatten() {
            let queues = session.session();
            queues.for_each_queue(|queue| {
                for user in self.users_of(queue) {
                    completed += user.ended.completed();
                }
            });
        }
        completed + destroyed_queues.ended.completed()
    }

    /// Returns the sum over all queues that the device has ever had.
    fn sum(&self) -> DestroyedQueues {
        let sum = DestroyedQueues::default();
        // Held until the end: queues are retired under it.
        let destroyed_queues = self.destroyed_queues.lock();
        let sessions = self.shown.lock().sessions.clone();
        for session in sessions.iter().flatten() {
            session
                .session()
                .for_each_queue(|queue| sum.absorb(queue, self));
            if let Some(admin) = session.session().admin() {
                sum.absorb_admin(&admin);
            }
        }
        sum.sent.absorb(&destroyed_queues.sent);
        sum.ended.absorb(&destroyed_queues.ended);
        sum.done.absorb(&destroyed_queues.done);
        sum.admin.absorb(&destroyed_queues.admin);
        sum.wakeups.absorb(&destroyed_queues.wakeups);
        sum.times.absorb(&destroyed_queues.times);
        sum
    }

    /// Calls `f` with the name and value of every counter.
    pub(crate) fn counters(&self, mut f: impl FnMut(&'static str, &Counter) -> Result) -> Result {
        let sum = self.sum();
        sum.ended.for_each(&mut f)?;
        sum.done.for_each(&mut f)?;
        sum.sent.for_each(&mut f)?;
        sum.admin.for_each(&mut f)?;
        sum.wakeups.for_each(&mut f)
    }

    /// Returns the durations of requests in each state.
    pub(crate) fn times(&self) -> Times {
        self.sum().times
    }

    /// Sets whether to measure the durations of requests, from now on and across connections.
    pub(crate) fn set_timing(&self, on: bool) {
        let mut shown = self.shown.lock();
        shown.timing = on;
        for session in shown.sessions.iter().flatten() {
            let queues = session.session();
            queues.for_each_queue(|queue| {
                for user in self.users_of(queue) {
                    user.set_timing(on);
                }
            });
        }
    }
}
