// SPDX-License-Identifier: GPL-2.0

//! The files through which the command and `hcablk-ublk` communicate, in `/run/hcablk/ublk`.
//!
//! | file | holds | written by |
//! |---|---|---|
//! | `NAME.wanted` | [`Wanted`]: the settings for the disk NAME | `hcablk connect --user` |
//! | `NAME.failed` | [`Failed`]: the reason why there is no disk, or why it cannot be recovered | `hcablk-ublk serve NAME` |
//! | `N.state` | [`UserDiskState`]: the state of the disk `/dev/ublkbN` | the program that serves it |
//! | `N.json` | data that `hcablk-ublk` needs to recover the disk; the command does not use it | the program that serves it |
//! | `N.lock` | nothing: the program that serves the disk holds a lock on it | that program |
//!
//! Everybody can read `N.state`, root alone the others.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Kind, Result};
use crate::system::System;

/// The folder of the files.
pub const FOLDER: &str = "/run/hcablk/ublk";

/// The settings that a disk is made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The target's address.
    pub address: IpAddr,
    /// The volume's name at the target.
    pub volume: String,
    /// The id of this host at the target.
    pub host: String,
    /// Whether both sides prove who they are, with the keys in `/etc/hcablk/keys`.
    pub keys: bool,
    /// The id that the volume must have.
    #[serde(default)]
    pub wwid: Option<Uuid>,
    /// Options of the library, by name and value. Options that are left out have the library's defaults.
    pub options: Vec<(String, String)>,
}

impl Wanted {
    /// Returns the value of an option, if it is given.
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut given = self.options.iter();
        given
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The state of the requests of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Requests go to the target.
    Live,
    /// The connection is lost and is being replaced: requests wait.
    Queueing,
    /// The connection is lost for good: requests fail.
    Failed,
}

/// The state that the program that serves a disk publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDiskState {
    /// The disk's name; `None` if its program was started by hand.
    pub name: Option<String>,
    /// A mark that the driver stores for the disk, to recognize the disk when its number has been reused. Programs of
    /// earlier releases do not write it.
    #[serde(default)]
    pub mark: Option<u64>,
    /// The process id of the program.
    pub pid: u32,
    /// The state of the requests.
    pub phase: Phase,
    /// The reason why there is no connection.
    pub error: Option<String>,
    /// Whether the target has lost acknowledged writes that no flush had covered.
    pub lost_writes: bool,
    /// The id of the volume.
    pub id: Option<Uuid>,
    /// The settings of the disk.
    pub wanted: Wanted,
}

/// The reason why a program ended without a disk, or cannot continue with one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The reason, in a sentence.
    pub message: String,
    /// The error number, if connecting failed.
    pub errno: Option<i32>,
}

/// Returns the file with the settings for the disk `name`.
pub fn wanted(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.wanted"))
}

/// Returns the file with the reason why there is no disk `name`.
pub fn failed(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.failed"))
}

/// Returns the file of the state of `/dev/ublkbN`.
pub fn state(number: u32) -> PathBuf {
    Path::new(FOLDER).join(format!("{number}.state"))
}

/// Reads one of the files; `None` if it does not exist.
pub fn read<T: DeserializeOwned>(system: &dyn System, file: &Path) -> Result<Option<T>> {
    let text = match system.read(file) {
        Err(error) if error.is_gone() => return Ok(None),
        text => text?,
    };
    let broken = |error| {
        let message = format!("{} cannot be understood: {error}", file.display());
        Error::new(Kind::Failed, message).advise(
            "The command and hcablk-ublk may be of different versions: install the same release of both.",
        )
    };
    serde_json::from_str(&text).map(Some).map_err(broken)
}

/// Returns the text of one of the files.
///
/// # Errors
///
/// The value cannot be expressed as JSON, which does not happen here.
pub fn text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| {
        Error::new(
            Kind::Failed,
            format!("cannot store the wanted settings: {error}"),
        )
    })
}

/// Returns the names of the files in the folder that end with `suffix`, without it, sorted; none if there is no folder.
pub fn names(system: &dyn System, suffix: &str) -> Vec<String> {
    let entries = system.entries(Path::new(FOLDER)).unwrap_or_default();
    let names = entries
        .iter()
        .filter_map(|entry| entry.strip_suffix(suffix));
    names.map(str::to_owned).collect()
}

/// Returns the numbers of the disks that have a file with `suffix`, sorted.
pub fn numbers(system: &dyn System, suffix: &str) -> Vec<u32> {
    let names = names(system, suffix);
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}
