// SPDX-License-Identifier: GPL-2.0

//! Which instance of a host is its newest, whose sessions come behind those of the others: a pure
//! state machine. Uses nothing but `core` and the wire format: its tests run on the host.
//!
//! An instance that was never seen is the newest from then on. One that was the newest once never
//! is again: a machine with the id of another one, or the copy of one from before, is refused and
//! does not take turns with it. The last [`FORMER_MAX`] of these are known; one that has been
//! forgotten counts as new.
//!
//! Who proves who it is does so by a challenge, and these are numbered. A proof that somebody has
//! kept back, of an instance that was never seen, comes behind the newest one by a challenge that
//! is older than that one's last: it is refused.

use crate::proto::connect::HostInstance;

/// How many former instances of a host are known.
pub(crate) const FORMER_MAX: usize = 16;

/// The instances of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instances {
    newest: Option<HostInstance>,
    former: [Option<HostInstance>; FORMER_MAX],
    /// Where in `former` the next one goes.
    next: usize,
    /// The number of the last challenge by which the newest was proven.
    proven: u64,
}

impl Instances {
    /// Makes the memory of a host of which nothing is known.
    pub(crate) const fn new() -> Self {
        Self {
            newest: None,
            former: [None; FORMER_MAX],
            next: 0,
            proven: 0,
        }
    }

    /// Returns whether `instance` was the newest and is not any more.
    pub(crate) fn is_former(&self, instance: HostInstance) -> bool {
        self.newest != Some(instance) && self.former.contains(&Some(instance))
    }

    /// Returns whether `instance` comes too late, proven by challenge `number`, if it is.
    pub(crate) fn is_past(&self, instance: HostInstance, number: Option<u64>) -> bool {
        let is_older = |number| number < self.proven;
        self.is_former(instance) || self.newest != Some(instance) && number.is_some_and(is_older)
    }

    /// Makes `instance`, which [is not past](Self::is_past), the newest.
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
        HostInstance::of(n << 16)
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
        // Instance 1 was challenged as number 5, and its proof is kept back while instance 2 comes.
        assert!(!host.is_past(instance(2), Some(6)));
        host.enter(instance(2), Some(6));
        assert!(host.is_past(instance(1), Some(5)));
        // The newest comes again by several paths, in whatever order, and a later one supersedes
        // it.
        assert!(!host.is_past(instance(2), Some(5)));
        host.enter(instance(2), Some(5));
        assert!(host.is_past(instance(1), Some(5)));
        assert!(!host.is_past(instance(3), Some(7)));
        // Where nothing is proven there is no order.
        assert!(!host.is_past(instance(3), None));
    }

    #[test]
    fn so_many_former_ones_are_known() {
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
