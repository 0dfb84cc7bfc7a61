// SPDX-License-Identifier: GPL-2.0

//! Completions: which work has completed, and who goes on with it.

use super::{
    kind,
    Queue,
    Received, //
};
use hcablk_core::rdma::cq::{
    Completion,
    CqNotify,
    Handler, //
};
use kernel::sync::atomic::Relaxed;

impl Handler for Queue {
    type Round = ();

    fn complete(&self, (): &mut (), completion: &Completion) {
        let work = completion.work();
        let ok = completion.is_ok();
        self.moved.store(true, Relaxed);
        if !ok {
            self.work_failed(completion);
        }
        match work.kind {
            kind::RECEIVE if ok => self.receive(Received {
                buffer: work.index,
                length: completion.byte_len(),
                immediate: completion.immediate(),
                admitted: 0,
            }),
            kind::ANSWER => self.answer_completed(work.index, ok),
            kind::FETCH => {
                self.fetching
                    .store(self.fetching.load(Relaxed) - 1, Relaxed);
                match (self.inflight.take(work.index), completion.success()) {
                    (Some(io), Some(proof)) => self.fetched(io, proof),
                    (Some(io), None) => self.reclaim(io),
                    (None, _) => {}
                }
            }
            kind::CHUNK => self.chunk_fetched(work.index),
            kind::KEEP_ALIVE => self.keep_alive_completed(),
            _ => {}
        }
    }

    fn round_done(&self, (): &mut ()) {
        self.round_over();
    }

    fn cq_notify(&self) -> CqNotify {
        if self.fetching.load(Relaxed) != 0 || self.notify_all.load(Relaxed) || self.is_pressed() {
            CqNotify::Any
        } else {
            CqNotify::SolicitedOnly
        }
    }
}
