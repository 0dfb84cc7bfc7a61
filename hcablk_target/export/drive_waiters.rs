// SPDX-License-Identifier: GPL-2.0

//! Limits the connection requests that wait for drives. Uses nothing but `core`: its tests run on
//! the host.
//!
//! Each waiting request occupies a worker of the target, and far fewer requests may wait than there
//! are workers. The limits reserve room for other drives, if one hangs; for other hosts, if one
//! repeats its requests for a hanging drive; and for the host itself, if a peer without a proof
//! repeats them in its name.

use crate::claimant::Claimant;

/// The most requests that may wait in total.
pub(crate) const WAITERS_MAX: usize = 128;

/// The most waiting requests of one claimant: an initiator has one for each disk that it lost.
const PER_CLAIMANT: usize = 32;

/// Returns whether a request of `claimant` for `drive` may wait in addition to `waiters`. A drive
/// may have half of the places that the other drives leave.
pub(crate) fn is_room<D: PartialEq>(
    waiters: &[(Claimant, D)],
    claimant: Claimant,
    drive: &D,
) -> bool {
    let is_own = |(other, _): &&(Claimant, D)| *other == claimant;
    let of_claimant = waiters.iter().filter(is_own).count();
    let of_drive = waiters.iter().filter(|(_, other)| other == drive).count();
    let of_others = waiters.len() - of_drive;
    of_claimant < PER_CLAIMANT && of_drive < WAITERS_MAX.saturating_sub(of_others).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcablk_core::proto::name::HostId;

    fn claimant(host: u8, is_proven: bool) -> Claimant {
        Claimant::new(HostId::from_wire([host; 16]).unwrap(), is_proven)
    }

    /// Adds waiters for `drive` of one host after the other, until no more may wait. Returns how
    /// many were added.
    fn crowd(waiters: &mut Vec<(Claimant, u8)>, drive: u8) -> usize {
        let before = waiters.len();
        for host in 1..=255 {
            let host = claimant(host, false);
            while is_room(waiters, host, &drive) {
                waiters.push((host, drive));
            }
        }
        waiters.len() - before
    }

    #[test]
    fn a_host_leaves_room_to_others() {
        let (one, other) = (claimant(1, false), claimant(2, false));
        let mut waiters = vec![];
        while is_room(&waiters, one, &0) {
            waiters.push((one, 0));
        }
        assert_eq!(waiters.len(), PER_CLAIMANT);
        assert!(!is_room(&waiters, one, &1));
        assert!(is_room(&waiters, other, &0));
    }

    #[test]
    fn a_peer_without_a_proof_leaves_room_to_the_host_whose_id_it_states() {
        let (stated, proven) = (claimant(1, false), claimant(1, true));
        let mut waiters = vec![];
        while is_room(&waiters, stated, &0) {
            waiters.push((stated, 0));
        }
        for _ in 0..PER_CLAIMANT / 2 {
            assert!(is_room(&waiters, proven, &0));
            waiters.push((proven, 0));
        }
        while is_room(&waiters, proven, &1) {
            waiters.push((proven, 1));
        }
        assert_eq!(waiters.len(), 2 * PER_CLAIMANT);
    }

    #[test]
    fn drives_that_hang_leave_room_for_others() {
        let mut waiters = vec![];
        assert_eq!(crowd(&mut waiters, 0), 64);
        assert_eq!(crowd(&mut waiters, 1), 32);
        assert_eq!(crowd(&mut waiters, 2), 16);
        assert_eq!(crowd(&mut waiters, 3), 8);
        assert_eq!(crowd(&mut waiters, 4), 4);
        // Not more than the total limit.
        let more: usize = (5..255).map(|drive| crowd(&mut waiters, drive)).sum();
        assert_eq!(waiters.len(), WAITERS_MAX);
        assert_eq!(more, 4);
        // A request that ends leaves room for a later one.
        waiters.retain(|(_, drive)| *drive != 0);
        assert_eq!(crowd(&mut waiters, 255), 32);
    }
}
