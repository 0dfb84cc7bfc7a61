// SPDX-License-Identifier: GPL-2.0

//! The names that the configuration gives to hosts, for people: targets know a host by its id only.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use crate::config::persist::Files;
use crate::config::{self, Config};
use crate::error::{Error, Kind, Result};
use crate::names::HostName;
use crate::output::{Done, Outcome};
use crate::system::System;

/// Names of hosts, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct HostNames(
    #[cfg_attr(feature = "schemars", schemars(with = "BTreeMap<String, String>"))]
    BTreeMap<Uuid, String>,
);

impl From<&Config> for HostNames {
    fn from(config: &Config) -> Self {
        let names = config.host_names.iter();
        Self(names.map(|(name, id)| (id.0, name.to_string())).collect())
    }
}

impl HostNames {
    /// Reads the names in the configuration. While the files have a mistake, which other commands report, hosts have no
    /// names.
    pub fn read(system: &dyn System) -> Self {
        let config = config::load(system).map(|loaded| loaded.config);
        Self::from(&config.unwrap_or_default())
    }

    /// Returns whether no host has a name.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops the names of all other hosts.
    #[must_use]
    pub fn only(mut self, is_shown: impl Fn(&Uuid) -> bool) -> Self {
        self.0.retain(|id, _| is_shown(id));
        self
    }

    /// Returns the ids of all hosts that have a name.
    pub fn ids(&self) -> Vec<Uuid> {
        self.0.keys().copied().collect()
    }

    /// Returns the name of a host.
    pub fn get(&self, id: &Uuid) -> Option<&str> {
        self.0.get(id).map(String::as_str)
    }

    /// Returns the id of a host as text, and its name if it has one.
    pub fn show(&self, id: &Uuid) -> String {
        named(id, self.get(id))
    }

    /// Returns the id of a host that the kernel has shown, and its name if it has one.
    pub fn show_text(&self, id: &str) -> String {
        let parsed = Uuid::try_parse(id);
        parsed.map_or_else(|_| id.to_owned(), |id| self.show(&id))
    }

    /// Joins hosts with commas.
    pub fn join(&self, ids: &[Uuid]) -> String {
        let texts: Vec<_> = ids.iter().map(|id| self.show(id)).collect();
        texts.join(", ")
    }
}

/// Returns the id of a host as text, and this name if it has one.
pub(crate) fn named(id: &Uuid, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{id} ({name})"),
        None => id.to_string(),
    }
}

/// Runs `hcablk target name-host`: gives a host a name, or removes its name.
pub fn name(system: &dyn System, host: Uuid, name: Option<&HostName>) -> Result<Outcome> {
    let mut files = Files::lock(system)?;
    let all = &files.config().host_names;
    let known = all.iter().find(|(_, id)| id.0 == host);
    let changed = known.map(|(name, _)| name) != name;
    if changed {
        files.name_host(host, name)?;
    }
    let stored = if changed { Some(files.store()?) } else { None };
    let mut outcome = Outcome::new(Done::NameHost {
        host,
        name: name.map(ToString::to_string),
        changed,
    });
    match stored {
        Some(stored) => stored.report(&mut outcome),
        None => outcome.note("nothing to change"),
    }
    Ok(outcome)
}

/// Returns the error for a name that another host has.
pub(crate) fn is_taken(name: &HostName, host: Uuid) -> Error {
    Error::new(
        Kind::Exists,
        format!("{name} is the name of the host {host}"),
    )
    .advise(format!(
        "Choose another name, or remove this one from that host: hcablk target name-host {host} --remove"
    ))
}
