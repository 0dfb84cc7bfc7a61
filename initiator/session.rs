// SPDX-License-Identifier: GPL-2.0

//! The connection behind a disk.
//!
//! ```text
//!               go_live()              fail() or finish()            teardown done
//!  Connecting ───────────► Live ────────────────────────────► Ending ────────────► Ended
//!       └─────────────────────────────────────────────────────►┘
//! ```
//!
//! Whatever goes wrong, in whichever context, calls [`Session::fail`]: the
//! first call moves the state to `Ending`, remembers why and queues the
//! teardown; later calls do nothing. The teardown runs once, in process
//! context, on its path's workqueue:
//!
//! 1. the queues stop to accept requests, and those being issued are waited for;
//! 2. every queue pair is disconnected and failed, and then they are drained, all within the same
//!    time, so that no key of this session works any more and no completion is outstanding;
//! 3. if the target ends the export in order, it is asked whether all that it acknowledged is
//!    durable;
//! 4. completion queues and connection identifiers let go of their handlers, the admin queue pair's
//!    identifier only by [`Session::let_go`] if another session is to follow;
//! 5. the requests that the target did not answer end with an error, each after its memory region
//!    was destroyed; or they go back to the block layer, if the disk waits for another session
//!    ([`Head::queues_if_no_path`](crate::head::Head::queues_if_no_path)) or has another path; in
//!    that case the target has fenced this session before (`head/fencing.rs`), and if the RDMA
//!    device goes away meanwhile it is let go of, since it waits for that, and the drive may hang;
//! 6. the owner is told, a device, which removes the disk, or connects it again.
//!
//! A request that is not answered in time is the matter of its queue alone at
//! first, see `session/replace.rs`.
//!
//! # Durable at an orderly end
//!
//! What a target that ends the export in order has acknowledged from a volatile write cache.
//!
//! The next export is another instance, which remembers nothing of that, so that the disk would
//! have to fail a flush. A target that withdraws the volume, or is shut down, has the drive make it
//! durable when the session's queue pairs are gone. The initiator asks for that by the admin queue
//! pair, which is closed last. It counts only by the session whose queue pairs are gone last: until
//! then something may be acknowledged by another path.

use crate::{
    admin::Admin,
    connect::Link,
    device::Device,
    failure::Failure,
    head::Head,
    io::{
        Driver,
        Queue,
        QueueConfig, //
    },
    keys::SessionProof,
    settings::Settings,
    shape::Shape,
    workqueues::WorkQueues, //
};
use hcablk_core::{
    blkdev::Requests,
    broken,
    logic::session_state::{
        SessionState,
        KEEP_ALIVE_PERIOD_MS, //
    },
    proto::{
        connect::{
            Epoch,
            ExportInstance,
            Geometry,
            Reply,
            SessionId, //
        },
        message::{
            VolumeLimits,
            VolumeState, //
        },
        name::VolumeId, //
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
    },
    system::Deadline, //
};
use kernel::{
    impl_has_work, new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        new_work,
        Work, //
    },
};

mod replace;
mod teardown;
mod watch;

pub(crate) use self::watch::UNSOUND_LIMITS;

/// See the module's picture. The reason is `None` if the session has not failed.
type State = SessionState<Option<Failure>>;

/// What the target has told of the volume, the same on every queue pair of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct VolumeInfo {
    pub(crate) geometry: Geometry,
    pub(crate) wwid: Option<VolumeId>,
    /// `None`: the target may forget what it acknowledged without telling.
    pub(crate) instance: Option<ExportInstance>,
    /// What the drive takes and prefers, if the target tells that.
    pub(crate) limits: Option<VolumeLimits>,
}

impl VolumeInfo {
    /// Returns what `reply` tells.
    pub(crate) fn of(reply: &Reply) -> Self {
        Self {
            geometry: reply.geometry,
            wwid: reply.id,
            instance: reply.instance,
            limits: None,
        }
    }

    /// Returns whether `reply` is about the same volume, which may have another size by now, or be
    /// read-only or no longer.
    pub(crate) fn is_in(&self, reply: &Reply) -> bool {
        let mut now = Self::of(reply);
        now.geometry.capacity = self.geometry.capacity;
        now.geometry.read_only = self.geometry.read_only;
        now.limits = self.limits;
        now == *self
    }

