// SPDX-License-Identifier: GPL-2.0

//! The hosts of a volume: the allowed ones, the newest instance of each, and the evicted ones.
//!
//! The administrator sets the allowed and the evicted ones. An *allowed* host may use the volume by
//! configuration. An *evicted* host may not, allowed or not, until it is admitted again: a cluster
//! manager evicts a host when it cannot be sure that the host has stopped.

use super::{
    instances::Instances,
    keys::Keys, //
};
use hcablk_core::proto::{
    connect::HostInstance,
    name::HostId, //
};
use kernel::prelude::*;

/// The most hosts that may be evicted from a volume.
const EVICTED_MAX: usize = 64;

struct Allowed {
    host: HostId,
    /// The keys with which the host proves its identity.
    keys: Keys,
    instances: Instances,
}

/// The hosts of a volume: see the module. Protected by the lock of its volume.
pub(crate) struct Hosts {
    allowed: KVec<Allowed>,
    evicted: KVec<HostId>,
}

impl Hosts {
    pub(crate) const fn new() -> Self {
        Self {
            allowed: KVec::new(),
            evicted: KVec::new(),
        }
    }

    fn find(&self, host: HostId) -> Option<&Allowed> {
        self.allowed.iter().find(|allowed| allowed.host == host)
    }

    /// Lets a host use the volume. Fails with `EEXIST` if it already may, and with `ENOMEM`.
    pub(crate) fn allow(&mut self, host: HostId) -> Result {
        if self.find(host).is_some() {
            return Err(EEXIST);
        }
        let allowed = Allowed {
            host,
            keys: Keys::new(),
            instances: Instances::new(),
        };
        self.allowed.push(allowed, GFP_KERNEL)?;
        Ok(())
    }

    /// Withdraws a host's right to use the volume, and forgets its instances.
    pub(crate) fn forbid(&mut self, host: HostId) {
        self.allowed.retain(|allowed| allowed.host != host);
    }

    /// Returns whether a host may use the volume, provided that it is not evicted.
    pub(crate) fn allows(&self, host: HostId) -> bool {
        self.find(host).is_some()
    }

    /// Returns the keys of a host, if it may use the volume.
    pub(crate) fn keys(&self, host: HostId) -> Option<&Keys> {
        self.find(host).map(|allowed| &allowed.keys)
    }

    /// Sets key `place` of a host, as [`Keys::set`]. Fails with `ENOENT` if the host may not use
    /// the volume.
    pub(crate) fn set_key(&mut self, host: HostId, place: usize, text: &str) -> Result {
        let found = self.allowed.iter_mut().find(|allowed| allowed.host == host);
        found.ok_or(ENOENT)?.keys.set(place, text)
    }

    /// Returns whether a later instance of the host than `instance` has connected. `number` is that
    /// of the challenge with which `instance` was proven, if it was.
    pub(crate) fn has_superseded(
        &self,
        host: HostId,
        instance: HostInstance,
        number: Option<u64>,
    ) -> bool {
        self.find(host)
            .is_some_and(|allowed| allowed.instances.is_past(instance, number))
    }

    /// Makes `instance` the newest of its host. `number` is that of the challenge with which it was
    /// proven, if it was. Returns `false` if a later instance has connected, or the host is not
    /// allowed.
    pub(crate) fn enter(
        &mut self,
        host: HostId,
        instance: HostInstance,
        number: Option<u64>,
    ) -> bool {
        let found = self.allowed.iter_mut().find(|allowed| allowed.host == host);
        match found {
            Some(Allowed { instances, .. }) if !instances.is_past(instance, number) => {
                instances.enter(instance, number);
                true
            }
            _ => false,
        }
    }

    /// Evicts a host. Does nothing if it is evicted already. Fails with `ENOSPC` if [`EVICTED_MAX`]
    /// hosts are evicted, and with `ENOMEM`.
    pub(crate) fn evict(&mut self, host: HostId) -> Result {
        if self.is_evicted(host) {
            return Ok(());
        }
        if self.evicted.len() >= EVICTED_MAX {
            return Err(ENOSPC);
        }
        self.evicted.push(host, GFP_KERNEL)?;
        Ok(())
    }

    /// Ends the eviction of a host. Fails with `ENOENT` if the host is not evicted.
    pub(crate) fn admit(&mut self, host: HostId) -> Result {
        if !self.is_evicted(host) {
            return Err(ENOENT);
        }
        self.evicted.retain(|evicted| *evicted != host);
        Ok(())
    }

    /// Returns whether a host is evicted.
    pub(crate) fn is_evicted(&self, host: HostId) -> bool {
        self.evicted.contains(&host)
    }

    /// Returns the evicted hosts in the order of their evictions. Fails with `ENOMEM`.
    pub(crate) fn evicted(&self) -> Result<KVec<HostId>> {
        let mut hosts = KVec::with_capacity(self.evicted.len(), GFP_KERNEL)?;
        hosts.extend_from_slice(&self.evicted, GFP_KERNEL)?;
        Ok(hosts)
    }
}
