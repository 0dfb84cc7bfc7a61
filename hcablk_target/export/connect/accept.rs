// SPDX-License-Identifier: GPL-2.0

//! Grants a connection request: creates its queue pair, and sends the reply.

use super::{
    identify::{
        proven,
        with_reply,
        Seal, //
    },
    sizing::{
        Served,
        BARE,
        ENDED, //
    },
    CmLink,
    Connect,
    Refusal, //
};
use crate::{
    admin::Admin,
    export::volume::Volume,
    io::Fault,
    session::{
        attachment::Attachment,
        Session, //
    },
};
use hcablk_core::{
    proto::{
        connect::{
            ConnectRequest, //
            Geometry,
            Reason,
            Reply,
        },
        ADMIN_DEPTH, //
    },
    rdma::cm::{
        Id,
        Parameters, //
    },
    system::{
        may_print,
        Lines, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Connect {
    pub(super) fn grant(
        &self,
        request: &ConnectRequest,
        seal: Option<&Seal>,
        link: &CmLink,
        id: &Arc<Id>,
    ) -> Result<(), Refusal> {
        let asked = (request, seal);
        if request.volume.is_none() {
            let session = self.find_session(request, seal, link, id)?;
            return match request.is_admin() {
                true => self.grant_host(asked, &session, link, id),
                false => {
                    let attachment = session.backing_volume().ok_or(BARE)?;
                    self.grant_queue(asked, &attachment, link, id)
                }
            };
        }
        let (attachment, volume) = self.find_attachment(request, seal, link, id)?;
        match request.is_admin() {
            true => self.grant_admin(asked, &attachment, &volume, link, id),
            false => self.grant_queue(asked, &attachment, link, id),
        }
    }

    /// Creates the admin queue pair of a new session of `volume`, and replies.
    fn grant_admin(
        &self,
        (request, seal): (&ConnectRequest, Option<&Seal>),
        attachment: &Arc<Attachment>,
        volume: &Volume,
        link: &CmLink,
        id: &Arc<Id>,
    ) -> Result<(), Refusal> {
        let session = attachment.session();
        let backing = attachment.backing().ok_or(ENDED)?;
        let served = Served::from_volume(attachment, &backing);
        drop(backing);
        let admin = self.make_admin(request, session, served, id)?;
        // Not earlier: a refused request must not change which instance of the host is the latest.
        let asked = (request, proven(seal));
        if !self.registry.enter(attachment, volume, asked) {
            session.end_by(request.queue, Fault::Refused(ENDED.why()));
            return Err(ENDED);
        }
        let geometry = Geometry {
            max_transfer: session.largest(),
            ..Self::reported_geometry(attachment)
        };
        let reply = Reply {
            id: volume.wwid(),
            instance: attachment.write_errors().instance(),
            ..Self::reply(request, geometry)
        };
        self.reply_admin((request, seal), reply, (session, &admin), link, id);
        Ok(())
    }

    /// Creates the admin queue pair of a new session without volumes, and replies.
    fn grant_host(
        &self,
        (request, seal): (&ConnectRequest, Option<&Seal>),
        session: &Arc<Session>,
        link: &CmLink,
        id: &Arc<Id>,
    ) -> Result<(), Refusal> {
        let admin = self.make_admin(request, session, Served::any_volumes(), id)?;
        let reply = Self::reply(request, Geometry::of_session(session.largest()));
        self.reply_admin((request, seal), reply, (session, &admin), link, id);
        Ok(())
    }

    fn make_admin(
        &self,
        request: &ConnectRequest,
        session: &Arc<Session>,
        served: Served,
        id: &Arc<Id>,
    ) -> Result<Arc<Admin>, Refusal> {
        self.add_admin(session, served, request, id)
            .inspect_err(|refusal| {
                session.end_by(request.queue, Fault::Refused(refusal.why()));
            })
    }

    /// Sends the reply that begins a session.
    fn reply_admin(
        &self,
        (request, seal): (&ConnectRequest, Option<&Seal>),
        reply: Reply,
        (session, admin): (&Arc<Session>, &Arc<Admin>),
        link: &CmLink,
        id: &Arc<Id>,
    ) {
        link.attach(session, request.queue);
        let reply = Reply {
            credits: ADMIN_DEPTH,
            tells_portals: true,
            tells_cache: true,
            tells_limits: true,
            ..reply
        };
        let parameters = Parameters {
            responder_resources: 0,
            initiator_depth: 0,
        };
        let accepted = with_reply(&reply, seal, admin.number(), |reply| {
            id.accept(parameters, reply)
        });
        if accepted.is_err() {
            // The initiator has disconnected; there is no one to refuse.
            session.end_by(request.queue, Fault::Unaccepted);
            return;
        }
        if admin.go_live().is_err() {
            session.end_by(request.queue, Fault::Refused("out of memory"));
        }
        Self::report_begin(request, session);
    }

    /// Returns the volume's geometry as replies report it, with the read-only flag that every reply
    /// of the session carries: whether the volume or its drive refused writes when the session
    /// began. Any context.
    fn reported_geometry(attachment: &Attachment) -> Geometry {
        Geometry {
            read_only: attachment.began_read_only(),
            ..*attachment.geometry()
        }
    }

    /// Returns the part that the replies to all queue pairs of a session have in common; it grants
    /// nothing.
    fn reply(request: &ConnectRequest, geometry: Geometry) -> Reply {
        Reply {
            version: request.version(),
            credits: 0,
            session: request.session,
            epoch: request.epoch,
            geometry,
            inline: 0,
            quiet: false,
            no_read: false,
            message_batches: false,
            tells_portals: false,
            tells_cache: false,
            tells_limits: false,
            grant: None,
            id: None,
            instance: None,
        }
    }

    /// Creates a queue pair of an existing session, and replies.
    fn grant_queue(
        &self,
        (request, seal): (&ConnectRequest, Option<&Seal>),
        attachment: &Attachment,
        link: &CmLink,
        id: &Arc<Id>,
    ) -> Result<(), Refusal> {
        let session = attachment.session();
        let queue = self
            .add_queue(attachment, request, id)
            .inspect_err(|refusal| {
                // A session cannot continue without a queue pair that it once had.
                if request.replace {
                    session.end_by(request.queue, Fault::Refused(refusal.why()));
                }
            })?;
        link.attach(session, request.queue);
        let reads = self
            .peer_reads
            .min(session.pd().attributes().max_qp_init_rd_atom);
        if reads == 0 && !queue.no_read() {
            let why = "one of the RDMA devices does not support RDMA READ";
            session.end_by(request.queue, Fault::Refused(why));
            return Err(Refusal::new(Reason::NoResources, why));
        }
        let parameters = Parameters {
            responder_resources: 0,
            initiator_depth: reads,
        };
        let largest = queue.shape().largest;
        let common = match session.is_of_host() {
            true => Self::reply(request, Geometry::of_session(largest)),
            false => {
                let geometry = Geometry {
                    max_transfer: largest,
                    ..Self::reported_geometry(attachment)
                };
                Reply {
                    id: attachment.wwid(),
                    instance: attachment.write_errors().instance(),
                    ..Self::reply(request, geometry)
                }
            }
        };
        let reply = Reply {
            credits: queue.shape().credits,
            inline: queue.inline_limit(),
            quiet: true,
            no_read: queue.no_read(),
            message_batches: queue.takes_batches(),
            grant: queue.grant(),
            ..common
        };
        let accepted = with_reply(&reply, seal, queue.number(), |reply| {
            id.accept(parameters, reply)
        });
        if accepted.is_err() {
            // The initiator has disconnected; there is no one to refuse.
            session.end_by(request.queue, Fault::Unaccepted);
            return Ok(());
        }
        queue.go_live();
        Self::report_begin(request, session);
        Ok(())
    }

    /// Logs that a session begins, or that one of its queue pairs was replaced; rate-limited, since
    /// a peer can cause it.
    #[cold]
    fn report_begin(request: &ConnectRequest, session: &Session) {
        let label = session.label();
        let (id, host) = (request.session.0, request.host);
        if !(request.is_admin() || request.replace) || !may_print(Lines::Begins) {
            return;
        }
        if request.replace {
            let queue = request.queue;
            pr_info!("{label}: session {id:016x} of {host} replaced queue {queue}\n");
        } else {
            let epoch = request.epoch.0;
            pr_info!("{label}: session {id:016x} of {host} begun, epoch {epoch}\n");
        }
    }
}