    /// Returns what of it may change while a disk lives, for a watch; `write_cache` if that follows
    /// it.
    pub(crate) fn state(&self, write_cache: Option<bool>) -> VolumeState {
        VolumeState {
            sectors: self.geometry.capacity >> 9,
            read_only: self.geometry.read_only,
            write_cache,
        }
    }
}

/// A session. It and its queues hold each other until the teardown.
#[pin_data]
pub(crate) struct Session {
    device: Arc<Device>,
    /// Where it ends, and keep-alives are sent: its path's.
    workqueues: Arc<WorkQueues>,
    id: SessionId,
    epoch: Epoch,
    settings: Settings,
    shape: Shape,
    /// Until the teardown lets the RDMA device go.
    #[pin]
    pd: Mutex<Option<Arc<ProtectionDomain>>>,
    head: Arc<Head>,
    requests: Arc<Requests<Driver>>,
    #[pin]
    state: IrqLock<State>,
    /// Until the teardown is done with it.
    #[pin]
    admin: Mutex<Option<Arc<Admin>>>,
    /// Set with the admin queue pair, until the teardown.
    #[pin]
    port: WatchedPort,
    /// Set with the admin queue pair, if keys are.
    #[pin]
    proof: Mutex<Option<Arc<SessionProof>>>,
    /// Empty once the teardown has begun.
    #[pin]
    queues: Mutex<KVec<Arc<Queue>>>,
    /// Held by who closes queues: the teardown, or who replaces one.
    #[pin]
    closing: Mutex<()>,
    /// By which a queue pair comes up in place of another one: the end of the session ends the wait
    /// for it.
    #[pin]
    coming: IrqLock<Option<Arc<Link>>>,
    /// Set when the session goes live.
    #[pin]
    volume: Mutex<Option<VolumeInfo>>,
    #[pin]
    keep_alive_timer: Mutex<Option<Running<Session>>>,
    /// It was made a path of the disk: requests may have gone by it.
    admitted: Atomic<bool>,
    /// The disk has yet to follow its limits.
    /// Whether the disk counts it as open.
    #[pin]
    opened: Mutex<Opened>,
    /// The RDMA device goes away, and waits for what refers to it.
    device_removed: Atomic<bool>,
    /// By which that is noticed once the session has ended, while the disk waits for another one:
    /// the admin queue pair's.
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

/// A session's works.
const TEARDOWN: u64 = 0;
const REPLACE: u64 = 1;
const FOLLOW: u64 = 2;

impl_has_work! {
    impl HasWork<Self, TEARDOWN> for Session { self.work }
    impl HasWork<Self, REPLACE> for Session { self.replacing }
    impl HasWork<Self, FOLLOW> for Session { self.following }
}

impl Session {
    /// Makes a session without queue pairs; it shall have as many as
    /// `settings` says in numbers that are not 0. May sleep.
    pub(crate) fn new(
        (device, workqueues): (Arc<Device>, Arc<WorkQueues>),
        id: SessionId,
        epoch: Epoch,
        settings: Settings,
        shape: Shape,
        pd: Arc<ProtectionDomain>,
        head: &Arc<Head>,
    ) -> Result<Arc<Self>> {
        let requests = head.requests().clone();
        let session = Arc::pin_init(
            pin_init!(Self {
                device,
                workqueues,
                id,
                epoch,
                settings,
                shape,
                pd <- new_mutex!(Some(pd)),
                head: head.clone(),
                requests,
                state <- new_irq_lock!(State::Connecting, "hcablk_session"),
                admin <- new_mutex!(None),
                port <- WatchedPort::new(),
                proof <- new_mutex!(None),
                queues <- new_mutex!(KVec::new()),
                closing <- new_mutex!(()),
                coming <- new_irq_lock!(None, "hcablk_coming"),
                volume <- new_mutex!(None),
                keep_alive_timer <- new_mutex!(None),
                admitted: Atomic::new(false),
                opened <- new_mutex!(Opened::NotYet),
                device_removed: Atomic::new(false),
                watched <- new_mutex!(None),
                ended <- Event::new(),
                work <- new_work!("hcablk::Session"),
                replacing <- new_work!("hcablk::Session::replacing"),
                following <- new_work!("hcablk::Session::following"),
            }),
            GFP_KERNEL,
        )?;
        session.comes_to(trace::State::Connecting);
        Ok(session)
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the number of the path that it is.
    pub(crate) fn path(&self) -> u8 {
        self.id.path()
    }

    /// Records that it is made a path of the disk.
    pub(crate) fn admit(&self) {
        self.admitted.store(true, Release);
        self.open();
    }

    /// Returns whether it was.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Acquire)
    }

