// SPDX-License-Identifier: GPL-2.0

//! An initiator's queue pairs on one volume.
//!
//! ```text
//!          end(), any context           nothing left
//!  Live ─────────────────────► Ending ────────────────► Ended
//! ```
//!
//! Whatever goes wrong calls [`Session::end`] and says what it is; the first call, whose reason is
//! kept and logged, queues the teardown, which runs once, in process context: every queue pair is
//! failed, so that nothing of the session can reach the drive any more; what the drive has begun is
//! waited for; then the session is forgotten. If the export ends, what was acknowledged is made
//! durable before, and the initiator can ask for that by the admin queue pair.

use self::{
    changer::{
        Asked,
        Changer, //
    },
    end_reason::EndReason, //
};
use crate::{
    admin::Admin,
    drive::{
        backing::Backing,
        reservations::Drive,
        write_errors::{
            Records,
            WriteErrors,
            WriteErrorsUse, //
        },
    },
    export::volume::Volume,
    io::{
        Fault,
        Flushes,
        Queue,
        QueueConfig,
        Shape, //
    },
    memory::{
        Charge,
        Client,
        Memory, //
    },
};
use hcablk_core::{
    broken,
    crypto::SessionKey,
    logic::session_state::{
        SessionState,
        KEEP_ALIVE_PERIOD_MS, //
    },
    proto::{
        auth::{
            Channel,
            Sealed,
            Window, //
        },
        connect::{
            Epoch,
            Geometry,
            Request,
            SessionId, //
        },
        message::{
            ReservationInfo,
            ReservationOp,
            Status,
            Tag,
            VolumeLimits,
            VolumeState, //
        },
        name::{
            HostId,
            VolumeName, //
        },
        ADMIN_QUEUE, //
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
            Atomic,
            Relaxed, //
        },
        defer::without_io,
        new_irq_lock,
        Event,
        IrqLock,
        Periodic,
        Running,
        Tick,
        WorkQueue, //
    },
    system::{
        self,
        may_print,
        Lines, //
    },
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
        Work,
        WorkItem, //
    },
};

mod changer;
pub(crate) mod end_reason;

/// How long an initiator whose export ends is given to ask whether all is durable, in milliseconds.
const DURABLE_ASK_MS: u32 = 10_000;

/// How often it is looked meanwhile whether the disk's other sessions have closed their queue
/// pairs, in milliseconds.
const DURABLE_LOOK_MS: u32 = 20;

/// What a volume is at one moment.
pub(crate) struct VolumeNow {
    pub(crate) state: VolumeState,
    pub(crate) limits: VolumeLimits,
    /// A later one, modulo 2^32, when anything of both has changed. Not 0.
    pub(crate) generation: u32,
}

/// What a volume exports, as a session on it knows it.
pub(crate) struct Exported {
    pub(crate) backing: Arc<Backing>,
    pub(crate) geometry: Geometry,
    /// What is remembered of session ids' writes.
    pub(crate) records: Arc<Records>,
    /// Where sessions on it end: on a workqueue of its own, since an end waits for the drive.
    pub(crate) ends: Arc<WorkQueue>,
}

/// See the module's picture. A session is live from the start.
type State = SessionState<EndReason>;

