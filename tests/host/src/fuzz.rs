// SPDX-License-Identifier: GPL-2.0

//! Bytes by the seed for every decoder: none panics, and what one accepts is
//! what its encoder writes. `HCABLK_SEED` and `HCABLK_MESSAGES` choose.

use crate::proto::{
    connect::{Reject, Reply, Request as Connect, REPLY_LEN, REQUEST_LEN},
    message::{Request, Response},
};

/// splitmix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// Calls `f` with many messages near to `good`, and some that are far from it.
fn throw(good: &[u8], mut f: impl FnMut(&[u8])) {
    let seed = setting("HCABLK_SEED", 1);
    println!("seed {seed}");
    let mut rng = Rng(seed);
    for _ in 0..setting("HCABLK_MESSAGES", 100_000) {
        let mut bytes = good.to_vec();
        if rng.below(8) == 0 {
            bytes.resize(rng.below(2 * good.len()), 0);
        }
        let len = bytes.len();
        let changes = match rng.below(16) {
            0 => len,
            _ => rng.below(5).min(len),
        };
        for _ in 0..changes {
            let at = rng.below(len);
            bytes[at] = match rng.below(3) {
                0 => bytes[at] ^ (1 << rng.below(8)),
                1 => [0, 1, 2, 3, 0x7f, 0x80, 0xff][rng.below(7)],
                _ => rng.next() as u8,
            };
        }
        f(&bytes);
    }
}

#[test]
fn messages_of_an_initiator() {
    let mut good = [0; 40];
    good[0] = 2;
    good[17] = 2;
    good[32] = 1;
    let mut accepted = 0;
    throw(&good, |bytes| {
        if let Ok(request) = Request::decode(bytes) {
            assert_eq!(request.encode()[..], *bytes, "{bytes:02x?}");
            accepted += 1;
        }
    });
    assert!(accepted > 0);
}

#[test]
fn messages_of_a_target() {
    let mut good = [0; 16];
    good[0] = 0x80;
    let mut accepted = 0;
    throw(&good, |bytes| {
        if let Some(response) = Response::decode(bytes) {
            assert_eq!(response.encode()[..], *bytes, "{bytes:02x?}");
            accepted += 1;
        }
    });
    assert!(accepted > 0);
}

fn connect_request() -> [u8; REQUEST_LEN] {
    let mut good = [0; REQUEST_LEN];
    good[..12].copy_from_slice(b"HCAB\x01\x01\x10\0\0\x01\0\0");
    good[12] = 7;
    good[20] = 1;
    good[24] = 1;
    good[40..44].copy_from_slice(b"vol1");
    good
}

#[test]
fn connection_requests() {
    let mut accepted = 0;
    throw(&connect_request(), |bytes| {
        if let Ok(request) = Connect::decode(bytes) {
            assert_eq!(request.encode()[..], bytes[..REQUEST_LEN], "{bytes:02x?}");
            accepted += 1;
        }
    });
    assert!(accepted > 0);
}

#[test]
fn replies_and_rejects() {
    let request = Connect::decode(&connect_request()).unwrap();
    let mut good = [0; REPLY_LEN];
    good[..8].copy_from_slice(b"HCAB\x01\0\x10\0");
    good[10] = 1;
    good[16] = 9;
    good[17] = 12;
    good[21] = 0x10;
    good[24] = 7;
    good[32] = 1;
    let mut accepted = 0;
    throw(&good, |bytes| {
        if let Some(reply) = Reply::decode(bytes, &request) {
            // What is ignored may differ, what is meant may not.
            assert_eq!(
                Reply::decode(&reply.encode(), &request),
                Some(reply),
                "{bytes:02x?}"
            );
            accepted += 1;
        }
        if let Some(reject) = Reject::decode(bytes) {
            assert_eq!(Reject::decode(&reject.encode()), Some(reject));
        }
    });
    assert!(accepted > 0);
}
