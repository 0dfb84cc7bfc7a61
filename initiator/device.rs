// SPDX-License-Identifier: GPL-2.0

//! A configured disk.
//!
//! ```text
//!        enable=1                a path connected       enable=0, closed
//!  New ────────────► Connecting ──────────────► Live ─────────────────────► New
//!   ▲                    │ failed                │▲ last path lost, ctrl_loss_tmo is not 0
//!   └────────────────────┘                       │└─────► Queueing ── enable=0, closed ──► New
//!                                                │          │ fast_io_fail_tmo is over: FailingFast, which is
//!                                                │          │ the same but that requests fail
//!                             last path lost, or │          │ refused for good, or too late,
//!                              ended by force    ▼          │ or ended by force
//!  Connecting ◄──────── Failed ◄───────────── Failing ◄─────┘
//!     │      enable=1     ▲      disk removed
//!     └───────────────────┘
//!            failed
//! ```
//!
//! From Live to New it is Disconnecting. Failed is New, too, after `enable=0`: then it is forgotten
//! which volume it was.
//!
//! A disk whose connection was lost is connected again in place: it is the same disk to the target,
//! which lets nothing of its past come after what is new ([`identity`](crate::identity)), and no
//! other volume is taken for the lost one.
//!
//! A disk has one or several [`path`]s, each with a session of its own; it is *degraded* while it
//! is live and one that is to be used is not. While no path is, the disk is *queueing*: it stays,
//! its requests wait, and a worker for each path connects that again ([`reconnect`]).
//!
//! `control` serialises connecting, disconnecting and the removal of a disk
//! whose session failed; it is held while those sleep. What attributes show is
//! kept apart, so that reading them never waits.

use self::{
    announce::Announcements,
    events::Told,
    limits::FollowedLimits,
    lost_writes::LostWrites,
    past::Past,
    path::{
        session_of,
        Path,
        PathState, //
    },
    shown::{
        Shown,
        State, //
    },
};
use crate::{
    admin::{
        Admin,
        News, //
    },
    failure::Failure,
    head::Head,
    identity::{
        Identities,
        Identity, //
    },
    io::{
        Driver,
        Queue, //
    },
    keys::{
        self,
        Keys,
        Side, //
    },
    session::{
        Session,
        VolumeInfo, //
    },
    settings::Settings,
    workqueues::AllQueues, //
};
use core::fmt;
use hcablk_core::{
    blkdev::Disk,
    configfs::{
        Directory,
        DirectoryPin, //
    },
    crypto::Key,
    printable,
    proto::{
        connect::PATHS_MAX,
        name::VolumeId, //
    },
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
        delay::fsleep,
        Delta, //
    },
    ThisModule, //
};

mod announce;
mod attempt;
mod bring_up;
mod disk;
mod events;
mod limits;
mod lost_writes;
mod pace;
mod past;
pub(crate) mod path;
mod paths;
mod plan;
mod reconnect;
mod reservations;
mod shown;

pub(crate) use self::disk::DISK_PREFIX;

/// How often it is looked whether an attempt has ended that was to end.
const ATTEMPT_LOOK: Delta = Delta::from_millis(20);

/// A session for each path.
type Sessions = [Option<Arc<Session>>; PATHS_MAX as usize];

fn no_sessions() -> Sessions {
    [const { None }; PATHS_MAX as usize]
}

struct Active {
    head: Arc<Head>,
    /// The last of each path, which has ended while that is not live.
    sessions: Sessions,
    disk: Disk<Driver>,
    lost_writes: Arc<LostWrites>,
    /// Its limits beside those of the drive.
    limits: FollowedLimits,
    /// The generation of the volume that it follows, if the target tells that.
    generation: Option<u32>,
    volume: VolumeInfo,
    /// What users have set, with path 0's address; the numbers of queues are those of the disk.
    settings: Settings,
}

impl Active {
    /// Returns whether `session` is the last of its path.
    fn has(&self, session: &Session) -> bool {
        session_of(&self.sessions, session.path()).is_some_and(|own| core::ptr::eq(&**own, session))
    }

    /// Returns whether a path is live.
    fn has_live(&self) -> bool {
        self.sessions
            .iter()
            .flatten()
            .any(|session| session.is_live())
    }

