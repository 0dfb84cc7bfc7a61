// SPDX-License-Identifier: GPL-2.0

//! The connection behind a disk.
//!
//! ```text
//!               go_live()              fail() or finish()            teardown done
//!  Connecting ───────────► Live ────────────────────────────► Ending ────────────► Ended
//!       └─────────────────────────────────────────────────────►┘
//! ```
//!
//! Every failure, in any context, calls [`Session::fail`]: the first call moves the state to
//! `Ending`, stores the reason and queues the teardown; later calls do nothing. The teardown runs
//! once, in process context, on its path's workqueue:
//!
//! 1. The queues stop accepting requests; the teardown waits for those that are being issued. A
//!    session that the user ends, none of whose requests is under way, detaches its volume.
//! 2. Every queue pair is disconnected and failed, then all are drained within one common time
//!    limit, so that no key of this session works any more and no completion is outstanding.
//! 3. If the target ends the export in order, the teardown asks it whether all acknowledged writes
//!    are durable.
//! 4. Completion queues and connection identifiers release their handlers, the admin queue pair's
//!    identifier only in [`Session::stop_device_watch`] if another session will follow.
//! 5. Requests without a response end with an error, each after its memory region was destroyed. If
//!    the disk waits for a new session
//!    ([`Head::queues_if_no_path`](crate::head::Head::queues_if_no_path)) or has another path, they
//!    return to the block layer instead, after the target has fenced this session
//!    (`head/fencing.rs`). The drive may hang during that wait; if the RDMA device is removed then,
//!    it is released at once, since the removal waits for it.
//! 6. The owner is notified: a device, which removes the disk, or reconnects it.
//!
//! A request timeout at first concerns its queue alone, see `session/replace.rs`.
//!
//! # Durability at an orderly end
//!
//! Writes that the target has acknowledged from a volatile write cache would be in doubt when it
//! ends the export: the next export is a new instance, which remembers no writes, so the disk
//! would have to fail a flush. A target that withdraws the volume, or shuts down, therefore makes
//! the drive flush them after the session's queue pairs are closed. The initiator asks for the
//! result on the admin queue pair, which it closes last. The result only counts on the session
//! whose queue pairs close last: until then another path may acknowledge writes.

use crate::{
    admin::Admin,
    connect::CmLink,
    device::Device,
    failure::Failure,
    head::Head,
    io::{
        Queue,
        QueueConfig, //
    },
    keys::SessionProof,
    settings::{
        Offer,
        Settings, //
    },
    shape::QueueShape,
    workqueues::WorkQueues, //
};
use hcablk_core::{
    broken,
    logic::session_state::{
        SessionState,
        KEEP_ALIVE_PERIOD_MS, //
    },
    proto::connect::{
        Epoch,
        SessionId, //
    },
    rdma::{
        cm::Id,
        pd::ProtectionDomain,
        port::{
            PortListener,
            WatchedPort, //
        },
    },
    report::trace,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Release, //
        },
        new_irq_lock,
        Event,
        IrqLock,
        Periodic,
        Running,
        Tick, //
    }, //
};
use kernel::{
    impl_has_work, new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        new_work,
        Work, //
    },
};

mod attachment;
mod replace;
mod teardown;
mod watch;

pub(crate) use self::{
    attachment::{
        Attachment,
        VolumeInfo, //
    },
    watch::UNSOUND_LIMITS, //
};

