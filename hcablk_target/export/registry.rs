// SPDX-License-Identifier: GPL-2.0

//! Which volumes there are, which of them are attached to sessions, and what connections are coming
//! up.
//!
//! One lock guards the lists of volumes, attached volumes and portals; it is held for look-ups and
//! changes only, never while waiting. Keys, challenges and drive waiters have locks of their own.
//! An attached volume is listed from its birth until nothing of its requests is left, so that
//! whoever does not find it knows that these cannot write.

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
        connect::Request,
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

/// The lists.
pub(crate) struct Lists {
    volumes: KVec<Arc<Volume>>,
    attachments: KVec<Arc<Attachment>>,
    /// Those to which volumes are attached when they have begun.
    sessions: KVec<Arc<Session>>,
    /// Where is listened.
    portals: KVec<SocketAddr>,
}

impl Lists {
    fn attachments_of(&self, host: HostId, volume: &Arc<Volume>) -> usize {
        let mine = |a: &&Arc<Attachment>| a.host() == host && a.is_of(volume);
        self.attachments.iter().filter(mine).count()
    }
}

/// The module's workqueues.
#[derive(Clone)]
pub(crate) struct WorkQueues {
    /// Where ports and their memory look for what they wait for.
    pub(crate) control: Arc<WorkQueue>,
    /// Where connections come up: what they wait for are the ends of sessions, which must find
    /// workers.
    pub(crate) connect: Arc<WorkQueue>,
    /// Where completions of admin queue pairs are handled: nothing that is there waits for a drive,
    /// so that keep-alives, fences and watches are answered whatever hangs.
    pub(crate) admin: Arc<WorkQueue>,
    /// Where completions of the queue pairs of sessions of several volumes are handled. They never
    /// wait until a drive has room.
    pub(crate) completions: Arc<WorkQueue>,
    /// The same, for RDMA devices that are programs: see
    /// [`Backing::completions`](crate::drive::backing::Backing::completions).
    pub(crate) software: Arc<WorkQueue>,
    /// Where changes of reservations are made, which wait for the file system that keeps them.
    pub(crate) changes: Arc<WorkQueue>,
    /// Where sessions of several volumes end, which wait for the drives of all of these.
    pub(crate) ends: Arc<WorkQueue>,
}

/// Sessions that a host may have to which volumes are attached when they have begun: one for each
/// of its paths is usual.
const SESSIONS_PER_HOST: usize = 64;

/// A place for an initiator that is to prove who it is.
type Challenge = Option<Entry<Arc<Challenged<KernelCrypto>>>>;

/// See the module.
#[pin_data]
pub(crate) struct Registry {
    queues: WorkQueues,
    claims: Arc<Claims>,
    drives: Arc<Drives>,
    #[pin]
    lists: Mutex<Lists>,
    /// Volumes may be attached.
    #[pin]
    open: Mutex<bool>,
    /// Another number, not 0, when `portals` are others. Written under the lists' lock.
    portals_generation: Atomic<u32>,
    /// This target's.
    #[pin]
    keys: Mutex<Keys>,
    /// Initiators that are to prove who they are.
    #[pin]
    challenges: Mutex<KVVec<Challenge>>,
    /// Challenges that there were.
    challenge_count: Atomic<u64>,
    /// A key that is nobody's.
    nobody: KBox<Key>,
    /// Connection requests that were taken and are not decided.
    pending: Atomic<u32>,
    /// Those that wait until a drive has finished what it has begun for older ones: of which host,
    /// for which drive.
    #[pin]
    drive_waiters: Mutex<KVec<(HostId, Option<FileId>)>>,
}

/// A connection request that waits for a drive, counted as long as this is there.
pub(crate) struct DriveWaiter<'a> {
    registry: &'a Registry,
    who: (HostId, Option<FileId>),
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

