// SPDX-License-Identifier: GPL-2.0

//! Limits the connection requests that wait for drives. Uses nothing but `core`: its tests run on
//! the host.
//!
//! Each waiting request occupies a worker of the target, which has far more workers than requests
//! may wait. The limits reserve room: for other drives, if one hangs, and for other hosts, if one
//! repeats its requests for a hanging drive.

use hcablk_core::proto::name::HostId;

/// The most requests that may wait in total.
pub(crate) const WAITERS_MAX: usize = 128;

/// The most waiting requests of one host: an initiator has one for each disk that it lost.
const PER_HOST: usize = 32;

/// Returns whether a request of `host` for `drive` may wait in addition to `waiters`. A drive may
/// have half of the places that the other drives leave.
pub(crate) fn is_room<D: PartialEq>(waiters: &[(HostId, D)], host: HostId, drive: &D) -> bool {
    let of_host = waiters.iter().filter(|(other, _)| *other == host).count();
    let of_drive = waiters.iter().filter(|(_, other)| other == drive).count();
    let of_others = waiters.len() - of_drive;
    of_host < PER_HOST && of_drive < WAITERS_MAX.saturating_sub(of_others).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds waiters for `drive` of one host after the other, until no more may wait. Returns how
    /// many were added.
    fn crowd(waiters: &mut Vec<(HostId, u8)>, drive: u8) -> usize {
        let before = waiters.len();
        for host in 1..=255 {
            let host = HostId::from_wire([host; 16]).unwrap();
            while is_room(waiters, host, &drive) {
                waiters.push((host, drive));
            }
        }
        waiters.len() - before
    }

    #[test]
    fn a_host_leaves_room_to_others() {
        let (one, other) = ([1; 16], [2; 16]);
        let one = HostId::from_wire(one).unwrap();
        let other = HostId::from_wire(other).unwrap();
        let mut waiters = vec![];
        while is_room(&waiters, one, &0) {
            waiters.push((one, 0));
        }
        assert_eq!(waiters.len(), PER_HOST);
        assert!(!is_room(&waiters, one, &1));
        assert!(is_room(&waiters, other, &0));
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
