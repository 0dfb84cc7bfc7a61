// SPDX-License-Identifier: GPL-2.0

//! The primitives of proofs, from crates: independent of the kernel's code.

use crate::proto::auth::{Crypto, KEY_LEN, MAC_LEN};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

thread_local! {
    static NEXT: RefCell<VecDeque<Vec<u8>>> = const { RefCell::new(VecDeque::new()) };
    static COUNT: RefCell<u64> = const { RefCell::new(0) };
    static NO_CHANCE: Cell<bool> = const { Cell::new(false) };
}

/// Switches off this thread's random bytes, or on again.
pub fn no_chance(on: bool) {
    NO_CHANCE.set(on);
}

/// Sets this thread's next random bytes.
pub fn next_random(bytes: &[Vec<u8>]) {
    NEXT.with_borrow_mut(|next| next.extend(bytes.iter().cloned()));
}

/// All primitives, with X25519.
pub struct HostCrypto;

/// A kernel without X25519.
pub struct NoX25519;

impl Crypto for HostCrypto {
    fn hmac(key: &[u8; KEY_LEN], message: &[u8]) -> [u8; KEY_LEN] {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length will do");
        mac.update(message);
        mac.finalize().into_bytes().into()
    }

    fn wipe(bytes: &mut [u8]) {
        bytes.fill(0);
    }

    fn is_equal(a: &[u8; MAC_LEN], b: &[u8; MAC_LEN]) -> bool {
        a == b
    }

    fn random(bytes: &mut [u8]) -> bool {
        if let Some(next) = NEXT.with_borrow_mut(VecDeque::pop_front) {
            bytes.copy_from_slice(&next);
            return true;
        }
        let count = COUNT.with_borrow_mut(|count| {
            *count += 1;
            *count
        });
        bytes.copy_from_slice(&Self::hmac(&[0x77; KEY_LEN], &count.to_le_bytes()));
        !NO_CHANCE.get()
    }

    fn public(private: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        Some(x25519_dalek::x25519(*private, x25519_dalek::X25519_BASEPOINT_BYTES))
    }

    fn shared(private: &[u8; KEY_LEN], public: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        let shared = x25519_dalek::x25519(*private, *public);
        (shared != [0; KEY_LEN]).then_some(shared)
    }
}

impl Crypto for NoX25519 {
    fn hmac(key: &[u8; KEY_LEN], message: &[u8]) -> [u8; KEY_LEN] {
        HostCrypto::hmac(key, message)
    }

    fn wipe(bytes: &mut [u8]) {
        HostCrypto::wipe(bytes);
    }

    fn is_equal(a: &[u8; MAC_LEN], b: &[u8; MAC_LEN]) -> bool {
        HostCrypto::is_equal(a, b)
    }

    fn random(bytes: &mut [u8]) -> bool {
        HostCrypto::random(bytes)
    }

    fn public(_: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        None
    }

    fn shared(_: &[u8; KEY_LEN], _: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        None
    }
}
