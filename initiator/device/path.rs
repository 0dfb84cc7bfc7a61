// SPDX-License-Identifier: GPL-2.0

//! A path of a disk: an address of the target, with the state of its connection.
//!
//! ```text
//!        the disk is enabled, or the path               connected, fenced
//!  New ──────────────────────────────────► Connecting ────────────────────► Live
//!   ▲                                       │  ▲  │                           │ its session ends
//!   │ disabled                failed, may   │  │  └────────────┐              ▼
//!   └──── (any)               pass          ▼  │ delay over    │ failed for  Lost
//!                                         Waiting ◄────────────┼──────────────┤ ended, fenced
//!                                                              ▼              │
//!                                                           Refused ◄─────────┘ for good
//! ```
//!
//! A refused path that is enabled once more enters Connecting. The path that the disk starts with
//! goes from New to Live at once, or remains New, with the reason.
//!
//! Path 0 is the disk's own address; the others have directories of their own. Each has a worker
//! that connects it while others carry the requests ([`reconnect`](super::reconnect)).

use super::{
    Device,
    Sessions, //
};
use crate::{
    connect::AttemptLinks,
    failure::Failure,
    session::Attachment,
    settings::Settings,
    workqueues::{
        AllQueues,
        WorkQueues, //
    },
};
use core::{
    fmt,
    net::IpAddr, //
};
use hcablk_core::{
    configfs::DirectoryPin,
    sync::{
        defer::for_reclaim,
        Event, //
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
        Work,
        WorkItem, //
    },
};

/// Milliseconds that a path's session must live for the first attempt after its loss to start at
/// once.
const STABLE_MS: u32 = 10_000;

/// Milliseconds that a path's session must live for its loss to end the count of losses in a row.
const SOUND_MS: u32 = 60_000;

/// The state of a path; see the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathState {
    New,
    Connecting,
    Live,
    Lost,
    Waiting,
    Refused,
}

impl PathState {
    /// Returns whether a worker is connecting the path, or will connect it.
    pub(super) fn is_reconnecting(self) -> bool {
        matches!(self, Self::Connecting | Self::Waiting)
    }

    /// Returns whether requests use the path, or may again.
    pub(super) fn is_of_use(self) -> bool {
        self.is_reconnecting() || matches!(self, Self::Live | Self::Lost)
    }
}

impl PathState {
    /// Returns the state's name in attributes and events.
    pub(super) fn name(self) -> &'static CStr {
        match self {
            Self::New => c"new",
            Self::Connecting => c"connecting",
            Self::Live => c"live",
            Self::Lost => c"lost",
            Self::Waiting => c"waiting",
            Self::Refused => c"refused",
        }
    }
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().to_str().unwrap_or("?"))
    }
}

/// The settings of a path, and its state as attributes show it.
#[derive(Clone, Copy)]
pub(crate) struct PathInfo {
    /// Not used for path 0, whose address is the disk's.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
    /// The path is used while the disk is enabled.
    pub(crate) enabled: bool,
    /// How often `enabled` was changed: an attempt from before a change is void.
    pub(super) usage: u32,
    pub(crate) state: PathState,
    /// Why the path is not live.
    pub(crate) failure: Option<Failure>,
    /// When the path's session has lived for [`STABLE_MS`].
    stable: Option<Deadline>,
    /// When the path's session has lived for [`SOUND_MS`].
    sound: Option<Deadline>,
    /// Losses in a row.
    losses: u32,
    /// Duration of the last successful attempt, in milliseconds.
    usual_ms: u32,
}

/// A path; see the module. Shared by the device, its directory and its worker.
#[pin_data]
pub(crate) struct Path {
    number: u8,
    workqueues: Arc<WorkQueues>,
    #[pin]
    info: Mutex<PathInfo>,
    /// Ends the wait between two attempts. Set when a condition of the worker has changed, and
    /// reset by the worker before it looks.
    #[pin]
    pub(super) woken: Event,
    /// The worker's current attempt.
    #[pin]
    attempt: Mutex<Option<Arc<AttemptLinks>>>,
    /// Pins the path's directory while the path is used.
    #[pin]
    pin: Mutex<Option<DirectoryPin>>,
    /// The device, while the worker is scheduled.
    #[pin]
    device: Mutex<Option<Arc<Device>>>,
    #[pin]
    work: Work<Path>,
}

impl_has_work! {
    impl HasWork<Self> for Path { self.work }
}

