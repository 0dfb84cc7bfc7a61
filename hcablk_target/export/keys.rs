// SPDX-License-Identifier: GPL-2.0

//! The keys that an administrator has set: this target's, and those of hosts. Two of each are valid
//! at a time.

use hcablk_core::{
    crypto::Key,
    proto::auth::{
        Print,
        KEYS_MAX, //
    },
};
use kernel::prelude::*;

/// The keys of one host or target.
pub(crate) struct Keys([Option<KBox<Key>>; KEYS_MAX]);

impl Keys {
    pub(crate) const fn new() -> Self {
        Self([const { None }; KEYS_MAX])
    }

    /// Sets key `place`, or removes it if `text` is empty. Fails with `EINVAL` if `text` is not a
    /// key.
    pub(crate) fn set(&mut self, place: usize, text: &str) -> Result {
        let key = match text {
            "" => None,
            text => Some(KBox::new(Key::from_hex(text).ok_or(EINVAL)?, GFP_KERNEL)?),
        };
        *self.0.get_mut(place).ok_or(EINVAL)? = key;
        Ok(())
    }

    /// Returns the number of keys that are set.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Returns all keys, with `nobody`, a key that no machine has, in place of a key that is not
    /// set. The keys are not copied, since copies would stay on the stack.
    pub(crate) fn each<'a>(&'a self, nobody: &'a Key) -> [&'a Key; KEYS_MAX] {
        self.0
            .each_ref()
            .map(|key| key.as_deref().unwrap_or(nobody))
    }

    /// Returns each key that is set.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Key> {
        self.0.iter().flatten().map(|key| &**key)
    }

    /// Returns whether the key with fingerprint `print` is set.
    pub(crate) fn has(&self, print: Print) -> bool {
        self.0.iter().flatten().any(|key| key.print() == print)
    }
}

/// The pair keys with which a host's proof may be made.
pub(crate) struct Pairs {
    pairs: [[Key; KEYS_MAX]; KEYS_MAX],
    host: [Print; KEYS_MAX],
    target: [Print; KEYS_MAX],
}

/// The host's and the target's key with which a proof was made.
#[derive(Clone, Copy)]
pub(crate) struct ProofKeys {
    pub(crate) host: Print,
    pub(crate) target: Print,
}

/// The kind of proof of a connection request.
#[derive(Clone, Copy)]
pub(crate) enum Proven {
    /// There is no proof.
    Not,
    /// Proven with the key of a session.
    BySession,
    /// Proven with the challenge of this number, and with these keys.
    ByKeys(u64, ProofKeys),
}

impl Proven {
    pub(crate) fn is_proven(self) -> bool {
        !matches!(self, Self::Not)
    }

    /// Returns the host's and the target's key, if the proof was made with keys.
    pub(crate) fn keys(self) -> Option<ProofKeys> {
        match self {
            Self::ByKeys(_, keys) => Some(keys),
            _ => None,
        }
    }

    /// Returns the number of the challenge.
    pub(crate) fn number(self) -> Option<u64> {
        match self {
            Self::ByKeys(number, _) => Some(number),
            _ => None,
        }
    }
}

impl Pairs {
    /// Computes the pair keys of a host's keys and this target's.
    pub(crate) fn derive(hosts: [&Key; KEYS_MAX], target: [&Key; KEYS_MAX]) -> Self {
        Self {
            pairs: hosts.map(|host| target.map(|target| host.pair(target))),
            host: hosts.map(Key::print),
            target: target.map(Key::print),
        }
    }

    /// Returns all pairs of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Key> {
        self.pairs.iter().flatten()
    }

    /// Returns the two keys of the pair at `place` of [`Self::iter`].
    pub(crate) fn keys(&self, place: usize) -> Option<ProofKeys> {
        Some(ProofKeys {
            host: *self.host.get(place / KEYS_MAX)?,
            target: *self.target.get(place % KEYS_MAX)?,
        })
    }
}
