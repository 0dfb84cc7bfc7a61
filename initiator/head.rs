// SPDX-License-Identifier: GPL-2.0

//! The part of a disk that outlives its sessions: the table of its requests, the sizes that the
//! block layer relies on, and the rule for requests while there is no session.

use self::{
    last_sessions::LastSessions,
    loss::{
        Losses,
        Moment, //
    },
};
use crate::{
    io::{
        Driver,
        HwQueues,
        NoPath,
        Queue, //
    },
    session::Attachment,
    settings::{
        Policy,
        Settings, //
    },
    shape::QueueShape,
    unflushed::Unflushed, //
};
use hcablk_core::{
    blkdev::Dispatch,
    proto::connect::{
        Epoch,
        ExportInstance, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Event, //
    },
    system::{
        hibernation::{
            Use,
            Uses, //
        },
        Deadline, //
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

mod fencing;
mod last_sessions;
mod loss;
mod lost_writes;

pub(crate) use self::{
    last_sessions::Origin,
    loss::{
        Loss,
        LossLimits, //
    },
    lost_writes::LostState, //
};

impl From<&Settings> for LossLimits {
    fn from(settings: &Settings) -> Self {
        Self {
            ctrl_loss_tmo_s: settings.ctrl_loss_tmo_s,
            fast_io_fail_tmo_s: settings.fast_io_fail_tmo_s,
        }
    }
}

impl Moment for Deadline {
    fn after(ms: u32) -> Self {
        Self::new(ms)
    }

    fn has_passed(self) -> bool {
        Self::has_passed(self)
    }
}

/// The head of a disk; see the module. Shared by the disk and its sessions.
#[pin_data]
pub(crate) struct Head {
    dispatch: Arc<Dispatch<Driver>>,
    shape: QueueShape,
    no_path: Arc<NoPath>,
    /// The disk has been added: later sessions continue its account of writes.
    begun: Atomic<bool>,
    /// The target has lost acknowledged writes: flushes and FUA writes fail.
    lost_writes: Atomic<bool>,
    /// See [`Self::set_flushes`].
    flushes: Atomic<bool>,
    unflushed: Arc<Unflushed>,
    limits_due: Atomic<bool>,
    /// A flush or FUA write was refused since the last loss.
    loss_reported: Atomic<bool>,
    /// Number of sessions that can still deliver responses.
    open_sessions: Atomic<u32>,
    /// The export whose acknowledged writes are all durable, while no session is open.
    #[pin]
    durable: Mutex<Option<ExportInstance>>,
    hw_queues: Arc<HwQueues>,
    #[pin]
    losses: Mutex<Losses<Deadline>>,
    #[pin]
    last_sessions: Mutex<LastSessions>,
    /// The disk is being removed. Never reset.
    #[pin]
    removal: Event,
    _in_use: Use,
}

/// The disks of this host.
pub(crate) static DISKS: Uses = Uses::new(c"disks of hcablk are connected");

impl Head {
    /// Creates the head of a disk of `queues` hardware queues. May sleep.
    pub(crate) fn new(queues: u32, shape: QueueShape) -> Result<Arc<Self>> {
        let dispatch = Dispatch::new(queues, shape.depth.into())?;
        let no_path = NoPath::new()?;
        let unflushed = Arc::new(Unflushed::new(), GFP_KERNEL)?;
        let hw_queues = HwQueues::new(&dispatch, &no_path)?;
        Arc::pin_init(
            pin_init!(Self {
                dispatch,
                shape,
                no_path,
                begun: Atomic::new(false),
                lost_writes: Atomic::new(false),
                flushes: Atomic::new(false),
                unflushed,
                limits_due: Atomic::new(false),
                loss_reported: Atomic::new(false),
                open_sessions: Atomic::new(0),
                durable <- new_mutex!(None),
                hw_queues,
                losses <- new_mutex!(Losses::new()),
                last_sessions <- new_mutex!(LastSessions::new()),
                removal <- Event::new(),
                _in_use: DISKS.begin(),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn dispatch(&self) -> &Arc<Dispatch<Driver>> {
        &self.dispatch
    }

    /// Returns the sizes of a session of this disk on a device that allows `fitted`, `None` if
    /// these are less than the block layer was promised.
    pub(crate) fn shape_on(&self, fitted: QueueShape) -> Option<QueueShape> {
        let QueueShape {
            depth,
            segments,
            bytes,
            ..
        } = self.shape;
        (fitted.depth >= depth && fitted.segments >= segments && fitted.bytes >= bytes).then_some(
            QueueShape {
                depth,
                segments,
                bytes,
                ..fitted
            },
        )
    }

    /// Returns whether requests wait for a new session after one is lost.
    #[inline]
    pub(crate) fn queues_if_no_path(&self) -> bool {
        self.no_path.queues()
    }

    /// Returns whether requests wait, rather than fail, if there is no session now.
    pub(crate) fn requests_wait(&self) -> bool {
        self.no_path.requests_wait()
    }

    /// Returns whether requests fail since `fast_io_fail_tmo` is over, though a session may follow.
    pub(crate) fn fails_fast(&self) -> bool {
        self.no_path.fails_fast()
    }

    /// Fails requests that wait for a session, and all later ones until there is one; a session may
    /// still follow. Sleeps.
    pub(crate) fn fail_fast(&self) {
        self.no_path.set_fails_fast(true);
        // As in [`Self::fail_waiting`].
        self.dispatch.synchronize();
        self.dispatch.run_hw_queues();
    }

    /// Sets whether requests wait for a new session after one is lost.
    pub(crate) fn queue_if_no_path(&self, on: bool) {
        self.no_path.set_queues(on);
    }

    /// Fails requests that wait for a session, and all later ones until there is one. Sleeps.
    pub(crate) fn fail_waiting(&self) {
        self.queue_if_no_path(false);
        // After this every waiting request is in the block layer again, so the queue run finds it.
        self.dispatch.synchronize();
        self.dispatch.run_hw_queues();
    }

    /// Records that there is no session any more; `completed`: requests completed so far. See
    /// [`Losses`]. Process context.
    pub(crate) fn begin_loss(&self, completed: u64, limits: LossLimits) {
        self.losses.lock().begin(completed, limits);
        self.no_path.set_lost(true);
    }

    /// Changes the time limits of a loss. If there is no session now, the new limits count from
    /// now. Process context.
    pub(crate) fn limit_loss(&self, limits: LossLimits) {
        self.losses.lock().limit(limits);
    }

    /// Records that there is a session again. Process context.
    pub(crate) fn end_loss(&self) {
        self.no_path.set_fails_fast(false);
        self.no_path.set_lost(false);
        self.losses.lock().end();
    }

    /// Returns the time limits of the present loss of all sessions; none while there is a session.
    /// Process context.
    pub(crate) fn loss(&self) -> Loss<Deadline> {
        self.losses.lock().now()
    }

    /// Records that the disk is being removed: from here on nothing waits for a path or a fence.
    /// Any context.
    pub(crate) fn begin_removal(&self) {
        self.removal.set();
    }

    /// Waits up to `ms` milliseconds; returns whether the disk is being removed. Sleeps.
    pub(crate) fn is_removed_within(&self, ms: u32) -> bool {
        self.removal.wait_ms(ms).is_ok()
    }

    /// Adds `first`, the queues of the session of `epoch` and `origin` on `path`, to the hardware
    /// queues, and calls `add`, which adds the disk.
    pub(crate) fn with_first<R>(
        &self,
        (path, epoch, origin): (u8, Epoch, Origin),
        (disk, first): (&Attachment, &[Arc<Queue>]),
        policy: Policy,
        add: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.last_sessions.lock().admit(path, epoch, origin);
        let result = self
            .hw_queues
            .begin(disk, first, policy)
            .and_then(|()| add());
        match result {
            Ok(_) => self.begun.store(true, Release),
            Err(_) => self.hw_queues.clear(),
        }
        result
    }

    /// Returns whether the disk had earlier sessions, whose writes still count.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Acquire)
    }

    /// Returns the account of writes that no flush has covered.
    pub(crate) fn unflushed(&self) -> &Arc<Unflushed> {
        &self.unflushed
    }

    /// Sets whether the disk sends flushes, for its whole life. Called before the disk is added.
    ///
    /// The kernel cannot be relied on to send flushes to a disk that was added without a volatile
    /// write cache, even if its limits show one later: the block layer strips FUA from bios before
    /// they enter the queue (`submit_bio_noacct()`), so that no freeze waits for those, and tables
    /// of device-mapper continue to strip flushes. A disk that has sent flushes continues to send
    /// them, regardless of the drive's cache: they fail when writes were lost.
    pub(crate) fn set_flushes(&self, on: bool) {
        self.flushes.store(on, Release);
        self.unflushed.count(on);
    }

    /// Returns whether the disk sends flushes. Any context.
    pub(crate) fn flushes(&self) -> bool {
        self.flushes.load(Acquire)
    }

    /// Sets whether the target may keep writes in a volatile write cache, as the target reported to
    /// a session that has just been opened and is not used yet; `reports_changes`: the target
    /// reports changes of this. Earlier sessions may still deliver responses to writes into a
    /// cache, even if they have ended.
    pub(crate) fn begin_session(&self, write_cache: bool, reports_changes: bool) {
        let alone = self.open_sessions.load(Acquire) == 1;
        if self.flushes() && (write_cache || reports_changes && alone) {
            self.unflushed.count(write_cache);
        }
    }

    /// Sets whether the disk still has to adopt limits of its drive. Any context.
    pub(crate) fn set_limits_due(&self, due: bool) {
        self.limits_due.store(due, Relaxed);
    }

    /// Returns whether the disk still has to adopt limits of its drive. Any context.
    pub(crate) fn limits_due(&self) -> bool {
        self.limits_due.load(Relaxed)
    }

    /// Makes flushes and FUA writes fail from now on: the target has lost acknowledged writes. Any
    /// context.
    pub(crate) fn set_lost_writes(&self) {
        self.loss_reported.store(false, Relaxed);
        self.lost_writes.store(true, Release);
    }

    /// Lets flushes and FUA writes succeed again. Any context.
    pub(crate) fn clear_lost_writes(&self) {
        self.lost_writes.store(false, Release);
    }

    /// Records that a flush or FUA write was refused because of the loss. Any context.
    pub(crate) fn report_loss(&self) {
        self.loss_reported.store(true, Relaxed);
    }

    /// Records that only readers have seen an error of the loss. Any context.
    pub(crate) fn forget_reported_loss(&self) {
        self.loss_reported.store(false, Relaxed);
    }

    /// Returns whether a flush or FUA write was refused since the last loss. Any context.
    pub(crate) fn is_loss_reported(&self) -> bool {
        self.loss_reported.load(Relaxed)
    }

    /// Records that one more session can deliver responses. Process context.
    pub(crate) fn session_opened(&self) {
        self.open_sessions.fetch_add(1, Full);
    }

    /// Records that one session less can deliver responses; returns whether none is left. Process
    /// context.
    pub(crate) fn session_closed(&self) -> bool {
        self.open_sessions.fetch_sub(1, Full) == 1
    }

    /// Records that all writes acknowledged by the export of `instance` are durable; no session is
    /// open. Process context.
    pub(crate) fn set_durable(&self, instance: Option<ExportInstance>) {
        *self.durable.lock() = instance;
    }

    /// Clears the record that all writes of the export of `instance` are durable, since a session
    /// begins; returns whether they were. Process context.
    pub(crate) fn take_durable(&self, instance: Option<ExportInstance>) -> bool {
        let durable = self.durable.lock().take();
        durable.is_some() && durable == instance
    }

    /// Returns whether flushes and FUA writes fail. Any context.
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.lost_writes.load(Acquire)
    }

    /// Returns the hardware queues, for the tag set.
    pub(crate) fn hw_queues(&self) -> &Arc<HwQueues> {
        &self.hw_queues
    }
}