impl Path {
    /// Creates an unused path. May sleep.
    pub(super) fn new(number: u8, queues: &Arc<AllQueues>) -> Result<Arc<Self>> {
        let enabled = number == 0;
        let workqueues = queues.of_path()?;
        Arc::pin_init(
            pin_init!(Self {
                number,
                workqueues,
                info <- new_mutex!(PathInfo {
                    address: None,
                    port: Settings::default().port,
                    enabled,
                    usage: 0,
                    state: PathState::New,
                    failure: None,
                    stable: None,
                    sound: None,
                    losses: 0,
                    usual_ms: 0,
                }),
                woken <- Event::new(),
                attempt <- new_mutex!(None),
                pin <- new_mutex!(None),
                device <- new_mutex!(None),
                work <- new_work!("hcablk::Path"),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    pub(super) fn workqueues(&self) -> &Arc<WorkQueues> {
        &self.workqueues
    }

    pub(crate) fn info(&self) -> PathInfo {
        *self.info.lock()
    }

    /// Changes the path's settings. Fails with `EBUSY` while the path is used.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut PathInfo)) -> Result {
        let mut info = self.info.lock();
        if info.enabled {
            return Err(EBUSY);
        }
        change(&mut info);
        Ok(())
    }

    /// Enables the path if `pin`, which pins its directory, is given; otherwise disables it.
    pub(super) fn set_enabled(&self, pin: Option<DirectoryPin>) {
        {
            let mut info = self.info.lock();
            info.enabled = pin.is_some();
            info.usage = info.usage.wrapping_add(1);
            // An administrator who disables and enables a path expects a connection at once.
            info.stable = None;
            info.losses = 0;
        }
        let former = core::mem::replace(&mut *self.pin.lock(), pin);
        drop(former);
    }

    /// Returns `settings` with this path's address.
    pub(super) fn settings(&self, settings: Settings) -> Settings {
        if self.number == 0 {
            return settings;
        }
        let info = self.info();
        Settings {
            address: info.address,
            port: info.port,
            ..settings
        }
    }

    /// Enters `state`, because of `failure`.
    pub(super) fn set_state(&self, state: PathState, failure: Option<Failure>) {
        let mut info = self.info.lock();
        if state == PathState::Live && info.state != state {
            info.stable = Some(Deadline::new(STABLE_MS));
            info.sound = Some(Deadline::new(SOUND_MS));
        }
        info.state = state;
        info.failure = failure;
    }

    /// Changes from live to lost, because of `failure`.
    pub(super) fn lose(&self, failure: Failure) {
        let mut info = self.info.lock();
        if info.state == PathState::Live {
            info.state = PathState::Lost;
            info.failure = Some(failure);
            info.losses = match info.sound.is_some_and(Deadline::has_passed) {
                true => 1,
                false => info.losses.saturating_add(1),
            };
        }
    }

    /// Changes from waiting to connecting.
    pub(super) fn set_connecting(&self) {
        let mut info = self.info.lock();
        if info.state == PathState::Waiting {
            info.state = PathState::Connecting;
        }
    }

    /// Returns whether the path's last session was short: the next attempt then starts with a
    /// delay.
    pub(super) fn was_lost_soon(&self) -> bool {
        let stable = self.info.lock().stable;
        stable.is_some_and(|stable| !stable.has_passed())
    }

    /// Returns how often the path was lost in a row, each time soon after it was connected.
    pub(super) fn losses(&self) -> u32 {
        self.info.lock().losses
    }

    /// Returns the duration of the path's last successful attempt, in milliseconds; 0: none yet.
    pub(super) fn usual_ms(&self) -> u32 {
        self.info.lock().usual_ms
    }

    /// Sets the duration of the path's last successful attempt.
    pub(super) fn set_usual_ms(&self, ms: u32) {
        self.info.lock().usual_ms = ms;
    }

    /// Starts an attempt, which [`Self::interrupt`] ends. Called by the worker, which checks
    /// afterwards whether the path still needs a session.
    pub(super) fn begin_attempt(&self) -> Result<Arc<AttemptLinks>, Failure> {
        let attempt = AttemptLinks::new()?;
        *self.attempt.lock() = Some(attempt.clone());
        Ok(attempt)
    }

    /// Records the end of the attempt.
    pub(super) fn attempt_over(&self) {
        let attempt = self.attempt.lock().take();
        if let Some(attempt) = attempt {
            attempt.release_links();
        }
    }

    /// Makes the worker check its conditions again: ends its wait between two attempts, or the
    /// waits of an attempt, which fails with `failure`. May sleep.
    pub(super) fn interrupt(&self, failure: Failure) {
        self.woken.set();
        let attempt = self.attempt.lock().clone();
        if let Some(attempt) = attempt {
            attempt.end(failure);
        }
    }

    /// Schedules the worker to connect the path for `device`.
    pub(super) fn schedule(self: &Arc<Self>, device: &Arc<Device>) {
        *self.device.lock() = Some(device.clone());
        // Work that is already queued has not read `device` yet.
        let _ = self.workqueues.reconnect().enqueue(self.clone());
    }
}

impl WorkItem for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let device = this.device.lock().take();
        if let Some(device) = device {
            // Memory reclaim may wait for this disk's requests.
            for_reclaim(|| device.reconnect(&this));
        }
    }
}

/// Returns the disk's attachment to the session of a path.
pub(super) fn session_of(sessions: &Sessions, path: u8) -> Option<&Arc<Attachment>> {
    sessions.get(usize::from(path))?.as_ref()
}