/// A session. It and its queues hold each other until the teardown.
#[pin_data]
pub(crate) struct Session {
    /// The name of its first disk, for messages.
    name: CString,
    /// The disks on the session, from [`Self::attach_disk`] to the end of the teardown.
    #[pin]
    attachments: Mutex<KVec<Arc<Attachment>>>,
    /// Number of its queue pairs besides the admin queue pair.
    queue_count: u8,
    /// The path's workqueues: the teardown and the keep-alives run there.
    workqueues: Arc<WorkQueues>,
    id: SessionId,
    epoch: Epoch,
    /// The versions of the protocol in its connection requests.
    offer: Offer,
    settings: Settings,
    shape: QueueShape,
    /// Cleared when the teardown releases the RDMA device.
    #[pin]
    pd: Mutex<Option<Arc<ProtectionDomain>>>,
    /// See the module's picture. The reason is `None` if the session has not failed.
    #[pin]
    state: IrqLock<SessionState<Option<Failure>>>,
    /// Cleared by the teardown after its last use.
    #[pin]
    admin: Mutex<Option<Arc<Admin>>>,
    /// Set with the admin queue pair, until the teardown.
    #[pin]
    port: WatchedPort,
    /// Set with the admin queue pair, if keys are configured.
    #[pin]
    proof: Mutex<Option<Arc<SessionProof>>>,
    /// Empty after the start of the teardown.
    #[pin]
    queues: Mutex<KVec<Arc<Queue>>>,
    /// Held while queues are closed: by the teardown, or by the replacement of one.
    #[pin]
    closing: Mutex<()>,
    /// The link of a replacement queue pair that is being connected: the end of the session
    /// interrupts the wait for it.
    #[pin]
    replacement_link: IrqLock<Option<Arc<CmLink>>>,
    #[pin]
    keep_alive_timer: Mutex<Option<Running<Session>>>,
    /// The RDMA device is being removed, and waits for all references to it.
    device_removed: Atomic<bool>,
    /// The admin queue pair's identifier: it reports the device's removal after the session has
    /// ended, while the disk waits for a new one.
    #[pin]
    watched: Mutex<Option<Arc<Id>>>,
    #[pin]
    ended: Event,
    #[pin]
    work: Work<Session, TEARDOWN>,
    #[pin]
    replacing: Work<Session, REPLACE>,
    #[pin]
    following: Work<Session, FOLLOW>,
}

/// The work items of a session.
const TEARDOWN: u64 = 0;
const REPLACE: u64 = 1;
const FOLLOW: u64 = 2;

impl_has_work! {
    impl HasWork<Self, TEARDOWN> for Session { self.work }
    impl HasWork<Self, REPLACE> for Session { self.replacing }
    impl HasWork<Self, FOLLOW> for Session { self.following }
}

impl Session {
    /// Creates a session without disks and queue pairs; it will have the non-zero numbers of queue
    /// pairs in `settings`, `queue_count` in all. `name` is that of its first disk. May sleep.
    pub(crate) fn new(
        (name, workqueues): (&Device, Arc<WorkQueues>),
        (id, epoch): (SessionId, Epoch),
        (settings, offer): (Settings, Offer),
        (shape, queue_count): (QueueShape, u8),
        pd: Arc<ProtectionDomain>,
    ) -> Result<Arc<Self>> {
        let name = CString::try_from_fmt(fmt!("{name}"))?;
        let session = Arc::pin_init(
            pin_init!(Self {
                name,
                attachments <- new_mutex!(KVec::new()),
                queue_count,
                workqueues,
                id,
                epoch,
                offer,
                settings,
                shape,
                pd <- new_mutex!(Some(pd)),
                state <- new_irq_lock!(SessionState::Connecting, "hcablk_session"),
                admin <- new_mutex!(None),
                port <- WatchedPort::new(),
                proof <- new_mutex!(None),
                queues <- new_mutex!(KVec::new()),
                closing <- new_mutex!(()),
                replacement_link <- new_irq_lock!(None, "hcablk_replacement_link"),
                keep_alive_timer <- new_mutex!(None),
                device_removed: Atomic::new(false),
                watched <- new_mutex!(None),
                ended <- Event::new(),
                work <- new_work!("hcablk::Session"),
                replacing <- new_work!("hcablk::Session::replacing"),
                following <- new_work!("hcablk::Session::following"),
            }),
            GFP_KERNEL,
        )?;
        session.trace_state(trace::ConnectionState::Connecting);
        Ok(session)
    }

    /// Returns the number of the session's path.
    pub(crate) fn path(&self) -> u8 {
        self.id.path()
    }

