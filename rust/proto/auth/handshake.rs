// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The handshake of a session, on either side.

use super::{
    super::{
        connect::{REPLY_LEN, REQUEST_LEN},
        discovery::ENTRY_LEN,
        wire::prefix,
    },
    concat, label,
    wire::{with_proves, Challenge, Purpose, CHANNEL_LEN, HANDLE_AT, MAC_AT},
    Channel, Crypto, Proof, Secret, SessionKey, CHALLENGE_LEN, KEY_LEN, MAC_LEN,
};

/// Length of the input of a handshake's key: its label, the channel, the messages, and the result
/// of X25519.
const TRANSCRIPT_LEN: usize = 16 + CHANNEL_LEN + REQUEST_LEN + CHALLENGE_LEN + MAC_AT + KEY_LEN;

/// The bytes that both sides have sent before the proof's MAC, and the channel.
struct Transcript<'a> {
    hello: &'a [u8; REQUEST_LEN],
    challenge: &'a [u8; CHALLENGE_LEN],
    proof: &'a [u8; MAC_AT],
    channel: &'a Channel,
}

impl Transcript<'_> {
    /// Returns the key of the handshake, derived from a pair key and from the shared secret of
    /// X25519, if both sides have X25519.
    fn key<C: Crypto>(&self, pair: &Secret<C>, shared: Option<&Secret<C>>) -> Secret<C> {
        let mut message: [u8; TRANSCRIPT_LEN] = concat(&[
            label::HANDSHAKE,
            &self.channel.of_request().encode(),
            self.hello,
            self.challenge,
            self.proof,
            shared.map_or(&[0; KEY_LEN], |shared| &shared.bytes),
        ]);
        let key = pair.derive(&message);
        C::wipe(&mut message);
        key
    }
}

/// An initiator that is about to state its identity.
pub struct Initiator<C: Crypto> {
    pair: Secret<C>,
    hello: [u8; REQUEST_LEN],
    private: Secret<C>,
}

impl<C: Crypto> Initiator<C> {
    /// Begins the handshake for `request`, which asks for an admin queue pair or an entry; `pair`
    /// is the [pair key](Secret::pair). Returns `None` if [`Crypto::random`] fails. May sleep.
    pub fn new(pair: Secret<C>, request: &[u8; REQUEST_LEN]) -> Option<Self> {
        Some(Self {
            pair,
            hello: with_proves(*request),
            private: Secret::random()?,
        })
    }

    /// Returns the first message.
    pub fn hello(&self) -> &[u8; REQUEST_LEN] {
        &self.hello
    }

    /// Answers a challenge, on the queue pair of `channel`; `None`: `bytes` are not a challenge.
    pub fn prove(self, challenge: &[u8], channel: &Channel) -> Option<Unconfirmed<C>> {
        let challenge: &[u8; CHALLENGE_LEN] = prefix(challenge)?;
        let of_target = Challenge::decode(challenge)?;
        let private = &self.private;
        let public = of_target.share.and_then(|_| C::public(&private.bytes));
        let shared = match (of_target.share, public) {
            // A share with a known result cannot come from a target.
            (Some(theirs), Some(_)) => Some(Secret::take(&mut C::shared(&private.bytes, &theirs)?)),
            _ => None,
        };
        // Without X25519 the random bytes are not a private key but a nonce.
        let share = public.unwrap_or(private.bytes);
        let proof = Proof::covered(&self.hello, of_target.handle, &share, public.is_some());
        let transcript = Transcript {
            hello: &self.hello,
            challenge,
            proof: &proof,
            channel,
        };
        let key = transcript.key(&self.pair, shared.as_ref());
        let mac = key.mac(label::PROOF);
        Some(Unconfirmed {
            proof: Proof::with_mac(&proof, &mac),
            mac,
            key: SessionKey::new(key.derive(label::SESSION)),
        })
    }
}

/// An initiator that has answered a challenge, and cannot trust its peer before the reply.
pub struct Unconfirmed<C: Crypto> {
    proof: [u8; REQUEST_LEN],
    mac: [u8; MAC_LEN],
    key: SessionKey<C>,
}

