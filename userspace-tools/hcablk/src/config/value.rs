// SPDX-License-Identifier: GPL-2.0

//! The values of settings. In the files values have units; in configfs they are numbers in the unit of the attribute.

pub mod options;
#[cfg(test)]
mod tests;
mod units;

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::hostid;
use crate::names::{parse_chunk_kib, parse_provider, DeviceName, HostName, PortName, VolumeName};
use crate::target::{Mode, WriteCache};
use crate::tuning::Policy;
use units::{Shown, SIZES, TIMES};

/// A value that an attribute of configfs can have.
pub trait Setting: Sized {
    /// Returns the attribute's text.
    fn to_attribute(&self) -> String;

    /// Reads the attribute's text; `None` if this version does not know the value.
    fn from_attribute(text: &str) -> Option<Self>;
}

/// Reads a string of a file with [`FromStr`]; the error names the expected form.
struct Text<T>(&'static str, PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Implements reading and writing a type as a string of a file, with `FromStr` and `Display`.
macro_rules! as_text {
    ($([$($parameters:tt)*] $type:ty: $expected:literal;)*) => {$(
        impl<'de, $($parameters)*> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text($expected, PhantomData))
            }
        }
    )*};
    (and write $([$($parameters:tt)*] $type:ty: $expected:literal;)*) => {
        as_text! { $([$($parameters)*] $type: $expected;)* }
        $(
            impl<$($parameters)*> Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }
        )*
    };
}

as_text! {
    [] VolumeName: "the name of a volume";
    [] DeviceName: "the name of a disk";
    [] PortName: "the name of a port";
    [] HostName: "the name of a host";
    [] Policy: "a policy";
    [] Mode: "a mode";
    [] WriteCache: "\"back\" or \"through\"";
}

as_text! { and write
    [] Endpoint: "an address and, if it is not 7744, a port, such as \"10.0.0.1\" or \"[fd00::1]:7745\"";
    [] Id: "a UUID such as \"5f2c1d6e-8a0b-4c3d-9e7f-001122334455\"";
    [] Wwid: "a UUID, or \"none\"";
    [] DevicePath: "the path of a block device or a file";
    [] StatePath: "the path of a directory";
    [] Provider: "\"auto\" or the address of a PCI device, such as \"0000:81:00.0\"";
    [] Protocol: "the lowest and the highest protocol version, such as \"2-2\"";
    [const MIN: u32, const MAX: u32] Seconds<MIN, MAX>: "a time and its unit, such as \"30 s\" or \"10 min\"";
    [] Timeout: "a time and its unit, such as \"30 s\" or \"10 min\", or \"never\"";
    [const UNIT: u32, const MIN: u32, const MAX: u32, const STEP: u32] Size<UNIT, MIN, MAX, STEP>:
        "a size and its unit, such as \"128 KiB\" or \"4 GiB\"";
    [] Chunk: "a size and its unit, such as \"128 KiB\"";
}

/// A host id or a wwid: a UUID that is not the nil one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(pub Uuid);

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        hostid::parse(text).map(Self)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A volume's wwid, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wwid {
    /// The volume has no wwid.
    None,
    /// The volume has this wwid.
    Id(Uuid),
}

impl FromStr for Wwid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            text => hostid::parse(text).map(Self::Id),
        }
    }
}

impl fmt::Display for Wwid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Id(id) => id.fmt(f),
        }
    }
}

impl Setting for Wwid {
    fn to_attribute(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Id(id) => id.to_string(),
        }
    }

    fn from_attribute(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::None),
            text => hostid::parse(text).ok().map(Self::Id),
        }
    }
}

/// The absolute path of a block device or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePath(pub String);

impl FromStr for DevicePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !Path::new(text).is_absolute() {
            return Err(format!("{text:?} does not begin with a slash"));
        }
        if text.contains('\n') {
            return Err("a path has one line".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for DevicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The absolute path of a volume's state directory. In the attribute an empty text stands for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePath(pub String);

impl FromStr for StatePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(|DevicePath(path)| Self(path))
    }
}

impl fmt::Display for StatePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting for StatePath {
    fn to_attribute(&self) -> String {
        self.0.clone()
    }

    fn from_attribute(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self(String::new())),
            text => text.parse().ok(),
        }
    }
}

/// The provider of peer memory, in the driver's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider(pub String);

impl FromStr for Provider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_provider(text)
            .map(Self)
            .map_err(|why| format!("{text:?} is {why}"))
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The protocol versions that an initiator offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(u8, u8);

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (low, high) = text.split_once('-')?;
            let (low, high) = (low.parse().ok()?, high.parse().ok()?);
            (low <= high).then_some(Self(low, high))
        };
        parse()
            .ok_or_else(|| format!("{text:?} is not two versions from 0 to 255, such as \"2-2\""))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// A number in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Number<const MIN: u32, const MAX: u32>(pub u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        in_range(number, MIN, MAX)
            .map(Self)
            .ok_or_else(|| de::Error::custom(format!("{number} is not from {MIN} to {MAX}")))
    }
}

