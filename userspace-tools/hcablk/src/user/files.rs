// SPDX-License-Identifier: GPL-2.0

//! The files by which the command and `hcablk-ublk` speak to each other, in `/run/hcablk/ublk`.
//!
//! | file | holds | written by |
//! |---|---|---|
//! | `NAME.wanted` | [`Wanted`]: the settings for the disk NAME | `hcablk connect --user` |
//! | `NAME.failed` | [`Failed`]: why there is no disk, or why it cannot be recovered | `hcablk-ublk serve NAME` |
//! | `N.state` | [`State`]: the state of the disk `/dev/ublkbN` | the program that serves it |
//! | `N.json` | what `hcablk-ublk` needs to recover the disk; no matter of the command | the program that serves it |
//! | `N.lock` | nothing: the program that serves the disk holds a lock of it | that program |
//!
//! Everybody can read `N.state`, root alone the others.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Kind, Result};
use crate::system::System;

/// Where the files are.
pub const FOLDER: &str = "/run/hcablk/ublk";

/// The settings that a disk is made with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The target's address.
    pub address: IpAddr,
    /// The volume's name at the target.
    pub volume: String,
    /// The id that the target knows this host by.
    pub host: String,
    /// Whether both sides prove who they are, by the keys in `/etc/hcablk/keys`.
    pub keys: bool,
    /// Which volume it must be.
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
    /// They go to the target.
    Live,
    /// The connection is lost and is being replaced: requests wait.
    Queueing,
    /// The connection is lost for good: they fail.
    Failed,
}

/// The state that the program that serves a disk publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The disk's name; nothing if its program was started by hand.
    pub name: Option<String>,
    /// The driver's data for the disk: its number may be reused later. Programs of earlier releases do not write it.
    #[serde(default)]
    pub mark: Option<u64>,
    /// The program.
    pub pid: u32,
    /// The state of the requests.
    pub phase: Phase,
    /// Why there is no connection.
    pub error: Option<String>,
    /// Whether the target has lost acknowledged writes that no flush had covered.
    pub lost_writes: bool,
    /// Which volume it is.
    pub id: Option<Uuid>,
    /// The settings of the disk.
    pub wanted: Wanted,
}

/// The reason why a program ended without a disk, or cannot continue with one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// In a sentence.
    pub message: String,
    /// The error number of connecting, if it was that which failed.
    pub errno: Option<i32>,
}

/// Returns the file with the settings for the disk `name`.
pub fn wanted(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.wanted"))
}

/// Returns the file of why there is no disk `name`.
pub fn failed(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.failed"))
}

/// Returns the file of the state of `/dev/ublkbN`.
pub fn state(number: u32) -> PathBuf {
    Path::new(FOLDER).join(format!("{number}.state"))
}

/// Reads one of the files; nothing if it is not there.
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

/// Writes one of the files.
///
/// # Errors
///
/// The value cannot be written as JSON, which none of those here is, or the file cannot be written.
pub fn text(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| {
        Error::new(
            Kind::Failed,
            format!("cannot write down what is wanted: {error}"),
        )
    })
}

/// Returns the names that `suffix` follows in the folder, sorted; none if there is no folder.
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
