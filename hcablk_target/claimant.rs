// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The owner of a session or a connection request, for limits. Uses nothing but `core`: its tests
//! run on the host.

use hcablk_core::proto::name::HostId;

/// The host in whose name a peer acts, and whether it has proven its identity. Without a proof any
/// peer can state a host's id. So the limits count sessions and requests without a proof apart from
/// those with one: otherwise such peers could keep the host out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimant {
    host: HostId,
    is_proven: bool,
}

impl Claimant {
    pub(crate) fn new(host: HostId, is_proven: bool) -> Self {
        Self { host, is_proven }
    }

    /// Returns one of `places` places, always the same for a claimant. The claimants are spread
    /// over the places even if most bytes of their ids are equal.
    pub(crate) fn place_among(&self, places: usize) -> usize {
        // FNV-1a, of which the upper half depends on all bytes.
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let id = self.host.to_wire().into_iter().fold(0x811c_9dc5, step);
        let hash = step(id, self.is_proven.into());
        ((hash >> 16) as usize).checked_rem(places).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimants_are_spread_over_all_places() {
        let mut counts = [0; 16];
        for host in 1..=255 {
            for is_proven in [false, true] {
                let alike = Claimant::new(HostId::from_wire([host; 16]).unwrap(), is_proven);
                let mut id = [7; 16];
                id[15] = host;
                let similar = Claimant::new(HostId::from_wire(id).unwrap(), is_proven);
                for claimant in [alike, similar] {
                    assert_eq!(claimant.place_among(16), claimant.place_among(16));
                    counts[claimant.place_among(16)] += 1;
                }
            }
        }
        // 1020 claimants, 64 for each place on average.
        assert!(
            counts.iter().all(|count| (32..=96).contains(count)),
            "{counts:?}"
        );
    }
}
