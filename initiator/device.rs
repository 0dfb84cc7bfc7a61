// SPDX-License-Identifier: GPL-2.0

//! A configured disk.
//!
//! ```text
//!        enable=1                a path connected       enable=0, closed
//!  New ────────────► Connecting ──────────────► Live ─────────────────────► New
//!   ▲                    │ failed                │▲ last path lost, ctrl_loss_tmo is not 0
//!   └────────────────────┘                       │└─────► Queueing ── enable=0, closed ──► New
//!                                                │          │ fast_io_fail_tmo is over: FailingFast, which is
//!                                                │          │ the same except that requests fail
//!                             last path lost, or │          │ refused for good, or too late,
//!                              ended by force    ▼          │ or ended by force
//!  Connecting ◄──────── Failed ◄───────────── Failing ◄─────┘
//!     │      enable=1     ▲      disk removed
//!     └───────────────────┘
//!            failed
//! ```
//!
//! From Live to New the state is Disconnecting. `enable=0` leads from Failed to New as well, and
//! drops the identity of the volume.
//!
//! A disk whose connection was lost is connected again in place. To the target it is the same disk,
//! and no old request overtakes a new one there ([`identity`](crate::identity)); the disk accepts
//! no other volume for the lost one.
//!
//! A disk has one or several [`path`]s, each with a session of its own; it is *degraded* while it
//! is live and one of its enabled paths is not. While no path is live, the disk is *queueing*: it
//! stays, its requests wait, and a worker for each path reconnects the path ([`reconnect`]).
//!
//! `control` serialises connecting, disconnecting and the removal of a disk whose session failed;
//! it is held while those sleep. The values that attributes show have locks of their own, so that
//! reading them never waits.

