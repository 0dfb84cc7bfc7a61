// SPDX-License-Identifier: GPL-2.0

//! Attaches a volume to a session: decides whether that is allowed, and waits for older
//! attachments.
//!
//! An admin queue pair sends the response to a request for a volume when the request is decided.
//! This may wait for the end of an older attachment of the same disk, and thus for a drive, so it
//! runs on the workqueue on which connections are established. A request waits at most until its
//! session ends.

use super::{
    admission::{
        decide,
        Decision, //
    },
    connect::refusal::Refusal,
    keys::Proven,
    registry::{
        DriveWaiter,
        Pending,
        Registry, //
    },
    volume::Volume, //
};
use crate::{
    claimant::Claimant,
    drive::{
        backing::Backing,
        write_errors::WriteErrorsUse, //
    },
    session::{
        attachment::{
            Attachment,
            Exported, //
        },
        end_reason::EndReason,
        Session, //
    },
};
use hcablk_core::{
    proto::{
        connect::{
            ConnectRequest, //
            Geometry,
            Reason,
        },
        message::{
            Attach,
            Attached,
            Tag, //
        },
        ADMIN_QUEUE,
        DEPTH_MAX,
        VERSION_OF_HOST, //
    },
    report::broken::keep,
    sync::defer::without_io,
    system::{
        errno,
        may_print,
        Lines, //
    },
};
use kernel::{
    impl_has_work,
    prelude::*,
    sync::Arc,
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

/// The most attachments of one host on one volume. Usually a host has one for each path of each of
/// its disks.
const ATTACHED_PER_HOST: usize = 16;

/// The time limit for the end of an older attachment, in milliseconds: the longest time that an
/// initiator may wait for the response.
const WAIT_MS: u32 = 600_000;
/// The interval for checking whether the initiator still waits, in milliseconds.
const LOOK_MS: u32 = 500;

pub(super) const WITHDRAWN: Refusal = Refusal::new(
    Reason::Withdrawn,
    "the volume was just withdrawn, or its drive has no size",
);

const FULL: Refusal = Refusal::new(
    Reason::NoResources,
    "its session has no room for another volume",
);

const OWN_SESSION: Refusal = Refusal::new(
    Reason::OwnSession,
    "it needs a session of its own, because of its memory or its data",
);

const ENDED: Refusal = Refusal::new(Reason::NoSession, "its session ended meanwhile");

impl Registry {
    /// Refuses a request if its host has too many attachments of `volume`, before anything is
    /// allocated. The decisive check is made when an attachment is listed.
    pub(super) fn check_count(
        &self,
        request: &ConnectRequest,
        volume: &Arc<Volume>,
    ) -> Result<(), Refusal> {
        match self.attachments_of(request.host, volume) >= ATTACHED_PER_HOST {
            true => Err(Refusal::TOO_MANY),
            false => Ok(()),
        }
    }

    /// Attaches `volume` to `session` as `request` asks, and lists the attachment. Returns `None`
    /// if the request must be decided again, since sessions of another instance of its host exist
    /// by then. May sleep.
    pub(super) fn attach(
        &self,
        session: &Arc<Session>,
        volume: &Arc<Volume>,
        (exported, write_errors): (Exported, WriteErrorsUse),
        request: &ConnectRequest,
        proven: Proven,
    ) -> Result<Option<Arc<Attachment>>, Refusal> {
        // Held until an attachment that is not listed has ended: its workqueue is dropped with the
        // volume.
        let _open = exported.backing.clone();
        let attachment = Attachment::new(session, volume.clone(), exported, write_errors, request)
            .map_err(|e| match e {
                EIO => ENDED,
                _ => Refusal::NO_MEMORY,
            })?;
        let listed = self.add_attachment(&attachment, volume, request, ATTACHED_PER_HOST);
        // A function that withdraws the volume or forbids the host ends the listed attachments:
        // check again now that this one is listed.
        let (now, _) = self.admission(volume, request, proven);
        let allowed = now.is_open();
        let same_backing = match (volume.backing(), attachment.backing()) {
            (Some((now, _)), Some(then)) => Arc::ptr_eq(&now, &then),
            _ => false,
        };
        if listed.is_ok() && allowed && same_backing {
            return Ok(Some(attachment));
        }
        attachment.end(match listed {
            Ok(()) => EndReason::Withdrawn,
            Err(_) => EndReason::Second,
        });
        let is_decided_again = matches!(listed, Ok(()) | Err(EBUSY | ENODEV));
        if is_decided_again && session.is_of_host() {
            // The next decision needs its handle. No request has reached the drive.
            wait_for(|ms| attachment.has_ended_within(ms), || session.is_ending())?;
        }
        match listed {
            // The volume was withdrawn, or the host forbidden or evicted: the next decision finds
            // it.
            Ok(()) if !allowed => Ok(None),
            Ok(()) => Err(WITHDRAWN),
            Err(EBUSY | ENODEV) => Ok(None),
            Err(EEXIST) => Err(Refusal::new(Reason::StaleEpoch, "its session is in use")),
            Err(EMFILE) => Err(Refusal::TOO_MANY),
            Err(e) if e == errno::estale() => Err(Refusal::new(
                Reason::StaleEpoch,
                "it was fenced, or its disk has a newer epoch",
            )),
            Err(_) => Err(Refusal::NO_MEMORY),
        }
    }

    /// Counts a request of `claimant` among those that wait for the drive of `volume`. Their number
    /// is limited for each claimant and for each drive.
    pub(super) fn wait_for_drive_of(
        &self,
        claimant: Claimant,
        volume: Option<&Arc<Volume>>,
    ) -> Result<DriveWaiter<'_>, Refusal> {
        let file = |volume: &Arc<Volume>| volume.with_backing(|backing| backing.file().id());
        let drive = volume.and_then(file);
        self.wait_for_drive(claimant, drive)
            .map_err(|_| Refusal::CROWD)
    }

    /// Waits until the attachments of the host's other instances on the volume have ended
    /// completely, as [`wait_for`].
    pub(super) fn wait_for_other_instances(
        &self,
        request: &ConnectRequest,
        is_lost: impl Fn() -> bool,
    ) -> Result<(), Refusal> {
        let other = |attachment: &Attachment| attachment.is_of_other_instance(request);
        while let Some(attachment) = self.ending_attachment(other) {
            wait_for(|ms| attachment.has_ended_within(ms), &is_lost)?;
        }
        Ok(())
    }
}

