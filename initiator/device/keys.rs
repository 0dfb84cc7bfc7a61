// SPDX-License-Identifier: GPL-2.0

//! By which keys a disk's sessions are begun: this host's and the target's. They can be changed
//! while the disk is used; the next session goes by the new ones.

use super::Device;
use crate::{
    failure::Failure,
    keys::{
        self,
        Side, //
    }, //
};
use hcablk_core::crypto::Key;
use kernel::prelude::*;

impl Device {
    /// Sets a key, or removes it if `text` is empty. Fails with `EINVAL` if it is no key, and with
    /// `ENOMEM`.
    pub(crate) fn set_key(&self, side: Side, text: &str) -> Result {
        let key = keys::parse(text)?;
        let former = self.keys.lock().set(side, key);
        drop(former);
        Ok(())
    }

    /// Returns how many keys are set.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.lock().count()
    }

    /// Returns by what to prove who this host is, as [`keys::Keys::pair`].
    pub(super) fn pair_key(&self, insecure: bool) -> Result<Option<Key>, Failure> {
        self.keys.lock().pair(insecure)
    }
}
