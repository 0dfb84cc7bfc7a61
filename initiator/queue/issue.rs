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
        Answer,
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
        let extent = Extent {
            offset: view.sector() << 9,
            length: view.bytes(),
        };
        let landing = match (&self.landing, direction) {
            (Some(landing), Some(Direction::FromDevice)) => {
                landing.remote(tag.index, extent.length)
            }
            _ => None,
        };
        data.lands = landing.is_some();
        let mut chain = Chain::new();
        let mut register = None;
        let remote = match (direction, landing) {
            (None, _) => None,
            (Some(_), Some(remote)) => Some((remote, Answer::Immediate)),
            (Some(direction), None) => {
                let cookie = tag.to_immediate();
                match data.list.map(view, direction, cookie) {
                    Ok(()) => {}
                    // The IOMMU or bounce buffers are short; it will be tried again.
                    Err(e) if e == ENOMEM => return Err(Rejected::new(request, Status::Resource)),
                    Err(_) => return Err(Rejected::new(request, Status::IoErr)),
                }
                let Ok((wr, remote)) = data.list.register() else {
                    return Err(Rejected::new(request, Status::IoErr));
                };
                let wr = register.insert(wr);
                wr.name(WorkId::new(kind::REGISTER, tag.index.into()));
                chain.push(wr);
                let answer = if self.remote_invalidate {
                    Answer::Invalidating
                } else {
                    Answer::Response
                };
                Some((remote, answer))
            }
        };
        let op = match remote {
            None => message::Op::Flush,
            Some((remote, answer)) => {
                let remote = Remote {
                    address: remote.address,
                    key: remote.key,
                    answer,
                };
                if view.op() == Op::Write {
                    message::Op::Write {
                        extent,
                        remote,
                        fua: view.fua(),
                    }
                } else {
                    message::Op::Read(extent, remote)
                }
            }
        };
        let message = message::Request { tag, op }.encode();
        let Ok(slice) = self.outgoing.write(tag.index.into(), &message) else {
            return Err(Self::unissued(request, &self.tags, Status::IoErr));
        };
        let entries = [Entry::new(slice)];
        let mut wr = Send::new(&entries);
        wr.solicited();
        let used = chain.len() + 1;
        // Only what was registered has to be invalidated.
        let slots = if used == 1 { 1 } else { SLOTS_PER_REQUEST };

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
        if used > 1 {
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
