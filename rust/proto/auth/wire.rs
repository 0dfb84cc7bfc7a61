// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The messages with which the two sides authenticate: forms of connection requests, and
//! challenges.

use super::{
    super::{
        connect::{ConnectRequest, Epoch, Reason, SessionId, REQUEST_LEN},
        discovery::Question,
        name::{HostId, VolumeName, VOLUME_NAME_LEN},
        wire::{prefix, Reader, Writer},
        ADMIN_QUEUE, MAGIC, VERSION_MAX, VERSION_MIN,
    },
    concat, CHALLENGES_MAX, CHALLENGE_LEN, KEY_LEN, MAC_LEN,
};

/// Offset of the MAC in the requests that carry one. It covers all bytes before it.
pub(super) const MAC_AT: usize = REQUEST_LEN - MAC_LEN;

/// Flag in the field of the depth: the request is a proof.
const PROOF: u16 = 0x8000;
/// Flag in the same field, and in a challenge's flags: the share is an X25519 public key.
const X25519: u16 = 0x4000;
const HANDLE: u16 = CHALLENGES_MAX - 1;
/// Offset of the handle in a challenge.
pub(super) const HANDLE_AT: usize = 8;
/// Flag in the field of the largest data length: the initiator proves its identity.
const PROVES: u16 = 0x4000;
/// Offset of the byte with that flag, and the flag in that byte.
const PROVES_AT: usize = 11;
const PROVES_BIT: u8 = (PROVES >> 8) as u8;
/// Length of the head of a sealed request: all fields of a connection request but the names.
pub(super) const HEAD_LEN: usize = 24;

/// An end of a [`Channel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The GID of its RDMA port; 0 on transports that have none.
    pub gid: [u8; 16],
    /// Its IP address; an IPv4 address is in the last four bytes.
    pub ip: [u8; 16],
    /// Its port.
    pub port: u16,
    /// The number of its queue pair; 0 on transports that do not transmit it.
    pub qp: u32,
}

/// The ports and queue pairs between which a message of the connection manager travels, as far as
/// both sides see them. MACs cover them, so that an attacker cannot redirect a proof to another
/// queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    /// The initiator's end.
    pub initiator: End,
    /// The target's end; its queue pair is 0 in requests and rejects.
    pub target: End,
}

/// Length of an encoded [`Channel`], as MACs cover it.
pub(super) const CHANNEL_LEN: usize = 76;

impl Channel {
    pub(super) fn encode(&self) -> [u8; CHANNEL_LEN] {
        Writer::new()
            .bytes(self.initiator.gid)
            .bytes(self.target.gid)
            .bytes(self.initiator.ip)
            .bytes(self.target.ip)
            .u16(self.initiator.port)
            .u16(self.target.port)
            .u32(self.initiator.qp)
            .u32(self.target.qp)
            .finish()
    }

    /// Returns the channel without the target's queue pair.
    pub(super) fn of_request(&self) -> Self {
        self.of_reply(0)
    }

    /// Returns the channel with queue pair `qp` of the target.
    pub fn of_reply(&self, qp: u32) -> Self {
        Self {
            target: End { qp, ..self.target },
            ..*self
        }
    }
}

/// The purpose of an initiator's connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To connect a queue pair.
    Connection(ConnectRequest),
    /// To read an entry of a list.
    Entry(Question),
}

impl Purpose {
    /// Reads a question, or else a connection request. Fails as [`ConnectRequest::decode`].
    fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, Reason> {
        match Question::decode(bytes) {
            Some(question) => Ok(Self::Entry(question)),
            None => ConnectRequest::decode(bytes).map(Self::Connection),
        }
    }
}

