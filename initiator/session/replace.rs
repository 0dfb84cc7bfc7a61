// SPDX-License-Identifier: GPL-2.0

//! A queue whose requests are not answered in time.
//!
//! The target may have lost an answer, or its drive takes long; the session's other queues
//! may be well. So only that queue pair is given up, and another one takes its place:
//!
//! ```text
//!         timeout                 connected              closed, exchanged
//!  Live ──────────► Timed out ──────────────► Replaced ──────────────────► (the new one is Live)
//!                       │
//!                       ├── its turn has come, and all that was late was answered by then: it is Live again
//!                       └── the session ends, or no other queue pair in time: the session fails
//! ```
//!
//! 1. The queue accepts nothing, at once: the block layer keeps what it has for it. What the target
//!    answers still ends as ever. One queue of a session is replaced at a time, so it may wait for
//!    its turn.
//! 2. A queue pair that says whose place it takes is connected. The target takes its side
//!    of the old one down, and grants the new one when the drive has finished what it had begun for
//!    that: nothing of it comes after what is issued again.
//! 3. The old queue pair is failed and drained, and its requests, each after its memory region was
//!    destroyed, are given back to the block layer to be issued again.
//! 4. The hardware queue gets the new queue, and is run.
//!
//! It happens under [`Session::closing`], in process context and without waiting for memory
//! (`for_reclaim`): a request that this would wait for may be one of these. The old queue is freed
//! once nothing of the block layer runs on it.

use super::{
    Session,
    State,
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
        connect::{
            Reply,
            Request, //
        },
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
        for index in 0..self.queue_count() {
            let Some(old) = self
                .queue(index.into())
                .filter(|queue| queue.is_timed_out())
            else {
                continue;
            };
            if *self.state.lock() != State::Live {
                // The teardown waits, and will see to it.
                return;
            }
            // While it waited for its turn.
            if old.has_caught_up() {
                pr_info!(
                    "{}: queue {index} has answered, though not in time\n",
                    *self.device
                );
                self.requests.synchronize();
                self.requests.run_hw_queue(index.into());
                continue;
            }
            match self.replace(index, &old) {
                Ok(()) => pr_warn!(
                    "{}: queue {index} did not answer in time and was replaced\n",
                    *self.device
                ),
                Err(failure) => {
                    pr_warn!(
                        "{}: queue {index} did not answer in time and cannot be replaced: {failure}\n",
                        *self.device
                    );
                    self.fail(Failure::RequestTimeout);
                    // What has waited shall hear of it.
                    // Whether that is news or not.
                    let _ = old.is_not_replaced();
                    // Who has been told to wait has put its requests back: the run finds them.
                    self.requests.synchronize();
                    return self.requests.run_hw_queue(index.into());
                }
            }
        }
    }

    fn replace(self: &Arc<Self>, index: u8, old: &Arc<Queue>) -> Result<(), Failure> {
        old.stop();
        // Who was refused just now may go by another path meanwhile.
        self.requests.synchronize();
        self.requests.run_hw_queue(index.into());
        // What the target does to the old one is no news any more.
        old.pair().detach();
        let (address, request) = self
            .connection_request(index, true)
            .ok_or(Failure::Unset("address"))?;
        let deadline = Deadline::new(self.settings.connect_timeout_s.saturating_mul(1000));
        let (new, reply) = connect::bring_up_instead(self, &address, request, deadline)?;
        new.time(old.is_timed());
        let live = if self.is_same_volume(&reply) {
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
        self.requests.synchronize();
        old.close();
        let mut requeued = ByAge::new();
        self.requests
            .for_each_parked_of(index.into(), self.path(), |request| {
                old.requeue(request, &mut requeued)
            });
        requeued.requeue();
        old.was_replaced();
        // The teardown has it from here on.
        self.device
            .queue_replaced(&self.queues, index.into(), new.clone());
        let mut retired = Retired::new();
        let put = self
            .head
            .put_instead((self.path(), self.epoch), &new, &mut retired)
            .map_err(|e| Failure::Setup("yet another queue pair", e))?;
        // Who was refused by the old queue is waiting then.
        drop(retired);
        if !put {
            return Err(self.failure().unwrap_or(Failure::Disconnected));
        }
        self.requests.run_hw_queue(index.into());
        Ok(())
    }

    /// Returns the target's address.
    fn address(&self) -> Option<SocketAddr> {
        let settings = &self.settings;
        Some(SocketAddr::new(settings.address?, settings.port))
    }

    /// Returns of which export it is, by what the target has told of the volume. Fails if the
    /// address is not set.
    pub(crate) fn origin(&self, volume: &VolumeInfo) -> Result<Origin, Failure> {
        let instance = volume.instance;
        let address = self.address().ok_or(Failure::Unset("address"))?;
        Ok(Origin { address, instance })
    }

    /// Returns the target's address and the connection request of a queue pair, in place of another
    /// one or not.
    pub(crate) fn connection_request(
        &self,
        queue: u8,
        replace: bool,
    ) -> Option<(SocketAddr, Request)> {
        let settings = &self.settings;
        let request = Request {
            version_min: settings.protocol.0,
            version_max: settings.protocol.1,
            depth: self.shape.depth,
            queue,
            replace,
            queues: self.queue_count(),
            resume: self.head.has_begun(),
            largest: self.shape.bytes.max(TRANSFER_USUAL),
            session: self.id,
            epoch: self.epoch,
            host: settings.host?,
            volume: Some(settings.volume?),
        };
        Some((self.address()?, request))
    }

    /// Returns whether it is what the disk was made of; it may have another size by now, or be
    /// read-only.
    fn is_same_volume(&self, reply: &Reply) -> bool {
        self.volume().is_some_and(|volume| volume.is_in(reply))
    }
}

impl WorkItem<REPLACE> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for_reclaim(|| this.replace_queues());
    }
}
