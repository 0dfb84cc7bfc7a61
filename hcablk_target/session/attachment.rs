// SPDX-License-Identifier: GPL-2.0

//! A volume that is attached to a session: its identity, the geometry reported to its initiator,
//! and the state of its requests.
//!
//! ```text
//!         end(), any context              nothing left
//!  Live ──────────────────────► Ending ────────────────► Ended
//! ```
//!
//! The last volume of a session ends with the session, and the session with its last volume. One of
//! several volumes can end alone: no further request for it begins on any queue pair, the teardown
//! waits until the drive has finished those under way, and the session continues for its other
//! volumes.

use super::{
    changer::{
        Changer, //
        RequestedChange,
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
            ConnectRequest,
            Epoch,
            Geometry,
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
    report::broken::keep,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        defer::{
            defer,
            without_io,
            Deferred,
            WorkSlot, //
        },
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

/// The time for an initiator whose export ends to ask whether its writes are durable, in
/// milliseconds.
const DURABLE_ASK_MS: u32 = 10_000;

/// The interval for checking meanwhile whether the disk's other sessions have closed their queue
/// pairs, in milliseconds.
const DURABLE_LOOK_MS: u32 = 20;

/// The interval for looking, while the drive makes writes durable, whether the RDMA device is being
/// removed, in milliseconds.
const DURABLE_WAIT_MS: u32 = 1000;

/// The longest interval between two polls of the queue pairs for completed requests, in
/// milliseconds.
const GONE_LOOK_MS: u32 = 250;

/// The interval for logging that a drive has not finished a volume's requests, in milliseconds.
const GONE_LOG_MS: u32 = 60_000;

/// The state and the limits of a volume at one moment.
pub(crate) struct VolumeNow {
    pub(crate) state: VolumeState,
    pub(crate) limits: VolumeLimits,
    /// Changes whenever the state or the limits change, and grows modulo 2^32. Not 0.
    pub(crate) generation: u32,
}

/// The parts of an export that sessions on it use.
pub(crate) struct Exported {
    pub(crate) backing: Arc<Backing>,
    pub(crate) geometry: Geometry,
    /// The records of the writes of session ids.
    pub(crate) records: Arc<Records>,
    /// The workqueue for the teardown of sessions on it: the volume's own, since a teardown waits
    /// for the drive.
    pub(crate) ends: Arc<WorkQueue>,
}

/// A volume of a session. The volume and its session hold references to each other until the
/// teardown.
#[pin_data]
pub(crate) struct Attachment {
    session: Arc<Session>,
    volume: Arc<Volume>,
    /// See [`Exported::ends`].
    ends: Arc<WorkQueue>,
    /// The handle with which the session's messages name the volume: written once, before requests
    /// name it.
    handle: Atomic<u32>,
    /// The state of this volume: it begins to end alone, or when the teardown of its session
    /// begins.
    #[pin]
    state: IrqLock<SessionState<EndReason>>,
    /// The watch of the initiator on the volume.
    #[pin]
    pub(crate) watched: Watched,
    /// Requests on the session's queue pairs may name the volume. Set under the lock of the queue
    /// pairs.
    is_published: Atomic<bool>,
    ends_alone: Atomic<bool>,
    /// Held by the queue pairs that have the volume, and here until the teardown.
    #[pin]
    gone: Mutex<Option<Arc<Gone>>>,
    all_gone: Arc<Event>,
    #[pin]
    ended: Event,
    #[pin]
    work: Work<Attachment>,
    /// The queue pairs' counters of requests for the volume, by queue index. A replacement
    /// continues the counters of its predecessor.
    #[pin]
    counters: Mutex<KVec<Option<Arc<Counters>>>>,
    geometry: Geometry,
    /// The volume or its drive refused writes when it was attached. All replies carry this value;
    /// the watch reports changes.
    began_read_only: bool,
    flushes: Flushes,
    /// The initiator's disk sends flushes: see [`Self::may_ask_durable`].
    asks_durable: Atomic<bool>,
    id: SessionId,
    epoch: Epoch,
    host: HostId,
    /// The number of the first preemption that has ended the registration of the host; 0: none has.
    preempted: Atomic<u64>,
    /// Dropped by the teardown, so that the device is closed when the teardown is done.
    #[pin]
    backing: Mutex<Option<Arc<Backing>>>,
    write_errors: WriteErrorsUse,
    /// Whether all acknowledged writes are durable, once that is known.
    #[pin]
    durable: Mutex<Option<bool>>,
    /// The work that finds out [`Self::durable`]; taken by [`Self::make_durable`].
    #[pin]
    durable_check: Mutex<Option<KBox<DurableCheck>>>,
    /// Set when `durable_check` has ended, with the result in `durable`.
    #[pin]
    durable_known: Event,
    /// Set when the initiator was informed, or will not ask.
    #[pin]
    durable_reported: Event,
    changer: Arc<Changer>,
}

impl Attachment {
    /// Attaches the export `exported` of `volume` to `session`, for the disk that `request` names,
    /// with its `write_errors`. May sleep.
    pub(crate) fn new(
        session: &Arc<Session>,
        volume: Arc<Volume>,
        exported: Exported,
        write_errors: WriteErrorsUse,
        request: &ConnectRequest,
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
        let durable_check = DurableCheck::new()?;
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
                durable_check <- new_mutex!(Some(durable_check)),
                durable_known <- Event::new(),
                durable_reported <- Event::new(),
                changer,
            }),
            GFP_KERNEL,
        )?;
        session.attach(&attachment)?;
        Ok(attachment)
    }

    /// Returns the handle with which the session's messages name the volume.
    pub(crate) fn handle(&self) -> Handle {
        Handle(self.handle.load(Relaxed) as u16)
    }

    /// Sets [`Self::handle`].
    pub(super) fn set_handle(&self, handle: Handle) {
        self.handle.store(handle.0.into(), Relaxed);
    }

    /// Lets requests name the volume on all queue pairs that the session has now and later. May
    /// sleep. Fails with `ENOMEM`, and with `EIO` if the volume is ending.
    pub(crate) fn publish(&self) -> Result {
        {
            let queues = self.session.queues.lock();
            // If another volume ends alone now, its teardown waits until the queue pairs have this
            // volume.
            self.is_published.store(true, Relaxed);
            if !self.is_live() {
                return Err(EIO);
            }
            queues.iter().try_for_each(|queue| self.add_to(queue))?;
        }
        let admin = self.session.admin.lock();
        self.respond_through(admin.as_ref().ok_or(EIO)?);
        Ok(())
    }

    /// Adds the volume to a queue pair that does not have it. Under the lock of the queue pairs.
    /// May sleep. Fails with `ENOMEM`, and with `EIO` if the volume is ending.
    pub(super) fn add_to(&self, queue: &Queue) -> Result {
        let backing = self.backing().ok_or(EIO)?;
        let config = self.config(queue.index(), backing)?;
        match queue.attach(self.handle(), config) {
            Err(EEXIST) => Ok(()),
            result => result,
        }
    }

    /// Returns the workqueue for teardowns that wait for the volume's drive.
    pub(super) fn ends(&self) -> &WorkQueue {
        &self.ends
    }

    /// Returns the session to which the volume is attached.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the name of the volume.
    pub(crate) fn volume_name(&self) -> VolumeName {
        self.volume.name()
    }

    /// Returns whether the attached volume is `volume`.
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

    /// Returns the backing of the volume, until the teardown drops it.
    pub(crate) fn backing(&self) -> Option<Arc<Backing>> {
        self.backing.lock().clone()
    }

    /// Returns the identity of the volume, which does not depend on its name.
    pub(crate) fn wwid(&self) -> Option<VolumeId> {
        self.volume.wwid()
    }

    /// Returns the errors of the volume's writes that are not reported yet.
    pub(crate) fn write_errors(&self) -> &Arc<WriteErrors> {
        &self.write_errors
    }

    /// Returns whether `request` names this attachment, in any epoch.
    pub(crate) fn is_named_by(&self, request: &ConnectRequest) -> bool {
        self.id == request.session
            && self.host == request.host
            && Some(self.volume.name()) == request.volume
    }

    /// Returns whether the attachment is of the same host and volume as `request`, but of another
    /// instance of the host, or of another path of the same disk, in an earlier epoch, whose
    /// history `request` does not resume.
    pub(crate) fn is_of_other_instance(&self, request: &ConnectRequest) -> bool {
        let forgotten = !request.resume
            && self.id != request.session
            && self.id.on_path(0) == request.session.on_path(0)
            && self.epoch < request.epoch;
        self.host == request.host
            && Some(self.volume.name()) == request.volume
            && (forgotten || self.id.instance() != request.session.instance())
    }

    /// Returns whether requests on the session's queue pairs may name the volume while it is live.
    pub(crate) fn is_published(&self) -> bool {
        self.is_published.load(Relaxed)
    }

    /// Returns the reason why the volume ends, if it does.
    pub(super) fn reason(&self) -> Option<EndReason> {
        self.state.lock().reason()
    }

    /// Returns whether the volume is ending, or has ended, while its session continued.
    pub(super) fn ends_alone(&self) -> bool {
        self.ends_alone.load(Relaxed)
    }

    /// Returns whether the volume itself has not begun to end.
    pub(crate) fn is_live(&self) -> bool {
        self.state.lock().is_live()
    }

    /// Returns whether the volume or its session is being torn down.
    pub(crate) fn is_ending(&self) -> bool {
        !self.is_live() || self.session.is_ending()
    }

    /// Ends the volume because of `reason`, and the session if it has no other volume. Any context.
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

    /// Begins the end of this volume, `alone` or with its session. Returns `false` if it had begun
    /// before. Under the lock of the session's volumes.
    pub(super) fn begin_end(&self, reason: EndReason, alone: bool) -> bool {
        let begins = self.state.lock().end(reason);
        if begins {
            self.write_errors.begin_end(!reason.is_usual());
            self.ends_alone.store(alone, Relaxed);
        }
        begins
    }

    /// Logs why the volume ends, rate-limited, since a peer can cause it.
    #[cold]
    fn report_end(&self, reason: EndReason) {
        let (volume, id, host) = (&*self.volume, self.id.0, self.host);
        if may_print(Lines::Ends) {
            pr_info!("{volume}: disk {id:016x} of {host} detached: {reason}\n");
        }
    }

    /// Waits until the volume has ended completely, which includes the requests that the drive has
    /// begun. Process context.
    pub(crate) fn wait(&self) {
        let (volume, id, host) = (&*self.volume, self.id.0, self.host);
        while !self.has_ended_within(60_000) {
            pr_warn!("{volume}: still waiting for session {id:016x} of {host} to end\n");
        }
    }

    /// Waits at most `ms` milliseconds for the volume to end completely. Returns `false` when the
    /// time is over. Process context.
    pub(crate) fn has_ended_within(&self, ms: u32) -> bool {
        self.ended.wait_ms(ms).is_ok()
    }

    /// Tears the volume down while the session continues. Sleeps until the drive has finished its
    /// requests.
    fn tear_down(self: &Arc<Self>) {
        let handle = self.handle();
        {
            // A queue pair that is added later does not get volumes that are not live.
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
            admin.report_gone(self, withdrawn && self.is_published());
        }
        self.wait_until_gone();
        self.close();
        // The initiator does not know of an unpublished volume, and sends no request about it.
        if withdrawn && self.is_published() {
            self.make_durable(admin, || {});
        }
        self.forget_admin();
        self.release();
        self.finish();
        self.session.forget(handle);
        self.ended();
    }

    /// Waits until no request of the session refers to the volume. Responses whose SEND has
    /// completed raise no event, so the queue pairs are polled for them. Sleeps until the drive has
    /// finished its requests.
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

    /// Records that the volume has ended completely.
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

