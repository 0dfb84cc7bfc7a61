// SPDX-License-Identifier: GPL-2.0

//! Lists the volumes, their attachments to sessions, and the connection requests being handled.
//!
//! One lock protects the lists of volumes, attached volumes and portals; it is held for look-ups
//! and changes only, never while waiting. Keys, challenges and drive waiters have their own locks.
//! An attachment is listed from its creation until it has ended completely: once it is no longer
//! listed, none of its requests can write.

use super::{
    admission,
    challenges::{
        Entry,
        PLACES, //
    },
    drive_waiters::{
        is_room,
        WAITERS_MAX, //
    },
    keys::{
        Keys,
        Proven, //
    },
    volume::Volume, //
};
use crate::{
    claimant::Claimant,
    drive::{
        claims::Claims,
        reservations::Drives, //
    },
    pending_connects,
    session::{
        attachment::Attachment,
        end_reason::EndReason,
        Session,
        SessionProof, //
    },
};
use core::net::SocketAddr;
use hcablk_core::{
    blkdev::FileId,
    crypto::{
        KernelCrypto,
        Key, //
    },
    proto::{
        auth::Challenged,
        connect::ConnectRequest,
        name::HostId, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        WorkQueue, //
    },
    system::random_u64, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

mod listing;
mod proofs;

/// The lists of the registry.
pub(crate) struct Lists {
    volumes: KVec<Arc<Volume>>,
    attachments: KVec<Arc<Attachment>>,
    /// Sessions that began without a volume, to which volumes are attached later.
    sessions: KVec<Arc<Session>>,
    /// The addresses at which the target listens.
    portals: KVec<SocketAddr>,
}

impl Lists {
    fn attachments_of(&self, host: HostId, volume: &Arc<Volume>) -> usize {
        let mine = |a: &&Arc<Attachment>| a.host() == host && a.is_of(volume);
        self.attachments.iter().filter(mine).count()
    }

    /// Returns whether `host` has no room for another session that begins without a volume. Those
    /// that were begun with a proof, and those without, are counted apart.
    fn has_many_sessions(&self, host: HostId, proven: bool) -> bool {
        let is_alike = |s: &&Arc<Session>| s.host() == host && s.proof().is_some() == proven;
        let alike = || self.sessions.iter().filter(is_alike);
        let bare = || alike().filter(|s| s.is_bare()).count();
        alike().count() >= SESSIONS_PER_HOST || (!proven && bare() >= BARE_PER_HOST)
    }
}

/// The module's workqueues.
#[derive(Clone)]
pub(crate) struct WorkQueues {
    /// Ports and their memory retry here when a resource becomes available.
    pub(crate) control: Arc<WorkQueue>,
    /// Connections are established here. This work waits for the ends of sessions, which therefore
    /// run on other workqueues.
    pub(crate) connect: Arc<WorkQueue>,
    /// Completions of admin queue pairs are handled here. No work on it waits for a drive, so that
    /// keep-alives, fences and watches get their responses even if a drive hangs.
    pub(crate) admin: Arc<WorkQueue>,
    /// Completions of the queue pairs of sessions of several volumes are handled here. They never
    /// wait for room in a drive.
    pub(crate) completions: Arc<WorkQueue>,
    /// The same, for software RDMA devices: see
    /// [`Backing::completions`](crate::drive::backing::Backing::completions).
    pub(crate) software: Arc<WorkQueue>,
    /// Changes of reservations are made here; they wait for the file system that stores them.
    pub(crate) changes: Arc<WorkQueue>,
    /// Sessions of several volumes are torn down here; that waits for the drives of all of them.
    pub(crate) ends: Arc<SessionEnds>,
}

/// The number of workqueues on which sessions of several volumes are torn down.
const ENDS: usize = 16;

/// The workqueues on which sessions of several volumes are torn down. A teardown occupies a worker
/// until the drives of all volumes of its session have finished, and a workqueue has a limited
/// number of workers for each NUMA node. So the sessions of a host use one of several workqueues:
/// hosts with a hanging drive keep few others from ending their sessions, and only if they have
/// more sessions than a workqueue has workers. All are made when the module is loaded, since making
/// one creates a thread, for which a host that reconnects must not wait.
pub(crate) struct SessionEnds(KVec<Arc<WorkQueue>>);

impl SessionEnds {
    /// Allocates the workqueues. Sleeps. Fails with `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let mut queues = KVec::with_capacity(ENDS, GFP_KERNEL)?;
        for place in 0..ENDS {
            let name = CString::try_from_fmt(fmt!("hcablk_ends_{place}"))?;
            queues.push(Arc::new(WorkQueue::new(&name)?, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(Arc::new(Self(queues), GFP_KERNEL)?)
    }

    /// Returns the workqueue for sessions of `claimant`. Fails with `EINVAL` if there is none: an
    /// invariant is broken.
    fn of(&self, claimant: Claimant) -> Result<Arc<WorkQueue>> {
        let queue = self.0.get(claimant.place_among(ENDS));
        queue.cloned().ok_or(EINVAL)
    }

    /// Waits until all teardowns are done. No session may begin any more. Sleeps.
    pub(crate) fn drain(&self) {
        for queue in self.0.iter() {
            queue.drain();
        }
    }
}

/// The most sessions of a host that begin without a volume. A host has one for each path, or one
/// for each path of each disk.
const SESSIONS_PER_HOST: usize = 1024;

/// The most sessions without a volume that were begun without a proof in the name of a host: anyone
/// can begin them.
const BARE_PER_HOST: usize = 64;

/// A place for an initiator that must prove its identity.
type Challenge = Option<Entry<Arc<Challenged<KernelCrypto>>>>;

/// The volumes, sessions and pending connections of the target: see the module.
#[pin_data]
pub(crate) struct Registry {
    queues: WorkQueues,
    claims: Arc<Claims>,
    drives: Arc<Drives>,
    #[pin]
    lists: Mutex<Lists>,
    /// Whether volumes may still be attached.
    #[pin]
    open: Mutex<bool>,
    /// Changes whenever `portals` change, and is never 0. Written under the lock of the lists.
    portals_generation: Atomic<u32>,
    /// This target's keys.
    #[pin]
    keys: Mutex<Keys>,
    /// Initiators that must prove their identity.
    #[pin]
    challenges: Mutex<KVVec<Challenge>>,
    /// The number of challenges so far.
    challenge_count: Atomic<u64>,
    /// A random key that no one has.
    nobody: KBox<Key>,
    /// The number of connection requests that were accepted and are not decided.
    pending: Atomic<u32>,
    /// The host and the drive of each request that waits until a drive has finished older requests.
    #[pin]
    drive_waiters: Mutex<KVec<(Claimant, Option<FileId>)>>,
}

/// A connection request that waits for a drive, counted while this exists.
pub(crate) struct DriveWaiter<'a> {
    registry: &'a Registry,
    who: (Claimant, Option<FileId>),
}

impl Drop for DriveWaiter<'_> {
    fn drop(&mut self) {
        let mut waiters = self.registry.drive_waiters.lock();
        if let Some(place) = waiters.iter().position(|who| *who == self.who) {
            let last = waiters.len() - 1;
            waiters.swap(place, last);
            waiters.pop();
        }
    }
}

/// A connection request that waits on the workqueue, counted while this exists.
pub(crate) struct Pending(Arc<Registry>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Relaxed);
    }
}