    /// Adds a disk to the session, whose id and epoch on the path are given. May sleep.
    pub(crate) fn attach_disk(
        self: &Arc<Self>,
        disk: (Arc<Device>, Arc<Head>),
        id: (SessionId, Epoch),
    ) -> Result<Arc<Attachment>> {
        let attachment = Attachment::new(self.clone(), disk, id)?;
        self.attachments
            .lock()
            .push(attachment.clone(), GFP_KERNEL)?;
        Ok(attachment)
    }

    /// Returns the disks on the session. None leaves it before the end of the teardown.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = Arc<Attachment>> + '_ {
        (0..).map_while(|index: usize| self.attachments.lock().get(index).cloned())
    }

    /// Returns the name of the first disk, for messages.
    fn name(&self) -> &str {
        self.name.to_str().unwrap_or("?")
    }

    /// Returns whether the session is live.
    pub(crate) fn is_live(&self) -> bool {
        self.state.lock().is_live()
    }

    /// Returns the user's settings; the numbers of queues are those of this session.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn shape(&self) -> QueueShape {
        self.shape
    }

    /// Returns the number of queue pairs that the session will have besides the admin queue pair.
    pub(crate) fn queue_count(&self) -> u8 {
        self.queue_count
    }

    /// Returns queue pair `index`, unless the teardown has begun.
    pub(crate) fn queue(&self, index: u32) -> Option<Arc<Queue>> {
        self.queues.lock().get(index as usize).cloned()
    }

    /// Returns the session's queue pairs, none once the teardown has started. Fails with `ENOMEM`.
    pub(crate) fn queues(&self) -> Result<KVec<Arc<Queue>>> {
        let mut all = KVec::new();
        for queue in self.queues.lock().iter() {
            all.push(queue.clone(), GFP_KERNEL)?;
        }
        Ok(all)
    }

    /// Starts accepting requests, after all queue pairs were connected, and starts the keep-alive
    /// timer.
    pub(crate) fn go_live(self: &Arc<Self>) -> Result<(), Failure> {
        {
            let mut state = self.state.lock();
            state
                .go_live()
                .map_err(|failure| failure.unwrap_or(Failure::Disconnected))?;
        }
        self.trace_state(trace::ConnectionState::Live);
        let keep_alive_timer = Periodic::start(self.clone(), KEEP_ALIVE_PERIOD_MS)
            .map_err(|e| Failure::Setup("the keep-alive timer", e))?;
        // A teardown that has run already would not find the timer.
        let mut place = self.keep_alive_timer.lock();
        if self.state.lock().is_live() {
            *place = Some(keep_alive_timer);
            return Ok(());
        }
        drop(place);
        drop(keep_alive_timer);
        Err(self.failure().unwrap_or(Failure::Disconnected))
    }

    /// Returns why the session ended.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state.lock().reason().flatten()
    }

    /// Returns why the session ended, once the teardown is done.
    pub(crate) fn has_ended(&self) -> Option<Failure> {
        match *self.state.lock() {
            SessionState::Ended(failure) => failure,
            _ => None,
        }
    }

    /// Returns whether the teardown is done: the queues are retired.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.state.lock(), SessionState::Ended(_))
    }

    /// Returns why the session ended as a negative errno; 0 if it has not failed.
    pub(crate) fn errno(&self) -> i32 {
        self.failure()
            .map_or(0, |failure| failure.errno().to_errno())
    }

    /// Traces that the session has entered `state`.
    fn trace_state(&self, state: trace::ConnectionState) {
        trace::initiator::session(|| trace::Change {
            session: self.id.0,
            epoch: self.epoch.0,
            queue: None,
            state,
            error: self.errno(),
        });
    }

    /// Ends the session because of `failure`. Any context.
    pub(crate) fn fail(self: &Arc<Self>, failure: Failure) {
        self.end(Some(failure));
    }

    /// Ends the session on the user's request, and waits for the end of the teardown. Process
    /// context.
    pub(crate) fn finish(self: &Arc<Self>) {
        self.end(None);
        self.wait();
    }

    /// Waits for the end of the teardown. The wait is finite: queue pairs drain, or are destroyed
    /// after a while.
    pub(crate) fn wait(&self) {
        while self.ended.wait_ms(60_000).is_err() {
            pr_warn!("{}: still waiting for the session to end\n", self.name());
        }
    }

    fn end(self: &Arc<Self>, failure: Option<Failure>) {
        {
            let mut state = self.state.lock();
            if !state.end(failure) {
                return;
            }
        }
        self.trace_state(trace::ConnectionState::Ending);
        // A replacement of a queue pair holds a lock that the teardown needs.
        let link = self.replacement_link.lock().take();
        if let Some(link) = link {
            link.interrupt(failure.unwrap_or(Failure::Disconnected));
        }
        // Queued once: no state leads back.
        let queue = self.workqueues.teardown();
        if queue.enqueue::<_, TEARDOWN>(self.clone()).is_err() {
            broken!("the teardown of a session was queued already");
        }
    }

    /// Calls `f` with each queue, for its counters.
    pub(crate) fn for_each_queue(&self, mut f: impl FnMut(&Queue)) {
        for queue in self.queues.lock().iter() {
            f(queue);
        }
    }

    /// Returns whether a disk waits for another session after this one.
    fn is_to_be_followed(&self) -> bool {
        self.attachments().any(|disk| disk.is_to_be_followed())
    }

    /// Returns whether the RDMA device is being removed.
    pub(crate) fn lacks_device(&self) -> bool {
        self.device_removed.load(Acquire)
    }

    /// Returns whether the session still watches for the removal of its RDMA device: the teardown
    /// has found that another session will follow.
    pub(crate) fn watches_device(&self) -> bool {
        self.watched.lock().is_some()
    }

    /// Stops watching for the removal of the RDMA device, and releases it: the rest of a session
    /// that had a successor. Waits for a running handler; must not be called from one.
    pub(crate) fn stop_device_watch(&self) {
        let watched = self.watched.lock().take();
        if let Some(id) = watched {
            id.detach();
        }
    }
}

