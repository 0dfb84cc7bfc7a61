// SPDX-License-Identifier: GPL-2.0

//! The moment at which a volume acknowledges writes, and advice for a volume that can lose acknowledged writes of
//! several hosts.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;

use super::hosts::hosts;
use crate::config::running::attribute;
use crate::configfs::Group;
use crate::system::System;
use crate::tuning::choice;

/// The attribute of a volume for this setting.
pub(super) const ATTRIBUTE: &str = "write_cache";

/// The moment at which a volume acknowledges a write; the driver's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WriteCache {
    /// Before the data is on stable media: clients must flush, and a crash of the target can lose the rest
    Back,
    /// When the data is on stable media: a crash of the target loses no acknowledged write
    Through,
}

impl fmt::Display for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WriteCache {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        choice(text)
    }
}

impl WriteCache {
    /// Returns the driver's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Back => "back",
            Self::Through => "through",
        }
    }
}

/// Describes the risk of a writable volume that several hosts share and that has a volatile write cache. Returns `None`
/// if a crash of the target loses no acknowledged write of several hosts, or if the kernel module has no such setting.
pub(crate) fn risk(group: &Group<'_>) -> Option<String> {
    let is_back = attribute(group, ATTRIBUTE).ok()?? == WriteCache::Back.name();
    let is_read_only = group.flag("read_only").ok()?;
    if !is_back || is_read_only || hosts(group).ok()?.len() < 2 {
        return None;
    }
    let mode = group.get("mode").ok()?;
    let path = group.get("path").ok()?;
    // These modes write through the page cache, whether or not the drive has a cache.
    let uses_page_cache = matches!(mode.as_str(), "cached" | "mixed");
    let is_volatile = uses_page_cache || has_volatile_cache(group.system(), &path);
    is_volatile.then(|| {
        "several hosts share the volume, and a crash of this machine loses acknowledged writes that \
         are in a volatile write cache"
            .to_owned()
    })
}

/// Returns the advice how to avoid the risk of a volume.
pub(crate) fn remedy(volume: &str) -> String {
    format!(
        "Unless the clients can handle that: hcablk target unexport {volume}, then export it with \
         --write-cache through"
    )
}

/// Returns the advice, in one line, against the risk of a volume, if there is one.
pub(super) fn advice(group: &Group<'_>) -> Option<String> {
    let name = group.name();
    risk(group).map(|risk| format!("{name}: {risk}. {}", remedy(&name)))
}

/// Returns whether the device or file at `path` has a volatile write cache. A file has one: the page cache. A device
/// that is unknown to sysfs counts as one without.
fn has_volatile_cache(system: &dyn System, path: &str) -> bool {
    let path = Path::new(path);
    let real = system.real_path(path).unwrap_or_else(|| path.to_owned());
    if !real.starts_with("/dev") {
        return !path.as_os_str().is_empty();
    }
    let Some(device) = real.file_name().and_then(|name| {
        let link = Path::new("/sys/class/block").join(name);
        system.real_path(&link)
    }) else {
        return false;
    };
    // A partition has no queue of its own: its folder is in that of the drive.
    let folders = [Some(device.as_path()), device.parent()];
    let queues = folders.into_iter().flatten().map(queue_file);
    let mut kinds = queues.filter_map(|file| system.read(&file).ok());
    kinds.next().is_some_and(|kind| kind.trim() == "write back")
}

fn queue_file(device: &Path) -> PathBuf {
    device.join("queue").join("write_cache")
}
