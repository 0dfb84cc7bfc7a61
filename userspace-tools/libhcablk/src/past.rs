// SPDX-License-Identifier: GPL-2.0

//! What a program that goes on with the work of another one has to know of it.

use hcablk_core::proto::{connect::ExportInstance, name::VolumeId};
use std::{fmt, str::FromStr};

/// What a program with an open volume leaves for one that goes on with its work when it was killed: which volume it was, and by
/// which export of it writes were acknowledged. So the other one knows whether writes are lost that nobody has flushed.
///
/// It is kept as text. The number of the session belongs to it: [`Options::session`](crate::Options::session).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    pub(crate) id: VolumeId,
    /// `None`: the target may forget what it acknowledged without telling.
    pub(crate) instance: Option<ExportInstance>,
    /// Writes may have been in a volatile cache of the target's.
    pub(crate) was_volatile: bool,
    pub(crate) has_lost_writes: bool,
}

impl Past {
    /// Returns the id of the volume, a UUID: its wwid.
    pub fn id(&self) -> String {
        self.id.to_string()
    }
}

/// Why a text is no past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not what a program leaves of a volume")]
pub struct BadPast;

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instance = self.instance.map_or(0, ExportInstance::number);
        write!(f, "{} {instance:016x}", self.id)?;
        if self.was_volatile {
            f.write_str(" volatile")?;
        }
        if self.has_lost_writes {
            f.write_str(" lost")?;
        }
        Ok(())
    }
}

impl FromStr for Past {
    type Err = BadPast;

    fn from_str(text: &str) -> Result<Self, BadPast> {
        let mut words = text.split(' ');
        let id = words.next().ok_or(BadPast)?;
        let instance = words.next().ok_or(BadPast)?;
        let instance = u64::from_str_radix(instance, 16).map_err(|_| BadPast)?;
        let mut past = Self {
            id: VolumeId::parse(id).map_err(|_| BadPast)?,
            instance: ExportInstance::of(instance),
            was_volatile: false,
            has_lost_writes: false,
        };
        for word in words {
            match word {
                "volatile" => past.was_volatile = true,
                "lost" => past.has_lost_writes = true,
                _ => return Err(BadPast),
            }
        }
        Ok(past)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_printed_is_read() {
        let id = VolumeId::parse("6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45").unwrap();
        for instance in [0, 7, u64::MAX] {
            for has_lost_writes in [false, true] {
                let past = Past {
                    id,
                    instance: ExportInstance::of(instance),
                    was_volatile: instance == 7,
                    has_lost_writes,
                };
                assert_eq!(past.to_string().parse(), Ok(past));
            }
        }
        for bad in [
            "",
            "x 1",
            "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45",
            "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 1 gone",
        ] {
            assert_eq!(bad.parse::<Past>(), Err(BadPast), "{bad}");
        }
    }
}
