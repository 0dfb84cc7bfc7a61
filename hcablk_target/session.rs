// SPDX-License-Identifier: GPL-2.0

//! Manages a session: an initiator's queue pairs, and the [volumes](attachment) attached to them.
//!
//! ```text
//!          end(), any context           nothing left
//!  Live ─────────────────────► Ending ────────────────► Ended
//! ```
//!
//! Any failure calls [`Session::end`] with its reason. The first call, whose reason is kept and
//! logged, queues the teardown, which runs once, in process context. It moves every queue pair to
//! the error state, so that no request of the session can reach a drive; it waits for the requests
//! that the drives have begun; then it forgets the session. If the export ends, acknowledged writes
//! are made durable first, and the initiator can ask over the admin queue pair whether they are.
//!
//! In version 2 of the protocol a session begins with its only volume. In version 3 it begins
//! without a volume, and volumes are attached and detached over its admin queue pair: any number of
//! them, or at most one if the initiator has said so when the session began. One of several volumes
//! can end alone ([`Attachment::end`]); the end of the last one ends the session.

use self::{
    attachment::Attachment,
    end_reason::EndReason, //
};
use crate::{
    admin::Admin,
    claimant::Claimant,
    drive::backing::Backing,
    export::{
        attach,
        keys::Proven,
        registry::Registry, //
    },
    io::{
        Fault,
        Queue,
        QueueConfig,
        QueueShape, //
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
    printable,
    proto::{
        auth::{
            Channel,
            Sealed,
            Window, //
        },
        connect::{
            ConnectRequest,
            Epoch,
            Reason,
            SessionId, //
        },
        message::{
            Attach,
            Attached,
            Handle,
            Tag, //
        },
        name::{
            HostId,
            VolumeName, //
        },
        ADMIN_QUEUE,
        TRANSFER_USUAL, //
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
            Relaxed,
            Release, //
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

pub(crate) mod attachment;
mod changer;
pub(crate) mod end_reason;
pub(crate) mod watched;

/// The interval for trying to sever the remaining RDMA objects of a session, in milliseconds.
const SEVER_MS: u32 = 1000;

/// A session. The session and its queues hold references to each other until the teardown.
#[pin_data]
pub(crate) struct Session {
    registry: Arc<Registry>,
    /// For messages.
    label: Label,
    /// The workqueue for the teardown, unless it runs on that of the session's only volume: see
    /// [`Exported::ends`](attachment::Exported::ends).
    ends: Arc<WorkQueue>,
    /// The memory of the port at which the session began.
    memory: Arc<Memory>,
    /// Bytes of the largest request; set with the admin queue pair, and used for the other queue
    /// pairs.
    largest: Atomic<u32>,
    id: SessionId,
    epoch: Epoch,
    host: HostId,
    queue_count: u8,
    /// The proof of the initiator's identity; `None`: the volume requires none.
    proof: Option<Arc<SessionProof>>,
    /// The kind of proof with which the session began.
    proven: Proven,
    pd: Arc<ProtectionDomain>,
    /// The session's share of the port's memory; set with the admin queue pair, and dropped by the
    /// teardown.
    #[pin]
    client: Mutex<Option<Arc<Client>>>,
    /// The attached volumes.
    #[pin]
    attached: IrqLock<Handles>,
    /// The number of requests to attach a volume that are not decided yet.
    attaching: Atomic<u32>,
    /// See the module. A session is live from the start.
    #[pin]
    state: IrqLock<SessionState<EndReason>>,
    /// The admin queue pair. `None` once the teardown has closed it.
    #[pin]
    admin: Mutex<Option<Arc<Admin>>>,
    /// The admin queue pair has failed: the initiator can ask nothing on it any more.
    is_cut_off: Atomic<bool>,
    /// The RDMA port, watched from the creation of the admin queue pair until the teardown.
    #[pin]
    port: WatchedPort,
    /// The queue pairs. The lock is also held while a volume is added to or removed from them.
    #[pin]
    queues: Mutex<KVec<Arc<Queue>>>,
    /// Held while queue pairs are closed: by the teardown, which has stopped them before, or by the
    /// replacement of one queue pair.
    #[pin]
    closing: Mutex<()>,
    #[pin]
    keep_alive_timer: Mutex<Option<Running<Session>>>,
    /// The number of keep-alive periods without a volume. Counted by the timer.
    bare_periods: Atomic<u32>,
    #[pin]
    ended: Event,
    #[pin]
    work: Work<Session>,
}

impl_has_work! {
    impl HasWork<Self> for Session { self.work }
}

impl Session {
    /// Creates a session without queues. The volume that `request` names, if any, must be
    /// [attached](Attachment::new) to it. May sleep.
    pub(crate) fn new(
        registry: &Arc<Registry>,
        memory: &Arc<Memory>,
        request: &ConnectRequest,
        (proof, proven): (Option<Arc<SessionProof>>, Proven),
        pd: Arc<ProtectionDomain>,
        ends: Arc<WorkQueue>,
    ) -> Result<Arc<Self>> {
        let attached = Handles::new(request.volumes())?;
        let session = Arc::pin_init(
            pin_init!(Self {
                registry: registry.clone(),
                label: Label(request.volume),
                ends,
                memory: memory.clone(),
                largest: Atomic::new(TRANSFER_USUAL),
                id: request.session,
                epoch: request.epoch,
                host: request.host,
                queue_count: request.queues,
                proof,
                proven,
                pd,
                client <- new_mutex!(None),
                attached <- new_irq_lock!(attached, "hcablk_attached"),
                attaching: Atomic::new(0),
                state <- new_irq_lock!(SessionState::Live, "hcablk_session"),
                admin <- new_mutex!(None),
                is_cut_off: Atomic::new(false),
                port <- WatchedPort::new(),
                queues <- new_mutex!(KVec::new()),
                closing <- new_mutex!(()),
                keep_alive_timer <- new_mutex!(None),
                bare_periods: Atomic::new(0),
                ended <- Event::new(),
                work <- new_work!("hcablk_target::Session"),
            }),
            GFP_KERNEL,
        )?;
        session.trace_state(trace::ConnectionState::Live);
        *session.keep_alive_timer.lock() =
            Some(Periodic::start(session.clone(), KEEP_ALIVE_PERIOD_MS)?);
        Ok(session)
    }

    /// Assigns a handle to a volume. Fails with `EIO` if the session is ending, and with `ENOSPC`
    /// if it has no room for another volume. May sleep.
    fn attach(&self, attachment: &Arc<Attachment>) -> Result<Handle> {
        let mut attached = self.attached.lock();
        // The end of a session lists its volumes only after it has changed the state.
        if !self.state.lock().is_live() {
            return Err(EIO);
        }
        let handle = attached.take(attachment).ok_or(ENOSPC)?;
        attachment.set_handle(handle);
        Ok(handle)
    }

    /// Returns the volume with this handle, unless it has ended completely. Any context.
    pub(crate) fn attachment(&self, handle: Handle) -> Option<Arc<Attachment>> {
        self.attached.lock().get(handle).cloned()
    }

    /// Returns the first attached volume whose handle is `from` or later. Any context.
    pub(crate) fn next_attachment(&self, from: u16) -> Option<Arc<Attachment>> {
        let attached = self.attached.lock();
        let mut others = attached.iter().skip_while(|a| a.handle().0 < from);
        others.next().cloned()
    }

    /// Iterates over the attached volumes, including those that are ending. Any context.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = Arc<Attachment>> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let next = self.next_attachment(from)?;
            from = next.handle().0 + 1;
            Some(next)
        })
    }

    /// Begins the end of one volume alone, whose teardown `enqueue` queues. Returns `true` if that
    /// end had not begun before, and `None` for the last volume: then the session must end, since
    /// queue pairs cannot be without a volume. Any context.
    fn begin_end_of(
        &self,
        attachment: &Attachment,
        reason: EndReason,
        enqueue: impl FnOnce(),
    ) -> Option<bool> {
        // Under the lock: the teardown of the session checks which volumes end alone, and waits for
        // these.
        let attached = self.attached.lock();
        let continues = |a: &Arc<Attachment>| {
            !core::ptr::eq(&**a, attachment) && a.is_live() && a.is_published()
        };
        let is_alone = !attachment.is_published() || attached.iter().any(continues);
        if !(self.is_of_host() && is_alone) {
            return None;
        }
        let begins = attachment.begin_end(reason, true);
        if begins {
            enqueue();
        }
        Some(begins)
    }

    /// Begins the end of all volumes that do not end alone, because the session ends.
    fn begin_ends(&self) {
        let attached = self.attached.lock();
        if let Some(reason) = self.reason() {
            for attachment in attached.iter() {
                attachment.begin_end(reason, false);
            }
        }
    }

    /// Begins to detach a volume at the initiator's request. Its handle is free when the volume has
    /// ended completely. Returns whether a volume has, or had, this handle.
    pub(crate) fn detach(&self, handle: Handle) -> bool {
        let Some(found) = self.attached.lock().leave(handle) else {
            return false;
        };
        if let Some(attachment) = found {
            attachment.end(EndReason::Detached);
        }
        true
    }

    /// Removes a volume that has ended completely. Its handle stays taken until the initiator has
    /// detached the volume: until then requests may still name the handle.
    fn forget(&self, handle: Handle) {
        let former = self.attached.lock().forget(handle);
        drop(former);
    }

    /// Returns the name of the session in messages. Any context.
    pub(crate) fn label(&self) -> Label {
        let attached = self.attached.lock();
        let lone = attached.lone().map(|attachment| attachment.volume_name());
        Label(self.label.0.or(lone))
    }

    /// Returns the most volumes that the session can have. Any context.
    pub(crate) fn capacity(&self) -> u16 {
        self.attached.lock().count()
    }

    /// Returns whether no volume is attached that requests may name. Takes no reference to one. Any
    /// context.
    pub(crate) fn is_bare(&self) -> bool {
        self.attached.lock().iter().all(|a| !a.is_published())
    }

    /// Returns whether another volume can be attached. Any context.
    pub(crate) fn has_room(&self) -> bool {
        let attached = self.attached.lock();
        attached
            .0
            .iter()
            .any(|place| matches!(place, HandleUse::Free))
    }

    /// Returns the volume of a session that can have one only, until the volume has ended
    /// completely. Any context.
    pub(crate) fn lone_attachment(&self) -> Option<Arc<Attachment>> {
        self.attached.lock().lone().cloned()
    }

    /// Returns the name of the session's volume, if it began with one.
    pub(crate) fn volume(&self) -> Option<VolumeName> {
        self.label.0
    }

    /// Returns the kind of proof with which the session began.
    pub(crate) fn proven(&self) -> Proven {
        self.proven
    }

    /// Returns whether the session began without a volume, so that volumes are attached to it
    /// later.
    pub(crate) fn is_of_host(&self) -> bool {
        self.label.0.is_none()
    }

    /// Returns whether `request`, whose host has proven its identity if `proven`, names the
    /// session, in any epoch. A session that was begun without a proof has another name than one
    /// with a proof: anyone can have begun it for the host.
    pub(crate) fn is_named_by(&self, request: &ConnectRequest, proven: bool) -> bool {
        self.is_of_host()
            && self.id == request.session
            && self.host == request.host
            && self.proof().is_some() == proven
    }

    /// Returns whether both sessions have the same name, as in [`Self::is_named_by`].
    pub(crate) fn has_name_of(&self, other: &Self) -> bool {
        self.id == other.id
            && self.host == other.host
            && self.proof().is_some() == other.proof().is_some()
    }

    /// Returns a number, not 0, that changes when the target starts or stops listening at an
    /// address. Any context.
    pub(crate) fn portals_generation(&self) -> u32 {
        self.registry.portals_generation()
    }

    /// Returns whether the session uses `memory`, the memory of one port.
    pub(crate) fn uses(&self, memory: &Memory) -> bool {
        core::ptr::eq(&*self.memory, memory)
    }

    /// Returns the bytes of the largest request on every queue pair.
    pub(crate) fn largest(&self) -> u32 {
        self.largest.load(Relaxed)
    }

    /// Sets [`Self::largest`]. Called when the admin queue pair is created.
    pub(crate) fn set_largest(&self, bytes: u32) {
        self.largest.store(bytes, Relaxed);
    }

    pub(crate) fn host(&self) -> HostId {
        self.host
    }

    /// Returns the owner of the session, for limits.
    pub(crate) fn claimant(&self) -> Claimant {
        Claimant::new(self.host, self.proof.is_some())
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the key and counter that prove that a request is of this session, if the session
    /// began with a proof.
    pub(crate) fn proof(&self) -> Option<&Arc<SessionProof>> {
        self.proof.as_ref()
    }

    /// Returns the number with which sealed requests name the session.
    pub(crate) fn handle(&self) -> Option<u64> {
        self.proof.as_ref().map(|proof| proof.handle())
    }

    pub(crate) fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    /// Returns the session's share of the port's memory, until the teardown drops it.
    pub(crate) fn client(&self) -> Option<Arc<Client>> {
        self.client.lock().clone()
    }

    /// Stops charging the host's share for the session's memory, if the session has ended while a
    /// hanging drive still has its requests. Process context.
    #[cold]
    pub(crate) fn strand(&self) {
        if let Some(client) = self.client().filter(|_| self.is_ending()) {
            client.strand();
        }
    }

    /// Sets [`Self::client`]. Called when the admin queue pair is created.
    pub(crate) fn set_client(&self, client: Arc<Client>) {
        *self.client.lock() = Some(client);
    }

    /// Returns the number of queue pairs of the session, not counting the admin queue pair.
    pub(crate) fn queue_count(&self) -> u8 {
        self.queue_count
    }

    /// Returns whether queue pair `index` is connected.
    pub(crate) fn has_queue(&self, index: u8) -> bool {
        self.queues.lock().iter().any(|q| q.index() == index)
    }

    /// Returns whether the session is being torn down.
    pub(crate) fn is_ending(&self) -> bool {
        !self.state.lock().is_live()
    }

    /// Returns the number of connected queue pairs.
    pub(crate) fn connected(&self) -> usize {
        self.queues.lock().len()
    }

    /// Calls `f` with every queue.
    pub(crate) fn for_each_queue(&self, mut f: impl FnMut(&Queue)) {
        for queue in self.queues.lock().iter() {
            f(queue);
        }
    }

    /// Returns the queue at `place` in the list.
    fn queue_at(&self, place: usize) -> Option<Arc<Queue>> {
        self.queues.lock().get(place).cloned()
    }

    /// Emits the trace event of a new state.
    fn trace_state(&self, state: trace::ConnectionState) {
        trace::target::session(|| trace::Change {
            session: self.id.0,
            epoch: self.epoch.0,
            queue: None,
            state,
            error: self.reason().map_or(0, EndReason::errno),
        });
    }

    /// Returns the reason why the session ends, if it does.
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
        self.trace_state(trace::ConnectionState::Ending);
        self.report_end(reason);
        let attached = self.attached.lock();
        // The teardown waits for the drive. A volume that ends alone may be forgotten before, and
        // with it its workqueue.
        let with_it = |a: &&Arc<Attachment>| a.is_published() && !a.ends_alone();
        let lone = attached.lone().filter(with_it);
        let ends = lone.map_or(&*self.ends, |attachment| attachment.ends());
        // Queued once: the state never becomes live again.
        if ends.enqueue(self.clone()).is_err() {
            broken!("the end of a session was queued already");
        }
    }

    /// Logs why the session ends, rate-limited, since a peer can cause it.
    #[cold]
    fn report_end(&self, reason: EndReason) {
        let (label, id, host) = (self.label(), self.id.0, self.host);
        if reason.is_usual() {
            if may_print(Lines::Ends) {
                pr_info!("{label}: session {id:016x} of {host} ended: {reason}\n");
            }
        } else if may_print(Lines::Faults) {
            pr_warn!("{label}: session {id:016x} of {host} ended: {reason}\n");
        }
    }

    /// Waits at most `ms` milliseconds until the session has ended completely, which includes the
    /// requests that the drives have begun. Returns `false` when the time is over. Process context.
    pub(crate) fn has_ended_within(&self, ms: u32) -> bool {
        self.ended.wait_ms(ms).is_ok()
    }

    fn tear_down(&self) {
        drop(self.keep_alive_timer.lock().take());
        self.port.leave();
        // From here on no volume begins to end alone, and none is added to queue pairs.
        self.begin_ends();
        let with_it = || {
            let is_known = |a: &Arc<Attachment>| a.is_published() || !self.is_of_host();
            self.attachments()
                .filter(move |a| !a.ends_alone() && is_known(a))
        };
        let admin = self.admin.lock().clone();
        let withdrawn = self.reason() == Some(EndReason::Withdrawn);
        if let Some(admin) = &admin {
            match withdrawn {
                // The admin queue pair is closed later, when the initiator has asked whether its
                // writes are durable.
                true => {
                    for attachment in with_it() {
                        admin.report_gone(&attachment, true);
                    }
                }
                false => {
                    if self.reason() == Some(EndReason::Detached) {
                        admin.let_responses_leave();
                    }
                    admin.shut();
                }
            }
        }
        // No queue is added from here on, and the existing ones stay listed until they are closed:
        // readers of their counters find them in the list.
        let queues = || (0..).map_while(|place| self.queue_at(place));
        // Stop requests on all queues first, before waiting for a queue that is being replaced,
        // whose drive may never finish.
        for queue in queues() {
            queue.trace_state(trace::ConnectionState::Ending);
            queue.shut();
        }
        let _alone = self.closing.lock();
        // If the replaced queue was removed during the first loop, the next one moved to its place
        // and was missed.
        for queue in queues() {
            queue.shut();
        }
        Queue::close_all(queues, || self.sever(admin.as_ref()));
        for attachment in self.attachments() {
            attachment.close();
        }
        if let Some(admin) = admin {
            if withdrawn {
                for attachment in with_it() {
                    attachment.make_durable(
                        || Some(admin.clone()),
                        // The drive may hang although no request was in flight.
                        || {
                            if self.is_cut_off.load(Acquire)
                                && !self.pd.is_severed()
                                && Queue::sever_all(queues())
                            {
                                self.sever(Some(&admin));
                            }
                        },
                    );
                }
            }
            admin.close();
        }
        // The admin queue pair first, so that a volume that is attached meanwhile does not find it.
        let admin = self.admin.lock().take();
        for attachment in self.attachments() {
            attachment.forget_admin();
        }
        drop(admin);
        let queues = match self.next_attachment(0) {
            Some(attachment) => attachment.volume().retire(&self.queues),
            None => core::mem::take(&mut *self.queues.lock()),
        };
        let count = queues.len();
        drop(queues);
        let client = self.client.lock().take();
        drop(client);
        // Only drives are waited for from here on. Fails while a queue has another reference, for
        // example that of a reader of its counters.
        let _ = self.pd.sever();
        for attachment in self.attachments() {
            if attachment.ends_alone() {
                // The volume's own teardown releases it, now that the queue pairs are closed. It
                // may wait for the drive.
                while self.pd.sever().is_err() && !attachment.has_ended_within(SEVER_MS) {}
                attachment.wait();
            } else {
                attachment.release();
                attachment.finish();
            }
        }
        self.state.lock().finish();
        self.trace_state(trace::ConnectionState::Ended);
        if may_print(Lines::Gone) {
            pr_info!(
                "{}: nothing is left of session {:016x} of {} ({count} queues)\n",
                self.label(),
                self.id.0,
                self.host
            );
        }
        // A waiter looks for the session in the list, and must find everything done.
        for attachment in self.attachments() {
            attachment.ended();
            self.forget(attachment.handle());
        }
        self.registry.remove_session(self);
        self.ended.set();
    }
}