    /// Returns the bits that are 0 in every whole number of logical blocks, in bytes.
    fn block_mask(&self) -> u64 {
        (1 << self.volume.geometry.logical_block_shift) - 1
    }
}

struct Control {
    active: Option<Active>,
    pin: Option<DirectoryPin>,
    /// Which volume it was when the connection was lost: no other one is taken
    /// for it until it is disabled.
    lost: Option<VolumeId>,
}

/// A configured disk.
#[pin_data]
pub(crate) struct Device {
    name: CString,
    module: &'static ThisModule,
    /// Of which its paths get theirs.
    queues: Arc<AllQueues>,
    identities: Arc<Identities>,
    /// The same over all connections; the epoch tells them apart.
    identity: Identity,
    #[pin]
    settings: Mutex<Settings>,
    #[pin]
    keys: Mutex<Keys>,
    #[pin]
    control: Mutex<Control>,
    #[pin]
    shown: Mutex<Shown>,
    #[pin]
    told: Mutex<Told>,
    announcements: Arc<Announcements>,
    #[pin]
    past: Mutex<Past>,
    /// The paths that are configured, path 0 first.
    #[pin]
    paths: Mutex<KVec<Arc<Path>>>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.to_str().unwrap_or("?"))
    }
}

printable!(Device);

