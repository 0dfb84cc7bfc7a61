// SPDX-License-Identifier: GPL-2.0

//! An initiator's queue pairs, and the [volumes](attachment) that are attached to them.
//!
//! ```text
//!          end(), any context           nothing left
//!  Live ─────────────────────► Ending ────────────────► Ended
//! ```
//!
//! Whatever goes wrong calls [`Session::end`] and says what it is; the first call, whose reason is
//! kept and logged, queues the teardown, which runs once, in process context: every queue pair is
//! failed, so that nothing of the session can reach a drive any more; what the drives have begun is
//! waited for; then the session is forgotten. If the export ends, what was acknowledged is made
//! durable before, and the initiator can ask for that by the admin queue pair.
//!
//! In version 2 of the protocol a session begins with its one volume. In version 3 it begins
//! without any, and volumes are attached and detached on its admin queue pair. One of several
//! volumes ends by itself ([`Attachment::end`]); the last one ends the session.

use self::{
    attachment::Attachment,
    end_reason::EndReason, //
};
use crate::{
    admin::Admin,
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
    printable,
    proto::{
        auth::{
            Channel,
            Sealed,
            Window, //
        },
        connect::{
            Epoch,
            Reason,
            Request,
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
        ATTACHED_MAX,
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

pub(crate) mod attachment;
mod changer;
pub(crate) mod end_reason;
pub(crate) mod watched;

/// See the module's picture. A session is live from the start.
type State = SessionState<EndReason>;

/// A session. It and its queues hold each other until the teardown.
#[pin_data]
pub(crate) struct Session {
    registry: Arc<Registry>,
    /// For messages.
    label: Label,
    /// Where it ends: see [`Exported::ends`](attachment::Exported::ends), if it is of one volume.
    ends: Arc<WorkQueue>,
    /// The memory of the port that it began at.
    memory: Arc<Memory>,
    /// Bytes of the largest request; set with the admin queue pair, which the others follow.
    largest: Atomic<u32>,
    id: SessionId,
    epoch: Epoch,
    host: HostId,
    queue_count: u8,
    /// That its initiator is who it says; `None`: it need not prove that.
    proof: Option<Arc<SessionProof>>,
    /// By what it began.
    proven: Proven,
    pd: Arc<ProtectionDomain>,
    /// Its part of the port's memory; set with the admin queue pair, and taken by the teardown.
    #[pin]
    client: Mutex<Option<Arc<Client>>>,
    /// The volumes that are attached.
    #[pin]
    attached: IrqLock<Handles>,
    /// Requests to attach one that have not been decided.
    attaching: Atomic<u32>,
    #[pin]
    state: IrqLock<State>,
    /// Empty once the teardown is done with it.
    #[pin]
    admin: Mutex<Option<Arc<Admin>>>,
    /// Set with the admin queue pair, until the teardown.
    #[pin]
    port: WatchedPort,
    /// The lock is also held by who gives a volume to them, or takes it away.
    #[pin]
    queues: Mutex<KVec<Arc<Queue>>>,
    /// Held by who closes queues: the teardown, which has shut them before, or who replaces one.
    #[pin]
    closing: Mutex<()>,
    #[pin]
    keep_alive_timer: Mutex<Option<Running<Session>>>,
    /// Keep-alive periods for which it has had no volume. Counted by the timer.
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
    /// Makes a session without queues, to which the volume is to be [attached](Attachment::new)
    /// that `request` names, if it names one. May sleep.
    pub(crate) fn new(
        registry: &Arc<Registry>,
        memory: &Arc<Memory>,
        request: &Request,
        (proof, proven): (Option<Arc<SessionProof>>, Proven),
        pd: Arc<ProtectionDomain>,
        ends: Arc<WorkQueue>,
    ) -> Result<Arc<Self>> {
        let count = match request.volume {
            Some(_) => 1,
            None => ATTACHED_MAX,
        };
        let attached = Handles::new(count)?;
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
                state <- new_irq_lock!(State::Live, "hcablk_session"),
                admin <- new_mutex!(None),
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
        session.comes_to(trace::State::Live);
        *session.keep_alive_timer.lock() =
            Some(Periodic::start(session.clone(), KEEP_ALIVE_PERIOD_MS)?);
        Ok(session)
    }

    /// Gives a volume its handle. Fails with `EIO` if the session ends, and with `ENOSPC` if it has
    /// no room for another one. May sleep.
    fn attach(&self, attachment: &Arc<Attachment>) -> Result<Handle> {
        let mut attached = self.attached.lock();
        // Whoever ends the session looks for its volumes after that.
        if !self.state.lock().is_live() {
            return Err(EIO);
        }
        let handle = attached.take(attachment).ok_or(ENOSPC)?;
        attachment.set_handle(handle);
        Ok(handle)
    }

    /// Returns the volume of this handle, unless nothing is left of it. Any context.
    pub(crate) fn attachment(&self, handle: Handle) -> Option<Arc<Attachment>> {
        self.attached.lock().get(handle).cloned()
    }

    /// Returns the first volume that is attached whose handle is `from` or a later one. Any
    /// context.
    pub(crate) fn next_attachment(&self, from: u16) -> Option<Arc<Attachment>> {
        let attached = self.attached.lock();
        let mut others = attached.iter().skip_while(|a| a.handle().0 < from);
        others.next().cloned()
    }

    /// Iterates over the volumes that are attached, those that end included. Any context.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = Arc<Attachment>> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let next = self.next_attachment(from)?;
            from = next.handle().0 + 1;
            Some(next)
        })
    }

    /// Begins the end of one volume alone, which `enqueue`s it, and returns whether that had not
    /// begun before; `None`: it is the last one, so that the session has to end: its queue pairs
    /// always have a volume. Any context.
    fn begin_end_of(
        &self,
        attachment: &Attachment,
        reason: EndReason,
        enqueue: impl FnOnce(),
    ) -> Option<bool> {
        // Under the lock: the teardown of the session looks who ends alone, and waits for these.
        let attached = self.attached.lock();
        let goes_on = |a: &Arc<Attachment>| {
            !core::ptr::eq(&**a, attachment) && a.is_live() && a.is_published()
        };
        let is_alone = !attachment.is_published() || attached.iter().any(goes_on);
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

    /// Begins to detach a volume as the initiator asks, whose handle may be another one's when
    /// nothing is left of it. Returns whether there is, or was, one of this handle.
    pub(crate) fn detach(&self, handle: Handle) -> bool {
        let Some(found) = self.attached.lock().leave(handle) else {
            return false;
        };
        if let Some(attachment) = found {
            attachment.end(EndReason::Detached);
        }
        true
    }

    /// Takes a volume off the list of whose requests nothing is left. Its handle stays its own
    /// until the initiator has detached it: it may still name it.
    fn forget(&self, handle: Handle) {
        let former = self.attached.lock().forget(handle);
        drop(former);
    }

    /// Returns what it is called in messages.
    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    /// Returns the name of its volume, if it is of one.
    pub(crate) fn volume(&self) -> Option<VolumeName> {
        self.label.0
    }

    /// Returns by what it began.
    pub(crate) fn proven(&self) -> Proven {
        self.proven
    }

    /// Returns whether volumes are attached to it when it has begun.
    pub(crate) fn is_of_host(&self) -> bool {
        self.label.0.is_none()
    }

    /// Returns whether `request` names it, in whatever epoch.
    pub(crate) fn is_named_by(&self, request: &Request) -> bool {
        self.is_of_host() && self.id == request.session && self.host == request.host
    }

    /// Returns a number, not 0, that changes when the target begins or ceases to listen at an
    /// address. Any context.
    pub(crate) fn portals_generation(&self) -> u32 {
        self.registry.portals_generation()
    }

    /// Returns whether the session has its memory of `memory`, which is that of one port.
    pub(crate) fn uses(&self, memory: &Memory) -> bool {
        core::ptr::eq(&*self.memory, memory)
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

    /// Has the share of its host charged no more for its memory, if it has ended: a drive does not
    /// finish what it has begun for it. Process context.
    #[cold]
    pub(crate) fn strand(&self) {
        if let Some(client) = self.client().filter(|_| self.is_ending()) {
            client.strand();
        }
    }

    /// Sets [`Self::client`]. To be called by whoever makes the admin queue pair.
    pub(crate) fn set_client(&self, client: Arc<Client>) {
        *self.client.lock() = Some(client);
    }

    /// Returns how many queue pairs it shall have beside the admin queue pair.
    pub(crate) fn queue_count(&self) -> u8 {
        self.queue_count
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
            broken!("the end of a session was queued already");
        }
    }

    /// Logs why the session ends, with a rate limit, since a peer can cause it.
    #[cold]
    fn report_end(&self, reason: EndReason) {
        let (label, id, host) = (&self.label, self.id.0, self.host);
        if reason.is_usual() {
            if may_print(Lines::Ends) {
                pr_info!("{label}: session {id:016x} of {host} ended: {reason}\n");
            }
        } else if may_print(Lines::Faults) {
            pr_warn!("{label}: session {id:016x} of {host} ended: {reason}\n");
        }
    }

    /// Waits at most `ms` milliseconds until nothing is left of the session, which takes as long as
    /// the drives need for what they have begun; returns whether that is so. Process context.
    pub(crate) fn has_ended_within(&self, ms: u32) -> bool {
        self.ended.wait_ms(ms).is_ok()
    }

    fn tear_down(&self) {
        drop(self.keep_alive_timer.lock().take());
        self.port.leave();
        // From here on none of them begins to end alone, nor comes to queue pairs.
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
                // Not shut before the initiator has asked what it wants to know.
                true => {
                    for attachment in with_it() {
                        admin.say_gone(&attachment, true);
                    }
                }
                false => {
                    if self.reason() == Some(EndReason::Detached) {
                        admin.let_answers_leave();
                    }
                    admin.shut();
                }
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
        Queue::close_all(queues, || self.sever(admin.as_ref()));
        for attachment in self.attachments() {
            attachment.close();
        }
        if let Some(admin) = admin {
            if withdrawn {
                for attachment in with_it() {
                    attachment.make_durable(|| Some(admin.clone()));
                }
            }
            admin.close();
        }
        // In this order: a volume that comes meanwhile does not find it.
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
        for attachment in self.attachments() {
            if attachment.ends_alone() {
                // Its own end releases it, now that the queue pairs are gone.
                attachment.wait();
            } else {
                attachment.release();
                attachment.finish();
            }
        }
        self.state.lock().finish();
        self.comes_to(trace::State::Ended);
        if may_print(Lines::Gone) {
            pr_info!(
                "{}: nothing is left of session {:016x} of {} ({count} queues)\n",
                self.label,
                self.id.0,
                self.host
            );
        }
        // Who waits looks for it in the list, and finds all of it done.
        for attachment in self.attachments() {
            attachment.ended();
            self.forget(attachment.handle());
        }
        self.registry.remove_session(self);
        self.ended.set();
    }
}

/// How long what is just being made for a session that ends may take to go, in milliseconds, and how
/// often it is looked whether it has.
const LEAVE_MS: u32 = 30_000;
const LEAVE_LOOK_MS: u32 = 100;

impl Session {
    /// Gives back to the RDMA device all that the session still has of it while a drive goes on with
    /// its requests: its queue pairs are severed. So the device can be removed, or be reset, however
    /// long that drive takes. Sleeps, but not for the drive.
    ///
    /// Not if the export ends: the initiator asks by the admin queue pair whether all is durable when
    /// the drive has finished.
    fn sever(&self, admin: Option<&Arc<Admin>>) {
        if self.reason() == Some(EndReason::Withdrawn) || self.pd.is_lost() {
            return;
        }
        if let Some(admin) = admin {
            admin.close();
            admin.sever();
        }
        if let Some(client) = self.client() {
            client.leave_device();
        }
        for _ in 0..LEAVE_MS / LEAVE_LOOK_MS {
            // A queue pair may be in the making, which finds that the session ends.
            if self.pd.sever().is_ok() {
                return;
            }
            let _ = self.ended.wait_ms(LEAVE_LOOK_MS);
        }
        pr_warn!(
            "{}: session {:016x}: something keeps the RDMA device while the drive does not finish\n",
            self.label,
            self.id.0
        );
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

/// Keep-alive periods after which a session ends that has had no volume: an initiator attaches one
/// at once.
const BARE_PERIODS: u32 = 3;

impl Session {
    /// Ends the session if no volume was attached for [`BARE_PERIODS`]: its host need not be
    /// allowed to use any of them any more. Called every [`KEEP_ALIVE_PERIOD_MS`].
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
        // The timer has the session.
        if let Some(admin) = self.admin.lock().as_ref() {
            admin.end_bare();
        }
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

/// The volumes of a session, by their handles.
///
/// ```text
///  Free ──attach──► Taken ──nothing left──► Left ──initiator detaches──► Free
///                     └─initiator detaches──► Asked ──nothing left──────►┘
/// ```
struct Handles(KVec<Place>);

enum Place {
    Free,
    Taken(Arc<Attachment>),
    /// As that, and the initiator does not name it any more.
    Asked(Arc<Attachment>),
    /// Nothing is left of the volume, but the initiator may still name it.
    Left,
}

impl Handles {
    /// Makes room for `count` volumes. May sleep.
    fn new(count: u16) -> Result<Self> {
        let mut places = KVec::with_capacity(count.into(), GFP_KERNEL)?;
        for _ in 0..count {
            places.push(Place::Free, GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    fn count(&self) -> u16 {
        self.0.len() as u16
    }

    fn get(&self, handle: Handle) -> Option<&Arc<Attachment>> {
        match self.0.get(usize::from(handle.0))? {
            Place::Taken(attachment) | Place::Asked(attachment) => Some(attachment),
            Place::Free | Place::Left => None,
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Attachment>> {
        (0..self.count()).filter_map(|number| self.get(Handle(number)))
    }

    /// Gives a volume the first handle that is free; `None`: none is.
    fn take(&mut self, attachment: &Arc<Attachment>) -> Option<Handle> {
        let mut places = self.0.iter_mut().zip(0..);
        let (place, number) = places.find(|(place, _)| matches!(place, Place::Free))?;
        *place = Place::Taken(attachment.clone());
        Some(Handle(number))
    }

    /// Records that the initiator names a handle no more. Returns the volume if something is left
    /// of it; `None`: the handle is none of its own.
    fn leave(&mut self, handle: Handle) -> Option<Option<Arc<Attachment>>> {
        let place = self.0.get_mut(usize::from(handle.0))?;
        match core::mem::replace(place, Place::Free) {
            Place::Left => Some(None),
            Place::Taken(attachment) => {
                *place = Place::Asked(attachment.clone());
                Some(Some(attachment))
            }
            former => {
                *place = former;
                None
            }
        }
    }

    /// Takes a volume out of which nothing is left.
    fn forget(&mut self, handle: Handle) -> Option<Arc<Attachment>> {
        let place = self.0.get_mut(usize::from(handle.0))?;
        match core::mem::replace(place, Place::Free) {
            Place::Taken(attachment) => {
                *place = Place::Left;
                Some(attachment)
            }
            Place::Asked(attachment) => Some(attachment),
            former => {
                *place = former;
                None
            }
        }
    }
}

/// What a session is called in messages: by its volume, if it is of one.
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
    /// Makes the admin queue pair of the connection `id`, which `client` was charged for, and adds
    /// it. May sleep. Fails with `EIO` if the session is ending.
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
                attachment.answer_by(&admin);
            }
            return Ok(admin);
        }
        drop(place);
        admin.close();
        watched.and(Err(EIO))
    }

    /// Makes queue pair `index` of the connection `id`, which `charge` is for, over what the volume
    /// of `attachment` is made of. May sleep.
    pub(crate) fn make_queue(
        self: &Arc<Self>,
        attachment: &Attachment,
        index: u8,
        id: &Arc<Id>,
        backing: Arc<Backing>,
        shape: Shape,
        charged: (&Arc<Client>, Charge),
    ) -> Result<Arc<Queue>> {
        let completions = backing.completions(self.pd.is_software()).clone();
        let config = QueueConfig {
            session: self.id,
            epoch: self.epoch,
            index,
            completions,
            pd: self.pd.clone(),
            volume: attachment.config(backing).ok_or(EIO)?,
            handle: attachment.handle(),
            volumes: self.attached.lock().count(),
        };
        Queue::new(self.clone(), config, id, shape, charged)
    }

    /// Begins to attach a volume, as request `tag` of the admin queue pair asks: that may wait for
    /// what is left of an older attachment of the disk. Fails with `ENOMEM`, and with `EBUSY` if
    /// too many wait. May sleep, but not for that.
    pub(crate) fn begin_attach(self: &Arc<Self>, tag: Tag, attach: Attach) -> Result {
        attach::begin(&self.registry, self, tag, attach)
    }

    /// Counts a request to attach a volume that is still to be decided, until it is `over`.
    pub(crate) fn count_attaching(&self, over: bool) {
        match over {
            false => self.attaching.fetch_add(1, Relaxed),
            true => self.attaching.fetch_sub(1, Relaxed),
        };
    }

    /// Answers a request to attach a volume, unless the session ends. May sleep.
    pub(crate) fn answer_attach(&self, tag: Tag, outcome: Result<Attached, Reason>) {
        // Under the lock, so that the teardown has the last reference.
        if let Some(admin) = self.admin.lock().as_ref() {
            admin.attached(tag, outcome);
        }
    }

    /// Records that no volume is watched any more. Any context.
    pub(crate) fn nobody_watches(&self) {
        for attachment in self.attached.lock().iter() {
            attachment.watched.told();
        }
    }

    /// Ends the session because of queue pair `queue`.
    pub(crate) fn end_by(self: &Arc<Self>, queue: u8, fault: Fault) {
        self.end(EndReason::Queue(queue, fault));
        if queue == ADMIN_QUEUE {
            // Nobody will ask.
            for attachment in self.attached.lock().iter() {
                attachment.durable_told();
            }
        }
    }

    /// Returns a volume for which a queue pair can be made.
    pub(crate) fn founder(&self) -> Option<Arc<Attachment>> {
        self.attachments()
            .find(|attachment| attachment.is_live() && attachment.is_published())
    }

    /// Adds a queue pair that was made for `founder`. If the session or that volume is ending, or
    /// the session has this queue already, or there is no memory, the queue pair is taken down and
    /// `EIO`, `EEXIST` or `ENOMEM` returned.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>, founder: &Attachment) -> Result {
        let mut queues = self.queues.lock();
        let result = if !self.state.lock().is_live() || !founder.is_live() {
            Err(EIO)
        } else if queues.iter().any(|q| q.index() == queue.index()) {
            Err(EEXIST)
        } else {
            queue.time(self.is_timed());
            self.give_volumes(queue)
                .and_then(|()| queues.push(queue.clone(), GFP_KERNEL).map_err(Into::into))
        };
        drop(queues);
        if result.is_err() {
            queue.close();
        }
        result
    }

    /// Gives a queue pair that comes the volumes that it does not have. Under the lock of the queue
    /// pairs.
    fn give_volumes(&self, queue: &Queue) -> Result {
        self.attachments()
            .filter(|attachment| attachment.is_published())
            .try_for_each(|attachment| match attachment.give(queue) {
                Err(_) if !attachment.is_live() => Ok(()),
                given => given,
            })
    }

    /// Returns whether to measure how long requests take.
    fn is_timed(&self) -> bool {
        self.attachments()
            .any(|attachment| attachment.volume().timing())
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
            if let Some(attachment) = self.next_attachment(0) {
                drop(attachment.volume().retire_one(&self.queues, index));
            }
        }
        true
    }
}
