// SPDX-License-Identifier: GPL-2.0

//! Numbers with their units, as text.

use std::fmt;

/// Splits `10 min` into number and unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start()))
}

/// Names of units, each with its factor, the smallest first.
pub(super) type Units = &'static [(&'static str, u64)];

/// Units of times, in seconds.
pub(super) const TIMES: Units = &[("s", 1), ("min", 60), ("h", 3600), ("d", 86400)];
/// Units of sizes, in bytes.
pub(super) const SIZES: Units = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads a number with its unit.
pub(super) fn parse(text: &str, units: Units, what: &str, example: &str) -> Result<u64, String> {
    let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
    let wrong = || {
        format!(
            "{text:?} is not a {what}: a number and one of {}, such as {example:?}",
            names.join(", ")
        )
    };
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let (_, factor) = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(wrong)?;
    number.checked_mul(*factor).ok_or_else(wrong)
}

/// Shows a number in the largest unit of which it is a multiple.
pub(super) fn show(f: &mut fmt::Formatter<'_>, number: u64, units: Units) -> fmt::Result {
    let largest = units
        .iter()
        .rev()
        .find(|(_, factor)| number != 0 && number % factor == 0);
    let (name, factor) = largest.unwrap_or(&units[0]);
    write!(f, "{} {name}", number / factor)
}

/// A number that is shown with its unit.
pub(super) struct Shown(pub(super) u64, pub(super) Units);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.0, self.1)
    }
}
