// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages with a MAC by the key of a session: connection requests, replies and rejects, and
//! entries of lists.

use super::{
    super::connect::{ConnectRequest, Reject, REJECT_LEN, REPLY_LEN, REQUEST_LEN},
    super::discovery::ENTRY_LEN,
    super::wire::prefix,
    concat, label,
    wire::{CHANNEL_LEN, MAC_AT},
    Channel, Crypto, Sealed, Secret, MAC_LEN, SEALED_ENTRY_LEN, SEALED_REJECT_LEN,
    SEALED_REPLY_LEN,
};

const LABEL_LEN: usize = 16;

/// Bytes of a sealed reply that its MAC covers: the reply, and the session's handle.
const REPLY_COVERED: usize = REPLY_LEN + 8;
const _: () = assert!(REPLY_COVERED + MAC_LEN == SEALED_REPLY_LEN);
const _: () = assert!(REJECT_LEN + MAC_LEN == SEALED_REJECT_LEN);
const _: () = assert!(ENTRY_LEN + MAC_LEN == SEALED_ENTRY_LEN);

/// The key of a session, which both sides derive from its handshake.
pub struct SessionKey<C: Crypto>(Secret<C>);

impl<C: Crypto> SessionKey<C> {
    pub(super) fn new(secret: Secret<C>) -> Self {
        Self(secret)
    }

    /// Encodes `request`, of the session with the handle `session` at the target, as its sealed
    /// request number `counter`.
    pub fn seal_request(
        &self,
        request: &ConnectRequest,
        session: u64,
        counter: u64,
        channel: &Channel,
    ) -> [u8; REQUEST_LEN] {
        let covered = Sealed::covered(request, session, counter);
        concat(&[&covered, &self.mac_of_request(&covered, channel)])
    }

    fn mac_of_request(&self, covered: &[u8; MAC_AT], channel: &Channel) -> [u8; MAC_LEN] {
        let channel = channel.of_request().encode();
        let message: [u8; LABEL_LEN + CHANNEL_LEN + MAC_AT] =
            concat(&[label::REQUEST, &channel, covered]);
        self.0.mac(&message)
    }

    /// Returns whether the request is of this session. It does not check for a replay.
    pub fn has_sealed(&self, request: &Sealed, channel: &Channel) -> bool {
        let covered = concat(&[request.bytes()]);
        C::is_equal(&self.mac_of_request(&covered, channel), &request.mac())
    }

    fn mac_of_reply(
        &self,
        request: &[u8; MAC_LEN],
        covered: &[u8; REPLY_COVERED],
        channel: &Channel,
    ) -> [u8; MAC_LEN] {
        let message: [u8; LABEL_LEN + CHANNEL_LEN + MAC_LEN + REPLY_COVERED] =
            concat(&[label::REPLY, &channel.encode(), request, covered]);
        self.0.mac(&message)
    }

    /// Encodes the reply to the request whose MAC is `request`, with the handle of the session.
    pub fn seal_reply(
        &self,
        request: &[u8; MAC_LEN],
        reply: &[u8; REPLY_LEN],
        session: u64,
        channel: &Channel,
    ) -> [u8; SEALED_REPLY_LEN] {
        let covered = concat(&[reply, &session.to_le_bytes()]);
        concat(&[&covered, &self.mac_of_reply(request, &covered, channel)])
    }

    /// Reads a reply to the request whose MAC is `request`, and the handle of the session; `None`:
    /// the target of this session did not send it.
    pub fn open_reply(
        &self,
        request: &[u8; MAC_LEN],
        bytes: &[u8],
        channel: &Channel,
    ) -> Option<([u8; REPLY_LEN], u64)> {
        let bytes: &[u8; SEALED_REPLY_LEN] = prefix(bytes)?;
        let (covered, mac) = bytes.split_at(REPLY_COVERED);
        let (covered, mac) = (covered.try_into().ok()?, mac.try_into().ok()?);
        let is_its = C::is_equal(&self.mac_of_reply(request, covered, channel), mac);
        let (reply, session) = covered.split_at(REPLY_LEN);
        let session = u64::from_le_bytes(session.try_into().ok()?);
        is_its.then_some((reply.try_into().ok()?, session))
    }

    fn mac_of_entry(
        &self,
        request: &[u8; MAC_LEN],
        entry: &[u8; ENTRY_LEN],
        channel: &Channel,
    ) -> [u8; MAC_LEN] {
        let channel = channel.of_request().encode();
        let message: [u8; LABEL_LEN + CHANNEL_LEN + MAC_LEN + ENTRY_LEN] =
            concat(&[label::ENTRY, &channel, request, entry]);
        self.0.mac(&message)
    }

    /// Encodes the entry that is the reply to the request whose MAC is `request`.
    pub fn seal_entry(
        &self,
        request: &[u8; MAC_LEN],
        entry: &[u8; ENTRY_LEN],
        channel: &Channel,
    ) -> [u8; SEALED_ENTRY_LEN] {
        concat(&[entry, &self.mac_of_entry(request, entry, channel)])
    }

    /// Reads the entry that is the reply to the request whose MAC is `request`; `None`: the target
    /// of this handshake did not send it.
    pub fn open_entry(
        &self,
        request: &[u8; MAC_LEN],
        bytes: &[u8],
        channel: &Channel,
    ) -> Option<[u8; ENTRY_LEN]> {
        let bytes: &[u8; SEALED_ENTRY_LEN] = prefix(bytes)?;
        let (entry, mac) = bytes.split_at(ENTRY_LEN);
        let (entry, mac) = (entry.try_into().ok()?, mac.try_into().ok()?);
        C::is_equal(&self.mac_of_entry(request, entry, channel), mac).then_some(*entry)
    }

    fn mac_of_reject(
        &self,
        request: &[u8; MAC_LEN],
        reject: &[u8; REJECT_LEN],
        channel: &Channel,
    ) -> [u8; MAC_LEN] {
        let channel = channel.of_request().encode();
        let message: [u8; LABEL_LEN + CHANNEL_LEN + MAC_LEN + REJECT_LEN] =
            concat(&[label::REJECT, &channel, request, reject]);
        self.0.mac(&message)
    }

    /// Encodes the reject of the request whose MAC is `request`.
    pub fn seal_reject(
        &self,
        request: &[u8; MAC_LEN],
        reject: &Reject,
        channel: &Channel,
    ) -> [u8; SEALED_REJECT_LEN] {
        let reject = reject.encode();
        concat(&[&reject, &self.mac_of_reject(request, &reject, channel)])
    }

    /// Returns whether the target of this session has sent `bytes`, a reject of the request whose
    /// MAC is `request`.
    pub fn has_rejected(&self, request: &[u8; MAC_LEN], bytes: &[u8], channel: &Channel) -> bool {
        let Some(bytes) = prefix::<SEALED_REJECT_LEN>(bytes) else {
            return false;
        };
        let (reject, mac) = bytes.split_at(REJECT_LEN);
        match (reject.try_into(), mac.try_into()) {
            (Ok(reject), Ok(mac)) => {
                C::is_equal(&self.mac_of_reject(request, reject, channel), mac)
            }
            _ => false,
        }
    }
}
