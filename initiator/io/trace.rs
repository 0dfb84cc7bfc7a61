// SPDX-License-Identifier: GPL-2.0

//! Describes this queue and its requests to tracepoints.

use super::queue::Queue;
use hcablk_core::{
    blkdev::{
        Op,
        RequestRef, //
    },
    proto::message::{
        self,
        Tag, //
    },
    report::trace::{
        self,
        Change,
        ConnectionState, //
        DataPath,
        Kind,
    },
};

impl Queue {
    /// Describes a request for trace events, without its data path.
    #[cold]
    pub(super) fn about(&self, request: RequestRef<'_>) -> trace::TracedRequest {
        trace::TracedRequest {
            session: self.session_id.0,
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
            way: DataPath::None,
            number: 0,
            offset: match request.op() {
                Op::Flush => 0,
                _ => request.sector() << 9,
            },
            bytes: request.bytes(),
            status: 0,
            memory: trace::Memory::None,
        }
    }

    /// Describes, for trace events, a request that is being sent. `number` is that of an eager
    /// write, otherwise 0.
    #[cold]
    pub(super) fn about_sent(
        &self,
        tag: Tag,
        op: &message::Op,
        number: u16,
    ) -> trace::TracedRequest {
        trace::TracedRequest {
            number,
            ..trace::TracedRequest::from_op(self.session_id.0, self.index, tag, Some(op))
        }
    }

    /// Traces that the queue pair has entered `state`.
    pub(super) fn trace_state(&self, state: ConnectionState) {
        trace::initiator::queue(|| Change {
            session: self.session_id.0,
            epoch: self.epoch.0,
            queue: Some(self.index),
            state,
            error: self.session.errno(),
        });
    }
}