/// A connection request, in one of the forms in which it states the identity of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    /// With names, without a proof.
    Plain(Purpose),
    /// With names that the initiator will prove: for an admin queue pair, or an entry. The
    /// handshake's MACs cover all of its bytes.
    Hello(Purpose, [u8; REQUEST_LEN]),
    /// The response to a [challenge](super::Challenged).
    Proof(Proof),
    /// With a MAC by the key of its session.
    Sealed(Sealed),
}

impl RequestForm {
    /// Reads a request. Fails as [`ConnectRequest::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let bytes: &[u8; REQUEST_LEN] = prefix(bytes).ok_or(Reason::Malformed)?;
        let mut r = Reader::new(bytes);
        let (magic, version_min, version_max) = (r.u32(), r.u8(), r.u8());
        let (depth, queue, _queues, largest) = (r.u16(), r.u8(), r.u8(), r.u16());
        let is_ours = magic == MAGIC && version_min <= version_max;
        if !is_ours || version_min > VERSION_MAX || version_max < VERSION_MIN {
            // This returns the reason to refuse it.
            return Purpose::decode(bytes).map(Self::Plain);
        }
        if depth & PROOF != 0 {
            return Ok(Self::Proof(Proof { bytes: *bytes }));
        }
        if largest & PROVES == 0 {
            return Purpose::decode(bytes).map(Self::Plain);
        }
        if queue == ADMIN_QUEUE {
            return Purpose::decode(&without_proves(*bytes))
                .map(|hello| Self::Hello(hello, *bytes));
        }
        Ok(Self::Sealed(Sealed { bytes: *bytes }))
    }
}

fn without_proves(mut bytes: [u8; REQUEST_LEN]) -> [u8; REQUEST_LEN] {
    if let Some(byte) = bytes.get_mut(PROVES_AT) {
        *byte &= !PROVES_BIT;
    }
    bytes
}

/// Sets the flag of an initiator that proves its identity in a request.
pub(super) fn with_proves(mut bytes: [u8; REQUEST_LEN]) -> [u8; REQUEST_LEN] {
    if let Some(byte) = bytes.get_mut(PROVES_AT) {
        *byte |= PROVES_BIT;
    }
    bytes
}

fn mac_of(bytes: &[u8; REQUEST_LEN]) -> [u8; MAC_LEN] {
    concat(&[bytes.get(MAC_AT..).unwrap_or(&[])])
}

/// The initiator's response to a challenge, as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    bytes: [u8; REQUEST_LEN],
}

impl Proof {
    /// Returns the bytes that its MAC covers, for the session of `hello`.
    pub(super) fn covered(
        hello: &[u8; REQUEST_LEN],
        handle: u16,
        share: &[u8; KEY_LEN],
        is_x25519: bool,
    ) -> [u8; MAC_AT] {
        let flag = if is_x25519 { X25519 } else { 0 };
        Writer::new()
            .u32(MAGIC)
            .u8(hello[4])
            .u8(hello[5])
            .u16(PROOF | flag | handle & HANDLE)
            .bytes(*share)
            .finish()
    }

    /// Appends the MAC to the bytes that it covers.
    pub(super) fn with_mac(covered: &[u8; MAC_AT], mac: &[u8; MAC_LEN]) -> [u8; REQUEST_LEN] {
        concat(&[covered, mac])
    }

    /// Returns the handle of the challenge that the proof answers.
    pub fn handle(&self) -> u16 {
        u16::from_le_bytes([self.bytes[6], self.bytes[7]]) & HANDLE
    }

    /// Returns whether the initiator's share is an X25519 public key.
    pub(super) fn is_x25519(&self) -> bool {
        u16::from_le_bytes([self.bytes[6], self.bytes[7]]) & X25519 != 0
    }

    /// Returns the initiator's X25519 public key, or its nonce.
    pub(super) fn share(&self) -> [u8; KEY_LEN] {
        concat(&[self.bytes.get(8..MAC_AT).unwrap_or(&[])])
    }

    pub(super) fn bytes(&self) -> &[u8; REQUEST_LEN] {
        &self.bytes
    }

