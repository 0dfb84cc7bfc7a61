// SPDX-License-Identifier: GPL-2.0

//! Keep-alives, and following the volume's size.
//!
//! ```text
//!              keep-alive: SEND             answer, checked
//!  Nothing ──────────────────► Asked ──────────────────► Told(sectors)
//!     ▲                                                       │
//!     └─────────────────── the next tick takes it ────────────┘
//! ```
//!
//! Every keep-alive of the session's first queue pair is a question for the size, if
//! there is a credit for it. It has a tag of its own behind those of the block
//! layer, and the message buffer of that number. A question that is not
//! answered keeps the place, and keep-alives go on without one. A question has the I/O timeout, as
//! requests have: it may have taken the last credit, so that no request is ever sent whose own
//! timeout would end the wait. Then the queue pair is replaced. On iWARP the session ends: there
//! keep-alives prove nothing, for they complete when TCP has taken them.

use super::{
    kind,
    Queue,
    SendState, //
};
use crate::failure::Failure;
use hcablk_core::{
    logic::session_state::KEEP_ALIVE_PERIOD_MS, //
    proto::message::{
        self,
        Op,
        Response,
        Status,
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
use kernel::{
    prelude::*,
    sync::atomic::{
        Acquire,
        Release, //
    },
};

/// See the module's picture. The completion handler and the keep-alive timer change it,
/// both under the send lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Nothing,
    /// So many keep-alives ago.
    Asked(u32),
    Told(u64),
}

impl Queue {
    /// Makes sure that the target is still there: its HCA must acknowledge an
    /// empty write or a question for the volume's size, or the connection breaks. Does nothing while an earlier
    /// keep-alive is under way. Process context.
    pub(crate) fn send_keep_alive(&self) {
        if self.polled {
            // Perhaps nobody does: answers and errors must be found all the same.
            self.pair.cq().settle();
        }
        let mut send = self.send.lock();
        if let Size::Asked(periods) = &mut send.size {
            *periods += 1;
        }
        if self.live.load(Acquire) && self.is_unanswered(&send) {
            drop(send);
            if self.needs_rx {
                return self.end_session(Failure::RequestTimeout);
            }
            return self.owner.clone().queue_timed_out(self);
        }
        if !self.live.load(Acquire)
            || self.keep_alive_pending.load(Acquire)
            || !send.space.reserve(1, || self.freed())
        {
            return;
        }
        self.keep_alive_pending.store(true, Release);
        let asked = if self.index == 0 {
            self.post_size_request(&mut send)
        } else {
            None
        };
        let posted = asked.unwrap_or_else(|| {
            let mut keep_alive = Rdma::empty_write();
            let slots = send.space.post_signaled(1);
            keep_alive.signal(WorkId::new(kind::KEEP_ALIVE, 0).freeing(slots));
            let mut chain = Chain::new();
            chain.push(&mut keep_alive);
            self.ring(&mut send, &chain)
        });
        drop(send);
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
        // Its end has to be reported, as well as what was left over.
        self.pair.cq().kick();
    }

    /// Posts a request for the volume's size instead of a keep-alive. Returns `None` if one is
    /// outstanding or no credit is left. A send queue slot was reserved.
    pub(super) fn post_size_request(&self, send: &mut SendState) -> Option<Result> {
        if send.size != Size::Nothing {
            return None;
        }
        let request = message::Request {
            tag: Tag {
                index: self.depth,
                generation: 0,
            },
            op: Op::Size,
            quiet: false,
        };
        let slice = self
            .outgoing
            .write(self.depth.into(), &request.encode())
            .ok()?;
        if !send.credits.take() {
            return None;
        }
        send.size = Size::Asked(0);
        let sges = [Sge::new(slice)];
        let mut wr = Send::new(&sges);
        wr.solicited();
        let slots = send.space.post_signaled(1);
        wr.signal(WorkId::new(kind::KEEP_ALIVE, 0).freeing(slots));
        let mut chain = Chain::new();
        chain.push(&mut wr);
        Some(self.ring(send, &chain))
    }

    /// Returns whether the request for the size was not answered in time. No other timeout covers
    /// it.
    fn is_unanswered(&self, send: &SendState) -> bool {
        let periods = self.settings.io_timeout_s * 1000 / KEEP_ALIVE_PERIOD_MS;
        matches!(send.size, Size::Asked(n) if n > periods)
    }

    /// Handles the answer to a request for the size. Returns `false` if there was none, or if it is
    /// no such answer.
    pub(super) fn size_answered(&self, send: &mut SendState, response: &Response) -> bool {
        if !matches!(send.size, Size::Asked(_)) || response.tag.generation != 0 {
            return false;
        }
        send.size = match response.status {
            Status::Ok if response.sectors == 0 => return false,
            Status::Ok => Size::Told(response.sectors),
            // It cannot say; perhaps another time.
            _ => Size::Nothing,
        };
        true
    }

    /// Returns the size in sectors of 512 bytes, if the target has sent it since the last call.
    pub(crate) fn take_size(&self) -> Option<u64> {
        let mut send = self.send.lock();
        match send.size {
            Size::Told(sectors) => {
                send.size = Size::Nothing;
                Some(sectors)
            }
            _ => None,
        }
    }
}