impl Session {
    /// Destroys the RDMA objects that the session still has, while a drive works on the session's
    /// requests. The queue pairs are severed already. After this the device can be removed or reset
    /// before the drive has finished. Sleeps, but not for the drive. The caller calls this function
    /// repeatedly, since objects may be in use: by the initiator, or by a queue pair that is just
    /// being created.
    ///
    /// If the export ends, the admin queue pair stays until the drive has finished: the initiator
    /// then asks on it whether its writes are durable, unless its connection is lost.
    fn sever(&self, admin: Option<&Arc<Admin>>) {
        let is_asked =
            self.reason() == Some(EndReason::Withdrawn) && !self.is_cut_off.load(Acquire);
        if is_asked || self.pd.is_lost() {
            return;
        }
        if let Some(admin) = admin {
            admin.close();
            admin.sever();
        }
        if let Some(client) = self.client() {
            client.leave_device();
        }
        // Fails while something uses it.
        let _ = self.pd.sever();
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
        self.look_for_volumes();
        for queue in self.queues.lock().iter() {
            queue.send_keep_alive();
        }
    }
}

/// The most requests to attach a volume that may be under way for a session; each is one of the
/// connection requests that may wait at the target. An initiator may have half as many, but a
/// request is still counted for a moment after its response was sent.
const ATTACHING_MAX: u32 = 16;