    /// Returns whether it is live.
    pub(crate) fn is_live(&self) -> bool {
        self.state.lock().is_live()
    }

    /// Returns what users have set; the numbers of queues are those of this session.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns what the disk keeps over its sessions.
    #[inline]
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    pub(crate) fn requests(&self) -> &Arc<Requests<Driver>> {
        &self.requests
    }

    /// Returns how many queue pairs the session shall have beside the admin queue pair.
    pub(crate) fn queue_count(&self) -> u8 {
        self.requests.hw_queues() as u8
    }

    /// Returns queue pair `index`, unless the teardown has begun.
    pub(crate) fn queue(&self, index: u32) -> Option<Arc<Queue>> {
        self.queues.lock().get(index as usize).cloned()
    }

    /// Returns its queue pairs, none once the teardown has begun. Fails with `ENOMEM`.
    pub(crate) fn queues(&self) -> Result<KVec<Arc<Queue>>> {
        let mut all = KVec::new();
        for queue in self.queues.lock().iter() {
            all.push(queue.clone(), GFP_KERNEL)?;
        }
        Ok(all)
    }

    /// Starts accepting requests, after all queue pairs were connected, and starts the keep-alive.
    pub(crate) fn go_live(self: &Arc<Self>, volume: VolumeInfo) -> Result<(), Failure> {
        *self.volume.lock() = Some(volume);
        {
            let mut state = self.state.lock();
            state
                .go_live()
                .map_err(|failure| failure.unwrap_or(Failure::Disconnected))?;
        }
        self.comes_to(trace::State::Live);
        let keep_alive_timer = Periodic::start(self.clone(), KEEP_ALIVE_PERIOD_MS)
            .map_err(|e| Failure::Setup("the keep-alive timer", e))?;
        // A teardown that has run already would not find it.
        let mut place = self.keep_alive_timer.lock();
        if self.state.lock().is_live() {
            *place = Some(keep_alive_timer);
            return Ok(());
        }
        drop(place);
        drop(keep_alive_timer);
        Err(self.failure().unwrap_or(Failure::Disconnected))
    }

    /// Returns what the target has told of the volume, once the session has gone live.
    pub(crate) fn volume(&self) -> Option<VolumeInfo> {
        *self.volume.lock()
    }

    /// Returns why the session ended.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state.lock().reason().flatten()
    }

    /// Returns the same once the teardown is done.
    pub(crate) fn has_ended(&self) -> Option<Failure> {
        match *self.state.lock() {
            State::Ended(failure) => failure,
            _ => None,
        }
    }