/// A session. It and its queues hold each other until the teardown.
#[pin_data]
pub(crate) struct Session {
    volume: Arc<Volume>,
    /// See [`Exported::ends`].
    ends: Arc<WorkQueue>,
    /// The memory of the port that it began at.
    memory: Arc<Memory>,
    geometry: Geometry,
    /// The volume or its drive refused writes when the session began. All replies carry this; the
    /// watch reports changes.
    began_read_only: bool,
    flushes: Flushes,
    /// Its initiator's disk sends flushes: see [`Self::may_ask_durable`].
    asks_durable: Atomic<bool>,
    /// Bytes of the largest request; set with the admin queue pair, which the others follow.
    largest: Atomic<u32>,
    id: SessionId,
    epoch: Epoch,
    host: HostId,
    /// The number of the first preemption that has ended the registration of its host; 0: none has.
    preempted: Atomic<u64>,
    queue_count: u8,
    /// That its initiator is who it says; `None`: it need not prove that.
    proof: Option<Arc<SessionProof>>,
    pd: Arc<ProtectionDomain>,
    /// Its part of the port's memory; set with the admin queue pair, and taken by the teardown.
    #[pin]
    client: Mutex<Option<Arc<Client>>>,
    /// Taken by the teardown, so that the device is closed when that is done.
    #[pin]
    backing: Mutex<Option<Arc<Backing>>>,
    write_errors: WriteErrorsUse,
    /// Whether all is durable that was acknowledged, once that is known.
    #[pin]
    durable: Mutex<Option<bool>>,
    /// The initiator was told, or will not ask.
    #[pin]
    durable_told: Event,
    #[pin]
    state: IrqLock<State>,
    /// Empty once the teardown is done with it.
    #[pin]
    admin: Mutex<Option<Arc<Admin>>>,
    changer: Arc<Changer>,
    /// Set with the admin queue pair, until the teardown.
    #[pin]
    port: WatchedPort,
    #[pin]
    queues: Mutex<KVec<Arc<Queue>>>,
    /// Held by who closes queues: the teardown, which has shut them before, or who replaces one.
    #[pin]
    closing: Mutex<()>,
    #[pin]
    keep_alive_timer: Mutex<Option<Running<Session>>>,
    #[pin]
    ended: Event,
    #[pin]
    work: Work<Session>,
}

impl_has_work! {
    impl HasWork<Self> for Session { self.work }
}

impl Session {
    /// Makes a session without queues, on what `volume` exports. May sleep.
    pub(crate) fn new(
        volume: Arc<Volume>,
        exported: Exported,
        memory: &Arc<Memory>,
        request: &Request,
        proof: Option<Arc<SessionProof>>,
        pd: Arc<ProtectionDomain>,
    ) -> Result<Arc<Self>> {
        let Exported {
            backing,
            geometry,
            records,
            ends,
        } = exported;
        let write_errors = records.begin(request, &backing)?;
        let began_read_only = geometry.read_only || backing.refuses_writes();
        let flushes = Arc::new(Atomic::new(false), GFP_KERNEL)?;
        let changer = Changer::new(volume.clone(), request.host, request.session)?;
        let session = Arc::pin_init(
            pin_init!(Self {
                volume,
                ends,
                memory: memory.clone(),
                largest: Atomic::new(geometry.max_transfer),
                geometry,
                began_read_only,
                flushes,
                asks_durable: Atomic::new(false),
                id: request.session,
                epoch: request.epoch,
                host: request.host,
                preempted: Atomic::new(0),
                queue_count: request.queues,
                proof,
                pd,
                client <- new_mutex!(None),
                backing <- new_mutex!(Some(backing)),
                write_errors,
                durable <- new_mutex!(None),
                durable_told <- Event::new(),
                state <- new_irq_lock!(State::Live, "hcablk_session"),
                admin <- new_mutex!(None),
                changer,
                port <- WatchedPort::new(),
                queues <- new_mutex!(KVec::new()),
                closing <- new_mutex!(()),
                keep_alive_timer <- new_mutex!(None),
                ended <- Event::new(),
                work <- new_work!("hcablk_target::Session"),
            }),
            GFP_KERNEL,
        )?;
        session.comes_to(trace::State::Live);
        *session.keep_alive_timer.lock() =
            Some(Periodic::start(session.clone(), KEEP_ALIVE_PERIOD_MS)?);
        Ok(session)
    }

    /// Returns the name of the volume, for messages.
    pub(crate) fn volume(&self) -> &dyn kernel::fmt::Display {
        &*self.volume
    }

    /// Returns the name of the volume.
    pub(crate) fn volume_name(&self) -> VolumeName {
        self.volume.name()
    }

    /// Returns whether it is a session on `volume`.
    pub(crate) fn is_of(&self, volume: &Volume) -> bool {
        core::ptr::eq(&*self.volume, volume)
    }

