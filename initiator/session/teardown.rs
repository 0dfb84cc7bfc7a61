// SPDX-License-Identifier: GPL-2.0

//! The end of a session, in the steps that `session.rs` lists.

use super::{
    Attachment,
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
        for disk in self.attachments() {
            disk.detach();
        }
        self.close_queues();
        for disk in self.attachments() {
            let again = self.fence(&disk);
            self.end_parked(&disk, again);
            disk.end_released(again);
        }
        self.retire_queues();
        let failure = self.failure();
        // They refer to the session.
        let disks = core::mem::take(&mut *self.attachments.lock());
        self.state.lock().finish();
        self.trace_state(trace::ConnectionState::Ended);
        self.ended.set();
        if let Some(failure) = failure {
            for disk in disks.iter() {
                disk.device().clone().session_failed(disk, failure);
            }
        }
    }

    /// Moves the counts of the closed queue pairs to the disks, and releases the queue pairs. Does
    /// nothing the second time.
    fn retire_queues(&self) {
        for disk in self.attachments() {
            disk.device().queues_closed(&self.queues, &self.admin);
            disk.release_admin();
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
        self.synchronize();
        for disk in self.attachments() {
            // Checked only now: if the session becomes a path of the disk from here on, no request
            // uses it.
            if disk.is_admitted() {
                disk.set_unfenced();
                if let Some(failure) = self.failure() {
                    disk.device().session_ending(&disk, failure);
                }
            }
            // Requests that waited for a replacement queue pair have been put back by now; the run
            // fails them or moves them to another path.
            disk.dispatch().run_hw_queues();
        }
    }

    /// Waits until every function that issues requests of the disks and runs now has returned. One
    /// grace period is enough for all.
    pub(super) fn synchronize(&self) {
        if let Some(disk) = self.attachments().next() {
            disk.dispatch().synchronize();
        }
    }

    /// Takes all queue pairs down.
    fn close_queues(&self) {
        let admin = self.admin();
        let asks = self.attachments().any(|disk| disk.is_to_ask_durable());
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
        for disk in self.attachments() {
            let is_last = disk.close();
            let asks = is_last && disk.is_to_ask_durable();
            if let Some(volume) = disk.admin().filter(|_| asks) {
                disk.ask_durable(&volume);
            }
        }
        let Some(admin) = &admin else {
            return;
        };
        admin.take_down();
        if self.is_to_be_followed() && !self.lacks_device() {
            // The admin queue pair is never replaced: replaced ones have detached their
            // identifiers.
            *self.watched.lock() = admin.id();
        } else {
            admin.pair().detach();
        }
    }

    /// Ends the requests of a disk that have no response, or, if `again`, returns them to be issued
    /// again.
    fn end_parked(&self, disk: &Attachment, again: bool) {
        let mut requeued = ByAge::new();
        for queue in self.closing_queues() {
            match again {
                true => queue.requeue_all(disk, &mut requeued),
                false => queue.abandon_all(disk),
            }
        }
        requeued.requeue();
    }

    /// Releases the RDMA device and all queues, once the device cannot reach the memory of any
    /// request. The requests may still wait for the fence; the removal of the device must not. Does
    /// nothing the second time.
    fn release_device(&self) {
        for disk in self.attachments() {
            let mut released = disk.released.lock();
            for queue in self.closing_queues() {
                released.count += queue.release_all(&disk, &mut released.requests);
            }
        }
        self.retire_queues();
        for disk in self.attachments() {
            disk.remove_queues();
        }
        self.stop_device_watch();
        let pd = self.pd.lock().take();
        drop(pd);
    }

    /// Waits until no request of the disk that was sent can overtake its retry on another path;
    /// returns whether its requests must be issued again.
    fn fence(&self, disk: &Attachment) -> bool {
        disk.wait_for_fence(|| {
            if self.lacks_device() {
                self.release_device();
            }
        });
        !disk.head().is_removed_within(0)
            && (disk.is_to_be_followed() || disk.device().has_other_paths(disk))
    }
}

impl Attachment {
    /// Ends, as [`Session::end_parked`] does, the requests of queues whose device was released.
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
        self.device().count_ended(again, failed);
    }
}

impl WorkItem<TEARDOWN> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Memory reclaim may wait for this disk's requests.
        for_reclaim(|| this.tear_down());
    }
}
