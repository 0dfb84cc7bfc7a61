// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses the workqueue on which the sessions of a host are torn down. Uses nothing but `core`:
//! its tests run on the host.
//!
//! A teardown occupies a worker until the drives of all volumes of its session have finished. If
//! one hangs, the sessions of many hosts wait for it. So each claimant has a workqueue of its own:
//! hosts whose drives are well find workers. There is a workqueue for each of [`PLACES`] claimants;
//! only if all of these have sessions, a further one shares a workqueue with another.

use crate::claimant::Claimant;

/// The most workqueues. Each has a thread of its own, so their number is limited.
pub(crate) const PLACES: usize = 64;

/// The place of a claimant's workqueue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A workqueue that the claimant has, or may take over or share.
    Existing(usize),
    /// A new workqueue, behind the existing ones.
    New,
}

/// Returns the place for `claimant`, if `owners` have the existing ones. `has_sessions`: whether a
/// claimant has sessions now.
pub(crate) fn choose(
    owners: impl ExactSizeIterator<Item = Claimant> + Clone,
    claimant: Claimant,
    has_sessions: impl Fn(Claimant) -> bool,
) -> Place {
    let is_own = |owner| owner == claimant;
    let is_unused = |owner| !has_sessions(owner);
    let count = owners.len();
    if let Some(place) = owners.clone().position(is_own) {
        return Place::Existing(place);
    }
    if let Some(place) = owners.clone().position(is_unused) {
        return Place::Existing(place);
    }
    match count < PLACES {
        true => Place::New,
        false => Place::Existing(claimant.spread() % PLACES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcablk_core::proto::name::HostId;

    fn claimant(host: u8, is_proven: bool) -> Claimant {
        Claimant::new(HostId::from_wire([host; 16]).unwrap(), is_proven)
    }

    fn place(owners: &[Claimant], of: Claimant, with_sessions: &[Claimant]) -> Place {
        choose(owners.iter().copied(), of, |c| with_sessions.contains(&c))
    }

    #[test]
    fn each_claimant_has_a_place_of_its_own() {
        let (one, other) = (claimant(1, true), claimant(2, true));
        assert_eq!(place(&[], one, &[]), Place::New);
        assert_eq!(place(&[one], other, &[one]), Place::New);
        assert_eq!(
            place(&[one, other], other, &[one, other]),
            Place::Existing(1)
        );
        // It keeps its place while it has no sessions.
        assert_eq!(place(&[other, one], one, &[]), Place::Existing(1));
    }

    #[test]
    fn a_peer_without_a_proof_does_not_share_the_place_of_the_host_whose_id_it_states() {
        let (stated, proven) = (claimant(1, false), claimant(1, true));
        assert_eq!(place(&[proven], stated, &[proven]), Place::New);
    }

    #[test]
    fn the_place_of_a_claimant_without_sessions_is_used_again() {
        let (gone, one, new) = (claimant(1, true), claimant(2, true), claimant(3, true));
        assert_eq!(place(&[one, gone], new, &[one]), Place::Existing(1));
    }

    #[test]
    fn claimants_share_places_only_when_all_are_in_use() {
        let all: Vec<_> = (1..=PLACES as u8)
            .map(|host| claimant(host, true))
            .collect();
        assert_eq!(place(&all[1..], all[0], &all), Place::New);
        for host in 100..110 {
            let Place::Existing(place) = place(&all, claimant(host, true), &all) else {
                panic!("a place too many");
            };
            assert!(place < PLACES);
        }
    }
}
