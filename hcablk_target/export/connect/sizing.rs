// SPDX-License-Identifier: GPL-2.0

//! Computes the sizes of a queue pair, and the memory charge of its session.

use super::{
    Connect,
    Refusal, //
};
use crate::{
    admin::Admin,
    drive::backing::Backing,
    export::volume::CHUNK_KIB,
    io::{
        split::Split,
        Queue,
        QueueOptions,
        QueueShape, //
    },
    memory::{
        layout,
        Client,
        Denied,
        Needs, //
    },
    session::{
        attachment::Attachment,
        Session, //
    },
};
use hcablk_core::{
    proto::{
        connect::{
            ConnectRequest, //
            Reason,
        },
        TRANSFER_USUAL, //
    },
    rdma::{
        cm::Id,
        device::Attributes, //
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

/// The properties that decide the sizes of a queue pair, besides the bytes of its data.
struct Frame<'a> {
    request: &'a ConnectRequest,
    attributes: Attributes,
    credits: u16,
    options: QueueOptions,
    split: Split,
}

impl Frame<'_> {
    fn queues(&self) -> usize {
        self.request.queues.max(1).into()
    }

    /// Returns the sizes for requests of up to `largest` bytes, with `data` bytes for buffers and
    /// the eager ring.
    fn shape(&self, largest: u32, data: usize) -> Result<QueueShape, Refusal> {
        QueueShape::new(
            self.attributes,
            self.credits,
            data,
            largest,
            self.options,
            self.split,
        )
        .map_err(|lacking| Refusal::new(Reason::NoResources, lacking))
    }
}

pub(super) const ENDED: Refusal = Refusal::new(Reason::NoSession, "its session ended meanwhile");

/// The properties of the served volumes that decide the sizes of queue pairs.
pub(super) struct Served {
    writes: bool,
    grants: bool,
    shares: bool,
    split: Split,
}

impl Served {
    /// Returns the properties of the volume of a session with one volume.
    pub(super) fn from_volume(attachment: &Attachment, backing: &Backing) -> Self {
        Self {
            writes: !attachment.geometry().read_only,
            grants: backing.tolerates_change(),
            // Peer memory belongs to a queue's own buffers.
            shares: !backing.wants_peers(),
            split: backing.split(),
        }
    }

    /// Returns the properties for a session to which any volumes may be attached that can share it.
    pub(super) fn any_volumes() -> Self {
        Self {
            writes: true,
            grants: true,
            shares: true,
            split: Split::new(CHUNK_KIB << 10, 0, 0),
        }
    }
}

/// A queue pair needs a volume: its completions are handled on the volume's workqueue.
pub(super) const BARE: Refusal =
    Refusal::new(Reason::NoSession, "no volume is attached to its session");

impl Connect {
    /// Returns the properties that decide the sizes of the session's queue pairs.
    fn frame<'a>(
        &self,
        session: &Session,
        served: Served,
        request: &'a ConnectRequest,
        id: &Id,
    ) -> Frame<'a> {
        let credits = match self.port.limits().queue_credits {
            0 => request.depth,
            limit => limit.min(request.depth),
        };
        let options = QueueOptions {
            sinks: id.is_iwarp() || crate::force_mr(),
            writes: served.writes,
            grants: served.grants,
            no_read: !crate::rdma_read(),
            shares: served.shares,
        };
        Frame {
            request,
            attributes: session.pd().attributes(),
            credits,
            options,
            split: served.split,
        }
    }

    /// Charges a new session for all its queue pairs, with the properties `served`, and creates its
    /// admin queue pair.
    pub(super) fn add_admin(
        &self,
        session: &Arc<Session>,
        served: Served,
        request: &ConnectRequest,
        id: &Arc<Id>,
    ) -> Result<Arc<Admin>, Refusal> {
        self.begin_client(session, &self.frame(session, served, request, id))?;
        let client = session.client().ok_or(ENDED)?;
        session.make_admin(id, client).map_err(|e| match e {
            EIO => ENDED,
            _ => Refusal::NO_MEMORY,
        })
    }

    pub(super) fn add_queue(
        &self,
        attachment: &Attachment,
        request: &ConnectRequest,
        id: &Arc<Id>,
    ) -> Result<Arc<Queue>, Refusal> {
        let session = attachment.session();
        let backing = attachment.backing().ok_or(ENDED)?;
        let mut served = match session.capacity() {
            // A session of version 3 was charged before its volume was known: for at least as much.
            1 => Served::from_volume(attachment, &backing),
            _ => Served::any_volumes(),
        };
        // The reply of such a session does not say that the volume is read-only, and without RDMA
        // READ an initiator then needs a ring.
        served.writes |= session.is_of_host() && !crate::rdma_read();
        let frame = self.frame(session, served, request, id);
        let client = session.client().ok_or(ENDED)?;
        let shape = frame.shape(session.largest(), client.queue_bytes())?;
        let charge = client.charge(shape.reserved()).map_err(Refusal::denied)?;
        let queue = session
            .make_queue(
                attachment,
                request.queue,
                id,
                backing,
                shape,
                (&client, charge),
            )
            .map_err(|e| match e {
                EIO => ENDED,
                _ => Refusal::NO_MEMORY,
            })?;
        session.add_queue(&queue, attachment).map_err(|_| ENDED)?;
        Ok(queue)
    }

    /// Decides the largest request of the session, and charges the session for all its queue pairs.
    fn begin_client(&self, session: &Session, frame: &Frame<'_>) -> Result<(), Refusal> {
        let asked = frame.request.largest;
        let (mut largest, mut admitted) = self.admit(session, frame, asked)?;
        let lacks = matches!(admitted, Err(Denied::Limit(_)));
        if lacks && largest > TRANSFER_USUAL {
            // Smaller requests are better than none.
            (largest, admitted) = self.admit(session, frame, TRANSFER_USUAL)?;
        }
        let client = admitted.map_err(Refusal::denied)?;
        session.set_largest(largest);
        session.set_client(client);
        // Rate-limited: any peer can cause it repeatedly by connecting.
        if largest >= asked || !may_print(Lines::Sizes) {
            return Ok(());
        }
        if lacks {
            pr_info!(
                "{}: no memory for requests larger than {} KiB; the initiator asked for {} KiB\n",
                session.label(),
                largest >> 10,
                asked >> 10
            );
        } else {
            pr_info!(
                "{}: requests are limited to {} KiB instead of {} KiB: the RDMA device or buffer_mib allows no more for {} queue pairs\n",
                session.label(),
                largest >> 10,
                asked >> 10,
                frame.queues()
            );
        }
        Ok(())
    }

    /// Requests the memory of a session whose initiator asks for requests of up to `asked` bytes.
    /// Returns the largest request possible, and the result of the memory account.
    fn admit(
        &self,
        session: &Session,
        frame: &Frame<'_>,
        asked: u32,
    ) -> Result<(u32, Result<Arc<Client>, Denied>), Refusal> {
        let set = self.port.limits().buffer_mib << 20;
        let data = layout::data(set, frame.queues(), asked.max(TRANSFER_USUAL) as usize);
        let largest = QueueShape::largest(frame.attributes, data, frame.options, asked);
        let shape = frame.shape(largest, data)?;
        let needs = Needs {
            queues: frame.queues() as u64,
            reserved: shape.reserved(),
            admin: Admin::bytes(),
            wish: shape.wish(),
            data,
        };
        let memory = self.port.memory();
        Ok((
            largest,
            memory.admit(session.pd(), session.claimant(), needs),
        ))
    }
}
