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

    /// Returns a number that differs between most claimants.
    pub(crate) fn spread(&self) -> usize {
        let number = u128::from_le_bytes(self.host.to_wire()) ^ u128::from(self.is_proven);
        number as usize ^ (number >> 64) as usize
    }
}