/// The steps of the end of an attachment, alone or with its session.
impl Attachment {
    /// Makes acknowledged writes durable, and gives the initiator time to ask on the queue pair
    /// `admin` whether they are. By then the session acknowledges no more writes of the volume. The
    /// response must also cover writes that the disk's other sessions acknowledge: so this function
    /// first waits until they acknowledge no more, but only until the initiator's time to ask is
    /// over. Sleeps until the drive has finished, and calls `meanwhile` from time to time until
    /// then.
    pub(super) fn make_durable(
        self: &Arc<Self>,
        admin: impl FnOnce() -> Option<Arc<Admin>>,
        meanwhile: impl Fn(),
    ) {
        let Some(backing) = self.backing().filter(|_| self.may_ask_durable()) else {
            return;
        };
        let mut looks = DURABLE_ASK_MS / DURABLE_LOOK_MS;
        while self.write_errors.is_open() {
            // When memory is short, the teardowns of those sessions may wait for this one.
            if looks == 0 || self.durable_reported.wait_ms(DURABLE_LOOK_MS).is_ok() {
                return;
            }
            looks -= 1;
        }
        let Some(check) = self.durable_check.lock().take() else {
            return broken!("an export was made durable twice");
        };
        check.begin(self, &backing);
        while self.durable_known.wait_ms(DURABLE_WAIT_MS).is_err() {
            meanwhile();
        }
        // Waits until the check has dropped its reference to the backing: a volume's workqueue must
        // not drop the last one.
        let check = self.durable_check.lock().take();
        drop(check);
        if self.durable_reported.wait_ms(DURABLE_ASK_MS).is_ok() {
            // `admin` is called only after the wait for the drive: the queue pair may have been
            // closed meanwhile.
            if let Some(admin) = admin() {
                admin.let_responses_leave();
            }
        }
    }