    /// Returns whether the session has its memory of `memory`, which is that of one port.
    pub(crate) fn uses(&self, memory: &Memory) -> bool {
        core::ptr::eq(&*self.memory, memory)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns whether the volume, or its drive, refused writes when the session began.
    pub(crate) fn began_read_only(&self) -> bool {
        self.began_read_only
    }

    /// Returns the bytes of the largest request on every queue pair.
    pub(crate) fn largest(&self) -> u32 {
        self.largest.load(Relaxed)
    }

    /// Sets [`Self::largest`]. To be called by whoever makes the admin queue pair.
    pub(crate) fn set_largest(&self, bytes: u32) {
        self.largest.store(bytes, Relaxed);
    }

    pub(crate) fn host(&self) -> HostId {
        self.host
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns by what requests prove that they are of this session, if it was begun by a proof.
    pub(crate) fn proof(&self) -> Option<&Arc<SessionProof>> {
        self.proof.as_ref()
    }

    /// Returns the number by which such requests name it.
    pub(crate) fn handle(&self) -> Option<u64> {
        self.proof.as_ref().map(|proof| proof.handle())
    }

    pub(crate) fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Returns its part of the port's memory, unless the teardown has begun.
    pub(crate) fn client(&self) -> Option<Arc<Client>> {
        self.client.lock().clone()
    }

    /// Sets [`Self::client`]. To be called by whoever makes the admin queue pair.
    pub(crate) fn set_client(&self, client: Arc<Client>) {
        *self.client.lock() = Some(client);
    }

    /// Returns what the volume is made of, unless the teardown has begun.
    pub(crate) fn backing(&self) -> Option<Arc<Backing>> {
        self.backing.lock().clone()
    }

    /// Returns which errors of the session's writes are still to be told.
    pub(crate) fn write_errors(&self) -> &Arc<WriteErrors> {
        &self.write_errors
    }

    /// Returns whether `request` names this session, in whatever epoch.
    pub(crate) fn is_named_by(&self, request: &Request) -> bool {
        self.id == request.session
            && self.host == request.host
            && self.volume.name() == request.volume
    }

    /// Returns how many queue pairs it shall have beside the admin queue pair.
    pub(crate) fn queue_count(&self) -> u8 {
        self.queue_count
    }

    /// Returns whether the session is of the same host and volume as `request`, but of another
    /// instance of that host; or of another path of the same disk, whose past `request` has
    /// forgotten: it goes on with nothing.
    pub(crate) fn is_of_other_instance(&self, request: &Request) -> bool {
        let forgotten = !request.resume
            && self.id != request.session
            && self.id.on_path(0) == request.session.on_path(0)
            && self.epoch < request.epoch;
        self.host == request.host
            && self.volume.name() == request.volume
            && (forgotten || self.id.instance() != request.session.instance())
    }

    /// Returns whether queue pair `index` is connected.
    pub(crate) fn has_queue(&self, index: u8) -> bool {
        self.queues.lock().iter().any(|q| q.index() == index)
    }

    /// Returns whether it is being torn down.
    pub(crate) fn is_ending(&self) -> bool {
        !self.state.lock().is_live()
    }

    /// Returns how many queue pairs are connected.
    pub(crate) fn connected(&self) -> usize {
        self.queues.lock().len()
    }

    /// Calls `f` with every queue.
    pub(crate) fn for_each_queue(&self, mut f: impl FnMut(&Queue)) {
        for queue in self.queues.lock().iter() {
            f(queue);
        }
    }

    /// Returns the queue that came after so many others.
    fn queue_at(&self, place: usize) -> Option<Arc<Queue>> {
        self.queues.lock().get(place).cloned()
    }

    /// Tells of a state to who listens.
    fn comes_to(&self, state: trace::State) {
        trace::target::session(|| trace::Change {
            session: self.id.0,
            epoch: self.epoch.0,
            queue: None,
            state,
            error: self.reason().map_or(0, EndReason::errno),
        });
    }

    /// Returns why the session ends, if it does.
    fn reason(&self) -> Option<EndReason> {
        self.state.lock().reason()
    }

    /// Ends the session because of `reason`. Any context.
    pub(crate) fn end(self: &Arc<Self>, reason: EndReason) {
        {
            let mut state = self.state.lock();
            if !state.end(reason) {
                return;
            }
        }
        self.comes_to(trace::State::Ending);
        self.report_end(reason);
        // Queued once: the state never comes back.
        if self.ends.enqueue(self.clone()).is_err() {
            broken!("the teardown of a session was queued already");
        }
    }

    /// Logs why the session ends, with a rate limit, since a peer can cause it.
    #[cold]
    fn report_end(&self, reason: EndReason) {
        let (volume, id, host) = (self.volume(), self.id.0, self.host);
        if reason.is_usual() {
            if may_print(Lines::Ends) {
                pr_info!("{volume}: session {id:016x} of {host} ended: {reason}\n");
            }
        } else if may_print(Lines::Faults) {
            pr_warn!("{volume}: session {id:016x} of {host} ended: {reason}\n");
        }
    }

    /// Waits until nothing is left of the session, which takes as long as the
    /// drive needs for what it has begun. Process context.
    pub(crate) fn wait(&self) {
        while self.ended.wait_ms(60_000).is_err() {
            pr_warn!("{}: still waiting for a session to end\n", self.volume());
        }
    }

    /// Waits at most `ms` milliseconds for that; whether nothing is left. Process context.
    pub(crate) fn has_ended_within(&self, ms: u32) -> bool {
        self.ended.wait_ms(ms).is_ok()
    }

    /// Has the drive make durable what was acknowledged, and gives the initiator time to ask
    /// whether it has. No queue pair but `admin` is left; those of the disk's other sessions, by
    /// which something may be acknowledged that the answer is to cover, are waited for, but not
    /// longer than the initiator asks. Sleeps, as long as the drive takes.
    fn make_durable(&self, admin: &Admin) {
        let Some(backing) = self.backing().filter(|_| self.may_ask_durable()) else {
            return;
        };
        let mut looks = DURABLE_ASK_MS / DURABLE_LOOK_MS;
        while self.write_errors.is_open() {
            // When memory is short their teardowns may wait for this one.
            if looks == 0 || self.durable_told.wait_ms(DURABLE_LOOK_MS).is_ok() {
                return;
            }
            looks -= 1;
        }
        let durable = self.write_errors.is_durable(&backing);
        *self.durable.lock() = Some(durable);
        if self.durable_told.wait_ms(DURABLE_ASK_MS).is_ok() {
            admin.let_answers_leave();
        }
    }

    /// Returns whether its initiator asks when the export ends whether all is durable.
    fn may_ask_durable(&self) -> bool {
        self.geometry.write_cache || self.asks_durable.load(Relaxed)
    }

    fn tear_down(&self) {
        drop(self.keep_alive_timer.lock().take());
        self.port.leave();
        let admin = self.admin.lock().clone();
        let withdrawn = self.reason() == Some(EndReason::Withdrawn);
        if let Some(admin) = &admin {
            match withdrawn {
                // Not shut before the initiator has asked what it wants to know.
                true => admin.say_gone(),
                false => admin.shut(),
            }
        }
        // None comes any more, and these stay listed until they are closed: their counters are
        // read there.
        let queues = || (0..).map_while(|place| self.queue_at(place));
        // Nothing begins on any from here on, before it is waited for one that is being replaced,
        // for which a drive may take for ever.
        for queue in queues() {
            queue.comes_to(trace::State::Ending);
            queue.shut();
        }
        let _alone = self.closing.lock();
        // If the replaced one went meanwhile, the one after it had its place and was missed.
        for queue in queues() {
            queue.shut();
        }
        Queue::close_all(queues);
        self.write_errors.close();
        if let Some(admin) = admin {
            if withdrawn {
                self.make_durable(&admin);
            }
            admin.close();
        }
        self.changer.forget_admin();
        drop(self.admin.lock().take());
        let queues = self.volume.retire(&self.queues);
        let count = queues.len();
        drop(queues);
        let client = self.client.lock().take();
        drop(client);
        // Under no lock: this may close the device.
        let backing = self.backing.lock().take();
        drop(backing);
        self.state.lock().finish();
        self.comes_to(trace::State::Ended);
        if may_print(Lines::Gone) {
            pr_info!(
                "{}: nothing is left of session {:016x} of {} ({count} queues)\n",
                self.volume(),
                self.id.0,
                self.host
            );
        }
        // Who waits looks for it in the list, and finds all of it done.
        self.volume.session_ended(self);
        self.ended.set();
    }
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.tear_down());
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
    /// Returns whether requests of this session can reach `drive`. Takes no reference: whoever asks
    /// may not be the last to have one.
    pub(crate) fn is_on(&self, drive: &Arc<Drive>) -> bool {
        let backing = self.backing.lock();
        let own = backing.as_ref().and_then(|backing| backing.drive());
        own.is_some_and(|own| Arc::ptr_eq(own, drive))
    }

    /// Ends the session because the preemption `number` has ended the registration of its host.
    pub(crate) fn preempt(self: &Arc<Self>, number: u64) {
        // The first counts: later ones wait for what it has ended, too.
        if self.preempted.load(Relaxed) == 0 {
            self.preempted.store(number, Relaxed);
        }
        self.end(EndReason::Preempted);
    }

    /// Returns whether a preemption has ended it whose number is `last` or less.
    pub(crate) fn is_preempted_by(&self, last: u64) -> bool {
        (1..=last).contains(&self.preempted.load(Relaxed))
    }
}

/// The key of a session, by which its initiator names it, and which of its requests have come.
#[pin_data]
pub(crate) struct SessionProof {
    handle: u64,
    pub(crate) key: SessionKey,
    #[pin]
    window: Mutex<Window>,
}

impl SessionProof {
    pub(crate) fn new(key: SessionKey) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                handle: system::random_u64(),
                key,
                window <- new_mutex!(Window::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number by which requests name the session.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns whether the session's initiator has sent `request` on `channel`.
    pub(crate) fn has_sealed(&self, request: &Sealed, channel: &Channel) -> bool {
        self.key.has_sealed(request, channel)
    }

    /// Returns whether it has not come before. To be asked once, when [`Self::has_sealed`].
    pub(crate) fn is_new(&self, request: &Sealed) -> bool {
        self.window.lock().accept(request.counter())
    }
}

impl Session {
    /// Ends when the port of `id` goes down, from here on, unless it has ended already. Sleeps.
    fn watch_port(self: &Arc<Self>, id: &Arc<Id>) -> Result {
        self.port
            .watch(id, self.clone(), || !self.state.lock().is_live())
    }
}

impl PortListener for Session {
    fn port_down(self: Arc<Self>) {
        self.end(EndReason::PortDown);
    }
}

impl Session {
    /// Returns what the volume is now; `None`: its drive is gone, or the session ends. May sleep,
    /// but does not wait for the drive.
    pub(crate) fn volume_now(&self) -> Option<VolumeNow> {
        let backing = self.backing()?;
        let (now, generation) = backing.observe()?;
        Some(VolumeNow {
            state: VolumeState {
                sectors: now.sectors,
                read_only: self.geometry.read_only || now.refuses_writes,
                write_cache: Some(now.wants_flushes),
            },
            limits: VolumeLimits {
                // They come by a key.
                atomic: now.limits.atomic.filter(|_| crate::rdma_read()),
                ..now.limits
            },
            generation,
        })
    }

