// SPDX-License-Identifier: GPL-2.0

//! Records of the objects that `hcablk target apply --record` made or could not make, for later commands of its
//! service.
//!
//! The record of an export or port is an empty file below `/run/hcablk/target`, so that a restart of the machine
//! removes the records together with the kernel's exports. A command that an administrator runs by hand removes the
//! records of the objects that it changes: then the service neither repeats nor undoes the change.

use std::path::{Path, PathBuf};

use super::step::Table;
use crate::error::Result;
use crate::system::System;

/// The folder of the records.
const FOLDER: &str = "/run/hcablk/target";
/// Exists if the configuration had mistakes at the last attempt to apply it, while exports of an earlier one continue.
const NOT_APPLIED: &str = "/run/hcablk/target/not-applied";

/// The record of an export or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It matches the configuration.
    Made,
    /// It could not be made as configured.
    Failed,
}

impl Mark {
    const fn folder(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Failed => "failed",
        }
    }
}

/// The records of this machine's target.
#[derive(Clone, Copy)]
pub struct Record<'a>(&'a dyn System);

impl<'a> Record<'a> {
    /// Returns access to the records, which need not exist.
    pub fn new(system: &'a dyn System) -> Self {
        Self(system)
    }

    fn folder(mark: Mark, table: Table) -> PathBuf {
        Path::new(FOLDER)
            .join(mark.folder())
            .join(table.to_string())
    }

    fn remove(self, file: &Path) -> Result<()> {
        if self.0.exists(file) {
            self.0.remove_durable_file(file)?;
        }
        Ok(())
    }

    /// Records an export or port under `mark`, and removes its records under other marks.
    pub fn mark(self, mark: Mark, table: Table, name: &str) -> Result<()> {
        let other = match mark {
            Mark::Made => Mark::Failed,
            Mark::Failed => Mark::Made,
        };
        let file = Self::folder(mark, table).join(name);
        if !self.0.exists(&file) {
            self.0.replace(&file, "")?;
        }
        self.remove(&Self::folder(other, table).join(name))
    }

    /// Removes an export or port from the records.
    pub fn forget(self, table: Table, name: &str) -> Result<()> {
        for mark in [Mark::Made, Mark::Failed] {
            self.remove(&Self::folder(mark, table).join(name))?;
        }
        Ok(())
    }

    /// Lists the names of the recorded exports or ports.
    pub fn all(self, mark: Mark, table: Table) -> Result<Vec<String>> {
        let folder = Self::folder(mark, table);
        if !self.0.exists(&folder) {
            return Ok(Vec::new());
        }
        let mut names = self.0.entries(&folder)?;
        // A file with this prefix was left by a command that was killed while it stored a record.
        names.retain(|name| !name.starts_with('.'));
        Ok(names)
    }

    /// Returns whether an export or port is recorded under `mark`.
    pub fn has(self, mark: Mark, table: Table, name: &str) -> bool {
        self.0.exists(&Self::folder(mark, table).join(name))
    }

    /// Returns whether anything is recorded under `mark`.
    pub fn any(self, mark: Mark) -> Result<bool> {
        Ok(!self.all(mark, Table::Export)?.is_empty() || !self.all(mark, Table::Port)?.is_empty())
    }

    /// Returns whether `--record` was used since the machine was started.
    pub fn was_begun(self) -> bool {
        self.0.exists(Path::new(FOLDER))
    }

    /// Records whether the configuration had mistakes at the last attempt to apply it.
    pub fn set_not_applied(self, is_so: bool) -> Result<()> {
        let file = Path::new(NOT_APPLIED);
        if is_so {
            return Ok(self.0.replace(file, "")?);
        }
        self.remove(file)
    }

    /// Returns the value that [`Self::set_not_applied`] recorded last.
    pub fn is_not_applied(self) -> bool {
        self.0.exists(Path::new(NOT_APPLIED))
    }
}
