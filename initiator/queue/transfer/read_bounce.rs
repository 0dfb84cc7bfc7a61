// SPDX-License-Identifier: GPL-2.0

//! Small reads. A read of up to `small_read` bytes is neither mapped nor registered: it goes out
//! as a SEND that names the read bounce slot of its tag. The target's answer is an RDMA WRITE to
//! that slot, whose immediate value is the response. The completion handler checks that such an
//! answer was asked for and has the request's length, and copies the data. Nothing is to be
//! invalidated, so the request ends at once.

use super::{
    extent_of,
    registered::remote_for,
    Issued,
    Transfer,
    Way, //
};
use crate::queue::{
    Queue,
    SendState, //
};
use core::convert::Infallible;
use hcablk_core::{
    blkdev::{
        RequestRef,
        Status, //
    },
    proto::message::{
        self,
        Answer,
        Extent,
        Tag, //
    },
    rdma::{
        mr::RemoteAddress,
        wr::Sge, //
    },
    sglist::SegmentList,
};
use kernel::prelude::*;

/// A read into the slot of its tag.
pub(in crate::queue) struct BounceRead {
    extent: Extent,
    remote: RemoteAddress,
}

impl BounceRead {
    /// Returns how a read goes, `None` if it has no slot.
    #[inline]
    pub(in crate::queue) fn plan(queue: &Queue, view: RequestRef<'_>) -> Option<Self> {
        let extent = extent_of(view);
        let slots = queue.read_bounce.as_ref()?;
        let remote = slots.remote(view.tag(), extent.length)?;
        Some(Self { extent, remote })
    }
}

impl Way for BounceRead {
    type Reserved = ();
    type Full = Infallible;
    type Encoded<'a> = Sge;

    #[inline]
    fn map(
        &mut self,
        _queue: &Queue,
        _view: RequestRef<'_>,
        _list: &mut SegmentList,
        _tag: Tag,
    ) -> Result<u32, Status> {
        Ok(1)
    }

    #[inline]
    fn reserve(&self, _: &Queue, _: &mut SendState, _: Tag, _: u32) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline]
    fn transfer((): &()) -> Transfer {
        Transfer::ReadBounce
    }

    #[inline]
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        _list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Sge> {
        queue.encode(issued, self.op())
    }

    #[inline(always)]
    fn op(&self) -> message::Op {
        let Self { extent, remote } = *self;
        message::Op::Read(extent, remote_for(remote, Answer::Immediate))
    }

    #[inline]
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        (): (),
        message: Sge,
        issued: Issued,
    ) -> Result {
        queue.post_message(send, issued, message, None)
    }
}

impl Queue {
    /// Copies the data of an answered read out of its slot. Returns with what status it ends.
    #[inline]
    pub(in crate::queue) fn copy_bounced(&self, view: RequestRef<'_>, status: Status) -> Status {
        let (Status::Ok, Some(slots)) = (status, &self.read_bounce) else {
            return status;
        };
        match slots.copy_to_request(view.tag(), view) {
            Ok(()) => {
                self.done.copied_bytes.add(view.bytes().into());
                Status::Ok
            }
            // Not reached: what does not fit has no slot.
            Err(_) => Status::IoErr,
        }
    }
}
