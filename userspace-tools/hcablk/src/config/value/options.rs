// SPDX-License-Identifier: GPL-2.0

//! Times and sizes as options of the command line: a number in the option's own unit, or a text as in the files.

use super::{Chunk, Seconds, Size, Timeout, KIB, MIB};

/// Adds `unit` to a text that is a number without a unit.
fn with_unit(text: &str, unit: &str) -> String {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number {
        format!("{text} {unit}")
    } else {
        text.to_owned()
    }
}

/// Parses a time, and returns its seconds.
pub fn seconds<const MIN: u32, const MAX: u32>(text: &str) -> Result<u32, String> {
    let time: Seconds<MIN, MAX> = with_unit(text, "s").parse()?;
    Ok(time.0)
}

/// Parses a time, and returns its seconds; `never` and `-1` are -1.
pub fn timeout(text: &str) -> Result<i64, String> {
    if text == "-1" {
        return Ok(-1);
    }
    let time: Timeout = with_unit(text, "s").parse()?;
    Ok(time.0.map_or(-1, i64::from))
}

/// Parses a size, and returns it in units of `UNIT` bytes.
pub fn size<const UNIT: u32, const MIN: u32, const MAX: u32, const STEP: u32>(
    text: &str,
) -> Result<u32, String> {
    let unit = match UNIT {
        MIB => "MiB",
        KIB => "KiB",
        _ => "B",
    };
    let size: Size<UNIT, MIN, MAX, STEP> = with_unit(text, unit).parse()?;
    Ok(size.0)
}

/// Parses the length of chunks, and returns it in KiB.
pub fn chunk_kib(text: &str) -> Result<u32, String> {
    let chunk: Chunk = with_unit(text, "KiB").parse()?;
    Ok(chunk.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_units_of_the_files_or_none() {
        for (text, right) in [("30", 30), ("30 s", 30), ("10min", 600), ("1 h", 3600)] {
            assert_eq!(seconds::<1, 3600>(text), Ok(right), "{text}");
        }
        for wrong in [
            "",
            "0",
            "3601",
            "2 h",
            "-1",
            "1 m",
            "never",
            "99999999999999999999",
            "1.5",
        ] {
            assert!(seconds::<1, 3600>(wrong).is_err(), "{wrong}");
        }
        for (text, right) in [("-1", -1), ("never", -1), ("0", 0), ("7 d", 604_800)] {
            assert_eq!(timeout(text), Ok(right), "{text}");
        }
        for wrong in ["-2", "8 d", "Never"] {
            assert!(timeout(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_the_units_of_the_files_or_that_of_the_option() {
        for (text, right) in [("4096", 4096), ("4 GiB", 4096), ("0", 0), ("0 B", 0)] {
            assert_eq!(size::<MIB, 0, 1_048_576, 1>(text), Ok(right), "{text}");
        }
        for wrong in ["1 KiB", "2 TiB", "4 GB", "x"] {
            assert!(size::<MIB, 0, 1_048_576, 1>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(size::<KIB, 4, 4096, 4>("1 MiB"), Ok(1024));
        let error = size::<KIB, 4, 4096, 4>("6").unwrap_err();
        assert_eq!(
            error,
            "\"6 KiB\" is not a multiple of 4 KiB from 4 KiB to 4 MiB"
        );
        assert_eq!(size::<1, 0, 65536, 1>("8 KiB"), Ok(8192));
        assert_eq!(chunk_kib("512"), Ok(512));
        assert_eq!(chunk_kib("64 KiB"), Ok(64));
        assert!(chunk_kib("100").is_err());
    }
}
