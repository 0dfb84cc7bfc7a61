// SPDX-License-Identifier: GPL-2.0

//! The message batch: requests of one plug without inline data, which one SEND carries.
//!
//! ```text
//!           push()                     push()                   full, or ring()
//!  Empty ──────────► Open, 1 request ──────────► Open, several ────────────────► Empty
//! ```
//!
//! Each request is in the message buffer of its tag, as if it were alone. The SEND gathers these
//! buffers, and the first request says how many more there are. The batch is flushed, that is,
//! its SEND is made and added to the backlog, when it is full or when the doorbell is rung,
//! whichever comes first. The REG_MRs of its requests wait in the backlog in front of it.
//!
//! A buffer may be used again when its request was answered: the target has received the whole
//! message then.
//!
//! Only the SEND's send queue slots are accounted for: those of the REG_MRs are freed with it,
//! and each request has reserved one slot, of which all but one are released. While the batch is
//! open every other work request that is accounted for is signaled, so that no completion covers
//! one behind it.

use super::{
    kind,
    Queue,
    SendState, //
};
use crate::shape::BATCH_MAX;
use hcablk_core::{
    proto::message::{
        MORE_OFFSET,
        REQUEST_LEN, //
    },
    rdma::{
        space::SendSpace,
        wr::{
            Chain,
            Register,
            Send,
            Sge,
            WorkId,
            WorkRequest, //
        },
    },
};
use kernel::prelude::*;

/// The requests for which no SEND was made yet.
pub(super) struct MessageBatch {
    sges: [Sge; BATCH_MAX],
    count: usize,
    /// The most requests of one message.
    most: usize,
    /// Tag of the first.
    first: u16,
    /// REG_MRs of these requests, in the backlog.
    registrations: u32,
}

impl MessageBatch {
    pub(super) const fn new() -> Self {
        Self {
            sges: [Sge::EMPTY; BATCH_MAX],
            count: 0,
            most: 1,
            first: 0,
            registrations: 0,
        }
    }

    /// Sets the most requests of one message, at least 1.
    pub(super) fn set_limit(&mut self, most: usize) {
        self.most = most.clamp(1, BATCH_MAX);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Queue {
    /// Pushes a request to the message batch, and its REG_MR to the backlog; `last`: no other
    /// follows at once, so the doorbell is rung.
    #[inline(never)]
    pub(super) fn push(
        &self,
        send: &mut SendState,
        tag: u16,
        request: Sge,
        register: Option<&mut Register<'_>>,
        last: bool,
    ) -> Result {
        if let Some(wr) = register {
            if send.backlog.is_full() {
                self.ring(send, &Chain::new())?;
            }
            send.backlog.push(wr).then_some(()).ok_or(EIO)?;
            send.batch.registrations += 1;
        }
        let batch = &mut send.batch;
        if batch.count == 0 {
            batch.first = tag;
        }
        if let Some(sge) = batch.sges.get_mut(batch.count) {
            *sge = request;
            batch.count += 1;
        }
        if last {
            self.ring(send, &Chain::new())
        } else if batch.count >= batch.most {
            self.flush(send)
        } else {
            Ok(())
        }
    }

    /// Makes the SEND of the message batch, and adds it to the backlog.
    pub(super) fn flush(&self, send: &mut SendState) -> Result {
        let count = core::mem::take(&mut send.batch.count);
        let used = 1 + core::mem::take(&mut send.batch.registrations);
        if send.backlog.is_full() {
            self.post(send, &Chain::new())?;
        }
        let SendState {
            space,
            backlog,
            batch,
            ..
        } = send;
        let more = count.saturating_sub(1);
        if more != 0 {
            self.outgoing
                .set(batch.first.into(), REQUEST_LEN, MORE_OFFSET, more as u8)?;
            space.release(more as u32);
            self.sent.joined.add(more as u64);
        }
        let sges = batch.sges.get(..count).unwrap_or(&[]);
        let mut wr = self.message(space, sges, batch.first, used);
        backlog.push(&mut wr).then_some(()).ok_or(EIO)
    }

    /// Makes the SEND of a message, named by its first request's tag; `used`: the send queue slots
    /// of itself and of the REG_MRs in front of it.
    #[inline]
    pub(super) fn message<'a>(
        &self,
        space: &mut SendSpace,
        sges: &'a [Sge],
        first: u16,
        used: u32,
    ) -> Send<'a> {
        self.sent.sends.bump();
        let mut wr = Send::new(sges);
        wr.solicited();
        let id = WorkId::new(kind::SEND, first.into());
        match space.post(used) {
            Some(freed) => wr.signal(id.freeing(freed)),
            None => wr.name(id),
        }
        wr
    }
}
