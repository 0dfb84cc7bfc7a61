// SPDX-License-Identifier: GPL-2.0

//! Parses the text of attributes.

use kernel::prelude::*;

/// Parses a number from `min` to `max`. Fails with `EINVAL` if `text` is not a number, and with
/// `ERANGE` if the number is outside these bounds.
pub fn number(text: &str, min: u32, max: u32) -> Result<u32> {
    let value: u32 = text.parse().map_err(|_| EINVAL)?;
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(ERANGE)
    }
}

/// Parses 0 or 1. Fails with `EINVAL` for anything else.
pub fn boolean(text: &str) -> Result<bool> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(EINVAL),
    }
}
