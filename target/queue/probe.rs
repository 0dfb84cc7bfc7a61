// SPDX-License-Identifier: GPL-2.0

//! Whether the initiator is still there.

use super::{
    kind,
    Queue, //
};
use crate::{
    end_reason::Fault,
    session::PROBE_PERIOD_MS, //
};
use hcablk_core::{
    rdma::wr::{
        Chain,
        Rdma,
        WorkId,
        WorkRequest, //
    },
    trace::{
        self,
        Change,
        State, //
    },
};
use kernel::sync::atomic::Relaxed;

/// Probes without a sign of the initiator after which it is taken for dead,
/// where nothing else tells: in that time it asks as often for the size.
const UNHEARD_MAX: u32 = 6;
/// Probes without a completion after which a queue pair with chunks under way is probed. An RDMA
/// READ that was not answered by then has been given up: that is 10 s, and its last repetition
/// comes after 7 (`ACK_TIMEOUT` and `RETRY_COUNT` of the core's `rdma/cm.rs`).
const QUIET_MIN: u32 = 2;

impl Queue {
    /// The connection was granted: from here on silence is watched.
    pub(crate) fn go_live(&self) {
        self.probed();
        self.comes_to(State::Live);
    }

    /// Tells of a state to who listens.
    pub(crate) fn comes_to(&self, state: State) {
        trace::target::queue(|| Change {
            session: self.session.id().0,
            epoch: self.session.epoch().0,
            queue: Some(self.index),
            state,
            error: 0,
        });
    }

    /// A probe is over.
    pub(super) fn probed(&self) {
        let mut work = self.work.lock();
        work.probing = false;
        self.heed(&work);
    }

    /// Makes sure that the initiator is still there, as the initiator does.
    ///
    /// A queue pair with transfers or answers under way is left out: they tell as much. And a
    /// probe must not meet an RDMA READ on soft-RoCE: with an empty write after it the responder
    /// there cannot repeat the answer to an RDMA READ (`read_reply()` of `rxe_resp.c` takes the
    /// length of the last request for this one's), and breaks the connection with a warning.
    /// Of chunks it is not known whether they are on the wire or with the drive: they count as
    /// the former until nothing has completed for [`QUIET_MIN`] probes, so that a drive that
    /// hangs does not hide an initiator that died meanwhile.
    ///
    /// On iWARP it completes when TCP has taken it. There the initiator has to
    /// ask for the size now and then, on its first queue pair.
    pub(crate) fn probe(&self) {
        if self.unproven && self.index == 0 && self.is_unheard() {
            return self.fail(Fault::Unheard(UNHEARD_MAX * PROBE_PERIOD_MS / 1000));
        }
        let moved = self.moved.xchg(false, Relaxed);
        {
            let mut work = self.work.lock();
            work.quiet = if moved {
                0
            } else {
                work.quiet.saturating_add(1)
            };
            let on_wire =
                !self.inflight.is_empty() || (!self.cut.is_empty() && work.quiet < QUIET_MIN);
            if on_wire {
                // Perhaps of those that have completed.
                drop(work);
                return self.pair.cq().kick();
            }
            if work.closing || work.probing || work.silent {
                return;
            }
            work.probing = true;
            self.heed(&work);
        }
        let mut probe = Rdma::probe();
        probe.signal(WorkId::new(kind::PROBE, 0));
        let mut chain = Chain::new();
        chain.push(&mut probe);
        self.outbox.rang(1);
        if self.pair.post(&chain).is_err() {
            self.unposted("a probe", None);
        }
        self.pair.cq().kick();
    }

    /// Whether the initiator is silent for too long, and does not wait for the
    /// drive. Called at every probe.
    fn is_unheard(&self) -> bool {
        let heard = self.heard.xchg(false, Relaxed);
        let on_wire = !self.inflight.is_empty() || !self.cut.is_empty();
        let mut work = self.work.lock();
        if heard || (!on_wire && work.idle.len() != work.made) {
            work.unheard = 0;
        } else {
            work.unheard += 1;
        }
        !work.closing && work.unheard > UNHEARD_MAX
    }
}