/// A connection request that waits for its turn, counted as long as this is there.
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
                // Not that of a target that was here before, by all odds.
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

    /// Returns where ports and their memory look for what they wait for.
    pub(crate) fn work(&self) -> &Arc<WorkQueue> {
        &self.queues.control
    }

    /// Returns the reservations of what is exported.
    pub(crate) fn drives(&self) -> &Arc<Drives> {
        &self.drives
    }

    /// Returns where connections come up.
    pub(crate) fn connect_work(&self) -> &Arc<WorkQueue> {
        &self.queues.connect
    }

    /// Counts a connection request that will wait for its turn; `EBUSY`: there are too many. Any
    /// context.
    pub(crate) fn wait_in_line(self: &Arc<Self>) -> Result<Pending> {
        let pending = Pending(self.clone());
        if self.pending.fetch_add(1, Relaxed) >= pending_connects() {
            return Err(EBUSY);
        }
        Ok(pending)
    }

    /// Counts a connection request of `host` that will wait for `drive`, where `None`, that of a
    /// volume which is exported no longer, is one, too; `EBUSY`: there are [too many](is_room).
    pub(crate) fn wait_for_drive(
        &self,
        host: HostId,
        drive: Option<FileId>,
    ) -> Result<DriveWaiter<'_>> {
        let who = (host, drive);
        let mut waiters = self.drive_waiters.lock();
        if !is_room(&waiters, host, &drive) {
            return Err(EBUSY);
        }
        waiters.push(who, GFP_KERNEL)?;
        drop(waiters);
        Ok(DriveWaiter {
            registry: self,
            who,
        })
    }

    /// Lists a volume, `EEXIST` when its name is taken.
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

    /// Returns how many keys this target has.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.lock().count()
    }

    /// Returns the session that was begun by a proof and has this handle.
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

    /// Returns what admission must know of a request, and of how it is proven, with the volume and
    /// the session that it is about.
    pub(crate) fn view(&self, request: &Request, proven: Proven) -> (admission::View, Found) {
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
                // One lock after the other.
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

    /// Returns what admission must know of a request that names no volume, and of how it is proven,
    /// with the session that it is about. The host is allowed if it may use any volume.
    pub(crate) fn view_of_host(
        &self,
        request: &Request,
        proven: Proven,
    ) -> (admission::View, Option<Arc<Session>>) {
        let lists = self.lists.lock();
        let session = lists.sessions.iter().find(|s| s.is_named_by(request));
        // A session's own queue pairs are proven by its key.
        let allowed = session.is_some() && !request.is_admin()
            || lists
                .volumes
                .iter()
                .any(|v| v.entry(request.host, proven).is_some());
        let view = admission::View {
            volume: Some(admission::Volume {
                unproven: false,
                revoked: false,
                withdrawn: false,
                allowed,
                evicted: false,
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

    /// Lists a new session to which volumes are to be attached. Fails with `EEXIST` when there is
    /// one of its name, with `EMFILE` when its host has [`SESSIONS_PER_HOST`], and with `ENOMEM`.
    pub(crate) fn add_session(&self, session: &Arc<Session>) -> Result {
        let mut lists = self.lists.lock();
        let of_host = lists.sessions.iter().filter(|s| s.host() == session.host());
        let (mut count, mut is_there) = (0, false);
        for other in of_host {
            count += 1;
            is_there |= other.id() == session.id();
        }
        if is_there {
            return Err(EEXIST);
        }
        if count >= SESSIONS_PER_HOST {
            return Err(EMFILE);
        }
        lists.sessions.push(session.clone(), GFP_KERNEL)?;
        Ok(())
    }

    /// Calls `f`, which queues a request for a volume. Fails with `ENODEV` once the module goes.
    pub(crate) fn while_open(&self, f: impl FnOnce()) -> Result {
        let open = self.open.lock();
        if !*open {
            return Err(ENODEV);
        }
        f();
        Ok(())
    }

    /// Lets no volume be attached any more, since the module goes. May sleep.
    pub(crate) fn shut(&self) {
        *self.open.lock() = false;
    }

    /// Ends the sessions to which volumes are attached when they have begun, and waits until
    /// nothing is left of them. To be called when nothing is exported and nobody connects. Sleeps.
    pub(crate) fn end_all(&self) {
        loop {
            let next = self.lists.lock().sessions.first().cloned();
            let Some(session) = next else {
                return;
            };
            session.end(EndReason::Bare);
            while !session.has_ended_within(60_000) {
                pr_warn!("still waiting for a session to end\n");
            }
        }
    }

    /// Forgets a session of which nothing is left.
    pub(crate) fn remove_session(&self, session: &Session) {
        let mut lists = self.lists.lock();
        lists.sessions.retain(|s| !core::ptr::eq(&**s, session));
    }

    /// Returns where sessions of several volumes end.
    pub(crate) fn session_ends(&self) -> &Arc<WorkQueue> {
        &self.queues.ends
    }

    /// Returns how many sessions a host has on a volume, at this moment.
    pub(crate) fn attachments_of(&self, host: HostId, volume: &Arc<Volume>) -> usize {
        self.lists.lock().attachments_of(host, volume)
    }

    /// Lists a volume that was attached to a new session, and has its epoch remembered; `EBUSY`
    /// when its host has sessions of another instance there, `EEXIST` when there is one of its
    /// name, `EMFILE` when its host has `most` there, `ESTALE` when it was fenced, `ENODEV` when
    /// the volume is exported no longer. Looked at and listed under one lock: of those that come at
    /// the same time none is too many, and no two are of different instances.
    pub(crate) fn add_attachment(
        &self,
        attachment: &Arc<Attachment>,
        volume: &Arc<Volume>,
        request: &Request,
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
        // What is left of one that has ended would never be forgotten.
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

    /// Makes the instance of the host that `request` is of the newest, and ends the sessions of the
    /// others, unless a later one has come or no session may begin by the request any more: its
    /// host was evicted, say, or its key withdrawn since it was decided. Neither happens without
    /// the other: whose session has begun under this lock is not superseded by who was before it.
    pub(crate) fn supersede(&self, volume: &Volume, request: &Request, proven: Proven) {
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
        // Not with the lists locked: it may have the last reference to the drive. One that has
        // begun comes before those of the new instance in any case.
        volume.give_up_changes(request.host);
    }

    /// Makes the instance of the host whose `attachment` begins by `request` the newest. `false`: a
    /// later one has come, or the session ends; then nothing has changed.
    pub(crate) fn enter(
        &self,
        attachment: &Attachment,
        volume: &Volume,
        (request, proven): (&Request, Proven),
    ) -> bool {
        let _lists = self.lists.lock();
        !attachment.is_ending() && volume.enter(request, proven)
    }

    /// Returns an attached volume for which `f` holds that is ending, if there is one.
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
    /// Returns where completions are handled of the queue pairs of sessions of several volumes, on
    /// an RDMA device that is a program if `software`.
    pub(crate) fn shared_completions(&self, software: bool) -> &Arc<WorkQueue> {
        match software {
            true => &self.queues.software,
            false => &self.queues.completions,
        }
    }

    /// Returns where completions of admin queue pairs are handled.
    pub(crate) fn admin_completions(&self) -> &Arc<WorkQueue> {
        &self.queues.admin
    }

    /// Returns where changes of reservations are made.
    pub(crate) fn changes(&self) -> &Arc<WorkQueue> {
        &self.queues.changes
    }

    /// Returns what is exported.
    pub(crate) fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// Forgets a volume.
    pub(crate) fn remove_volume(&self, volume: &Volume) {
        let mut lists = self.lists.lock();
        lists.volumes.retain(|v| !core::ptr::eq(&**v, volume));
    }

    /// Forgets an attached volume of whose requests nothing is left.
    pub(crate) fn remove_attachment(&self, attachment: &Attachment) {
        let mut lists = self.lists.lock();
        lists
            .attachments
            .retain(|a| !core::ptr::eq(&**a, attachment));
    }

    /// Ends the attached volumes for which `f` holds, because of `reason`, and waits for none.
    /// Allocates nothing: a host that may not use a volume any more must not go on for want of
    /// memory. May sleep.
    pub(crate) fn end_attachments(&self, reason: EndReason, f: &dyn Fn(&Attachment) -> bool) {
        for attachment in self.lists.lock().attachments.iter().filter(|a| f(a)) {
            attachment.end(reason);
        }
    }

    /// Ends the attached volumes for which `f` holds, and marks them, and those that are ending, as
    /// preempted by `number`. Allocates nothing, and waits for none. May sleep.
    pub(crate) fn preempt_attachments(&self, number: u64, f: &dyn Fn(&Attachment) -> bool) {
        for attachment in self.lists.lock().attachments.iter().filter(|a| f(a)) {
            attachment.preempt(number);
        }
    }

    /// Waits until nothing is left of those attached volumes for which `f` holds that end. May
    /// sleep for as long as the drives take.
    pub(crate) fn wait_for_ends(&self, f: &dyn Fn(&Attachment) -> bool) {
        while let Some(attachment) = self.ending_attachment(f) {
            attachment.wait();
        }
    }

    /// Waits for that, but for `ms` milliseconds at most; returns whether nothing is left of them.
    /// May sleep.
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

/// What a request is about.
pub(crate) struct Found {
    pub(crate) volume: Option<Arc<Volume>>,
    pub(crate) attachment: Option<Arc<Attachment>>,
}
