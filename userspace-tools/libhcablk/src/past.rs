// SPDX-License-Identifier: GPL-2.0

//! The state that a program needs to take over the work of a killed one.

use hcablk_core::proto::{connect::ExportInstance, name::VolumeId};
use std::{fmt, str::FromStr};

/// The state that a program with an open volume leaves for the program that takes over its work if
/// it is killed: the volume, and the export that acknowledged writes. With it the other program can
/// find out whether unflushed writes are lost.
///
/// It is stored as text. It belongs to a session number: [`Options::session`](crate::Options::session).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    pub(crate) id: VolumeId,
    /// `None`: the target may forget acknowledged writes without a report.
    pub(crate) instance: Option<ExportInstance>,
    /// Writes may have been in a volatile cache of the target.
    pub(crate) was_volatile: bool,
    pub(crate) has_lost_writes: bool,
}

impl Past {
    /// Returns the id of the volume, a UUID: its wwid.
    pub fn id(&self) -> String {
        self.id.to_string()
    }
}

/// The reason why a text is not a valid `Past`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the state that a program leaves of a volume")]
pub struct BadPast;

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instance = self.instance.map_or(0, ExportInstance::number);
        // Both states have a word, so that a truncated text is not valid.
        let cache = if self.was_volatile {
            "volatile"
        } else {
            "durable"
        };
        let writes = if self.has_lost_writes { "lost" } else { "kept" };
        write!(f, "{} {instance:016x} {cache} {writes}", self.id)
    }
}

impl FromStr for Past {
    type Err = BadPast;

    fn from_str(text: &str) -> Result<Self, BadPast> {
        let words: Vec<_> = text.split(' ').collect();
        let [id, instance, cache, writes] = words[..] else {
            return Err(BadPast);
        };
        if instance.len() != 16 || !instance.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BadPast);
        }
        let instance = u64::from_str_radix(instance, 16).map_err(|_| BadPast)?;
        Ok(Self {
            id: VolumeId::parse(id).map_err(|_| BadPast)?,
            instance: ExportInstance::from_number(instance),
            was_volatile: match cache {
                "volatile" => true,
                "durable" => false,
                _ => return Err(BadPast),
            },
            has_lost_writes: match writes {
                "lost" => true,
                "kept" => false,
                _ => return Err(BadPast),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_past_is_parsed_again() {
        let id = VolumeId::parse("6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45").unwrap();
        for instance in [0, 7, u64::MAX] {
            for has_lost_writes in [false, true] {
                let past = Past {
                    id,
                    instance: ExportInstance::from_number(instance),
                    was_volatile: instance == 7,
                    has_lost_writes,
                };
                assert_eq!(past.to_string().parse(), Ok(past));
            }
        }
        let whole = "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 0000000000000007 volatile lost";
        assert!(whole.parse::<Past>().is_ok());
        // A truncated text would claim that no write can be lost.
        for length in 0..whole.len() {
            let cut = &whole[..length];
            assert_eq!(cut.parse::<Past>(), Err(BadPast), "{cut}");
        }
        for bad in [
            "x 0000000000000001 durable kept",
            "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 +000000000000007 durable kept",
            "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 0000000000000007 durable gone",
            "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 0000000000000007 durable kept ",
        ] {
            assert_eq!(bad.parse::<Past>(), Err(BadPast), "{bad}");
        }
    }
}
