// SPDX-License-Identifier: GPL-2.0

//! The workqueues of paths.
//!
//! Each path has two workqueues of its own, since its work may wait a long time for a drive, a
//! target or an RDMA device. When memory is short, one thread (the *rescuer*) may have to do all
//! work of a queue, item after item: on a queue for several paths, work that waits for one target
//! would hold up the others. The teardown of a session waits until another path has fenced the
//! session. On a shared queue it could hold up the teardown of that other path's session, and the
//! fence would never succeed. A queue costs the memory of that thread, some 30 KiB. Keep-alives
//! wait for nothing, so one queue serves all paths.
//!
//! # Ownership
//!
//! A path and its sessions refer to its queues. Work on a queue may drop the last reference to that
//! queue, but cannot destroy it: destruction waits for the work. So a separate queue destroys the
//! queues of paths, and the module waits for that queue when it is unloaded ([`AllGone`]).

use hcablk_core::{
    report::broken::keep,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Event,
        WorkQueue, //
    },
};
use kernel::{
    impl_has_work,
    prelude::*,
    str::CString,
    sync::Arc,
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

/// The shared part of the paths' workqueues.
#[pin_data]
pub(crate) struct AllQueues {
    keep_alive: Arc<WorkQueue>,
    events: Arc<WorkQueue>,
    /// The queue that destroys the queues of paths.
    destroy: Arc<WorkQueue>,
    /// Number of paths that have ever had queues, modulo 2^32. It is part of the queues' names.
    made: Atomic<u32>,
    /// Number of paths that have queues now.
    count: Atomic<u32>,
    #[pin]
    changed: Event,
}

/// The workqueues of a path.
#[pin_data]
struct Queues {
    /// Dropped first: attempts to reconnect wait for work on the teardown queue.
    reconnect: WorkQueue,
    teardown: WorkQueue,
    all: Arc<AllQueues>,
    #[pin]
    work: Work<Queues>,
}

impl_has_work! {
    impl HasWork<Self> for Queues { self.work }
}

/// A path's workqueues.
pub(crate) struct WorkQueues {
    /// The only reference, until the destroying queue gets it.
    queues: Option<Arc<Queues>>,
    all: Arc<AllQueues>,
}

impl AllQueues {
    /// Creates the shared part of the paths' workqueues. Sleeps.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let keep_alive = Arc::new(WorkQueue::new(c"hcablk_keep_alive")?, GFP_KERNEL)?;
        let events = Arc::new(WorkQueue::new(c"hcablk_events")?, GFP_KERNEL)?;
        let destroy = Arc::new(WorkQueue::new(c"hcablk_destroy")?, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                keep_alive,
                events,
                destroy,
                made: Atomic::new(0),
                count: Atomic::new(0),
                changed <- Event::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the workqueue that sends uevents, which wait for memory.
    pub(crate) fn events(&self) -> &Arc<WorkQueue> {
        &self.events
    }

    /// Creates the workqueues of a path. Sleeps; creates threads, so memory reclaim must not wait
    /// for the caller. Fails with `ENOMEM`.
    pub(crate) fn of_path(self: &Arc<Self>) -> Result<Arc<WorkQueues>> {
        let number = self.made.fetch_add(1, Relaxed);
        let teardown = CString::try_from_fmt(fmt!("hcablk_teardown{number}"))?;
        let reconnect = CString::try_from_fmt(fmt!("hcablk_reconnect{number}"))?;
        let reconnect = WorkQueue::new(&reconnect)?;
        let teardown = WorkQueue::new(&teardown)?;
        let queues = Arc::pin_init(
            pin_init!(Queues {
                reconnect,
                teardown,
                all: self.clone(),
                work <- new_work!("hcablk::Queues"),
            }),
            GFP_KERNEL,
        )?;
        self.count.fetch_add(1, Full);
        let queues = WorkQueues {
            queues: Some(queues),
            all: self.clone(),
        };
        // On an error, the drop destroys the queues and counts them.
        Ok(Arc::new(queues, GFP_KERNEL)?)
    }
}

impl WorkQueues {
    /// Returns the workqueue that ends sessions, replaces queue pairs and follows the volume.
    pub(crate) fn teardown(&self) -> &WorkQueue {
        self.one(|queues| &queues.teardown)
    }

    /// Returns the workqueue that reconnects paths. Its work waits for work of [`Self::teardown`].
    pub(crate) fn reconnect(&self) -> &WorkQueue {
        self.one(|queues| &queues.reconnect)
    }

    /// Returns the workqueue that sends keep-alives. No work on it waits, so no keep-alive is late.
    pub(crate) fn keep_alive(&self) -> &Arc<WorkQueue> {
        &self.all.keep_alive
    }

    /// Returns one of the path's workqueues; while `self` is being dropped and has none, returns
    /// the shared queue that destroys them.
    fn one(&self, which: impl FnOnce(&Queues) -> &WorkQueue) -> &WorkQueue {
        self.queues.as_deref().map_or(&self.all.destroy, which)
    }
}

impl Drop for WorkQueues {
    fn drop(&mut self) {
        // No reference remains here: this may be dropped by work on one of the queues.
        if let Some(queues) = self.queues.take() {
            if let Err(queues) = self.all.destroy.enqueue(queues) {
                keep(
                    queues,
                    "the workqueues of a path are being destroyed already",
                );
            }
        }
    }
}

impl WorkItem for Queues {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let all = this.all.clone();
        drop(this);
        all.count.fetch_sub(1, Full);
        all.changed.set();
    }
}

/// A module's reference to the paths' workqueues. Dropping it waits until the queues of all paths
/// are destroyed, with everything that their work referred to. No new path may be created any more.
pub(crate) struct AllGone(pub(crate) Arc<AllQueues>);

impl Drop for AllGone {
    fn drop(&mut self) {
        while self.0.count.load(Acquire) != 0 {
            // The loop checks the count again whether the wait timed out or not.
            let _ = self.0.changed.wait_ms(1000);
            self.0.changed.reset();
        }
        self.0.events.drain();
        self.0.destroy.drain();
    }
}
