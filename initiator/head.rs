// SPDX-License-Identifier: GPL-2.0

//! What a disk keeps over its sessions: the table of its requests, the sizes that the block
//! layer relies on, and what becomes of requests while there is no session.

use crate::{
    deadline::Deadline,
    queue::{
        Driver,
        FirstQueues,
        QueueSource, //
    },
    shape::Shape, //
};
use hcablk_core::{
    blkdev::Requests,
    sync::Event, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex, //
    },
};

/// Milliseconds for which a session must live so that its loss is another one than the loss before.
const STABLE_MS: u32 = 10_000;

/// How long there may be no session.
#[derive(Clone, Copy, Default)]
pub(crate) struct Loss {
    /// When the disk goes; `None`: never.
    pub(crate) end: Option<Deadline>,
    /// The session did not live long: the next attempt is not to come at once.
    pub(crate) again: bool,
    /// When the session that there is has lived long enough.
    stable: Option<Deadline>,
}

/// See the module. Shared by the disk and its sessions.
#[pin_data]
pub(crate) struct Head {
    requests: Arc<Requests<Driver>>,
    shape: Shape,
    /// A lost session's requests wait for the next one.
    queues_if_no_path: Atomic<bool>,
    /// The disk has been added: sessions to come go on with what was written.
    begun: Atomic<bool>,
    /// The target may have lost writes that it acknowledged: a flush has to fail.
    writes_lost: Atomic<bool>,
    first: Arc<FirstQueues>,
    #[pin]
    loss: Mutex<Loss>,
    /// The disk goes, or has lost its RDMA device. Never taken back.
    #[pin]
    woken: Event,
}

impl Head {
    /// Makes the head of a disk of `queues` hardware queues. May sleep.
    pub(crate) fn new(queues: u32, shape: Shape) -> Result<Arc<Self>> {
        let requests = Requests::new(queues, shape.depth.into())?;
        let first = FirstQueues::new()?;
        Arc::pin_init(
            pin_init!(Self {
                requests,
                shape,
                queues_if_no_path: Atomic::new(false),
                begun: Atomic::new(false),
                writes_lost: Atomic::new(false),
                first,
                loss <- new_mutex!(Loss::default()),
                woken <- Event::new(),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn requests(&self) -> &Arc<Requests<Driver>> {
        &self.requests
    }

    /// Returns the sizes of a session of this disk on a device that allows `fitted`, `None` if that
    /// has less than the block layer was told.
    pub(crate) fn shape_on(&self, fitted: Shape) -> Option<Shape> {
        let Shape {
            depth,
            segments,
            bytes,
            ..
        } = self.shape;
        (fitted.depth >= depth && fitted.segments >= segments && fitted.bytes >= bytes).then_some(
            Shape {
                depth,
                segments,
                bytes,
                ..fitted
            },
        )
    }

    /// Returns whether requests wait when there is no session, rather than fail.
    #[inline]
    pub(crate) fn queues_if_no_path(&self) -> bool {
        self.queues_if_no_path.load(Acquire)
    }

    /// Sets that.
    pub(crate) fn queue_if_no_path(&self, on: bool) {
        self.queues_if_no_path.store(on, Release);
    }

    /// Fails requests that wait for a session, and all that come until there is one. Sleeps.
    pub(crate) fn fail_waiting(&self) {
        self.queue_if_no_path(false);
        // Who has been told to wait has put its requests back then: the run finds them.
        self.requests.synchronize();
        self.requests.run_hw_queues();
    }

    /// Records that there is no session any more, for `ctrl_loss_tmo_s` seconds at most, counted from the
    /// first loss if sessions do not live long.
    pub(crate) fn begin_loss(&self, ctrl_loss_tmo_s: Option<u32>) {
        let mut loss = self.loss.lock();
        loss.again = loss.stable.is_some_and(|stable| !stable.has_passed());
        if !loss.again {
            loss.end = ctrl_loss_tmo_s.map(|s| Deadline::new(s.saturating_mul(1000)));
        }
    }

    /// Records that there is a session again.
    pub(crate) fn end_loss(&self) {
        self.loss.lock().stable = Some(Deadline::new(STABLE_MS));
    }

    pub(crate) fn loss(&self) -> Loss {
        *self.loss.lock()
    }

    /// Makes [`Self::wait_ms`] return at once from here on. Any context.
    pub(crate) fn wake(&self) {
        self.woken.set();
    }

    /// Waits between two attempts; returns whether it was woken.
    pub(crate) fn wait_ms(&self, ms: u32) -> bool {
        self.woken.wait_ms(ms).is_ok()
    }

    /// Calls `add`, which adds the disk, with the queues of `source` to begin with.
    pub(crate) fn with_first<R>(&self, source: Arc<dyn QueueSource>, add: impl FnOnce() -> R) -> R {
        let result = self.first.during(source, add);
        self.begun.store(true, Release);
        result
    }

    /// Returns whether there were sessions before that of now, whose writes go on to count.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Acquire)
    }

    /// Records that writes which a target acknowledged may be lost, since it does not remember them.
    pub(crate) fn lose_writes(&self) {
        self.writes_lost.store(true, Release);
    }

    /// Returns whether a flush has to fail, since it would cover writes that may be lost: once for
    /// each loss, as a drive's flush does. Any context.
    pub(crate) fn take_lost_writes(&self) -> bool {
        self.writes_lost.load(Relaxed) && self.writes_lost.xchg(false, Acquire)
    }

    /// Returns the queues that the disk begins with, which its tag set asks for.
    pub(crate) fn first(&self) -> &Arc<FirstQueues> {
        &self.first
    }
}