    /// Returns whether the teardown is done: its queues are past.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.state.lock(), State::Ended(_))
    }

    /// Returns why the session ended as a negative errno; 0 if it has not failed.
    pub(crate) fn errno(&self) -> i32 {
        self.failure()
            .map_or(0, |failure| failure.errno().to_errno())
    }

    /// Tells of a state to who listens.
    fn comes_to(&self, state: trace::State) {
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

    /// Ends the session because the user wants it, and waits until that is
    /// done. Process context.
    pub(crate) fn finish(self: &Arc<Self>) {
        self.end(None);
        self.wait();
    }

    /// Waits until the teardown is done. It has an end: queue pairs drain or
    /// are destroyed after a while.
    pub(crate) fn wait(&self) {
        while self.ended.wait_ms(60_000).is_err() {
            pr_warn!("{}: still waiting for the session to end\n", *self.device);
        }
    }

    fn end(self: &Arc<Self>, failure: Option<Failure>) {
        {
            let mut state = self.state.lock();
            if !state.end(failure) {
                return;
            }
        }
        self.comes_to(trace::State::Ending);
        // Who replaces a queue pair holds what the teardown waits for.
        let coming = self.coming.lock().take();
        if let Some(link) = coming {
            link.interrupt(failure.unwrap_or(Failure::Disconnected));
        }
        // Queued once: the state never comes back.
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

    /// Returns whether the disk waits for another session after this one.
    pub(crate) fn is_to_be_followed(&self) -> bool {
        self.head.queues_if_no_path() && self.failure().is_some_and(Failure::may_pass)
    }

    /// Returns whether the RDMA device goes away.
    pub(crate) fn lacks_device(&self) -> bool {
        self.device_removed.load(Acquire)
    }

    /// Returns whether it notices still that its RDMA device goes away: the teardown has found that
    /// another session is to follow.
    pub(crate) fn watches_device(&self) -> bool {
        self.watched.lock().is_some()
    }

    /// Ends what a session that was to be followed still has: it does not notice any more that
    /// its device goes away. Waits for a handler that runs; not from one.
    pub(crate) fn let_go(&self) {
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
    /// Ends when the port of `id` goes down, from here on, unless it has ended already. Sleeps.
    fn watch_port(self: &Arc<Self>, id: &Arc<Id>) -> Result {
        self.port
            .watch(id, self.clone(), || *self.state.lock() != State::Connecting)
    }
}

impl PortListener for Session {
    /// Ends the session, if another one is to follow it or there are other paths. A disk that has
    /// none but this one may live on: the queue pairs send again what was lost, until the port is
    /// back or they have given up.
    fn port_down(self: Arc<Self>) {
        if self.head.queues_if_no_path() || self.device.has_other_paths(&self) {
            self.fail(Failure::PortDown);
        }
    }
}

/// How long the target is asked, in milliseconds. It waits about as long for the question.
const DURABLE_MS: u32 = 10_000;

/// Milliseconds between two questions.
const ASK_MS: u32 = 50;

/// Whether requests can go by the queue pairs of a session, and be answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    NotYet,
    Yes,
    /// Its queue pairs are closed.
    Over,
}

impl Session {
    /// Counts the session as one by which requests are answered, unless its queue pairs are closed.
    /// Process context.
    pub(super) fn open(&self) {
        let mut opened = self.opened.lock();
        if *opened == Opened::NotYet {
            *opened = Opened::Yes;
            self.head.session_opened();
        }
    }

    /// Counts it no longer, since its queue pairs are closed; returns whether no other is open.
    /// Process context.
    pub(super) fn close(&self) -> bool {
        let mut opened = self.opened.lock();
        let former = core::mem::replace(&mut *opened, Opened::Over);
        former == Opened::Yes && self.head.session_closed()
    }

    /// Returns whether to ask the target of `admin` before that is closed.
    pub(super) fn is_to_ask_durable(&self) -> bool {
        self.failure() == Some(Failure::ExportEnds)
            && self.is_to_be_followed()
            && self.head.flushes()
    }

    /// Asks the target whether all is durable that it acknowledged, and records that it is. Sleeps,
    /// [`DURABLE_MS`] or so at most.
    pub(super) fn ask_durable(&self, admin: &Admin) {
        let deadline = Deadline::new(DURABLE_MS);
        let durable = loop {
            match admin.ask_durable() {
                Ok(true) => break true,
                Ok(false) if !deadline.has_passed() && !self.head.goes_within(ASK_MS) => {}
                _ => break false,
            }
        };
        if durable {
            let instance = self.volume().and_then(|volume| volume.instance);
            self.head.set_durable(instance);
        }
    }
}

impl Session {
    /// Returns its protection domain. Fails with `ENODEV` when the teardown has let the RDMA device
    /// go.
    fn pd(&self) -> Result<Arc<ProtectionDomain>> {
        self.pd.lock().clone().ok_or(ENODEV)
    }
}

impl Session {
    /// Makes queue pair `index` of the connection `id`. May sleep. Fails as verbs do, and with
    /// `ENOMEM`.
    pub(crate) fn make_queue(self: Arc<Self>, index: u8, id: &Arc<Id>) -> Result<Arc<Queue>> {
        let config = QueueConfig {
            session: self.id,
            epoch: self.epoch,
            index,
            polled: index >= self.settings.queues,
            settings: self.settings,
            unflushed: self.head.unflushed().clone(),
        };
        let pd = self.pd()?;
        Queue::new(self.clone(), config, &self.requests, id, &pd, self.shape)
    }

    /// Makes a queue pair like that of the connection `id`, which the target will refuse, and does
    /// not have it.
    pub(crate) fn make_probe(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
        let setup = |e| Failure::Setup("the admin queue pair", e);
        let tmo_s = self.settings.keep_alive_tmo_s;
        self.pd()
            .and_then(|pd| Admin::new(self.clone(), self.id, tmo_s, id, &pd))
            .map_err(setup)
    }

    /// Makes the admin queue pair of the connection `id`, and has it. As [`Self::make_queue`].
    pub(crate) fn make_admin(self: Arc<Self>, id: &Arc<Id>) -> Result<Arc<Admin>, Failure> {
        let admin = self.clone().make_probe(id)?;
        if let Err(e) = self.watch_port(id) {
            admin.close();
            return Err(Failure::Setup("the watch of the port", e));
        }
        let mut place = self.admin.lock();
        if *self.state.lock() == State::Connecting {
            *place = Some(admin.clone());
            return Ok(admin);
        }
        drop(place);
        admin.close();
        Err(self.failure().unwrap_or(Failure::Disconnected))
    }

    /// Returns by what it proves that requests are its own, if it does.
    pub(crate) fn proof(&self) -> Option<Arc<SessionProof>> {
        self.proof.lock().clone()
    }

    /// Has it prove that from now on.
    pub(crate) fn set_proof(&self, proof: Arc<SessionProof>) {
        *self.proof.lock() = Some(proof);
    }

    /// Adds the next queue pair. It belongs to the teardown even if this fails
    /// because the session is ending: then it is torn down here.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result<(), Failure> {
        let mut queues = self.queues.lock();
        let state = *self.state.lock();
        let result = match state {
            State::Connecting => queues
                .push(queue.clone(), GFP_KERNEL)
                .map_err(|e| Failure::Setup("a queue pair", e.into())),
            State::Ending(failure) | State::Ended(failure) => {
                Err(failure.unwrap_or(Failure::Disconnected))
            }
            State::Live => Err(Failure::Setup("a queue pair", EBUSY)),
        };
        drop(queues);
        if result.is_err() {
            queue.close();
        }
        result
    }

    /// Returns how many RDMA READs of the target the device answers at a time.
    pub(crate) fn responder_resources(&self) -> u8 {
        self.pd().map_or(0, |pd| pd.attributes().max_qp_rd_atom)
    }

    /// Has `link`, by which a queue pair comes up in place of another one, told when the owner
    /// ends; `None`: not any more. Fails if the owner has ended.
    pub(crate) fn has_coming(&self, link: Option<&Arc<Link>>) -> Result<(), Failure> {
        *self.coming.lock() = link.cloned();
        // Whoever ends it looks for the link after that.
        match self.state.lock().reason() {
            None => Ok(()),
            Some(failure) => Err(failure.unwrap_or(Failure::Disconnected)),
        }
    }

    /// Tells that the target has closed a connection. Any context.
    pub(crate) fn connection_closed(self: Arc<Self>) {
        self.fail(Failure::Disconnected);
    }

    /// Tells that the RDMA device goes away. The connection manager's callback, which may sleep,
    /// but not for the end of one.
    pub(crate) fn device_removed(self: Arc<Self>) {
        self.device_removed.store(true, Release);
        self.fail(Failure::DeviceRemoved);
        self.device.device_removed(&self);
    }
}