impl Tick for Session {
    fn tick(&self) {
        for queue in self.queues.lock().iter() {
            queue.send_keep_alive();
        }
    }
}

impl Session {
    /// Watches the port of `id` until the session ends, which it does when the port goes down.
    /// Sleeps.
    fn watch_port(self: &Arc<Self>, id: &Arc<Id>) -> Result {
        self.port.watch(id, self.clone(), || {
            *self.state.lock() != SessionState::Connecting
        })
    }
}

impl PortListener for Session {
    /// Ends the session, unless it has a disk that waits for no new session and has no other path.
    /// Such a disk may survive: the queue pairs retransmit lost packets until the port is back or
    /// their retries are used up.
    fn port_down(self: Arc<Self>) {
        let goes_on = |disk: Arc<Attachment>| {
            disk.head().queues_if_no_path() || disk.device().has_other_paths(&disk)
        };
        if self.attachments().all(goes_on) {
            self.fail(Failure::PortDown);
        }
    }
}

impl Session {
    /// Returns the session's protection domain. Fails with `ENODEV` after the teardown has released
    /// the RDMA device.
    fn pd(&self) -> Result<Arc<ProtectionDomain>> {
        self.pd.lock().clone().ok_or(ENODEV)
    }
}

impl Session {
    /// Creates queue pair `index` on the connection `id`. May sleep. Fails as verbs do, and with
    /// `ENOMEM`.
    pub(crate) fn make_queue(self: Arc<Self>, index: u8, id: &Arc<Id>) -> Result<Arc<Queue>> {
        let config = QueueConfig {
            session: self.id,
            epoch: self.epoch,
            index,
            polled: index >= self.settings.queues,
            settings: self.settings,
        };
        let pd = self.pd()?;
        Queue::new(self.clone(), config, id, &pd, self.shape)
    }

