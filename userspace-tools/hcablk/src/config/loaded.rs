// SPDX-License-Identifier: GPL-2.0

//! A configuration that was read, the places of its tables, and its mistakes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::schema::Config;

/// The folder of the configuration.
pub(super) const FOLDER: &str = "/etc/hcablk";

/// The file that is read first.
pub const MAIN: &str = "/etc/hcablk/hcablk.toml";

/// The place of an entry in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigPlace {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for ConfigPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// The place of each table, by its name in the files, such as `disk.data`.
pub type Places = BTreeMap<String, ConfigPlace>;

/// A configuration, and the place of each of its tables.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The places of its tables.
    pub places: Places,
    /// The files that were read.
    pub files: Vec<PathBuf>,
}

impl Loaded {
    /// Returns the place of a table; the main file's beginning if no file has it.
    pub fn place_of(&self, table: &str) -> ConfigPlace {
        self.places
            .get(table)
            .cloned()
            .unwrap_or_else(|| ConfigPlace {
                file: MAIN.into(),
                line: 1,
            })
    }
}

/// A mistake in a file.
pub(super) struct Mistake {
    /// File, line, and description.
    pub(super) text: String,
    /// The advice for the user.
    pub(super) advice: Option<String>,
}

impl Mistake {
    /// Describes a mistake at a place.
    pub(super) fn new(place: &ConfigPlace, what: impl fmt::Display) -> Self {
        Self {
            text: format!("{place}: {what}"),
            advice: None,
        }
    }

    /// Adds the advice.
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}
