// SPDX-License-Identifier: GPL-2.0

//! The options of an application that opens a volume.

use crate::{
    failure::Failure,
    identity,
    keys::{BadKey, Key},
    past::{BadPast, Past},
};
use hcablk_core::proto::{
    connect::{DISK_MAX, PATHS_MAX},
    name::{HostId, VolumeName},
    DEPTH_MAX, QUEUES_MAX,
};
use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// The port on which targets listen by default.
pub const PORT: u16 = 7744;
/// The default directory of session ids.
const STATE: &str = "/run/hcablk/sessions";

/// The reason why a text is not the name of a volume, or the id of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not {0}")]
pub struct BadName(&'static str);

/// The reason why an option cannot be set to a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOption {
    /// There is no option of this name.
    #[error("there is no option {0:?}; there are {names}", names = Options::NAMES.join(", "))]
    Unknown(String),
    /// The value is not valid for the option.
    #[error("{name} is {wanted}, not {value:?}")]
    Value {
        /// The option's name.
        name: &'static str,
        /// The values that the option accepts.
        wanted: &'static str,
        /// The value that was set.
        value: String,
    },
    /// The value is not a key. It is not shown.
    #[error("{0}: {1}")]
    Key(&'static str, BadKey),
    /// The value is not the state of another program.
    #[error("past: {0}")]
    Past(BadPast),
}

/// The volume to open, and its settings. The defaults are those of the kernel's driver.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Further paths; without a port they have that of the first path.
    more: Vec<(IpAddr, Option<u16>)>,
    pub(crate) volume: VolumeName,
    pub(crate) host: HostId,
    pub(crate) host_key: Option<Key>,
    pub(crate) target_key: Option<Key>,
    pub(crate) queues: u8,
    pub(crate) depth: u16,
    pub(crate) connect_timeout: Duration,
    pub(crate) reconnect_delay_s: u32,
    pub(crate) ctrl_loss_tmo_s: u32,
    pub(crate) fast_io_fail_tmo_s: Option<u32>,
    pub(crate) keep_alive_s: u16,
    pub(crate) io_timeout_s: u32,
    pub(crate) small_read: u32,
    pub(crate) eager_write: u32,
    pub(crate) remote_invalidate: bool,
    pub(crate) session: Option<u16>,
    pub(crate) past: Option<Past>,
    pub(crate) state: PathBuf,
}

impl Options {
    /// Describes the volume `volume` of the target at `address`, for the host `host`, a UUID.
    pub fn new(address: IpAddr, volume: &str, host: &str) -> Result<Self, BadName> {
        Ok(Self {
            address,
            port: PORT,
            more: Vec::new(),
            volume: VolumeName::parse(volume).map_err(|_| BadName("the name of a volume"))?,
            host: HostId::parse(host).map_err(|_| BadName("the id of a host"))?,
            host_key: None,
            target_key: None,
            queues: 1,
            depth: 128,
            connect_timeout: Duration::from_secs(10),
            reconnect_delay_s: 1,
            ctrl_loss_tmo_s: 600,
            fast_io_fail_tmo_s: None,
            keep_alive_s: 5,
            io_timeout_s: 30,
            small_read: 8192,
            eager_write: 32768,
            remote_invalidate: true,
            session: None,
            past: None,
            state: STATE.into(),
        })
    }

    /// Sets the port.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// Adds a path: another address of the target, on the port `port`, or on that of the first path. When a session is
    /// lost the next one is connected over the next path. A volume has up to 16 paths; more are ignored.
    #[must_use]
    pub fn path(mut self, address: IpAddr, port: Option<u16>) -> Self {
        if self.more.len() + 1 < usize::from(PATHS_MAX) {
            self.more.push((address, port));
        }
        self
    }

