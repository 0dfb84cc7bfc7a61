// SPDX-License-Identifier: GPL-2.0

//! Keys that an administrator has set: this target's, and those of hosts. Two of each are valid at a time.

use hcablk_core::{
    crypto::Key,
    proto::auth::KEYS_MAX, //
};
use kernel::prelude::*;

/// See the module.
pub(crate) struct Keys([Option<KBox<Key>>; KEYS_MAX]);

impl Keys {
    pub(crate) const fn new() -> Self {
        Self([const { None }; KEYS_MAX])
    }

    /// Sets key `place`, or removes it if `text` is empty. Fails with `EINVAL` if it is no key.
    pub(crate) fn set(&mut self, place: usize, text: &str) -> Result {
        let key = match text {
            "" => None,
            text => Some(KBox::new(Key::from_hex(text).ok_or(EINVAL)?, GFP_KERNEL)?),
        };
        *self.0.get_mut(place).ok_or(EINVAL)? = key;
        Ok(())
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Returns a copy of each, and in the place of one that is not set one that is nobody's.
    pub(crate) fn copies(&self) -> [Key; KEYS_MAX] {
        let mut keys = self.0.iter();
        core::array::from_fn(|_| match keys.next() {
            Some(Some(key)) => key.copy(),
            _ => Key::random(),
        })
    }
}

/// The keys that a proof of a host may be made by.
pub(crate) struct Pairs([[Key; KEYS_MAX]; KEYS_MAX]);

impl Pairs {
    /// Makes those of a host's keys and this target's.
    pub(crate) fn of(hosts: &[Key; KEYS_MAX], target: &[Key; KEYS_MAX]) -> Self {
        let mut hosts = hosts.iter();
        Self(core::array::from_fn(|_| {
            let host = hosts.next();
            let mut target = target.iter();
            core::array::from_fn(|_| match (host, target.next()) {
                (Some(host), Some(target)) => host.pair(target),
                _ => Key::random(),
            })
        }))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Key> {
        self.0.iter().flatten()
    }
}
