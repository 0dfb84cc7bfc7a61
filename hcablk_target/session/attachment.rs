// SPDX-License-Identifier: GPL-2.0

//! A volume that is attached to a session: by what it is told from others, what its initiator was
//! told of it, and what is remembered of its requests.
//!
//! ```text
//!         end(), any context              nothing left
//!  Live ──────────────────────► Ending ────────────────► Ended
//! ```
//!
//! The last volume of a session ends with it, and the session with the volume. Another one ends by
//! itself: no request for it begins any more on any queue pair, those under way are waited for, as
//! long as the drive takes, and the session goes on for its other volumes.

use super::{
    changer::{
        Asked,
        Changer, //
    },
    end_reason::EndReason,
    watched::Watched,
    Session, //
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
        Flushes,
        Gone,
        Queue,
        VolumeConfig, //
    },
    stats::Counters,
};
use hcablk_core::{
    broken,
    logic::session_state::SessionState,
    proto::{
        connect::{
            Epoch,
            Geometry,
            Request,
            SessionId, //
        },
        message::{
            Handle,
            ReservationInfo,
            ReservationOp,
            Status,
            Tag,
            VolumeLimits,
            VolumeState, //
        },
        name::{
            HostId,
            VolumeId,
            VolumeName, //
        },
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        defer::without_io,
        new_irq_lock,
        Event,
        IrqLock,
        WorkQueue, //
    },
    system::{
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

/// How long an initiator whose export ends is given to ask whether all is durable, in milliseconds.
const DURABLE_ASK_MS: u32 = 10_000;

/// How often it is looked meanwhile whether the disk's other sessions have closed their queue
/// pairs, in milliseconds.
const DURABLE_LOOK_MS: u32 = 20;

/// How often the queue pairs are asked for requests that have ended, at most, in milliseconds.
const GONE_LOOK_MS: u32 = 250;

/// How often it is logged that a drive has not finished a volume's requests, in milliseconds.
const GONE_LOG_MS: u32 = 60_000;

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

/// A volume of a session. Its session and it hold each other until the teardown.
#[pin_data]
pub(crate) struct Attachment {
    session: Arc<Session>,
    volume: Arc<Volume>,
    /// See [`Exported::ends`].
    ends: Arc<WorkQueue>,
    /// What names it in the session's messages: written once, before requests name it.
    handle: Atomic<u32>,
    /// Of its own: as long as the session ends for it, too, it is live here.
    #[pin]
    state: IrqLock<SessionState<EndReason>>,
    /// What the initiator watches.
    #[pin]
    pub(crate) watched: Watched,
    /// Requests on the session's queue pairs may name it. Set under the lock of these.
    is_published: Atomic<bool>,
    ends_alone: Atomic<bool>,
    /// Held by the queue pairs that have it, and until the teardown.
    #[pin]
    gone: Mutex<Option<Arc<Gone>>>,
    all_gone: Arc<Event>,
    #[pin]
    ended: Event,
    #[pin]
    work: Work<Attachment>,
    /// What the queue pairs have counted of its requests, by their indexes: of one after the other
    /// if a queue pair is replaced.
    #[pin]
    counters: Mutex<KVec<Option<Arc<Counters>>>>,
    geometry: Geometry,
    /// The volume or its drive refused writes when it was attached. All replies carry this; the
    /// watch reports changes.
    began_read_only: bool,
    flushes: Flushes,
    /// Its initiator's disk sends flushes: see [`Self::may_ask_durable`].
    asks_durable: Atomic<bool>,
    id: SessionId,
    epoch: Epoch,
    host: HostId,
    /// The number of the first preemption that has ended the registration of its host; 0: none has.
    preempted: Atomic<u64>,
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
    changer: Arc<Changer>,
}

impl Attachment {
    /// Attaches what `volume` exports to `session`, for the disk that `request` names and that has
    /// `write_errors`. May sleep.
    pub(crate) fn new(
        session: &Arc<Session>,
        volume: Arc<Volume>,
        exported: Exported,
        write_errors: WriteErrorsUse,
        request: &Request,
    ) -> Result<Arc<Self>> {
        let Exported {
            backing,
            geometry,
            ends,
            ..
        } = exported;
        let (gone, all_gone) = Gone::new()?;
        let began_read_only = geometry.read_only || backing.refuses_writes();
        let flushes = Arc::new(Atomic::new(false), GFP_KERNEL)?;
        let changer = Changer::new(volume.clone(), request.host, request.session)?;
        let attachment = Arc::pin_init(
            pin_init!(Self {
                session: session.clone(),
                volume,
                ends,
                handle: Atomic::new(0),
                state <- new_irq_lock!(SessionState::Live, "hcablk_attachment"),
                watched <- Watched::new(),
                is_published: Atomic::new(false),
                ends_alone: Atomic::new(false),
                gone <- new_mutex!(Some(gone)),
                all_gone,
                ended <- Event::new(),
                work <- new_work!("hcablk_target::Attachment"),
                counters <- new_mutex!(KVec::new()),
                geometry,
                began_read_only,
                flushes,
                asks_durable: Atomic::new(false),
                id: request.session,
                epoch: request.epoch,
                host: request.host,
                preempted: Atomic::new(0),
                backing <- new_mutex!(Some(backing)),
                write_errors,
                durable <- new_mutex!(None),
                durable_told <- Event::new(),
                changer,
            }),
            GFP_KERNEL,
        )?;
        session.attach(&attachment)?;
        Ok(attachment)
    }

    /// Returns what names it in the session's messages.
    pub(crate) fn handle(&self) -> Handle {
        Handle(self.handle.load(Relaxed) as u16)
    }

    /// Sets [`Self::handle`].
    pub(super) fn set_handle(&self, handle: Handle) {
        self.handle.store(handle.0.into(), Relaxed);
    }

    /// Lets requests name it on all queue pairs that the session has, and will have. May sleep.
    /// Fails with `ENOMEM`, and with `EIO` if it ends.
    pub(crate) fn publish(&self) -> Result {
        {
            let queues = self.session.queues.lock();
            // Another volume that ends alone now waits for the queue pairs until they have this
            // one.
            self.is_published.store(true, Relaxed);
            if !self.is_live() {
                return Err(EIO);
            }
            queues.iter().try_for_each(|queue| self.give(queue))?;
        }
        let admin = self.session.admin.lock();
        self.answer_by(admin.as_ref().ok_or(EIO)?);
        Ok(())
    }

    /// Gives it to a queue pair, unless that has it. Under the lock of the queue pairs. May sleep.
    /// Fails with `ENOMEM`, and with `EIO` if it ends.
    pub(super) fn give(&self, queue: &Queue) -> Result {
        let backing = self.backing().ok_or(EIO)?;
        let config = self.config(queue.index(), backing)?;
        match queue.attach(self.handle(), config) {
            Err(EEXIST) => Ok(()),
            given => given,
        }
    }

    /// Returns the session that it is attached to.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the name of the volume.
    pub(crate) fn volume_name(&self) -> VolumeName {
        self.volume.name()
    }

    /// Returns whether `volume` is attached.
    pub(crate) fn is_of(&self, volume: &Volume) -> bool {
        core::ptr::eq(&*self.volume, volume)
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns whether the volume, or its drive, refused writes when it was attached.
    pub(crate) fn began_read_only(&self) -> bool {
        self.began_read_only
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

    /// Returns what the volume is made of, unless the teardown has begun.
    pub(crate) fn backing(&self) -> Option<Arc<Backing>> {
        self.backing.lock().clone()
    }

    /// Returns which volume it is, whatever its name.
    pub(crate) fn wwid(&self) -> Option<VolumeId> {
        self.volume.wwid()
    }

    /// Returns which errors of its writes are still to be told.
    pub(crate) fn write_errors(&self) -> &Arc<WriteErrors> {
        &self.write_errors
    }

    /// Returns whether `request` names it, in whatever epoch.
    pub(crate) fn is_named_by(&self, request: &Request) -> bool {
        self.id == request.session
            && self.host == request.host
            && Some(self.volume.name()) == request.volume
    }

    /// Returns whether it is of the same host and volume as `request`, but of another instance of
    /// that host; or of another path of the same disk, whose past `request` has forgotten: it goes
    /// on with nothing.
    pub(crate) fn is_of_other_instance(&self, request: &Request) -> bool {
        let forgotten = !request.resume
            && self.id != request.session
            && self.id.on_path(0) == request.session.on_path(0)
            && self.epoch < request.epoch;
        self.host == request.host
            && Some(self.volume.name()) == request.volume
            && (forgotten || self.id.instance() != request.session.instance())
    }

    /// Returns whether requests on the session's queue pairs may name it, as long as it is live.
    pub(crate) fn is_published(&self) -> bool {
        self.is_published.load(Relaxed)
    }

    /// Returns why it ends, if it does.
    pub(super) fn reason(&self) -> Option<EndReason> {
        self.state.lock().reason()
    }

    /// Returns whether it ends, or has ended, while its session went on.
    pub(super) fn ends_alone(&self) -> bool {
        self.ends_alone.load(Relaxed)
    }

    /// Returns whether it does not end by itself.
    pub(crate) fn is_live(&self) -> bool {
        self.state.lock().is_live()
    }

    /// Returns whether it is being torn down.
    pub(crate) fn is_ending(&self) -> bool {
        !self.is_live() || self.session.is_ending()
    }

    /// Ends it because of `reason`, and the session if it has no other. Any context.
    pub(crate) fn end(self: &Arc<Self>, reason: EndReason) {
        let enqueue = || {
            if self.ends.enqueue(self.clone()).is_err() {
                broken!("the end of a volume's requests was queued already");
            }
        };
        match self.session.begin_end_of(self, reason, enqueue) {
            None => self.session.end(reason),
            Some(false) => {}
            Some(true) => self.report_end(reason),
        }
    }

    /// Begins its own end, `alone` or with its session. Returns `false` if it has begun before.
    /// Under the lock of the session's volumes.
    pub(super) fn begin_end(&self, reason: EndReason, alone: bool) -> bool {
        let begins = self.state.lock().end(reason);
        if begins {
            self.ends_alone.store(alone, Relaxed);
        }
        begins
    }

    /// Logs why it ends, with a rate limit, since a peer can cause it.
    #[cold]
    fn report_end(&self, reason: EndReason) {
        let (volume, id, host) = (&*self.volume, self.id.0, self.host);
        if may_print(Lines::Ends) {
            pr_info!("{volume}: disk {id:016x} of {host} detached: {reason}\n");
        }
    }

    /// Waits until nothing is left of it, which takes as long as the drive needs for what it has
    /// begun. Process context.
    pub(crate) fn wait(&self) {
        while !self.has_ended_within(60_000) {
            pr_warn!("{}: still waiting for a session to end\n", *self.volume);
        }
    }

    /// Waits at most `ms` milliseconds for that; whether nothing is left. Process context.
    pub(crate) fn has_ended_within(&self, ms: u32) -> bool {
        self.ended.wait_ms(ms).is_ok()
    }

    /// Ends it while the session goes on. Sleeps, as long as the drive takes.
    fn tear_down(&self) {
        let handle = self.handle();
        {
            // A queue pair that comes later does not get what does not live.
            let queues = self.session.queues.lock();
            for queue in queues.iter() {
                queue.withdraw(handle);
            }
            for queue in queues.iter() {
                queue.forget(handle);
            }
        }
        drop(self.gone.lock().take());
        let withdrawn = self.reason() == Some(EndReason::Withdrawn);
        let admin = || self.session.admin.lock().clone();
        if let Some(admin) = admin() {
            admin.say_gone(self, withdrawn && self.is_published());
        }
        self.wait_until_gone();
        self.close();
        // One that nobody knows of nobody asks about.
        if withdrawn && self.is_published() {
            self.make_durable(admin);
        }
        self.forget_admin();
        self.release();
        self.finish();
        self.session.forget(handle);
        self.ended();
    }

    /// Waits until no request of the session refers to it. Responses whose SEND has completed raise
    /// no event: the queue pairs are asked for those. Sleeps, as long as the drive takes.
    fn wait_until_gone(&self) {
        let (mut waited, mut step) = (0, 1);
        loop {
            self.session.for_each_queue(|queue| queue.kick());
            if self.all_gone.wait_ms(step).is_ok() {
                return;
            }
            waited += step;
            step = (2 * step).min(GONE_LOOK_MS);
            if waited >= GONE_LOG_MS {
                waited = 0;
                pr_warn!(
                    "{}: disk {:016x} of {}: still waiting for the drive to finish its requests\n",
                    *self.volume,
                    self.id.0,
                    self.host
                );
            }
        }
    }

    /// Takes note that nothing is left of it.
    pub(super) fn finish(&self) {
        self.state.lock().finish();
    }
}

impl_has_work! {
    impl HasWork<Self> for Attachment { self.work }
}

impl WorkItem for Attachment {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.tear_down());
    }
}

/// Its end, by its session.
impl Attachment {
    /// Has the drive make durable what was acknowledged, and gives the initiator time to ask
    /// whether it has. No queue pair but `admin`, which is asked for then, is left; those of the
    /// disk's other sessions, by which something may be acknowledged that the answer is to cover,
    /// are waited for, but not longer than the initiator asks. Sleeps, as long as the drive takes.
    pub(super) fn make_durable(&self, admin: impl FnOnce() -> Option<Arc<Admin>>) {
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
            // Not before: the drive may hang, and the queue pair may go meanwhile.
            if let Some(admin) = admin() {
                admin.let_answers_leave();
            }
        }
    }

    /// Returns whether its initiator asks when the export ends whether all is durable.
    fn may_ask_durable(&self) -> bool {
        self.geometry.write_cache || self.asks_durable.load(Relaxed)
    }

    /// Records that nothing is acknowledged any more: the queue pairs are closed.
    pub(super) fn close(&self) {
        self.write_errors.close();
    }

    /// Has changes of reservations answered by `admin`.
    pub(super) fn answer_by(&self, admin: &Arc<Admin>) {
        self.changer.answer_by(admin);
    }

    /// Lets go of the admin queue pair: nothing is answered any more. May sleep.
    pub(super) fn forget_admin(&self) {
        self.changer.forget_admin();
    }

    /// Lets go of the volume's drive, which may close the device. Under no lock. May sleep.
    pub(super) fn release(&self) {
        drop(self.gone.lock().take());
        // Whoever has done something for a request may refer to it for a moment longer, and is not
        // to be the last: a drive's work cannot drop the drive.
        while self.all_gone.wait_ms(GONE_LOG_MS).is_err() {
            pr_warn!(
                "{}: something refers to a volume that nobody has\n",
                *self.volume
            );
            if !self.session.is_of_host() {
                // An invariant is broken; the session is to end all the same.
                break;
            }
        }
        let backing = self.backing.lock().take();
        drop(backing);
    }

    /// Forgets it, of which nothing is left. Process context.
    pub(super) fn ended(&self) {
        self.volume.attachment_ended(self);
        self.ended.set();
    }

    /// Returns the volume.
    pub(super) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns what queue pair `queue` needs to know of it, over what the volume is made of. May
    /// sleep. Fails with `ENOMEM`, and with `EIO` if it ends.
    pub(super) fn config(&self, queue: u8, backing: Arc<Backing>) -> Result<VolumeConfig> {
        if !self.is_live() {
            return Err(EIO);
        }
        Ok(VolumeConfig {
            name: self.volume.name(),
            host: self.host,
            geometry: self.geometry,
            flushes: self.flushes.clone(),
            backing,
            write_errors: self.write_errors.clone(),
            teller: self.write_errors.teller(),
            counters: self.counters_of(queue)?,
            _gone: self.gone.lock().clone().ok_or(EIO)?,
        })
    }

    /// Returns where queue pair `queue` counts its requests. May sleep.
    fn counters_of(&self, queue: u8) -> Result<Arc<Counters>> {
        let mut all = self.counters.lock();
        while all.len() <= usize::from(queue) {
            all.push(None, GFP_KERNEL)?;
        }
        let place = all.get_mut(usize::from(queue)).ok_or(EINVAL)?;
        if let Some(counters) = place {
            return Ok(counters.clone());
        }
        let counters = Arc::new(Counters::default(), GFP_KERNEL)?;
        Ok(place.insert(counters).clone())
    }

    /// Adds what its requests have counted to `sum`, which then has it for good if it is `taken`.
    /// Sleeps.
    pub(crate) fn add_counters(&self, sum: &Counters, taken: bool) {
        let mut all = self.counters.lock();
        for counters in all.iter().flatten() {
            sum.absorb(counters);
        }
        if taken {
            all.clear();
        }
    }
}

impl Attachment {
    /// Returns whether requests by it can reach `drive`. Takes no reference: whoever asks
    /// may not be the last to have one.
    pub(crate) fn is_on(&self, drive: &Arc<Drive>) -> bool {
        let backing = self.backing.lock();
        let own = backing.as_ref().and_then(|backing| backing.drive());
        own.is_some_and(|own| Arc::ptr_eq(own, drive))
    }

    /// Ends it because the preemption `number` has ended the registration of its host.
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

impl Attachment {
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
