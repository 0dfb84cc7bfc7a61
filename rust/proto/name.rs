// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Host ids and volume names, as text and on the wire.

use core::{fmt, str};

/// Bytes of a volume name. InfiniBand's connection request has 56 bytes of private data for its
/// user; the other fields leave this many.
pub const VOLUME_NAME_LEN: usize = 16;

/// The error for a text that is not a valid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadName;

/// A volume's name: 1 to 16 of `[A-Za-z0-9._-]`, not starting with a dot.
///
/// # Invariants
///
/// The bytes are valid name characters up to the first NUL and NUL from there
/// on; there is at least one character.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VolumeName([u8; VOLUME_NAME_LEN]);

impl VolumeName {
    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let mut bytes = [0; VOLUME_NAME_LEN];
        bytes
            .get_mut(..text.len())
            .ok_or(BadName)?
            .copy_from_slice(text.as_bytes());
        Self::from_wire(bytes)
    }

    /// Decodes a name from the wire.
    pub fn from_wire(bytes: [u8; VOLUME_NAME_LEN]) -> Result<Self, BadName> {
        let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        let (name, rest) = bytes.split_at(len);
        let good = |&b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if name.is_empty()
            || name.first() == Some(&b'.')
            || !name.iter().all(good)
            || rest.iter().any(|&b| b != 0)
        {
            return Err(BadName);
        }
        Ok(Self(bytes))
    }

    /// Encodes the name, padded with NULs.
    pub fn to_wire(self) -> [u8; VOLUME_NAME_LEN] {
        self.0
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        self.0
            .get(..len)
            .and_then(|name| str::from_utf8(name).ok())
            .unwrap_or("")
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A host's identity: a UUID, 16 bytes in the order in which it is written.
///
/// It is never the nil UUID.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HostId([u8; 16]);

impl HostId {
    /// Parses a UUID in its usual form, 8-4-4-4-12 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        const DASHES: [usize; 4] = [8, 13, 18, 23];
        if text.len() != 36 {
            return Err(BadName);
        }
        let mut id = [0u8; 16];
        let mut digits = 0;
        for (i, c) in text.bytes().enumerate() {
            if DASHES.contains(&i) {
                if c != b'-' {
                    return Err(BadName);
                }
                continue;
            }
            let digit = char::from(c).to_digit(16).ok_or(BadName)?;
            let byte = id.get_mut(digits / 2).ok_or(BadName)?;
            *byte = (*byte << 4) | digit as u8;
            digits += 1;
        }
        Self::from_wire(id)
    }

    /// Decodes an id from the wire.
    pub fn from_wire(bytes: [u8; 16]) -> Result<Self, BadName> {
        if bytes == [0; 16] {
            return Err(BadName);
        }
        Ok(Self(bytes))
    }

    /// Encodes the id.
    pub fn to_wire(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A volume's identity: a UUID, as for a host. It is independent of the volume's name, so that one
/// drive is not mistaken for a different one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeId(HostId);

impl VolumeId {
    /// Parses a UUID in its usual form.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        HostId::parse(text).map(Self)
    }

    /// Decodes an id from the wire.
    pub fn from_wire(bytes: [u8; 16]) -> Result<Self, BadName> {
        HostId::from_wire(bytes).map(Self)
    }

    /// Encodes the id.
    pub fn to_wire(self) -> [u8; 16] {
        self.0.to_wire()
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names_round_trip() {
        for text in ["a", "vol0", "vm-images_ssd.01"] {
            let name = VolumeName::parse(text).unwrap();
            assert_eq!(name.as_str(), text);
            assert_eq!(VolumeName::from_wire(name.to_wire()), Ok(name));
        }
    }

    #[test]
    fn bad_volume_names_are_refused() {
        for text in [
            "",
            "a/b",
            "../x",
            ".hidden",
            "a b",
            "12345678901234567",
            "é",
        ] {
            assert_eq!(VolumeName::parse(text), Err(BadName), "{text:?}");
        }
        let mut hole = *b"vol\0zero\0\0\0\0\0\0\0\0";
        assert_eq!(VolumeName::from_wire(hole), Err(BadName));
        hole[3] = b'-';
        assert!(VolumeName::from_wire(hole).is_ok());
    }

    #[test]
    fn host_ids_round_trip() {
        let text = "6fa459ea-ee8a-3ca4-894e-db77e160355e";
        let id = HostId::parse(text).unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(id.to_wire()[0], 0x6f);
        assert_eq!(HostId::parse(&text.to_uppercase()), Ok(id));
    }

    #[test]
    fn bad_host_ids_are_refused() {
        for text in [
            "",
            "6fa459ea-ee8a-3ca4-894e-db77e160355",
            "6fa459eaaee8a-3ca4-894e-db77e160355e",
            "6fa459ea-ee8a-3ca4-894e-db77e160355g",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert_eq!(HostId::parse(text), Err(BadName), "{text:?}");
        }
    }
}