    /// Records that the initiator knows of a volatile write cache or of none (`None`: what the
    /// reply said when the session began), and whether its disk sends `flushes`. Any context.
    pub(crate) fn set_flushes(&self, cache: Option<bool>, flushes: bool) {
        let relies = match cache {
            Some(cache) => cache && flushes,
            None => self.geometry.write_cache,
        };
        self.flushes.store(relies, Relaxed);
        if flushes {
            self.asks_durable.store(true, Relaxed);
        }
    }

    /// Returns a number, not 0, that changes when the target begins or ceases to listen at an
    /// address. Any context.
    pub(crate) fn portals_generation(&self) -> u32 {
        self.volume.registry().portals_generation()
    }

    /// Ends the session of the same disk on another path if it has `epoch` or one before, and lets
    /// none begin with these. Returns whether nothing of it can reach the drive any more; `EINVAL`
    /// if the path is the session's own. May sleep, but does not wait for the drive.
    pub(crate) fn fence(&self, path: u8, epoch: Epoch) -> Result<bool> {
        let id = self.id.on_path(path);
        if id == self.id {
            return Err(EINVAL);
        }
        Ok(self.volume.fence_session(self.host, id, epoch))
    }

    /// Returns whether all acknowledged writes are durable; `None`: not known yet, or the export
    /// does not end. Process context.
    pub(crate) fn durable(&self) -> Option<bool> {
        *self.durable.lock()
    }