/// The number of keep-alive periods after which a session without a volume ends: an initiator
/// attaches a volume at once.
const BARE_PERIODS: u32 = 3;

impl Session {
    /// Ends the session if no volume was attached for [`BARE_PERIODS`]: its host may not be allowed
    /// to use any volume any more. Called every [`KEEP_ALIVE_PERIOD_MS`].
    fn look_for_volumes(&self) {
        let is_bare = self.is_of_host()
            && self.attaching.load(Relaxed) == 0
            && self.next_attachment(0).is_none();
        let periods = if is_bare {
            self.bare_periods.load(Relaxed) + 1
        } else {
            0
        };
        self.bare_periods.store(periods, Relaxed);
        if periods < BARE_PERIODS {
            return;
        }
        // The timer holds a reference to the session.
        if let Some(admin) = self.admin.lock().as_ref() {
            admin.end_bare();
        }
    }
}

/// The key of a session, the number with which its initiator names it, and the counters of sealed
/// requests received so far.
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

    /// Returns the number with which requests name the session.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns whether the session's initiator has sent `request` on `channel`.
    pub(crate) fn has_sealed(&self, request: &Sealed, channel: &Channel) -> bool {
        self.key.has_sealed(request, channel)
    }

    /// Returns whether `request` is not a replay. Must be called once, after [`Self::has_sealed`].
    pub(crate) fn is_new(&self, request: &Sealed) -> bool {
        self.window.lock().accept(request.counter())
    }
}

