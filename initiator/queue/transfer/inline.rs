// SPDX-License-Identifier: GPL-2.0

//! Inline writes. A write of up to `small_write` bytes (the target's limit, and few segments) is
//! mapped for the HCA but not registered: its segments follow the message in one SEND. It ends
//! when it was answered *and* that SEND has completed
//! ([`wr_seq`](crate::queue::wr_seq)): until then the HCA may send the memory once more.

use super::{
    extent_of,
    unmapped,
    Issued,
    Transfer,
    Way, //
};
use crate::{
    queue::{
        wr_seq::WrSeq,
        Queue,
        SendState, //
    },
    shape::INLINE_SEGMENTS,
};
use core::convert::Infallible;
use hcablk_core::sync::atomic::Relaxed;
use hcablk_core::{
    blkdev::{
        RequestRef,
        Status, //
    },
    proto::message::{
        self,
        Extent,
        Tag, //
    },
    rdma::{
        device::Direction,
        wr::{
            Send,
            Sge, //
        },
    },
    sglist::SegmentList,
};
use kernel::prelude::*;

/// A write whose data goes with the request.
pub(in crate::queue) struct InlineWrite {
    extent: Extent,
    fua: bool,
}

impl InlineWrite {
    /// Returns how a write goes, `None` if it is too large, or in too many segments.
    #[inline]
    pub(in crate::queue) fn plan(queue: &Queue, view: RequestRef<'_>) -> Option<Self> {
        let fits = view.bytes() <= queue.inline_limit.load(Relaxed)
            && view.segments() <= queue.inline_segments;
        fits.then(|| Self {
            extent: extent_of(view),
            fua: view.fua(),
        })
    }
}

impl Way for InlineWrite {
    type Reserved = WrSeq;
    type Full = Infallible;
    type Encoded<'a> = (Sge, &'a mut SegmentList);

    #[inline]
    fn map(
        &mut self,
        _queue: &Queue,
        view: RequestRef<'_>,
        list: &mut SegmentList,
        _tag: Tag,
    ) -> Result<u32, Status> {
        list.map_local(view, Direction::ToDevice)
            .map_err(unmapped)?;
        Ok(1)
    }

    #[inline]
    fn reserve(
        &self,
        _queue: &Queue,
        send: &mut SendState,
        _tag: Tag,
        slots: u32,
    ) -> Result<WrSeq, Infallible> {
        Ok(send.next_seq(slots))
    }

    #[inline]
    fn transfer(wr_seq: &WrSeq) -> Transfer {
        Transfer::Inline { seq: wr_seq.seq }
    }

    #[inline]
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Self::Encoded<'a>> {
        Ok((queue.encode(issued, self.op())?, list))
    }

    #[inline(always)]
    fn op(&self) -> message::Op {
        let Self { extent, fua } = *self;
        message::Op::WriteInline { extent, fua }
    }

    #[inline]
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        wr_seq: WrSeq,
        (message, list): Self::Encoded<'_>,
        issued: Issued,
    ) -> Result {
        let mut sges = [Sge::EMPTY; INLINE_SEGMENTS + 1];
        sges[0] = message;
        let count = list.sges(&mut sges[1..]).ok_or(EINVAL)?;
        queue.sent.inline_writes.bump();
        queue.sent.sends.bump();
        queue.sent.rdma_bytes.add(self.extent.length.into());
        queue.post_or_queue(send, wr_seq, !issued.last, || {
            let mut wr = Send::new(sges.get(..=count).unwrap_or(&[]));
            wr.solicited();
            wr
        })
    }
}
