// SPDX-License-Identifier: GPL-2.0

//! Names that the kernel modules accept, checked before they are used as folder names.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::address::PciAddress;

/// Checks the name of a volume. It must not begin with a dot: a file of that name would be hidden.
fn check_volume(text: &str) -> Result<(), String> {
    check("volume", text, 16)?;
    if text.starts_with('.') {
        return Err("a volume name does not begin with '.'".to_owned());
    }
    Ok(())
}

fn check_device(text: &str) -> Result<(), String> {
    check("device", text, 63)
}

fn check_port(text: &str) -> Result<(), String> {
    check("port", text, 63)
}

fn check_host(text: &str) -> Result<(), String> {
    check("host", text, 63)
}

fn check(what: &str, text: &str, longest: usize) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if text.is_empty()
        || text.len() > longest
        || !text.bytes().all(allowed)
        || text == "."
        || text == ".."
    {
        return Err(format!(
            "a {what} name has 1 to {longest} letters, digits, '.', '_' or '-'"
        ));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $type(String);

        impl $type {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                $check(text)?;
                Ok(Self(text.to_owned()))
            }
        }
    };
}

name! {
    /// The name of a volume, as the wire protocol carries it.
    VolumeName, check_volume
}

name! {
    /// The name of a device on this machine.
    DeviceName, check_device
}

name! {
    /// The name of a port of this machine's target.
    PortName, check_port
}

name! {
    /// The name of a host, for people.
    HostName, check_host
}

impl From<&VolumeName> for DeviceName {
    /// Converts a volume's name: every volume name is a valid device name.
    fn from(volume: &VolumeName) -> Self {
        Self(volume.0.clone())
    }
}

/// Parses the provider of peer memory: `auto`, or the address of a PCI device, which is converted
/// to the driver's form.
pub fn parse_provider(text: &str) -> Result<String, String> {
    if text == "auto" {
        return Ok(text.to_owned());
    }
    PciAddress::parse(text)
        .map(|address| address.to_string())
        .ok_or_else(|| "neither `auto` nor a PCI address like 0000:81:00.0".to_owned())
}

/// The driver's default of a volume's `chunk_kib`.
pub const CHUNK_KIB: u32 = 128;

/// Parses the length of chunks in KiB, as the target's driver accepts it.
///
/// # Errors
///
/// It is neither 0 nor a power of two from 64 to 512.
pub fn parse_chunk_kib(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|kib| [0, 64, 128, 256, 512].contains(kib))
        .ok_or_else(|| "none of 0, 64, 128, 256, 512".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names() {
        for good in ["a", "data", "db.01_x-y", "0123456789abcdef"] {
            assert_eq!(good.parse::<VolumeName>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            ".data",
            "a b",
            "a/b",
            "ä",
            "0123456789abcdefg",
            "a\n",
        ] {
            assert!(bad.parse::<VolumeName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn device_names_are_longer() {
        assert!("x".repeat(63).parse::<DeviceName>().is_ok());
        assert!("x".repeat(64).parse::<DeviceName>().is_err());
    }

    #[test]
    fn chunks_are_powers_of_two() {
        for right in [0, 64, 512] {
            assert_eq!(parse_chunk_kib(&right.to_string()), Ok(right));
        }
        for wrong in ["", "32", "100", "1024", "x"] {
            assert!(parse_chunk_kib(wrong).is_err(), "{wrong}");
        }
    }
}