/// Waits until an older session or attachment has ended, for up to [`WAIT_MS`]. Sleeps.
///
/// `has_ended` waits for the end for up to the given number of milliseconds, and returns `true` if
/// it came. `is_lost` returns `true` if the initiator no longer waits.
///
/// Errors: `StaleEpoch` after the time limit, or if the initiator no longer waits.
pub(super) fn wait_for(
    has_ended: impl Fn(u32) -> bool,
    is_lost: impl Fn() -> bool,
) -> Result<(), Refusal> {
    for _ in 0..WAIT_MS / LOOK_MS {
        let ended = has_ended(LOOK_MS);
        if is_lost() {
            return Err(Refusal::new(
                Reason::StaleEpoch,
                "it stopped waiting for the end of its older session",
            ));
        }
        if ended {
            return Ok(());
        }
    }
    Err(Refusal::new(
        Reason::StaleEpoch,
        "the drive has not finished the requests of its older session",
    ))
}

/// A request to attach a volume that waits on the workqueue.
#[pin_data]
pub(crate) struct Attaching {
    registry: Arc<Registry>,
    session: Counted,
    tag: Tag,
    attach: Attach,
    _pending: Pending,
    #[pin]
    work: Work<Attaching>,
}

impl_has_work! {
    impl HasWork<Self> for Attaching { self.work }
}

/// A session that waits for a volume. It is counted, so that it does not end meanwhile for lack of
/// a volume.
struct Counted(Arc<Session>);

impl core::ops::Deref for Counted {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count_attaching(true);
    }
}

/// Begins to attach a volume to `session`, as request `tag` of its admin queue pair asks. Fails
/// with `ENOMEM`, and with `EBUSY` if too many requests wait. May sleep, but does not wait for
/// anything else.
pub(crate) fn begin(
    registry: &Arc<Registry>,
    session: &Arc<Session>,
    tag: Tag,
    attach: Attach,
) -> Result {
    let pending = registry.wait_in_line()?;
    session.count_attaching(false);
    let counted = Counted(session.clone());
    let attaching = Arc::pin_init(
        pin_init!(Attaching {
            registry: registry.clone(),
            session: counted,
            tag,
            attach,
            _pending: pending,
            work <- new_work!("hcablk_target::Attaching"),
        }),
        GFP_KERNEL,
    )?;
    registry.while_open(|| {
        // A new object, so it cannot be queued already.
        if let Err(attaching) = registry.connect_work().enqueue(attaching) {
            keep(attaching, "a request for a volume was queued already");
        }
    })
}

impl Attaching {
    /// Returns the connection request that would begin a session of this volume only.
    fn request(&self) -> ConnectRequest {
        let Attach {
            volume,
            disk,
            epoch,
            resume,
        } = self.attach;
        ConnectRequest {
            version_min: VERSION_OF_HOST,
            version_max: VERSION_OF_HOST,
            depth: DEPTH_MAX,
            queue: ADMIN_QUEUE,
            replace: false,
            queues: self.session.queue_count(),
            resume,
            alone: false,
            largest: self.session.largest(),
            session: disk,
            epoch,
            host: self.session.host(),
            volume: Some(volume),
        }
    }

