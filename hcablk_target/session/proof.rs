// SPDX-License-Identifier: GPL-2.0

//! What a session has whose initiator has proven who it is.

use hcablk_core::{
    crypto::SessionKey,
    proto::auth::{
        Channel,
        Sealed,
        Window, //
    },
    system, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

/// The key of a session, by which its initiator names it, and which of its requests have come.
#[pin_data]
pub(crate) struct SessionProof {
    handle: u64,
    pub(crate) key: SessionKey,
    #[pin]
    window: Mutex<Window>,
}

impl SessionProof {
    pub(crate) fn new(key: SessionKey) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                handle: system::random_u64(),
                key,
                window <- new_mutex!(Window::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the number by which requests name the session.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns whether the session's initiator has sent `request` on `channel`.
    pub(crate) fn has_sealed(&self, request: &Sealed, channel: &Channel) -> bool {
        self.key.has_sealed(request, channel)
    }

    /// Returns whether it has not come before. To be asked once, when [`Self::has_sealed`].
    pub(crate) fn is_new(&self, request: &Sealed) -> bool {
        self.window.lock().accept(request.counter())
    }
}
