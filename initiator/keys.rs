// SPDX-License-Identifier: GPL-2.0

//! The keys with which this host and a target authenticate each other, as the administrator has set
//! them.

use crate::failure::Failure;
use hcablk_core::{
    crypto::{
        Key,
        SessionKey, //
    },
    proto::{
        auth::Channel,
        connect::{
            ConnectRequest,
            REQUEST_LEN, //
        },
    },
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// The owner of a key.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Host,
    Target,
}

/// The keys of a disk; see the module.
#[derive(Default)]
pub(crate) struct Keys {
    host: Option<KBox<Key>>,
    target: Option<KBox<Key>>,
}

/// A key that is set, or none.
pub(crate) type OptionalKey = Option<KBox<Key>>;

/// Parses a key; returns none if `text` is empty. Fails with `EINVAL` if `text` is neither empty
/// nor a key, and with `ENOMEM`.
pub(crate) fn parse(text: &str) -> Result<OptionalKey> {
    match text {
        "" => Ok(None),
        text => {
            let key = Key::from_hex(text).ok_or(EINVAL)?;
            Ok(Some(KBox::new(key, GFP_KERNEL)?))
        }
    }
}

impl Keys {
    /// Sets a key; returns the former one.
    pub(crate) fn set(&mut self, side: Side, key: OptionalKey) -> OptionalKey {
        let place = match side {
            Side::Host => &mut self.host,
            Side::Target => &mut self.target,
        };
        core::mem::replace(place, key)
    }

    /// Returns how many keys are set.
    pub(crate) fn count(&self) -> usize {
        usize::from(self.host.is_some()) + usize::from(self.target.is_some())
    }

    /// Returns the pair key with which both sides prove their identity; `None` if no key is set, or
    /// if only the host's is set and the administrator allows `insecure`. Otherwise fails if one is
    /// missing.
    pub(crate) fn pair(&self, insecure: bool) -> Result<Option<Key>, Failure> {
        match (&self.host, &self.target) {
            (Some(host), Some(target)) => Ok(Some(host.pair(target))),
            (None, None) => Ok(None),
            (Some(_), None) if insecure => Ok(None),
            (None, Some(_)) => Err(Failure::Unset("host_key")),
            (Some(_), None) => Err(Failure::Unset("target_key")),
        }
    }
}

/// The key of a session, and the number under which the target knows the session.
pub(crate) struct SessionProof {
    pub(crate) key: SessionKey,
    handle: u64,
    /// Number of sealed requests.
    count: Atomic<u64>,
}

impl SessionProof {
    pub(crate) fn new(key: SessionKey, handle: u64) -> Self {
        Self {
            key,
            handle,
            count: Atomic::new(0),
        }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Encodes a request with a number that no other request has.
    pub(crate) fn seal(&self, request: &ConnectRequest, channel: &Channel) -> [u8; REQUEST_LEN] {
        let number = self.count.fetch_add(1, Relaxed).wrapping_add(1);
        self.key.seal_request(request, self.handle, number, channel)
    }
}
