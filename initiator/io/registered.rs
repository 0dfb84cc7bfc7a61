// SPDX-License-Identifier: GPL-2.0

//! Registered transfers: the request's own pages are registered for it alone, and the target
//! reaches them by RDMA READ or RDMA WRITE. The fallback for requests that no other data path
//! takes.

use super::{
    data_paths::{
        extent_of,
        unmapped,
        DataPath,
        IssuePath, //
        Issued,
    },
    queue::{
        kind,
        Queue, //
    },
    send_queue::SendState,
    user::QueueUser,
};
use crate::shape::SLOTS_PER_REQUEST;
use core::convert::Infallible;
use hcablk_core::{
    blkdev::{
        Op,
        RequestRef,
        Status, //
    },
    proto::message::{
        self,
        Extent,
        Remote,
        ResponseKind,
        Tag, //
    },
    rdma::{
        device::Direction,
        mr,
        wr::{
            Register,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
    sglist::SegmentList, //
};
use kernel::prelude::*;

/// Send queue slots that stay reserved after the REG_MR and the SEND, for a LOCAL_INV.
pub(super) const INVALIDATE_SLOTS: u32 = SLOTS_PER_REQUEST - 2;

/// Returns the address and key of a region in the form that messages carry.
#[inline]
pub(super) fn remote_for(remote: mr::RemoteAddress, response: ResponseKind) -> Remote {
    Remote {
        address: remote.address,
        key: remote.key,
        response,
    }
}

/// A read or write whose memory is registered for it.
pub(super) struct Registered {
    extent: Extent,
    write: bool,
    fua: bool,
    atomic: bool,
    /// Address and key of the registered memory.
    remote: Remote,
}

impl Registered {
    /// Returns the plan of a read or write.
    #[inline]
    pub(super) fn plan(view: RequestRef<'_>) -> Self {
        Self {
            extent: extent_of(view),
            write: view.op() == Op::Write,
            fua: view.fua(),
            atomic: view.atomic(),
            remote: Remote {
                address: 0,
                key: 0,
                response: ResponseKind::Message,
            },
        }
    }
}

impl IssuePath for Registered {
    type Reserved = ();
    type Full = Infallible;
    type Encoded<'a> = (Sge, Register<'a>);

    #[inline]
    fn map(
        &mut self,
        _queue: &Queue,
        view: RequestRef<'_>,
        list: &mut SegmentList,
        tag: Tag,
    ) -> Result<u32, Status> {
        let direction = match self.write {
            true => Direction::ToDevice,
            false => Direction::FromDevice,
        };
        list.map(view, direction, tag.to_immediate())
            .map_err(unmapped)?;
        Ok(SLOTS_PER_REQUEST)
    }

    #[inline]
    fn reserve(
        &self,
        _: (&Queue, &QueueUser),
        _: &mut SendState,
        _: Tag,
        _: u32,
    ) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline]
    fn data_path((): &()) -> DataPath {
        DataPath::Registered
    }

    #[inline]
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Self::Encoded<'a>> {
        let (mut register, remote) = list.register()?;
        register.name(WorkId::new(kind::REGISTER, issued.tag.index.into()));
        let response = match queue.remote_invalidate {
            true => ResponseKind::Invalidating,
            false => ResponseKind::Message,
        };
        self.remote = remote_for(remote, response);
        Ok((queue.encode(issued, self.op())?, register))
    }

    #[inline]
    fn op(&self) -> message::Op {
        let Self {
            extent,
            write,
            fua,
            atomic,
            remote,
        } = *self;
        match write {
            true => message::Op::Write {
                extent,
                remote,
                fua,
                atomic,
            },
            false => message::Op::Read(extent, remote),
        }
    }

    #[inline]
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        (): (),
        (message, mut register): Self::Encoded<'_>,
        issued: Issued,
    ) -> Result {
        queue.sent.registrations.bump();
        queue.sent.rdma_bytes.add(self.extent.length.into());
        queue.post_message(send, issued, message, Some(&mut register))
    }
}
