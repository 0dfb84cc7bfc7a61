// SPDX-License-Identifier: GPL-2.0

//! The tables of the configuration, their keys, and the attribute of configfs of each key.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::paths::Paths;
use super::value::{
    Chunk, DevicePath, Id, Number, Protocol, Provider, Seconds, Setting, Size, StatePath, Timeout,
    Wwid, KIB, MIB,
};
use crate::endpoint::{same_address, Endpoint};
use crate::error::{Error, Kind, Result};
use crate::names::{DeviceName, HostName, PortName, VolumeName};
use crate::target::{Mode, WriteCache};
use crate::tuning::Policy;

/// When an attribute can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changeable {
    /// At any time.
    Online,
    /// While the object is not enabled.
    Disabled,
}

/// The value that an attribute of configfs shall have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The attribute.
    pub attribute: &'static str,
    /// Its text.
    pub value: String,
    /// The state in which it can be changed.
    pub change: Changeable,
    /// Whether the value is configured, rather than the default.
    pub given: bool,
}

impl Wish {
    /// Creates the wanted value of an attribute that can be changed only while the object is not enabled.
    pub fn new(attribute: &'static str, value: impl Into<String>) -> Self {
        Self {
            attribute,
            value: value.into(),
            change: Changeable::Disabled,
            given: true,
        }
    }
}

pub(super) fn yes() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_yes(value: &bool) -> bool {
    *value
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_no(value: &bool) -> bool {
    !*value
}

/// Declares a table: keys of its own, and keys that each stand for one attribute with a default.
macro_rules! table {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$own:meta])* pub $field:ident: $own_type:ty,)* }
        settings { $($(#[$doc:meta])* $key:ident: $type:ty = $attribute:literal, $default:expr, $change:ident;)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$own])* pub $field: $own_type,)*
            $(
                $(#[$doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $key: Option<$type>,
            )*
        }

        impl $name {
            /// Returns the values that the attributes of these keys shall have. An attribute
            /// without a default, whose key is not given, may have any value.
            pub fn settings(&self) -> Vec<Wish> {
                let mut wishes = Vec::new();
                $(
                    let default: Option<&str> = $default;
                    let given = self.$key.as_ref().map(Setting::to_attribute);
                    let is_given = given.is_some();
                    if let Some(value) = given.or_else(|| default.map(str::to_owned)) {
                        wishes.push(Wish {
                            attribute: $attribute,
                            value,
                            change: Changeable::$change,
                            given: is_given,
                        });
                    }
                )*
                wishes
            }

            /// Sets the keys of the table from the attributes, and omits those at their defaults.
            /// `read` returns an attribute's text, or `None` if the driver lacks the attribute.
            pub fn set_by(&mut self, mut read: impl FnMut(&str) -> Result<Option<String>>) -> Result<()> {
                $(
                    let default: Option<&str> = $default;
                    self.$key = match read($attribute)? {
                        Some(text) if Some(text.as_str()) != default => {
                            Some(<$type>::from_attribute(&text).ok_or_else(|| unknown($attribute, &text))?)
                        }
                        _ => None,
                    };
                )*
                Ok(())
            }

            /// Returns the table without the keys that are at their defaults.
            pub fn without_defaults(&self) -> Result<Self> {
                let wishes = self.settings();
                let mut table = self.clone();
                table.set_by(|attribute| {
                    let wish = wishes.iter().find(|wish| wish.attribute == attribute);
                    Ok(wish.map(|wish| wish.value.clone()))
                })?;
                Ok(table)
            }

            #[cfg(test)]
            fn defaults() -> Vec<(&'static str, Option<&'static str>, bool)> {
                vec![$((
                    $attribute,
                    $default,
                    ($default as Option<&str>).is_none_or(|text| <$type>::from_attribute(text).is_some()),
                ),)*]
            }
        }
    };
}

fn unknown(attribute: &str, text: &str) -> Error {
    Error::new(
        Kind::Failed,
        format!("{attribute} is {text:?}, which this version of hcablk cannot express"),
    )
    .advise("The command and the kernel modules may be of different versions.")
}

/// `[host]`: this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The id that identifies this host to targets.
    pub id: Id,
}

