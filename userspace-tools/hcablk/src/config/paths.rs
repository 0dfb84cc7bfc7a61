// SPDX-License-Identifier: GPL-2.0

//! The paths of a disk in the configuration.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::schema::yes;
use crate::endpoint::Endpoint;

/// The paths other than path 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paths {
    /// A path for each portal that the target reports.
    Auto,
    /// These paths.
    These(BTreeMap<PathNumber, DiskPath>),
}

impl Default for Paths {
    fn default() -> Self {
        Self::These(BTreeMap::new())
    }
}

impl Paths {
    /// Returns whether no paths are configured.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the paths that are configured one by one.
    pub fn these(&self) -> impl Iterator<Item = (&PathNumber, &DiskPath)> {
        match self {
            Self::Auto => None,
            Self::These(paths) => Some(paths),
        }
        .into_iter()
        .flatten()
    }
}

impl Paths {
    /// Returns the paths that are configured one by one, to change them.
    pub(super) fn these_mut(&mut self) -> impl Iterator<Item = &mut DiskPath> {
        match self {
            Self::Auto => None,
            Self::These(paths) => Some(paths.values_mut()),
        }
        .into_iter()
        .flatten()
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Paths;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", or paths by their numbers, such as { 1 = \"10.0.1.1\" }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Paths, E> {
                match text {
                    "auto" => Ok(Paths::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Paths, A::Error> {
                BTreeMap::deserialize(MapAccessDeserializer::new(map)).map(Paths::These)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Serialize for Paths {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::These(paths) => paths.serialize(serializer),
        }
    }
}

/// The number of a path other than path 0. As a key of a table it is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathNumber(pub u8);

impl<'de> Deserialize<'de> for PathNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .ok()
            .filter(|number: &u8| (1..=15).contains(number) && text == number.to_string())
            .map(Self)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "{text:?} is not the number of a path, 1 to 15; path 0 is the disk's own `address`"
                ))
            })
    }
}

impl Serialize for PathNumber {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A path other than path 0: an address, and a port if it is not 7744.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPath {
    /// The target's address and port.
    pub endpoint: Endpoint,
    /// Whether the path is used while the disk is connected.
    pub enabled: bool,
}

/// The long form of [`DiskPath`].
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LongPath {
    address: Endpoint,
    #[serde(default = "yes")]
    enabled: bool,
}

impl<'de> Deserialize<'de> for DiskPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = DiskPath;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "an address such as \"10.0.1.1\" or \"10.0.1.1:7745\", or { address = …, \
                     enabled = false }",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DiskPath, E> {
                Ok(DiskPath {
                    endpoint: text
                        .parse()
                        .map_err(|why| E::custom(format!("{text:?} is {why}")))?,
                    enabled: true,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DiskPath, A::Error> {
                let long = LongPath::deserialize(MapAccessDeserializer::new(map))?;
                Ok(DiskPath {
                    endpoint: long.address,
                    enabled: long.enabled,
                })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Serialize for DiskPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.enabled {
            return self.endpoint.serialize(serializer);
        }
        LongPath {
            address: self.endpoint.clone(),
            enabled: false,
        }
        .serialize(serializer)
    }
}
