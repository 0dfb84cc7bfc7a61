// SPDX-License-Identifier: GPL-2.0

//! Numbers in few characters.

/// Shortens a number to 6 characters at most, in steps of `step`. Numbers up to `largest_whole`
/// stay as they are.
fn short(number: u64, step: u64, largest_whole: u64) -> String {
    if number <= largest_whole {
        return number.to_string();
    }
    let mut unit = 1_u64;
    let mut name = "";
    for next in ["k", "M", "G", "T", "P", "E"] {
        let Some(larger) = unit.checked_mul(step).filter(|larger| *larger <= number) else {
            break;
        };
        unit = larger;
        name = next;
    }
    let whole = number / unit;
    if whole < 100 {
        let tenth = u128::from(number % unit) * 10 / u128::from(unit);
        format!("{whole}.{tenth}{name}")
    } else {
        format!("{whole}{name}")
    }
}

/// Shortens a count, in thousands.
pub(crate) fn count(number: u64) -> String {
    short(number, 1000, 99_999)
}

/// Shortens bytes, in units of 1024.
pub(crate) fn bytes(number: u64) -> String {
    short(number, 1024, 1023).to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        for (number, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (1_250_000, "1.2M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(count(number), text);
        }
    }

    #[test]
    fn sizes() {
        for (number, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1536, "1.5K"),
            (1_048_575, "1023K"),
            (5 << 30, "5.0G"),
            (u64::MAX, "15.9E"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }
}
