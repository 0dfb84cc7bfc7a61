// SPDX-License-Identifier: GPL-2.0

//! By what a session proves to the target that a connection request is its own.

use hcablk_core::{
    crypto::SessionKey,
    proto::{
        auth::Channel,
        connect::{
            Request,
            REQUEST_LEN, //
        },
    }, //
};
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// The key of a session, and by what the target names that.
pub(crate) struct SessionProof {
    pub(crate) key: SessionKey,
    handle: u64,
    /// Requests that were sealed.
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

    /// Encodes a request, which no other one is numbered like.
    pub(crate) fn seal(&self, request: &Request, channel: &Channel) -> [u8; REQUEST_LEN] {
        let number = self.count.fetch_add(1, Relaxed).wrapping_add(1);
        self.key.seal_request(request, self.handle, number, channel)
    }
}
