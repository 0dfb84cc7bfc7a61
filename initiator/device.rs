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
    connect::{
        self,
        Deadline,
        Link, //
    },
    failure::{
        Failure,
        Violation, //
    },
    head::Head,
    identity::Identities,
    queue::Driver,
    session::{
        Session,
        VolumeInfo, //
    },
    settings::Settings,
    shape::Shape,
};
use core::{
    fmt,
    net::SocketAddr, //
};
use hcablk_core::{
    blkdev::{
        Disk,
        Limits,
        TagSet,
        TagSetConfig, //
    },
    configfs::{
        Directory,
        DirectoryPin, //
    },
    printable,
    proto::{
        connect::{
            Epoch,
            Geometry,
            SessionId, //
        },
        name::VolumeId,
        QUEUES_MAX, //
    },
    rdma::{
        cm::Id,
        mr::REGION_PAGE,
        pd::ProtectionDomain, //
    },
    sync::WorkQueue,
    system, //
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

mod past;
mod reconnect;

use self::past::Past;

/// See the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    New,
    Connecting,
    Live,
    Queueing,
    Failing,
    Failed,
    Disconnecting,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "new",
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Queueing => "queueing",
            Self::Failing => "failing",
            Self::Failed => "failed",
            Self::Disconnecting => "disconnecting",
        })
    }
}

/// What attributes show.
pub(crate) struct Shown {
    pub(crate) state: State,
    pub(crate) failure: Option<Failure>,
    /// Number of the disk.
    pub(crate) disk: Option<u32>,
    pub(crate) session: Option<(SessionId, Epoch)>,
    /// Which volume it is.
    pub(crate) wwid: Option<VolumeId>,
    /// Where counters of live queues are.
    live: Option<Arc<Session>>,
    /// How long requests take is measured.
    pub(crate) timing: bool,
}

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

/// Prefix of the disks' names.
pub(crate) const DISK_PREFIX: &CStr = c"hcablk";

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

