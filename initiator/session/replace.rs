// SPDX-License-Identifier: GPL-2.0

//! Replaces a queue whose requests time out.
//!
//! The target may have lost a response, or its drive is slow; the session's other queues may be
//! fine. So only this queue pair is given up, and a new one replaces it:
//!
//! ```text
//!         timeout                 connected              closed, exchanged
//!  Live ──────────► Timed out ──────────────► Replaced ──────────────────► (the new one is Live)
//!                       │
//!                       ├── its turn has come, and all late responses have arrived: it is Live again
//!                       └── the session ends, or no new queue pair in time: the session fails
//! ```
//!
//! 1. The queue stops accepting requests at once: the block layer holds them back. Responses of the
//!    target still end requests. Only one queue of a session is replaced at a time, so the queue
//!    may wait for its turn.
//! 2. A new queue pair is connected, with a request that names the old one. The target takes its
//!    side of the old one down, and grants the new one when the drive has finished the old one's
//!    requests: none of them can overtake its retry.
//! 3. The old queue pair is failed and drained, and its requests, each after its memory region was
//!    destroyed, return to the block layer to be issued again.
//! 4. The hardware queue gets the new queue, and is run.
//!
//! All of this happens under [`Session::closing`], in process context and without waiting for
//! memory (`for_reclaim`): a wait for memory may depend on one of these requests. The old queue is
//! freed once the block layer has stopped using it.

use super::{
    Session,
    SessionState,
    VolumeInfo,
    REPLACE, //
};
use crate::{
    connect,
    failure::{
        Failure,
        Violation, //
    },
    head::Origin,
    io::{
        Queue,
        Retired, //
    },
};
use core::net::SocketAddr;
use hcablk_core::{
    blkdev::ByAge,
    proto::{
        connect::ConnectRequest,
        QUEUES_MAX,
        TRANSFER_USUAL, //
    },
    sync::defer::for_reclaim,
    system::Deadline, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};

impl Session {
    fn replace_queues(self: &Arc<Self>) {
        let _alone = self.closing.lock();
        self.resume_caught_up();
        for index in 0..self.queue_count() {
            let Some(old) = self
                .queue(index.into())
                .filter(|queue| queue.is_timed_out())
            else {
                continue;
            };
            if *self.state.lock() != SessionState::Live {
                // The teardown waits for this lock, and ends the requests.
                return;
            }
            match self.replace(index, &old) {
                Ok(()) => pr_warn!(
                    "{}: queue {index} of path {} did not respond in time and was replaced\n",
                    self.name(),
                    self.path()
                ),
                Err(failure) => {
                    pr_warn!(
                        "{}: queue {index} of path {} did not respond in time and cannot be replaced: {failure}\n",
                        self.name(),
                        self.path()
                    );
                    self.fail(Failure::RequestTimeout);
                    // The queue run below makes the waiting requests fail. The teardown may have
                    // cleared the mark already.
                    let _ = old.clear_timed_out();
                    // After this every waiting request is in the block layer again, so the queue
                    // run finds it.
                    self.synchronize();
                    return self.run_hw_queue(index);
                }
            }
            // The replacement waited for the drive: meanwhile late responses of the other queues
            // may have arrived.
            self.resume_caught_up();
        }
    }

    /// Returns to service every timed-out queue whose late responses have all arrived. After a
    /// pause of the drive these are all queues of the session, so one grace period covers them.
    fn resume_caught_up(&self) {
        if *self.state.lock() != SessionState::Live {
            // The teardown waits for `closing`, and ends the requests.
            return;
        }
        // A bit for each queue.
        const { assert!(QUEUES_MAX as u32 <= u128::BITS) };
        let mut resumed = 0_u128;
        for index in 0..self.queue_count() {
            let queue = self.queue(index.into());
            if queue.is_some_and(|queue| queue.is_timed_out() && queue.try_resume()) {
                resumed |= 1 << index;
            }
        }
        if resumed == 0 {
            return;
        }
        // After this every refused request is in the block layer again, so the queue runs find it.
        self.synchronize();
        for index in (0..self.queue_count()).filter(|index| resumed & (1 << index) != 0) {
            pr_info!(
                "{}: queue {index} of path {} has received its late responses and stays in use\n",
                self.name(),
                self.path()
            );
            self.run_hw_queue(index);
        }
    }

