// SPDX-License-Identifier: GPL-2.0

//! Evicted hosts, as the kernel shows them.

use serde::Serialize;
use uuid::Uuid;

/// A host that a volume has evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Evicted {
    /// The host's id.
    pub host: Uuid,
    /// Whether the drive has not finished the host's requests yet.
    pub draining: bool,
}

impl Evicted {
    /// Reads lines of `<host>` or `<host> draining`.
    pub fn parse_all(text: &str) -> Vec<Self> {
        let parse = |line: &str| {
            let mut fields = line.split_whitespace();
            Some(Self {
                host: Uuid::try_parse(fields.next()?).ok()?,
                draining: fields.next() == Some("draining"),
            })
        };
        text.lines().filter_map(parse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_hosts() {
        let text = "5f2c1d6e-8a0b-4c3d-9e7f-00000000000a\n\
                    5f2c1d6e-8a0b-4c3d-9e7f-00000000000b draining\n...\n";
        let found: Vec<_> = Evicted::parse_all(text)
            .iter()
            .map(|one| (one.host.as_bytes()[15], one.draining))
            .collect();
        assert_eq!(found, [(10, false), (11, true)]);
    }
}