use self::{
    announce::Announcements,
    events::Announced,
    limits::FollowedLimits,
    lost_writes::LostWrites,
    past::DestroyedQueues,
    path::{
        session_of,
        Path,
        PathState, //
    },
    shown::{
        DeviceState, //
        DeviceStatus,
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
        Attachment,
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
    current,
    new_condvar,
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        CondVar,
        Mutex,
        MutexGuard, //
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

/// The interval for checking whether an interrupted attempt has ended.
const ATTEMPT_LOOK: Delta = Delta::from_millis(20);

/// The disk's attachment to a session on each path.
type Sessions = [Option<Arc<Attachment>>; PATHS_MAX as usize];

fn no_sessions() -> Sessions {
    [const { None }; PATHS_MAX as usize]
}

struct Active {
    head: Arc<Head>,
    /// The last attachment of each path; while the path is not live, it has ended.
    sessions: Sessions,
    disk: Disk<Driver>,
    lost_writes: Arc<LostWrites>,
    /// The disk's limits, compared with those of the drive.
    limits: FollowedLimits,
    /// The generation of the volume that the disk follows, if the target reports one.
    generation: Option<u32>,
    volume: VolumeInfo,
    /// The user's settings, with path 0's address; the numbers of queues are those of the disk.
    settings: Settings,
}

impl Active {
    /// Returns whether `attachment` is the last of its path.
    fn has(&self, attachment: &Attachment) -> bool {
        session_of(&self.sessions, attachment.path())
            .is_some_and(|own| core::ptr::eq(&**own, attachment))
    }

    /// Returns whether a path is live.
    fn has_live(&self) -> bool {
        self.sessions
            .iter()
            .flatten()
            .any(|session| session.is_live())
    }

    /// Returns the mask of the bits that are 0 in every multiple of the logical block size.
    fn block_mask(&self) -> u64 {
        (1 << self.volume.geometry.logical_block_shift) - 1
    }
}

struct Control {
    active: Option<Active>,
    pin: Option<DirectoryPin>,
    /// Identity of the volume at the loss of the connection: no other volume is accepted until the
    /// device is disabled.
    lost: Option<VolumeId>,
}

/// A configured disk.
#[pin_data]
pub(crate) struct Device {
    name: CString,
    module: &'static ThisModule,
    /// The workqueues, from which each path gets its own.
    queues: Arc<AllQueues>,
    identities: Arc<Identities>,
    /// The same for all connections; the epoch distinguishes them.
    identity: Identity,
    #[pin]
    settings: Mutex<Settings>,
    #[pin]
    keys: Mutex<Keys>,
    #[pin]
    control: Mutex<Control>,
    #[pin]
    shown: Mutex<DeviceStatus>,
    #[pin]
    announced: Mutex<Announced>,
    announcements: Arc<Announcements>,
    #[pin]
    destroyed_queues: Mutex<DestroyedQueues>,
    /// The configured paths, path 0 first.
    #[pin]
    paths: Mutex<KVec<Arc<Path>>>,
    /// The number of paths that are being released without `control`: see
    /// [`paths::ReleasedPath`].
    #[pin]
    releases: Mutex<u32>,
    /// Notified when `releases` becomes 0.
    #[pin]
    all_released: CondVar,
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
        let identity = identities.identify(name)?;
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
                shown <- new_mutex!(DeviceStatus {
                    state: DeviceState::New,
                    failure: None,
                    disk: None,
                    session: None,
                    wwid: None,
                    lost_writes: None,
                    sessions: no_sessions(),
                    timing: false,
                }),
                announced <- new_mutex!(Announced::new()),
                announcements,
                destroyed_queues <- new_mutex!(DestroyedQueues::default()),
                paths <- new_mutex!(paths),
                releases <- new_mutex!(0),
                all_released <- new_condvar!(),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn settings(&self) -> Settings {
        *self.settings.lock()
    }

    /// Changes settings. Fails with `EBUSY` unless the device is idle.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut Settings)) -> Result {
        let mut settings = self.settings.lock();
        if !matches!(
            self.shown.lock().state,
            DeviceState::New | DeviceState::Failed
        ) {
            return Err(EBUSY);
        }
        change(&mut settings);
        Ok(())
    }

    /// Locks the disk and its paths for the writer of an attribute. A connection attempt holds the
    /// lock for up to `connect_timeout` for each path, and a signal ends the wait for it (`EINTR`).
    /// Sleeps.
    fn lock_control(&self) -> Result<MutexGuard<'_, Control>> {
        loop {
            if let Some(control) = self.control.try_lock() {
                return Ok(control);
            }
            if current!().signal_pending() {
                return Err(EINTR);
            }
            fsleep(ATTEMPT_LOOK);
        }
    }

    /// Connects and makes the disk, unless a signal or [`Self::force_disconnect`] ends that. If the
    /// disk exists already, this only reconnects path 0 (which has no directory of its own) if it
    /// was refused.
    pub(crate) fn enable(self: &Arc<Self>, directory: &Directory<'_>) -> Result {
        // The RDMA device may have no room for a disk while a former one still has resources.
        self.wait_for_releases();
        let mut control = self.lock_control()?;
        if let Some(active) = control.active.as_ref() {
            if let Some(path) = self.path(0) {
                self.connect_refused(&path, active);
            }
            return Ok(());
        }
        let pin = directory.pin()?;
        // Allocated once before the state changes, so that a failure changes nothing.
        let epoch = self.identities.next_epoch()?;
        let (settings, before) = {
            let settings = self.settings.lock();
            let mut shown = self.shown.lock();
            let before = core::mem::replace(&mut shown.state, DeviceState::Connecting);
            shown.failure = None;
            (*settings, before)
        };
        self.announce_changes();
        let result = match self.connect_first(settings, epoch, control.lost) {
            Ok((path, active)) => {
                path.set_state(PathState::Live, None);
                self.set_announcer(Some(active.disk.announcer()));
                self.show_sessions(&active, DeviceState::Live, None);
                pr_info!(
                    "{}: connected as {} with {} queues\n",
                    **self,
                    active.disk.name(),
                    active.head.dispatch().hw_queues()
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
        self.announce_changes();
        result
    }

    /// Removes the disk and disconnects. Fails with `EBUSY` while the disk is open. Without a disk,
    /// this only drops the identity of the lost volume.
    pub(crate) fn disable(&self) -> Result {
        let mut control = self.lock_control()?;
        if control
            .active
            .as_ref()
            .is_some_and(|active| active.disk.is_open())
        {
            return Err(EBUSY);
        }
        let Some(active) = control.active.take() else {
            control.lost = None;
            self.set_state(DeviceState::New);
            self.announce_changes();
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
            // The removal must not wait for a session. A user that has opened the disk since sees
            // an error if the session is lost just now.
            head.fail_waiting();
        }
        // Pending announcements are sent while the disk exists and none of its requests waits.
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
        self.set_state(DeviceState::Disconnecting);
        self.announce_changes();
        self.end_paths(&head, &sessions);
        self.forget_session(DeviceState::New, None);
        self.announce_changes();
        control.pin = None;
        pr_info!("{self}: disconnected\n");
        drop(control);
        self.wait_for_releases();
        Ok(())
    }

    /// Ends the connection even if the disk is open or requests hang: they fail. Waits until the
    /// disk is removed: until the queue pairs are drained and a running connection attempt has
    /// ended. Process context.
    pub(crate) fn force_disconnect(self: &Arc<Self>) -> Result {
        loop {
            // Without `control`: its holder may wait for a request that this ends.
            let sessions = self.shown.lock().sessions.clone();
            for disk in sessions.iter().flatten() {
                disk.fail(Failure::Forced);
                disk.session().for_each_queue(Queue::stop);
            }
            // From here on no write is acknowledged that a given-up request could overwrite.
            for disk in sessions.iter().flatten() {
                disk.dispatch().synchronize();
                disk.head().begin_removal();
            }
            self.end_attempts();
            for disk in sessions.iter().flatten() {
                disk.wait();
                // The teardown does the same; the first one counts.
                self.session_lost(disk, disk.failure().unwrap_or(Failure::Forced));
            }
            // If a path is live by now, the next round ends it.
            let _ = self.give_up(None, Failure::Forced);
            // A task that connects or removes the disk holds `control`.
            if self.control.lock().active.is_none() {
                self.wait_for_releases();
                return Ok(());
            }
        }
    }

    /// Ends all attempts to connect a path, and waits until no attempt makes a disk. Sleeps.
    fn end_attempts(&self) {
        loop {
            for path in self.paths.lock().iter() {
                path.interrupt(Failure::Forced);
            }
            // The next round finds an attempt that has just started.
            if self.control.try_lock().is_some() {
                return;
            }
            fsleep(ATTEMPT_LOOK);
        }
    }

    /// Handles the end of `session`, to which the disk was attached, because of `failure`: its path
    /// is reconnected, other paths continue, or the disk waits for a path or is removed. Process
    /// context.
    fn session_lost(self: &Arc<Self>, session: &Arc<Attachment>, failure: Failure) {
        let mut control = self.control.lock();
        // Not while connecting, when the disk does not exist yet or is being given up.
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
        self.announce_changes();
        let others = self.has_other_paths(session);
        if again || others {
            self.lose_session(active, session, failure);
        }
        // The removal of a device waits for all references to it. A teardown during an attempt to
        // remove the disk has decided that no session follows, and does not watch the device any
        // more.
        let is_watched = session.session().watches_device() && !session.session().lacks_device();
        let is_to_release = (again && !is_watched) || (!again && others);
        let released = is_to_release.then(|| self.release_path(active, session.path()));
        if !again && !others {
            pr_warn!("{self}: connection lost: {failure}\n");
            self.remove_lost(&mut control, failure);
        }
        drop(control);
        // Before the next attempt, which needs the same resources of the RDMA device.
        drop(released);
        if again {
            path.schedule(self);
        }
        self.announce_changes();
    }

    /// Removes the disk even if it is open. The caller holds `control`.
    fn remove_lost(&self, control: &mut Control, failure: Failure) {
        {
            // A user that sees the disk gone finds the reason.
            let mut shown = self.shown.lock();
            shown.state = DeviceState::Failing;
            shown.failure = Some(failure);
        }
        self.announce_changes();
        if let Some(active) = control.active.take() {
            control.lost = active.volume.wwid;
            active.head.begin_removal();
            active.head.fail_waiting();
            // Not earlier: sending uevents may wait for memory, and memory for the disk's requests.
            self.set_announcer(None);
            active.disk.remove();
            self.end_paths(&active.head, &active.sessions);
        }
        self.forget_session(DeviceState::Failed, Some(failure));
        self.announce_changes();
        control.pin = None;
    }
}

impl Device {
    /// Removes a session's closed queues from `queues`, and its admin queue pair from `admin`, and
    /// keeps their counts.
    pub(crate) fn queues_closed(
        &self,
        queues: &Mutex<KVec<Arc<Queue>>>,
        admin: &Mutex<Option<Arc<Admin>>>,
    ) {
        self.retire(queues, admin);
    }

    /// Counts requests of a session that ended after its queues were counted: how many are issued
    /// again, and how many failed.
    pub(crate) fn count_ended(&self, again: u64, failed: u64) {
        self.count_past(again, failed);
    }

    /// Retires queue `index` as [`Self::queues_closed`] retires all, and puts `new` in its place.
    pub(crate) fn queue_replaced(
        &self,
        queues: &Mutex<KVec<Arc<Queue>>>,
        index: u32,
        new: Arc<Queue>,
    ) {
        self.retire_one(queues, index, new);
    }

    /// Shows that `session`, a path of the disk, ends because of `failure`; its teardown waits for
    /// the drive. Process context.
    pub(crate) fn session_ending(&self, session: &Attachment, failure: Failure) {
        if let Some(path) = self.path(session.path()) {
            path.lose(failure);
            self.show_ending(session);
            self.begin_loss(session, failure);
            self.announce_changes();
        }
    }

    /// Handles the end of the teardown of `session`, which ended because of `failure`. Process
    /// context.
    pub(crate) fn session_failed(self: Arc<Self>, session: &Arc<Attachment>, failure: Failure) {
        self.session_lost(session, failure);
    }

    /// Handles the removal of `session`'s RDMA device. Called from the connection manager's
    /// callback, which may sleep, but must not wait for a session to end.
    pub(crate) fn device_removed(&self, session: &Attachment) {
        if let Some(path) = self.path(session.path()) {
            // Nothing holds the device longer than necessary.
            path.interrupt(Failure::DeviceRemoved);
        }
    }

    /// Makes the disk follow the volume of `session`, whose state is `now`; `false`: not possible
    /// at the moment. Process context.
    pub(crate) fn follow(&self, session: &Attachment, now: News) -> bool {
        self.follow_volume(session, now)
    }
}

impl Device {
    /// Sets a key, or removes it if `text` is empty. Fails with `EINVAL` if `text` is not a key,
    /// and with `ENOMEM`.
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

    /// Returns the key that proves this host's identity, as [`keys::Keys::pair`].
    pub(super) fn pair_key(&self, insecure: bool) -> Result<Option<Key>, Failure> {
        self.keys.lock().pair(insecure)
    }
}
