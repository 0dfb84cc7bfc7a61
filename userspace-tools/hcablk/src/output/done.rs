// SPDX-License-Identifier: GPL-2.0

//! The results of commands that change something.

use serde::Serialize;
use uuid::Uuid;

use super::{PathRef, PortRef};
use crate::host_names::HostNames;
use crate::tuning::Policy;

/// A disk of the configuration that is connected.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ConnectedDisk {
    /// The name of the disk.
    pub name: String,
    /// The device node of the disk.
    pub device: String,
    /// Whether the command connected the disk, rather than found it connected.
    pub changed: bool,
}

/// A disk that has a path for each reachable portal of its target.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SyncedDisk {
    /// The name of the disk.
    pub name: String,
    /// Paths that were added.
    pub added: Vec<PathRef>,
    /// Paths that were removed.
    pub removed: Vec<PathRef>,
}

impl SyncedDisk {
    /// Returns whether the paths were changed.
    pub fn is_changed(&self) -> bool {
        !self.added.is_empty() || !self.removed.is_empty()
    }
}

/// A file of the archive that `report` writes.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ReportPart {
    /// The file's path in the archive.
    pub name: String,
    /// The sources that could not be read, each with the reason.
    pub missing: Vec<String>,
}

/// The result of a command that changes something. `changed` is false if the requested state
/// existed already.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case")]
#[expect(
    missing_docs,
    reason = "the members say what the command was asked for, under its own words"
)]
pub enum Done {
    Connect {
        name: String,
        device: String,
        changed: bool,
    },
    ConnectAll {
        disks: Vec<ConnectedDisk>,
        changed: bool,
    },
    Save {
        file: String,
        exports: usize,
        ports: usize,
        disks: usize,
        changed: bool,
    },
    Disconnect {
        devices: Vec<String>,
        changed: bool,
    },
    AcknowledgeLoss {
        name: String,
        changed: bool,
    },
    PathAdd {
        name: String,
        path: PathRef,
        changed: bool,
    },
    PathRemove {
        name: String,
        path: Option<PathRef>,
        changed: bool,
    },
    PathSync {
        disks: Vec<SyncedDisk>,
        changed: bool,
    },
    PathPolicy {
        name: String,
        policy: Policy,
        changed: bool,
    },
    Export {
        volume: String,
        path: String,
        read_only: bool,
        insecure: bool,
        mode: String,
        write_cache: String,
        cache_mib: u32,
        chunk_kib: u32,
        hosts: Vec<Uuid>,
        port: Option<PortRef>,
        changed: bool,
    },
    Enroll {
        client: String,
        host: Uuid,
        dry_run: bool,
        steps: Vec<crate::enroll::EnrollStep>,
        changed: bool,
    },
    Key(crate::keys::Stored),
    Keys {},
    Unexport {
        volume: String,
        changed: bool,
    },
    Unapply {
        volumes: Vec<String>,
        ports: Vec<String>,
        changed: bool,
    },
    UnexportAll {
        volumes: Vec<String>,
        changed: bool,
    },
    Allow {
        volume: String,
        hosts: Vec<Uuid>,
        changed: bool,
        #[serde(skip_serializing_if = "HostNames::is_empty")]
        #[cfg_attr(feature = "schemars", schemars(default))]
        host_names: HostNames,
    },
    Forbid {
        volume: String,
        hosts: Vec<Uuid>,
        changed: bool,
        #[serde(skip_serializing_if = "HostNames::is_empty")]
        #[cfg_attr(feature = "schemars", schemars(default))]
        host_names: HostNames,
    },
    Evict {
        volume: String,
        hosts: Vec<Uuid>,
        changed: bool,
        #[serde(skip_serializing_if = "HostNames::is_empty")]
        #[cfg_attr(feature = "schemars", schemars(default))]
        host_names: HostNames,
    },
    Admit {
        volume: String,
        hosts: Vec<Uuid>,
        changed: bool,
        #[serde(skip_serializing_if = "HostNames::is_empty")]
        #[cfg_attr(feature = "schemars", schemars(default))]
        host_names: HostNames,
    },
    NameHost {
        host: Uuid,
        name: Option<String>,
        changed: bool,
    },
    Listen {
        port: PortRef,
        changed: bool,
    },
    Unlisten {
        ports: Vec<String>,
        changed: bool,
    },
    Man {
        files: Vec<String>,
    },
    Metrics {
        file: String,
        bytes: usize,
    },
    Report {
        file: String,
        bytes: usize,
        parts: Vec<ReportPart>,
    },
    TraceRecord {
        file: String,
        events: usize,
        lost: u64,
        requests: u64,
    },
}

impl Done {
    /// Returns whether the command changed anything; `None` if its result does not say.
    pub fn is_changed(&self) -> Option<bool> {
        match self {
            Self::Key(stored) => Some(stored.changed),
            Self::Connect { changed, .. }
            | Self::ConnectAll { changed, .. }
            | Self::Save { changed, .. }
            | Self::Disconnect { changed, .. }
            | Self::AcknowledgeLoss { changed, .. }
            | Self::PathAdd { changed, .. }
            | Self::PathRemove { changed, .. }
            | Self::PathSync { changed, .. }
            | Self::PathPolicy { changed, .. }
            | Self::Enroll { changed, .. }
            | Self::Export { changed, .. }
            | Self::Unexport { changed, .. }
            | Self::Unapply { changed, .. }
            | Self::UnexportAll { changed, .. }
            | Self::Allow { changed, .. }
            | Self::Forbid { changed, .. }
            | Self::Evict { changed, .. }
            | Self::Admit { changed, .. }
            | Self::NameHost { changed, .. }
            | Self::Listen { changed, .. }
            | Self::Unlisten { changed, .. } => Some(*changed),
            Self::Keys {}
            | Self::Man { .. }
            | Self::Metrics { .. }
            | Self::Report { .. }
            | Self::TraceRecord { .. } => None,
        }
    }
}