    /// Creates a queue pair for a connection request that the target will refuse. The session does
    /// not own it.
    pub(crate) fn make_probe(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
        let setup = |e| Failure::Setup("the admin queue pair", e);
        let tmo_s = self.settings.keep_alive_tmo_s;
        self.pd()
            .and_then(|pd| Admin::new(self.clone(), self.id, tmo_s, id, &pd))
            .map_err(setup)
    }

    /// Creates the admin queue pair on the connection `id`, which the session then owns. As
    /// [`Self::make_queue`].
    pub(crate) fn make_admin(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
        let admin = self.clone().make_probe(id)?;
        if let Err(e) = self.watch_port(id) {
            admin.close();
            return Err(Failure::Setup("a watch of the port", e));
        }
        let mut place = self.admin.lock();
        if *self.state.lock() == SessionState::Connecting {
            *place = Some(admin.clone());
            return Ok(admin);
        }
        drop(place);
        admin.close();
        Err(self.failure().unwrap_or(Failure::Disconnected))
    }

    /// Returns the key that proves the session's requests, if it has one.
    pub(crate) fn proof(&self) -> Option<Arc<SessionProof>> {
        self.proof.lock().clone()
    }

    /// Sets the key that proves the session's requests from now on.
    pub(crate) fn set_proof(&self, proof: Arc<SessionProof>) {
        *self.proof.lock() = Some(proof);
    }

    /// Adds the next queue pair. The teardown owns it even if this fails because the session is
    /// ending: then it is torn down here.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result<(), Failure> {
        let mut queues = self.queues.lock();
        let state = *self.state.lock();
        let result = match state {
            SessionState::Connecting => queues
                .push(queue.clone(), GFP_KERNEL)
                .map_err(|e| Failure::Setup("a queue pair", e.into())),
            SessionState::Ending(failure) | SessionState::Ended(failure) => {
                Err(failure.unwrap_or(Failure::Disconnected))
            }
            SessionState::Live => Err(Failure::Setup("a queue pair", EBUSY)),
        };
        drop(queues);
        if result.is_err() {
            queue.close();
        }
        result
    }

    /// Returns how many RDMA READs of the target the device serves at a time.
    pub(crate) fn responder_resources(&self) -> u8 {
        self.pd().map_or(0, |pd| pd.attributes().max_qp_rd_atom)
    }

    /// Registers `link`, on which a replacement queue pair is being connected, to be interrupted
    /// when the session ends; `None`: unregisters it. Fails if the session has ended.
    pub(crate) fn set_replacement_link(&self, link: Option<&Arc<CmLink>>) -> Result<(), Failure> {
        *self.replacement_link.lock() = link.cloned();
        // The end of the session sets its state before it looks for the link.
        match self.state.lock().reason() {
            None => Ok(()),
            Some(failure) => Err(failure.unwrap_or(Failure::Disconnected)),
        }
    }

    /// Handles the target's closing of a connection. Any context.
    pub(crate) fn connection_closed(self: Arc<Self>) {
        self.fail(Failure::Disconnected);
    }

    /// Handles the removal of the RDMA device. The connection manager's callback, which may sleep,
    /// but must not wait for a session to end.
    pub(crate) fn device_removed(self: Arc<Self>) {
        self.device_removed.store(true, Release);
        self.fail(Failure::DeviceRemoved);
        for disk in self.attachments() {
            disk.device().device_removed(&disk);
        }
    }
}

impl Session {
    /// Starts replacing the queue pair of `queue`, whose request `tag` timed out. Any context.
    pub(crate) fn queue_timed_out(self: Arc<Self>, queue: &Queue, tag: u16) {
        if !queue.is_admitted() {
            // The replacement would serve the disk without being admitted.
            self.fail(Failure::RequestTimeout);
        } else if queue.mark_timed_out(tag) {
            pr_warn!(
                "{}: queue {} of path {} does not respond in time\n",
                self.name(),
                queue.index(),
                self.path()
            );
            // If the work is queued already, it has not looked yet.
            let _ = self
                .workqueues
                .teardown()
                .enqueue::<_, REPLACE>(self.clone());
        }
    }
}