impl<C: Crypto> Unconfirmed<C> {
    /// Returns the second message.
    pub fn proof(&self) -> &[u8; REQUEST_LEN] {
        &self.proof
    }

    /// Verifies the reply; returns it with the session's key and handle. `None`: the peer does not
    /// have the keys.
    pub fn confirm(
        self,
        reply: &[u8],
        channel: &Channel,
    ) -> Option<([u8; REPLY_LEN], SessionKey<C>, u64)> {
        let (reply, session) = self.key.open_reply(&self.mac, reply, channel)?;
        Some((reply, self.key, session))
    }

    /// Returns the entry in `bytes`; `None`: the sender does not have the keys.
    pub fn open_entry(&self, bytes: &[u8], channel: &Channel) -> Option<[u8; ENTRY_LEN]> {
        self.key.open_entry(&self.mac, bytes, channel)
    }

    /// Returns whether the sender of a reject has the keys.
    pub fn is_rejected(&self, bytes: &[u8], channel: &Channel) -> bool {
        self.key.has_rejected(&self.mac, bytes, channel)
    }
}

/// A target that has challenged an initiator: its whole state of the handshake.
pub struct Challenged<C: Crypto> {
    purpose: Purpose,
    hello: [u8; REQUEST_LEN],
    challenge: [u8; CHALLENGE_LEN],
    private: Secret<C>,
    is_x25519: bool,
}

impl<C: Crypto> Challenged<C> {
    /// Challenges the sender of `hello`, a request with this `purpose`. Returns `None` if
    /// [`Crypto::random`] fails. May sleep.
    pub fn new(purpose: Purpose, hello: [u8; REQUEST_LEN]) -> Option<Self> {
        let private = Secret::<C>::random()?;
        let share = C::public(&private.bytes);
        let mut nonce = [0; KEY_LEN];
        let challenge = C::random(&mut nonce).then_some(Challenge {
            handle: 0,
            nonce,
            share,
        })?;
        Some(Self {
            purpose,
            hello,
            challenge: challenge.encode(),
            private,
            is_x25519: share.is_some(),
        })
    }

    /// Sets the handle of the challenge, below [`CHALLENGES_MAX`](super::CHALLENGES_MAX). Before,
    /// it is 0.
    pub fn set_handle(&mut self, handle: u16) {
        let bytes = self.challenge.iter_mut().skip(HANDLE_AT);
        for (to, from) in bytes.zip(handle.to_le_bytes()) {
            *to = from;
        }
    }

    /// Returns the challenge.
    pub fn challenge(&self) -> &[u8; CHALLENGE_LEN] {
        &self.challenge
    }

    /// Returns the purpose of the initiator's request.
    pub fn purpose(&self) -> &Purpose {
        &self.purpose
    }

    /// Returns the session's key, and the index of the pair key, if `proof`, which came on
    /// `channel`, was made with one of the pair keys `pairs`. All pair keys are tried, so the
    /// duration does not reveal which one it was. The caller must not use a challenge again after a
    /// success.
    pub fn verify<'a>(
        &self,
        proof: &Proof,
        pairs: impl Iterator<Item = &'a Secret<C>>,
        channel: &Channel,
    ) -> Option<(usize, SessionKey<C>)>
    where
        C: 'a,
    {
        let has_shared = self.is_x25519 && proof.is_x25519();
        let shared = match has_shared {
            true => Some(Secret::take(&mut C::shared(
                &self.private.bytes,
                &proof.share(),
            )?)),
            false => None,
        };
        let transcript = Transcript {
            hello: &self.hello,
            challenge: &self.challenge,
            proof: &concat(&[proof.bytes()]),
            channel,
        };
        let mut found = None;
        for (place, pair) in pairs.enumerate() {
            let key = transcript.key(pair, shared.as_ref());
            if C::is_equal(&key.mac(label::PROOF), &proof.mac()) {
                found = Some((place, SessionKey::new(key.derive(label::SESSION))));
            }
        }
        found
    }
}
