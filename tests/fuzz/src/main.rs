// SPDX-License-Identifier: GPL-2.0

//! libFuzzer on one decoder, the one that `HCABLK_DECODER` names. If `HCABLK_SEEDS` names a
//! folder, the program only writes valid inputs for the decoder there.

#![no_main]

mod engine;

use hcablk_host_tests::decoders::{self, Decoder};
use libfuzzer_sys::fuzz_target;
use std::{env, fs, path::Path, process::exit, sync::OnceLock};

static CHECK: OnceLock<fn(&[u8]) -> bool> = OnceLock::new();

fn chosen() -> Decoder {
    let name = env::var("HCABLK_DECODER").unwrap_or_default();
    let mut known = decoders::ALL.iter().chain([&engine::DECODER]);
    match known.find(|decoder| decoder.name == name) {
        Some(decoder) => *decoder,
        None => {
            eprintln!("HCABLK_DECODER names none of the decoders");
            exit(2);
        }
    }
}

fuzz_target!(init: {
    let decoder = chosen();
    if let Some(folder) = env::var_os("HCABLK_SEEDS") {
        for (n, seed) in (decoder.seeds)().iter().enumerate() {
            assert!((decoder.check)(seed), "a seed is not accepted");
            fs::write(Path::new(&folder).join(format!("seed-{n}")), seed).expect("writing a seed");
        }
        exit(0);
    }
    let _ = CHECK.set(decoder.check);
}, |bytes: &[u8]| {
    if let Some(check) = CHECK.get() {
        check(bytes);
    }
});
