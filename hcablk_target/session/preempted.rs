// SPDX-License-Identifier: GPL-2.0

//! Sessions whose hosts were preempted: which are, and by what. All of it is called under the lock
//! of the lists.

use super::{
    end_reason::EndReason,
    Session, //
};
use crate::drive::reservations::Drive;
use hcablk_core::sync::atomic::Relaxed;
use kernel::sync::Arc;

impl Session {
    /// Returns whether requests of this session can reach `drive`. Takes no reference: whoever asks
    /// may not be the last to have one.
    pub(crate) fn is_on(&self, drive: &Arc<Drive>) -> bool {
        let backing = self.backing.lock();
        let own = backing.as_ref().and_then(|backing| backing.drive());
        own.is_some_and(|own| Arc::ptr_eq(own, drive))
    }

    /// Ends the session because the preemption `number` has ended the registration of its host.
    pub(crate) fn preempt(self: &Arc<Self>, number: u64) {
        // The first counts: later ones wait for what it has ended, too.
        if self.preempted.load(Relaxed) == 0 {
            self.preempted.store(number, Relaxed);
        }
        self.end(EndReason::Preempted);
    }

    /// Returns whether a preemption has ended it whose number is `last` or less.
    pub(crate) fn is_preempted_by(&self, last: u64) -> bool {
        (1..=last).contains(&self.preempted.load(Relaxed))
    }
}
