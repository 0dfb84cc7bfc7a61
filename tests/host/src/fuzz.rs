// SPDX-License-Identifier: GPL-2.0

//! Random bytes for every decoder. `HCABLK_SEED` and `HCABLK_MESSAGES` set the seed and the number of messages.

use crate::decoders::{Decoder, ALL};
use std::panic::{catch_unwind, resume_unwind};

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

/// Returns a message that differs from `good` a little or much.
fn bad(rng: &mut Rng, good: &[u8]) -> Vec<u8> {
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
    bytes
}

fn throw(decoder: &Decoder) {
    let seed = setting("HCABLK_SEED", 1);
    let good = (decoder.seeds)();
    let mut rng = Rng(seed);
    let mut accepted = 0;
    for n in 0..setting("HCABLK_MESSAGES", 100_000) {
        let bytes = bad(&mut rng, &good[n as usize % good.len()]);
        match catch_unwind(|| (decoder.check)(&bytes)) {
            Ok(good) => accepted += u64::from(good),
            Err(panic) => {
                println!("seed {seed}, message {n}: {bytes:02x?}");
                resume_unwind(panic);
            }
        }
    }
    assert!(accepted > 0);
}

#[test]
fn seeds_are_accepted() {
    for decoder in ALL {
        for seed in (decoder.seeds)() {
            assert!((decoder.check)(&seed), "{}: {seed:02x?}", decoder.name);
        }
    }
}

/// A test for each decoder, so that they run at the same time.
macro_rules! decoders {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            throw(ALL.iter().find(|d| d.name == stringify!($name)).expect("a decoder"));
        })*

        #[test]
        fn none_is_forgotten() {
            assert_eq!(ALL.len(), [$(stringify!($name)),*].len());
        }
    };
}

decoders!(request response admin_request admin_response answers connect reply reject asked challenge told name credits);
