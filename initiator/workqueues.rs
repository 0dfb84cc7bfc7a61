// SPDX-License-Identifier: GPL-2.0

//! Where the work of paths is done.
//!
//! Each path has two workqueues of its own, since its work may have to wait for long (for a drive,
//! a target, an RDMA device). When memory is short, all work on a queue may have to be done by one
//! thread, one after the other (its *rescuer*): on a queue for several paths what waits for one
//! target would hold up the others. So the end of a session, which waits until another path has had
//! it fenced, would hold up that other one's end, without which it asks in vain. A queue costs the
//! memory of that thread, some 30 KiB. Keep-alives wait for nothing, so that there is one queue for
//! all.
//!
//! # Ownership
//!
//! A path and its sessions refer to its queues. The last of these may be dropped by work on them,
//! where they cannot be destroyed, since that waits for the work. So they are destroyed by work on
//! another queue, for which the module waits in the end ([`AllGone`]).

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

/// What the paths' workqueues have in common.
#[pin_data]
pub(crate) struct AllQueues {
    keep_alive: Arc<WorkQueue>,
    events: Arc<WorkQueue>,
    /// Destroys the queues of paths.
    destroy: Arc<WorkQueue>,
    /// How many paths ever had queues, with wrap: for their names.
    made: Atomic<u32>,
    /// How many have.
    count: Atomic<u32>,
    #[pin]
    changed: Event,
}

/// The workqueues of a path.
#[pin_data]
struct Queues {
    /// Dropped first: attempts wait for what is done on the other one.
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
    /// The only reference, until it is given to who destroys them.
    queues: Option<Arc<Queues>>,
    all: Arc<AllQueues>,
}

impl AllQueues {
    /// Makes what paths will have in common. Sleeps.
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

    /// Sends uevents, which wait for memory.
    pub(crate) fn events(&self) -> &Arc<WorkQueue> {
        &self.events
    }

    /// Makes the workqueues of a path. Sleeps; makes threads, so that nobody may be waited for here
    /// who reclaims memory. Fails with `ENOMEM`.
    pub(crate) fn of_path(self: &Arc<Self>) -> Result<Arc<WorkQueues>> {
        let number = self.made.fetch_add(1, Relaxed);
        let teardown = CString::try_from_fmt(fmt!("hcablk_end{number}"))?;
        let reconnect = CString::try_from_fmt(fmt!("hcablk_again{number}"))?;
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
        // What cannot be kept is destroyed, and counted.
        Ok(Arc::new(queues, GFP_KERNEL)?)
    }
}

impl WorkQueues {
    /// Ends sessions, replaces queue pairs and follows the volume.
    pub(crate) fn teardown(&self) -> &WorkQueue {
        self.one(|queues| &queues.teardown)
    }

    /// Connects again; waits for what is done on the other one.
    pub(crate) fn reconnect(&self) -> &WorkQueue {
        self.one(|queues| &queues.reconnect)
    }

    /// Sends keep-alives. Nothing waits there for anything, so that no target hears of them late.
    pub(crate) fn keep_alive(&self) -> &Arc<WorkQueue> {
        &self.all.keep_alive
    }

    /// Returns one of them; while this is dropped, when nobody asks, that of all paths.
    fn one(&self, which: impl FnOnce(&Queues) -> &WorkQueue) -> &WorkQueue {
        self.queues.as_deref().map_or(&self.all.destroy, which)
    }
}

impl Drop for WorkQueues {
    fn drop(&mut self) {
        // No reference stays here: whoever drops this may be on one of the queues.
        if let Some(queues) = self.queues.take() {
            if let Err(queues) = self.all.destroy.enqueue(queues) {
                keep(
                    queues,
                    "the workqueues of a path were to be destroyed already",
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

/// A module's reference to them. Dropping it waits until the queues of all paths are gone, with all
/// that their work referred to. Nobody makes paths any more.
pub(crate) struct AllGone(pub(crate) Arc<AllQueues>);

impl Drop for AllGone {
    fn drop(&mut self) {
        while self.0.count.load(Acquire) != 0 {
            // Whether it has changed or not: it is looked at again.
            let _ = self.0.changed.wait_ms(1000);
            self.0.changed.reset();
        }
        self.0.events.drain();
        self.0.destroy.drain();
    }
}
