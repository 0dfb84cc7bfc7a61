// SPDX-License-Identifier: GPL-2.0

//! Handles connection requests: decides about them, and establishes their queue pairs.
//!
//! The connection manager's thread only copies the request. Everything else happens on a separate
//! workqueue, so that many queue pairs can be established at the same time, and sessions can end
//! meanwhile. A request that waits for the end of an earlier session stops waiting when its
//! initiator gives up.

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
    attach::{
        wait_for,
        WITHDRAWN, //
    },
    port::Port,
    registry::{
        Pending,
        Registry, //
    },
    volume::Volume, //
};
use crate::{
    claimant::Claimant,
    io::Fault,
    session::{
        attachment::Attachment,
        end_reason::EndReason,
        Session, //
    },
};
use hcablk_core::{
    proto::{
        auth::RequestForm,
        connect::{
            ConnectRequest,
            Reason,
            Reject,
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
        IrqLock,
        WorkQueue, //
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
pub(super) mod refusal;
mod sizing;

/// Listens for the loss of a connection.
#[pin_data]
struct CmLink {
    #[pin]
    state: IrqLock<CmLinkState>,
}

struct CmLinkState {
    /// The session of the connection, and the index of its queue pair.
    session: Option<(Arc<Session>, u8)>,
    lost: Option<Fault>,
}

impl CmLink {
    /// Returns whether the initiator has stopped waiting.
    fn is_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// Ends `session` when the connection, which is that of its queue pair `queue`, is lost; at
    /// once if the connection is lost already.
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

impl cm::Handler for CmLink {
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

/// A connection request that waits on the workqueue.
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
    claimed: Mutex<Option<(Arc<CmLink>, Arc<Id>)>>,
    #[pin]
    work: Work<Connect>,
}

impl_has_work! {
    impl HasWork<Self> for Connect { self.work }
}

/// Accepts a request from the connection manager and queues it for processing. Must be short, and
/// must not wait.
pub(crate) fn begin(
    registry: &Arc<Registry>,
    port: &Arc<Port>,
    incoming: &mut Incoming<'_>,
) -> Result {
    let pending = registry.wait_in_line()?;
    let link = Arc::pin_init(
        pin_init!(CmLink {
            state <- new_irq_lock!(CmLinkState {
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
    // The identifier is claimed last: once it is ours, it must not be dropped in the connection
    // manager's thread.
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
    // A new object, so it cannot be queued already.
    if let Err(connect) = registry.connect_work().enqueue(connect) {
        keep(connect, "a connection request was queued already");
    }
    Ok(())
}

impl Connect {
    fn carry_out(&self) {
        let Some((link, id)) = self.claimed.lock().take() else {
            return;
        };
        // The initiator has moved on to its next attempt; do not hold it up.
        if link.is_lost() {
            return id.detach();
        }
        let private = self.private.get(..self.private_len).unwrap_or(&[]);
        let identified = match RequestForm::decode(private) {
            Ok(request) => self.identify(request, &id),
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
            // The reply was a challenge, or an entry of a list.
            Ok(None) => return id.detach(),
            Err((request, refusal)) => (request, refusal, None),
        };
        identify::reject(&id, &Reject::new(refusal.reason()), seal.as_ref());
        let lines = match request {
            Some(ConnectRequest { volume: None, .. }) => Lines::NamelessRefusals,
            _ => Lines::Refusals,
        };
        match request {
            // Rate-limited: a refused peer may try again at once.
            _ if !may_print(lines) => {}
            Some(ConnectRequest {
                host,
                volume: Some(volume),
                ..
            }) => pr_warn!("refused {host} for volume {volume}: {refusal}\n"),
            Some(ConnectRequest { host, .. }) => pr_warn!("refused {host}: {refusal}\n"),
            None => pr_warn!("refused a connection: {refusal}\n"),
        }
        // No event may arrive for an identifier that is dropped here.
        id.detach();
    }

    /// Returns the volume of the session that the queue pair belongs to. For an admin queue pair
    /// this begins a new session.
    fn find_attachment(
        &self,
        request: &ConnectRequest,
        seal: Option<&Seal>,
        link: &CmLink,
        id: &Arc<Id>,
    ) -> Result<(Arc<Attachment>, Arc<Volume>), Refusal> {
        let claimant = Claimant::new(request.host, seal.is_some());
        loop {
            let (view, found) = self.registry.view(request, proven(seal));
            match (decide(request, &view), found.volume, found.attachment) {
                (_, Some(volume), _) if seal.is_some_and(|seal| seal.is_for_other(&volume)) => {
                    return Err(Refusal::new(
                        Reason::NotProven,
                        "its proof was made for another volume of this name",
                    ))
                }
                (Decision::Begin, Some(volume), _) => {
                    self.end_bare(request, seal, link)?;
                    if let Some(attachment) = self.begin_session(request, seal, id, &volume)? {
                        return Ok((attachment, volume));
                    }
                }
                (Decision::Supersede, Some(volume), _) => {
                    let _waits = self.registry.wait_for_drive_of(claimant, Some(&volume))?;
                    // From now on the other instances are refused, even if this request fails.
                    self.registry.supersede(&volume, request, proven(seal));
                    self.registry
                        .wait_for_other_instances(request, || link.is_lost())?;
                }
                (Decision::Join | Decision::ReplaceQueue, _, Some(attachment))
                    if Self::is_foreign(attachment.session(), request, seal, id).is_some() =>
                {
                    let why = Self::is_foreign(attachment.session(), request, seal, id);
                    return Err(Refusal::new(Reason::NoSession, why.unwrap_or("")));
                }
                (Decision::Join, Some(volume), Some(attachment)) => {
                    return Ok((attachment, volume))
                }
                (Decision::ReplaceQueue, volume, Some(attachment)) => {
                    let _waits = self.registry.wait_for_drive_of(claimant, volume.as_ref())?;
                    if !attachment.session().replace_queue(request.queue) {
                        return Err(Refusal::new(
                            Reason::NoResources,
                            "another queue pair of its session is being replaced",
                        ));
                    }
                }
                (Decision::Replace, volume, Some(old)) => {
                    let _waits = self.registry.wait_for_drive_of(claimant, volume.as_ref())?;
                    // The initiator has reconnected: no request of the old epoch may reach the
                    // drive after one of the new epoch.
                    old.end(EndReason::Replaced);
                    wait_for(|ms| old.has_ended_within(ms), || link.is_lost())?;
                }
                (Decision::Refuse(reason), ..) if view.volume.is_some_and(|v| v.unproven) => {
                    let why = "it does not prove its identity, which the volume demands";
                    return Err(Refusal::new(reason, why));
                }
                (Decision::Refuse(reason), ..) => return Err(Refusal::not_admitted(reason)),
                _ => return Err(Refusal::NO_MEMORY),
            }
        }
    }

    /// Ends the session of an older epoch to which the initiator did not attach the volume, and
    /// waits until its memory is free: the initiator begins a session with the volume instead.
    fn end_bare(
        &self,
        request: &ConnectRequest,
        seal: Option<&Seal>,
        link: &CmLink,
    ) -> Result<(), Refusal> {
        let Some(old) = self.registry.bare_session(request, seal.is_some()) else {
            return Ok(());
        };
        old.end(EndReason::Replaced);
        wait_for(|ms| old.has_ended_within(ms), || link.is_lost())
    }

    /// Returns why the queue pair of `id` cannot belong to `session`, or `None` if it can.
    fn is_foreign(
        session: &Session,
        request: &ConnectRequest,
        seal: Option<&Seal>,
        id: &Id,
    ) -> Option<&'static str> {
        if session.is_of_host() != request.volume.is_none() {
            return Some("its session uses a different protocol version");
        }
        // Names alone do not suffice to join a session that was begun with a proof.
        if session.handle() != seal.map(|seal| seal.proof.handle()) {
            Some("it does not hold the key of its session")
        } else if !session.pd().same_device(id) {
            Some("it came over a different RDMA device than its session")
        } else {
            None
        }
    }

    /// Creates a session for `volume`, and lists its attachment. Returns `None` if the request must
    /// be decided again, since sessions of another instance of its host have begun meanwhile.
    fn begin_session(
        &self,
        request: &ConnectRequest,
        seal: Option<&Seal>,
        id: &Arc<Id>,
        volume: &Arc<Volume>,
    ) -> Result<Option<Arc<Attachment>>, Refusal> {
        self.registry.check_count(request, volume)?;
        let exported = volume.export().ok_or(WITHDRAWN)?;
        // This reference is held until a refused session has ended: the session's workqueue is
        // dropped with the volume.
        let _open = exported.backing.clone();
        let write_errors = exported
            .records
            .begin(request, &exported.backing)
            .map_err(Refusal::of_session)?;
        let session = self.make_session(request, seal, id, exported.ends.clone())?;
        let what = (exported, write_errors);
        let attached = self
            .registry
            .attach(&session, volume, what, request, proven(seal));
        if !matches!(attached, Ok(Some(_))) {
            session.end(EndReason::Second);
        }
        attached
    }

    /// Creates a session without queue pairs and volumes, whose teardown runs on `ends`.
    fn make_session(
        &self,
        request: &ConnectRequest,
        seal: Option<&Seal>,
        id: &Arc<Id>,
        ends: Arc<WorkQueue>,
    ) -> Result<Arc<Session>, Refusal> {
        let pd = ProtectionDomain::new(id).map_err(|_| Refusal::NO_MEMORY)?;
        let proof = seal.map(|seal| seal.proof.clone());
        let by = (proof, proven(seal));
        Session::new(&self.registry, self.port.memory(), request, by, pd, ends)
            .map_err(|_| Refusal::NO_MEMORY)
    }

    /// Returns the session of a queue pair that names no volume. For an admin queue pair this
    /// creates a new session.
    fn find_session(
        &self,
        request: &ConnectRequest,
        seal: Option<&Seal>,
        link: &CmLink,
        id: &Arc<Id>,
    ) -> Result<Arc<Session>, Refusal> {
        let claimant = Claimant::new(request.host, seal.is_some());
        loop {
            let (view, found) = self.registry.view_of_host(request, proven(seal));
            match (decide(request, &view), found) {
                (Decision::Begin, _) => {
                    if self
                        .registry
                        .has_many_sessions(request.host, seal.is_some())
                    {
                        return Err(Refusal::TOO_MANY);
                    }
                    let ends = self
                        .registry
                        .session_ends(claimant)
                        .map_err(|_| Refusal::NO_MEMORY)?;
                    let session = self.make_session(request, seal, id, ends)?;
                    match self.registry.add_session(&session) {
                        Ok(()) => return Ok(session),
                        Err(e) => {
                            session.end(EndReason::Second);
                            match e {
                                EEXIST => {}
                                EMFILE => return Err(Refusal::TOO_MANY),
                                _ => return Err(Refusal::NO_MEMORY),
                            }
                        }
                    }
                }
                (Decision::Join | Decision::ReplaceQueue, Some(session))
                    if Self::is_foreign(&session, request, seal, id).is_some() =>
                {
                    let why = Self::is_foreign(&session, request, seal, id);
                    return Err(Refusal::new(Reason::NoSession, why.unwrap_or("")));
                }
                (Decision::Join, Some(session)) => return Ok(session),
                (Decision::ReplaceQueue, Some(session)) => {
                    let volume = session.lone_attachment().map(|a| a.volume().clone());
                    let _waits = self.registry.wait_for_drive_of(claimant, volume.as_ref())?;
                    if !session.replace_queue(request.queue) {
                        return Err(Refusal::new(
                            Reason::NoResources,
                            "another queue pair of its session is being replaced",
                        ));
                    }
                }
                (Decision::Replace, Some(old)) => {
                    let volume = old.lone_attachment().map(|a| a.volume().clone());
                    let _waits = self.registry.wait_for_drive_of(claimant, volume.as_ref())?;
                    old.end(EndReason::Replaced);
                    wait_for(|ms| old.has_ended_within(ms), || link.is_lost())?;
                }
                (Decision::Refuse(Reason::Forbidden), _) => {
                    return Err(Refusal::new(
                        Reason::Forbidden,
                        "no volume is exported to it, or it does not prove its identity",
                    ))
                }
                (Decision::Refuse(reason), _) => return Err(Refusal::not_admitted(reason)),
                _ => return Err(Refusal::NO_MEMORY),
            }
        }
    }
}

impl WorkItem for Connect {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        without_io(|| this.carry_out());
    }
}