fn in_range(number: impl TryInto<u32>, min: u32, max: u32) -> Option<u32> {
    let number = number.try_into().ok()?;
    (min..=max).contains(&number).then_some(number)
}

/// Seconds in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds<const MIN: u32, const MAX: u32>(pub u32);

impl<const MIN: u32, const MAX: u32> FromStr for Seconds<MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = units::parse(text, TIMES, "time", "30 s")?;
        in_range(seconds, MIN, MAX)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not from {MIN} s to {MAX} s"))
    }
}

impl<const MIN: u32, const MAX: u32> fmt::Display for Seconds<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        units::show(f, self.0.into(), TIMES)
    }
}

/// Seconds up to a week, or `never`, which is -1 in configfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(Option<u32>);

impl Timeout {
    const MAX: u32 = 604_800;
}

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        let time: Seconds<0, { Self::MAX }> = text.parse()?;
        Ok(Self(Some(time.0)))
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("never"),
            Some(seconds) => units::show(f, seconds.into(), TIMES),
        }
    }
}

impl Setting for Timeout {
    fn to_attribute(&self) -> String {
        self.0
            .map_or_else(|| "-1".to_owned(), |seconds| seconds.to_string())
    }

    fn from_attribute(text: &str) -> Option<Self> {
        match text {
            "-1" => Some(Self(None)),
            text => in_range(text.parse::<u64>().ok()?, 0, Self::MAX).map(|s| Self(Some(s))),
        }
    }
}

/// One KiB and one MiB, for [`Size`].
pub const KIB: u32 = 1 << 10;
/// See [`KIB`].
pub const MIB: u32 = 1 << 20;

/// A size in a range, a multiple of a step; the attribute has it in units of `UNIT` bytes, as do the
/// range and the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size<const UNIT: u32, const MIN: u32, const MAX: u32, const STEP: u32 = 1>(pub u32);

impl<const UNIT: u32, const MIN: u32, const MAX: u32, const STEP: u32> FromStr
    for Size<UNIT, MIN, MAX, STEP>
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = units::parse(text, SIZES, "size", "128 KiB")?;
        let unit = u64::from(UNIT);
        let shown = |number: u32| Shown(u64::from(number) * unit, SIZES);
        let size = (bytes % (unit * u64::from(STEP)) == 0).then_some(bytes / unit);
        size.and_then(|size| in_range(size, MIN, MAX))
            .map(Self)
            .ok_or_else(|| {
                format!(
                    "{text:?} is not a multiple of {} from {} to {}",
                    shown(STEP),
                    shown(MIN),
                    shown(MAX)
                )
            })
    }
}

impl<const UNIT: u32, const MIN: u32, const MAX: u32, const STEP: u32> fmt::Display
    for Size<UNIT, MIN, MAX, STEP>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        units::show(f, u64::from(self.0) * u64::from(UNIT), SIZES)
    }
}

/// The length of chunks, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(pub u32);

impl FromStr for Chunk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size: Size<KIB, 0, 512> = text.parse()?;
        parse_chunk_kib(&size.0.to_string())
            .map(Self)
            .map_err(|why| format!("{text:?} is {why} KiB"))
    }
}

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Size::<KIB, 0, 512>(self.0).fmt(f)
    }
}

/// Implements [`Setting`] for values that configfs has as a number.
macro_rules! numeric {
    ($([$($parameters:tt)*] $type:ty: $min:expr, $max:expr;)*) => {$(
        impl<$($parameters)*> Setting for $type {
            fn to_attribute(&self) -> String {
                self.0.to_string()
            }

            fn from_attribute(text: &str) -> Option<Self> {
                in_range(text.parse::<u64>().ok()?, $min, $max).map(Self)
            }
        }
    )*};
}

numeric! {
    [const MIN: u32, const MAX: u32] Number<MIN, MAX>: MIN, MAX;
    [const MIN: u32, const MAX: u32] Seconds<MIN, MAX>: MIN, MAX;
    [const UNIT: u32, const MIN: u32, const MAX: u32, const STEP: u32] Size<UNIT, MIN, MAX, STEP>: MIN, MAX;
    [] Chunk: 0, 512;
}

/// Implements [`Setting`] for values whose words in configfs are those of the files.
macro_rules! same_words {
    ($($type:ty)*) => {$(
        impl Setting for $type {
            fn to_attribute(&self) -> String {
                self.to_string()
            }

            fn from_attribute(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}

same_words! { Id Provider Protocol IpAddr Policy Mode WriteCache }

impl Setting for bool {
    fn to_attribute(&self) -> String {
        u8::from(*self).to_string()
    }

    fn from_attribute(text: &str) -> Option<Self> {
        match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
}