    /// Runs hardware queue `index` of each disk.
    fn run_hw_queue(&self, index: u8) {
        for disk in self.attachments() {
            disk.dispatch().run_hw_queue(index.into());
        }
    }

    fn replace(self: &Arc<Self>, index: u8, old: &Arc<Queue>) -> Result<(), Failure> {
        old.stop();
        // Requests that the queue has refused may use another path meanwhile: the run issues them.
        self.synchronize();
        self.run_hw_queue(index);
        // From here on an error of the old queue pair does not end the session.
        old.pair().detach();
        let (address, request) = self
            .connection_request(index, true)
            .ok_or(Failure::Unset("address"))?;
        let deadline = Deadline::new(self.settings.connect_timeout_s.saturating_mul(1000));
        let (new, reply) = connect::bring_up_instead(self, &address, request, deadline)?;
        new.time_as(old);
        let live = if self.attachments().all(|disk| disk.agrees(&reply)) {
            new.go_live(&reply)
                .map_err(|e| Failure::Setup("a queue pair", e))
        } else {
            Err(Failure::Protocol(Violation::new(
                "its queues disagree about the volume",
                None,
            )))
        };
        if let Err(failure) = live {
            new.close();
            return Err(failure);
        }
        self.synchronize();
        old.close();
        for disk in self.attachments() {
            let mut requeued = ByAge::new();
            old.requeue_all(&disk, &mut requeued);
            requeued.requeue();
        }
        old.count_replaced();
        // The teardown owns the queue from here on.
        if let Some(first) = self.attachments().next() {
            first
                .device()
                .queue_replaced(&self.queues, index.into(), new.clone());
        }
        let mut retired = Retired::new();
        let mut is_put = true;
        for disk in self.attachments() {
            is_put &= disk
                .head()
                .put_instead(&disk, &new, &mut retired)
                .map_err(|e| Failure::Setup("a replacement queue pair", e))?;
        }
        // Dropping waits: the requests that the old queue refused are put back by then.
        drop(retired);
        if !is_put {
            return Err(self.failure().unwrap_or(Failure::Disconnected));
        }
        self.run_hw_queue(index);
        Ok(())
    }

    /// Returns the target's address.
    fn address(&self) -> Option<SocketAddr> {
        let settings = &self.settings;
        Some(SocketAddr::new(settings.address?, settings.port))
    }

    /// Returns the identity of the export, from the target's report of the volume. Fails if the
    /// address is not set.
    pub(crate) fn origin(&self, volume: &VolumeInfo) -> Result<Origin, Failure> {
        let instance = volume.instance;
        let address = self.address().ok_or(Failure::Unset("address"))?;
        Ok(Origin { address, instance })
    }

    /// Returns the target's address and the connection request of a queue pair, which may replace
    /// an old one.
    pub(crate) fn connection_request(
        &self,
        queue: u8,
        replace: bool,
    ) -> Option<(SocketAddr, ConnectRequest)> {
        let settings = &self.settings;
        let request = ConnectRequest {
            version_min: self.offer.min,
            version_max: self.offer.max,
            depth: self.shape.depth,
            queue,
            replace,
            queues: self.queue_count(),
            resume: !self.offer.is_of_host
                && self.attachments().any(|disk| disk.head().has_begun()),
            alone: self.offer.is_of_host,
            largest: self.shape.bytes.max(TRANSFER_USUAL),
            session: self.id,
            epoch: self.epoch,
            host: settings.host?,
            volume: match self.offer.is_of_host {
                true => None,
                false => Some(settings.volume?),
            },
        };
        Some((self.address()?, request))
    }
}

impl WorkItem<REPLACE> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for_reclaim(|| this.replace_queues());
    }
}
