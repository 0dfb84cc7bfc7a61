// SPDX-License-Identifier: GPL-2.0

//! A configured disk.
//!
//! ```text
//!        enable=1                connected              enable=0, closed
//!  New ────────────► Connecting ──────────────► Live ─────────────────────► New
//!   ▲                    │ failed                │ connection lost, or ended by force
//!   └────────────────────┘                       ▼
//!  Connecting ◄──────── Failed ◄───────────── Failing
//!     │      enable=1     ▲      disk removed
//!     └───────────────────┘
//!            failed
//! ```
//!
//! A disk whose connection was lost is connected again in place: it is the same disk to the
//! target, which lets nothing of its past come after what is new ([`identity`](crate::identity)), and
//! no other volume is taken for the lost one.
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
    failure::Failure,
    identity::Identities,
    queue::Driver,
    session::{
        Session,
        REPLACEMENTS_MAX, //
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
            Request,
            SessionId, //
        },
        name::VolumeId,
        QUEUES_MAX, //
    },
    rdma::{
        mr::REGION_PAGE,
        pd::ProtectionDomain, //
    },
    sync::WorkQueue,
    system, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    ThisModule, //
};

mod past;

use self::past::Past;

/// See the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    New,
    Connecting,
    Live,
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

/// Prefix of the disks' names.
pub(crate) const DISK_PREFIX: &CStr = c"hcablk";

