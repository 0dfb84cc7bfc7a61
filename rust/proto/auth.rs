// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Mutual authentication of the two sides of a session, before anything is created for it.
//!
//! ```text
//!  initiator                                                   target
//!  Initiator ──── hello: the request for the admin queue pair ───►
//!            ◄─── challenge, as a reject: nonce, X25519 key ────── Challenged
//!  Unconfirmed ── proof: X25519 key or nonce, MAC ───────────────►
//!            ◄─── sealed reply: handle of the session, MAC ─────── SessionKey
//!  SessionKey ─── sealed request of another queue pair ──────────►
//!            ◄─── sealed reply, or sealed reject ─────────────────
//! ```
//!
//! All of it is private data of the connection manager's messages: there is no queue pair at the
//! target before the proof. When a target has [verified](Challenged::verify) a proof, it removes
//! the challenge from its table, so that a challenge is used only once, and only by its owner.
//!
//! A [question](super::discovery) is proven in the same way, and the reply is a sealed entry, in
//! the private data of a reject.
//!
//! - A *pair key* is derived from the host's key and the target's. Only these two machines have
//!   both keys, unless keys are shared with others.
//! - The MACs of the handshake cover every byte that both sides have sent, and the [`Channel`]:
//!   their ports and queue pairs.
//! - A [`SessionKey`] seals the messages after the handshake.
//!
//! `docs/reference/protocol.md` argues why that is enough, against which attackers. The hash
//! functions come from [`Crypto`]: the kernel's library in the modules, others in tests on the
//! host.

mod handshake;
mod seal;
mod window;
mod wire;

pub use self::{
    handshake::{Challenged, Initiator, Unconfirmed},
    seal::SessionKey,
    window::Window,
    wire::{Channel, End, Proof, Purpose, RequestForm, Sealed},
};

use core::marker::PhantomData;

/// Bytes of a key, a nonce, an X25519 key.
pub const KEY_LEN: usize = 32;
/// Bytes of a MAC on the wire: the first half of an HMAC-SHA256.
pub const MAC_LEN: usize = 16;
/// Bytes of a challenge.
pub const CHALLENGE_LEN: usize = 80;
/// Bytes of a reply that carries a MAC.
pub const SEALED_REPLY_LEN: usize = 112;
/// Bytes of a reject that carries a MAC.
pub const SEALED_REJECT_LEN: usize = 32;
/// Bytes of an entry of a list that carries a MAC.
pub const SEALED_ENTRY_LEN: usize = 80;
/// Handles of challenges are below this.
pub const CHALLENGES_MAX: u16 = 1 << 14;
/// Maximum number of keys of one side that are valid at the same time, so that a key can be changed
/// while it is in use.
pub const KEYS_MAX: usize = 2;

/// The primitives of proofs.
pub trait Crypto: Sized {
    /// Returns the HMAC-SHA256 of `message` by `key`.
    fn hmac(key: &[u8; KEY_LEN], message: &[u8]) -> [u8; KEY_LEN];

    /// Overwrites `bytes`, which are not needed any more, even if nothing reads them afterwards.
    fn wipe(bytes: &mut [u8]);

    /// Returns whether both are the same, in a time that does not depend on where they differ.
    fn is_equal(a: &[u8; MAC_LEN], b: &[u8; MAC_LEN]) -> bool;

    /// Fills `bytes` with unpredictable data; `false`: a signal interrupted it. May sleep.
    fn random(bytes: &mut [u8]) -> bool;

    /// Returns the X25519 public key of `private`; `None` if there is no X25519 here.
    fn public(private: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]>;

    /// Returns the shared secret of an X25519 exchange; `None` if `public` is a point with which
    /// everybody would know that secret.
    fn shared(private: &[u8; KEY_LEN], public: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]>;
}

/// 32 secret bytes, which are overwritten when they are dropped. A move leaves a copy behind, as
/// all moves do; long-lived secrets are in boxes.
pub struct Secret<C: Crypto> {
    bytes: [u8; KEY_LEN],
    _crypto: PhantomData<C>,
}

