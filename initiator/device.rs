// SPDX-License-Identifier: GPL-2.0

//! A configured disk.
//!
//! ```text
//!        enable=1                connected              enable=0, closed
//!  New ────────────► Connecting ──────────────► Live ─────────────────────► New
//!   ▲                    │ failed                │▲ connection lost, ctrl_loss_tmo is not 0
//!   └────────────────────┘                       │└─────► Queueing ── enable=0, closed ──► New
//!                            connection lost, or │          │ refused for good, or too late,
//!                              ended by force    ▼          │ or ended by force
//!  Connecting ◄──────── Failed ◄───────────── Failing ◄─────┘
//!     │      enable=1     ▲      disk removed
//!     └───────────────────┘
//!            failed
//! ```
//!
//! A disk whose connection was lost is connected again in place: it is the same disk to the
//! target, which lets nothing of its past come after what is new ([`identity`](crate::identity)), and
//! no other volume is taken for the lost one.
//!
//! While it is *queueing* the disk stays, its requests wait, and a worker connects it
//! again ([`reconnect`]).
//!
//! `control` serialises connecting, disconnecting and the removal of a disk
//! whose session failed; it is held while those sleep. What attributes show is
//! kept apart, so that reading them never waits.

use crate::{
    deadline::Deadline,
    failure::Failure,
    head::Head,
    identity::Identities,
    queue::{
        Driver,
        Queue, //
    },
    session::{
        Session,
        SessionOwner,
        VolumeInfo, //
    },
    settings::Settings, //
};
use core::fmt;
use hcablk_core::{
    blkdev::Disk,
    configfs::{
        Directory,
        DirectoryPin, //
    },
    printable,
    proto::{
        connect::SessionId,
        name::VolumeId, //
    },
    sync::WorkQueue, //
};
use kernel::{
    impl_has_work,
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
    workqueue::{
        new_work,
        Work, //
    },
    ThisModule, //
};

mod bring_up;
mod disk;
mod past;
mod reconnect;
mod shown;

pub(crate) use self::disk::DISK_PREFIX;
use self::{
    past::Past,
    shown::{
        Shown,
        State, //
    },
};

/// How long a connection that was refused as stale is not tried again.
const STALE_RETRY_DELAY: Delta = Delta::from_millis(200);

/// The module's workqueues.
#[derive(Clone)]
pub(crate) struct WorkQueues {
    /// Ends sessions and replaces queue pairs.
    pub(crate) teardown: Arc<WorkQueue>,
    /// Connects again; waits for what is done on the other one.
    pub(crate) reconnect: Arc<WorkQueue>,
}

struct Active {
    head: Arc<Head>,
    /// The last one, which has ended while the disk is queueing.
    session: Arc<Session>,
    disk: Disk<Driver>,
    volume: VolumeInfo,
}

impl Active {
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
    workqueues: WorkQueues,
    identities: Arc<Identities>,
    /// The same over all connections; the epoch tells them apart.
    identity: SessionId,
    #[pin]
    settings: Mutex<Settings>,
    #[pin]
    control: Mutex<Control>,
    #[pin]
    shown: Mutex<Shown>,
    #[pin]
    past: Mutex<Past>,
    #[pin]
    reconnect: Work<Device>,
}

