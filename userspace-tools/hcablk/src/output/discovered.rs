// SPDX-License-Identifier: GPL-2.0

//! The lists that a target sends a host before the host connects.

use serde::Serialize;

use super::table::table;
use super::text::{cells, size};
use crate::endpoint::Endpoint;

/// A volume of a target that this host may use.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Discovered {
    /// The volume's name at the target.
    pub name: String,
    /// The id of the volume, independent of its name.
    pub wwid: Option<String>,
    /// The volume's size.
    pub size_bytes: u64,
    /// The volume's logical block size.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the target accepts this host without a proof of its identity.
    pub insecure: bool,
    /// How the data moves on the target.
    pub mode: String,
    /// `available`, `connected`, or `evicted`.
    pub state: String,
    /// The disk of this machine that is connected to the volume.
    pub disk: Option<String>,
}

/// The address and port of a target.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Portal {
    /// The target's address.
    pub address: String,
    /// The target's port.
    pub port: u16,
}

/// Makes the text of `discover`.
pub(super) fn text(volumes: &[Discovered], portals: &[Portal]) -> String {
    let mut rows = vec![cells(&[
        "NAME", "SIZE", "BLOCK", "MODE", "ACCESS", "STATE", "DISK", "WWID",
    ])];
    for volume in volumes {
        rows.push(cells(&[
            &volume.name,
            &size(volume.size_bytes),
            &volume.block_size.to_string(),
            &volume.mode,
            match (volume.read_only, volume.insecure) {
                (true, true) => "read-only insecure",
                (true, false) => "read-only",
                (false, true) => "insecure",
                (false, false) => "",
            },
            &volume.state,
            volume.disk.as_deref().unwrap_or_default(),
            volume.wwid.as_deref().unwrap_or_default(),
        ]));
    }
    let mut text = table(&rows, |column| column == 1 || column == 2);
    let mut rows = vec![cells(&["PORTAL"])];
    rows.extend(
        portals
            .iter()
            .map(|portal| vec![Endpoint::from(portal).to_string()]),
    );
    text.push('\n');
    text.push_str(&table(&rows, |_| false));
    text
}
