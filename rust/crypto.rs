// SPDX-License-Identifier: GPL-2.0

//! The kernel's crypto library, for the functions of [`auth`](crate::proto::auth).
//!
//! X25519 is a separate module in most kernels and absent in some. Without it proofs still work;
//! the handshake reports to the peer that there is no X25519 key.
//!
//! C headers: [`include/crypto/sha2.h`](srctree/include/crypto/sha2.h),
//! [`include/crypto/curve25519.h`](srctree/include/crypto/curve25519.h).

use crate::{
    bindings,
    proto::auth::{
        Crypto,
        Secret,
        KEY_LEN,
        MAC_LEN, //
    },
};
use core::ptr;

/// The kernel's crypto library.
pub enum KernelCrypto {}

/// A secret key, overwritten when it is dropped.
pub type Key = Secret<KernelCrypto>;
/// The key of a session.
pub type SessionKey = crate::proto::auth::SessionKey<KernelCrypto>;

/// Overwrites `bytes`; the compiler does not remove this even if they are not read again.
///
/// C: `memzero_explicit()`.
pub fn wipe(bytes: &mut [u8]) {
    // SAFETY: The slice is ours.
    unsafe { bindings::hcablk_c_wipe(bytes.as_mut_ptr(), bytes.len()) };
}

impl Crypto for KernelCrypto {
    fn hmac(key: &[u8; KEY_LEN], message: &[u8]) -> [u8; KEY_LEN] {
        let mut mac = [0; KEY_LEN];
        // SAFETY: Key and message have the lengths given, and `mac` has the length of a SHA-256
        // digest.
        unsafe {
            bindings::hcablk_c_hmac_sha256(
                key.as_ptr(),
                key.len(),
                message.as_ptr(),
                message.len(),
                mac.as_mut_ptr(),
            )
        };
        mac
    }

    fn wipe(bytes: &mut [u8]) {
        wipe(bytes);
    }

    fn is_equal(a: &[u8; MAC_LEN], b: &[u8; MAC_LEN]) -> bool {
        // SAFETY: Both are of this length.
        unsafe { bindings::hcablk_c_is_equal(a.as_ptr(), b.as_ptr(), MAC_LEN) }
    }

    fn random(bytes: &mut [u8]) -> bool {
        // SAFETY: The slice is ours.
        unsafe { bindings::hcablk_c_random(bytes.as_mut_ptr(), bytes.len()) }
    }

    fn public(private: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        let mut public = [0; KEY_LEN];
        // SAFETY: All have the length of an X25519 key; a null pointer stands for the base point.
        let good = unsafe {
            bindings::hcablk_c_x25519(public.as_mut_ptr(), private.as_ptr(), ptr::null())
        };
        good.then_some(public)
    }

    fn shared(private: &[u8; KEY_LEN], public: &[u8; KEY_LEN]) -> Option<[u8; KEY_LEN]> {
        let mut shared = [0; KEY_LEN];
        // SAFETY: All have the length of an X25519 key.
        let good = unsafe {
            bindings::hcablk_c_x25519(shared.as_mut_ptr(), private.as_ptr(), public.as_ptr())
        };
        good.then_some(shared)
    }
}
