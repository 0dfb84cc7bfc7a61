// SPDX-License-Identifier: GPL-2.0

//! Brings up a disk: from settings to a live session.

use super::{
    no_sessions,
    path::Path,
    reservations::DiskReservations,
    Active,
    Device, //
};
use crate::{
    connect::{
        self,
        AttemptLinks,
        CmLink,
        StartingPair, //
    },
    failure::{
        ConnectStep,
        Failure,
        Violation, //
    },
    head::Head,
    session::{
        Attachment,
        Session,
        VolumeInfo, //
    },
    settings::{
        Offer,
        Settings, //
    },
    shape::QueueShape, //
};
use core::net::SocketAddr;
use hcablk_core::{
    crypto::Key,
    proto::{
        connect::Epoch,
        name::VolumeId,
        ADMIN_QUEUE,
        QUEUES_MAX, //
    },
    rdma::{
        cm::Id,
        pd::ProtectionDomain, //
    },
    system::{
        self,
        Deadline, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The first connection of a session, whose address is resolved, with the attempt that it belongs
/// to and the key that proves this host's identity.
pub(super) struct First {
    attempt: Arc<AttemptLinks>,
    link: Arc<CmLink>,
    id: Arc<Id>,
    pair: Option<Key>,
}

impl First {
    /// Returns whether both sides prove their identity.
    pub(super) fn is_proven(&self) -> bool {
        self.pair.is_some()
    }
}

impl Device {
    /// Connects a path and makes its disk. If `lost` is given, fails for any other volume.
    pub(super) fn connect(
        self: &Arc<Self>,
        path: &Path,
        settings: Settings,
        mut epoch: Epoch,
        lost: Option<VolumeId>,
        deadline: Deadline,
    ) -> Result<Active, Failure> {
        let attempt = path.begin_attempt()?;
        let times = (Deadline::new(u32::MAX), deadline);
        let mut offer = settings.first_offer();
        loop {
            let by = (path, attempt.clone());
            match self.connect_by(by, (settings, offer), epoch, lost, times) {
                Err((_, Some(next))) if !deadline.has_passed() => {
                    offer = next;
                    let next = self.identities.next_epoch();
                    epoch = next.map_err(|e| Failure::Setup("a session", e))?;
                }
                // No time is left for the next offer. The refusal of this one says nothing about
                // the volume.
                Err((_, Some(_))) => return Err(Failure::Timeout(ConnectStep::Response)),
                result => return result.map_err(|(failure, _)| failure),
            }
        }
    }

    /// Does the work of [`Self::connect`] with an offer of versions. `begun`: when the first offer
    /// was made. On failure also returns the offer to make next.
    fn connect_by(
        self: &Arc<Self>,
        (path, attempt): (&Path, Arc<AttemptLinks>),
        offered: (Settings, Offer),
        epoch: Epoch,
        lost: Option<VolumeId>,
        (begun, deadline): (Deadline, Deadline),
    ) -> Result<Active, (Failure, Option<Offer>)> {
        let (settings, _) = offered;
        let (attachment, first, head) = self
            .begin_session((path, attempt), offered, epoch, None, deadline)
            .map_err(|failure| (failure, None))?;
        let session = attachment.session();
        let deadlines = (deadline, deadline);
        let result = Self::bring_up(&attachment, first, deadlines, lost).and_then(|volume| {
            path.set_usual_ms(begun.elapsed_ms());
            attachment.admit();
            // Adding the disk waits for the partition scan. A session that is shown can be ended by
            // force meanwhile.
            self.show_session(path.number(), Some(&attachment));
            let first = (path.number(), epoch, session.origin(&volume)?);
            let (disk, lost_writes, limits) = session
                .queues()
                .and_then(|queues| {
                    head.with_first(first, (&attachment, &queues), settings.policy, || {
                        let (disk, lost_writes, limits) = self.add_disk(session, &head, &volume)?;
                        disk.set_reservations(DiskReservations::new(self.clone(), head.clone())?);
                        match session.failure() {
                            Some(failure) => Err(failure.errno()),
                            None => Ok((disk, lost_writes, limits)),
                        }
                    })
                })
                .map_err(|e| Failure::Setup("the disk", e))?;
            // The session may have been lost before the disk had it.
            if !session.is_live() {
                head.set_unfenced(path.number(), epoch);
            }
            // Not earlier: the partition scan would wait for a path, and this code for the scan.
            head.queue_if_no_path(self.is_to_reconnect(&settings, &volume));
            Ok((disk, lost_writes, limits, volume))
        });
        match result {
            Ok((disk, lost_writes, limits, volume)) => {
                let settings = *session.settings();
                let mut sessions = no_sessions();
                if let Some(place) = sessions.get_mut(usize::from(path.number())) {
                    *place = Some(attachment);
                }
                Ok(Active {
                    head,
                    sessions,
                    disk,
                    lost_writes,
                    limits,
                    generation: None,
                    volume,
                    settings,
                })
            }
            Err(failure) => {
                // The failure of the session is the cause; report it rather than its consequence.
                let failure = session.failure().unwrap_or(failure);
                let next = session.next_offer(failure);
                session.finish();
                self.show_session(path.number(), None);
                Err((failure, next))
            }
        }
    }

    /// Makes a session of `path` without queue pairs for `attempt`, to which the disk of `head`, or
    /// a new one, belongs, and resolves the target's address.
    pub(super) fn begin_session(
        self: &Arc<Self>,
        (path, attempt): (&Path, Arc<AttemptLinks>),
        (settings, offer): (Settings, Offer),
        epoch: Epoch,
        head: Option<Arc<Head>>,
        deadline: Deadline,
    ) -> Result<(Arc<Attachment>, First, Arc<Head>), Failure> {
        let ip = settings.address.ok_or(Failure::Unset("address"))?;
        settings.volume.ok_or(Failure::Unset("volume"))?;
        settings.host.ok_or(Failure::Unset("host_id"))?;
        let pair = self.pair_key(settings.insecure)?;
        let address = SocketAddr::new(ip, settings.port);

        let (link, id) = attempt.connection()?;
        link.resolve(&id, &address, deadline)?;
        let device = |e| Failure::Setup("a protection domain", e);
        let attributes = id.attributes().map_err(device)?;
        let mut shape = QueueShape::fit(attributes, settings.depth, settings.max_io_kib << 10)?;
        if let Some(head) = &head {
            shape = head.shape_on(shape).ok_or(Failure::Device(
                "its limits are smaller than those of the device with which the disk was created",
            ))?;
        }
        shape.fit_write_bounce(attributes, settings.eager_write.max(settings.small_write));
        // iWARP has no RDMA WRITE that notifies the peer of its completion.
        if !id.is_iwarp() {
            shape.fit_read_bounce(attributes, settings.small_read);
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
        let named = (self.identity.on_path(path.number()), epoch);
        let on = (&**self, path.workqueues().clone());
        let shape = (shape, head.dispatch().hw_queues() as u8);
        let attachment = Session::new(on, named, (settings, offer), shape, pd)
            .and_then(|session| session.attach_disk((self.clone(), head.clone()), named))
            .map_err(|e| Failure::Setup("a session", e))?;
        let first = First {
            attempt,
            link,
            id,
            pair,
        };
        Ok((attachment, first, head))
    }

    /// Connects the queue pairs of a session before the second deadline; the first deadline limits
    /// the wait for the target's first response. If `lost` is given, fails for any other volume.
    pub(super) fn bring_up(
        disk: &Arc<Attachment>,
        first: First,
        (response, deadline): (Deadline, Deadline),
        lost: Option<VolumeId>,
    ) -> Result<VolumeInfo, Failure> {
        let session = disk.session();
        let (address, request) = session
            .connection_request(ADMIN_QUEUE, false)
            .ok_or(Failure::Unset("address"))?;
        // The admin queue pair begins the session at the target; the others join it.
        let First {
            attempt,
            link,
            id,
            pair,
        } = first;
        let one = StartingPair::new(link, id, request);
        let reply = match pair {
            None => one.bring_up_admin(session, response),
            Some(pair) => one.prove(session, pair, &address, &attempt, (response, deadline)),
        }?;
        session.begin(&reply)?;
        let volume = disk.attach(&reply, deadline)?;
        let expected = session.settings().expect_wwid;
        if expected.is_some() && volume.wwid != expected {
            return Err(Failure::OtherVolume);
        }
        if lost.is_some() && volume.wwid != lost {
            return Err(Failure::Exchanged);
        }
        let limits = disk.watch(&volume, &reply, deadline)?;
        let count = session.queue_count();
        let queues = connect::bring_up(session, &attempt, count, &address, &request, deadline)?;
        for (queue, reply) in queues.iter() {
            if !disk.agrees(reply) {
                return Err(Failure::Protocol(Violation::new(
                    "its queues disagree about the volume",
                    None,
                )));
            }
            queue
                .go_live(reply)
                .map_err(|e| Failure::Setup("a queue pair", e))?;
        }
        let volume = VolumeInfo { limits, ..volume };
        disk.set_volume(volume);
        session.go_live()?;
        session.report_fall_back();
        Ok(volume)
    }
}

/// Returns the settings with the number of queues that this machine gets.
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