impl<C: Crypto> Secret<C> {
    /// Makes a secret of `bytes`, and overwrites them.
    pub fn take(bytes: &mut [u8; KEY_LEN]) -> Self {
        let secret = Self::from_bytes(*bytes);
        C::wipe(bytes);
        secret
    }

    fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self {
            bytes,
            _crypto: PhantomData,
        }
    }

    /// Creates a random secret; `None` if [`Crypto::random`] fails.
    pub fn random() -> Option<Self> {
        let mut secret = Self::from_bytes([0; KEY_LEN]);
        C::random(&mut secret.bytes).then_some(secret)
    }

    /// Copies the secret. May leave a copy behind, as a move does.
    pub fn copy(&self) -> Self {
        Self::from_bytes(self.bytes)
    }

    /// Copies `other` into this one, and leaves no copy behind.
    pub fn copy_from(&mut self, other: &Self) {
        self.bytes.copy_from_slice(&other.bytes);
    }

    /// Returns whether both secrets are the same. For secrets of this side: the duration reveals
    /// nothing about bytes that the other side did not choose.
    pub fn is_same(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }

    /// Parses 64 hexadecimal digits; `None` for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 2 * KEY_LEN {
            return None;
        }
        let mut secret = Self::from_bytes([0; KEY_LEN]);
        let digits = text.as_bytes().chunks_exact(2);
        for (byte, digits) in secret.bytes.iter_mut().zip(digits) {
            for digit in digits {
                let digit = char::from(*digit).to_digit(16)?;
                *byte = *byte << 4 | digit as u8;
            }
        }
        // All zeroes: a key that was never set.
        let is_set = secret.bytes.iter().any(|byte| *byte != 0);
        is_set.then_some(secret)
    }

    /// Derives the pair key of the host with this key and the target with the key `target`.
    pub fn pair(&self, target: &Self) -> Self {
        let mut message: [u8; 48] = concat(&[label::PAIR, &target.bytes]);
        let pair = self.derive(&message);
        C::wipe(&mut message);
        pair
    }

    /// Returns the fingerprint of the secret, from which the secret cannot be computed.
    pub fn print(&self) -> Print {
        Print(self.mac(label::PRINT))
    }

    /// Derives another secret from this one and `message`.
    fn derive(&self, message: &[u8]) -> Self {
        Self::take(&mut C::hmac(&self.bytes, message))
    }

    /// Returns the MAC of `message`.
    fn mac(&self, message: &[u8]) -> [u8; MAC_LEN] {
        let mut whole = C::hmac(&self.bytes, message);
        let mac = concat(&[&whole]);
        C::wipe(&mut whole);
        mac
    }
}

/// The fingerprint of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print([u8; MAC_LEN]);

impl<C: Crypto> Drop for Secret<C> {
    fn drop(&mut self) {
        C::wipe(&mut self.bytes);
    }
}

/// The prefixes of HMACs: no HMAC is accepted in place of one for another purpose, or from the
/// other side.
mod label {
    /// For fingerprints, which are not sent.
    pub(super) const PRINT: &[u8; 16] = b"hcablk/2 print  ";
    pub(super) const PAIR: &[u8; 16] = b"hcablk/2 pair   ";
    pub(super) const HANDSHAKE: &[u8; 16] = b"hcablk/2 shake  ";
    pub(super) const PROOF: &[u8; 16] = b"hcablk/2 proof  ";
    pub(super) const SESSION: &[u8; 16] = b"hcablk/2 session";
    pub(super) const REQUEST: &[u8; 16] = b"hcablk/2 request";
    pub(super) const REPLY: &[u8; 16] = b"hcablk/2 reply  ";
    pub(super) const REJECT: &[u8; 16] = b"hcablk/2 reject ";
    pub(super) const ENTRY: &[u8; 16] = b"hcablk/2 entry  ";
}

/// Returns the first `N` bytes of `parts`, one after the other; zeroes if there are fewer.
fn concat<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut whole = [0; N];
    let bytes = parts.iter().flat_map(|part| part.iter());
    for (to, from) in whole.iter_mut().zip(bytes) {
        *to = *from;
    }
    whole
}

#[cfg(test)]
mod tests;