impl Session {
    /// Starts replacing the queue pair of `queue`, since its request `tag` was not answered in
    /// time. Any context.
    pub(crate) fn queue_timed_out(self: Arc<Self>, queue: &Queue, tag: u16) {
        if !self.is_admitted() {
            // Its replacement would be a path of the disk without having been admitted.
            self.fail(Failure::RequestTimeout);
        } else if queue.mark_timed_out(tag) {
            pr_warn!(
                "{}: queue {} of path {} does not answer in time\n",
                *self.device,
                queue.index(),
                self.path()
            );
            // If that is queued already it has yet to look.
            let _ = self
                .workqueues
                .teardown()
                .enqueue::<_, REPLACE>(self.clone());
        }
    }

    /// Returns whether requests wait for another session when this one has ended.
    pub(crate) fn requests_wait(&self) -> bool {
        self.head.requests_wait()
    }

    /// Has requests wait for no other session. Any context.
    pub(crate) fn no_other_session(&self) {
        self.head.queue_if_no_path(false);
    }

    /// Returns whether flushes and writes with FUA fail, since the target has lost writes that it
    /// acknowledged. Any context.
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.head.has_lost_writes()
    }

    /// Records that one was refused because of that. Any context.
    pub(crate) fn tell_loss(&self) {
        self.head.tell_loss();
    }
}
