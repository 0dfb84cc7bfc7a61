// SPDX-License-Identifier: GPL-2.0

//! How a queue pair comes up: what to do about a connection request.
//!
//! The connection manager's thread only copies the request; everything else
//! happens on a workqueue for this alone, so that many queue pairs can come up at
//! the same time, and sessions can end meanwhile. A request that has to wait for what is left of
//! an earlier session does so as long as its initiator does, at most.

use self::{
    identify::{
        proven,
        Peer,
        Seal, //
    },
    refusal::Refusal, //
};
use super::{
    admission::{
        decide,
        Decision, //
    },
    port::Port,
    registry::{
        DriveWaiter,
        Pending,
        Registry, //
    },
    volume::Volume, //
};
use crate::{
    io::Fault,
    session::{
        attachment::Attachment,
        end_reason::EndReason,
        Session, //
    },
};
use hcablk_core::{
    proto::{
        auth::Asked,
        connect::{
            Reason,
            Reject,
            Request,
            REQUEST_LEN, //
        },
    },
    rdma::{
        cm::{
            self,
            Id,
            Incoming, //
        },
        pd::ProtectionDomain, //
    },
    report::broken::keep,
    sync::{
        defer::without_io,
        new_irq_lock,
        IrqLock, //
    },
    system::{
        errno,
        may_print,
        Lines, //
    },
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

mod accept;
mod identify;
mod refusal;
mod sizing;

/// Hears when a connection goes down.
#[pin_data]
struct Link {
    #[pin]
    state: IrqLock<LinkState>,
}

struct LinkState {
    /// And the number of the queue pair.
    session: Option<(Arc<Session>, u8)>,
    lost: Option<Fault>,
}

impl Link {
    /// Returns whether the initiator does not wait any more.
    fn is_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// Ends `session` when the connection is lost, which is its queue pair `queue`, or at once if
    /// it was.
    fn attach(&self, session: &Arc<Session>, queue: u8) {
        let lost = {
            let mut state = self.state.lock();
            state.session = Some((session.clone(), queue));
            state.lost
        };
        if let Some(fault) = lost {
            session.end_by(queue, fault);
        }
    }
}

impl cm::Handler for Link {
    fn event(&self, event: cm::Event<'_>) {
        let fault = match event {
            cm::Event::AddressResolved
            | cm::Event::RouteResolved { .. }
            | cm::Event::Granted { .. }
            | cm::Event::Established { .. } => return,
            cm::Event::Rejected { .. } | cm::Event::StaleConnection => {
                Fault::Unconnected(errno::econnrefused())
            }
            cm::Event::Failed(e) => Fault::Unconnected(e),
            cm::Event::Disconnected => Fault::Disconnected,
            cm::Event::DeviceRemoval => Fault::DeviceRemoved,
        };
        let session = {
            let mut state = self.state.lock();
            state.lost = Some(fault);
            state.session.clone()
        };
        if let Some((session, queue)) = session {
            session.end_by(queue, fault);
        }
    }
}

/// A connection request that waits for its turn.
#[pin_data]
pub(crate) struct Connect {
    registry: Arc<Registry>,
    port: Arc<Port>,
    private: [u8; REQUEST_LEN],
    private_len: usize,
    peer_reads: u8,
    peer: Peer,
    _pending: Pending,
    #[pin]
    claimed: Mutex<Option<(Arc<Link>, Arc<Id>)>>,
    #[pin]
    work: Work<Connect>,
}

impl_has_work! {
    impl HasWork<Self> for Connect { self.work }
}

/// Takes a request out of the connection manager's hands. Short, and must not
/// wait.
pub(crate) fn begin(
    registry: &Arc<Registry>,
    port: &Arc<Port>,
    incoming: &mut Incoming<'_>,
) -> Result {
    let pending = registry.wait_in_line()?;
    let link = Arc::pin_init(
        pin_init!(Link {
            state <- new_irq_lock!(LinkState {
                session: None,
                lost: None,
            }, "hcablk_link"),
        }),
        GFP_KERNEL,
    )?;
    let mut private = [0; REQUEST_LEN];
    let private_len = incoming.private().len().min(REQUEST_LEN);
    for (to, from) in private.iter_mut().zip(incoming.private()) {
        *to = *from;
    }
    let peer_reads = incoming.peer_responder_resources();
    let peer = Peer {
        ends: incoming.ends(),
        qp: incoming.peer_qp(),
    };
    // The identifier is claimed last: once it is ours it must not be dropped in
    // the connection manager's thread.
    let connect = Arc::pin_init(
        pin_init!(Connect {
            registry: registry.clone(),
            port: port.clone(),
            private,
            private_len,
            peer_reads,
            peer,
            _pending: pending,
            claimed <- new_mutex!(None),
            work <- new_work!("hcablk_target::Connect"),
        }),
        GFP_KERNEL,
    )?;
    let id = incoming.claim(link.clone())?;
    *connect.claimed.lock() = Some((link, id));
    // It was never queued, so it is not queued twice.
    if let Err(connect) = registry.connect_work().enqueue(connect) {
        keep(connect, "a connection request was queued already");
    }
    Ok(())
}

const WITHDRAWN: Refusal = Refusal::new(
    Reason::Withdrawn,
    "the volume was just withdrawn, or its drive has no size",
);

/// Sessions that a host may have on one volume, each with its buffers. One for
/// each of its configured devices is usual.
const SESSIONS_PER_HOST: usize = 16;

/// How long a request waits for the end of an older session: as long as an initiator may wait for
/// an answer, in milliseconds.
const WAIT_MS: u32 = 600_000;
/// How often it is looked whether the initiator still does, in milliseconds.
const LOOK_MS: u32 = 500;

impl Connect {
    fn carry_out(&self) {
        let Some((link, id)) = self.claimed.lock().take() else {
            return;
        };
        // Of an initiator that makes the next attempt already nothing is to wait for what is made
        // here.
        if link.is_lost() {
            return id.detach();
        }
        let private = self.private.get(..self.private_len).unwrap_or(&[]);
        let identified = match Asked::decode(private) {
            Ok(asked) => self.identify(asked, &id),
            Err(reason @ Reason::Version) => Err((
                None,
                Refusal::new(reason, "no version of the protocol in common"),
            )),
            Err(reason) => Err((None, Refusal::new(reason, "the request makes no sense"))),
        };
        let (request, refusal, seal) = match identified {
            Ok(Some((request, seal))) => match self.grant(&request, seal.as_ref(), &link, &id) {
                Ok(()) => return,
                Err(refusal) => (Some(request), refusal, seal),
            },
            // It was challenged, or told an entry.
            Ok(None) => return id.detach(),
            Err((request, refusal)) => (request, refusal, None),
        };
        identify::reject(&id, &Reject::new(refusal.reason()), seal.as_ref());
        match request {
            // Whoever is refused may try again at once.
            _ if !may_print(Lines::Refusals) => {}
            Some(request) => pr_warn!(
                "refused {} for volume {}: {refusal}\n",
                request.host,
                request.volume.as_str()
            ),
            None => pr_warn!("refused a connection: {refusal}\n"),
        }
        // No event may come back to an identifier that is given up here.
        id.detach();
    }

    /// Returns the volume of the session that the queue pair belongs to, which is a new one for an
    /// admin queue pair.
    fn find_attachment(
        &self,
        request: &Request,
        seal: Option<&Seal>,
        link: &Link,
        id: &Arc<Id>,
    ) -> Result<(Arc<Attachment>, Arc<Volume>), Refusal> {
        loop {
            let (view, found) = self.registry.view(request, proven(seal));
            match (decide(request, &view), found.volume, found.attachment) {
                (_, Some(volume), _) if seal.is_some_and(|seal| seal.is_for_other(&volume)) => {
                    return Err(Refusal::new(
                        Reason::NotProven,
                        "the volume is not the one that it has proven itself for",
                    ))
                }
                (Decision::Begin, Some(volume), _) => {
                    if let Some(attachment) = self.begin_session(request, seal, id, &volume)? {
                        return Ok((attachment, volume));
                    }
                }
                (Decision::Supersede, Some(volume), _) => {
                    let _waits = self.wait_for_drive(request, Some(&volume))?;
                    // From now on the others are refused, whatever comes of this one.
                    self.registry.supersede(&volume, request, proven(seal));
                    self.wait_for_other_instances(request, link)?;
                }
                // By names alone nobody joins a session that was begun by a proof.
                (Decision::Join | Decision::ReplaceQueue, _, Some(attachment))
                    if attachment.session().handle() != seal.map(|seal| seal.proof.handle()) =>
                {
                    return Err(Refusal::new(
                        Reason::NoSession,
                        "it has not the key of its session",
                    ))
                }
                (Decision::Join | Decision::ReplaceQueue, _, Some(attachment))
                    if !attachment.session().pd().same_device(id) =>
                {
                    return Err(Refusal::new(
                        Reason::NoSession,
                        "it came over another device than its session",
                    ))
                }
                (Decision::Join, Some(volume), Some(attachment)) => {
                    return Ok((attachment, volume))
                }
                (Decision::ReplaceQueue, volume, Some(attachment)) => {
                    let _waits = self.wait_for_drive(request, volume.as_ref())?;
                    if !attachment.session().replace_queue(request.queue) {
                        return Err(Refusal::new(
                            Reason::NoResources,
                            "another queue pair of its session is being replaced",
                        ));
                    }
                }
                (Decision::Replace, volume, Some(old)) => {
                    let _waits = self.wait_for_drive(request, volume.as_ref())?;
                    // Its initiator came back: nothing of the old epoch may
                    // reach the drive after anything of the new one.
                    old.end(EndReason::Replaced);
                    Self::wait_for(&old, link)?;
                }
                (Decision::Refuse(reason), ..) if view.volume.is_some_and(|v| v.unproven) => {
                    let why = "it does not prove who it is, which the volume demands of it";
                    return Err(Refusal::new(reason, why));
                }
                (Decision::Refuse(reason), ..) => return Err(Refusal::not_admitted(reason)),
                _ => return Err(Refusal::NO_MEMORY),
            }
        }
    }

    /// Counts the request among those that wait for the drive of `volume`, of which each host and
    /// each drive may have some.
    fn wait_for_drive(
        &self,
        request: &Request,
        volume: Option<&Arc<Volume>>,
    ) -> Result<DriveWaiter<'_>, Refusal> {
        let file = |volume: &Arc<Volume>| volume.with_backing(|backing| backing.file().id());
        let drive = volume.and_then(file);
        self.registry
            .wait_for_drive(request.host, drive)
            .map_err(|_| Refusal::CROWD)
    }

    /// Waits until nothing is left of the sessions of the host's other instances on the volume that
    /// end, as [`Self::wait_for`].
    fn wait_for_other_instances(&self, request: &Request, link: &Link) -> Result<(), Refusal> {
        let other = |attachment: &Attachment| attachment.is_of_other_instance(request);
        while let Some(attachment) = self.registry.ending_attachment(other) {
            Self::wait_for(&attachment, link)?;
        }
        Ok(())
    }

    /// Waits until nothing is left of an older session, as long as its initiator waits for us.
    fn wait_for(old: &Attachment, link: &Link) -> Result<(), Refusal> {
        for _ in 0..WAIT_MS / LOOK_MS {
            let ended = old.has_ended_within(LOOK_MS);
            if link.is_lost() {
                return Err(Refusal::new(
                    Reason::StaleEpoch,
                    "it has not waited for the end of its older session",
                ));
            }
            if ended {
                return Ok(());
            }
        }
        Err(Refusal::new(
            Reason::StaleEpoch,
            "the drive has not finished what it had begun for its older session",
        ))
    }

    /// Makes the session and lists it; `None` if there are sessions of another instance of its host
    /// by then: that is to be decided about again.
    fn begin_session(
        &self,
        request: &Request,
        seal: Option<&Seal>,
        id: &Arc<Id>,
        volume: &Arc<Volume>,
    ) -> Result<Option<Arc<Attachment>>, Refusal> {
        // Before anything is made; what counts is looked at when it is listed.
        if self.registry.attachments_of(request.host, volume) >= SESSIONS_PER_HOST {
            return Err(Refusal::TOO_MANY);
        }
        let pd = ProtectionDomain::new(id).map_err(|_| Refusal::NO_MEMORY)?;
        let exported = volume.export().ok_or(WITHDRAWN)?;
        let proof = seal.map(|seal| seal.proof.clone());
        let memory = self.port.memory();
        let write_errors = exported
            .records
            .begin(request, &exported.backing)
            .map_err(Refusal::of_session)?;
        let session = Session::new(&self.registry, &exported, memory, request, proof, pd)
            .map_err(|_| Refusal::NO_MEMORY)?;
        let attachment = Attachment::new(&session, volume.clone(), exported, write_errors, request)
            .map_err(|_| {
                session.end_by(request.queue, Fault::Refused("out of memory"));
                Refusal::NO_MEMORY
            })?;
        let listed = self
            .registry
            .add_attachment(&attachment, volume, request, SESSIONS_PER_HOST);
        // Whoever withdraws the volume or forbids the host ends the sessions
        // that are listed: look again now that this one is.
        let (now, _) = self.registry.admission(volume, request, proven(seal));
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
        match listed {
            // The volume was withdrawn, or the host forbidden or evicted: that is found then.
            Ok(()) if !allowed => Ok(None),
            Ok(()) => Err(WITHDRAWN),
            Err(EBUSY | ENODEV) => Ok(None),
            Err(EEXIST) => Err(Refusal::new(Reason::StaleEpoch, "its session is in use")),
            Err(EMFILE) => Err(Refusal::TOO_MANY),
            Err(e) if e == errno::estale() => Err(Refusal::new(
                Reason::StaleEpoch,
                "it was fenced, or comes after a newer epoch of its disk",
            )),
            Err(_) => Err(Refusal::NO_MEMORY),
        }
    }
}

impl WorkItem for Connect {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.carry_out());
    }
}
