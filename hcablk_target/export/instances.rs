// SPDX-License-Identifier: GPL-2.0

//! Tracks the newest instance of a host, whose sessions supersede those of the others: a pure state
//! machine. Uses nothing but `core` and the wire format: its tests run on the host.
//!
//! An instance that was never seen becomes the newest. A former newest instance never becomes the
//! newest again. So a second machine with the same id, or an old copy of a machine, is refused and
//! cannot take turns with the newest one. The last [`FORMER_MAX`] former instances are remembered;
//! a forgotten one counts as new.
//!
//! Hosts prove their identity with challenges, which are numbered. An attacker may hold back the
//! proof of an instance that was never seen, and send it after a newer instance has connected. Its
//! challenge is then older than the last one of the newest instance, so it is refused.

use crate::proto::connect::HostInstance;

/// The number of former instances of a host that are remembered.
pub(crate) const FORMER_MAX: usize = 16;

/// The instances of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instances {
    newest: Option<HostInstance>,
    former: [Option<HostInstance>; FORMER_MAX],
    /// The index in `former` for the next former instance.
    next: usize,
    /// The number of the last challenge with which the newest instance was proven.
    proven: u64,
}

impl Instances {
    /// Returns the state of a host of which no instance is known.
    pub(crate) const fn new() -> Self {
        Self {
            newest: None,
            former: [None; FORMER_MAX],
            next: 0,
            proven: 0,
        }
    }

    /// Returns whether `instance` is a former newest instance.
    pub(crate) fn is_former(&self, instance: HostInstance) -> bool {
        self.newest != Some(instance) && self.former.contains(&Some(instance))
    }

    /// Returns whether `instance` is older than the newest one. `number` is that of the challenge
    /// with which `instance` was proven, `None` without a proof.
    pub(crate) fn is_past(&self, instance: HostInstance, number: Option<u64>) -> bool {
        let is_older = |number| number < self.proven;
        self.is_former(instance) || self.newest != Some(instance) && number.is_some_and(is_older)
    }

    /// Makes `instance` the newest, for which [`Self::is_past`] has returned `false`.
    pub(crate) fn enter(&mut self, instance: HostInstance, number: Option<u64>) {
        self.proven = self.proven.max(number.unwrap_or(0));
        if self.newest == Some(instance) {
            return;
        }
        let former = self.newest.replace(instance);
        if let (Some(place), Some(_)) = (self.former.get_mut(self.next), former) {
            *place = former;
            self.next = (self.next + 1) % FORMER_MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(n: u64) -> HostInstance {
        HostInstance::from_random(n << 16)
    }

    #[test]
    fn a_former_instance_never_comes_back() {
        let mut host = Instances::new();
        for n in 1..=5 {
            assert!(!host.is_former(instance(n)));
            host.enter(instance(n), None);
            assert!(!host.is_former(instance(n)));
            for old in 1..n {
                assert!(host.is_former(instance(old)));
            }
        }
    }

    #[test]
    fn the_newest_enters_as_often_as_it_likes() {
        let mut host = Instances::new();
        for _ in 0..3 * FORMER_MAX {
            host.enter(instance(1), None);
        }
        host.enter(instance(2), None);
        assert!(host.is_former(instance(1)));
        assert!(!host.is_former(instance(2)));
    }

    #[test]
    fn a_proof_that_was_kept_back_does_not_supersede() {
        let mut host = Instances::new();
        // Instance 1 got challenge number 5, and its proof is held back until instance 2 has
        // connected.
        assert!(!host.is_past(instance(2), Some(6)));
        host.enter(instance(2), Some(6));
        assert!(host.is_past(instance(1), Some(5)));
        // The newest instance connects again over several paths, in any order, and a later one
        // supersedes it.
        assert!(!host.is_past(instance(2), Some(5)));
        host.enter(instance(2), Some(5));
        assert!(host.is_past(instance(1), Some(5)));
        assert!(!host.is_past(instance(3), Some(7)));
        // Without proofs there is no order.
        assert!(!host.is_past(instance(3), None));
    }

    #[test]
    fn a_limited_number_of_former_instances_is_known() {
        let mut host = Instances::new();
        let last = FORMER_MAX as u64 + 2;
        for n in 1..=last {
            host.enter(instance(n), None);
        }
        assert!(!host.is_former(instance(1)), "forgotten");
        for n in 2..last {
            assert!(host.is_former(instance(n)), "{n}");
        }
    }
}