table! {
    /// `[export.VOLUME]`: an export of this machine's target.
    pub struct Export {
        /// The block device or file.
        pub device: DevicePath,
        /// The hosts that may connect.
        #[serde(default)]
        pub allow: Vec<Id>,
        /// The id of the volume, if not the derived one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub wwid: Option<Wwid>,
        /// Whether clients can connect.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        pub enabled: bool,
    }
    settings {
        /// Whether writes are refused.
        read_only: bool = "read_only", Some("0"), Disabled;
        /// Whether hosts without a key may connect.
        insecure: bool = "insecure", Some("0"), Disabled;
        /// How the data moves.
        mode: Mode = "mode", Some("direct"), Disabled;
        /// When writes are acknowledged.
        write_cache: WriteCache = "write_cache", Some("back"), Disabled;
        /// Whether the export fails if its reservations cannot be kept.
        keep_reservations: bool = "keep_reservations", Some("1"), Disabled;
        /// The directory with the records that move with the volume.
        state: StatePath = "state", Some(""), Disabled;
        /// The cache.
        cache: Size<MIB, 0, 1_048_576> = "cache_mib", Some("0"), Disabled;
        /// The size of the chunks in which large requests move; 0: requests are not split.
        chunk: Chunk = "chunk_kib", Some("128"), Disabled;
        /// The PCI device that lends memory.
        provider: Provider = "provider", Some("auto"), Disabled;
        /// Whether the durations of requests are measured.
        timing: bool = "timing", Some("0"), Online;
    }
}

table! {
    /// `[port.NAME]`: an address at which this machine's target listens.
    #[derive(Default)]
    pub struct Port {
        /// Whether the port listens.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        pub enabled: bool,
    }
    settings {
        /// The address to listen at.
        address: IpAddr = "address", Some("0.0.0.0"), Disabled;
        /// The port number.
        port: Number<1, 65535> = "port", Some("7744"), Disabled;
        /// Memory for data of each session; 0: the size that the session asks for.
        buffer: Size<MIB, 0, 1024> = "buffer_mib", Some("0"), Disabled;
        /// The memory limit of all sessions together. The driver's default depends on the free
        /// memory.
        memory: Size<MIB, 1, 1_048_576> = "memory_mib", None, Online;
        /// Receive buffers for each queue pair; 0: as many as the client asks for.
        queue_credits: Number<0, 1024> = "queue_credits", Some("0"), Disabled;
    }
}

table! {
    /// `[disk.NAME]`: a disk that this machine connects.
    #[derive(Default)]
    pub struct Disk {
        /// The target's address or host name: path 0.
        pub address: String,
        /// The volume's name at the target, if not the disk's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub volume: Option<VolumeName>,
        /// Connect only to the volume with this wwid.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub wwid: Option<Id>,
        /// The id of this host for this disk, if not the host's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub host_id: Option<Id>,
        /// Whether the disk is connected at each start.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        pub enabled: bool,
        /// Whether `hcablk-ublk` serves the disk, in user space.
        #[serde(default, skip_serializing_if = "is_no")]
        pub user: bool,
        /// Paths 1 to 15.
        #[serde(default, skip_serializing_if = "Paths::is_none")]
        pub paths: Paths,
    }
    settings {
        /// The target's port of path 0.
        port: Number<1, 65535> = "port", Some("7744"), Disabled;
        /// The rule that chooses the path of a request.
        policy: Policy = "policy", Some("queue-depth"), Online;
        /// Queue pairs; 0: one for each online processor, if the limit of queue pairs allows it.
        queues: Number<0, 127> = "queues", Some("0"), Disabled;
        /// Additional queue pairs for polled I/O.
        poll_queues: Number<0, 126> = "poll_queues", Some("0"), Disabled;
        /// Requests in flight on each queue.
        queue_depth: Number<1, 1024> = "queue_depth", Some("128"), Disabled;
        /// The time without a response after which a new queue pair replaces that of the request.
        io_timeout: Seconds<1, 3600> = "io_timeout", Some("30"), Disabled;
        /// The time limit for connecting all queue pairs.
        connect_timeout: Seconds<1, 600> = "connect_timeout", Some("10"), Disabled;
        /// The time for which a disk without a connection is reconnected.
        ctrl_loss_tmo: Timeout = "ctrl_loss_tmo", Some("600"), Online;
        /// The time without a connection after which requests fail.
        fast_io_fail_tmo: Timeout = "fast_io_fail_tmo", Some("-1"), Online;
        /// The time without a response to a keep-alive after which the path is lost.
        keep_alive_tmo: Seconds<1, 600> = "keep_alive_tmo", Some("5"), Disabled;
        /// The pause between two attempts to reconnect.
        reconnect_delay: Seconds<1, 60> = "reconnect_delay", Some("1"), Online;
        /// Whether the target is asked to invalidate keys.
        remote_invalidate: bool = "remote_invalidate", Some("1"), Disabled;
        /// The largest read that is copied instead of registering memory.
        small_read: Size<1, 0, 65536> = "small_read", Some("8192"), Disabled;
        /// The largest write whose data goes with the request.
        small_write: Size<1, 0, 65536> = "small_write", Some("4096"), Disabled;
        /// The largest write that uses the target's eager ring.
        eager_write: Size<1, 0, 1_048_576> = "eager_write", Some("32768"), Disabled;
        /// The largest request that the initiator asks for.
        max_io: Size<KIB, 4, 4096, 4> = "max_io_kib", Some("1024"), Disabled;
        /// Requests in one message.
        message_requests: Number<1, 8> = "message_requests", Some("8"), Disabled;
        /// Batch interrupts from this many requests in flight; 0: never.
        batch_upper: Number<0, 1024> = "batch_upper", Some("32"), Disabled;
        /// Stop batching below this many requests in flight.
        batch_lower: Number<0, 1024> = "batch_lower", Some("16"), Disabled;
        /// The lowest and the highest protocol version that the initiator offers.
        protocol: Protocol = "protocol", Some("2-3"), Disabled;
        /// Whether the durations of requests are measured.
        timing: bool = "timing", Some("0"), Online;
        /// Whether to accept a target without a key, although this host has one.
        insecure: bool = "insecure", Some("0"), Disabled;
    }
}