impl_has_work! {
    impl HasWork<Self> for Device { self.reconnect }
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
        workqueues: &WorkQueues,
        identities: &Arc<Identities>,
        module: &'static ThisModule,
    ) -> Result<Arc<Self>> {
        let identity = identities.of(name)?;
        let name = CString::try_from_fmt(fmt!("{name}"))?;
        Arc::pin_init(
            pin_init!(Self {
                name,
                module,
                workqueues: workqueues.clone(),
                identities: identities.clone(),
                identity,
                settings <- new_mutex!(Settings::default()),
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
                    live: None,
                    timing: false,
                }),
                past <- new_mutex!(Past::default()),
                reconnect <- new_work!("hcablk::Device"),
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

    /// Connects and makes the disk. Nothing happens when that is done already.
    pub(crate) fn enable(self: &Arc<Self>, directory: &Directory<'_>) -> Result {
        let mut control = self.control.lock();
        if control.active.is_some() {
            return Ok(());
        }
        let pin = directory.pin()?;
        // It is asked for once before the state changes, so that a failure leaves it.
        let mut epoch = self.identities.next_epoch()?;
        let (settings, before) = {
            let settings = self.settings.lock();
            let mut shown = self.shown.lock();
            let before = core::mem::replace(&mut shown.state, State::Connecting);
            shown.failure = None;
            (*settings, before)
        };
        let deadline = Deadline::new(settings.connect_timeout_s.saturating_mul(1000));
        let connected = loop {
            match self.connect(settings, epoch, control.lost, deadline) {
                // The target's connection manager ends what it has left as soon as it has refused.
                Err(Failure::StaleConnection) if !deadline.has_passed() => {
                    pr_info!("{}: {}; trying again\n", **self, Failure::StaleConnection);
                    fsleep(STALE_RETRY_DELAY);
                    match self.identities.next_epoch() {
                        Ok(next) => epoch = next,
                        Err(e) => break Err(Failure::Setup("a session", e)),
                    }
                }
                result => break result,
            }
        };
        match connected {
            Ok(active) => {
                self.show_session(&active);
                pr_info!(
                    "{}: connected as {} with {} queues\n",
                    **self,
                    active.disk.name(),
                    active.session.queue_count()
                );
                control.lost = None;
                control.active = Some(active);
                control.pin = Some(pin);
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
        }
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
        let Some(Active {
            head,
            session,
            disk,
            volume,
        }) = control.active.take()
        else {
            control.lost = None;
            self.set_state(State::New);
            return Ok(());
        };
        let queues = head.queues_if_no_path();
        if queues {
            // Nothing that the removal waits for may wait for a session. Whoever has opened it since sees
            // an error if the session is lost just now.
            head.fail_waiting();
        }
        if let Err((e, disk)) = disk.remove_if_closed() {
            head.queue_if_no_path(queues);
            control.active = Some(Active {
                head,
                session,
                disk,
                volume,
            });
            return Err(e);
        }
        control.lost = None;
        head.wake();
        self.set_state(State::Disconnecting);
        session.finish();
        session.let_go();
        self.forget_session(State::New, None);
        control.pin = None;
        pr_info!("{self}: disconnected\n");
        Ok(())
    }

    /// Ends the connection, also while the disk is open or requests hang: they fail. Waits until the
    /// disk is gone, which takes as long as the queue pairs need to drain, and, if a connection
    /// is being made, until that is over. Process context.
    pub(crate) fn force_disconnect(self: &Arc<Self>) -> Result {
        loop {
            // Not under `control`: who has it may wait for a request that this ends.
            let live = self.shown.lock().live.clone();
            if let Some(session) = live {
                session.fail(Failure::Forced);
                session.wait();
                // The teardown does the same; whoever comes first.
                self.session_lost(&session, session.failure().unwrap_or(Failure::Forced));
            }
            self.give_up(None, Failure::Forced);
            // Whoever connects or removes the disk has it.
            if self.control.lock().active.is_none() {
                return Ok(());
            }
        }
    }

    /// Removes the disk after the teardown of `session`, whose reason is `failure`, or has it wait
    /// for another session. Process context.
    fn session_lost(self: &Arc<Self>, session: &Arc<Session>, failure: Failure) {
        let mut control = self.control.lock();
        // Not while connecting, when the disk was not made or is being given up.
        if self.show(|shown| shown.state) != State::Live
            || !control
                .active
                .as_ref()
                .is_some_and(|active| Arc::ptr_eq(&active.session, session))
        {
            return;
        }
        if session.is_to_be_followed() {
            pr_warn!("{self}: connection lost: {failure}; requests wait for another one\n");
            return self.begin_reconnect(session, failure);
        }
        pr_warn!("{self}: connection lost: {failure}\n");
        self.remove_lost(&mut control, failure);
    }

    /// Removes the disk, whoever has it open. By who has `control`.
    fn remove_lost(&self, control: &mut Control, failure: Failure) {
        {
            // Whoever sees the disk gone finds the reason.
            let mut shown = self.shown.lock();
            shown.state = State::Failing;
            shown.failure = Some(failure);
        }
        if let Some(active) = control.active.take() {
            control.lost = active.volume.wwid;
            active.head.wake();
            active.head.fail_waiting();
            active.session.let_go();
            active.disk.remove();
        }
        self.forget_session(State::Failed, Some(failure));
        control.pin = None;
    }
}

impl SessionOwner for Device {
    fn teardown(&self) -> &Arc<WorkQueue> {
        &self.workqueues.teardown
    }

    fn queues_closed(&self, queues: &Mutex<KVec<Arc<Queue>>>) {
        self.retire(queues);
    }

    fn queue_replaced(&self, queues: &Mutex<KVec<Arc<Queue>>>, index: u32, new: Arc<Queue>) {
        self.retire_one(queues, index, new);
    }

    fn session_failed(self: Arc<Self>, session: &Arc<Session>, failure: Failure) {
        self.session_lost(session, failure);
    }

    fn resized(&self, session: &Session, sectors: u64) {
        self.resize(session, sectors);
    }
}
