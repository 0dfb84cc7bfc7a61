// SPDX-License-Identifier: GPL-2.0

//! Requests without data: flushes, discards, writes of zeroes.

use super::{
    extent_of,
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
        Op,
        RequestRef,
        Status, //
    },
    proto::message::{
        self,
        Tag, //
    },
    rdma::wr::Sge,
    sglist::SegmentList,
};
use kernel::prelude::*;

/// A request without data.
pub(in crate::queue) struct NoData(message::Op);

impl NoData {
    /// Returns how the request goes; `None`: it has data, or there is no such operation.
    #[inline]
    pub(in crate::queue) fn plan(view: RequestRef<'_>) -> Option<Self> {
        Some(Self(match view.op() {
            Op::Flush => message::Op::Flush,
            Op::Discard => message::Op::Discard(extent_of(view)),
            Op::WriteZeroes => message::Op::WriteZeroes {
                extent: extent_of(view),
                keep: view.no_unmap(),
            },
            _ => return None,
        }))
    }
}

impl Way for NoData {
    /// The number of a flush; 0: it is none, or covers nothing.
    type Reserved = u64;
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
    fn reserve(&self, queue: &Queue, _: &mut SendState, _: Tag, _: u32) -> Result<u64, Infallible> {
        Ok(match self.0 {
            message::Op::Flush => queue.unflushed.begin_flush(),
            _ => 0,
        })
    }

    #[inline]
    fn transfer(number: &u64) -> Transfer {
        match *number {
            0 => Transfer::None,
            number => Transfer::Flush { number },
        }
    }

    #[inline]
    fn encode<'a>(
        &mut self,
        queue: &Queue,
        _list: &'a mut SegmentList,
        issued: Issued,
    ) -> Result<Sge> {
        queue.encode(issued, self.0)
    }

    fn op(&self) -> message::Op {
        self.0
    }

    #[inline]
    fn post(
        &self,
        queue: &Queue,
        send: &mut SendState,
        _: u64,
        message: Sge,
        issued: Issued,
    ) -> Result {
        queue.post_message(send, issued, message, None)
    }
}