impl Device {
    pub(crate) fn new(
        name: &str,
        queues: &Arc<AllQueues>,
        identities: &Arc<Identities>,
        module: &'static ThisModule,
    ) -> Result<Arc<Self>> {
        let identity = identities.of(name)?;
        let mut paths = KVec::new();
        paths.push(Path::new(0, queues)?, GFP_KERNEL)?;
        let announcements = Announcements::new(name, queues)?;
        let name = CString::try_from_fmt(fmt!("{name}"))?;
        Arc::pin_init(
            pin_init!(Self {
                name,
                module,
                queues: queues.clone(),
                identities: identities.clone(),
                identity,
                settings <- new_mutex!(Settings::default()),
                keys <- new_mutex!(Keys::default()),
                control <- new_mutex!(Control {
                    active: None,
                    pin: None,
                    lost: None,
                }),
                shown <- new_mutex!(Shown {
                    state: State::New,
                    failure: None,
                    disk: None,
                    session: None,
                    wwid: None,
                    lost_writes: None,
                    sessions: no_sessions(),
                    timing: false,
                }),
                told <- new_mutex!(Told::new()),
                announcements,
                past <- new_mutex!(Past::default()),
                paths <- new_mutex!(paths),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn settings(&self) -> Settings {
        *self.settings.lock()
    }

    /// Changes settings, `EBUSY` unless the device is idle.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut Settings)) -> Result {
        let mut settings = self.settings.lock();
        if !matches!(self.shown.lock().state, State::New | State::Failed) {
            return Err(EBUSY);
        }
        change(&mut settings);
        Ok(())
    }

    /// Connects and makes the disk, unless a signal or [`Self::force_disconnect`] ends that. When
    /// it is done already nothing happens, but that path 0, which has no directory of its own, is
    /// connected again if it was refused.
    pub(crate) fn enable(self: &Arc<Self>, directory: &Directory<'_>) -> Result {
        let mut control = self.control.lock();
        if let Some(active) = control.active.as_ref() {
            if let Some(path) = self.path(0) {
                self.connect_refused(&path, active);
            }
            return Ok(());
        }
        let pin = directory.pin()?;
        // It is asked for once before the state changes, so that a failure leaves it.
        let epoch = self.identities.next_epoch()?;
        let (settings, before) = {
            let settings = self.settings.lock();
            let mut shown = self.shown.lock();
            let before = core::mem::replace(&mut shown.state, State::Connecting);
            shown.failure = None;
            (*settings, before)
        };
        self.tell_changes();
        let result = match self.connect_first(settings, epoch, control.lost) {
            Ok((path, active)) => {
                path.set_state(PathState::Live, None);
                self.set_announcer(Some(active.disk.announcer()));
                self.show_sessions(&active, State::Live, None);
                pr_info!(
                    "{}: connected as {} with {} queues\n",
                    **self,
                    active.disk.name(),
                    active.head.requests().hw_queues()
                );
                control.lost = None;
                control.active = Some(active);
                control.pin = Some(pin);
                self.schedule_other_paths(&path);
                Ok(())
            }
            Err(failure) => {
                let mut shown = self.shown.lock();
                shown.state = before;
                shown.failure = Some(failure);
                drop(shown);
                pr_warn!("{}: cannot connect: {failure}\n", **self);
                Err(failure.errno())
            }
        };
        self.tell_changes();
        result
    }

    /// Removes the disk, `EBUSY` while it is open, and disconnects. When there
    /// is none nothing happens, but that it is forgotten which volume it was.
    pub(crate) fn disable(&self) -> Result {
        let mut control = self.control.lock();
        if control
            .active
            .as_ref()
            .is_some_and(|active| active.disk.is_open())
        {
            return Err(EBUSY);
        }
        let Some(active) = control.active.take() else {
            control.lost = None;
            self.set_state(State::New);
            self.tell_changes();
            return Ok(());
        };
        let Active {
            head,
            sessions,
            disk,
            lost_writes,
            limits,
            generation,
            volume,
            settings,
        } = active;
        let queues = head.queues_if_no_path();
        if queues {
            // Nothing that the removal waits for may wait for a session. Whoever has opened it
            // since sees an error if the session is lost just now.
            head.fail_waiting();
        }
        // What has yet to be told is told while there is a disk, and none of its requests waits.
        self.set_announcer(None);
        if let Err((e, disk)) = disk.remove_if_closed() {
            head.queue_if_no_path(queues);
            self.set_announcer(Some(disk.announcer()));
            control.active = Some(Active {
                head,
                sessions,
                disk,
                lost_writes,
                limits,
                generation,
                volume,
                settings,
            });
            return Err(e);
        }
        control.lost = None;
        self.set_state(State::Disconnecting);
        self.tell_changes();
        self.end_paths(&head, &sessions);
        self.forget_session(State::New, None);
        self.tell_changes();
        control.pin = None;
        pr_info!("{self}: disconnected\n");
        Ok(())
    }

    /// Ends the connection, also while the disk is open or requests hang: they fail. Waits until
    /// the disk is gone, which takes as long as the queue pairs need to drain, and, if a connection
    /// is being made, until that is over. Process context.
    pub(crate) fn force_disconnect(self: &Arc<Self>) -> Result {
        loop {
            // Not under `control`: who has it may wait for a request that this ends.
            let sessions = self.shown.lock().sessions.clone();
            for session in sessions.iter().flatten() {
                session.fail(Failure::Forced);
                session.for_each_queue(Queue::stop);
            }
            // Now nothing is acknowledged any more that what is given up could come behind.
            for session in sessions.iter().flatten() {
                session.requests().synchronize();
                session.head().go();
            }
            self.end_attempts();
            for session in sessions.iter().flatten() {
                session.wait();
                // The teardown does the same; whoever comes first.
                self.session_lost(session, session.failure().unwrap_or(Failure::Forced));
            }
            // If a path is live by now the next round ends it.
            let _ = self.give_up(None, Failure::Forced);
            // Whoever connects or removes the disk has it.
            if self.control.lock().active.is_none() {
                return Ok(());
            }
        }
    }

    /// Ends all attempts to connect a path, and waits until nobody makes a disk by one. Sleeps.
    fn end_attempts(&self) {
        loop {
            for path in self.paths.lock().iter() {
                path.interrupt(Failure::Forced);
            }
            // One that has just begun is found in the next round.
            if self.control.try_lock().is_some() {
                return;
            }
            fsleep(ATTEMPT_LOOK);
        }
    }

    /// Sees to what follows the teardown of `session`, whose reason is `failure`: its path is
    /// connected again, other paths go on, or the disk waits for one, or is removed. Process
    /// context.
    fn session_lost(self: &Arc<Self>, session: &Arc<Session>, failure: Failure) {
        let mut control = self.control.lock();
        // Not while connecting, when the disk was not made or is being given up.
        let Some(active) = control.active.as_mut().filter(|active| active.has(session)) else {
            return;
        };
        let Some(path) = self
            .path(session.path())
            .filter(|path| matches!(path.info().state, PathState::Live | PathState::Lost))
        else {
            return;
        };
        let again = session.is_to_be_followed();
        let next = if again {
            PathState::Waiting
        } else {
            PathState::Refused
        };
        path.set_state(next, Some(failure));
        self.tell_changes();
        let others = self.has_other_paths(session);
        if again || others {
            self.lose_session(active, session, failure);
        }
        // A device that goes away waits for what refers to it. A teardown that came while somebody
        // tried to remove the disk has found that nothing was to follow, and watches it no more.
        let is_watched = session.watches_device() && !session.lacks_device();
        if (again && !is_watched) || (!again && others) {
            self.release_path(active, session.path());
        }
        if again {
            path.schedule(self);
        }
        if !again && !others {
            pr_warn!("{self}: connection lost: {failure}\n");
            self.remove_lost(&mut control, failure);
        }
        self.tell_changes();
    }

    /// Removes the disk, whoever has it open. By who has `control`.
    fn remove_lost(&self, control: &mut Control, failure: Failure) {
        {
            // Whoever sees the disk gone finds the reason.
            let mut shown = self.shown.lock();
            shown.state = State::Failing;
            shown.failure = Some(failure);
        }
        self.tell_changes();
        if let Some(active) = control.active.take() {
            control.lost = active.volume.wwid;
            active.head.go();
            active.head.fail_waiting();
            // Not before: who sends uevents may wait for memory, and that for requests.
            self.set_announcer(None);
            active.disk.remove();
            self.end_paths(&active.head, &active.sessions);
        }
        self.forget_session(State::Failed, Some(failure));
        self.tell_changes();
        control.pin = None;
    }
}

impl Device {
    /// Takes a session's closed queues out of `queues`, and its admin queue pair out of `admin`,
    /// and keeps what they have counted.
    pub(crate) fn queues_closed(
        &self,
        queues: &Mutex<KVec<Arc<Queue>>>,
        admin: &Mutex<Option<Arc<Admin>>>,
    ) {
        self.retire(queues, admin);
    }

    /// Counts requests of a session that ended when its queues were counted already: how many are
    /// issued again, and how many failed.
    pub(crate) fn count_ended(&self, again: u64, failed: u64) {
        self.count_past(again, failed);
    }

    /// Retires queue `index` as [`Self::queues_closed`] does all, and puts `new` in its place.
    pub(crate) fn queue_replaced(
        &self,
        queues: &Mutex<KVec<Arc<Queue>>>,
        index: u32,
        new: Arc<Queue>,
    ) {
        self.retire_one(queues, index, new);
    }

    /// Tells that `session`, a path of the disk, ends because of `failure`; its teardown may take
    /// as long as the drive does. Process context.
    pub(crate) fn session_ending(&self, session: &Session, failure: Failure) {
        if let Some(path) = self.path(session.path()) {
            path.lose(failure);
            self.show_ending(session);
            self.begin_loss(session, failure);
            self.tell_changes();
        }
    }

    /// Tells that the teardown of `session` is done, which has ended because of `failure`. Process
    /// context.
    pub(crate) fn session_failed(self: Arc<Self>, session: &Arc<Session>, failure: Failure) {
        self.session_lost(session, failure);
    }

    /// Tells that the RDMA device of `session` goes away. The connection manager's callback, which
    /// may sleep, but not for the end of one.
    pub(crate) fn device_removed(&self, session: &Session) {
        if let Some(path) = self.path(session.path()) {
            // Nothing keeps the device longer than need be.
            path.interrupt(Failure::DeviceRemoved);
        }
    }

    /// Makes the disk follow the volume of `session`, which is as `now`; `false`: it cannot just
    /// now. Process context.
    pub(crate) fn follow(&self, session: &Session, now: News) -> bool {
        self.follow_volume(session, now)
    }
}

impl Device {
    /// Sets a key, or removes it if `text` is empty. Fails with `EINVAL` if it is no key, and with
    /// `ENOMEM`.
    pub(crate) fn set_key(&self, side: Side, text: &str) -> Result {
        let key = keys::parse(text)?;
        let former = self.keys.lock().set(side, key);
        drop(former);
        Ok(())
    }

    /// Returns how many keys are set.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.lock().count()
    }

    /// Returns by what to prove who this host is, as [`keys::Keys::pair`].
    pub(super) fn pair_key(&self, insecure: bool) -> Result<Option<Key>, Failure> {
        self.keys.lock().pair(insecure)
    }
}
