// SPDX-License-Identifier: GPL-2.0

//! What tracepoints tell of this queue and of its requests.

use super::{
    Driver,
    Queue, //
};
use hcablk_core::{
    blkdev::{
        Op,
        Request, //
    },
    proto::message::{
        self,
        Tag, //
    },
    trace::{
        self,
        Change,
        Kind,
        State,
        Way, //
    },
};

impl Queue {
    /// What events tell of a request, of which the way is not settled or not of interest.
    #[cold]
    pub(super) fn about(&self, request: &Request<Driver>) -> trace::Request {
        trace::Request {
            session: self.session.id().0,
            queue: self.index,
            tag: Tag {
                index: request.tag(),
                generation: request.generation(),
            },
            kind: match request.op() {
                Op::Read => Kind::Read,
                Op::Write => Kind::Write,
                Op::Flush => Kind::Flush,
                Op::Discard => Kind::Discard,
                Op::WriteZeroes => Kind::WriteZeroes,
                Op::Other => Kind::Bad,
            },
            way: Way::None,
            number: 0,
            offset: match request.op() {
                Op::Flush => 0,
                _ => request.sector() << 9,
            },
            bytes: request.bytes(),
            status: 0,
        }
    }

    /// What is told of a request that is sent; `number`: of a granted write.
    #[cold]
    pub(super) fn about_sent(&self, tag: Tag, op: &message::Op, number: u16) -> trace::Request {
        trace::Request {
            number,
            ..trace::Request::of(self.session.id().0, self.index, tag, Some(op))
        }
    }

    /// The queue pair has come to `state`.
    pub(super) fn comes_to(&self, state: State) {
        trace::initiator::queue(|| Change {
            session: self.session.id().0,
            epoch: self.session.epoch().0,
            queue: Some(self.index),
            state,
            error: self.session.errno(),
        });
    }
}