    /// Returns the addresses of all paths.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let more = self.more.iter().copied();
        let all = std::iter::once((self.address, None)).chain(more);
        all.map(|(address, port)| SocketAddr::new(address, port.unwrap_or(self.port)))
    }

    /// Sets this host's key and the target's: both prove who they are.
    #[must_use]
    pub fn keys(self, host: Key, target: Key) -> Self {
        Self {
            host_key: Some(host),
            target_key: Some(target),
            ..self
        }
    }

    /// Sets the number of queues, 1 to 127: one for each thread that does I/O.
    #[must_use]
    pub fn queues(self, queues: u8) -> Self {
        Self {
            queues: queues.clamp(1, QUEUES_MAX),
            ..self
        }
    }

    /// Sets the largest number of requests in flight on each queue, 1 to 1024.
    #[must_use]
    pub fn depth(self, depth: u16) -> Self {
        Self {
            depth: depth.clamp(1, DEPTH_MAX),
            ..self
        }
    }

    /// Sets the time limit of connecting.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self {
            connect_timeout,
            ..self
        }
    }

    /// Sets the number of seconds that the volume may be without a session: requests wait meanwhile, and the next
    /// session issues them again. 0: they fail when the session is lost.
    #[must_use]
    pub fn ctrl_loss_tmo(self, seconds: u32) -> Self {
        Self {
            ctrl_loss_tmo_s: seconds,
            ..self
        }
    }

    /// Sets the number of seconds without a session after which requests fail: those that wait, and new ones until
    /// there is a session again. The volume stays open. Sessions that follow each other within ten seconds do not
    /// restart this count. `None`, or not less than [`Self::ctrl_loss_tmo`]: requests wait for the time of that option.
    #[must_use]
    pub fn fast_io_fail_tmo(self, seconds: Option<u32>) -> Self {
        Self {
            fast_io_fail_tmo_s: seconds,
            ..self
        }
    }

    /// Sets the pause between attempts to reconnect, in seconds, 1 to 3600.
    #[must_use]
    pub fn reconnect_delay(self, seconds: u32) -> Self {
        Self {
            reconnect_delay_s: seconds.clamp(1, 3600),
            ..self
        }
    }

    /// Sets the time limit of a keep-alive in seconds, 1 to 600.
    #[must_use]
    pub fn keep_alive(self, seconds: u16) -> Self {
        Self {
            keep_alive_s: seconds.clamp(1, 600),
            ..self
        }
    }

    /// Sets the time limit of a request in seconds, 1 to 3600. After it the session ends, and the next session issues
    /// its requests again. A request that is late repeatedly, or whose sessions are lost, fails: at the latest when
    /// twice this time and [`Self::ctrl_loss_tmo`] have passed since its first issue. Requests are late only when their
    /// queue is polled, or waited for.
    #[must_use]
    pub fn io_timeout(self, seconds: u32) -> Self {
        Self {
            io_timeout_s: seconds.clamp(1, 3600),
            ..self
        }
    }

    /// Sets the size in bytes up to which a read is copied, for any memory; 0: a read is copied only if no window can
    /// cover its memory.
    #[must_use]
    pub fn small_read(self, bytes: u32) -> Self {
        Self {
            small_read: bytes,
            ..self
        }
    }

    /// Sets the size in bytes up to which a write's data goes to the target's eager ring, if there is one.
    #[must_use]
    pub fn eager_write(self, bytes: u32) -> Self {
        Self {
            eager_write: bytes,
            ..self
        }
    }

    /// Sets whether the target invalidates windows with its responses; otherwise this side does.
    #[must_use]
    pub fn remote_invalidate(self, on: bool) -> Self {
        Self {
            remote_invalidate: on,
            ..self
        }
    }

    /// Sets the number of the session among those of this host's programs, 1 to 4095. A program that takes over the
    /// work of a killed one uses the same number: then the target ends the rest of the former session before the new
    /// one begins.
    #[must_use]
    pub fn session(self, number: u16) -> Self {
        Self {
            session: Some(number.clamp(1, DISK_MAX)),
            ..self
        }
    }

    /// Sets the state that another program has left and whose work this one takes over. The volume must be the same
    /// one; writes that the other program has not flushed count as this one's.
    #[must_use]
    pub fn past(self, past: Past) -> Self {
        Self {
            past: Some(past),
            ..self
        }
    }

    /// Sets the directory of session ids, which all programs of this host share, and which is empty after each start of
    /// the machine.
    #[must_use]
    pub fn state(self, directory: impl Into<PathBuf>) -> Self {
        Self {
            state: directory.into(),
            ..self
        }
    }

    /// Reserves the session number of a volume that was opened with these options
    /// ([`Volume::session`](crate::Volume::session)). If this program is killed, only a program with this
    /// [`Self::session`] and a [`Self::past`] gets the number. The reservation lasts until it is released, or the
    /// machine restarts.
    pub fn reserve_session(&self, number: u16) -> Result<(), Failure> {
        identity::reserve(&self.state, number)
    }

    /// Releases the reservation of a session number, if there is one: no program needs to take over the work.
    pub fn release_session(&self, number: u16) -> Result<(), Failure> {
        identity::release(&self.state, number)
    }

    /// The options that [`Self::set`] knows.
    pub const NAMES: &'static [&'static str] = &[
        "port",
        "path",
        "queues",
        "queue-depth",
        "connect-timeout",
        "ctrl-loss-tmo",
        "fast-io-fail-tmo",
        "reconnect-delay",
        "keep-alive-tmo",
        "io-timeout",
        "small-read",
        "eager-write",
        "remote-invalidate",
        "host-key",
        "target-key",
        "session",
        "past",
        "state",
    ];

    /// Sets the option `name` to `value`: for programs that take options as text. Numbers are decimal, within the
    /// bounds of the method of the same name; times are in seconds; `path` is ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT,
    /// and adds a path each time; keys have the form of `hcablk key show`, and `past`
    /// has the form that [`Past`] prints.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, BadOption> {
        let Some(name) = Self::NAMES.iter().copied().find(|known| *known == name) else {
            return Err(BadOption::Unknown(name.to_owned()));
        };
        let number = |wanted, least: u32, most: u32| match value.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(BadOption::Value {
                name,
                wanted,
                value: value.to_owned(),
            }),
        };
        let key = || value.parse().map_err(|error| BadOption::Key(name, error));
        // In bounds: no digit is lost.
        let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        match name {
            "port" => self.port = short(number("1 to 65535", 1, 65535)?),
            "path" => {
                let wanted = "ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT, at most 15 times";
                let path = value.parse().map(|address| (address, None)).or_else(|_| {
                    let both = value.parse::<SocketAddr>();
                    both.map(|both| (both.ip(), Some(both.port())))
                });
                let is_full = self.more.len() + 1 >= usize::from(PATHS_MAX);
                self.more.push(
                    path.ok()
                        .filter(|_| !is_full)
                        .ok_or_else(|| BadOption::Value {
                            name,
                            wanted,
                            value: value.to_owned(),
                        })?,
                );
            }
            "queues" => {
                let most = QUEUES_MAX;
                self.queues = u8::try_from(number("1 to 127", 1, most.into())?).unwrap_or(most);
            }
            "queue-depth" => self.depth = short(number("1 to 1024", 1, DEPTH_MAX.into())?),
            "connect-timeout" => {
                let seconds = number("1 to 3600 seconds", 1, 3600)?;
                self.connect_timeout = Duration::from_secs(seconds.into());
            }
            "ctrl-loss-tmo" => {
                self.ctrl_loss_tmo_s = number("0 to 4294967295 seconds", 0, u32::MAX)?;
            }
            "fast-io-fail-tmo" => {
                self.fast_io_fail_tmo_s = match value {
                    "-1" => None,
                    _ => Some(number("0 to 604800 seconds, or -1", 0, 604_800)?),
                };
            }
            "reconnect-delay" => self.reconnect_delay_s = number("1 to 3600 seconds", 1, 3600)?,
            "keep-alive-tmo" => self.keep_alive_s = short(number("1 to 600 seconds", 1, 600)?),
            "io-timeout" => self.io_timeout_s = number("1 to 3600 seconds", 1, 3600)?,
            "small-read" => self.small_read = number("0 to 8192 bytes", 0, 8192)?,
            "eager-write" => self.eager_write = number("0 to 65536 bytes", 0, 65536)?,
            "remote-invalidate" => self.remote_invalidate = number("0 or 1", 0, 1)? == 1,
            "host-key" => self.host_key = Some(key()?),
            "target-key" => self.target_key = Some(key()?),
            "session" => self.session = Some(short(number("1 to 4095", 1, DISK_MAX.into())?)),
            "past" => self.past = Some(value.parse().map_err(BadOption::Past)?),
            _ => self.state = value.into(),
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(
            [10, 0, 0, 1].into(),
            "vol1",
            "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45",
        )
        .unwrap()
    }

    #[test]
    fn every_option_is_set_by_its_name() {
        for name in Options::NAMES {
            let value = match *name {
                "host-key" | "target-key" => continue,
                "state" => "/run/somewhere",
                "path" => "10.0.0.2",
                "past" => "6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 0000000000000007 volatile kept",
                _ => "1",
            };
            assert!(options().set(name, value).is_ok(), "{name}");
        }
        let set = options().set("queues", "127").unwrap();
        let set = set.set("queue-depth", "1024").unwrap();
        assert_eq!((set.queues, set.depth), (127, 1024));
        let set = set.set("fast-io-fail-tmo", "5").unwrap();
        assert_eq!(set.fast_io_fail_tmo_s, Some(5));
        let set = set.set("fast-io-fail-tmo", "-1").unwrap();
        assert_eq!(set.fast_io_fail_tmo_s, None);
    }

    #[test]
    fn paths_have_the_port_of_the_first_unless_they_have_their_own() {
        let mut set = options();
        for path in ["10.0.0.2", "10.0.0.3:7", "fd77::1", "[fd77::2]:8"] {
            set = set.set("path", path).unwrap();
        }
        // Also if the port is set later.
        let set = set.set("port", "9").unwrap();
        let all: Vec<_> = set.addresses().map(|path| path.to_string()).collect();
        let wanted = "10.0.0.1:9 10.0.0.2:9 10.0.0.3:7 [fd77::1]:9 [fd77::2]:8";
        assert_eq!(all.join(" "), wanted);
    }

    #[test]
    fn a_volume_has_at_most_sixteen_paths() {
        let mut set = options();
        for path in 1..16 {
            set = set.set("path", &format!("10.0.1.{path}")).unwrap();
        }
        assert!(set.clone().set("path", "10.0.2.1").is_err());
        assert_eq!(set.path([10, 0, 2, 1].into(), None).addresses().count(), 16);
    }

    #[test]
    fn a_bad_option_is_refused_with_the_valid_values() {
        let refused = |name, value| options().set(name, value).unwrap_err().to_string();
        assert_eq!(refused("queues", "128"), "queues is 1 to 127, not \"128\"");
        assert_eq!(
            refused("keep-alive-tmo", "-1"),
            "keep-alive-tmo is 1 to 600 seconds, not \"-1\""
        );
        assert_eq!(
            refused("fast-io-fail-tmo", "-2"),
            "fast-io-fail-tmo is 0 to 604800 seconds, or -1, not \"-2\""
        );
        assert!(refused("queue", "1").starts_with("there is no option \"queue\"; there are port, "));
        assert!(
            refused("past", "yesterday").starts_with("past: not the state that a program leaves")
        );
        let secret = refused("host-key", "hcablk-key-1:77-0");
        assert!(!secret.contains("77"), "{secret}");
    }
}
