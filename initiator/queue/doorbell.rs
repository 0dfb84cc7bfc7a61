// SPDX-License-Identifier: GPL-2.0

//! Doorbells: how work requests are posted, at once or behind others that wait. Under the send
//! lock.

use super::{
    transfer::Issued,
    Queue,
    SendState, //
};
use crate::failure::Failure;
use hcablk_core::rdma::wr::{
    Chain,
    Register,
    Sge, //
};
use kernel::prelude::*;

impl Queue {
    /// Posts the `message` of a request in a SEND, with its REG_MR in front, or adds them to what
    /// waits.
    // What is known of `register` where it is called leaves less to do.
    #[inline(always)]
    pub(super) fn post_message(
        &self,
        send: &mut SendState,
        issued: Issued,
        message: Sge,
        register: Option<&mut Register<'_>>,
    ) -> Result {
        let (tag, last) = (issued.tag.index, issued.last);
        if !last || !send.batch.is_empty() {
            return self.push(send, tag, message, register, last);
        }
        let used = 1 + u32::from(register.is_some());
        let sges = [message];
        let mut wr = self.message(&mut send.space, &sges, tag, used);
        let mut chain = Chain::new();
        if let Some(register) = register {
            chain.push(register);
        }
        chain.push(&mut wr);
        self.ring_now(send, chain)
    }

    /// Posts `chain`, which is not empty, as [`Self::ring`] does: for requests that are issued,
    /// before which most often nothing waits.
    #[inline(always)]
    pub(super) fn ring_now(&self, send: &mut SendState, chain: Chain<'_>) -> Result {
        if send.batch.is_empty() && send.backlog.is_empty() {
            self.count_doorbell(chain.len().into());
            return self.pair.post(&chain);
        }
        self.ring(send, &chain.moved())
    }

    /// Posts what waits for its doorbell, and then `chain`. Everything that this
    /// queue pair is given goes this way, unless nothing waits, for the account of slots is in the
    /// order of posting.
    #[inline(never)]
    pub(super) fn ring(&self, send: &mut SendState, chain: &Chain<'_>) -> Result {
        if !send.batch.is_empty() {
            if let Err(e) = self.flush(send) {
                send.forget_waiting();
                return Err(e);
            }
        }
        self.post(send, chain)
    }

    /// Posts the backlog and then `chain`, as [`Self::ring`] does, without flushing the message
    /// batch.
    #[inline]
    pub(super) fn post(&self, send: &mut SendState, chain: &Chain<'_>) -> Result {
        let requests = send.backlog.len() as u64 + u64::from(chain.len());
        if requests != 0 {
            self.count_doorbell(requests);
        }
        send.signal_waiting();
        let posted = send.backlog.post(&self.pair, chain);
        if posted.is_err() {
            send.forget_waiting();
        }
        posted
    }

    /// Counts a doorbell for so many work requests.
    #[inline(always)]
    fn count_doorbell(&self, requests: u64) {
        self.sent.doorbells.bump();
        self.sent.work_requests.add(requests);
    }

    /// Fails the session if posting failed. The requests are ended when the queue pair is gone,
    /// since some of the work may have been posted.
    #[inline]
    pub(super) fn check(&self, posted: Result) {
        if posted.is_err() {
            self.fail(Failure::Work(c"posting failed"));
        }
    }

    /// Rings the doorbell for requests that others were to follow, but did not (`commit_rqs`).
    pub(super) fn commit(&self) {
        let mut send = self.send.lock();
        let posted = self.ring(&mut send, &Chain::new());
        let reap = send.batching.shall_reap();
        drop(send);
        self.check(posted);
        if reap {
            self.reap();
        }
    }
}
