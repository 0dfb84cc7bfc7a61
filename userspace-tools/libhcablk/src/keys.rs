// SPDX-License-Identifier: GPL-2.0

//! Keys as text, in the form in which `hcablk key show` prints them.

use crate::crypto::Secret;
use hcablk_core::proto::auth::KEY_LEN;
use std::{fmt, str::FromStr};

const PREFIX: &str = "hcablk-key-1:";

/// A key of this host, or of a target. Debug output does not contain it, and its memory is
/// overwritten when it is dropped.
pub struct Key(pub(crate) Secret);

/// The reason why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key: {0}")]
pub struct BadKey(&'static str);

impl FromStr for Key {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let rest = text.trim().strip_prefix(PREFIX);
        let rest = rest.ok_or(BadKey("it does not begin with hcablk-key-1:"))?;
        let (digits, checksum) = rest
            .split_once('-')
            .ok_or(BadKey("its checksum is missing"))?;
        let secret =
            Secret::from_hex(digits).ok_or(BadKey("it does not have 64 hexadecimal digits"))?;
        let pairs = digits.as_bytes().chunks_exact(2).take(KEY_LEN);
        let mut hasher = crc32fast::Hasher::new();
        for pair in pairs {
            let byte = std::str::from_utf8(pair).map(|pair| u8::from_str_radix(pair, 16));
            let Ok(Ok(byte)) = byte else {
                return Err(BadKey("it does not have 64 hexadecimal digits"));
            };
            hasher.update(&[byte]);
        }
        match u32::from_str_radix(checksum, 16) == Ok(hasher.finalize()) {
            true => Ok(Self(secret)),
            false => Err(BadKey("its checksum is wrong")),
        }
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        Self(self.0.copy())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(bytes: [u8; KEY_LEN]) -> String {
        let digits = bytes.map(|byte| format!("{byte:02x}")).concat();
        format!("{PREFIX}{digits}-{:08x}", crc32fast::hash(&bytes))
    }

    #[test]
    fn a_printed_key_is_read_and_anything_else_is_refused() {
        let text = printed([7; KEY_LEN]);
        assert!(text.parse::<Key>().is_ok());
        assert!(format!("{text}\n").parse::<Key>().is_ok());
        let mut other = text.clone();
        other.replace_range(20..21, "f");
        for bad in [&text[1..], &text[..40], &other, &printed([0; KEY_LEN]), ""] {
            assert!(bad.parse::<Key>().is_err(), "{bad}");
        }
    }
}