/// The first connection of a session, whose address is resolved.
type First = (Arc<Link>, Arc<Id>);

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

    /// Returns the workqueue on which sessions end.
    pub(crate) fn teardown(&self) -> &Arc<WorkQueue> {
        &self.workqueues.teardown
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

    /// Calls `f` with what attributes show.
    pub(crate) fn show<R>(&self, f: impl FnOnce(&Shown) -> R) -> R {
        f(&self.shown.lock())
    }

    fn set_state(&self, state: State) {
        self.shown.lock().state = state;
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
                self.session_failed(&session, session.failure().unwrap_or(Failure::Forced));
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
    pub(crate) fn session_failed(self: &Arc<Self>, session: &Arc<Session>, failure: Failure) {
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

    /// Resizes the disk to the volume's `sectors` of 512 bytes, as the target has sent. Does
    /// nothing while the device is busy with something else, since the target will send it again.
    /// Process context.
    pub(crate) fn resized(&self, session: &Session, sectors: u64) {
        let Some(control) = self.control.try_lock() else {
            return;
        };
        let Some(active) = control.active.as_ref() else {
            return;
        };
        if !core::ptr::eq(&*active.session, session) || active.disk.capacity() == sectors {
            return;
        }
        if sectors > (i64::MAX >> 9) as u64 || (sectors << 9) & active.block_mask() != 0 {
            return active.session.fail(Failure::Protocol(Violation::new(
                "the size that it told is none",
                Some(0),
            )));
        }
        pr_info!("{self}: the volume has {sectors} sectors now\n");
        active.disk.set_capacity_and_notify(sectors);
    }

    fn forget_session(&self, state: State, failure: Option<Failure>) {
        let mut shown = self.shown.lock();
        shown.state = state;
        shown.failure = failure;
        shown.disk = None;
        shown.session = None;
        shown.wwid = None;
        let live = shown.live.take();
        drop(shown);
        drop(live);
    }

    /// Connects to a volume that is `lost`, if that is known, and makes its disk.
    fn connect(
        self: &Arc<Self>,
        settings: Settings,
        epoch: Epoch,
        lost: Option<VolumeId>,
        deadline: Deadline,
    ) -> Result<Active, Failure> {
        let (session, first, head) = self.begin_session(settings, epoch, None, deadline)?;
        let result = Self::bring_up(&session, first, deadline, lost).and_then(|volume| {
            let disk = head
                .with_first(&session, || self.add_disk(&session, &head, &volume))
                .map_err(|e| Failure::Setup("the disk", e))?;
            // Not before: whoever reads partitions would wait, and this for them.
            head.queue_if_no_path(self.is_to_reconnect(&settings, &volume));
            Ok((disk, volume))
        });
        match result {
            Ok((disk, volume)) => Ok(Active {
                head,
                session,
                disk,
                volume,
            }),
            Err(failure) => {
                // What broke the session comes before what that broke.
                let failure = session.failure().unwrap_or(failure);
                session.finish();
                Err(failure)
            }
        }
    }

    /// Makes a session without queue pairs, for the disk of `head` or for a new one, and resolves
    /// the target's address.
    fn begin_session(
        self: &Arc<Self>,
        settings: Settings,
        epoch: Epoch,
        head: Option<Arc<Head>>,
        deadline: Deadline,
    ) -> Result<(Arc<Session>, First, Arc<Head>), Failure> {
        let ip = settings.address.ok_or(Failure::Unset("address"))?;
        settings.volume.ok_or(Failure::Unset("volume"))?;
        settings.host.ok_or(Failure::Unset("host_id"))?;
        let address = SocketAddr::new(ip, settings.port);

        let (link, id) = Link::new()?;
        link.resolve(&id, &address, deadline)?;
        let device = |e| Failure::Setup("a protection domain", e);
        let mut shape = Shape::fit(
            id.attributes().map_err(device)?,
            settings.depth,
            settings.max_io_kib << 10,
        )?;
        if let Some(head) = &head {
            shape = head.shape_on(shape).ok_or(Failure::Device(
                "it has less than the one that the disk began with",
            ))?;
        }
        // iWARP has no RDMA WRITE that tells the peer that it is done.
        if !id.is_iwarp() {
            shape.fit_read_bounce(id.attributes().map_err(device)?, settings.small_read);
        }
        let pd = ProtectionDomain::new(&id).map_err(device)?;
        let settings = match &head {
            Some(_) => settings,
            None => with_queue_counts(settings),
        };
        let queues = u32::from(settings.queues) + u32::from(settings.poll_queues);
        let head = match head {
            Some(head) => head,
            None => Head::new(queues, shape).map_err(|e| Failure::Setup("a session", e))?,
        };
        let session = Session::new(self, self.identity, epoch, settings, shape, pd, &head)
            .map_err(|e| Failure::Setup("a session", e))?;
        Ok((session, (link, id), head))
    }

    /// Connects the queue pairs of a session, to a volume that is `lost`, if that is known.
    fn bring_up(
        session: &Arc<Session>,
        first: First,
        deadline: Deadline,
        lost: Option<VolumeId>,
    ) -> Result<VolumeInfo, Failure> {
        let (address, request) = session
            .connection_request(0, false)
            .ok_or(Failure::Unset("address"))?;
        // The first queue makes the session at the target, the others join it.
        let first = connect::bring_up(session, 0..1, Some(first), &address, &request, deadline)?;
        let Some(volume) = first.first().map(|(_, reply)| VolumeInfo::of(reply)) else {
            return Err(Failure::NotATarget);
        };
        let expected = session.settings().expect_wwid;
        if expected.is_some() && volume.wwid != expected {
            return Err(Failure::OtherVolume);
        }
        if lost.is_some() && volume.wwid != lost {
            return Err(Failure::Exchanged);
        }
        let rest = connect::bring_up(
            session,
            1..session.queue_count(),
            None,
            &address,
            &request,
            deadline,
        )?;
        for (queue, reply) in Iterator::chain(first.iter(), rest.iter()) {
            if VolumeInfo::of(reply) != volume {
                return Err(Failure::Protocol(Violation::new(
                    "its queues disagree about the volume",
                    None,
                )));
            }
            queue
                .go_live(reply)
                .map_err(|e| Failure::Setup("a queue pair", e))?;
        }
        session.go_live(volume)?;
        Ok(volume)
    }

    fn add_disk(
        &self,
        session: &Arc<Session>,
        head: &Arc<Head>,
        volume: &VolumeInfo,
    ) -> Result<Disk<Driver>> {
        let (settings, geometry) = (session.settings(), &volume.geometry);
        let config = TagSetConfig {
            timeout_ms: settings.io_timeout_s.saturating_mul(1000),
            numa_node: None,
            no_scheduler: false,
            poll_queues: settings.poll_queues.into(),
        };
        let tag_set = TagSet::new(&config, session.requests(), head.clone())?;
        let bytes = session.shape().bytes.min(geometry.max_transfer);
        if bytes >> 10 < settings.max_io_kib {
            pr_info!(
                "{self}: requests of {} KiB at most, not of {} KiB: {} has no more\n",
                bytes >> 10,
                settings.max_io_kib,
                if bytes < session.shape().bytes {
                    "the target"
                } else {
                    "the RDMA device"
                }
            );
        }
        let limits = Limits {
            logical_block_size: 1 << geometry.logical_block_shift,
            physical_block_size: 1 << geometry.physical_block_shift,
            max_hw_sectors: bytes >> 9,
            max_segments: session.shape().segments,
            // A region's pages are whole, but for the first and the last.
            virt_boundary_mask: u64::from(REGION_PAGE - 1),
            dma_alignment: 3,
            write_cache: geometry.write_cache,
            fua: geometry.fua,
            max_discard_sectors: geometry.max_discard >> 9,
            discard_granularity: geometry.discard_granularity,
            max_write_zeroes_sectors: geometry.max_zeroes >> 9,
            ..Limits::default()
        };
        Disk::add(
            DISK_PREFIX,
            &tag_set,
            &limits,
            geometry.capacity >> 9,
            geometry.read_only,
            volume
                .wwid
                .as_ref()
                .map(|wwid| -> &dyn fmt::Display { wwid }),
            self.module,
        )
    }
}

/// Returns the settings with the numbers of queues that this machine gets.
fn with_queue_counts(settings: Settings) -> Settings {
    let cpus = system::online_cpus().clamp(1, u32::from(QUEUES_MAX)) as u8;
    let poll_queues = settings.poll_queues.min(cpus).min(QUEUES_MAX - 1);
    let queues = match settings.queues {
        0 => cpus,
        queues => queues.min(cpus),
    };
    Settings {
        queues: queues.min(QUEUES_MAX - poll_queues),
        poll_queues,
        ..settings
    }
}
