// SPDX-License-Identifier: GPL-2.0

//! What the text of an attribute says.

use kernel::prelude::*;

/// A number within bounds; `EINVAL`: it is none, `ERANGE`: it is not within.
pub fn number(text: &str, min: u32, max: u32) -> Result<u32> {
    let value: u32 = text.parse().map_err(|_| EINVAL)?;
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(ERANGE)
    }
}

/// 0 or 1, else `EINVAL`.
pub fn boolean(text: &str) -> Result<bool> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(EINVAL),
    }
}