    /// Records that the initiator got that answer. Any context.
    pub(crate) fn durable_told(&self) {
        self.durable_told.set();
    }

    /// Begins a change of the drive's reservations, which the initiator asked for as `sequence`.
    /// Request `tag` is answered when it is made ([`Admin::answer_change`]). Fails with the
    /// request's status if it is not begun. May sleep, but does not wait for a file.
    pub(crate) fn reserve(&self, tag: Tag, sequence: u32, op: ReservationOp) -> Result<(), Status> {
        let backing = self.backing().ok_or(Status::Gone)?;
        let drive = backing.drive_use().ok_or(Status::Unsupported)?.clone();
        // Before it is looked whether the session ends: see there.
        let ticket = drive.ticket();
        if self.is_ending() {
            return Err(Status::Gone);
        }
        self.changer.begin(Asked {
            tag,
            sequence,
            op,
            drive,
            ticket,
        })
    }

    /// Returns the key of registrant `index` of the drive, or its reservation if that is `None`.
    /// Fails with `Unsupported`, `Gone`, and for a key with `Draining`. May sleep.
    pub(crate) fn reservation(&self, index: Option<u32>) -> Result<ReservationInfo, Status> {
        if let Some(index) = index {
            return self.volume.read_key(self, index);
        }
        let backing = self.backing().ok_or(Status::Gone)?;
        let drive = backing.drive().ok_or(Status::Unsupported)?;
        Ok(drive.read(None))
    }
}

impl Session {
    /// Makes the admin queue pair of the connection `id`, which `client` was charged for, and adds
    /// it. May sleep. Fails with `EIO` if the session is ending.
    pub(crate) fn make_admin(
        self: &Arc<Self>,
        id: &Arc<Id>,
        client: Arc<Client>,
    ) -> Result<Arc<Admin>> {
        let completions = self.volume.registry().admin_completions();
        let admin = Admin::new(self.clone(), id, &self.pd, completions, client)?;
        let watched = self.watch_port(id);
        let mut place = self.admin.lock();
        if watched.is_ok() && self.state.lock().is_live() {
            *place = Some(admin.clone());
            self.changer.answer_by(&admin);
            return Ok(admin);
        }
        drop(place);
        admin.close();
        watched.and(Err(EIO))
    }

