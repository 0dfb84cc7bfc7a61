// SPDX-License-Identifier: GPL-2.0

//! By which keys a disk's sessions are begun: this host's and the target's. They can be changed while the disk is used; the next
//! session goes by the new ones.

use super::Device;
use crate::failure::Failure;
use hcablk_core::crypto::Key;
use kernel::prelude::*;

/// Whose key it is.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Host,
    Target,
}

/// See the module.
#[derive(Default)]
pub(super) struct Keys {
    host: Option<KBox<Key>>,
    target: Option<KBox<Key>>,
}

impl Device {
    /// Sets a key, or removes it if `text` is empty. Fails with `EINVAL` if it is no key, and with `ENOMEM`.
    pub(crate) fn set_key(&self, side: Side, text: &str) -> Result {
        let key = match text {
            "" => None,
            text => Some(KBox::new(Key::from_hex(text).ok_or(EINVAL)?, GFP_KERNEL)?),
        };
        let mut keys = self.keys.lock();
        let place = match side {
            Side::Host => &mut keys.host,
            Side::Target => &mut keys.target,
        };
        let former = core::mem::replace(place, key);
        drop(keys);
        drop(former);
        Ok(())
    }

    /// Returns how many keys are set.
    pub(crate) fn key_count(&self) -> usize {
        let keys = self.keys.lock();
        usize::from(keys.host.is_some()) + usize::from(keys.target.is_some())
    }

    /// Returns by what to prove who this host is, and to have the target do so; `None` if no key is set. Fails if one is
    /// missing.
    pub(super) fn pair_key(&self) -> Result<Option<Key>, Failure> {
        let keys = self.keys.lock();
        match (&keys.host, &keys.target) {
            (Some(host), Some(target)) => Ok(Some(host.pair(target))),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Failure::Unset("host_key")),
            (Some(_), None) => Err(Failure::Unset("target_key")),
        }
    }
}
