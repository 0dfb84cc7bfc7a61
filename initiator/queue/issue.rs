// SPDX-License-Identifier: GPL-2.0

//! Issuing: from a request of the block layer to work requests.

use super::{
    kind,
    Driver,
    Phase,
    Queue,
    TagData, //
};
use crate::{
    failure::Failure,
    shape::SLOTS_PER_REQUEST, //
};
use hcablk_core::{
    blkdev::{
        Op,
        PerTag,
        Rejected,
        Request,
        Status, //
    },
    proto::message::{
        self,
        Extent,
        Remote,
        Tag, //
    },
    rdma::{
        device::Direction,
        wr::{
            Chain,
            Entry,
            Send,
            WorkId,
            WorkRequest, //
        },
    },
};
use kernel::{
    prelude::*,
    sync::atomic::Acquire, //
};

impl Queue {
    /// Gives a request to the target.
    pub(super) fn issue(&self, mut request: Request<Driver>) -> Result<(), Rejected<Driver>> {
        if !self.live.load(Acquire) {
            return Err(Rejected::new(request, Status::Transport));
        }
        let tag = Tag {
            index: request.tag(),
            generation: request.generation(),
        };
        let Some((view, data)) = self.tags.of(&mut request) else {
            return Err(Rejected::new(request, Status::IoErr));
        };
        let direction = match view.op() {
            Op::Read => Some(Direction::FromDevice),
            Op::Write => Some(Direction::ToDevice),
            Op::Flush => None,
            _ => return Err(Rejected::new(request, Status::NotSupported)),
        };
        if let Some(direction) = direction {
            let cookie = u32::from(tag.generation) << 16 | u32::from(tag.index);
            match data.list.map(view, direction, cookie) {
                Ok(()) => {}
                // The IOMMU or bounce buffers are short; it will be tried again.
                Err(e) if e == ENOMEM => return Err(Rejected::new(request, Status::Resource)),
                Err(_) => return Err(Rejected::new(request, Status::IoErr)),
            }
        }
        let extent = Extent {
            offset: view.sector() << 9,
            length: view.bytes(),
        };
        let (write, fua) = (view.op() == Op::Write, view.fua());
        let mut chain = Chain::new();
        let mut register = None;
        let op = if direction.is_none() {
            message::Op::Flush
        } else {
            let Ok((wr, remote)) = data.list.register() else {
                return Err(Rejected::new(request, Status::IoErr));
            };
            let wr = register.insert(wr);
            wr.name(WorkId::new(kind::REGISTER, tag.index.into()));
            chain.push(wr);
            let remote = Remote {
                address: remote.address,
                key: remote.key,
                invalidate: self.remote_invalidate,
            };
            if write {
                message::Op::Write {
                    extent,
                    remote,
                    fua,
                }
            } else {
                message::Op::Read(extent, remote)
            }
        };
        let message = message::Request { tag, op }.encode();
        let Ok(slice) = self.outgoing.write(tag.index.into(), &message) else {
            return Err(Self::unissued(request, &self.tags, Status::IoErr));
        };
        let entries = [Entry::new(slice)];
        let mut wr = Send::new(&entries);
        let used = chain.len() + 1;
        let slots = match direction {
            Some(_) => SLOTS_PER_REQUEST,
            None => 1,
        };

        let mut send = self.send.lock();
        if !send.reserve(slots) {
            self.sent.credit_waits.bump();
            drop(send);
            return Err(Self::unissued(request, &self.tags, Status::Resource));
        }
        let id = WorkId::new(kind::SEND, tag.index.into());
        match send.space.post(used) {
            Some(freed) => wr.signal(id.freeing(freed)),
            None => wr.name(id),
        }
        chain.push(&mut wr);
        data.phase = Phase::Sent;
        data.slots = slots - used;
        self.sent.sends.bump();
        if direction.is_some() {
            self.sent.registrations.bump();
            self.sent.rdma_bytes.add(extent.length.into());
        }
        let posted = self.pair.post(&chain);
        // Whoever answers takes the lock first, so that the request is there.
        request.park();
        drop(send);
        if posted.is_err() {
            // The request is ended when the queue pair is gone: some of the
            // work may have been posted.
            self.session.fail(Failure::Work(c"posting failed"));
        }
        Ok(())
    }

    /// Gives back a request of which nothing was posted.
    fn unissued(
        mut request: Request<Driver>,
        tags: &PerTag<Driver, TagData>,
        status: Status,
    ) -> Rejected<Driver> {
        if let Some((_, data)) = tags.of(&mut request) {
            data.list.invalidated();
            let _ = data.list.release();
        }
        Rejected::new(request, status)
    }
}
