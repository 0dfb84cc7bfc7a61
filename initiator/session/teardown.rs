// SPDX-License-Identifier: GPL-2.0

//! The end of a session, in the steps that `session.rs` lists.

use super::{
    Session,
    TEARDOWN, //
};
use crate::io::{
    Driver,
    Queue, //
};
use hcablk_core::{
    blkdev::{
        ByAge,
        Status, //
    },
    report::trace,
    sync::defer::for_reclaim, //
};
use kernel::{
    sync::Arc,
    workqueue::WorkItem, //
};

/// The requests of queues whose RDMA device was released before they could end.
#[derive(Default)]
pub(super) struct Released {
    requests: ByAge<Driver>,
    count: u64,
}

impl Session {
    fn tear_down(self: &Arc<Self>) {
        drop(self.keep_alive_timer.lock().take());
        self.port.leave();
        // Requests move to other paths at once, even while a queue pair that is being replaced
        // drains.
        self.stop_queues();
        let _alone = self.closing.lock();
        // The replacement may have added a new queue.
        self.stop_queues();
        self.detach();
        self.close_queues();
        let again = self.fence_own();
        self.end_parked(again);
        self.end_released(again);
        let device = self.attachment.device();
        device.queues_closed(&self.queues, &self.admin);
        self.attachment.release_admin();
        let failure = self.failure();
        self.state.lock().finish();
        self.trace_state(trace::ConnectionState::Ended);
        self.ended.set();
        if let Some(failure) = failure {
            device.clone().session_failed(self, failure);
        }
    }

    /// Returns the queues. No queue is added any more, and closed ones stay listed until their
    /// counters are retired.
    fn closing_queues(&self) -> impl Iterator<Item = Arc<Queue>> + '_ {
        (0..).map_while(|index| self.queue(index))
    }

    /// Stops the queues, and notifies the owner.
    fn stop_queues(&self) {
        for queue in self.closing_queues() {
            queue.stop();
            // The replacement may have cleared the mark already.
            let _ = queue.clear_timed_out();
        }
        self.attachment.dispatch().synchronize();
        // Checked only now: if the session becomes a path of the disk from here on, no request uses
        // it.
        if self.attachment.is_admitted() {
            self.attachment.set_unfenced();
            if let Some(failure) = self.failure() {
                self.attachment.device().session_ending(self, failure);
            }
        }
        // Requests that waited for a replacement queue pair have been put back by now; the run
        // fails them or moves them to another path.
        self.attachment.dispatch().run_hw_queues();
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
            queue.drain();
        }
        for queue in self.closing_queues() {
            queue.close();
        }
        let is_last = self.attachment.close();
        let Some(admin) = &admin else {
            return;
        };
        if let Some(volume) = self.attachment.admin().filter(|_| asks && is_last) {
            self.ask_durable(&volume);
        }
        admin.take_down();
        if self.is_to_be_followed() && !self.lacks_device() {
            // The admin queue pair is never replaced: replaced ones have detached their
            // identifiers.
            *self.watched.lock() = admin.id();
        } else {
            admin.pair().detach();
        }
    }

    /// Ends the requests that have no response, or, if `again`, returns them to be issued again.
    fn end_parked(&self, again: bool) {
        let mut requeued = ByAge::new();
        for queue in self.closing_queues() {
            match again {
                true => queue.requeue_all(&mut requeued),
                false => queue.abandon_all(),
            }
        }
        requeued.requeue();
    }

    /// Releases the RDMA device and all queues, once the device cannot reach the memory of any
    /// request. The requests may still wait for the fence; the removal of the device must not. Does
    /// nothing the second time.
    fn release_device(&self) {
        {
            let mut released = self.released.lock();
            for queue in self.closing_queues() {
                released.count += queue.release_all(&mut released.requests);
            }
        }
        let device = self.attachment.device();
        device.queues_closed(&self.queues, &self.admin);
        self.attachment.release_admin();
        self.attachment.remove_queues();
        self.stop_device_watch();
        let pd = self.pd.lock().take();
        drop(pd);
    }

    /// Ends, as [`Self::end_parked`] does, the requests of queues whose device was released.
    fn end_released(&self, again: bool) {
        let Released {
            mut requests,
            count,
        } = core::mem::take(&mut *self.released.lock());
        match again {
            true => requests.requeue(),
            false => requests.end(Status::Transport),
        }
        let (again, failed) = if again { (count, 0) } else { (0, count) };
        self.attachment.device().count_ended(again, failed);
    }

    /// Waits until no request that was sent can overtake its retry on another path; returns whether
    /// the requests must be issued again.
    fn fence_own(&self) -> bool {
        self.attachment.wait_for_fence(|| {
            if self.lacks_device() {
                self.release_device();
            }
        });
        !self.attachment.head().is_removed_within(0)
            && (self.is_to_be_followed() || self.attachment.device().has_other_paths(self))
    }
}

impl WorkItem<TEARDOWN> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Memory reclaim may wait for this disk's requests.
        for_reclaim(|| this.tear_down());
    }
}