/// The volumes of a session, by their handles.
///
/// ```text
///  Free ──attach──► Taken ──nothing left──► Left ──initiator detaches──► Free
///                     └─initiator detaches──► Detaching ──nothing left──►┘
/// ```
struct Handles(KVec<HandleUse>);

enum HandleUse {
    Free,
    Taken(Arc<Attachment>),
    /// The volume is attached, but the initiator has detached the handle and no longer names it.
    Detaching(Arc<Attachment>),
    /// The volume has ended completely, but the initiator may still name it.
    Left,
}

impl Handles {
    /// Allocates places for `count` volumes. May sleep.
    fn new(count: u16) -> Result<Self> {
        let mut places = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for _ in 0..count {
            places.push(HandleUse::Free, GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    fn count(&self) -> u16 {
        self.0.len() as u16
    }

    fn get(&self, handle: Handle) -> Option<&Arc<Attachment>> {
        match self.0.get(usize::from(handle.0))? {
            HandleUse::Taken(attachment) | HandleUse::Detaching(attachment) => Some(attachment),
            HandleUse::Free | HandleUse::Left => None,
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        (0..self.count()).filter_map(|number| self.get(Handle(number)))
    }

    /// Returns the volume of a session that can have one only.
    fn lone(&self) -> Option<&Arc<Attachment>> {
        match self.count() {
            1 => self.get(Handle::FIRST),
            _ => None,
        }
    }

    /// Assigns the first free handle to a volume. Returns `None` if no handle is free.
    fn take(&mut self, attachment: &Arc<Attachment>) -> Option<Handle> {
        let mut places = self.0.iter_mut().zip(0..);
        let (place, number) = places.find(|(place, _)| matches!(place, HandleUse::Free))?;
        *place = HandleUse::Taken(attachment.clone());
        Some(Handle(number))
    }

    /// Records that the initiator no longer names a handle. Returns the volume if it has not ended
    /// completely, or `None` if the handle is not one of the initiator's.
    fn leave(&mut self, handle: Handle) -> Option<Option<Arc<Attachment>>> {
        let place = self.0.get_mut(usize::from(handle.0))?;
        match core::mem::replace(place, HandleUse::Free) {
            HandleUse::Left => Some(None),
            HandleUse::Taken(attachment) => {
                *place = HandleUse::Detaching(attachment.clone());
                Some(Some(attachment))
            }
            former => {
                *place = former;
                None
            }
        }
    }

    /// Removes a volume that has ended completely.
    fn forget(&mut self, handle: Handle) -> Option<Arc<Attachment>> {
        let place = self.0.get_mut(usize::from(handle.0))?;
        match core::mem::replace(place, HandleUse::Free) {
            HandleUse::Taken(attachment) => {
                // The initiator does not know the handle of a volume that was refused.
                if attachment.is_published() {
                    *place = HandleUse::Left;
                }
                Some(attachment)
            }
            HandleUse::Detaching(attachment) => Some(attachment),
            former => {
                *place = former;
                None
            }
        }
    }
}

/// The name of a session in messages: that of its volume, if it can have one only.
#[derive(Clone, Copy)]
pub(crate) struct Label(Option<VolumeName>);

impl core::fmt::Display for Label {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.0 {
            Some(volume) => core::fmt::Display::fmt(volume, f),
            None => f.write_str("hcablk"),
        }
    }
}
printable!(Label);

impl Session {
    /// Makes the session end when the port of `id` goes down, unless it has ended already. Sleeps.
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
    /// Creates the admin queue pair of the connection `id`, for which `client` was charged, and
    /// adds it. May sleep. Fails with `EIO` if the session is ending.
    pub(crate) fn make_admin(
        self: &Arc<Self>,
        id: &Arc<Id>,
        client: Arc<Client>,
    ) -> Result<Arc<Admin>> {
        let completions = self.registry.admin_completions();
        let admin = Admin::new(self.clone(), id, &self.pd, completions, client)?;
        let watched = self.watch_port(id);
        let mut place = self.admin.lock();
        if watched.is_ok() && self.state.lock().is_live() {
            *place = Some(admin.clone());
            for attachment in self.attachments() {
                attachment.respond_through(&admin);
            }
            return Ok(admin);
        }
        drop(place);
        admin.close();
        watched.and(Err(EIO))
    }

    /// Creates queue pair `index` of the connection `id`, for which `charge` accounts, with the
    /// backing of `attachment`'s volume. May sleep.
    pub(crate) fn make_queue(
        self: &Arc<Self>,
        attachment: &Attachment,
        index: u8,
        id: &Arc<Id>,
        backing: Arc<Backing>,
        shape: QueueShape,
        charged: (&Arc<Client>, Charge),
    ) -> Result<Arc<Queue>> {
        let software = self.pd.is_software();
        let volumes = self.capacity();
        let completions = match volumes {
            1 => backing.completions(software),
            _ => self.registry.shared_completions(software),
        };
        let completions = completions.clone();
        let config = QueueConfig {
            session: self.id,
            epoch: self.epoch,
            index,
            completions,
            pd: self.pd.clone(),
            volume: attachment.config(index, backing)?,
            handle: attachment.handle(),
            volumes,
        };
        Queue::new(self.clone(), config, id, shape, charged)
    }

    /// Begins to attach a volume, as request `tag` of the admin queue pair asks. The response may
    /// have to wait until an older attachment of the disk has ended. Fails with `ENOMEM`, and with
    /// `EMFILE` if too many requests wait. May sleep, but does not wait for the older attachment.
    pub(crate) fn begin_attach(self: &Arc<Self>, tag: Tag, attach: Attach) -> Result {
        // Only the handler of the admin queue pair counts upward.
        if self.attaching.load(Relaxed) >= ATTACHING_MAX {
            return Err(EMFILE);
        }
        attach::begin(&self.registry, self, tag, attach)
    }

    /// Counts a request to attach a volume whose outcome is open; with `over`, counts its end.
    pub(crate) fn count_attaching(&self, over: bool) {
        match over {
            false => self.attaching.fetch_add(1, Relaxed),
            true => self.attaching.fetch_sub(1, Relaxed),
        };
    }

    /// Sends the response to a request to attach a volume, unless the session is ending. May sleep.
    pub(crate) fn respond_to_attach(&self, tag: Tag, outcome: Result<Attached, Reason>) {
        // Under the lock, so that the teardown drops the last reference.
        if let Some(admin) = self.admin.lock().as_ref() {
            admin.attached(tag, outcome);
        }
    }

    /// Records that the initiator no longer watches any volume. Any context.
    pub(crate) fn nobody_watches(&self) {
        for attachment in self.attached.lock().iter() {
            attachment.watched.notice_end();
        }
    }

    /// Ends the session because of a fault of queue pair `queue`.
    pub(crate) fn end_by(self: &Arc<Self>, queue: u8, fault: Fault) {
        self.end(EndReason::Queue(queue, fault));
        if queue == ADMIN_QUEUE {
            // Without the admin queue pair, the initiator cannot ask whether its writes are
            // durable.
            self.is_cut_off.store(true, Release);
            for attachment in self.attached.lock().iter() {
                attachment.durable_reported();
            }
        }
    }

    /// Returns a live volume of the session, whose backing a new queue pair can use.
    pub(crate) fn backing_volume(&self) -> Option<Arc<Attachment>> {
        self.attachments()
            .find(|attachment| attachment.is_live() && attachment.is_published())
    }

    /// Adds a queue pair that was created for `backing_volume`. Fails with `EIO` if the session or
    /// that volume is ending, with `EEXIST` if the session has this queue already, or with
    /// `ENOMEM`; the queue pair is then closed.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>, backing_volume: &Attachment) -> Result {
        let mut queues = self.queues.lock();
        let result = if !self.state.lock().is_live() || !backing_volume.is_live() {
            Err(EIO)
        } else if queues.iter().any(|q| q.index() == queue.index()) {
            Err(EEXIST)
        } else {
            queue.set_timing(self.is_timed());
            self.add_volumes(queue)
                .and_then(|()| queues.push(queue.clone(), GFP_KERNEL).map_err(Into::into))
        };
        drop(queues);
        if result.is_err() {
            queue.close();
        }
        result
    }

    /// Adds the attached volumes to a new queue pair that does not have them. Under the lock of the
    /// queue pairs.
    fn add_volumes(&self, queue: &Queue) -> Result {
        self.attachments()
            .filter(|attachment| attachment.is_published())
            .try_for_each(|attachment| match attachment.add_to(queue) {
                Err(_) if !attachment.is_live() => Ok(()),
                result => result,
            })
    }

    /// Returns whether to measure the durations of requests.
    fn is_timed(&self) -> bool {
        self.attachments()
            .any(|attachment| attachment.volume().timing())
    }

    /// Removes a queue pair while the session continues, and waits until it has ended completely,
    /// which includes the requests that the drive has begun. Does nothing if there is no such queue
    /// pair, or the session is ending. If the session ends meanwhile, its teardown removes the
    /// queue pair: the teardown must release the RDMA device without waiting for the drive. Returns
    /// `false`, without waiting, if another queue pair is being removed: an initiator replaces one
    /// after the other. Process context.
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
            queue.trace_state(trace::ConnectionState::Ending);
            if !queue.close_alone() {
                return true;
            }
            if let Some(attachment) = self.next_attachment(0) {
                drop(attachment.volume().retire_one(&self.queues, index));
            }
        }
        true
    }
}
