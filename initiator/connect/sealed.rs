// SPDX-License-Identifier: GPL-2.0

//! A sealed connection request: its MAC authenticates the session, and the MAC of its response the
//! target.

use super::padded;
use crate::{
    failure::Failure,
    keys::SessionProof, //
};
use hcablk_core::proto::{
    auth::{
        Channel,
        MAC_LEN, //
    },
    connect::{
        ConnectRequest,
        Reject,
        REPLY_LEN,
        REQUEST_LEN, //
    },
};
use kernel::sync::Arc;

/// A sealed request, until its response.
pub(super) struct Sealed {
    proof: Arc<SessionProof>,
    channel: Channel,
    mac: [u8; MAC_LEN],
}

impl Sealed {
    /// Seals `request`, on `channel`; returns the bytes to send, and the state that verifies the
    /// response.
    pub(super) fn new(
        proof: Arc<SessionProof>,
        channel: Channel,
        request: &ConnectRequest,
    ) -> ([u8; REQUEST_LEN], Self) {
        let bytes = proof.seal(request, &channel);
        let mac = padded(bytes.get(REQUEST_LEN - MAC_LEN..).unwrap_or(&[]));
        let sealed = Self {
            proof,
            channel,
            mac,
        };
        (bytes, sealed)
    }

    /// Returns the verified reply in `bytes`, on queue pair `target_qp` of the target. Fails if the
    /// MAC is wrong, or if the reply belongs to another session.
    pub(super) fn open(&self, bytes: &[u8], target_qp: u32) -> Result<[u8; REPLY_LEN], Failure> {
        let channel = self.channel.of_reply(target_qp);
        match self.proof.key.open_reply(&self.mac, bytes, &channel) {
            Some((reply, handle)) if handle == self.proof.handle() => Ok(reply),
            _ => Err(Failure::OtherKeys),
        }
    }

    /// Returns the failure that the reject in `bytes` stands for.
    pub(super) fn refused(&self, reject: Reject, bytes: &[u8]) -> Failure {
        match self.proof.key.has_rejected(&self.mac, bytes, &self.channel) {
            true => Failure::Refused(reject),
            false => Failure::Unsealed(reject),
        }
    }
}
