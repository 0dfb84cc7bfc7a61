// SPDX-License-Identifier: GPL-2.0

//! Keep-alives of a queue pair: whether its connection still works, and what was left over. Whether
//! the target is there is the matter of the session's [admin queue pair](crate::admin).
//!
//! The request for nothing is here, too, by which a queue hears something before it has to write,
//! if its target fetches no data: the eager ring is open after the first answer. It has the tag
//! behind those of the block layer, and the message buffer of that number. Like other requests it
//! has the I/O timeout: it may have taken the last credit, so that no request is ever sent whose
//! own timeout would end the wait. Then the queue pair is replaced.

use super::{
    kind,
    Queue,
    SendState, //
};
use crate::failure::Failure;
use hcablk_core::sync::atomic::{
    Acquire,
    Release, //
};
use hcablk_core::{
    logic::session_state::KEEP_ALIVE_PERIOD_MS, //
    proto::message::{
        self,
        Op,
        Response,
        Tag, //
    },
    rdma::wr::{
        Chain,
        Rdma,
        Send,
        Sge,
        WorkId,
        WorkRequest, //
    },
};
use kernel::prelude::*;

/// The request for nothing. The completion handler and the keep-alive timer change it, both under
/// the send lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nop {
    Nothing,
    /// So many keep-alives ago.
    Asked(u32),
}

impl Queue {
    /// Makes sure that the connection still works: the target's HCA must acknowledge an
    /// empty write, or the connection breaks. Does nothing while an earlier
    /// keep-alive is under way. Process context.
    pub(crate) fn send_keep_alive(&self) {
        if self.polled {
            // Perhaps nobody does: answers and errors must be found all the same.
            self.pair.cq().settle();
        }
        let mut send = self.send.lock();
        if let Nop::Asked(periods) = &mut send.nop {
            *periods += 1;
        }
        if self.live.load(Acquire) && self.is_unanswered(&send) {
            drop(send);
            return self.owner.clone().queue_timed_out(self, self.depth);
        }
        if !self.live.load(Acquire)
            || self.keep_alive_pending.load(Acquire)
            || !send.space.reserve(1, || self.freed())
        {
            return;
        }
        self.keep_alive_pending.store(true, Release);
        let mut keep_alive = Rdma::empty_write();
        let slots = send.space.post_signaled(1);
        keep_alive.signal(WorkId::new(kind::KEEP_ALIVE, 0).freeing(slots));
        let mut chain = Chain::new();
        chain.push(&mut keep_alive);
        let posted = self.ring(&mut send, &chain);
        drop(send);
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
        // Its end has to be reported, as well as what was left over.
        self.pair.cq().kick();
    }

    /// Posts the request for nothing. Fails with `EIO` if no credit is left, and as posting does. A
    /// send queue slot was reserved.
    pub(super) fn post_nop(&self, send: &mut SendState) -> Result {
        let request = message::Request {
            tag: Tag {
                index: self.depth,
                generation: 0,
            },
            op: Op::Nop,
            quiet: false,
        };
        let slice = self.outgoing.write(self.depth.into(), &request.encode())?;
        if !send.credits.take() {
            return Err(EIO);
        }
        send.nop = Nop::Asked(0);
        let sges = [Sge::new(slice)];
        let mut wr = Send::new(&sges);
        wr.solicited();
        let slots = send.space.post_signaled(1);
        wr.signal(WorkId::new(kind::SEND, 0).freeing(slots));
        let mut chain = Chain::new();
        chain.push(&mut wr);
        self.ring(send, &chain)
    }

    /// Returns whether the request for nothing was not answered in time. No other timeout covers
    /// it.
    fn is_unanswered(&self, send: &SendState) -> bool {
        let periods = self.settings.io_timeout_s * 1000 / KEEP_ALIVE_PERIOD_MS;
        matches!(send.nop, Nop::Asked(n) if n > periods)
    }

    /// Handles the answer to the request for nothing. Returns `false` if there was none, or if it
    /// is no such answer.
    pub(super) fn nop_answered(send: &mut SendState, response: Response, depth: u16) -> bool {
        let tag = response.tag;
        let asked = matches!(send.nop, Nop::Asked(_)) && tag.index == depth && tag.generation == 0;
        if asked {
            send.nop = Nop::Nothing;
        }
        asked
    }
}