    fn carry_out(&self) {
        let request = self.request();
        let outcome = self.attach(&request).map_err(|refusal| {
            // The initiator begins a session of the volume instead.
            let is_failure = refusal.reason() != Reason::OwnSession;
            if is_failure && may_print(Lines::Refusals) {
                pr_warn!(
                    "refused {} for volume {}: {refusal}\n",
                    request.host,
                    self.attach.volume
                );
            }
            refusal.reason()
        });
        self.session.respond_to_attach(self.tag, outcome);
    }

    fn attach(&self, request: &ConnectRequest) -> Result<Attached, Refusal> {
        let (attachment, volume) = self.find(request)?;
        // As in `Registry::attach()`.
        let _open = attachment.backing();
        let proven = self.session.proven();
        // Only now: a refused host leaves its instances unchanged.
        if !self.registry.enter(&attachment, &volume, (request, proven)) {
            attachment.end(EndReason::Second);
            return Err(ENDED);
        }
        if let Err(e) = attachment.publish() {
            attachment.end(EndReason::Second);
            return Err(if e == EIO { ENDED } else { Refusal::NO_MEMORY });
        }
        let geometry = attachment.geometry();
        let (id, epoch, host) = (request.session.0, request.epoch.0, request.host);
        if may_print(Lines::Begins) {
            pr_info!("{volume}: disk {id:016x} of {host} attached, epoch {epoch}\n");
        }
        Ok(Attached {
            handle: attachment.handle(),
            geometry: Geometry {
                read_only: attachment.began_read_only(),
                max_transfer: self.session.largest(),
                ..*geometry
            },
            id: volume.wwid(),
            instance: attachment.write_errors().instance(),
        })
    }

    /// Attaches the volume once no older attachment prevents it.
    fn find(&self, request: &ConnectRequest) -> Result<(Arc<Attachment>, Arc<Volume>), Refusal> {
        let (registry, proven) = (&self.registry, self.session.proven());
        let claimant = self.session.claimant();
        // A session that can have only this volume serves it as in version 2: it can do without an
        // eager ring, if RDMA READs may be posted.
        let has_no_ring = self.session.capacity() == 1 && crate::rdma_read();
        let needs_own_session = |backing: &Backing| {
            backing.wants_peers() || !(has_no_ring || backing.tolerates_change())
        };
        let is_lost = || self.session.is_ending();
        loop {
            if is_lost() {
                return Err(ENDED);
            }
            let (view, found) = registry.view(request, proven);
            let decision = decide(request, &view);
            let volume = found.volume.as_ref();
            let needs_own = volume.and_then(|v| v.with_backing(needs_own_session));
            // Decided before anything waits: the initiator will request a session for this volume
            // alone, and that request waits for the older sessions.
            if needs_own == Some(true) && decision.is_grant() {
                return Err(OWN_SESSION);
            }
            match (decision, found.volume, found.attachment) {
                (Decision::Begin, Some(volume), _) => {
                    registry.check_count(request, &volume)?;
                    if !self.session.has_room() {
                        return Err(FULL);
                    }
                    let exported = volume.export().ok_or(WITHDRAWN)?;
                    // The volume may have been exported again since the decision.
                    if needs_own_session(&exported.backing) {
                        return Err(OWN_SESSION);
                    }
                    let write_errors = exported
                        .records
                        .begin(request, &exported.backing)
                        .map_err(Refusal::of_session)?;
                    let what = (exported, write_errors);
                    let attached =
                        registry.attach(&self.session, &volume, what, request, proven)?;
                    if let Some(attachment) = attached {
                        return Ok((attachment, volume));
                    }
                }
                (Decision::Supersede, Some(volume), _) => {
                    let _waits = registry.wait_for_drive_of(claimant, Some(&volume))?;
                    registry.supersede(&volume, request, proven);
                    registry.wait_for_other_instances(request, is_lost)?;
                }
                (Decision::Replace, volume, Some(old)) => {
                    let _waits = registry.wait_for_drive_of(claimant, volume.as_ref())?;
                    old.end(EndReason::Replaced);
                    wait_for(|ms| old.has_ended_within(ms), is_lost)?;
                }
                // A host whose proof does not hold for the volume must not learn whether the volume
                // exists. It gets the refusal that a wrong proof for the volume itself gets.
                (
                    Decision::Refuse(Reason::UnknownVolume | Reason::Forbidden | Reason::NotProven),
                    volume,
                    _,
                ) if self.session.proof().is_some() => {
                    let why = registry.why_unproven(volume.as_ref(), request.host);
                    return Err(Refusal::new(Reason::NotProven, why));
                }
                (Decision::Refuse(reason), ..) if view.volume.is_some_and(|v| v.unproven) => {
                    let why = "its session does not prove its identity, which the volume demands";
                    return Err(Refusal::new(reason, why));
                }
                (Decision::Refuse(reason), ..) => return Err(Refusal::not_admitted(reason)),
                _ => return Err(Refusal::NO_MEMORY),
            }
        }
    }
}

impl WorkItem for Attaching {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.carry_out());
    }
}