struct Active {
    session: Arc<Session>,
    disk: Disk<Driver>,
    /// What is 0 in every whole number of logical blocks, in bytes.
    block_mask: u64,
    wwid: Option<VolumeId>,
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
    teardown: Arc<WorkQueue>,
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
        teardown: &Arc<WorkQueue>,
        identities: &Arc<Identities>,
        module: &'static ThisModule,
    ) -> Result<Arc<Self>> {
        let identity = identities.of(name)?;
        let name = CString::try_from_fmt(fmt!("{name}"))?;
        Arc::pin_init(
            pin_init!(Self {
                name,
                module,
                teardown: teardown.clone(),
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

    /// What attributes show.
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
        let epoch = self.identities.next_epoch()?;
        let (settings, before) = {
            let settings = self.settings.lock();
            let mut shown = self.shown.lock();
            let before = core::mem::replace(&mut shown.state, State::Connecting);
            shown.failure = None;
            (*settings, before)
        };
        match self.connect(settings, epoch, control.lost) {
            Ok(active) => {
                let mut shown = self.shown.lock();
                shown.state = State::Live;
                shown.disk = Some(active.disk.number());
                shown.session = Some((active.session.id(), active.session.epoch()));
                shown.wwid = active.wwid;
                active
                    .session
                    .for_each_queue(|queue| queue.time(shown.timing));
                shown.live = Some(active.session.clone());
                drop(shown);
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
        control.lost = None;
        let Some(Active {
            session,
            disk,
            block_mask,
            wwid,
        }) = control.active.take()
        else {
            self.set_state(State::New);
            return Ok(());
        };
        if let Err((e, disk)) = disk.remove_if_closed() {
            control.active = Some(Active {
                session,
                disk,
                block_mask,
                wwid,
            });
            return Err(e);
        }
        self.set_state(State::Disconnecting);
        session.finish();
        self.forget_session(State::New, None);
        control.pin = None;
        pr_info!("{self}: disconnected\n");
        Ok(())
    }

    /// Ends the connection, also while the disk is open or requests hang: they fail. Waits until the
    /// disk is gone, which takes as long as the queue pairs need to drain, and, if a connection
    /// is being made, until that is over. Process context.
    pub(crate) fn force_disconnect(&self) -> Result {
        loop {
            // Not under `control`: who has it may wait for a request that this ends.
            let live = self.shown.lock().live.clone();
            if let Some(session) = live {
                session.fail(Failure::Forced);
                session.wait();
                // The teardown does the same; whoever comes first.
                self.session_failed(&session, session.failure().unwrap_or(Failure::Forced));
            }
            // Whoever connects or removes the disk has it.
            if self.control.lock().active.is_none() {
                return Ok(());
            }
        }
    }

    /// The teardown of `session` is done and `failure` is why: the disk goes.
    /// Process context.
    pub(crate) fn session_failed(&self, session: &Arc<Session>, failure: Failure) {
        let mut control = self.control.lock();
        // Not while connecting, when the disk was not made or is being given up.
        if !control
            .active
            .as_ref()
            .is_some_and(|active| Arc::ptr_eq(&active.session, session))
        {
            return;
        }
        pr_warn!("{self}: connection lost: {failure}\n");
        self.set_state(State::Failing);
        if let Some(active) = control.active.take() {
            control.lost = active.wwid;
            active.disk.remove();
        }
        self.forget_session(State::Failed, Some(failure));
        control.pin = None;
    }

    /// The target says that the volume of `session` has so many sectors of 512
    /// bytes: the disk follows. Nothing happens while the device is busy with
    /// something else, the target will say it again. Process context.
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
        if sectors > (i64::MAX >> 9) as u64 || (sectors << 9) & active.block_mask != 0 {
            return active
                .session
                .fail(Failure::Protocol("the size that it told is none"));
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
    ) -> Result<Active, Failure> {
        let ip = settings.address.ok_or(Failure::Unset("address"))?;
        settings.volume.ok_or(Failure::Unset("volume"))?;
        settings.host.ok_or(Failure::Unset("host_id"))?;
        let address = SocketAddr::new(ip, settings.port);
        let deadline = Deadline::new(settings.connect_timeout_s.saturating_mul(1000));

        let (link, id) = Link::new()?;
        link.resolve(&id, &address, deadline)?;
        let device = |e| Failure::Setup("a protection domain", e);
        let mut shape = Shape::fit(
            id.attributes().map_err(device)?,
            settings.depth,
            settings.max_io_kib << 10,
        )?;
        // iWARP has no RDMA WRITE that tells the peer that it is done.
        if !id.is_iwarp() {
            shape.land(id.attributes().map_err(device)?, settings.small_read);
        }
        let pd = ProtectionDomain::new(&id).map_err(device)?;
        let cpus = system::online_cpus().clamp(1, u32::from(QUEUES_MAX)) as u8;
        let poll_queues = settings.poll_queues.min(cpus).min(QUEUES_MAX - 1);
        let queues = match settings.queues {
            0 => cpus,
            queues => queues.min(cpus),
        };
        let settings = Settings {
            queues: queues.min(QUEUES_MAX - poll_queues),
            poll_queues,
            ..settings
        };
        let session = Session::new(
            self,
            &self.teardown,
            self.identity,
            epoch,
            settings,
            shape,
            pd,
        )
        .map_err(|e| Failure::Setup("a session", e))?;

        let (address, request) = session
            .whom_to_ask(0, false)
            .ok_or(Failure::Unset("address"))?;
        let result = self.bring_up(&session, (link, id), &address, &request, deadline, lost);
        match result {
            Ok((disk, block_mask, wwid)) => Ok(Active {
                session,
                disk,
                block_mask,
                wwid,
            }),
            Err(failure) => {
                // What broke the session comes before what that broke.
                let failure = session.failure().unwrap_or(failure);
                session.finish();
                Err(failure)
            }
        }
    }

    fn bring_up(
        &self,
        session: &Arc<Session>,
        first: (Arc<Link>, Arc<hcablk_core::rdma::cm::Id>),
        address: &SocketAddr,
        request: &Request,
        deadline: Deadline,
        lost: Option<VolumeId>,
    ) -> Result<(Disk<Driver>, u64, Option<VolumeId>), Failure> {
        // The first queue makes the session at the target, the others join it.
        let first = connect::bring_up(session, 0..1, Some(first), address, request, deadline)?;
        let Some((geometry, wwid)) = first.first().map(|(_, reply)| (reply.geometry, reply.id))
        else {
            return Err(Failure::NotATarget);
        };
        let expected = session.settings().expect_wwid;
        if expected.is_some() && wwid != expected {
            return Err(Failure::OtherVolume);
        }
        if lost.is_some() && wwid != lost {
            return Err(Failure::Exchanged);
        }
        let rest = connect::bring_up(
            session,
            1..session.queue_count(),
            None,
            address,
            request,
            deadline,
        )?;
        for (queue, reply) in Iterator::chain(first.iter(), rest.iter()) {
            if reply.geometry != geometry || reply.id != wwid {
                return Err(Failure::Protocol("its queues disagree about the volume"));
            }
            queue
                .go_live(reply)
                .map_err(|e| Failure::Setup("a queue pair", e))?;
        }
        session.go_live(geometry, wwid)?;
        let disk = self
            .add_disk(session, &geometry, wwid)
            .map_err(|e| Failure::Setup("the disk", e))?;
        Ok((disk, (1 << geometry.logical_block_shift) - 1, wwid))
    }

    fn add_disk(
        &self,
        session: &Arc<Session>,
        geometry: &Geometry,
        wwid: Option<VolumeId>,
    ) -> Result<Disk<Driver>> {
        let settings = session.settings();
        let config = TagSetConfig {
            timeout_ms: settings.io_timeout_s.saturating_mul(1000),
            numa_node: None,
            no_scheduler: false,
            poll_queues: settings.poll_queues.into(),
            exchanges: REPLACEMENTS_MAX,
        };
        let tag_set = TagSet::new(&config, session.requests(), session.clone())?;
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
            wwid.as_ref().map(|wwid| -> &dyn fmt::Display { wwid }),
            self.module,
        )
    }
}
