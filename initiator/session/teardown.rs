// SPDX-License-Identifier: GPL-2.0

//! The end of a session, in the steps that `session.rs` lists.

use super::{
    Session,
    TEARDOWN, //
};
use crate::io::Queue;
use hcablk_core::{
    blkdev::{
        ByAge,
        Status, //
    },
    report::trace,
    sync::defer::for_reclaim, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

impl Session {
    fn tear_down(self: &Arc<Self>) {
        drop(self.keep_alive_timer.lock().take());
        self.port.leave();
        // Requests go by other paths at once, also while a queue pair that is being replaced
        // drains.
        self.stop_queues();
        let _alone = self.closing.lock();
        // There may be another one in its place.
        self.stop_queues();
        self.close_queues();
        let again = self.fence_own();
        self.end_parked(again);
        self.end_released(again);
        self.device.queues_closed(&self.queues, &self.admin);
        let failure = self.failure();
        self.state.lock().finish();
        self.comes_to(trace::State::Ended);
        self.ended.set();
        if let Some(failure) = failure {
            self.device.clone().session_failed(self, failure);
        }
    }

    /// Returns the queues. None comes any more, and they stay listed until they are closed: their
    /// counters are read there.
    fn closing_queues(&self) -> impl Iterator<Item = Arc<Queue>> + '_ {
        (0..).map_while(|index| self.queue(index))
    }

    /// Has the queues accept nothing more, and tells the owner.
    fn stop_queues(&self) {
        for queue in self.closing_queues() {
            queue.stop();
            // Whether that is news or not.
            let _ = queue.is_not_replaced();
        }
        self.requests.synchronize();
        // Not before: if it is made a path of the disk from here on, no request goes by it.
        if self.is_admitted() {
            self.head.set_unfenced(self.path(), self.epoch);
            if let Some(failure) = self.failure() {
                self.device.session_ending(self, failure);
            }
        }
        // Who was told to wait for another queue pair has put its requests back by now, and shall
        // hear that none comes.
        self.requests.run_hw_queues();
    }

    /// Takes all queue pairs down.
    fn close_queues(&self) {
        let admin = self.admin();
        let asks = self.is_to_ask_durable();
        if let Some(admin) = admin.as_ref().filter(|_| !asks) {
            admin.shut();
        }
        for queue in self.closing_queues() {
            queue.begin_close();
        }
        for queue in self.closing_queues() {
            queue.close();
        }
        let is_last = self.close();
        let Some(admin) = &admin else {
            return;
        };
        if asks && is_last {
            self.ask_durable(admin);
        }
        admin.take_down();
        if self.is_to_be_followed() && !self.lacks_device() {
            // It is never replaced: queue pairs that are have let go of theirs.
            *self.watched.lock() = admin.id();
        } else {
            admin.pair().detach();
        }
    }

    /// Ends the requests that the target did not answer, or has them issued `again`.
    fn end_parked(&self, again: bool) {
        // Of a session that was not made a path none is parked; those on a path of this number are
        // another's.
        let admitted = self.is_admitted();
        let mut requeued = ByAge::new();
        for (index, queue) in self.closing_queues().enumerate().filter(|_| admitted) {
            self.requests
                .for_each_parked_of(index as u32, self.path(), |request| {
                    if again {
                        queue.requeue(request, &mut requeued);
                    } else {
                        queue.abandon(request);
                    }
                });
        }
        requeued.requeue();
    }

    /// Lets go of the RDMA device, which waits for that, while the requests wait for the fence:
    /// with all queues, when the device does not reach any request's memory any more. Nothing
    /// happens when that is done.
    fn release_device(&self) {
        for (index, queue) in self.closing_queues().enumerate() {
            self.requests
                .for_each_parked_of(index as u32, self.path(), |request| queue.release(request));
        }
        self.device.queues_closed(&self.queues, &self.admin);
        if let Err(e) = self.head.hw_queues().remove(self.path()) {
            pr_warn!(
                "{}: path {} does not let its RDMA device go (error {})\n",
                *self.device,
                self.path(),
                e.to_errno()
            );
        }
        self.let_go();
        let pd = self.pd.lock().take();
        drop(pd);
    }

    /// Does as [`Self::end_parked`] with what queues had whose device was let go of.
    fn end_released(&self, again: bool) {
        if !self.is_admitted() || self.pd.lock().is_some() {
            return;
        }
        let mut count = 0;
        let mut requeued = ByAge::new();
        self.requests.for_each_parked(self.path(), |request| {
            count += 1;
            match again {
                true => requeued.push(request),
                false => request.end(Status::Transport),
            }
        });
        requeued.requeue();
        let (again, failed) = if again { (count, 0) } else { (0, count) };
        self.device.count_ended(again, failed);
    }

    /// Waits until nothing that was sent can come after its retry by another path; returns whether
    /// requests are to be issued again.
    fn fence_own(&self) -> bool {
        if self.is_admitted() {
            self.head.wait_for_fence(self.path(), self.epoch, || {
                if self.lacks_device() {
                    self.release_device();
                }
            });
        }
        !self.head.goes_within(0) && (self.is_to_be_followed() || self.device.has_other_paths(self))
    }
}

impl WorkItem<TEARDOWN> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Who reclaims memory may wait for this disk's requests.
        for_reclaim(|| this.tear_down());
    }
}