    /// Makes queue pair `index` of the connection `id`, which `charge` is for, over what the volume
    /// is made of. May sleep.
    pub(crate) fn make_queue(
        self: &Arc<Self>,
        index: u8,
        id: &Arc<Id>,
        backing: Arc<Backing>,
        shape: Shape,
        charged: (&Arc<Client>, Charge),
    ) -> Result<Arc<Queue>> {
        let config = QueueConfig {
            session: self.id,
            host: self.host,
            epoch: self.epoch,
            index,
            geometry: self.geometry,
            flushes: self.flushes.clone(),
            completions: backing.completions(self.pd.is_software()).clone(),
            pd: self.pd.clone(),
            backing,
            write_errors: self.write_errors.clone(),
            teller: self.write_errors.teller(),
        };
        Queue::new(self.clone(), config, id, shape, charged)
    }

    /// Ends the session because of queue pair `queue`.
    pub(crate) fn end_by(self: &Arc<Self>, queue: u8, fault: Fault) {
        self.end(EndReason::Queue(queue, fault));
        if queue == ADMIN_QUEUE {
            // Nobody will ask.
            self.durable_told.set();
        }
    }

    /// Adds a queue pair. If the session is ending, or has this queue already,
    /// the queue pair is taken down and `EIO` or `EEXIST` returned.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result {
        let mut queues = self.queues.lock();
        let result = if !self.state.lock().is_live() {
            Err(EIO)
        } else if queues.iter().any(|q| q.index() == queue.index()) {
            Err(EEXIST)
        } else {
            queue.time(self.volume.timing());
            queues.push(queue.clone(), GFP_KERNEL).map_err(Into::into)
        };
        drop(queues);
        if result.is_err() {
            queue.close();
        }
        result
    }

    /// Takes a queue pair down while the session goes on, and waits until nothing of it is left:
    /// as long as the drive needs for what it has begun. Does nothing if it is not there, or
    /// the session is ending. `false`: another one is being taken down, which is not waited for: an
    /// initiator replaces one after the other. Process context.
    pub(crate) fn replace_queue(&self, index: u8) -> bool {
        let Some(_alone) = self.closing.try_lock() else {
            return !self.state.lock().is_live();
        };
        if !self.state.lock().is_live() {
            return true;
        }
        let found = self
            .queues
            .lock()
            .iter()
            .find(|queue| queue.index() == index)
            .cloned();
        if let Some(queue) = found {
            queue.comes_to(trace::State::Ending);
            queue.close_alone();
            drop(self.volume.retire_one(&self.queues, index));
        }
        true
    }
}