    /// Finds out whether acknowledged writes are durable. Sleeps until the drive has finished.
    fn check_durable(&self, backing: &Backing) {
        let durable = self.write_errors.is_durable(backing);
        *self.durable.lock() = Some(durable);
    }

    /// Returns whether the initiator asks at the end of the export whether its writes are durable.
    fn may_ask_durable(&self) -> bool {
        self.geometry.write_cache || self.asks_durable.load(Relaxed)
    }

    /// Records that no more writes are acknowledged: the queue pairs are closed, or no longer have
    /// the volume.
    pub(super) fn close(&self) {
        self.write_errors.close();
    }

    /// Sets the admin queue pair that sends the responses to changes of reservations.
    pub(super) fn respond_through(&self, admin: &Arc<Admin>) {
        self.changer.respond_through(admin);
    }

    /// Drops the admin queue pair: no more responses are sent. May sleep.
    pub(super) fn forget_admin(&self) {
        self.changer.forget_admin();
    }

    /// Drops the volume's backing, which may close the device. Under no lock. May sleep.
    pub(super) fn release(&self) {
        drop(self.gone.lock().take());
        // A function that has just finished a request may refer to the volume for a moment longer,
        // and must not drop the last reference: a drive's workqueue cannot drop the drive.
        while self.all_gone.wait_ms(GONE_LOG_MS).is_err() {
            pr_warn!(
                "{}: still waiting for the last reference to the volume, although no queue pair of session {:016x} uses it any more\n",
                *self.volume,
                self.session.id().0
            );
            if !self.session.is_of_host() {
                // An invariant is broken; the session must end nevertheless.
                break;
            }
        }
        let backing = self.backing.lock().take();
        drop(backing);
    }