    /// Returns the MAC, which identifies the proof in the response.
    pub fn mac(&self) -> [u8; MAC_LEN] {
        mac_of(&self.bytes)
    }
}

/// A received request with the MAC of its session's key: do not trust its contents before the MAC
/// has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    bytes: [u8; REQUEST_LEN],
}

impl Sealed {
    /// Returns the bytes that the MAC of `request` covers.
    pub(super) fn covered(request: &ConnectRequest, session: u64, counter: u64) -> [u8; MAC_AT] {
        let whole = with_proves(request.encode());
        let head = whole.get(..HEAD_LEN).unwrap_or(&[]);
        concat(&[head, &session.to_le_bytes(), &counter.to_le_bytes()])
    }

    /// Returns the handle that the target has given to the session.
    pub fn session(&self) -> u64 {
        self.word(HEAD_LEN)
    }

    /// Returns the request's number among the sealed requests of its session.
    pub fn counter(&self) -> u64 {
        self.word(HEAD_LEN + 8)
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(concat(&[self.bytes.get(at..at + 8).unwrap_or(&[])]))
    }

    pub(super) fn bytes(&self) -> &[u8; REQUEST_LEN] {
        &self.bytes
    }

    /// Returns the MAC, which identifies the request in the response.
    pub fn mac(&self) -> [u8; MAC_LEN] {
        mac_of(&self.bytes)
    }

    /// Returns the request, with the session's `host` and, if it has one, its `volume`. Fails with
    /// `Malformed` if the request is of another session than `id` at `epoch`, or for an admin queue
    /// pair.
    pub fn request(
        &self,
        (id, epoch): (SessionId, Epoch),
        host: HostId,
        volume: Option<VolumeName>,
    ) -> Result<ConnectRequest, Reason> {
        let head = self.bytes.get(..HEAD_LEN).unwrap_or(&[]);
        let name = volume.map_or([0; VOLUME_NAME_LEN], VolumeName::to_wire);
        let plain = concat(&[head, &host.to_wire(), &name]);
        let request = ConnectRequest::decode(&without_proves(plain))?;
        let is_its = request.session == id && request.epoch == epoch && !request.is_admin();
        is_its.then_some(request).ok_or(Reason::Malformed)
    }
}

/// A target's challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    pub(super) handle: u16,
    pub(super) nonce: [u8; KEY_LEN],
    /// The target's X25519 public key, if it has one.
    pub(super) share: Option<[u8; KEY_LEN]>,
}

impl Challenge {
    pub(super) fn encode(&self) -> [u8; CHALLENGE_LEN] {
        Writer::new()
            .u32(MAGIC)
            .u16(Reason::Challenge as u16)
            .u8(VERSION_MIN)
            .u8(VERSION_MAX)
            .u16(self.handle & HANDLE)
            .u16(if self.share.is_some() { X25519 } else { 0 })
            .u32(0)
            .bytes(self.nonce)
            .bytes(self.share.unwrap_or([0; KEY_LEN]))
            .finish()
    }

    /// Reads a challenge. Returns `None` if the bytes are not one.
    pub(super) fn decode(bytes: &[u8; CHALLENGE_LEN]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let (magic, reason) = (r.u32(), r.u16());
        let (_version_min, _version_max) = (r.u8(), r.u8());
        let (handle, flags, reserved) = (r.u16(), r.u16(), r.u32());
        let (nonce, share) = (r.bytes(), r.bytes());
        let is_x25519 = flags & X25519 != 0;
        let good = magic == MAGIC
            && Reason::from_wire(reason) == Some(Reason::Challenge)
            && handle < CHALLENGES_MAX
            && flags & !X25519 == 0
            && reserved == 0
            && (is_x25519 || share == [0; KEY_LEN]);
        good.then_some(Self {
            handle,
            nonce,
            share: is_x25519.then_some(share),
        })
    }
}
