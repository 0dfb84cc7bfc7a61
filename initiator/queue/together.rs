// SPDX-License-Identifier: GPL-2.0

//! Requests that share a message: those of a plug that bring no data with them.
//!
//! ```text
//!           join()                      join()                   full, or ring()
//!  (none) ──────────► Open, 1 request ──────────► Open, several ────────────────► (none)
//! ```
//!
//! Each request is in the message buffer of its tag, as if it were alone; the message
//! gathers these, and the first says how many more there are. It is made when no more fit
//! or the doorbell is rung, whichever comes first. What registers the memory of its
//! requests waits in the backlog, in front of it.
//!
//! A buffer may be used again when its request was answered: the target has the whole
//! message then.
//!
//! The work request of the message is the only one whose slots are accounted for: the
//! registrations' come with it, and each request has reserved one slot, of which all but
//! one are given back. As long as the message is open everything else that is accounted for is
//! signaled, so that no completion speaks for what is behind it.

use super::{
    kind,
    Queue,
    SendState, //
};
use crate::shape::TOGETHER;
use hcablk_core::{
    proto::message::{
        MORE_OFFSET,
        REQUEST_LEN, //
    },
    rdma::{
        backlog::CanWait,
        space::SendSpace,
        wr::{
            Chain,
            Entry,
            Send,
            WorkId,
            WorkRequest, //
        },
    },
};
use kernel::prelude::*;

/// See the module.
pub(super) struct Together {
    entries: [Entry; TOGETHER],
    count: usize,
    /// How many may share.
    most: usize,
    /// Tag of the first.
    first: u16,
    /// Registrations that wait.
    registrations: u32,
}

impl Together {
    pub(super) const fn new() -> Self {
        Self {
            entries: [Entry::EMPTY; TOGETHER],
            count: 0,
            most: 1,
            first: 0,
            registrations: 0,
        }
    }

    /// So many requests may share a message; at least one is in it.
    pub(super) fn allow(&mut self, most: usize) {
        self.most = most.clamp(1, TOGETHER);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Queue {
    /// Puts a request into the message that is open, or opens one; it is the `last` for now.
    #[inline]
    pub(super) fn join(
        &self,
        send: &mut SendState,
        tag: u16,
        request: Entry,
        register: Option<&mut impl CanWait>,
        last: bool,
    ) -> Result {
        if let Some(wr) = register {
            if send.backlog.is_full() {
                self.ring(send, &Chain::new())?;
            }
            send.backlog.push(wr).then_some(()).ok_or(EIO)?;
            send.together.registrations += 1;
        }
        let together = &mut send.together;
        if together.count == 0 {
            together.first = tag;
        }
        if let Some(entry) = together.entries.get_mut(together.count) {
            *entry = request;
            together.count += 1;
        }
        if last {
            self.ring(send, &Chain::new())
        } else if together.count >= together.most {
            self.seal(send)
        } else {
            Ok(())
        }
    }

    /// Puts the message that is open behind what waits for the doorbell.
    pub(super) fn seal(&self, send: &mut SendState) -> Result {
        let count = core::mem::take(&mut send.together.count);
        let used = 1 + core::mem::take(&mut send.together.registrations);
        if send.backlog.is_full() {
            self.post(send, &Chain::new())?;
        }
        let SendState {
            space,
            backlog,
            together,
            ..
        } = send;
        let more = count.saturating_sub(1);
        if more != 0 {
            self.outgoing
                .set(together.first.into(), REQUEST_LEN, MORE_OFFSET, more as u8)?;
            space.release(more as u32);
            self.sent.joined.add(more as u64);
        }
        let entries = together.entries.get(..count).unwrap_or(&[]);
        let mut wr = self.message(space, entries, together.first, used);
        backlog.push(&mut wr).then_some(()).ok_or(EIO)
    }

    /// The work request of a message, named by its first request's tag; `used` slots are
    /// its own and those of the registrations in front of it.
    #[inline]
    pub(super) fn message<'a>(
        &self,
        space: &mut SendSpace,
        entries: &'a [Entry],
        first: u16,
        used: u32,
    ) -> Send<'a> {
        self.sent.sends.bump();
        let mut wr = Send::new(entries);
        wr.solicited();
        let id = WorkId::new(kind::SEND, first.into());
        match space.post(used) {
            Some(freed) => wr.signal(id.freeing(freed)),
            None => wr.name(id),
        }
        wr
    }
}