    /// Forgets the volume, which has ended completely. Process context.
    pub(super) fn ended(&self) {
        self.volume.attachment_ended(self);
        self.ended.set();
    }

    /// Returns the volume.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the configuration of the volume for queue pair `queue`, with the volume's backing.
    /// May sleep. Fails with `ENOMEM`, and with `EIO` if the volume is ending.
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
            session_number: self.write_errors.session_number(),
            counters: self.counters_of(queue)?,
            _gone: self.gone.lock().clone().ok_or(EIO)?,
        })
    }

    /// Returns queue pair `queue`'s counters of requests for the volume. May sleep.
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

    /// Adds the counters of the volume's requests to `sum`. With `taken`, drops the counters, so
    /// that from then on they are counted only in `sum`. Sleeps.
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
    /// Returns whether requests for the volume can reach `drive`. Takes no reference: the caller
    /// must not drop the last one.
    pub(crate) fn is_on(&self, drive: &Arc<Drive>) -> bool {
        let backing = self.backing.lock();
        let own = backing.as_ref().and_then(|backing| backing.drive());
        own.is_some_and(|own| Arc::ptr_eq(own, drive))
    }

    /// Ends the volume because preemption `number` has ended the registration of its host.
    pub(crate) fn preempt(self: &Arc<Self>, number: u64) {
        // The first preemption counts: later preemptions also wait for the requests that it has
        // stopped.
        if self.preempted.load(Relaxed) == 0 {
            self.preempted.store(number, Relaxed);
        }
        self.end(EndReason::Preempted);
    }

    /// Returns whether a preemption with a number up to `last` has ended the volume.
    pub(crate) fn is_preempted_by(&self, last: u64) -> bool {
        (1..=last).contains(&self.preempted.load(Relaxed))
    }
}

