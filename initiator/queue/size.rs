// SPDX-License-Identifier: GPL-2.0

//! Following the volume's size.
//!
//! ```text
//!              probe: SEND             answer, checked
//!  Nothing ──────────────────► Asked ──────────────────► Told(sectors)
//!     ▲                                                       │
//!     └─────────────────── the next tick takes it ────────────┘
//! ```
//!
//! Every probe of the session's first queue pair is a question for the size, if
//! there is a credit for it. It has a tag of its own behind those of the block
//! layer, and the message buffer of that number. A question that is not
//! answered keeps the place, and probes go on without one.

use super::{
    kind,
    Queue,
    SendState, //
};
use hcablk_core::{
    proto::message::{
        self,
        Op,
        Response,
        Status,
        Tag, //
    },
    rdma::wr::{
        Chain,
        Entry,
        Send,
        WorkId,
        WorkRequest, //
    },
};
use kernel::prelude::*;

/// See the module's picture. The completion handler and the prober change it,
/// both under the send lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Nothing,
    Asked,
    Told(u64),
}

impl Queue {
    /// Posts a question instead of a probe; `None`: it is not the time for one.
    /// A slot was reserved.
    pub(super) fn ask_size(&self, send: &mut SendState) -> Option<Result> {
        if self.index != 0 || send.size != Size::Nothing {
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
        send.size = Size::Asked;
        let entries = [Entry::new(slice)];
        let mut wr = Send::new(&entries);
        wr.solicited();
        let slots = send.space.post_signaled(1);
        wr.signal(WorkId::new(kind::PROBE, 0).freeing(slots));
        let mut chain = Chain::new();
        chain.push(&mut wr);
        Some(self.ring(send, &chain))
    }

    /// The answer to a question; `false`: there was none, or it is no answer.
    pub(super) fn size_told(&self, send: &mut SendState, response: &Response) -> bool {
        if send.size != Size::Asked || response.tag.generation != 0 {
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

    /// The size in sectors of 512 bytes, if the target has told it since the
    /// last call.
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
