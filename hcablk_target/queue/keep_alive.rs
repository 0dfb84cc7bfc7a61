// SPDX-License-Identifier: GPL-2.0

//! Keep-alives: finds out whether the connection still works, and has what was left over found. Whether the initiator is there
//! is the matter of the session's [admin queue pair](crate::admin).

use super::{
    kind,
    Queue, //
};
use hcablk_core::sync::atomic::Relaxed;
use hcablk_core::{
    rdma::wr::{
        Chain,
        Rdma,
        WorkId,
        WorkRequest, //
    },
    report::trace::{
        self,
        Change,
        State, //
    },
};
/// Keep-alive periods without a completion after which a queue pair with chunks under way gets
/// one. An RDMA
/// READ that was not answered by then has been given up: that is 10 s, and its last repetition
/// comes after 7 (`ACK_TIMEOUT` and `RETRY_COUNT` of the core's `rdma/cm.rs`).
const QUIET_MIN: u32 = 2;

impl Queue {
    /// Starts the keep-alive, after the connection was accepted.
    pub(crate) fn go_live(&self) {
        self.keep_alive_completed();
        self.comes_to(State::Live);
    }

    /// Tells of a state to who listens.
    pub(crate) fn comes_to(&self, state: State) {
        trace::target::queue(|| Change {
            session: self.session.0,
            epoch: self.epoch.0,
            queue: Some(self.index),
            state,
            error: 0,
        });
    }

    /// Handles the completion of a keep-alive.
    pub(super) fn keep_alive_completed(&self) {
        let mut work = self.work.lock();
        work.keep_alive_pending = false;
        self.update_notify(&work);
    }

    /// Sends a keep-alive, every [`KEEP_ALIVE_PERIOD_MS`](hcablk_core::logic::session_state::KEEP_ALIVE_PERIOD_MS). Process context.
    ///
    /// A queue pair with transfers or answers under way is left out: they tell as much. And a
    /// keep-alive must not meet an RDMA READ on soft-RoCE: with an empty write after it the responder
    /// there cannot repeat the answer to an RDMA READ (`read_reply()` of `rxe_resp.c` takes the
    /// length of the last request for this one's), and breaks the connection with a warning.
    /// Of chunks it is not known whether they are on the wire or with the drive: they count as
    /// the former until nothing has completed for [`QUIET_MIN`] keep-alives, so that a drive that
    /// hangs does not hide an initiator that died meanwhile.
    ///
    /// On iWARP it completes when TCP has taken it; there the session's admin queue pair alone tells.
    pub(crate) fn send_keep_alive(&self) {
        let moved = self.moved.xchg(false, Relaxed);
        {
            let mut work = self.work.lock();
            work.quiet = if moved {
                0
            } else {
                work.quiet.saturating_add(1)
            };
            let on_wire =
                !self.inflight.is_empty() || (!self.chunked.is_empty() && work.quiet < QUIET_MIN);
            if on_wire {
                // Perhaps of those that have completed.
                drop(work);
                return self.pair.cq().kick();
            }
            if work.closing || work.keep_alive_pending || work.silent {
                return;
            }
            work.keep_alive_pending = true;
            self.update_notify(&work);
        }
        let mut keep_alive = Rdma::empty_write();
        keep_alive.signal(WorkId::new(kind::KEEP_ALIVE, 0));
        let mut chain = Chain::new();
        chain.push(&mut keep_alive);
        self.batcher.rang(1);
        if self.pair.post(&chain).is_err() {
            self.unposted("a keep-alive", None);
        }
        self.pair.cq().kick();
    }
}
