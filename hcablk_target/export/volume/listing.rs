// SPDX-License-Identifier: GPL-2.0

//! Reports a volume to a host before it connects.

use super::{
    Export,
    Volume, //
};
use crate::{
    drive::backing::Mode,
    export::keys::Proven, //
};
use hcablk_core::proto::{
    discovery::{
        VolumeEntry,
        VolumeMode, //
    },
    name::HostId, //
};

impl Volume {
    /// Returns the entry of the volume for `host`, if the host may use it: with the key that it has
    /// proven to hold, or without one.
    pub(crate) fn entry(&self, host: HostId, proven: Proven) -> Option<VolumeEntry> {
        let state = self.state.lock();
        let Export::Exported { backing, .. } = &state.export else {
            return None;
        };
        let keys = state.hosts.keys(host)?;
        let insecure = state.insecure && keys.count() == 0;
        if !insecure && !proven.keys().is_some_and(|proof| keys.has(proof.host)) {
            return None;
        }
        let geometry = backing.geometry(state.read_only)?;
        Some(VolumeEntry {
            name: self.name,
            id: state.wwid,
            capacity: geometry.capacity,
            block_shift: geometry.logical_block_shift,
            read_only: geometry.read_only,
            evicted: state.hosts.is_evicted(host),
            insecure,
            mode: match state.mode {
                Mode::Direct => VolumeMode::Direct,
                Mode::Cached => VolumeMode::Cached,
                Mode::Mixed => VolumeMode::Mixed,
                Mode::P2p => VolumeMode::P2p,
            },
        })
    }
}