impl Attachment {
    /// Returns the current state of the volume, or `None` if its drive was removed or the teardown
    /// has dropped its backing. May sleep, but does not wait for the drive.
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
                // The data of an atomic write never comes with the request, so the target must post
                // an RDMA READ.
                atomic: now.limits.atomic.filter(|_| crate::rdma_read()),
                ..now.limits
            },
            generation,
        })
    }

    /// Records whether the initiator knows of a volatile write cache (`None`: it knows the value of
    /// the reply when the session began), and whether its disk sends `flushes`. Any context.
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

    /// Ends the session of the same disk on path `path` if its epoch is `epoch` or earlier, and
    /// prevents such a session from beginning. Returns whether the fenced session can no longer
    /// reach the drive. Fails with `EINVAL` for the session's own path. May sleep, but does not
    /// wait for the drive.
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

    /// Records that the initiator has the response of [`Self::durable`]. Any context.
    pub(crate) fn durable_reported(&self) {
        self.durable_reported.set();
    }

    /// Begins a change of the drive's reservations, which the initiator requested as number
    /// `sequence`. The response to request `tag` is sent when the change is made
    /// ([`Admin::respond_to_change`]). Fails with the request's status if the change is not begun.
    /// May sleep, but does not wait for a file.
    pub(crate) fn reserve(&self, tag: Tag, sequence: u32, op: ReservationOp) -> Result<(), Status> {
        let backing = self.backing().ok_or(Status::Gone)?;
        let drive = backing.drive_use().ok_or(Status::Unsupported)?.clone();
        // Before the check whether the session is ending: see `DriveUse::ticket()`.
        let ticket = drive.ticket();
        if self.is_ending() {
            return Err(Status::Gone);
        }
        self.changer.begin(RequestedChange {
            tag,
            sequence,
            op,
            drive,
            ticket,
        })
    }

    /// Returns the key of registrant `index` of the drive, or with `None` its reservation. Fails
    /// with `Unsupported`, `Gone`, and for a key with `Draining`. May sleep.
    pub(crate) fn reservation(&self, index: Option<u32>) -> Result<ReservationInfo, Status> {
        if let Some(index) = index {
            return self.volume.read_key(self, index);
        }
        let backing = self.backing().ok_or(Status::Gone)?;
        let drive = backing.drive().ok_or(Status::Unsupported)?;
        Ok(drive.read(None))
    }
}

/// Finds out whether the acknowledged writes of a disk are durable, on the volume's workqueue: the
/// drive may hang, while the teardown must release an RDMA device.
struct DurableCheck {
    slot: WorkSlot<DurableCheck>,
    /// The disk and its drive, while the check runs.
    subject: Option<(Arc<Attachment>, Arc<Backing>)>,
}

hcablk_core::impl_has_slot!(DurableCheck, slot: WorkSlot<DurableCheck>);

impl DurableCheck {
    fn new() -> Result<KBox<Self>> {
        let check = Self {
            slot: WorkSlot::new()?,
            subject: None,
        };
        Ok(KBox::new(check, GFP_KERNEL)?)
    }

    /// Begins the check. When it ends it sets [`Attachment::durable_known`].
    fn begin(mut self: KBox<Self>, attachment: &Arc<Attachment>, backing: &Arc<Backing>) {
        self.subject = Some((attachment.clone(), backing.clone()));
        defer(self, backing.io_work());
    }
}

impl Deferred for DurableCheck {
    fn run(mut self: KBox<Self>) {
        let Some((attachment, backing)) = self.subject.take() else {
            // Dropping it would wait for this very call.
            return keep(self, "a check for durable writes has no disk");
        };
        attachment.check_durable(&backing);
        *attachment.durable_check.lock() = Some(self);
        attachment.durable_known.set();
        // The teardown waits until this function has returned, and holds references to the
        // attachment and its backing.
    }
}