impl Registry {
    pub(crate) fn new(queues: WorkQueues) -> Result<Arc<Self>> {
        let claims = Claims::new()?;
        let drives = Drives::new()?;
        let nobody = KBox::new(Key::random().ok_or(EINTR)?, GFP_KERNEL)?;
        let drive_waiters = KVec::with_capacity(WAITERS_MAX, GFP_KERNEL)?;
        let mut challenges = KVVec::with_capacity(PLACES, GFP_KERNEL)?;
        for _ in 0..PLACES {
            challenges.push(None, GFP_KERNEL)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                queues,
                claims,
                drives,
                lists <- new_mutex!(Lists {
                    volumes: KVec::new(),
                    attachments: KVec::new(),
                    sessions: KVec::new(),
                    portals: KVec::new(),
                }),
                open <- new_mutex!(true),
                // A random start: most likely not the value of an earlier start of the target.
                portals_generation: Atomic::new((random_u64() as u32).max(1)),
                keys <- new_mutex!(Keys::new()),
                challenges <- new_mutex!(challenges),
                challenge_count: Atomic::new(0),
                nobody,
                pending: Atomic::new(0),
                drive_waiters <- new_mutex!(drive_waiters),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the workqueue on which ports and their memory retry.
    pub(crate) fn work(&self) -> &Arc<WorkQueue> {
        &self.queues.control
    }

    /// Returns the reservations of the exported drives.
    pub(crate) fn drives(&self) -> &Arc<Drives> {
        &self.drives
    }

    /// Returns the workqueue on which connections are established.
    pub(crate) fn connect_work(&self) -> &Arc<WorkQueue> {
        &self.queues.connect
    }

    /// Counts a connection request that will wait on the workqueue. Fails with `EBUSY` if there are
    /// too many. Any context.
    pub(crate) fn wait_in_line(self: &Arc<Self>) -> Result<Pending> {
        let pending = Pending(self.clone());
        if self.pending.fetch_add(1, Relaxed) >= pending_connects() {
            return Err(EBUSY);
        }
        Ok(pending)
    }

    /// Counts a connection request of `claimant` that will wait for `drive`; `None` stands for the
    /// drive of a volume that is no longer exported. Fails with `EBUSY` if [too many](is_room)
    /// wait.
    pub(crate) fn wait_for_drive(
        &self,
        claimant: Claimant,
        drive: Option<FileId>,
    ) -> Result<DriveWaiter<'_>> {
        let who = (claimant, drive);
        let mut waiters = self.drive_waiters.lock();
        if !is_room(&waiters, claimant, &drive) {
            return Err(EBUSY);
        }
        waiters.push(who, GFP_KERNEL)?;
        drop(waiters);
        Ok(DriveWaiter {
            registry: self,
            who,
        })
    }

    /// Lists a volume. Fails with `EEXIST` if its name is taken.
    pub(crate) fn add_volume(&self, volume: &Arc<Volume>) -> Result {
        let mut lists = self.lists.lock();
        if lists.volumes.iter().any(|v| v.name() == volume.name()) {
            return Err(EEXIST);
        }
        lists.volumes.push(volume.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Sets key `place` of this target, as [`Keys::set`].
    pub(crate) fn set_key(&self, place: usize, text: &str) -> Result {
        self.keys.lock().set(place, text)
    }

    /// Returns the number of this target's keys.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.lock().count()
    }

    /// Returns the session that was begun with a proof and has this handle.
    pub(crate) fn proven_session(&self, handle: u64) -> Option<(Arc<Session>, Arc<SessionProof>)> {
        let lists = self.lists.lock();
        let found = |session: &Arc<Session>| {
            let proof = session.proof()?;
            (proof.handle() == handle).then(|| (session.clone(), proof.clone()))
        };
        let mut of_volume = lists.attachments.iter().map(|a| a.session());
        of_volume
            .find_map(found)
            .or_else(|| lists.sessions.iter().find_map(found))
    }

    /// Returns the state that admission needs for a request proven as `proven`, with the volume and
    /// the session that the request names.
    pub(crate) fn view(
        &self,
        request: &ConnectRequest,
        proven: Proven,
    ) -> (admission::View, Found) {
        let lists = self.lists.lock();
        let exported = |v: &&Arc<Volume>| Some(v.name()) == request.volume && v.is_exported();
        let volume = lists.volumes.iter().find(exported);
        let named = |a: &&Arc<Attachment>| a.is_named_by(request);
        let attachment = lists.attachments.iter().find(named);
        let seen = volume.map(|v| self.admission(v, request, proven));
        let view = admission::View {
            volume: seen.map(|(view, _)| view),
            session: attachment.map(|a| admission::Session {
                epoch: a.epoch(),
                // This takes one lock after the other.
                has_queue: a.session().has_queue(request.queue),
                ending: a.is_ending(),
                queues: a.session().queue_count(),
            }),
            last_epoch: seen.and_then(|(_, last_epoch)| last_epoch),
            other_instance: lists
                .attachments
                .iter()
                .any(|a| a.is_of_other_instance(request)),
        };
        let found = Found {
            volume: volume.cloned(),
            attachment: attachment.cloned(),
        };
        (view, found)
    }

    /// Returns the state that admission needs for a request without a volume, proven as `proven`,
    /// with the session that it names. The host is allowed if it may use any volume.
    pub(crate) fn view_of_host(
        &self,
        request: &ConnectRequest,
        proven: Proven,
    ) -> (admission::View, Option<Arc<Session>>) {
        let lists = self.lists.lock();
        let named = |s: &&Arc<Session>| s.is_named_by(request, proven.is_proven());
        let session = lists.sessions.iter().find(named);
        // Whether the host may use any volume, and whether it is evicted from all of those.
        let rights = || {
            let volumes = lists.volumes.iter();
            let mut entries = volumes.filter_map(|v| v.entry(request.host, proven));
            let first = entries.next();
            let evicted = first.as_ref().is_some_and(|entry| entry.evicted);
            (
                first.is_some(),
                evicted && entries.all(|entry| entry.evicted),
            )
        };
        let (allowed, evicted) = match request.is_admin() {
            true => rights(),
            // The other queue pairs need a session, and are proven with its key.
            false => (true, false),
        };
        let view = admission::View {
            volume: Some(admission::Volume {
                unproven: false,
                revoked: !allowed && proven.keys().is_some(),
                withdrawn: false,
                allowed,
                evicted,
                superseded: false,
            }),
            session: session.map(|s| admission::Session {
                epoch: s.epoch(),
                has_queue: s.has_queue(request.queue),
                ending: s.is_ending(),
                queues: s.queue_count(),
            }),
            last_epoch: None,
            other_instance: false,
        };
        (view, session.cloned())
    }

    /// Returns the session of an older epoch and without volumes that has the session id and host
    /// of `request`, which is for a volume. `proven`: look only for sessions that began with a
    /// proof, otherwise only for those without one.
    pub(crate) fn bare_session(
        &self,
        request: &ConnectRequest,
        proven: bool,
    ) -> Option<Arc<Session>> {
        let lists = self.lists.lock();
        let older = |s: &&Arc<Session>| {
            s.is_named_by(request, proven) && s.epoch() < request.epoch && s.is_bare()
        };
        lists.sessions.iter().find(older).cloned()
    }

    /// Returns whether `host` has no room for another session that begins without a volume, with a
    /// proof if `proven`. The decisive check is made when a session is listed.
    pub(crate) fn has_many_sessions(&self, host: HostId, proven: bool) -> bool {
        self.lists.lock().has_many_sessions(host, proven)
    }

    /// Lists a new session without volumes. Fails with `EEXIST` if there is a session of its name,
    /// with `EMFILE` if its host has [too many](Self::has_many_sessions), and with `ENOMEM`.
    pub(crate) fn add_session(&self, session: &Arc<Session>) -> Result {
        let mut lists = self.lists.lock();
        if lists.sessions.iter().any(|s| s.has_name_of(session)) {
            return Err(EEXIST);
        }
        if lists.has_many_sessions(session.host(), session.proof().is_some()) {
            return Err(EMFILE);
        }
        lists.sessions.push(session.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Calls `f`, which queues a request for a volume. Fails with `ENODEV` once the module is being
    /// removed.
    pub(crate) fn while_open(&self, f: impl FnOnce()) -> Result {
        let open = self.open.lock();
        if !*open {
            return Err(ENODEV);
        }
        f();
        Ok(())
    }

    /// Stops the attaching of volumes, since the module is being removed. May sleep.
    pub(crate) fn shut(&self) {
        *self.open.lock() = false;
    }

    /// Ends the sessions that began without a volume, and waits until they have ended completely.
    /// Must be called when no volume is exported and no connection is being established. Sleeps.
    pub(crate) fn end_all(&self) {
        loop {
            let next = self.lists.lock().sessions.first().cloned();
            let Some(session) = next else {
                return;
            };
            session.end(EndReason::Bare);
            while !session.has_ended_within(60_000) {
                pr_warn!(
                    "still waiting for session {:016x} of {} to end\n",
                    session.id().0,
                    session.host()
                );
            }
        }
    }

    /// Forgets a session that has ended completely.
    pub(crate) fn remove_session(&self, session: &Session) {
        let mut lists = self.lists.lock();
        lists.sessions.retain(|s| !core::ptr::eq(&**s, session));
    }

    /// Returns the workqueue on which the sessions of several volumes of `claimant` are torn down.
    pub(crate) fn session_ends(&self, claimant: Claimant) -> Result<Arc<WorkQueue>> {
        self.queues.ends.of(claimant)
    }

    /// Returns the current number of attachments of a host on a volume.
    pub(crate) fn attachments_of(&self, host: HostId, volume: &Arc<Volume>) -> usize {
        self.lists.lock().attachments_of(host, volume)
    }

    /// Lists an attachment, and records its epoch. Fails with `EBUSY` if its host has attachments
    /// of another instance on the volume, with `EMFILE` if the host has `most` there, with `EEXIST`
    /// if one of the same session id is listed, with `ESTALE` if it was fenced, and with `ENODEV`
    /// if it is ending or the volume is no longer exported. Checks and lists under one lock:
    /// simultaneous requests cannot exceed the limit, and no two are of different instances.
    pub(crate) fn add_attachment(
        &self,
        attachment: &Arc<Attachment>,
        volume: &Arc<Volume>,
        request: &ConnectRequest,
        most: usize,
    ) -> Result {
        let mut lists = self.lists.lock();
        if lists
            .attachments
            .iter()
            .any(|a| a.is_of_other_instance(request))
        {
            return Err(EBUSY);
        }
        if lists.attachments_of(attachment.host(), volume) >= most {
            return Err(EMFILE);
        }
        if lists.attachments.iter().any(|a| a.is_named_by(request)) {
            return Err(EEXIST);
        }
        // An attachment that has ended already would never be removed from the list.
        if attachment.is_ending() {
            return Err(ENODEV);
        }
        lists.attachments.reserve(1, GFP_KERNEL)?;
        volume.remember_epoch(request)?;
        lists.attachments.push(attachment.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Returns the attached volumes for which `f` holds. Fails with `ENOMEM`.
    pub(crate) fn attachments(
        &self,
        f: impl Fn(&Attachment) -> bool,
    ) -> Result<KVec<Arc<Attachment>>> {
        let mut found = KVec::new();
        for attachment in self.lists.lock().attachments.iter().filter(|a| f(a)) {
            found.push(attachment.clone(), GFP_KERNEL)?;
        }
        Ok(found)
    }

    /// Makes the host instance of `request` the newest, and ends the sessions of the others, unless
    /// a later one has connected or the request may no longer begin a session: for example, its
    /// host was evicted, or its key withdrawn since the decision. Both happen under one lock, so
    /// that an older instance cannot supersede a session that has begun.
    pub(crate) fn supersede(&self, volume: &Volume, request: &ConnectRequest, proven: Proven) {
        {
            let lists = self.lists.lock();
            let (seen, _) = self.admission(volume, request, proven);
            if !seen.is_open() || !volume.enter(request, proven) {
                return;
            }
            for attachment in lists.attachments.iter() {
                if attachment.is_of_other_instance(request) {
                    attachment.end(EndReason::Superseded);
                }
            }
        }
        // Not with the lists locked: this may drop the last reference to the drive. A change that
        // has begun precedes those of the new instance in any case.
        volume.give_up_changes(request.host);
    }

    /// Makes the host instance of `attachment`, which `request` begins, the newest. Returns
    /// `false`, and changes nothing, if a later instance has connected, or the session is ending.
    pub(crate) fn enter(
        &self,
        attachment: &Attachment,
        volume: &Volume,
        (request, proven): (&ConnectRequest, Proven),
    ) -> bool {
        let _lists = self.lists.lock();
        !attachment.is_ending() && volume.enter(request, proven)
    }

    /// Returns an attached volume that is ending and for which `f` holds, if there is one.
    pub(crate) fn ending_attachment(
        &self,
        f: impl Fn(&Attachment) -> bool,
    ) -> Option<Arc<Attachment>> {
        let lists = self.lists.lock();
        let mut attachments = lists.attachments.iter();
        attachments.find(|a| f(a) && a.is_ending()).cloned()
    }
}

impl Registry {
    /// Returns the workqueue for completions of the queue pairs of sessions of several volumes;
    /// `software`: on a software RDMA device.
    pub(crate) fn shared_completions(&self, software: bool) -> &Arc<WorkQueue> {
        match software {
            true => &self.queues.software,
            false => &self.queues.completions,
        }
    }

    /// Returns the workqueue for completions of admin queue pairs.
    pub(crate) fn admin_completions(&self) -> &Arc<WorkQueue> {
        &self.queues.admin
    }

    /// Returns the workqueue on which changes of reservations are made.
    pub(crate) fn changes(&self) -> &Arc<WorkQueue> {
        &self.queues.changes
    }

    /// Returns the claims on the exported devices and files.
    pub(crate) fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// Forgets a volume.
    pub(crate) fn remove_volume(&self, volume: &Volume) {
        let mut lists = self.lists.lock();
        lists.volumes.retain(|v| !core::ptr::eq(&**v, volume));
    }

    /// Forgets an attached volume that has ended completely.
    pub(crate) fn remove_attachment(&self, attachment: &Attachment) {
        let mut lists = self.lists.lock();
        lists
            .attachments
            .retain(|a| !core::ptr::eq(&**a, attachment));
    }

    /// Ends the attached volumes for which `f` holds, because of `reason`, without waiting.
    /// Allocates nothing: a host that may no longer use a volume must be stopped even if memory is
    /// short. May sleep.
    pub(crate) fn end_attachments(&self, reason: EndReason, f: &dyn Fn(&Attachment) -> bool) {
        for attachment in self.lists.lock().attachments.iter().filter(|a| f(a)) {
            attachment.end(reason);
        }
    }

    /// Ends the attached volumes for which `f` holds, and marks them, including those already
    /// ending, as preempted by `number`. Allocates nothing, and does not wait. May sleep.
    pub(crate) fn preempt_attachments(&self, number: u64, f: &dyn Fn(&Attachment) -> bool) {
        for attachment in self.lists.lock().attachments.iter().filter(|a| f(a)) {
            attachment.preempt(number);
        }
    }

    /// Waits until those attached volumes that are ending, and for which `f` holds, have ended
    /// completely. Sleeps until their drives have finished.
    pub(crate) fn wait_for_ends(&self, f: &dyn Fn(&Attachment) -> bool) {
        while let Some(attachment) = self.ending_attachment(f) {
            attachment.wait();
        }
    }

    /// Waits as [`Self::wait_for_ends`], for `ms` milliseconds at most. Returns whether all have
    /// ended completely. May sleep.
    pub(crate) fn wait_for_ends_within(&self, ms: u32, f: &dyn Fn(&Attachment) -> bool) -> bool {
        let start: Instant<Monotonic> = Instant::now();
        let left = || {
            let passed = start.elapsed().as_millis();
            ms.saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX))
        };
        while let Some(attachment) = self.ending_attachment(f) {
            if !attachment.has_ended_within(left()) {
                return false;
            }
        }
        true
    }
}

/// The volume and the attachment that a request names.
pub(crate) struct Found {
    pub(crate) volume: Option<Arc<Volume>>,
    pub(crate) attachment: Option<Arc<Attachment>>,
}
