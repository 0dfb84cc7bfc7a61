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
use hcablk_core::{
    report::trace,
    sync::atomic::Relaxed, //
};
impl Queue {
    /// Handles a completion that is neither a message's nor the usual one of an answer.
    #[inline(never)]
    fn complete_other(&self, completion: &Completion) {
        let work = completion.work();
        let ok = completion.is_ok();
        if !ok {
            self.work_failed(completion);
        }
        match work.kind {
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
            kind::CHUNK_WRITTEN if ok => self.chunked.written(work.index),
            kind::KEEP_ALIVE => self.keep_alive_completed(),
            _ => {}
        }
    }
}

impl Handler for Queue {
    type Round = ();

    #[inline]
    fn complete(&self, (): &mut (), completion: &Completion) {
        let work = completion.work();
        self.moved.store(true, Relaxed);
        match work.kind {
            kind::RECEIVE if completion.is_ok() => self.receive(Received {
                buffer: work.index,
                length: completion.byte_len(),
                immediate: completion.immediate(),
                admitted: 0,
            }),
            kind::ANSWER if completion.is_ok() => self.answer_completed(work.index, true),
            _ => self.complete_other(completion),
        }
    }

    fn round_done(&self, (): &mut ()) {
        self.round_over();
    }

    fn cq_notify(&self) -> CqNotify {
        let asked = self.notify_all.load(Relaxed) || trace::wants_chunk_completions();
        if self.fetching.load(Relaxed) != 0 || asked || self.is_pressed() {
            CqNotify::Any
        } else {
            CqNotify::SolicitedOnly
        }
    }
}