impl Port {
    /// Returns whether the port is at this address and number.
    pub fn is_at(&self, address: &str, port: u16) -> bool {
        let own = self
            .address
            .unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
        let number = self.port.and_then(|port| port.0.try_into().ok());
        same_address(&own.to_string(), address)
            && number.unwrap_or(crate::target::DEFAULT_PORT) == port
    }
}

impl Disk {
    /// Returns the address and port of path 0.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            address: self.address.clone(),
            port: self
                .port
                .and_then(|port| port.0.try_into().ok())
                .unwrap_or(crate::target::DEFAULT_PORT),
        }
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Config {
    /// `[host]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// `[host_names]`: the ids of hosts, by their names for people.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub host_names: BTreeMap<HostName, Id>,
    /// `[export.VOLUME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub export: BTreeMap<VolumeName, Export>,
    /// `[port.NAME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub port: BTreeMap<PortName, Port>,
    /// `[disk.NAME]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub disk: BTreeMap<DeviceName, Disk>,
}

impl Config {
    /// Returns whether the configuration is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the configuration as the text of a file.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| {
            Error::new(
                Kind::Failed,
                format!("cannot write the configuration as TOML: {error}"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_values_of_their_types() {
        let all = [Export::defaults(), Port::defaults(), Disk::defaults()].concat();
        for (attribute, default, is_value) in all {
            assert!(is_value, "{attribute} {default:?}");
        }
    }

    #[test]
    fn paths_may_be_those_that_the_target_tells() {
        let text = "[disk.db]\naddress = \"10.0.0.1\"\npaths = \"auto\"\n";
        let config = super::super::files::parse_for_tests(text);
        assert_eq!(config.to_toml().unwrap(), text);
        let disk = config.disk.values().next().unwrap();
        assert_eq!(disk.paths, Paths::Auto);
    }

    #[test]
    fn a_written_configuration_is_read_again() {
        let text = "[export.data]\ndevice = \"/dev/sdb\"\nallow = []\ncache = \"4 GiB\"\n\n\
                    [port.1]\nmemory = \"2 GiB\"\n\n\
                    [disk.db]\naddress = \"10.0.0.1\"\nctrl_loss_tmo = \"never\"\n\n\
                    [disk.db.paths]\n1 = \"10.0.1.1:7744\"\n\n\
                    [disk.db.paths.3]\naddress = \"[fd00::1]:7745\"\nenabled = false\n";
        let config = super::super::files::parse_for_tests(text);
        assert_eq!(config.to_toml().unwrap(), text);
    }
}
