// SPDX-License-Identifier: GPL-2.0

//! The algorithms of proofs: HMAC-SHA256 and X25519, from well-known crates.

use hcablk_core::proto::auth::{self, KEY_LEN, MAC_LEN};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize as _;

/// See the module.
pub(crate) struct Crypto;

/// A secret of this host, a target, or both.
pub(crate) type Secret = auth::Secret<Crypto>;
/// The key of a session.
pub(crate) type SessionKey = auth::SessionKey<Crypto>;

impl auth::Crypto for Crypto {
    fn hmac(key: &[u8; KEY_LEN], message: &[u8]) -> [u8; KEY_LEN] {
        // HMAC accepts a key of any length, so this does not fail.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
            unreachable!("HMAC takes keys of any length")
        };
        mac.update(message);
        mac.finalize().into_bytes().into()
    }

    fn wipe(bytes: &mut [u8]) {
        bytes.zeroize();
    }

    fn is_equal(a: &[u8; MAC_LEN], b: &[u8; MAC_LEN]) -> bool {
        a.ct_eq(b).into()
    }

    fn random(bytes: &mut [u8]) -> bool {
        getrandom::fill(bytes).is_ok()
    }

    fn public(private: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        let base = x25519_dalek::X25519_BASEPOINT_BYTES;
        Some(x25519_dalek::x25519(*private, base))
    }

    fn shared(private: &[u8; KEY_LEN], public: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        let shared = x25519_dalek::x25519(*private, *public);
        let is_known: bool = shared.ct_eq(&[0; KEY_LEN]).into();
        (!is_known).then_some(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcablk_core::proto::auth::Crypto as _;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    fn key(hex: &str) -> [u8; KEY_LEN] {
        bytes(hex).try_into().unwrap()
    }

    /// RFC 7748, 6.1.
    #[test]
    fn x25519_is_that_of_the_rfc() {
        let alice = key("77076d0a7318a57d3c16c17251b26645df4c31f5e0a4b1c0e2dcdda4b5b9d4d5");
        let public = key("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        assert!(Crypto::shared(&alice, &public).is_some());
        assert_eq!(Crypto::shared(&alice, &[0; KEY_LEN]), None);
    }

    /// RFC 4231, test case 2, its key padded with zeroes, as HMAC does.
    #[test]
    fn hmac_is_that_of_the_rfc() {
        let mut key = [0; KEY_LEN];
        key[..4].copy_from_slice(b"Jefe");
        let mac = Crypto::hmac(&key, b"what do ya want for nothing?");
        let known = bytes("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(mac.to_vec(), known);
    }
}
